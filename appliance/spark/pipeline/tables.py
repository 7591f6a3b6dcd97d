"""Stores tables that a micro-batch changes as a whole or not at all, for any reader of Parquet or Delta::

    <path>/events/topic=web/date=2026-11-20/…     one file for each task and micro-batch
    <path>/<total>/date=2026-11-20/…              files of one date each, replaced when totals change
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
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import BadValue
from .delta_store import DeltaStore
from .file_statistics import file_statistics
from .parquet_store import ParquetStore
from .settings import Output, Settings
from .table_files import EVENTS, Change, NewFile, Part, Partition, split, store_json, write_file

OWNER: Final = "_pipeline.json"


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

    def parts(self, table: str, days: Sequence[str] | None = None) -> list[Part]:
        """The parts of a table of totals (of these dates)."""
        ...

    def read(self, table: str, parts: Sequence[Part] | None = None) -> pa.Table | None:
        """Committed rows of a table of totals (of these parts); None when there are none."""
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
        store_json(owner, {"pipeline": settings.pipeline.name, "identity": identity, "format": settings.output.format})
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
            if self._settings.sort_by:
                rows = rows.sort_by([(name, "ascending") for name in self._settings.sort_by])
            write_file(path, rows, self._settings.compression)
            found = file_statistics(pq.read_metadata(path)) if self._settings.format == "delta" else ""
            file = NewFile(staged, final, tuple(partition.items()), len(rows), path.stat().st_size, found)
            self.files.append(file)
