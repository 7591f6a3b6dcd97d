"""Reads what the processes of an appliance have counted, and how they are, into one value.

A :class:`Reader` needs no listener, no ZooKeeper and no free worker: it reads ``state.json``, the pages of counters and
the tables of the partitions.  It works in any process that may read the
data directory::

    reader = Reader(Path("/var/lib/appliance"))
    before = reader.read()
    after = reader.read()
    rates = after.totals.since(before.totals)

All numbers grow from the start of the appliance on, unless a name says otherwise.  A difference of two readings,
divided by ``after.at_s - before.at_s``, is a rate.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

from ..clock import wall_s
from ..health.findings import partitions_of
from ..names import TopicPartition
from ..partition_states import DAMAGED, DISK_FULL, OFFLINE, ONLINE, STATE_NAMES
from ..shared import memory
from ..shared.counters import API_NAMES, BUCKETS, LISTENERS, PAGE_BYTES, PageCounts, RequestCounts, read_page
from ..shared.table import CELL_BYTES, NO_FLUSHES, NOTHING_COUNTED, ROWS, TABLE_BYTES, SegmentTable, TableCounts
from ..status import read_state
from ..wire.requests import Produce
from .disk_forecast import Room

NO_REQUESTS: Final = RequestCounts((0,) * BUCKETS, 0, 0, 0)
NO_COUNTS: Final = TableCounts(
    *(0, 0, 0, 0, ONLINE, 0),
    counters=NOTHING_COUNTED,
    parts=0,
    flush_times=NO_FLUSHES,
    flush_ns=0,
    handed_over={},
    fetched_bytes=0,
    fetched_parts=0,
)


class TopicReading(NamedTuple):
    """The partitions of a topic together.  ``states``, ``log_bytes`` and ``unflushed_bytes`` are of now."""

    partitions: int = 0
    states: Mapping[str, int] = {}
    received_bytes: int = 0
    messages: int = 0
    batches: int = 0
    produce_requests: int = 0
    refused: int = 0
    duplicates: int = 0
    fetched_bytes: int = 0
    fetches: int = 0
    log_bytes: int = 0
    unflushed_bytes: int = 0


class Totals(NamedTuple):
    """The whole appliance, from its start on."""

    received_bytes: int = 0
    messages: int = 0
    fetched_bytes: int = 0
    requests: int = 0
    errors: int = 0

    def since(self, before: Totals) -> Totals:
        """The difference of two readings; nothing is less than 0, since the appliance may have been started again."""
        return Totals(*(max(0, now - then) for now, then in zip(self, before, strict=True)))


class Readings(NamedTuple):
    """One reading.

    ``state``: what the supervisor has written (:mod:`appliance.status`), None when nothing runs.  ``requests``: by kind
    of listener and API.  ``traffic``: bytes in and out by kind of listener.  ``gauges``: of each network worker.
    """

    at_s: float
    state: Mapping[str, Any] | None
    partitions: Mapping[TopicPartition, TableCounts]
    requests: Mapping[tuple[str, str], RequestCounts]
    traffic: Mapping[str, tuple[int, int]]
    gauges: Mapping[str, Mapping[str, int]]
    flushes: RequestCounts
    room: Room

    @property
    def topics(self) -> dict[str, TopicReading]:
        """The topics, sorted by name."""
        by_topic: dict[str, list[TableCounts]] = {}
        for key, counts in sorted(self.partitions.items()):
            by_topic.setdefault(key.topic, []).append(counts)
        return {topic: _together(rows) for topic, rows in by_topic.items()}

    @property
    def not_online(self) -> dict[str, tuple[str, str]]:
        """State and reason of each partition that is not online, by name, also of those that have no table."""
        full = (self.state or {}).get("full") or {}
        online = STATE_NAMES[ONLINE]
        tables = [(key, row.state) for key, row in self.partitions.items() if full or row.state != ONLINE]
        states = {f"{key.topic}-{key.partition}": STATE_NAMES[state] for key, state in tables}
        return {name: row for name, row in partitions_of(self.state, states).items() if row[0] != online}

    @property
    def totals(self) -> Totals:
        rows = self.partitions.values()
        return Totals(
            sum(row.counters.bytes for row in rows),
            sum(row.records for row in rows),
            sum(row.fetched_bytes for row in rows),
            sum(row.requests for row in self.requests.values()),
            sum(row.errors for row in self.requests.values()),
        )


def _numbers(row: TableCounts) -> tuple[int, ...]:
    """The numbers of a partition for the fields of :class:`TopicReading` that are sums."""
    counters = row.counters
    return (
        *(counters.bytes, row.records, counters.batches, row.parts),
        *(counters.refused, counters.duplicates, row.fetched_bytes, row.fetched_parts),
        *(max(0, row.log_end - row.base), max(0, row.log_end - row.high_watermark)),
    )


def _together(rows: Sequence[TableCounts]) -> TopicReading:
    states = Counter([STATE_NAMES[row.state] for row in rows])
    return TopicReading(len(rows), states, *map(sum, zip(*map(_numbers, rows), strict=True)))


def of_status(status: Mapping[str, Any], at_s: float) -> Readings:
    """What a whole status (:func:`appliance.status.collect`) has of a reading, for an appliance of another host.

    Counters that only shared memory has, and the sizes of the disk, are 0.
    """
    reasons: dict[str, dict[str, Any]] = {"offline": {}, DAMAGED: {}, "full": {}}
    partitions = {}
    for row in status["partitions"]:
        name, state = f"{row['topic']}-{row['partition']}", row["state"]
        if state == STATE_NAMES[OFFLINE]:
            reasons["offline"][name] = row.get("reason", "")
        elif state == DAMAGED:
            reasons[DAMAGED][name] = [list(damage.values()) for damage in row["damaged"]]
        elif state == STATE_NAMES[DISK_FULL]:
            reasons["full"][name] = row.get("reason", "")
        partitions[TopicPartition(row["topic"], row["partition"])] = NO_COUNTS._replace(
            base=row["start"],
            start=row["start"],
            high_watermark=row["end"],
            log_end=row["end"],
            state=STATE_NAMES.index(state) if state in STATE_NAMES else ONLINE,
            records=row["messages"] or 0,
        )
    shown = None if status["pid"] is None else {**status, **reasons}
    limits = status["disk"]
    bounds = limits.get("bytes_max", 0), limits.get("free_bytes_min", 0)
    room = Room(0, 0, 0, *bounds, status.get("trash", {}).get("bytes", 0))
    return Readings(at_s, shown, partitions, {}, dict.fromkeys(LISTENERS, (0, 0)), {}, NO_REQUESTS, room)


class SeenTable(NamedTuple):
    """A table as a reading has found it.  ``digest``: of its name and its cells but the rows of segments."""

    key: TopicPartition
    digest: int
    counts: TableCounts


class TablesReader:
    """Reads the tables of partitions again and again, by their names in shared memory.

    They are not mapped: of ten thousand, two Python objects each and their pages would be 25 MB.
    """

    def __init__(self) -> None:
        self._seen: dict[str, SeenTable] = {}
        """By name of the partition."""

    def read(self, tables: Mapping[str, str], pid: int) -> Iterator[tuple[TopicPartition, TableCounts]]:
        """Yields the counts of the partitions of a process whose tables exist.

        A partition that has not changed has the same counts, the object of the reading before.
        """
        seen_before, self._seen = self._seen, {}
        for name, shown in tables.items():
            try:
                cells = memory.read_elsewhere(shown, pid, ROWS * CELL_BYTES)
                digest = hash((shown, cells))
                before = seen_before.pop(name, None)
                if before is None or before.digest != digest:
                    counts = SegmentTable(_cells(memory.read_elsewhere(shown, pid, TABLE_BYTES))).counts()
                    before = SeenTable(before.key if before else _key(name), digest, counts)
            except OSError:
                continue
            self._seen[intern(name)] = before
            yield before.key, before.counts


class Reader:
    """Reads the appliance of a data directory again and again.  Not thread-safe."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._tables = TablesReader()

    def read(self) -> Readings:
        """Read once; some microseconds for each partition, and 15 for one that has changed since the last reading.

        Raises:
            NoDirectory: there is no such directory.
        """
        state = read_state(self._data_dir)
        partitions = dict(self._tables.read(state["tables"], state["pid"]) if state else ())
        copies = dict(_read_pages(state))
        requests, traffic = _served(copies.values(), partitions.values())
        flushed = (RequestCounts(row.flush_times, row.flush_ns, 0, 0) for row in partitions.values() if row.flush_ns)
        flushes = RequestCounts.total([NO_REQUESTS, *flushed])
        return Readings(
            wall_s(),
            state,
            partitions,
            requests,
            traffic,
            {
                process.removeprefix("network "): page.gauges
                for process, page in copies.items()
                if process != "coordinator"
            },
            flushes,
            self._room(state, partitions),
        )

    def _room(self, state: Mapping[str, Any] | None, partitions: Mapping[TopicPartition, TableCounts]) -> Room:
        disk = os.statvfs(self._data_dir)
        limits = state["disk"] if state else {}
        logs = sum(max(0, counts.log_end - counts.base) for counts in partitions.values())
        size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        bounds = limits.get("bytes_max", 0), limits.get("free_bytes_min", 0)
        return Room(size, free, logs, *bounds, (state or {}).get("trash", {}).get("bytes", 0))


