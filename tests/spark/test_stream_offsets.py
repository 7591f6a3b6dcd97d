"""appliance.spark.stream_offsets: nothing is skipped, nothing is read twice, limits are kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import OffsetOutOfRange
from appliance.log_access.ranges import Range
from appliance.names import TopicPartition
from appliance.spark.pipeline.pipeline_source import TASK_BYTES_MIN
from appliance.spark.stream_offsets import (
    PACKED_MAX,
    SPLIT_BYTES_MIN,
    advance,
    behind_latest,
    from_json,
    initial,
    is_initial,
    pack,
    ranges,
    split,
    to_json,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
keys = st.tuples(st.sampled_from(["a", "b.c", "_x-1"]), st.integers(0, 20))
positions = st.dictionaries(keys, st.integers(0, 1 << 40), max_size=6)


@given(positions, st.none() | positions)
def test_json_of_the_checkpoint_and_back(
    ends: dict[tuple[str, int], int], start: dict[tuple[str, int], int] | None
) -> None:
    encoded = json.loads(json.dumps(to_json(ends, start)))
    assert from_json(encoded) == (ends, start)


def test_it_looks_like_the_connectors() -> None:
    assert to_json({A1: 7, A0: 5, B0: 1}) == {"a": {"0": 5, "1": 7}, "b": {"0": 1}}
    assert is_initial(initial({A0: 5}))
    assert not is_initial(to_json({A0: 5})) and not is_initial(to_json({A0: 5}, {A0: 5}))
    assert initial({A0: 5}) != to_json({A0: 5}, {A0: 5}), "the first end must differ, or Spark stores nothing"


waits = st.dictionaries(keys, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6)


@given(waits, st.integers(0, 3000))
def test_a_limit_in_bytes_is_exact(wanted: dict[tuple[str, int], tuple[int, int]], limit: int) -> None:
    start = {key: low for key, (low, _) in wanted.items()}
    heads = {key: low + size for key, (low, size) in wanted.items()}
    total = sum(size for _, size in wanted.values())
    end = advance(start, heads, limit)
    assert all(start[key] <= end[key] <= heads[key] for key in wanted)
    assert sum(end[key] - start[key] for key in wanted) == (min(total, limit) if limit else total)


def test_shares_are_in_proportion() -> None:
    assert advance({A0: 0, A1: 0}, {A0: 900, A1: 100}, 100) == {A0: 90, A1: 10}


def test_what_is_gone_stays_and_what_was_made_anew_goes_back() -> None:
    assert advance({A0: 50, A1: 500}, {A1: 80}, 0) == {A0: 50, A1: 80}
    assert advance({A0: 500, A1: 0}, {A0: 80, A1: 1000}, 10) == {A0: 80, A1: 10}


def test_ranges() -> None:
    found = ranges({A0: 10, A1: 5}, {A0: 20, A1: 5, B0: 9}, {A0: 0, A1: 0, B0: 2}, {A0: 30, A1: 5, B0: 9}, True)
    assert found == [Range("a", 0, 10, 20, 30), Range("b", 0, 2, 9, 9)]


@pytest.mark.parametrize(
    ("start", "end", "earliest", "latest", "left"),
    [
        (10, 40, 20, 50, [Range("a", 0, 20, 40, 50)]),  # retention took the beginning
        (10, 15, 20, 50, []),  # and everything
        (100, 20, 0, 30, [Range("a", 0, 0, 20, 30)]),  # the topic was made anew and is shorter
        (100, 200, 0, 30, [Range("a", 0, 0, 30, 30)]),
    ],
)
def test_lost_data_fails_or_is_left_out(start: int, end: int, earliest: int, latest: int, left: list[Range]) -> None:
    arguments = ({A0: start}, {A0: end}, {A0: earliest}, {A0: latest})
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss=false"):
        ranges(*arguments, True)
    assert ranges(*arguments, False) == left


def test_a_deleted_topic_is_lost_data() -> None:
    with pytest.raises(OffsetOutOfRange, match="a-0"):
        ranges({A0: 10}, {A0: 40}, {}, {}, True)
    assert ranges({A0: 10}, {A0: 40}, {}, {}, False) == []
    assert ranges({A0: 40}, {A0: 40}, {}, {}, True) == []


sizes = st.lists(st.integers(1, 1 << 32), min_size=1, max_size=6)


SMALLEST = st.sampled_from([SPLIT_BYTES_MIN, TASK_BYTES_MIN])


@given(sizes, st.integers(0, 50), st.integers(1, 64), SMALLEST, st.integers(1 << 20, 1 << 33))
def test_splitting_loses_nothing(
    lengths: list[int], parts_min: int, cores: int, bytes_min: int, bytes_max: int
) -> None:
    whole = [Range("a", number, 100, 100 + length, 1 << 40) for number, length in enumerate(lengths)]
    parts = split(whole, parts_min, cores, bytes_min, bytes_max)
    assert all(part.end - part.first <= bytes_max for part in parts)
    joined: list[Range] = []
    for part in parts:
        if joined and joined[-1].partition == part.partition:
            assert joined[-1].end == part.first
            joined[-1] = Range("a", part.partition, joined[-1].first, part.end, part.log_end)
        else:
            joined.append(part)
    assert joined == whole


def test_all_cores_get_something_when_there_is_enough() -> None:
    one = [Range("a", 0, 0, 100 << 20, 100 << 20)]
    assert len(split(one, 0, 4, SPLIT_BYTES_MIN, 1 << 30)) == 4
    assert len(split(one, 10, 4, SPLIT_BYTES_MIN, 1 << 30)) == 10
    assert len(split([Range("a", 0, 0, 1000, 1000)], 0, 4, SPLIT_BYTES_MIN, 1 << 30)) == 1
    assert split([], 4, 4, SPLIT_BYTES_MIN, 1 << 30) == []


@given(st.lists(st.integers(1, 1 << 26), max_size=300), st.integers(1, 16), SMALLEST, st.integers(1 << 26, 1 << 28))
def test_packing_keeps_every_part_once_and_in_order(
    lengths: list[int], tasks: int, bytes_min: int, bytes_max: int
) -> None:
    parts = [Range("a", number, 100, 100 + length, 1 << 40) for number, length in enumerate(lengths)]
    groups = pack(parts, tasks, bytes_min, bytes_max)
    assert [part for group in groups for part in group] == parts
    for group in groups:
        assert len(group) == 1 or sum(part.end - part.first for part in group) <= bytes_max
        assert 0 < len(group) <= PACKED_MAX
    small = [Range("a", number, 0, 10, 10) for number in range(1000)]
    assert len(pack(small, 4, bytes_min, bytes_max)) == 8


def test_lag_has_the_names_of_the_connector() -> None:
    source = {"endOffset": {"a": {"0": 5, "1": 7}, "@start": {}}, "latestOffset": {"a": {"0": 5, "1": 10}}}
    assert behind_latest({"sources": [source, {"endOffset": None}]}) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "3",
        "avgOffsetsBehindLatest": "1.5",
        "estimatedTotalBytesBehindLatest": "3",
    }
    assert behind_latest({"sources": [{"endOffset": 5, "latestOffset": None}]}) == {}
