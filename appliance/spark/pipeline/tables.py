"""Opens the output of a pipeline, whose tables are Delta tables, and says whose it is::

    <path>/events/…                               one file for each task and micro-batch
    <path>/views/<name>/…                         tables of views (see ``view_states``)
    <path>/_pipeline.json                         the pipeline that owns this output, and its permanent id
    <path>/_record.json                           a copy of the last record (see ``batch_record``)
    <path>/_letters.json                          up to which version dead letters were sent (see ``letters``)
    <path>/_expired.json                          what has expired (see ``expiry``)
    <path>/_lock                                  held while the pipeline runs; content: the pid

Tasks write files that no reader sees; the driver's commit makes them visible.  Each commit has a record of what the
tables have read until then.  It is from there that a pipeline continues (see ``resume``).  Each entry of a table's log
has the number of the micro-batch as an application transaction, by which a repetition is recognised.
"""

from __future__ import annotations

import uuid
from typing import Final

import msgspec
import pyarrow as pa

from ...errors import BadValue
from .delta_store import DeltaStore
from .file_statistics import file_statistics
from .output_files import OutputFiles
from .settings import Output, Settings
from .table_files import EVENTS, NewFile, split

OWNER: Final = "_pipeline.json"
LOCK: Final = "_lock"
COMMITS_OF_PARQUET: Final = "_commits"
"""Tables that an earlier version of this package has written as Parquet have it."""


class Owner(msgspec.Struct, frozen=True):
    """The pipeline that an output belongs to.  ``identity`` is created with the output."""

    pipeline: str
    identity: str


def owner_of(settings: Settings) -> Owner | None:
    """The owner of the output; None before the first run.

    Raises:
        BadValue: it is another pipeline, or the tables are no Delta tables.
    """
    files = OutputFiles(settings.output)
    root, stored = files.uri(), files.read(OWNER)
    if stored is None:
        if files.exists(EVENTS):
            raise BadValue(
                f"{root} has tables and no {OWNER}, which says whose they are: put it back, or use another output.path"
            )
        return None
    try:
        owner = msgspec.json.decode(stored, type=Owner)
    except msgspec.DecodeError as error:
        raise BadValue(f"{files.uri(OWNER)} cannot be read ({error}): put a copy of it back") from None
    if owner.pipeline != settings.pipeline.name:
        raise BadValue(
            f"{root} is the output of pipeline {owner.pipeline!r}, not of {settings.pipeline.name!r}: "
            "use another output.path"
        )
    if files.exists(COMMITS_OF_PARQUET):
        raise BadValue(f"{root} has tables in Parquet, which are not written any more: use another output.path")
    return owner


def claim(settings: Settings) -> str:
    """Mark the output permanently as that of this pipeline.  Returns the identity.  Raises as :func:`owner_of`."""
    owner = owner_of(settings)
    if owner is None:
        owner = Owner(settings.pipeline.name, uuid.uuid4().hex)
        OutputFiles(settings.output).write(OWNER, msgspec.json.encode(owner).decode())
    return owner.identity


def open_store(settings: Settings, identity: str | None = None, schema: pa.Schema | None = None) -> DeltaStore:
    """Open the output.  ``identity``: by default the owner's; ``schema``: that of events, needed to commit them."""
    if identity is None:
        owner = owner_of(settings)
        identity = owner.identity if owner is not None else ""
    return DeltaStore(settings.output, identity, schema)


# ---- files of events, in a task


class EventFiles:
    """Takes tables of events and writes files of at most ``buffer_bytes``, each of one partition."""

    def __init__(self, store: DeltaStore, settings: Output, batch: int, task: int) -> None:
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
            rows = pa.concat_tables(tables, promote_options="default")  # later ones may have more columns
            path = self._store.place(*self._who, len(self.files))
            if self._settings.sort_by:
                rows = rows.sort_by([(name, "ascending") for name in self._settings.sort_by])
            size, footer = self._output.write_table(path, rows)
            self.files.append(NewFile(path, partition, len(rows), size, file_statistics(footer)))
