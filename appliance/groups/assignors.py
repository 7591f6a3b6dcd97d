"""Assigns partitions to the members of a group at the coordinator: the assignors ``uniform`` and ``range`` (KIP-848).

Both are functions of members and topics alone, and assign every partition of a subscribed topic to one member that
subscribes to it::

    uniform   as even as the subscriptions allow, over all topics together; what can stay where it is stays
    range     of each topic consecutive partitions, in the order of the members; partitions with the same number of
              topics with as many partitions go to the same member, if the same members subscribe
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

IdAndNumber = tuple[str, int]
"""A partition: the topic's id, as in the catalog, and the partition's number."""


class Subscriber(NamedTuple):
    """A member as assignors see it.  ``topics``: names; ``held``: what it was assigned by the assignment before."""

    instance: str | None
    topics: frozenset[str]
    held: frozenset[IdAndNumber]


class TopicParts(NamedTuple):
    """A topic's id, and the numbers of its partitions in order."""

    id: str
    numbers: tuple[int, ...]


Subscribers = Mapping[str, Subscriber]
TopicsToAssign = Mapping[str, TopicParts]
Targets = dict[str, frozenset[IdAndNumber]]
"""By member id; every member is there."""


def assign_uniformly(members: Subscribers, topics: TopicsToAssign) -> Targets:
    """Assign as evenly as possible; no partition moves unless that makes the assignment more even."""
    loads = _Loads(members, topics)
    owner_of: dict[IdAndNumber, str] = {}
    topic_of = {(topic.id, number): name for name, topic in topics.items() for number in topic.numbers}
    for member_id in sorted(members):
        for part in members[member_id].held:
            if part not in owner_of and topic_of.get(part) in members[member_id].topics:
                owner_of[part] = member_id
                loads.add(member_id, 1)
    for part in sorted(topic_of.keys() - owner_of.keys()):
        lightest = loads.lightest(topic_of[part])
        if lightest is not None:
            owner_of[part] = lightest
            loads.add(lightest, 1)
    while _even_out(owner_of, topic_of, loads):
        pass
    targets: dict[str, set[IdAndNumber]] = {member_id: set() for member_id in members}
    for part, owner in owner_of.items():
        targets[owner].add(part)
    return {member_id: frozenset(parts) for member_id, parts in targets.items()}


def _even_out(owner_of: dict[IdAndNumber, str], topic_of: Mapping[IdAndNumber, str], loads: _Loads) -> bool:
    """Move partitions to members that have at least two less; whether any moved.

    Each move makes the sum of the squares of all loads smaller, so that there is an end.
    """
    moved = False
    for part in sorted(owner_of):
        owner = owner_of[part]
        lightest = loads.lightest(topic_of[part])
        if lightest is not None and loads.of[lightest] + 1 < loads.of[owner]:
            owner_of[part] = lightest
            loads.add(owner, -1)
            loads.add(lightest, 1)
            moved = True
    return moved


class _Loads:
    """How many partitions each member has, and which subscriber of a topic has the fewest.

    Topics with the same subscribers share a heap, whose entries may be out of date: a member is pushed at each change,
    and what is not its load any more is dropped when it comes to the top.
    """

    def __init__(self, members: Subscribers, topics: TopicsToAssign) -> None:
        self.of = dict.fromkeys(members, 0)
        heaps: dict[frozenset[str], list[tuple[int, str]]] = {}
        self._heap_of: dict[str, list[tuple[int, str]]] = {}
        self._heaps_of: dict[str, list[list[tuple[int, str]]]] = {member_id: [] for member_id in members}
        for name, subscribers in subscribers_of(members, topics).items():
            key = frozenset(subscribers)
            if key not in heaps:
                heaps[key] = [(0, member_id) for member_id in sorted(key)]
                for member_id in key:
                    self._heaps_of[member_id].append(heaps[key])
            self._heap_of[name] = heaps[key]

    def add(self, member_id: str, count: int) -> None:
        self.of[member_id] += count
        for heap in self._heaps_of[member_id]:
            heapq.heappush(heap, (self.of[member_id], member_id))

    def lightest(self, topic: str) -> str | None:
        heap = self._heap_of[topic]
        while heap and self.of[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1] if heap else None


def subscribers_of(members: Subscribers, topics: TopicsToAssign) -> dict[str, list[str]]:
    """The ids of the subscribers of each topic, in no order."""
    subscribers: dict[str, list[str]] = {name: [] for name in topics}
    for member_id, member in members.items():
        for name in member.topics:
            if name in subscribers:
                subscribers[name].append(member_id)
    return subscribers


def assign_ranges(members: Subscribers, topics: TopicsToAssign) -> Targets:
    """Assign consecutive partitions of each topic; static members keep their place in the order by their names."""
    targets: dict[str, set[IdAndNumber]] = {member_id: set() for member_id in members}
    for name, subscribers in subscribers_of(members, topics).items():
        subscribers.sort(key=lambda member_id: (members[member_id].instance or member_id, member_id))
        for member_id, numbers in zip(subscribers, _shares(topics[name].numbers, len(subscribers)), strict=True):
            targets[member_id].update((topics[name].id, number) for number in numbers)
    return {member_id: frozenset(parts) for member_id, parts in targets.items()}


def _shares(numbers: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """``count`` consecutive shares; the first ones have one more where it does not come out even."""
    start = 0
    for index in range(count):
        end = start + len(numbers) // count + (index < len(numbers) % count)
        yield numbers[start:end]
        start = end


ASSIGNORS: Final[Mapping[str, Callable[[Subscribers, TopicsToAssign], Targets]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}
DEFAULT: Final = "uniform"
"""As in Kafka: of ``group.consumer.assignors`` the first one."""
