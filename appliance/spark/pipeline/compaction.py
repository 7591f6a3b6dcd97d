"""Puts small files of events together, in the background.

Files of a partition are put together when there are :data:`FILES_MIN` of one *tier*: sizes that differ by less than a
factor of :data:`FILES_MIN`.  So a row is written again once for each tier, at most log16(target / size of the first
file) times.  A partition to which nothing was added for ``settle_ms`` gets rid of all of its small files.  Files of
more than half the target are left alone.

Rows keep the order of their files, and are sorted by ``output.sort_by`` within row groups of :data:`GROUP_ROWS` rows.
The memory needed is that of one row group and one file.  What is put together takes the place of its sources at one
moment, in a way that each store knows (``swap``); nothing else is changed by it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import ConfigFault
from .output_files import OutputFiles, with_dictionaries
from .settings import Output

FILES_MIN: Final = 16
GROUP_ROWS: Final = 131_072
TIER_BYTES: Final = 4096
VACUUM_EVERY_S: Final = 3600
JUMP_S: Final = 600
"""A wall clock that moves by more against the clock of the kernel has jumped."""
log = logging.getLogger(__name__)


class EventFile(NamedTuple):
    """A committed file; ``path``: relative to the table.  ``partition``: the directory, or its values as text."""

    partition: str
    path: str
    bytes: int
    changed_ms: int


class Compactable(Protocol):
    """A store whose events can be compacted."""

    errors: tuple[type[Exception], ...]
    """What it raises when another writer was faster."""

    def event_files(self) -> list[EventFile]:
        """All committed files."""
        ...

    def swap(self, sources: Sequence[EventFile]) -> int:
        """Put these files of one partition together.  Returns the number of files afterwards."""
        ...

    def vacuum(self) -> int:
        """Remove files that no reader of a kept version needs.  Returns their number."""
        ...


class Compacted(NamedTuple):
    files_before: int
    files_after: int
    vacuumed: int


def due(files: Iterable[EventFile], target_bytes: int, now_ms: int, settle_ms: int) -> Iterator[list[EventFile]]:
    """Groups of at least two files to be put together, each of one partition and at most of the target's size."""
    partitions: dict[str, list[EventFile]] = {}
    for each in files:
        if each.bytes <= target_bytes // 2:
            partitions.setdefault(each.partition, []).append(each)
    for small in partitions.values():
        small.sort(key=lambda each: (each.changed_ms, each.path))
        if now_ms - small[-1].changed_ms >= settle_ms:
            yield from _filled(small, target_bytes, 2)
            continue
        tiers: dict[int, list[EventFile]] = {}
        for each in small:
            tiers.setdefault(_tier(each.bytes), []).append(each)
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
    for each in files:
        if run and sum(other.bytes for other in run) + each.bytes > target_bytes:
            if len(run) > 1:
                yield run
            run = []
        run.append(each)
    if len(run) >= count_min:
        yield run


def write_together(
    files: OutputFiles, paths: Sequence[str], target: str, settings: Output
) -> tuple[int, pq.FileMetaData]:
    """Write the rows of these files to a new one, durably.  Columns that a file lacks are null.

    Returns its size in bytes, and its footer.
    """
    schema = pa.unify_schemas([files.open_table(path).schema_arrow for path in paths], promote_options="permissive")
    waiting: list[pa.Table] = []
    chosen = {
        "compression": settings.compression,
        "use_dictionary": with_dictionaries(files.open_table(paths[0]).metadata),
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


def compact(store: Compactable, settings: Output, *, settled: bool = False, vacuum: bool = True) -> Compacted:
    """One pass over all partitions.  ``settled``: all small files, as if nothing was added for long."""
    files = store.event_files()
    after = len(files)
    settle_ms = 0 if settled else settings.settle_ms
    for sources in due(files, settings.target_bytes, int(time.time() * 1000), settle_ms):
        after -= len(sources) - store.swap(sources)
    return Compacted(len(files), after, store.vacuum() if vacuum else 0)


def compactable(settings: Output) -> Compactable:
    """The events of an output."""
    if settings.format == "parquet":
        from .parquet_compaction import ParquetEvents

        return ParquetEvents(Path(settings.path), settings)
    from .delta_compaction import DeltaEvents

    return DeltaEvents(settings)


class Compactor:
    """Compacts in a thread of its own, every ``output.compact_ms``, and with ``at_end`` once more when it is left.

    A failure is logged and does no harm: the next pass tries again.
    """

    def __init__(self, settings: Output, *, at_end: bool = False) -> None:
        self._store = compactable(settings)
        self._settings = settings
        self._at_end = at_end
        self._vacuumed_s = float("-inf")
        self._ahead_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)

    def __enter__(self) -> Compactor:
        if self._settings.compact_ms:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the pass that is under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._at_end and self._settings.compact_ms:
            self._pass()

    def _run(self) -> None:
        while not self._stop.wait(self._settings.compact_ms / 1000):
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
        try:
            found = compact(self._store, self._settings, vacuum=vacuum)
        except (OSError, pa.ArrowException, ConfigFault, *self._store.errors) as error:
            log.warning("compaction: %s", error)
            return
        if vacuum:
            self._vacuumed_s = time.monotonic()
        if found.files_before != found.files_after:
            log.info("compaction: %d files of events are %d now", found.files_before, found.files_after)
