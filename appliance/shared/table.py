"""The shared-memory segment table: what a partition's writer shows to every reader.

One table per partition, one storing process per cell, any number of readers, no lock.  This module is the only one
that knows the layout; the rest of the appliance sees :class:`SegmentTable` and :class:`TableSnapshot`.

Layout, in native-endian u64 cells (one host, so no byte order to agree on)::

    0  MAGIC           layout name and version, written last when the table is created
    1  EPOCH           incarnation of the table; odd while the writer is rebuilding it
    2  HEAD            index of the oldest readable segment       only grows within an epoch
    3  TAIL            one past the index of the newest segment   only grows within an epoch
    4  HIGH_WATERMARK  offset up to which readers may read        only grows within an epoch
    5  START           first readable offset, >= base of HEAD     only grows within an epoch
    6  LOG_END         offset up to which the file is written     may fall back when a write fails
    7  STATE           OPENING, ONLINE, OFFLINE or DISK_FULL
    8  RECORDS         records the log has had up to the high watermark, since it began
    9  COUNTERS        7 cells for metrics: see COUNTER_NAMES
    16 WAITS           64 cells, one per network worker: the high watermark it waits for, 0 when it does not wait
    80 ROWS...         base offset of segment i at cell 80 + i % ROW_COUNT

Cells 0 to 15 and ROWS are stored by the partition's writer; before its first writer runs, by the opener that the
supervisor waits for.  Wait cell w is stored by network worker w.

Publishing order.  The writer stores the row, then TAIL, then HIGH_WATERMARK; it raises START, then HEAD, before it lets
a row be reused.  Readers load in the opposite order: HIGH_WATERMARK, TAIL, HEAD, the rows, then HEAD again.  So every
byte below the high watermark that a reader has loaded lies in a row that it has loaded, and a row that is reused
meanwhile is noticed.  Retention may pass a high watermark that a reader has loaded and not used yet; such a snapshot is
thrown away too.

Why no lock.  A process killed while it holds a POSIX semaphore leaves it taken.  With one storing process per cell
there is nothing to hold, so a SIGKILL at any instruction leaves readers with the last published state.

Why item assignment on a ``memoryview`` cast to "Q" and never ``struct.pack_into``: the latter clears the bytes before
it fills them, and a reader in another process sees the zero.  Cells are 8-byte aligned, so one store is one value.
Load and store order is that of x86-64, except where a store must be seen before a later load: see ``doorbell``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..errors import WriterGone

MAGIC_V1: Final = 0x31_47_45_53_4C_50_50_41  # b"APPLSEG1", read little-endian
MAGIC, EPOCH, HEAD, TAIL, HIGH_WATERMARK, START, LOG_END, STATE, RECORDS, COUNTERS, WAITS, ROWS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    16,
    80,
)
WORKERS_MAX: Final = ROWS - WAITS
CELL_COUNT: Final = 2048
ROW_COUNT: Final = CELL_COUNT - ROWS
TABLE_BYTES: Final = CELL_COUNT * 8
SEGMENTS_MAX: Final = ROW_COUNT - 1
VIEW_ATTEMPTS_MAX: Final = 1_000

COUNTER_NAMES: Final = ("batches", "bytes", "groups", "flushes", "duplicates", "refused", "retired")
COUNT_BATCHES, COUNT_BYTES, COUNT_GROUPS, COUNT_FLUSHES, COUNT_DUPLICATES, COUNT_REFUSED, COUNT_RETIRED = range(7)
assert COUNTERS + len(COUNTER_NAMES) == WAITS

Cells = Any
"""A ``memoryview`` cast to "Q", or in tests a list of ints."""


class TableSnapshot(NamedTuple):
    """A consistent, immutable snapshot of one partition; safe to search while the writer runs on."""

    bases: tuple[int, ...]
    start: int
    high_watermark: int


class SegmentTable:
    """Reader and writer handle on one table.

    ``cells`` is the mapped memory cast to "Q"; a plain list of ints behaves the same, which is how the tests step a
    writer and a reader through every interleaving of their loads and stores.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._row_count = len(cells) - ROWS
        assert self._row_count >= 2
        self._rows_key: tuple[int, int, int] | None = None
        self._rows: tuple[int, ...] = ()

    # ---- the writer's side

    def publish(self, bases: Sequence[int], start: int, end: int, records: int) -> None:
        """Show the whole log as it stands after opening it; ``bases`` are at most SEGMENTS_MAX.

        A table that a killed writer left, and that is merely behind, is carried on, so that readers notice nothing.
        """
        cells = self._cells
        assert 0 < len(bases) < self._row_count and bases[0] <= start <= end
        if cells[MAGIC] == MAGIC_V1 and cells[EPOCH] % 2 == 0 and self._continues(bases, start, end):
            self.publish_high_watermark(end, records)
            return
        epoch = cells[EPOCH] | 1
        cells[EPOCH] = epoch
        for index, base in enumerate(bases):
            cells[ROWS + index] = base
        cells[HEAD], cells[TAIL] = 0, len(bases)
        cells[RECORDS], cells[START], cells[HIGH_WATERMARK] = records, start, end
        cells[EPOCH] = epoch + 1
        cells[MAGIC] = MAGIC_V1

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

    def publish_high_watermark(self, end: int, records: int) -> None:
        assert end >= self._cells[HIGH_WATERMARK]
        self._cells[RECORDS] = records
        self._cells[HIGH_WATERMARK] = end

    def retire_before(self, start: int) -> None:
        """Raise START and drop the segments that lie wholly below it; the active one is never dropped."""
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

    def count(self, counter: int, amount: int) -> None:
        """Add to a counter (an index into COUNTER_NAMES)."""
        self._cells[COUNTERS + counter] += amount

    def count_group(self, batches: int, size: int) -> None:
        """Count one group that has been appended, of so many batches and bytes."""
        cells = self._cells
        cells[COUNTERS + COUNT_BATCHES] += batches
        cells[COUNTERS + COUNT_BYTES] += size
        cells[COUNTERS + COUNT_GROUPS] += 1

    def waiting(self, workers: int, end: int) -> list[int]:
        """The workers that wait for a high watermark that has come.  Call after ``doorbell.fence``."""
        waits = self._cells[WAITS : WAITS + workers]
        return [worker for worker in range(workers) if 0 < waits[worker] <= end]

    def anybody_waits(self, workers: int) -> bool:
        """Whether a worker waits for any high watermark.  Call after ``doorbell.fence``."""
        return any(self._cells[WAITS : WAITS + workers])

    # ---- a network worker's side

    def set_wait(self, worker: int, end: int) -> None:
        """Ask to be rung once the high watermark reaches ``end``; 0 takes the request back."""
        self._cells[WAITS + worker] = end

    # ---- every reader's side

    @property
    def high_watermark(self) -> int:
        return int(self._cells[HIGH_WATERMARK])

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
    def records(self) -> int:
        return int(self._cells[RECORDS])

    def counters(self) -> dict[str, int]:
        return {name: int(self._cells[COUNTERS + index]) for index, name in enumerate(COUNTER_NAMES)}

    def snapshot(self) -> TableSnapshot:
        """Take a consistent snapshot without stopping the writer.

        Raises:
            WriterGone: the table is being rebuilt, or kept changing for VIEW_ATTEMPTS_MAX attempts.
        """
        cells, rows = self._cells, self._row_count
        for _ in range(VIEW_ATTEMPTS_MAX):
            epoch = cells[EPOCH]
            end, tail, head = cells[HIGH_WATERMARK], cells[TAIL], cells[HEAD]
            if epoch == 0 or epoch % 2 or not 0 < tail - head < rows:
                continue
            key = (epoch, head, tail)
            if key == self._rows_key:  # rows of a live range never change, so neither does their tuple
                bases = self._rows
            else:
                bases = tuple(cells[ROWS + index % rows] for index in range(head, tail))
            start = cells[START]
            if cells[HEAD] == head and cells[EPOCH] == epoch and bases[0] <= start <= end:
                self._rows_key, self._rows = key, bases
                return TableSnapshot(bases, start, end)
        raise WriterGone("the partition is being opened: try again")
