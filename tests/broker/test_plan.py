"""appliance.broker.plan: a request about offsets is answered in slices of bounded work."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.broker.plan import PART_BYTES, PARTS_AT_ONCE, PARTS_GIVEN_MAX, FetchPlan, OffsetLookup, offsets
from appliance.config import TopicSettings
from appliance.errors import StorageFault, UnknownPartition
from appliance.log import FileCache, Log, LogReader
from appliance.log.compaction import Policy, run_pass
from appliance.log.page_cache import LogFile
from appliance.log.reader import QUESTION_BYTES, UNPACKED_BYTES_MAX
from appliance.partition_states import ONLINE
from appliance.processes.network.cold_reads import STRETCH_BYTES, read_stretch
from appliance.records.encode import encode_batch
from appliance.shared.table import TableSnapshot
from appliance.wire.requests import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Fetch,
    FetchPart,
    FileRange,
    Offsets,
    OffsetsPart,
    OffsetsResult,
)

from ..log.test_reader import times_batch
from ..support.cold_files import drop
from ..support.log_batches import batch, filled, headers_of, retire


class Table:
    """What a worker sees of a log."""

    state = ONLINE

    def __init__(self, log: Log) -> None:
        self._log = log
        self.high_watermark = self.log_end_offset = log.end_offset

    def snapshot(self) -> TableSnapshot:
        return TableSnapshot(tuple(self._log.bases), self._log.start, self.high_watermark, self.high_watermark)


class Held:
    def __init__(self, log: Log, files: FileCache) -> None:
        self.table = Table(log)
        self.reader = LogReader(log.path, files)
        self.damaged: list[tuple[int, int]] = []


@pytest.fixture
def held(tmp_path: Path) -> Held:
    raws = [times_batch(500, 5_000 + 500 * number, size=200) for number in range(10)]
    return Held(filled(tmp_path, raws, TopicSettings()), FileCache())


def answered(lookup: OffsetLookup, bytes_max: int) -> list[int]:
    """Look until all is answered; how much each slice looked at."""
    slices = []
    while not lookup.done:
        slices.append(lookup.answer_parts(bytes_max))
    return slices


def test_slices_give_the_answers_that_one_look_gives(held: Held) -> None:
    times = [LATEST, EARLIEST, MAX_TIMESTAMP, -9, 0, 10**9, *range(5_000, 10_000, 17)]
    request = Offsets(None, [OffsetsPart("t", 0, time, -1) for time in times])
    partitions = [held if number % 5 else None for number in range(len(times))]
    whole, sliced = OffsetLookup(request, partitions), OffsetLookup(request, partitions)
    assert len(answered(whole, 1 << 40)) == 1
    assert len(answered(sliced, 100_000)) > 20
    assert whole.results == sliced.results
    assert {result.error for result in whole.results[::5]} == {UnknownPartition.code}
    exact = [result.timestamp for result, asked in zip(whole.results, times, strict=True) if 5_000 <= asked < 10_000]
    assert [got for got in exact if got >= 0] == [t for n, t in enumerate(times) if n % 5 and 5_000 <= t < 10_000]


def test_a_slice_goes_beyond_its_bound_by_one_batch_at_most(held: Held) -> None:
    request = Offsets(None, [OffsetsPart("t", 0, 5_000 + number, -1) for number in range(5_000)])
    slices = answered(OffsetLookup(request, [held] * 5_000), 1 << 20)
    assert len(slices) > 50 and max(slices) <= (1 << 20) + UNPACKED_BYTES_MAX
    unknown = Offsets(None, [OffsetsPart("t", 1, LATEST, -1)] * 10_000)
    assert len(answered(OffsetLookup(unknown, [None] * 10_000), 1 << 20)) == 10_000 * PART_BYTES // (1 << 20) + 1


def test_a_fetch_gives_something_to_so_many_parts(held: Held) -> None:
    """The rest is answered as if there was no more room: no error, nothing to read, the end it can be read to."""
    parts = [FetchPart("t", 0, 0, 1)] * (2 * PARTS_GIVEN_MAX)
    plan = FetchPlan(Fetch(None, 0, 1, 1 << 40, parts), [held] * len(parts))
    results = plan.results
    assert [result.size > 0 for result in results] == [True] * PARTS_GIVEN_MAX + [False] * PARTS_GIVEN_MAX
    assert {(result.error, result.high_watermark) for result in results} == {(0, held.table.high_watermark)}
    assert plan.size == sum(result.size for result in results)


def test_a_plan_that_is_kept_gives_what_a_new_one_gives(held: Held) -> None:
    """Goal: what was let go of while the fetch waited is found again, and only the parts that are named are looked at.

    Method: the log grows between the looks: its end is what the plan's snapshot says.
    """
    end = held.table.high_watermark
    parts = [FetchPart("t", 0, offset, 3_000) for offset in (0, end, end // 2, end)]
    request = Fetch(None, 500, 1 << 20, 1 << 20, parts)
    plan = FetchPlan(request, [held] * len(parts))
    new = FetchPlan(request, [held] * len(parts)).results
    plan.let_go()
    assert [result.size for result in plan.results] == [result.size for result in new]
    assert not any(result.pieces for result in plan.results)
    plan.take_back()
    assert plan.results == new and plan.size == sum(result.size for result in new)
    plan.plan_parts([0, 1])
    assert plan.results == new and not plan.is_enough


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Held:
    raws = [times_batch(10, 5_000 + 10 * number, size=200) for number in range(50)]
    return Held(filled(tmp_path_factory.mktemp("plain"), raws, TopicSettings()), FileCache())


@settings(deadline=None, max_examples=50)
@given(count=st.integers(1, 100), over=st.lists(st.booleans()), given_back=st.booleans())
def test_a_plan_that_takes_several_turns_gives_what_one_of_a_turn_gives(
    plain: Held, count: int, over: list[bool], given_back: bool
) -> None:
    """Goal: whenever turns are over; each looks at some parts, also when files were let go of meanwhile."""
    end = plain.table.high_watermark
    parts = [FetchPart("t", 0, number * 37 % end, 3_000) for number in range(count)]
    request = Fetch(None, 0, 1, 60_000, parts)
    ends = iter(over)
    plan = FetchPlan(request, [plain] * count, lambda: next(ends, False))

    def finish() -> None:
        while plan.unlooked:
            before = len(plan.unlooked)
            plan.plan_parts(list(plan.unlooked))
            assert len(plan.unlooked) <= before - min(before, PARTS_AT_ONCE)

    finish()
    if given_back:
        plan.let_go()
        plan.take_back()
        finish()
    assert plan.results == FetchPlan(request, [plain] * count).results


def test_where_a_log_begins_and_ends_is_known_without_a_look(held: Held) -> None:
    """Unless records are to be counted: the Kafka protocol has no room for their number."""
    parts = [OffsetsPart("t", 0, LATEST, -1), OffsetsPart("t", 0, EARLIEST, -1)]
    for counted, looked_min in ((False, 0), (True, 2 * QUESTION_BYTES)):
        lookup = OffsetLookup(Offsets(None, parts, counted), [held, held])
        assert looked_min <= lookup.answer_parts(1 << 40) - 2 * PART_BYTES <= 2 * looked_min
        end = held.table.high_watermark
        records = (5_000, 0) if counted else (-1, -1)
        assert lookup.results == [OffsetsResult(0, end, -1, records[0]), OffsetsResult(0, 0, -1, records[1])]


def test_a_partition_that_is_deleted_between_two_slices_is_unknown(held: Held) -> None:
    """What its files held is nobody's business any more: another log may live under their names."""
    lookup = OffsetLookup(Offsets(None, [OffsetsPart("t", 0, 5_000, -1)] * 3), [held] * 3)
    lookup.answer_parts(1)
    lookup.forget(held)
    lookup.answer_parts(1 << 40)
    assert [result.error for result in lookup.results] == [0, UnknownPartition.code, UnknownPartition.code]


