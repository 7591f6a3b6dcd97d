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

    async def coordinator(self, request: OneGroup, access: Access) -> int:
        if not self._enabled:
            raise ZooKeeperAway("this appliance runs without ZooKeeper, which groups need: set zookeeper.nodes")
        return self._coordinator(request.group)

    async def join(self, request: JoinGroup, access: Access) -> dict[str, Any]:
        if bool(request.topics) == bool(request.pattern):
            raise InvalidRequest("a member subscribes to topics or to a pattern: give one of the two")
        try:
            patterns.parse(request.pattern)
        except BadValue as error:
            raise InvalidRequest(str(error)) from None
        streams = request.streams if request.pattern else 1
        subscription = Subscription(request.topics, request.pattern, streams, request.exclude and bool(request.pattern))
        return await self._groups.join(
            *(request.group, request.member, request.secret, request.sequence), subscription, request.session_ms
        )

    async def registry(self, request: KnownMember, access: Access) -> dict[str, Any]:
        """Without the topics that the member may not read: others would wait for what it claims."""
        registry = await self._groups.registry(request.group, request.member, request.secret, request.epoch)
        topics = registry["topics"]
        return registry | {"topics": {name: topics[name] for name in topics if access.readable[name]}}

    async def claim(self, request: ClaimPartitions, access: Access) -> dict[str, Any]:
        streams = {TopicPartition(topic, partition): stream for topic, partition, stream in request.partitions}
        return await self._groups.claim(*_identity(request), request.sequence, streams)

    async def release(self, request: ReleasePartitions, access: Access) -> dict[str, Any]:
        parts = [TopicPartition(*part) for part in request.partitions]
        return await self._groups.release(*_identity(request), request.sequence, parts)

    async def commit(self, request: CommitOwned, access: Access) -> dict[str, Any]:
        offsets = {}
        for topic, partition, offset, topic_id in request.offsets:
            if offset < 0:
                raise InvalidRequest(f"offset {offset} of {topic}-{partition}: must be 0 or more")
            offsets[TopicPartition(topic, partition)] = offset, topic_id
        return await self._groups.commit(*_identity(request), request.sequence, offsets)

    async def await_change(self, request: AwaitChange, access: Access) -> dict[str, Any]:
        return await self._groups.await_change(*_identity(request), request.revision, request.wait_ms)

    async def leave(self, request: KnownMember, access: Access) -> None:
        await self._groups.leave(*_identity(request), request.sequence)


def _identity(request: KnownMember) -> tuple[str, str, str, str]:
    return request.group, request.member, request.secret, request.epoch
