"""Puts small files of events together, in the background.

Files of a partition are put together when there are :data:`FILES_MIN` of one *tier*: sizes that differ by less than a
factor of :data:`FILES_MIN`.  So a row is written again once for each tier, at most log16(target / size of the first
file) times.  A partition to which nothing was added for ``settle_ms`` gets rid of all of its small files.  Files of
more than half the target are left alone.

Rows keep the order of their files, and are sorted by ``output.sort_by`` within row groups of :data:`GROUP_ROWS` rows.
The memory needed is that of one row group and one file.

One transaction removes the sources and adds what was put together, marked as no change of data.  A reader of an older
version keeps its files for ``output.keep_ms``, and at least :data:`KEEP_MIN_MS`; then ``VACUUM`` removes them, with
those that failed attempts have left.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from ...errors import ApplianceError
from .file_statistics import file_statistics
from .output_files import LOG, OutputFiles, with_dictionaries
from .repeating import Repeating
from .settings import Output
from .table_files import EVENTS, file_of

FILES_MIN: Final = 16
GROUP_ROWS: Final = 131_072
TIER_BYTES: Final = 4096
VACUUM_EVERY_S: Final = 3600
HOUR_MS: Final = 3_600_000
KEEP_MIN_MS: Final = 6 * HOUR_MS
"""``VACUUM`` cannot tell files of a micro-batch that is not committed yet from those that nobody needs, but by age."""
JUMP_S: Final = 600
"""A wall clock that moves by more against the clock of the kernel has jumped."""
log = logging.getLogger(__name__)


class EventFile(NamedTuple):
    """A committed file; ``path``: relative to the table.  ``partition``: its values as JSON."""

    partition: str
    path: str
    bytes: int
    changed_ms: int


class Compacted(NamedTuple):
    files_before: int
    files_after: int
    vacuumed: int


def due(files: Iterable[EventFile], target_bytes: int, now_ms: int, settle_ms: int) -> Iterator[list[EventFile]]:
    """Groups of at least two files to be put together, each of one partition and at most of the target's size."""
    partitions: dict[str, list[EventFile]] = {}
    for file in files:
        if file.bytes <= target_bytes // 2:
            partitions.setdefault(file.partition, []).append(file)
    for small in partitions.values():
        small.sort(key=lambda file: (file.changed_ms, file.path))
        if now_ms - small[-1].changed_ms >= settle_ms:
            yield from _filled(small, target_bytes, 2)
            continue
        tiers: dict[int, list[EventFile]] = {}
        for file in small:
            tiers.setdefault(_tier(file.bytes), []).append(file)
        for tier in tiers.values():
            yield from _filled(tier, target_bytes, FILES_MIN)


def _tier(size: int) -> int:
    tier = 0
    while size > TIER_BYTES:
        size //= FILES_MIN
        tier += 1
    return tier


def _filled(files: Sequence[EventFile], target_bytes: int, count_min: int) -> Iterator[list[EventFile]]:
    """Runs of files up to the target's size; a run of fewer than ``count_min`` waits, unless it reaches the target."""
    run: list[EventFile] = []
    for file in files:
        if run and sum(other.bytes for other in run) + file.bytes > target_bytes:
            if len(run) > 1:
                yield run
            run = []
        run.append(file)
    if len(run) >= count_min:
        yield run


def write_together(
    files: OutputFiles, paths: Sequence[str], target: str, settings: Output
) -> tuple[int, pq.FileMetaData]:
    """Write the rows of these files to a new one, durably.  Columns that a file lacks are null.

    Returns its size in bytes, and its footer.
    """
    schema = pa.unify_schemas([files.open_table(path).schema for path in paths], promote_options="permissive")
    waiting: list[pa.Table] = []
    chosen = {
        "compression": settings.compression,
        "use_dictionary": with_dictionaries(files.open_table(paths[0]).footer),
    }
    with files.create(target) as file, pq.ParquetWriter(file, schema, **chosen) as writer:
        for path in paths:
            for batch in files.open_table(path).iter_batches(GROUP_ROWS):
                waiting.append(_with_columns(pa.Table.from_batches([batch]), schema))
                if sum(map(len, waiting)) >= GROUP_ROWS:
                    _write_group(writer, waiting, settings.sort_by)
        _write_group(writer, waiting, settings.sort_by)
    return files.closed(target)


def _with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    there = set(rows.column_names)
    columns = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _write_group(writer: pq.ParquetWriter, waiting: list[pa.Table], sort_by: Sequence[str]) -> None:
    if waiting:
        rows = pa.concat_tables(waiting)
        waiting.clear()
        if sort_by:
            rows = rows.sort_by([(name, "ascending") for name in sort_by])
        writer.write_table(rows, row_group_size=len(rows))