@pytest.mark.parametrize("interval", [256, 1 << 20])
def test_deleted_messages_answer_no_question_about_times(tmp_path: Path, interval: int) -> None:
    """Goal: a time is looked up among the messages that are there, also where the log starts in a segment or batch."""
    late = 1_000_000
    times = [[late], [10], [20], [30], [90, 15, 40], [80], [50], [60, 70]]
    raws = [encode_batch([(None, b"x" * 90, (), time) for time in batch_times]) for batch_times in times]
    log = filled(tmp_path, raws, TopicSettings(index_interval_bytes=interval))
    records = [
        (base + number, time)
        for (_, base, _), batch_times in zip(headers_of(log, 0), times, strict=True)
        for number, time in enumerate(batch_times)
    ]
    held = Held(log, FileCache())
    for start in [0, *(offset + step for offset, _ in records for step in (0, 1))]:
        retire(log, start)
        left = [(offset, time) for offset, time in records if offset >= start]
        for asked in range(0, 100, 5):
            result = offsets(OffsetsPart("t", 0, asked, -1), held)
            first = next(((offset, time) for offset, time in left if time >= asked), (-1, -1))
            assert (result.error, result.offset, result.timestamp) == (0, *first)
        result = offsets(OffsetsPart("t", 0, MAX_TIMESTAMP, -1), held)
        largest = max((time for _, time in left), default=-1)
        assert (result.offset, result.timestamp) == next((one for one in left if one[1] == largest), (-1, -1))


