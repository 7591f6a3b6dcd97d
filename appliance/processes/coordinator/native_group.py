"""One group of the native listener, as its coordinator keeps it: who is a member, and who owns what.  No I/O, no clock.

:mod:`.native_groups` has the states and messages, and stores what is here in ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...catalog import Topic
from ...names import TopicPartition
from ...zookeeper import paths
from ...zookeeper.paths import Subscription

NODE_BYTES: Final = 300
"""Heap of ZooKeeper that a node takes besides path and value, rounded up."""
TopicVersions = dict[str, tuple[str, int]]
"""By name: the id of a topic, and how many partitions it had."""


class NativeMember:
    """``lock`` is held while a request of this member changes something; ``sequence`` is that of the newest such one.

    ``subscription`` is None until it is registered.  ``waiting``: the request of this member that waits for a change.
    """

    def __init__(self, id: str, subscription: Subscription | None, session_ms: int, deadline_ms: int) -> None:
        self.id = id
        self.subscription = subscription
        self.session_ms = session_ms
        self.deadline_ms = deadline_ms
        self.joined = False
        """Whether it has joined under this coordinator; else it was restored from its nodes."""
        self.ends = False
        """Its session is over, and its nodes are being removed: nobody promises it anything."""
        self.sequence = 0
        self.bytes = 0
        self.lock = asyncio.Lock()
        self.waiting: asyncio.Future[None] | None = None

    def renew(self, now_ms: int) -> None:
        self.deadline_ms = max(self.deadline_ms, now_ms + self.session_ms)


class PartitionOwner:
    """``sequence``: of the newest request of the member that has claimed the partition or committed its offset."""

    def __init__(self, member: str, stream: int, sequence: int = 0) -> None:
        self.member, self.stream, self.sequence = member, stream, sequence


class NativeGroup:
    """``claim_path``: of the claim that it lives under; ``epoch``: a text that is never used again."""

    def __init__(self, name: str, claim_path: str, epoch: str) -> None:
        self.name, self.claim_path, self.epoch = name, claim_path, epoch
        self.members: dict[str, NativeMember] = {}
        self.owners: dict[TopicPartition, PartitionOwner] = {}
        self.revision = 1
        self.alarm: asyncio.TimerHandle | None = None
        self.alarm_ms = 0
        """When the alarm should go off."""
        self._awaited: set[TopicPartition] = set()
        """Partitions that a member could not claim: it waits for their release."""
        self._seen_topics: TopicVersions = {}

    # ---- members

    def add_member(self, id: str, subscription: Subscription | None, session_ms: int, deadline_ms: int) -> NativeMember:
        member = self.members[id] = NativeMember(id, subscription, session_ms, deadline_ms)
        return member

    def remove_member(self, id: str) -> None:
        member = self.members.pop(id)
        self.release(self.owned_by(id))
        self.changed()
        _wake(member)

    def expired(self, now_ms: int) -> list[NativeMember]:
        return [member for member in self.members.values() if member.deadline_ms <= now_ms]

    def deadline_ms(self) -> int | None:
        return min((member.deadline_ms for member in self.members.values()), default=None)

    def prolong(self, now_ms: int) -> None:
        """Begin every session anew: the coordinator could not listen."""
        for member in self.members.values():
            member.renew(now_ms)

    # ---- owners

    def owned_by(self, id: str) -> list[TopicPartition]:
        return sorted(part for part, owner in self.owners.items() if owner.member == id)

    def note_taken(self, id: str, parts: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of these partitions that others own; from now on a release of one of them is a change."""
        taken = [part for part in parts if part in self.owners and self.owners[part].member != id]
        self._awaited.update(taken)
        return taken

    def claim(self, id: str, streams: Mapping[TopicPartition, int], sequence: int) -> None:
        for part, stream in streams.items():
            self.owners[part] = PartitionOwner(id, stream, sequence)

    def release(self, parts: Sequence[TopicPartition]) -> None:
        for part in parts:
            self.owners.pop(part, None)
        if not self._awaited.isdisjoint(parts):
            self._awaited.difference_update(parts)
            self.changed()

    # ---- changes

    def changed(self) -> None:
        """Wake all members that wait for a change."""
        self.revision += 1
        for member in self.members.values():
            _wake(member)

    def look_at(self, topics: Mapping[str, Topic]) -> None:
        """The topics have changed, perhaps those that a member subscribes to."""
        subscriptions = [member.subscription for member in self.members.values() if member.subscription is not None]
        names: Iterable[str] = topics
        if not any(subscription.pattern for subscription in subscriptions):
            names = {name for subscription in subscriptions for name in subscription.topics if name in topics}
        topic_versions = {name: (topics[name].id, len(topics[name].partitions)) for name in names}
        if topic_versions != self._seen_topics:
            self._seen_topics = topic_versions
            self.changed()

    def close(self) -> None:
        """The group is lost: members that wait are told."""
        if self.alarm is not None:
            self.alarm.cancel()
        for member in self.members.values():
            _wake(member)

    # ---- nodes in ZooKeeper

    def member_node(self, member: NativeMember) -> str:
        return paths.consumer(self.name, member.id)

    def bytes_of(self, member: NativeMember) -> int:
        """What the member and all that it owns take in ZooKeeper."""
        nodes = [self.member_node(member), *(paths.owner(self.name, part) for part in self.owned_by(member.id))]
        return sum(NODE_BYTES + len(path) for path in nodes)

    def owner_nodes(self, id: str, streams: Mapping[TopicPartition, int]) -> dict[str, bytes]:
        return {paths.owner(self.name, part): paths.encode_owner(id, stream) for part, stream in streams.items()}


def _wake(member: NativeMember) -> None:
    if member.waiting is not None and not member.waiting.done():
        member.waiting.set_result(None)
