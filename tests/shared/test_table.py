"""appliance.shared.table: what a reader may see while the writer rolls, publishes and retires."""

from __future__ import annotations

from itertools import combinations_with_replacement, islice

import pytest

from appliance.errors import WriterGone
from appliance.partition_states import ONLINE
from appliance.shared.table import EPOCH, MAGIC, ROWS, START, SegmentTable, TableSnapshot

SEGMENT = 1_000  # bytes per segment in every test here


def new_table(rows: int = 4) -> SegmentTable:
    table = SegmentTable([0] * (ROWS + rows))
    table.publish([0], 0, 0, 0)
    return table


def test_a_table_nobody_has_published_says_so() -> None:
    with pytest.raises(WriterGone, match="try again"):
        SegmentTable([0] * (ROWS + 4)).snapshot()


def test_publish_shows_everything_at_once() -> None:
    table = SegmentTable([0] * (ROWS + 4))
    table.publish([1_000, 2_000], 1_500, 2_400, 7)
    assert table.snapshot() == TableSnapshot((1_000, 2_000), 1_500, 2_400, 2_400)
    assert (table.high_watermark, table.records) == (2_400, 7)


def test_a_full_table_refuses_a_segment_instead_of_reusing_a_live_row() -> None:
    table = new_table(rows=3)
    table.add_segment(SEGMENT)
    with pytest.raises(AssertionError, match="retire a segment"):
        table.add_segment(2 * SEGMENT)


def test_nothing_is_retired_past_what_readers_were_given() -> None:
    table = new_table()
    table.add_segment(SEGMENT)  # HIGH_WATERMARK is still 0
    with pytest.raises(AssertionError, match="publish first"):
        table.retire_before(SEGMENT)


def test_the_start_may_lie_inside_a_segment() -> None:
    table = new_table()
    table.publish_high_watermark(SEGMENT, 5)
    table.add_segment(SEGMENT)
    table.publish_high_watermark(SEGMENT + 500, 7)
    table.retire_before(300)
    assert table.snapshot() == TableSnapshot((0, SEGMENT), 300, SEGMENT + 500, SEGMENT + 500)
    table.retire_before(SEGMENT + 100)
    assert table.snapshot() == TableSnapshot((SEGMENT,), SEGMENT + 100, SEGMENT + 500, SEGMENT + 500)


def test_reader_is_told_when_a_writer_died_mid_rebuild() -> None:
    cells = [0] * (ROWS + 4)
    SegmentTable(cells).publish([0], 0, 0, 0)
    cells[EPOCH] += 1  # as a writer killed inside publish() leaves it
    with pytest.raises(WriterGone):
        SegmentTable(cells).snapshot()


def test_a_restarted_writer_carries_on_a_table_that_is_merely_behind() -> None:
    cells = [0] * (ROWS + 4)
    SegmentTable(cells).publish([0], 0, 500, 3)
    epoch = cells[EPOCH]
    SegmentTable(cells).publish([0], 0, 700, 4)
    assert cells[EPOCH] == epoch
    assert SegmentTable(cells).snapshot() == TableSnapshot((0,), 0, 700, 700)


def test_a_restarted_writer_that_finds_other_segments_rebuilds() -> None:
    cells = [0] * (ROWS + 4)
    SegmentTable(cells).publish([0], 0, 500, 3)
    epoch = cells[EPOCH]
    SegmentTable(cells).publish([0, 600], 0, 700, 4)
    assert cells[EPOCH] == epoch + 2
    assert SegmentTable(cells).snapshot() == TableSnapshot((0, 600), 0, 700, 700)


def test_waits_ring_only_those_whose_end_has_come() -> None:
    table = new_table()
    for worker, end in enumerate((0, 100, 200, 300)):
        table.set_wait(worker, end)
    assert table.waiting(4, 200) == [1, 2]
    table.set_wait(1, 0)
    assert table.waiting(4, 200) == [2]


def test_counters_and_state() -> None:
    table = new_table()
    table.set_state(ONLINE)
    table.count(0, 2)
    table.count(0, 3)
    assert table.state == ONLINE
    assert table.counts().counters.batches == 5


class Recording(list[int]):
    """Cells that remember the order in which a writer stored into them."""

    def __init__(self, size: int) -> None:
        super().__init__([0] * size)
        self.stores: list[tuple[int, int]] = []

    def __setitem__(self, index: int, value: int, /) -> None:  # type: ignore[override]
        self.stores.append((index, value))
        super().__setitem__(index, value)


