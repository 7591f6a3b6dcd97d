"""appliance.zookeeper.assignment: everybody computes the same, everything is shared out, evenly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BrokerAway
from appliance.names import TopicPartition
from appliance.zookeeper.assignment import Stream, group_assignment, place_partitions, range_assignment
from appliance.zookeeper.paths import Subscription


@pytest.mark.parametrize(
    "partitions, streams, expected",
    [
        (5, 2, [[0, 1, 2], [3, 4]]),  # one more for the first 5 mod 2
        (4, 2, [[0, 1], [2, 3]]),
        (2, 3, [[0], [1], []]),
        (0, 2, [[], []]),
        (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
    ],
)
def test_the_papers_range(partitions: int, streams: int, expected: list[list[int]]) -> None:
    readers = [Stream(f"c{i}", 0) for i in range(streams)]
    assigned = range_assignment(range(partitions), readers)
    assert [[p for p in range(partitions) if assigned[p] == reader] for reader in readers] == expected


def test_streams_are_ordered_by_their_text() -> None:
    readers = [Stream("c", 10), Stream("c", 9)]  # "c-10" < "c-9"
    assert range_assignment([0, 1], readers) == {0: Stream("c", 10), 1: Stream("c", 9)}


@given(st.sets(st.integers(0, 200), max_size=30), st.sets(st.builds(Stream, st.text(max_size=5), st.integers(0, 3))))
def test_every_partition_once_and_shares_differ_by_one(partitions: set[int], streams: set[Stream]) -> None:
    assigned = range_assignment(partitions, streams)
    assert assigned.keys() == (partitions if streams else set())
    shares = [list(assigned.values()).count(stream) for stream in streams]
    assert not shares or max(shares) - min(shares) <= 1
    assert assigned == range_assignment(sorted(partitions, reverse=True), sorted(streams, reverse=True))


def test_topics_are_shared_out_among_their_own_subscribers() -> None:
    members = {"a": Subscription({"t": 1, "u": 2}), "b": Subscription({"t": 1}), "c": Subscription(pattern="u")}
    assert group_assignment(members, {"t": [0, 1, 2], "u": [0, 1, 2]}) == {
        TopicPartition("t", 0): Stream("a", 0),
        TopicPartition("t", 1): Stream("a", 0),
        TopicPartition("t", 2): Stream("b", 0),
        TopicPartition("u", 0): Stream("a", 0),
        TopicPartition("u", 1): Stream("a", 1),
        TopicPartition("u", 2): Stream("c", 0),
    }


@given(st.integers(1, 30), st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1, max_size=6))
def test_a_topic_is_spread_evenly(count: int, hosted: dict[int, int]) -> None:
    placed = place_partitions(range(count), hosted, hosted)
    assert sorted(placed) == list(range(count))
    shares = [[brokers[0] for brokers in placed.values()].count(broker) for broker in hosted]
    assert max(shares) - min(shares) <= 1


def test_the_emptier_broker_comes_first_then_the_preferred() -> None:
    assert place_partitions([0], [1, 2, 3], {1: 5, 2: 4, 3: 4}, prefer=[3]) == {0: [3]}
    assert place_partitions([0], [1, 2, 3], {1: 0, 2: 4, 3: 4}, prefer=[3]) == {0: [1]}
    assert place_partitions([0, 1], [1, 2], {}) == {0: [1], 1: [2]}


def test_without_brokers_nothing_can_be_placed() -> None:
    with pytest.raises(BrokerAway, match="start one"):
        place_partitions([0], [], {})
