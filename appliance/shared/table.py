"""Publishes a partition's segments and offsets to all readers, in a table in shared memory.

Each partition has one table.  Each cell has one storing process and any number of readers.  There is no lock.  Only
this module knows the layout; other modules use :class:`SegmentTable` and :class:`TableSnapshot`.

Layout, in native-endian u64 cells (one host, so no byte order to agree on)::

    0  MAGIC           layout name and version, stored last when the table is created
    1  EPOCH           incarnation of the table; odd while the writer is rebuilding it
    2  HEAD            index of the oldest readable segment       only grows within an epoch
    3  TAIL            one past the index of the newest segment   only grows within an epoch
    4  HIGH_WATERMARK  offset up to which readers may read        only grows within an epoch
    5  START           first readable offset, >= base of HEAD     only grows within an epoch
    6  LOG_END         offset up to which the file is written     may fall back when a write fails
    7  STATE           OPENING, ONLINE, OFFLINE or DISK_FULL
    8  RECORDS         number of records up to the high watermark since the log began
    9  COUNTERS        7 cells for metrics: see PartitionCounters
    16 WAITS           64 cells, one per network worker: the high watermark that it waits for, else 0
    80 FLUSH_TIMES     20 cells for metrics: buckets and sum of the times of flushes, see ``counters``
    100 HANDED_OVER    9 times 26 cells for metrics: a row and bytes in and out for the produce requests of connections
                       that were handed over, by the kind of their listener
    334 PARTS          parts of produce requests that have arrived, for metrics
    335 FLUSH_MESSAGES the topic's flush.messages and 1; 0 before its first writer has opened it
    336 FETCHED        64 times 2 cells for metrics, one pair per network worker: bytes sent to consumers, and replies
                       with any
    464 LAST_STABLE    offset up to which readers of committed messages may read; only grows within an epoch
    465 ABORTED        grows when there is another index of aborted transactions; 0: there never was one
    466 ROWS...        base offset of segment i at cell 466 + i % ROW_COUNT

The partition's writer stores cells 0 to 15, 80 to 335, 464, 465 and ROWS.  Before its first writer runs, the opener
does, and the supervisor waits for that.  Network worker w stores wait cell w and pair w of FETCHED.

Publishing order.  The writer stores the row, then TAIL, then HIGH_WATERMARK.  It raises START, then HEAD, before a row
is reused.  Readers load in the opposite order: HIGH_WATERMARK, TAIL, HEAD, the rows, then HEAD again.  So every byte
below the high watermark of a reader is in one of the rows that it has loaded, and it notices a row that was reused
meanwhile.  LAST_STABLE is stored before HIGH_WATERMARK and loaded after it, so it belongs to the one that was loaded
or to a later one.  All below it is decided for good, so the lower of both holds.  Retention may pass a high watermark
between its load and its use; the reader discards such a snapshot, too.

Why no lock.  A process killed while it holds a POSIX semaphore never releases it.  With one storing process per cell no
lock is needed: after a SIGKILL at any instruction, readers see the last published state.

Why item assignment on a ``memoryview`` cast to "Q" and never ``struct.pack_into``: the latter clears the bytes before
it fills them, and a reader in another process may see the zero.  Cells are 8-byte aligned, so one store is one value.
The order of loads and stores is that of x86-64.  Where a store must be visible before a later load: see ``doorbell``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..errors import WriterGone
from .counters import (
    BUCKETS,
    LISTENERS,
    ROW_CELLS,
    TIMES_CELLS,
    ListenerCounters,
    RequestCounts,
    add_time,
    read_row,
)

MAGIC_V3: Final = 0x33_47_45_53_4C_50_50_41  # b"APPLSEG3", read little-endian
MAGIC, EPOCH, HEAD, TAIL, HIGH_WATERMARK, START, LOG_END, STATE, RECORDS, COUNTERS, WAITS = (*range(10), 16)
FLUSH_TIMES, HANDED_OVER, PARTS, FLUSH_MESSAGES, FETCHED = 80, 100, 334, 335, 336
LAST_STABLE, ABORTED, ROWS = 464, 465, 466
WORKERS_MAX: Final = FLUSH_TIMES - WAITS
HANDED_OVER_CELLS: Final = ROW_CELLS + 2
"""A row, bytes in, bytes out."""
assert FLUSH_TIMES + TIMES_CELLS <= HANDED_OVER
assert HANDED_OVER + len(LISTENERS) * HANDED_OVER_CELLS <= PARTS
assert FETCHED + 2 * WORKERS_MAX <= LAST_STABLE
CELL_COUNT: Final = 2048
ROW_COUNT: Final = CELL_COUNT - ROWS
CELL_BYTES: Final = 8
TABLE_BYTES: Final = CELL_COUNT * CELL_BYTES
SEGMENTS_MAX: Final = ROW_COUNT - 1
SNAPSHOT_ATTEMPTS_MAX: Final = 1_000

COUNT_BATCHES, COUNT_BYTES, COUNT_GROUPS, COUNT_FLUSHES, COUNT_DUPLICATES, COUNT_REFUSED, COUNT_RETIRED = range(7)

Cells = Any
"""A ``memoryview`` cast to "Q", or in tests a list of ints."""


class TableSnapshot(NamedTuple):
    """A consistent, immutable snapshot of one partition: valid while the writer continues."""

    bases: tuple[int, ...]
    start: int
    high_watermark: int
    stable: int
    """The last stable offset, from ``start`` to ``high_watermark``."""


def _copy(cells: Cells, count: int) -> list[int]:
    """The first cells as a list."""
    copied: list[int] = cells[:count].tolist() if isinstance(cells, memoryview) else cells[:count]
    return copied


class PartitionCounters(NamedTuple):
    """What a writer has counted, in the order of the cells from COUNTERS on."""

    batches: int = 0
    bytes: int = 0
    groups: int = 0
    flushes: int = 0
    duplicates: int = 0
    refused: int = 0
    retired: int = 0


assert COUNTERS + len(PartitionCounters._fields) == WAITS

NOTHING_COUNTED: Final = PartitionCounters()
NO_FLUSHES: Final = (0,) * BUCKETS
NOTHING_HANDED_OVER: Final[dict[str, tuple[RequestCounts, int, int]]] = {}
"""Shared by the counts of all partitions to which this applies: there may be ten thousand."""


class TableCounts(NamedTuple):
    """Numbers of one partition for metrics.

    ``base``: of the oldest segment; ``state``: see :mod:`appliance.partition_states`; ``handed_over``: by
    listener, the produce requests of connections that were handed over, with their bytes in and out.
    """

    base: int
    start: int
    high_watermark: int
    log_end: int
    state: int
    records: int
    counters: PartitionCounters
    parts: int
    flush_times: tuple[int, ...]
    flush_ns: int
    handed_over: dict[str, tuple[RequestCounts, int, int]]
    fetched_bytes: int
    fetched_parts: int


class SegmentTable:
    """Reads and writes one table.  Its many methods are one load or store each: only this module knows the layout.

    ``cells`` is the mapped memory cast to "Q".  A plain list of ints works, too: with lists, tests step a writer and a
    reader through every interleaving of their loads and stores.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._row_count = len(cells) - ROWS
        assert self._row_count >= 2
        self._rows_key: tuple[int, int, int] | None = None
        self._rows: tuple[int, ...] = ()

    # ---- the writer's side

    def publish(
        self,
        bases: Sequence[int],
        start: int,
        end: int,
        records: int,
        stable: int | None = None,
        has_aborted: bool = False,
    ) -> None:
        """Publish the whole log after opening it; ``bases`` are at most SEGMENTS_MAX.

        ``stable``: the last stable offset; None: no transaction is open.

        A table that a killed writer left, and that is only behind, just gets a higher high watermark.
        """
        cells = self._cells
        assert 0 < len(bases) < self._row_count and bases[0] <= start <= end
        if has_aborted:
            self.note_aborted()
        if cells[MAGIC] == MAGIC_V3 and cells[EPOCH] % 2 == 0 and self._continues(bases, start, end):
            self.publish_high_watermark(end, records, stable)
            return
        epoch = cells[EPOCH] | 1
        cells[EPOCH] = epoch
        for index, base in enumerate(bases):
            cells[ROWS + index] = base
        cells[HEAD], cells[TAIL] = 0, len(bases)
        cells[RECORDS], cells[START], cells[HIGH_WATERMARK] = records, start, end
        cells[LAST_STABLE] = end if stable is None else stable
        cells[EPOCH] = epoch + 1
        cells[MAGIC] = MAGIC_V3

    def _continues(self, bases: Sequence[int], start: int, end: int) -> bool:
        try:
            snapshot = self.snapshot()
        except WriterGone:
            return False
        return snapshot.bases == tuple(bases) and snapshot.start == start and snapshot.high_watermark <= end

    def add_segment(self, base: int) -> None:
        head, tail = self._cells[HEAD], self._cells[TAIL]
        assert tail - head < self._row_count - 1, "retire a segment before adding one"
        assert base >= self._cells[HIGH_WATERMARK]
        self._cells[ROWS + tail % self._row_count] = base
        self._cells[TAIL] = tail + 1

    def publish_high_watermark(self, end: int, records: int, stable: int | None = None) -> None:
        """Raise the high watermark to ``end``; ``stable`` as in :meth:`publish`."""
        assert end >= self._cells[HIGH_WATERMARK]
        self._cells[RECORDS] = records
        # Before the high watermark: who waits for that has been shown the last stable offset that belongs to it.
        self._cells[LAST_STABLE] = end if stable is None else stable
        self._cells[HIGH_WATERMARK] = end

    def note_aborted(self) -> None:
        """Note that there is an index of aborted transactions that readers may not know."""
        self._cells[ABORTED] += 1

    def retire_before(self, start: int) -> None:
        """Raise START and remove the segments that lie wholly below it, but never the active one."""
        cells, rows = self._cells, self._row_count
        assert start <= cells[HIGH_WATERMARK], "publish first"
        if start > cells[START]:
            cells[START] = start
        head, tail = cells[HEAD], cells[TAIL]
        while tail - head > 1 and cells[ROWS + (head + 1) % rows] <= start:
            head += 1
        cells[HEAD] = head

    def set_log_end_offset(self, written: int) -> None:
        self._cells[LOG_END] = written

    def set_state(self, state: int) -> None:
        self._cells[STATE] = state

    def set_flush_messages(self, count: int) -> None:
        self._cells[FLUSH_MESSAGES] = count + 1

    def count(self, counter: int, amount: int) -> None:
        """Add to a counter (an index into PartitionCounters)."""
        self._cells[COUNTERS + counter] += amount

    def count_group(self, batches: int, size: int) -> None:
        """Count one appended group of ``batches`` and ``size`` bytes."""
        cells = self._cells
        cells[COUNTERS + COUNT_BATCHES] += batches
        cells[COUNTERS + COUNT_BYTES] += size
        cells[COUNTERS + COUNT_GROUPS] += 1

    def waiting(self, workers: int, end: int) -> list[int]:
        """The workers that wait for a high watermark of at most ``end``.  Call after ``doorbell.fence``."""
        waits = self._cells[WAITS : WAITS + workers]
        return [worker for worker in range(workers) if 0 < waits[worker] <= end]

    def anybody_waits(self, workers: int) -> bool:
        """Whether a worker waits for any high watermark.  Call after ``doorbell.fence``."""
        return any(self._cells[WAITS : WAITS + workers])

    def count_parts(self, parts: int) -> None:
        """Count parts of produce requests that have arrived."""
        self._cells[PARTS] += parts

    def count_flush(self, elapsed_ns: int) -> None:
        """Count a flush and its time."""
        self._cells[COUNTERS + COUNT_FLUSHES] += 1
        add_time(self._cells, FLUSH_TIMES, elapsed_ns)

    def handed_over(self, listener: int) -> ListenerCounters:
        """Counts the produce requests of connections of one kind of listener (an index into LISTENERS)."""
        at = HANDED_OVER + listener * HANDED_OVER_CELLS
        return ListenerCounters(self._cells, at, at + ROW_CELLS)

    # ---- a network worker's side

    def count_fetched(self, worker: int, size: int) -> None:
        """Count bytes that a reply takes to a consumer."""
        at = FETCHED + 2 * worker
        self._cells[at] += size
        self._cells[at + 1] += 1

    def set_wait(self, worker: int, end: int) -> None:
        """Request a ring of the doorbell when the high watermark reaches ``end``; 0 cancels it."""
        self._cells[WAITS + worker] = end

    # ---- every reader's side

    @property
    def high_watermark(self) -> int:
        return int(self._cells[HIGH_WATERMARK])

    @property
    def aborted(self) -> int:
        """Another number when there is another index of aborted transactions; 0: there is none."""
        return int(self._cells[ABORTED])

    @property
    def start(self) -> int:
        return int(self._cells[START])

    @property
    def state(self) -> int:
        return int(self._cells[STATE])

    @property
    def log_end_offset(self) -> int:
        return int(self._cells[LOG_END])

    @property
    def flushes_at_once(self) -> bool:
        """Whether it is known that no flush waits for more messages."""
        return 1 <= int(self._cells[FLUSH_MESSAGES]) <= 2

    @property
    def records(self) -> int:
        return int(self._cells[RECORDS])

    def counts(self) -> TableCounts:
        """Copy the numbers for metrics; each is as it was at some instant."""
        values = _copy(self._cells, ROWS)
        handed_over = {} if any(values[HANDED_OVER:PARTS]) else NOTHING_HANDED_OVER
        for number, name in enumerate(LISTENERS if handed_over is not NOTHING_HANDED_OVER else ()):
            at = HANDED_OVER + number * HANDED_OVER_CELLS
            if any(values[at : at + HANDED_OVER_CELLS]):
                handed_over[name] = (read_row(values, at), values[at + ROW_CELLS], values[at + ROW_CELLS + 1])
        flush_times = tuple(values[FLUSH_TIMES : FLUSH_TIMES + BUCKETS])
        return TableCounts(
            base=int(self._cells[ROWS + values[HEAD] % self._row_count]),
            start=values[START],
            high_watermark=values[HIGH_WATERMARK],
            log_end=values[LOG_END],
            state=values[STATE],
            records=values[RECORDS],
            counters=PartitionCounters(*values[COUNTERS:WAITS]) if any(values[COUNTERS:WAITS]) else NOTHING_COUNTED,
            parts=values[PARTS],
            flush_times=flush_times if any(flush_times) else NO_FLUSHES,
            flush_ns=values[FLUSH_TIMES + BUCKETS],
            handed_over=handed_over,
            fetched_bytes=sum(values[FETCHED:LAST_STABLE:2]),
            fetched_parts=sum(values[FETCHED + 1 : LAST_STABLE : 2]),
        )

    def snapshot(self) -> TableSnapshot:
        """Take a consistent snapshot without stopping the writer.

        Raises:
            WriterGone: the table is being rebuilt, or changed during SNAPSHOT_ATTEMPTS_MAX attempts.
        """
        cells, rows = self._cells, self._row_count
        for _ in range(SNAPSHOT_ATTEMPTS_MAX):
            epoch = cells[EPOCH]
            end, tail, head = cells[HIGH_WATERMARK], cells[TAIL], cells[HEAD]
            if epoch == 0 or epoch % 2 or not 0 < tail - head < rows:
                continue
            key = (epoch, head, tail)
            if key == self._rows_key:  # rows in use never change, so neither does their tuple
                bases = self._rows
            else:
                bases = tuple(cells[ROWS + index % rows] for index in range(head, tail))
            stable, start = cells[LAST_STABLE], cells[START]
            if cells[HEAD] == head and cells[EPOCH] == epoch and bases[0] <= start <= end:
                self._rows_key, self._rows = key, bases
                return TableSnapshot(bases, start, end, min(max(stable, start), end))
        raise WriterGone("the partition is being opened: try again")