class Replaying(list[int]):
    """Cells in which a recorded writer runs on, a few stores at a time, between a reader's loads."""

    def __init__(self, size: int, stores: list[tuple[int, int]], pauses: dict[int, int]) -> None:
        super().__init__([0] * size)
        self._stores, self._pauses = iter(stores), pauses
        self._loads = 0
        self.run_on(pauses.get(0, 0))

    def run_on(self, count: int) -> None:
        for index, value in islice(self._stores, count):
            super().__setitem__(index, value)

    def __getitem__(self, index: int, /) -> int:  # type: ignore[override]
        self._loads += 1
        self.run_on(self._pauses.get(self._loads, 0))
        return super().__getitem__(index)


def test_every_interleaving_gives_a_consistent_view() -> None:
    """Goal: I4, that a reader never sees a byte above HIGH_WATERMARK nor a row that is not what HIGH_WATERMARK implies.

    Method: record the stores of a writer that wraps its rows, then replay them against one ``view()`` with the writer
    advancing at up to two points between the reader's loads: every pair of points, every total.  Segment i starts at
    i * SEGMENT, so a torn, stale or recycled row shows.  No timing, no randomness.
    """
    size = ROWS + 3
    recording = Recording(size)
    writer = SegmentTable(recording)
    writer.publish([0], 0, 0, 0)
    created = len(recording.stores)
    for segment in range(1, 5):
        writer.publish_high_watermark(segment * SEGMENT - 1, 0)
        writer.add_segment(segment * SEGMENT)
        writer.publish_high_watermark(segment * SEGMENT + 1, 0)
        writer.retire_before(segment * SEGMENT)
    amounts = range(len(recording.stores) - created + 1)

    for start in amounts:
        for first, second in combinations_with_replacement(range(1, 10), 2):
            for more in range(len(amounts) - start):
                pauses = {0: created + start, first: more // 2, second: more - more // 2}
                view = SegmentTable(Replaying(size, recording.stores, pauses)).snapshot()
                oldest = view.bases[0] // SEGMENT
                assert view.bases == tuple(i * SEGMENT for i in range(oldest, oldest + len(view.bases)))
                assert view.bases[0] <= view.start <= view.high_watermark <= view.bases[-1] + SEGMENT


def test_a_reader_that_knows_the_rows_is_as_safe() -> None:
    """The same, for a handle that has cached the rows of an earlier view: a cached range is never a recycled one."""
    size = ROWS + 3
    recording = Recording(size)
    writer = SegmentTable(recording)
    writer.publish([0], 0, 0, 0)
    created = len(recording.stores)
    for segment in range(1, 5):
        writer.publish_high_watermark(segment * SEGMENT, 0)
        writer.add_segment(segment * SEGMENT)
        writer.retire_before(segment * SEGMENT)
    for first in range(len(recording.stores) - created + 1):
        for second in range(len(recording.stores) - created - first + 1):
            replay = Replaying(size, recording.stores, {0: created + first})
            reader = SegmentTable(replay)
            reader.snapshot()
            replay.run_on(second)
            view = reader.snapshot()
            assert view == SegmentTable(replay).snapshot()
            assert view.bases[0] <= replay[START]


def test_whoever_sees_a_high_watermark_sees_its_last_stable_offset() -> None:
    """A fetch of committed messages that has seen it waits for the next one: nothing would tell it of a later store."""
    size = ROWS + 3
    recording = Recording(size)
    writer = SegmentTable(recording)
    writer.publish([0], 0, 0, 0)
    created = len(recording.stores)
    stable_at = {0: 0, 10: 4, 20: 20, 30: 20, 40: 40}
    for end in (10, 20, 30, 40):
        writer.publish_high_watermark(end, 0, None if stable_at[end] == end else stable_at[end])
    amounts = range(len(recording.stores) - created + 1)
    for start in amounts:
        for pause in range(1, 10):
            for more in range(len(amounts) - start):
                view = SegmentTable(Replaying(size, recording.stores, {0: created + start, pause: more})).snapshot()
                assert stable_at[view.high_watermark] <= view.stable <= view.high_watermark


def test_a_writer_killed_at_any_store_of_publish_leaves_nothing_false() -> None:
    """Readers either see the whole new picture, or are told to try again; the next writer repairs it."""
    recording = Recording(ROWS + 4)
    SegmentTable(recording).publish([1_000, 2_000], 1_100, 2_400, 9)
    for count in range(len(recording.stores) + 1):
        cells = Replaying(ROWS + 4, recording.stores, {0: count})
        try:
            assert SegmentTable(cells).snapshot() == TableSnapshot((1_000, 2_000), 1_100, 2_400, 2_400)
        except WriterGone:
            assert cells[MAGIC] == 0 or cells[EPOCH] % 2
        SegmentTable(cells).publish([1_000, 2_000], 1_100, 2_500, 10)
        assert SegmentTable(cells).snapshot() == TableSnapshot((1_000, 2_000), 1_100, 2_500, 2_500)