def _served(
    pages: Iterable[PageCounts], partitions: Iterable[TableCounts]
) -> tuple[dict[tuple[str, str], RequestCounts], dict[str, tuple[int, int]]]:
    """Add what workers, the coordinator and writers (for connections that were handed over) have counted."""
    counts_by_api: dict[tuple[str, str], list[RequestCounts]] = {}
    traffic = dict.fromkeys(LISTENERS, (0, 0))
    for page in pages:
        for key, counts in page.requests.items():
            counts_by_api.setdefault(key, []).append(counts)
        for listener, (received, sent) in page.traffic.items():
            traffic[listener] = (traffic[listener][0] + received, traffic[listener][1] + sent)
    for partition in partitions:
        for listener, (counts, received, sent) in partition.handed_over.items():
            counts_by_api.setdefault((listener, API_NAMES[Produce.api]), []).append(counts)
            traffic[listener] = (traffic[listener][0] + received, traffic[listener][1] + sent)
    return {key: RequestCounts.total(rows) for key, rows in counts_by_api.items()}, traffic


def _read_pages(state: Mapping[str, Any] | None) -> Iterator[tuple[str, PageCounts]]:
    """What each process counts, by its name, of those that exist."""
    if state is None:
        return
    for process, shown in state["pages"].items():
        with suppress(OSError):
            yield process, read_page(_cells(memory.read_elsewhere(shown, state["pid"], PAGE_BYTES)))


@contextmanager
def open_table(state: Mapping[str, Any], key: TopicPartition) -> Iterator[SegmentTable]:
    """The table of a partition, mapped, of an appliance with this state.

    Raises:
        OSError: there is none.
    """
    shown = state["tables"].get(f"{key.topic}-{key.partition}")
    if shown is None:
        raise FileNotFoundError(f"{key.topic}-{key.partition} has no table")
    mapped = memory.attach_elsewhere(shown, state["pid"])
    with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
        yield SegmentTable(cells)


def _cells(content: bytes) -> memoryview:
    return memoryview(content).cast("Q")


def _key(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(intern(topic), int(partition))
