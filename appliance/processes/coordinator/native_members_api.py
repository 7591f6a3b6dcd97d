"""Answers the native verbs of groups' members; ``wire/native_admin.py`` specifies them, :mod:`.native_groups` has what
they do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import BadValue, InvalidRequest, ZooKeeperAway
from ...names import TopicPartition
from ...security.acls import Access
from ...wire.native_admin import (
    AwaitChange,
    ClaimPartitions,
    CommitOwned,
    JoinGroup,
    KnownMember,
    OneGroup,
    ReleasePartitions,
)
from ...zookeeper import patterns
from ...zookeeper.paths import Subscription
from .native_groups import NativeGroups


class NativeMembersApi:
    """``coordinator``: the id of the broker that coordinates a group; ``enabled``: whether there is ZooKeeper."""

    def __init__(self, groups: NativeGroups, coordinator: Callable[[str], int], *, enabled: bool) -> None:
        self._groups, self._coordinator, self._enabled = groups, coordinator, enabled
        self.verbs: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "group_coordinator": self.coordinator,
            "join_group": self.join,
            "group_registry": self.registry,
            "claim_partitions": self.claim,
            "release_partitions": self.release,
            "commit_owned": self.commit,
            "await_change": self.await_change,
            "leave_group": self.leave,
        }

    async def coordinator(self, wanted: OneGroup, access: Access) -> int:
        if not self._enabled:
            raise ZooKeeperAway("this appliance runs without ZooKeeper, which groups need: set zookeeper.nodes")
        return self._coordinator(wanted.group)

    async def join(self, wanted: JoinGroup, access: Access) -> dict[str, Any]:
        if bool(wanted.topics) == bool(wanted.pattern):
            raise InvalidRequest("a member subscribes to topics or to a pattern: give one of the two")
        try:
            patterns.parse(wanted.pattern)
        except BadValue as error:
            raise InvalidRequest(str(error)) from None
        streams = wanted.streams if wanted.pattern else 1
        subscription = Subscription(wanted.topics, wanted.pattern, streams, wanted.exclude and bool(wanted.pattern))
        return await self._groups.join(
            *(wanted.group, wanted.member, wanted.secret, wanted.sequence), subscription, wanted.session_ms
        )

    async def registry(self, wanted: KnownMember, access: Access) -> dict[str, Any]:
        """Without the topics that the member may not read: others would wait for what it claims."""
        found = await self._groups.registry(wanted.group, wanted.member, wanted.secret, wanted.epoch)
        topics = found["topics"]
        return found | {"topics": {name: topics[name] for name in topics if access.readable[name]}}

    async def claim(self, wanted: ClaimPartitions, access: Access) -> dict[str, Any]:
        streams = {TopicPartition(topic, partition): stream for topic, partition, stream in wanted.partitions}
        return await self._groups.claim(*_of(wanted), wanted.sequence, streams)

    async def release(self, wanted: ReleasePartitions, access: Access) -> dict[str, Any]:
        parts = [TopicPartition(*part) for part in wanted.partitions]
        return await self._groups.release(*_of(wanted), wanted.sequence, parts)

    async def commit(self, wanted: CommitOwned, access: Access) -> dict[str, Any]:
        offsets = {}
        for topic, partition, offset, topic_id in wanted.offsets:
            if offset < 0:
                raise InvalidRequest(f"offset {offset} of {topic}-{partition}: must be 0 or more")
            offsets[TopicPartition(topic, partition)] = offset, topic_id
        return await self._groups.commit(*_of(wanted), wanted.sequence, offsets)

    async def await_change(self, wanted: AwaitChange, access: Access) -> dict[str, Any]:
        return await self._groups.await_change(*_of(wanted), wanted.revision, wanted.wait_ms)

    async def leave(self, wanted: KnownMember, access: Access) -> None:
        await self._groups.leave(*_of(wanted), wanted.sequence)


def _of(wanted: KnownMember) -> tuple[str, str, str, str]:
    return wanted.group, wanted.member, wanted.secret, wanted.epoch
