"""appliance.processes.coordinator.compaction_enforcer: which log is due, and when."""

from __future__ import annotations

import pytest

from appliance.config import TopicSettings
from appliance.log.compaction import CompactionState
from appliance.names import OFFSET_MAX, TopicPartition
from appliance.processes.coordinator.compaction_enforcer import Dirt, Due, Turns, is_due, measure
from appliance.processes.messages import CompactLog
from appliance.retention import SegmentUse

NOW = 1_000_000


def segments(*rows: tuple[int, int]) -> list[SegmentUse]:
    """Of so many bytes, last written so long ago; the last one is active."""
    found, base = [], 0
    for size, age_ms in rows:
        found.append(SegmentUse(base, size, size, NOW - age_ms))
        base += size
    return found


def test_the_active_segment_does_not_count() -> None:
    assert measure(segments((100, 50), (700, 0)), 0, NOW) == Dirt(100, 100, 0, NOW - 50)


def test_what_was_compacted_is_clean() -> None:
    dirt = measure(segments((300, 90), (100, 50), (700, 0)), 300, NOW)
    assert dirt == Dirt(400, 100, 300, NOW - 50) and dirt.ratio == 0.25


def test_what_is_young_is_left_and_so_is_all_behind_it() -> None:
    assert measure(segments((300, 90), (100, 5), (100, 90), (700, 0)), 0, NOW - 10) == Dirt(300, 300, 0, NOW - 90)


@pytest.mark.parametrize(
    "dirt, settings, due",
    [
        (Dirt(100, 50, 50, NOW), TopicSettings(), True),
        (Dirt(100, 49, 51, NOW), TopicSettings(), False),
        (Dirt(100, 49, 51, NOW), TopicSettings(min_cleanable_dirty_ratio=0.1), True),
        (Dirt(100, 0, 100, None), TopicSettings(min_cleanable_dirty_ratio=0.0), False),
        (Dirt(100, 1, 99, NOW - 500), TopicSettings(max_compaction_lag_ms=500), True),
        (Dirt(100, 1, 99, NOW - 499), TopicSettings(max_compaction_lag_ms=500), False),
        (Dirt(100, 1, 99, 0), TopicSettings(max_compaction_lag_ms=OFFSET_MAX), False),
    ],
)
def test_when_a_pass_is_due(dirt: Dirt, settings: TopicSettings, due: bool) -> None:
    assert is_due(dirt, CompactionState(), settings, NOW) == due


@pytest.mark.parametrize(
    "ended_ms, seen_ms, due",
    [(NOW - 1000, NOW - 1000, True), (NOW - 999, NOW - 999, False), (NOW, NOW - 1000, False)],
)
def test_deletions_are_forgotten_by_one_pass_when_they_may_be(ended_ms: int, seen_ms: int, due: bool) -> None:
    state = CompactionState(dirty_start=100, passes=[(100, seen_ms)], tombstones=3, ended_ms=ended_ms)
    settings = TopicSettings(delete_retention_ms=1000)
    assert is_due(Dirt(100, 0, 100, None), state, settings, NOW) == due
    nothing = CompactionState(dirty_start=100, passes=[(100, seen_ms)], ended_ms=ended_ms)
    assert not is_due(Dirt(100, 0, 100, None), nothing, settings, NOW)


def test_deletions_that_need_not_be_kept_are_forgotten_by_the_next_pass() -> None:
    state = CompactionState(dirty_start=100, passes=[(100, NOW - 1)], tombstones=3, ended_ms=NOW - 1)
    settings = TopicSettings(delete_retention_ms=0)
    assert is_due(Dirt(100, 0, 100, None), state, settings, NOW)
    assert not is_due(Dirt(100, 0, 100, None), state, settings, NOW - 1)
    state.ended_ms = NOW
    assert not is_due(Dirt(100, 0, 100, None), state, settings, NOW + 1)


def test_a_log_whose_passes_fail_does_not_keep_others_waiting() -> None:
    """It has the largest dirty part for ever; the others have their turns, the dirtiest first."""

    def due(name: str, ratio: float, ended_ms: int = 0) -> Due:
        return Due(CompactLog(TopicPartition(name, 0), 100, -1, NOW, 1 << 20, 4096), ratio, ended_ms)

    turns = Turns()
    bad, one, other = due("bad", 0.9), due("one", 0.6), due("other", 0.7)
    chosen = [turns.choose([bad, one, other]).partition.topic for _ in range(4)]
    assert chosen == ["bad", "other", "one", "bad"]
    assert turns.choose([bad, due("one", 0.6, NOW), other]).partition.topic == "one", "its last pass has ended"
    assert turns.choose([bad]).partition.topic == "bad"
