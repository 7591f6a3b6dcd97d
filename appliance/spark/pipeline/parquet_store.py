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

from .parquet_compaction import moving
from .settings import Output
from .table_files import EVENTS, Change, NewFile, Part, Partition, directory, store_json, sync_directories, write_file
from .times import MICROS

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
        for part, rows in change.contents:
            name = f"{uuid.uuid4().hex}.parquet"
            date = part.date if part is not None else rows.column("date")[0].as_py()
            final = f"{table}/{part.path if part is not None else f'{directory(dict(date=date))}/{name}'}"
            staged = f"{STAGING}/{batch:09d}/{table}/{name}"
            write_file(self._root / staged, rows.drop_columns(["date"]), self._settings.compression)
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
        with moving(self._root):
            for staged, final in json.loads(manifest.read_text())["moves"]:
                source, target = self._root / staged, self._root / final
                if source.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    source.replace(target)
                    changed |= {target.parent, target.parent.parent}
        sync_directories(changed)

    def parts(self, table: str, days: Sequence[str] | None = None) -> list[Part]:
        root = self._root / table
        chosen = sorted(root.glob("date=*")) if days is None else [root / directory({"date": day}) for day in days]
        return [part_of(path, root) for each in chosen for path in sorted(each.glob("[!._]*.parquet"))]

    def read(self, table: str, parts: Sequence[Part] | None = None) -> pa.Table | None:
        found = []
        for part in self.parts(table) if parts is None else parts:
            rows = pq.ParquetFile(self._root / table / part.path).read()
            found.append(rows.append_column("date", pa.array([part.date] * len(rows), pa.string())))
        return pa.concat_tables(found, promote_options="default") if found else None


def part_of(path: Path, root: Path) -> Part:
    """The part that this file of totals is, from the statistics in its footer."""
    footer = pq.read_metadata(path)
    (first, _), (_, last) = (statistics(footer, name) for name in ("start", "end"))
    date = unquote(path.parent.name.removeprefix("date="))
    return Part(date, str(path.relative_to(root)), footer.num_rows, first, last)


def statistics(footer: pq.FileMetaData, name: str) -> tuple[int, int]:
    """The lowest and highest time of a column, in microseconds; -1 without rows."""
    if not footer.num_rows:
        return -1, -1
    column = footer.schema.names.index(name)
    groups = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
    bounds = pa.array([each for group in groups for each in (group.min, group.max)], MICROS).cast(pa.int64())
    return pc.min(bounds).as_py(), pc.max(bounds).as_py()
