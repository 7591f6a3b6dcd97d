"""appliance.groups.consumer_protocol: what real consumers write is read, and anything else reads as
nothing.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from appliance.groups.consumer_protocol import (
    assigned_partitions,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)

names = st.text(max_size=20)
partitions = st.lists(st.tuples(names, st.integers(0, 2**31 - 1)), max_size=8)


@given(st.lists(names, max_size=5))
def test_subscriptions_come_back(topics: list[str]) -> None:
    assert subscribed_topics(encode_subscription(topics)) == tuple(topics)


@given(partitions)
def test_assignments_come_back(assigned: list[tuple[str, int]]) -> None:
    assert sorted(assigned_partitions(encode_assignment(assigned))) == sorted(assigned)


@pytest.mark.parametrize("version", range(4))
def test_all_versions_that_clients_write_are_read(version: int) -> None:
    subscription = ConsumerProtocolSubscription(version=version, topics=["a", "b"], user_data=b"x")
    assert subscribed_topics(subscription.encode(version=version)) == ("a", "b")
    parts = [ConsumerProtocolAssignment.TopicPartition(topic="a", partitions=[0, 2])]
    assignment = ConsumerProtocolAssignment(version=version, assigned_partitions=parts, user_data=b"")
    read = assigned_partitions(assignment.encode(version=version))
    assert read == (("a", 0), ("a", 2))


@given(st.binary(max_size=60))
def test_any_bytes_are_harmless(data: bytes) -> None:
    subscribed_topics(data)
    assigned_partitions(data)


@pytest.mark.parametrize("count", [-1, 2**31 - 1, 100])
def test_counts_beyond_the_data_read_as_nothing(count: int) -> None:
    data = b"\0\0" + count.to_bytes(4, "big", signed=True) + b"\0\1t"
    assert subscribed_topics(data) == () == assigned_partitions(data)
