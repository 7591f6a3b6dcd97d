"""Commits micro-batches to Parquet tables with a manifest; ``tables`` explains how."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .settings import Output
from .table_files import EVENTS, Change, NewFile, Partition, directory, store_json, sync_directories, write_file

STAGING: Final = "_staging"
COMMITS: Final = "_commits"
COMMITS_KEPT: Final = 100


class ParquetStore:
    def __init__(self, root: Path, settings: Output) -> None:
        self._root = root
        self._settings = settings
        self._moves: list[list[str]] = []

    def prepare(self) -> None:
        (self._root / COMMITS).mkdir(parents=True, exist_ok=True)
        if (last := self._last()) is not None:
            self._carry_out(self._manifest(last))
        shutil.rmtree(self._root / STAGING, ignore_errors=True)

    def done(self, batch: int, table: str = EVENTS) -> bool:
        last = self._last()
        return last is not None and last >= batch

    def place(self, batch: int, task: int, attempt: int, number: int, partition: Partition) -> tuple[str, str]:
        inner = f"{EVENTS}/{directory(partition)}" if partition else EVENTS
        name = f"{task:05d}-{attempt:03d}-{number:04d}-{uuid.uuid4().hex}.parquet"
        return f"{STAGING}/{batch:09d}/{inner}/{name}", f"{inner}/{batch:09d}-{task:05d}-{number:04d}.parquet"

    def change(self, batch: int, table: str, change: Change) -> None:
        dates = change.rows.column("date")
        for day in change.days:
            rows = change.rows.filter(pc.equal(dates, day)).drop_columns(["date"])
            final = f"{table}/{directory({'date': day})}/totals.parquet"
            if len(rows) or (self._root / final).exists():
                staged = f"{STAGING}/{batch:09d}/{table}/{day}-{uuid.uuid4().hex}.parquet"
                write_file(self._root / staged, rows, self._settings.compression)
                self._moves.append([staged, final])

    def commit(self, batch: int, files: Sequence[NewFile]) -> None:
        moves = [*self._moves, *([file.staged, file.final] for file in files)]
        if not self.done(batch):
            self._check_staged(moves)
            with suppress(FileExistsError):  # an earlier driver still ran and has committed it
                store_json(self._manifest(batch), {"batch": batch, "moves": moves}, fresh=True)
        self._moves = []
        self._carry_out(self._manifest(batch))
        shutil.rmtree(self._root / STAGING / f"{batch:09d}", ignore_errors=True)
        for old in sorted((self._root / COMMITS).glob("*.json"))[:-COMMITS_KEPT]:
            old.unlink()

    def _check_staged(self, moves: Sequence[Sequence[str]]) -> None:
        """Check that the files for the manifest exist, and make their names durable.

        Raises:
            FileNotFoundError: another driver has removed a file.  That driver continues, this one fails.
        """
        staged = [self._root / source for source, _ in moves]
        for path in staged:
            path.stat()
        sync_directories({path.parent for path in staged})

    def _manifest(self, batch: int) -> Path:
        return self._root / COMMITS / f"{batch:012d}.json"

    def _last(self) -> int | None:
        numbers = [int(path.stem) for path in (self._root / COMMITS).glob("[0-9]*.json")]
        return max(numbers, default=None)

    def _carry_out(self, manifest: Path) -> None:
        if not manifest.exists():  # an old one, removed after it was carried out
            return
        changed: set[Path] = set()
        for staged, final in json.loads(manifest.read_text())["moves"]:
            source, target = self._root / staged, self._root / final
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
                changed |= {target.parent, target.parent.parent}
        sync_directories(changed)

    def read(self, table: str, days: Sequence[str] | None = None) -> pa.Table | None:
        found = []
        for path in sorted((self._root / table).glob("date=*/totals.parquet")):
            day = unquote(path.parent.name.removeprefix("date="))
            if days is None or day in days:
                rows = pq.ParquetFile(path).read()
                found.append(rows.append_column("date", pa.array([day] * len(rows), pa.string())))
        return pa.concat_tables(found, promote_options="default") if found else None
