"""Assigns partitions to the streams of a group, and new partitions to brokers: pure functions of a snapshot.

All members of a group compute the assignment from the same registries, so they agree without exchanging messages (the
paper's rebalance).  For the same reason any broker may place a topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import BrokerAway
from ..names import TopicPartition
from .paths import Subscription


class Stream(NamedTuple):
    """One of a consumer's streams on a topic (the paper's consumer thread).

    ``text`` is the value of owner nodes.  Streams are sorted by it, as in the paper's implementation.
    """

    consumer: str
    number: int

    @property
    def text(self) -> str:
        return f"{self.consumer}-{self.number}"


def range_assignment(partitions: Iterable[int], streams: Iterable[Stream]) -> dict[int, Stream]:
    """The paper's range assignment of one topic's partitions to the streams that subscribe to it.

    With P partitions and C streams, both sorted, each stream gets ``P // C`` consecutive partitions, and the first
    ``P % C`` streams get one more.  Streams beyond P get nothing.  Partitions sort by number.
    """
    ordered = sorted(set(partitions))
    readers = sorted(set(streams), key=lambda stream: (stream.text, stream))
    if not readers:
        return {}
    per, extra = divmod(len(ordered), len(readers))
    assigned: dict[int, Stream] = {}
    for i, reader in enumerate(readers):
        start = per * i + min(i, extra)
        for partition in ordered[start : start + per + (i < extra)]:
            assigned[partition] = reader
    return assigned


def group_assignment(
    members: Mapping[str, Subscription], topics: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, Stream]:
    """The assignment of a whole group: each topic by itself, among the members that subscribe to it."""
    assigned: dict[TopicPartition, Stream] = {}
    for topic in sorted(topics):
        streams = [
            Stream(consumer, number)
            for consumer, subscription in members.items()
            for number in range(subscription.streams_of(topic))
        ]
        for partition, stream in range_assignment(topics[topic], streams).items():
            assigned[TopicPartition(topic, partition)] = stream
    return assigned


def place_partitions(
    partitions: Iterable[int],
    brokers: Iterable[int],
    hosted: Mapping[int, int],
    *,
    prefer: Sequence[int] = (),
) -> dict[int, list[int]]:
    """Choose a broker for each new partition: always the one that then stores the fewest.

    Args:
        partitions: numbers of the partitions to place.
        brokers: ids of the live brokers.
        hosted: how many partitions each broker stores already; brokers that are not named store none.
        prefer: among equally loaded brokers these first, in this order (the one that received the request).

    Returns:
        partition -> [broker id].  The list always has one broker; its first element leads the partition.

    Raises:
        BrokerAway: there is no broker at all.
    """
    rank = {broker: i for i, broker in reversed(list(enumerate(prefer)))}
    load = {broker: hosted.get(broker, 0) for broker in set(brokers)}
    if not load:
        raise BrokerAway("no broker is registered, so a new topic cannot be placed; start one")
    placed: dict[int, list[int]] = {}
    # Spread this topic first: a broker that is nearly empty must not get all of a topic's partitions.
    taken = dict.fromkeys(load, 0)
    for partition in sorted(set(partitions)):
        chosen = min(load, key=lambda broker: (taken[broker], load[broker], rank.get(broker, len(rank)), broker))
        taken[chosen] += 1
        load[chosen] += 1
        placed[partition] = [chosen]
    return placed
