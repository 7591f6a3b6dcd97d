"""Stores tables that a micro-batch changes as a whole or not at all, for any reader of Parquet or Delta.

    <path>/events/topic=web/date=2026-11-20/…     one file for each task and micro-batch
    <path>/<total>/date=2026-11-20/…              one file for each date, replaced when its totals change
    <path>/_pipeline.json                         the pipeline that owns this output
    <path>/_staging/, <path>/_commits/            Parquet only, see below

Tasks write files that are not visible to readers; the driver makes them visible.

**Parquet** has no log of its own, and readers read every file.  So files are written under ``_staging``, outside of the
tables.  To commit, the driver durably stores a *manifest* of all renames under the number of the micro-batch, and
carries it out.  The manifest is the commit: before it nothing has changed, and after a crash the next start carries out
the remaining renames.  A micro-batch with a manifest is not written again.  Staged names are never used twice, so files
that a repetition stages are not confused with those in the manifest.  During the renames a reader may see only some
files of the micro-batch, but never a file twice or a part of one.

**Delta**: every table is a Delta table, whose log makes files visible.  Each entry has the number of the micro-batch as
an application transaction, by which a repetition is recognised.

If the state of a pipeline is deleted and its output is kept, a new run would double everything.  ``_pipeline.json``
prevents this.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import BadValue
from .settings import Output, Settings

EVENTS: Final = "events"
OWNER: Final = "_pipeline.json"
STAGING: Final = "_staging"
COMMITS: Final = "_commits"
COMMITS_KEPT: Final = 100
Partition = Mapping[str, str | None]
NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class NewFile:
    """A file of events that is not committed yet; ``staged`` and ``final`` are relative to the output's path."""

    staged: str
    final: str
    partition: tuple[tuple[str, str | None], ...]
    rows: int
    bytes: int


@dataclass(frozen=True)
class Change:
    """New content of a table of totals: ``rows`` replace all rows of these dates."""

    rows: pa.Table
    days: tuple[str, ...]


class Store(Protocol):
    """The output of one pipeline."""

    def prepare(self) -> None:
        """Finish or remove what an earlier run left behind.  Call it before writing, while nobody else writes."""
        ...

    def done(self, batch: int, table: str = EVENTS) -> bool:
        """Whether this micro-batch has been committed; ``events`` are committed last."""
        ...

    def place(self, batch: int, task: int, attempt: int, number: int, partition: Partition) -> tuple[str, str]:
        """The staged and the final path of a task's file."""
        ...

    def change(self, batch: int, table: str, change: Change) -> None:
        """Replace totals as part of this micro-batch, unless it has been committed already."""
        ...

    def commit(self, batch: int, files: Sequence[NewFile]) -> None:
        """Add files of events and finish the micro-batch, unless it has been committed already."""
        ...

    def read(self, table: str, days: Sequence[str] | None = None) -> pa.Table | None:
        """Committed rows of a table of totals (of these dates); None when there are none."""
        ...


def open_store(settings: Settings, identity: str, schema: pa.Schema | None = None) -> Store:
    """Open the output.  ``schema``: that of events, needed to commit them."""
    if settings.output.format == "parquet":
        return ParquetStore(Path(settings.output.path), settings.output)
    return DeltaStore(Path(settings.output.path), settings.output, identity, schema)


def claim(settings: Settings, identity: str) -> None:
    """Mark the output permanently as that of the pipeline with this identity.

    Raises:
        BadValue: it belongs to another pipeline, or has another format.
    """
    root = Path(settings.output.path)
    root.mkdir(parents=True, exist_ok=True)
    owner = root / OWNER
    if not owner.exists():
        _store_json(owner, {"pipeline": settings.pipeline.name, "identity": identity, "format": settings.output.format})
        return
    known = json.loads(owner.read_text())
    if known["identity"] != identity:
        raise BadValue(
            f"{root} holds the output of pipeline {known['pipeline']!r} from another state than {settings.state_dir}: "
            "reading everything again would double it. Use the old state, or another output.path, or delete the output"
        )
    if known["format"] != settings.output.format:
        raise BadValue(f"{root} is written as {known['format']}: use another output.path for {settings.output.format}")


# ---- files of events, in a task


class EventFiles:
    """Takes tables of events and writes files of at most ``buffer_bytes``, each of one partition."""

    def __init__(self, store: Store, settings: Output, batch: int, task: int, attempt: int) -> None:
        self._store = store
        self._settings = settings
        self._who = batch, task, attempt
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self.files: list[NewFile] = []

    def add(self, events: pa.Table) -> None:
        if len(events):
            self._waiting.append(events)
            self._waiting_bytes += events.nbytes
            if self._waiting_bytes >= self._settings.buffer_bytes:
                self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        for partition, rows in split(table, self._settings.partition_by):
            staged, final = self._store.place(*self._who, len(self.files), partition)
            path = Path(self._settings.path) / staged
            write_file(path, rows, self._settings.compression)
            file = NewFile(staged, final, tuple(partition.items()), len(rows), path.stat().st_size)
            self.files.append(file)


