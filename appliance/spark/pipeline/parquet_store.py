"""Commits micro-batches to Parquet tables with a manifest; ``tables`` explains how::

    _commits/000000000012.json    the manifest of the thirteenth commit: {"record": …, "moves": [[staged, final] …]}

Manifests are numbered one after the other, the last :data:`COMMITS_KEPT` are kept.  ``record`` is a
:class:`~.batch_record.BatchRecord`.  A commit that only amends the record, or rewrites files, repeats the number of the
last micro-batch in it.
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from ...durable_files import replace_file
from ...errors import AlreadyRunning, BadValue, Unavailable
from .batch_record import BEGINNING, BatchRecord, decode_schema
from .parquet_compaction import moving
from .schema_changes import conform
from .settings import Output
from .table_files import EVENTS, Change, NewFile, Part, Partition, directory, sync_directories, write_file
from .times import MICROS

STAGING: Final = "_staging"
COMMITS: Final = "_commits"
COMMITS_KEPT: Final = 100
COMMON_METADATA: Final = "_common_metadata"
"""A file with the columns of a table and no rows, under the name that readers of Parquet know."""
SNAPSHOT_TRIES_MAX: Final = 50
SNAPSHOT_PAUSE_S: Final = 0.1
"""How often, and after which pauses, a reader looks again while a micro-batch is being moved into the tables."""
_OF_A_BATCH: Final = re.compile(r"(\d{9})-\d{5}-\d{4}\.parquet")


class Manifest(msgspec.Struct, frozen=True):
    record: BatchRecord
    moves: list[tuple[str, str]] = []


_decode = msgspec.json.Decoder(Manifest).decode


class ParquetStore:
    def __init__(self, root: Path, settings: Output) -> None:
        self._root = root
        self._settings = settings
        self._moves: list[tuple[str, str]] = []

    def prepare(self) -> None:
        self.check()
        (self._root / COMMITS).mkdir(parents=True, exist_ok=True)
        if (last := self._last()) is not None:
            self._carry_out(last[1], resumed=True)
        shutil.rmtree(self._root / STAGING, ignore_errors=True)

    def recorded(self) -> BatchRecord | None:
        last = self._last()
        return last[1].record if last is not None else None

    def check(self) -> None:
        """Raises BadValue if there are events of a micro-batch that no manifest has, or if all are gone."""
        last = self._last()
        batch = last[1].record.batch if last is not None else BEGINNING
        named = {final for _, final in last[1].moves} if last is not None else set()
        if batch > BEGINNING and not (self._root / EVENTS).is_dir():
            raise BadValue(
                f"{self._root / EVENTS} is gone, and the manifests have micro-batch {batch}: put it back, "
                f"or delete the whole output {self._root} to begin again"
            )
        for path in (self._root / EVENTS).rglob("*.parquet"):
            found = _OF_A_BATCH.fullmatch(path.name)
            if found and int(found[1]) > batch and str(path.relative_to(self._root)) not in named:
                has = f"the manifests end at {batch}" if batch > BEGINNING else "there is no manifest"
                raise BadValue(
                    f"{path} is of micro-batch {int(found[1])}, and {has}: the output was restored in parts. "
                    f"Restore all of {self._root} from one time, or move the files of later micro-batches away"
                )

    def unfinished(self) -> BatchRecord | None:
        """None: a manifest commits all tables at once."""
        return None

    def exists(self, table: str) -> bool:
        return (self._root / table).is_dir()

    def schema(self, table: str) -> pa.Schema | None:
        last = self._last()
        if last is None or table not in last[1].record.tables or not self.exists(table):
            return None
        return decode_schema(last[1].record.tables[table].columns)

    def extend(self, table: str, schema: pa.Schema) -> None:
        """Write the columns to :data:`COMMON_METADATA`.  The next record has them."""
        directory = self._root / table
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_metadata(schema, directory / COMMON_METADATA)

    def done(self, batch: int, table: str = EVENTS) -> bool:
        last = self._last()
        return last is not None and last[1].record.batch >= batch

    def place(self, batch: int, task: int, number: int, partition: Partition) -> tuple[str, str]:
        inner = f"{EVENTS}/{directory(partition)}" if partition else EVENTS
        return _staged(batch), f"{inner}/{batch:09d}-{task:05d}-{number:04d}.parquet"

    def change(self, record: BatchRecord, table: str, change: Change) -> None:
        for part, rows in change.contents:
            date = part.date if part is not None else rows.column("date")[0].as_py()
            inner = part.path if part is not None else f"{directory({'date': date})}/{uuid.uuid4().hex}.parquet"
            self._stage(record.batch, rows.drop_columns(["date"]), f"{table}/{inner}")

    def _stage(self, batch: int, rows: pa.Table, final: str) -> None:
        staged = _staged(batch)
        write_file(self._root / staged, rows, self._settings.compression)
        self._moves.append((staged, final))

    def commit(self, record: BatchRecord, files: Sequence[NewFile]) -> None:
        moves = [*self._moves, *((file.staged, file.final) for file in files)]
        self._moves = []
        if not self.done(record.batch):
            self._store(Manifest(record, moves))

    def amend(self, record: BatchRecord, rewritten: Mapping[str, pa.Schema]) -> None:
        for table, schema in rewritten.items():
            for path in sorted((self._root / table).rglob("*.parquet")):
                rows = pq.ParquetFile(path).read()
                own = pa.schema([field for field in schema if field.name in rows.column_names])
                self._stage(record.batch, conform(rows, own), str(path.relative_to(self._root)))
        moves, self._moves = self._moves, []
        self._store(Manifest(record, moves))

    def _store(self, manifest: Manifest) -> None:
        """Commit.

        Raises:
            FileNotFoundError: another driver has removed staged files.
            AlreadyRunning: another driver has committed.
        """
        staged = [self._root / source for source, _ in manifest.moves]
        for path in staged:
            path.stat()
        last = self._last()
        path = self._root / COMMITS / f"{last[0] + 1 if last else 0:012d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        (self._root / EVENTS).mkdir(exist_ok=True)
        above = {self._root / STAGING, self._root} if staged else {self._root}
        sync_directories({path.parent for path in staged} | above)
        try:
            replace_file(path, msgspec.json.encode(manifest), mode=None, fresh=True)
        except FileExistsError:
            raise AlreadyRunning(f"another process has committed to {self._root}: {path} was there already") from None
        self._carry_out(manifest)
        shutil.rmtree(self._root / STAGING / f"{max(manifest.record.batch, 0):09d}", ignore_errors=True)
        for old in self._manifests()[:-COMMITS_KEPT]:
            old.unlink()

    def _manifests(self) -> list[Path]:
        return sorted((self._root / COMMITS).glob("[0-9]*.json"))

    def _last(self) -> tuple[int, Manifest] | None:
        """The last commit and its number."""
        for path in self._manifests()[-1:]:
            try:
                return int(path.stem), _decode(path.read_bytes())
            except (ValueError, msgspec.DecodeError) as error:
                raise BadValue(
                    f"{path} is no manifest ({error}): restore all of {self._root}, or delete it to begin again"
                ) from None
        return None

    def _carry_out(self, manifest: Manifest, resumed: bool = False) -> None:
        """``resumed``: an earlier process may have moved files, and not made that durable."""
        changed: set[Path] = set()
        with moving(self._root):
            for staged, final in manifest.moves:
                source, target = self._root / staged, self._root / final
                if source.exists():
                    changed |= _made(target.parent, self._root)
                    source.replace(target)
                if resumed and target.exists():
                    changed |= {self._root / each for each in Path(final).parents}
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

    def snapshot(self) -> tuple[BatchRecord | None, dict[str, Any]]:
        for _ in range(SNAPSHOT_TRIES_MAX):
            if not self._root.is_dir():
                break
            with moving(self._root, forbidden=True):
                last = self._last()
                if last is None:
                    break
                record, moves = last[1].record, last[1].moves
                if not any((self._root / staged).exists() for staged, _ in moves):
                    tables = sorted(path.name for path in self._root.iterdir() if path.is_dir() and path.name[0] != "_")
                    return record, {table: self._listed(table) for table in tables}
            time.sleep(SNAPSHOT_PAUSE_S)
        else:
            raise Unavailable(f"{self._root}: its last micro-batch is not in the tables yet: ask again")
        return None, {}

    def _listed(self, table: str) -> Any:
        root = self._root / table
        known = root / COMMON_METADATA
        schema = pq.read_schema(known) if known.exists() else self.schema(table)
        return pyarrow.dataset.dataset(root, schema=schema, format="parquet", partitioning="hive")


def _staged(batch: int) -> str:
    """A new path for a file of this micro-batch: all are in one directory, which is one to make durable and remove."""
    return f"{STAGING}/{max(batch, 0):09d}/{uuid.uuid4().hex}.parquet"


def _made(directory: Path, root: Path) -> set[Path]:
    """Make a directory below ``root``.  Returns it, and those that have a new entry for that."""
    changed = {directory}
    while directory != root and not directory.is_dir():
        directory = directory.parent
        changed.add(directory)
    for each in sorted(changed):
        each.mkdir(exist_ok=True)
    return changed


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