def test_a_reader_in_a_gap_before_damage_is_told_of_it(tmp_path: Path) -> None:
    """And does not wait for messages at what seems to be the end."""
    raws = [encode_batch([(b"k", b"%d" % number, (), 5)]) for number in range(5)]
    log = filled(tmp_path, raws)
    log.roll()
    policy = Policy(log.bases[-1], -1, 0, 1 << 20, 4096)
    run_pass(log.path, log.bases, log.end_offset, policy, log.swap, lambda _: None)
    held = Held(log, FileCache())
    held.damaged = [(4 * len(raws[0]), log.end_offset)]
    for offset in (0, len(raws[0]), 4 * len(raws[0])):
        plan = FetchPlan(Fetch(None, 0, 1, 1 << 30, [FetchPart("t", 0, offset, 1 << 30)]), [held])
        assert plan.results[0].error == StorageFault.code


def test_damaged_ranges_are_not_served_and_all_else_is(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"%d" % number]) for number in range(10)])
    held = Held(log, FileCache())
    ends = [found[2] for found in headers_of(log, 0)]
    held.damaged = [(ends[1], ends[2]), (ends[5], ends[7])]
    served = set()
    for offset in [0, *ends[:-1], ends[1] + 1, ends[2] - 1]:
        plan = FetchPlan(Fetch(None, 0, 1, 1 << 30, [FetchPart("t", 0, offset, 1 << 30)]), [held])
        (result,) = plan.results
        assert result.high_watermark == ends[-1]
        if any(start <= offset < stop for start, stop in held.damaged):
            assert (result.error, plan.failed, plan.size) == (StorageFault.code, True, 0)
        else:
            served.add((offset, offset + result.size))
    assert {stop for _, stop in served} == {ends[1], ends[5], ends[-1]}
    assert min(start for start, stop in served if stop == ends[5]) == ends[2]


def test_what_is_not_in_memory_is_asked_for_piece_by_piece_and_changes_no_answer(tmp_path: Path) -> None:
    """Goal: a plan needs no more from the disk than a few pieces for each part, and ends."""
    log = filled(tmp_path, [batch([bytes(900)] * 7, 1_000 + number) for number in range(50)], TopicSettings())
    end = log.end_offset
    parts = [OffsetsPart("t", 0, time, -1) for time in (LATEST, EARLIEST, MAX_TIMESTAMP, 1_000, 1_030, 2_000)]
    parts += [OffsetsPart("t", 0, -1, offset) for offset in (0, end // 2, end)]
    request = Offsets(None, parts)
    fetch = Fetch(None, 0, 1, 1 << 20, [FetchPart("t", 0, offset, 30_000) for offset in (0, 17, end // 2, end)])
    warm = Held(log, FileCache())
    known = OffsetLookup(request, [warm] * len(parts))
    while not known.done:
        known.answer_parts(1 << 30)
    drop(tmp_path.glob("*.*"))
    held = Held(log, FileCache(waits=False))
    lookup, brought = OffsetLookup(request, [held] * len(parts)), 0
    while not lookup.done:
        lookup.answer_parts(1 << 30)
        brought += bring(lookup.cold)
    assert lookup.results == known.results and 0 < brought < 30
    drop(tmp_path.glob("*.*"))
    held = Held(log, FileCache(waits=False))
    plan, looks = FetchPlan(fetch, [held] * 4), 0
    assert sorted(plan.cold) == [0, 1, 2] and not plan.size
    while plan.cold:
        for piece in plan.cold.values():
            bring(piece)
        plan.plan_parts(sorted(plan.cold))
        looks += 1
    pieces = lambda one: [[piece[1:] for piece in result.pieces] for result in one.results]  # noqa: E731
    assert pieces(plan) == pieces(FetchPlan(fetch, [warm] * 4)) and looks < 10


def bring(piece: FileRange | None) -> int:
    """As a thread and the loop do; how much was asked for."""
    if piece is None:
        return 0
    file = piece.file
    assert isinstance(file, LogFile) and file.memory is not None
    file.memory.bring(file.fd, read_stretch(piece, memoryview(bytearray(STRETCH_BYTES))))
    return 1