def split(table: pa.Table, by: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """A table for each combination of values, without these columns."""
    rest = table.drop_columns(list(by))
    codes = np.zeros(len(table), np.int64)
    encoded = [table.column(name).combine_chunks().dictionary_encode(null_encoding="encode") for name in by]
    for each in encoded:
        codes = codes * max(1, len(each.dictionary)) + each.indices.to_numpy()
    order = None if not len(codes) or (codes == codes[0]).all() else np.argsort(codes, kind="stable")
    if order is not None:
        codes, rest = codes[order], rest.take(pa.array(order))
    bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)] if len(codes) else []
    for start, stop in pairwise(bounds):
        row = int(order[start]) if order is not None else start
        yield {name: table.column(name)[row].as_py() for name in by}, rest.slice(start, stop - start)


def write_file(path: Path, table: pa.Table, compression: str) -> None:
    """Write a table to a file, durably.  Replaces an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        pq.write_table(table, file, compression=compression)
        file.flush()
        os.fsync(file.fileno())


def directory(partition: Mapping[str, str | None]) -> str:
    """``topic=web/date=2026-11-20``, in Hive's form."""
    return "/".join(f"{name}={NULL if value is None else quote(value, safe='')}" for name, value in partition.items())


def _sync(directories: set[Path]) -> None:
    for each in directories:
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _store_json(path: Path, value: object, *, fresh: bool = False) -> None:
    """Write JSON durably and atomically.  Raises FileExistsError if ``fresh`` and the file exists."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        if fresh:
            os.link(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync({path.parent})


# ---- Parquet


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
                _store_json(self._manifest(batch), {"batch": batch, "moves": moves}, fresh=True)
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
        _sync({path.parent for path in staged})

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
        _sync(changed)

    def read(self, table: str, days: Sequence[str] | None = None) -> pa.Table | None:
        found = []
        for path in sorted((self._root / table).glob("date=*/totals.parquet")):
            day = unquote(path.parent.name.removeprefix("date="))
            if days is None or day in days:
                rows = pq.ParquetFile(path).read()
                found.append(rows.append_column("date", pa.array([day] * len(rows), pa.string())))
        return pa.concat_tables(found, promote_options="default") if found else None


# ---- Delta


class DeltaStore:
    """Tables in Delta's format.  ``deltalake`` is imported only here: Parquet does not need it."""

    def __init__(self, root: Path, settings: Output, identity: str, schema: pa.Schema | None) -> None:
        self._root = root
        self._settings = settings
        self._app = f"appliance-pipeline-{identity}"
        self._schema = schema

    def prepare(self) -> None:
        """Does nothing: files that are in no log are invisible, and ``VACUUM`` removes them."""

    def done(self, batch: int, table: str = EVENTS) -> bool:
        opened = self._open(table)
        version = None if opened is None else opened.transaction_version(self._app)
        return version is not None and int(version) >= batch

    def _open(self, table: str) -> Any:
        from deltalake import DeltaTable

        path = str(self._root / table)
        return DeltaTable(path) if DeltaTable.is_deltatable(path) else None

    def place(self, batch: int, task: int, attempt: int, number: int, partition: Partition) -> tuple[str, str]:
        name = f"{EVENTS}/{batch:09d}-{task:05d}-{number:04d}-{uuid.uuid4().hex}.parquet"
        return name, name

    def _properties(self, batch: int) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(app_transactions=[Transaction(self._app, batch)])

    def change(self, batch: int, table: str, change: Change) -> None:
        from deltalake import write_deltalake

        if self.done(batch, table):
            return
        path, properties = str(self._root / table), self._properties(batch)
        if self._open(table) is None:
            write_deltalake(path, change.rows, partition_by=["date"], commit_properties=properties)
            return
        days = ", ".join(f"'{day}'" for day in change.days)
        write_deltalake(
            path, change.rows, mode="overwrite", predicate=f"date IN ({days})", commit_properties=properties
        )

    def commit(self, batch: int, files: Sequence[NewFile]) -> None:
        from deltalake import DeltaTable
        from deltalake.transaction import AddAction

        if self.done(batch):
            return
        assert self._schema is not None, "events are committed with their schema"
        partition_by = list(self._settings.partition_by)
        path = str(self._root / EVENTS)
        table = self._open(EVENTS)
        if table is None:
            table = DeltaTable.create(path, self._schema, partition_by=partition_by)
        now_ms = int(time.time() * 1000)
        actions = [
            AddAction(
                path=Path(file.final).name,
                size=file.bytes,
                partition_values=dict(file.partition),
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        table.create_write_transaction(
            actions, "append", self._schema, partition_by, commit_properties=self._properties(batch)
        )

    def read(self, table: str, days: Sequence[str] | None = None) -> pa.Table | None:
        opened = self._open(table)
        if opened is None:
            return None
        wanted = [("date", "in", list(days))] if days is not None else None
        return opened.to_pyarrow_table(filters=wanted)