class DeltaEvents:
    """The committed files of events of an output."""

    def __init__(self, settings: Output) -> None:
        self._files = OutputFiles(settings)
        self._settings = settings

    def event_files(self) -> list[EventFile]:
        """All committed files."""
        return _files(self._open()) if self._files.exists(f"{EVENTS}/{LOG}") else []

    def _open(self) -> Any:
        return self._files.delta_table(EVENTS)

    def swap(self, sources: Sequence[EventFile]) -> int:
        """Put these files of one partition together.  Returns the number of files afterwards.

        Raises:
            DeltaError: another writer was faster.
        """
        table = self._open()
        there = {file.path for file in _files(table)}
        if not all(source.path in there for source in sources):
            raise DeltaError("other files than those that were listed")
        name = f"{uuid.uuid4().hex}.parquet"
        paths = [f"{EVENTS}/{source.path}" for source in sources]
        size, footer = write_together(self._files, paths, f"{EVENTS}/{name}", self._settings)
        now_ms = int(time.time() * 1000)
        partition: dict[str, str | None] = json.loads(sources[0].partition)
        actions: list[Any] = [
            RemoveAction(source.path, False, now_ms, source.bytes, partition_values=partition) for source in sources
        ]
        actions.append(AddAction(name, size, partition, now_ms, False, file_statistics(footer)))
        columns = list(table.metadata().partition_columns)
        # Without it the file is invisible, and goes with VACUUM.
        table.create_write_transaction(actions, "append", table.schema(), columns)
        return 1

    def vacuum(self, waiting: Sequence[datetime] = ()) -> int:
        """Remove files that no reader of a kept version needs.  Returns their number.

        ``waiting``: when commits were made that somebody will read: what the table had then stays.
        """
        if not self._files.exists(f"{EVENTS}/{LOG}"):
            return 0
        waits_ms = time.time() * 1000 - min(waiting).timestamp() * 1000 + HOUR_MS if waiting else 0
        hours = int(max(self._settings.keep_ms, KEEP_MIN_MS, waits_ms)) // HOUR_MS
        return len(self._open().vacuum(hours, False, enforce_retention_duration=False, full=True))


def _files(table: DeltaTable) -> list[EventFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [name for name in actions.column_names if name.startswith("partition.")]
    rows = actions.select(["path", "size_bytes", "modification_time", *names]).to_pylist()
    return [
        EventFile(
            json.dumps({name.removeprefix("partition."): row[name] for name in names}),
            file_of(row["path"]),
            row["size_bytes"],
            row["modification_time"],
        )
        for row in rows
    ]


def compact(store: DeltaEvents, settings: Output, *, settled: bool = False, vacuum: bool = True) -> Compacted:
    """One pass over all partitions.  ``settled``: all small files, as if nothing was added for long."""
    files = store.event_files()
    after = len(files)
    settle_ms = 0 if settled else settings.settle_ms
    for sources in due(files, settings.target_bytes, int(time.time() * 1000), settle_ms):
        after -= len(sources) - store.swap(sources)
    return Compacted(len(files), after, store.vacuum() if vacuum else 0)


class Compactor:
    """Compacts in a thread of its own, every ``output.compact_ms``, and with ``at_end`` once more when it is left.

    A failure is logged and does no harm: the next pass tries again.
    """

    def __init__(
        self, settings: Output, *, at_end: bool = False, waiting: Callable[[], Sequence[datetime]] = lambda: ()
    ) -> None:
        """``waiting``: says when the commits were made of which dead letters are not sent yet."""
        self._waiting = waiting
        self._store = DeltaEvents(settings)
        self._settings = settings
        self._at_end = at_end
        self._vacuumed_s = float("-inf")
        self._ahead_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._passes = Repeating("compaction", self._pass, settings.compact_ms / 1000)

    def __enter__(self) -> Compactor:
        if self._settings.compact_ms:
            self._passes.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the pass that is under way."""
        self._passes.stop()
        if self._at_end and self._settings.compact_ms:
            self._pass()

    def _jumped(self) -> bool:
        """Whether the wall clock has jumped since the last pass."""
        before_s, self._ahead_s = self._ahead_s, time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return abs(self._ahead_s - before_s) > JUMP_S

    def _pass(self) -> None:
        if self._jumped():  # files of a micro-batch that is not committed yet would look old enough to be removed
            log.warning("the clock has jumped: old files stay for another %d s", VACUUM_EVERY_S)
            self._vacuumed_s = time.monotonic()
        vacuum = time.monotonic() - self._vacuumed_s >= VACUUM_EVERY_S
        errors = (OSError, ValueError, pa.ArrowException, msgspec.MsgspecError, ApplianceError, DeltaError)
        if vacuum:  # by itself: old files would fill the disk while compaction fails
            try:
                self._store.vacuum(self._waiting())
                self._vacuumed_s = time.monotonic()
            except errors as error:
                log.warning("removal of old files: %s", error)
        try:
            compacted = compact(self._store, self._settings, vacuum=False)
        except errors as error:
            log.warning("compaction: %s", error)
            return
        if compacted.files_before != compacted.files_after:
            log.info("compaction: %d files of events are %d now", compacted.files_before, compacted.files_after)
