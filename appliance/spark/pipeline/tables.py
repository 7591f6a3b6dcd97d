"""Stores tables that a micro-batch changes as a whole or not at all, for any reader of Parquet or Delta::

    <path>/events/topic=web/date=2026-11-20/…     one file for each task and micro-batch
    <path>/<total>/date=2026-11-20/…              files of one date each, replaced when totals change
    <path>/_pipeline.json                         the pipeline that owns this output, and its permanent id
    <path>/_plan.json                             what the current micro-batch reads (see ``batch_record``)
    <path>/_lock                                  held while the pipeline runs; content: the pid
    <path>/_staging/, <path>/_commits/            Parquet only, see below

Tasks write files that are not visible to readers; the driver makes them visible.  Each commit has a record of what the
tables have read until then.  It is from there that a pipeline continues (see ``resume``).

**Parquet** has no log of its own, and readers read every file.  So files are written under ``_staging``, outside of the
tables.  To commit, the driver durably stores a *manifest* of all renames, and carries it out.  The manifest is the
commit: before it nothing has changed, and after a crash the next start carries out the remaining renames.  A
micro-batch with a manifest is not written again.  Staged names are never used twice, so files that a repetition stages
are not confused with those in the manifest.  During the renames a reader may see only some files of the micro-batch,
but never a file twice or a part of one.

**Delta**: every table is a Delta table, whose log makes files visible.  Each entry has the number of the micro-batch as
an application transaction, by which a repetition is recognised.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from ...errors import BadValue
from .batch_record import BatchRecord
from .delta_store import DeltaStore
from .file_statistics import file_statistics
from .output_files import OutputFiles
from .parquet_store import COMMITS, ParquetStore
from .settings import Output, Settings
from .table_files import EVENTS, Change, NewFile, Part, Partition, split

OWNER: Final = "_pipeline.json"
LOCK: Final = "_lock"


class Store(Protocol):
    """The output of one pipeline."""

    def prepare(self) -> None:
        """Finish or remove what an earlier run left behind.  Call it before writing, while nobody else writes."""
        ...

    def check(self) -> None:
        """Raises BadValue if the tables contradict each other.  It may take a second for many files."""
        ...

    def recorded(self) -> BatchRecord | None:
        """The record of the last commit; None before the first one."""
        ...

    def unfinished(self) -> BatchRecord | None:
        """The record of a micro-batch that some tables have and ``events`` has not."""
        ...

    def exists(self, table: str) -> bool: ...

    def schema(self, table: str) -> pa.Schema | None:
        """The columns of a table; None if it does not exist."""
        ...

    def extend(self, table: str, schema: pa.Schema) -> None:
        """Add the columns that the table lacks."""
        ...

    def done(self, batch: int, table: str = EVENTS) -> bool:
        """Whether this micro-batch has been committed; ``events`` are committed last."""
        ...

    def place(self, batch: int, task: int, number: int, partition: Partition) -> tuple[str, str]:
        """The staged and the final path of a task's file."""
        ...

    def change(self, record: BatchRecord, table: str, change: Change) -> None:
        """Replace totals as part of this micro-batch, unless it has been committed already."""
        ...

    def commit(self, record: BatchRecord, files: Sequence[NewFile]) -> None:
        """Add files of events and finish the micro-batch, unless it has been committed already."""
        ...

    def amend(self, record: BatchRecord, rewritten: Mapping[str, pa.Schema]) -> None:
        """Replace the record without a micro-batch, and rewrite all files of some tables to other types."""
        ...

    def parts(self, table: str, days: Sequence[str] | None = None) -> list[Part]:
        """The parts of a table of totals (of these dates)."""
        ...

    def read(self, table: str, parts: Sequence[Part] | None = None) -> pa.Table | None:
        """Committed rows of a table of totals (of these parts); None when there are none."""
        ...

    def snapshot(self) -> tuple[BatchRecord | None, dict[str, Any]]:
        """The record of the last commit, and each table as a data set of Arrow that has the rows of that commit.

        Raises:
            Unavailable: a commit is not carried out whole.
        """
        ...


class Owner(msgspec.Struct, frozen=True):
    """The pipeline that an output belongs to.  ``identity`` is created with the output."""

    pipeline: str
    identity: str
    format: str


def owner_of(settings: Settings) -> Owner | None:
    """The owner of the output; None before the first run.

    Raises:
        BadValue: it is another pipeline, or has another format.
    """
    files = OutputFiles(settings.output)
    root, found = files.uri(), files.read(OWNER)
    if found is None:
        if files.exists(EVENTS) or files.exists(COMMITS):
            raise BadValue(
                f"{root} has tables and no {OWNER}, which says whose they are: put it back, or use another output.path"
            )
        return None
    try:
        owner = msgspec.json.decode(found, type=Owner)
    except msgspec.DecodeError as error:
        raise BadValue(f"{files.uri(OWNER)} cannot be read ({error}): put a copy of it back") from None
    if owner.pipeline != settings.pipeline.name:
        raise BadValue(
            f"{root} is the output of pipeline {owner.pipeline!r}, not of {settings.pipeline.name!r}: "
            "use another output.path"
        )
    if owner.format != settings.output.format:
        raise BadValue(f"{root} is written as {owner.format}: use another output.path for {settings.output.format}")
    return owner


def claim(settings: Settings) -> str:
    """Mark the output permanently as that of this pipeline.  Returns the identity.  Raises as :func:`owner_of`."""
    owner = owner_of(settings)
    if owner is None:
        owner = Owner(settings.pipeline.name, uuid.uuid4().hex, settings.output.format)
        OutputFiles(settings.output).write(OWNER, msgspec.json.encode(owner).decode())
    return owner.identity


def open_store(settings: Settings, identity: str | None = None, schema: pa.Schema | None = None) -> Store:
    """Open the output.  ``identity``: by default the owner's; ``schema``: that of events, needed to commit them."""
    if settings.output.format == "parquet":
        return ParquetStore(Path(settings.output.path), settings.output)
    if identity is None:
        owner = owner_of(settings)
        identity = owner.identity if owner is not None else ""
    return DeltaStore(settings.output, identity, schema)


# ---- files of events, in a task


class EventFiles:
    """Takes tables of events and writes files of at most ``buffer_bytes``, each of one partition."""

    def __init__(self, store: Store, settings: Output, batch: int, task: int) -> None:
        self._store = store
        self._settings = settings
        self._output = OutputFiles(settings)
        self._who = batch, task
        self._waiting: dict[tuple[tuple[str, str | None], ...], list[pa.Table]] = {}
        self._waiting_bytes = 0
        self.files: list[NewFile] = []

    def add(self, events: pa.Table) -> None:
        for partition, rows in split(events, self._settings.partition_by):
            self._waiting.setdefault(tuple(partition.items()), []).append(rows)
        self._waiting_bytes += events.nbytes
        if self._waiting_bytes >= self._settings.buffer_bytes:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for partition, tables in waiting.items():
            rows = pa.concat_tables(tables)
            staged, final = self._store.place(*self._who, len(self.files), dict(partition))
            if self._settings.sort_by:
                rows = rows.sort_by([(name, "ascending") for name in self._settings.sort_by])
            size, footer = self._output.write_table(staged, rows)
            found = file_statistics(footer) if self._settings.format == "delta" else ""
            self.files.append(NewFile(staged, final, partition, len(rows), size, found))
