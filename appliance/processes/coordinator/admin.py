"""The native door's cold requests, metadata and the admin verbs: frames in, frames out.

``wire/native.py`` specifies the frames.  The verbs, their arguments and results (JSON-like):

    create_topic    {name, partitions?, settings?}        {name, partitions}
    ensure_topic    {name}                                {name, partitions}; made where auto_create is on
    alter_topic     {name, settings?, partitions?}        {name, partitions}; a setting of nil is taken back
    delete_topic    {name}                                nil
    topics          {names?}                              [{name, settings, own, partitions: [PARTITION]}]
    init_producer   {}                                    {producer_id, epoch}
    status          {}                                    see :mod:`appliance.status`
    groups          {}                                    [{group, protocol, state, members: how many}]
    group           {group}                               {group, protocol, state, members: [MEMBER],
                                                           partitions: [POSITION]}
    offsets         {group}                               [[topic, partition, offset]]
    commit          {group, offsets: [[t, p, offset]]}    nil; what is not refused is stored
    delete_offsets  {group, partitions?: [[t, p]]}        nil; without partitions the whole group goes

    PARTITION       {partition, leader, start, end, bytes, messages, state}
    MEMBER          {id, client, host, partitions: [[topic, partition]]}
    POSITION        {topic, partition, offset, end, lag_messages, lag_bytes, lag_seconds, owner}

Whoever is asked, a group's coordinator carries ``commit`` and ``delete_offsets`` out; ``forwarded`` marks what one
broker has passed on to another.

A topic's ``settings`` are those in force, ``own`` those that were set for it.  A group's ``protocol`` is that
of its members, native or kafka, "" without any; its ``state`` is stable, rebalancing or empty.  What cannot
be learned now (a partition is not readable, its broker does not answer) is nil.  A partition that is owned,
but has no offset yet, has the lag of its whole log.

Errors: any :class:`ApplianceError` is answered with its code and message; a frame of the wrong shape is a
:class:`ProtocolFault` and closes the connection; wrong arguments are an :class:`InvalidRequest`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from ... import status
from ...broker.metadata_answers import MetadataAnswers
from ...catalog import Topic
from ...errors import (
    ApplianceError,
    InvalidRequest,
    UnknownGroup,
)
from ...groups.group_state import Group, State
from ...groups.store import Commit, RegisteredGroup
from ...names import GROUP_CHARACTERS_MAX, PARTITION_MAX, TOPIC_PATTERN, TopicPartition
from ...wire import native
from ...wire.bounds import PARTS_MAX_MAX
from .cluster import Cluster, Measured

STATES = {
    State.EMPTY: "empty",
    State.PREPARING: "rebalancing",
    State.COMPLETING: "rebalancing",
    State.STABLE: "stable",
    State.DEAD: "empty",
}
Name = Annotated[str, Meta(max_length=32_767)]
"""As Kafka's protocol has them: whether it is a legal name, and says why not, is for those to answer who use it."""
Names = Annotated[list[Name], Meta(max_length=PARTS_MAX_MAX)]
Offset = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Partition = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
Count = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Setting = Annotated[str, Meta(max_length=32_767)] | Offset
GroupName = Annotated[str, Meta(min_length=1, max_length=GROUP_CHARACTERS_MAX)]
TopicName = Annotated[str, Meta(pattern=TOPIC_PATTERN)]
ManySettings = Meta(max_length=1_000)
ManyPartitions = Meta(max_length=PARTS_MAX_MAX)


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    partitions: Count | None = None
    settings: Annotated[dict[Name, Setting], ManySettings] = {}


class AlterTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    settings: Annotated[dict[Name, Setting | None], ManySettings] = {}
    partitions: Count | None = None


class OneTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Name


class ManyTopics(msgspec.Struct, forbid_unknown_fields=True):
    names: Names | None = None


class OneGroup(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName


class CommitOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    offsets: Annotated[list[tuple[Name, Partition, Offset]], ManyPartitions]
    forwarded: bool = False


class DeleteOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    partitions: Annotated[list[tuple[TopicName, Partition]], ManyPartitions] | None = None
    forwarded: bool = False


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Verb(NamedTuple):
    arguments: type[msgspec.Struct]
    run: Callable[[Any], Awaitable[Any]]


class NativeDoor:
    """One for all connections; requests run side by side.

    ``kafka_groups``: the groups with members that this coordinator keeps for the Kafka door.
    """

    def __init__(self, cluster: Cluster, kafka_groups: Callable[[], Mapping[str, Group]]) -> None:
        self._cluster = cluster
        self._metadata = MetadataAnswers(cluster)
        self._kafka_groups = kafka_groups
        self._verbs = {
            "create_topic": _Verb(CreateTopic, self._create_topic),
            "ensure_topic": _Verb(OneTopic, self._ensure_topic),
            "alter_topic": _Verb(AlterTopic, self._alter_topic),
            "delete_topic": _Verb(OneTopic, self._delete_topic),
            "topics": _Verb(ManyTopics, self._topics),
            "init_producer": _Verb(Nothing, self._init_producer),
            "status": _Verb(Nothing, self._status),
            "groups": _Verb(Nothing, self._groups),
            "group": _Verb(OneGroup, self._group),
            "offsets": _Verb(OneGroup, self._offsets),
            "commit": _Verb(CommitOffsets, self._commit),
            "delete_offsets": _Verb(DeleteOffsets, self._delete_offsets),
        }

    async def answer(self, frame: bytes, listener: str) -> bytes:
        """The reply to a frame that the codec called cold; ``listener`` is where its client connected to.

        Raises:
            ProtocolFault: close the connection.
        """
        request = native.decode_forwarded(memoryview(frame))
        if isinstance(request, native.MetadataRequest):
            return native.encode_frame([request.correlation, 0, self._metadata.native(request.topics, listener)])
        code, message, result = await self._admin(request.verb, request.arguments)
        return native.encode_frame([request.correlation, code, message, result])

    # ---- admin

    async def _admin(self, name: str, given: msgspec.Raw) -> tuple[int, str, Any]:
        try:
            verb = self._verbs.get(name)
            if verb is None:
                known = ", ".join(sorted(self._verbs))
                raise InvalidRequest(f"unknown admin verb {name!r:.100}: use one of {known}")
            try:
                arguments = msgspec.msgpack.decode(given, type=verb.arguments)
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"{name}: {error}") from None
            return 0, "", await verb.run(arguments)
        except ApplianceError as error:
            return error.code, str(error), None

    async def _create_topic(self, wanted: CreateTopic) -> dict[str, Any]:
        topics = self._cluster.topic_operations
        return _brief(await topics.create(wanted.name, wanted.partitions, wanted.settings))

    async def _ensure_topic(self, wanted: OneTopic) -> dict[str, Any]:
        return _brief(await self._cluster.topic_operations.ensure(wanted.name))

    async def _alter_topic(self, wanted: AlterTopic) -> dict[str, Any]:
        topics = self._cluster.topic_operations
        return _brief(await topics.alter(wanted.name, wanted.settings, wanted.partitions))

    async def _delete_topic(self, wanted: OneTopic) -> None:
        await self._cluster.topic_operations.delete(wanted.name)

    async def _topics(self, wanted: ManyTopics) -> list[dict[str, Any]]:
        names = sorted(self._cluster.topics()) if wanted.names is None else wanted.names
        topics = [self._cluster.topic_operations.get(name) for name in names]
        measured = await self._cluster.measure(
            {TopicPartition(topic.name, partition): None for topic in topics for partition in topic.partitions}
        )
        return [self._describe(topic, measured) for topic in topics]

    def _describe(self, topic: Topic, measured: Mapping[TopicPartition, Measured]) -> dict[str, Any]:
        cluster = self._cluster
        rows = []
        for partition in sorted(topic.partitions):
            key = TopicPartition(topic.name, partition)
            row = {"partition": partition, "leader": cluster.leader(topic, partition), **_extent(measured.get(key))}
            here = cluster.broker_id in topic.partitions[partition]
            state = cluster.partitions.state(*key) if here else "elsewhere"
            rows.append(row | {"state": state})
        own = cluster.settings(topic).as_kafka()
        return {"name": topic.name, "settings": own, "own": topic.settings, "partitions": rows}

    async def _init_producer(self, wanted: Nothing) -> dict[str, int]:
        return {"producer_id": self._cluster.producer_id(), "epoch": 0}

    async def _status(self, wanted: Nothing) -> dict[str, Any]:
        return await asyncio.to_thread(status.collect, Path(self._cluster.data_dir))

    # ---- groups

    async def _groups(self, wanted: Nothing) -> list[dict[str, Any]]:
        return [
            {"group": group.name, **self._standing(group), "members": len(group.members)}
            for group in await self._cluster.groups()
        ]

    async def _group(self, wanted: OneGroup) -> dict[str, Any]:
        group = await self._cluster.group(wanted.group)
        if group is None:
            raise UnknownGroup(f"there is no group {wanted.group!r}")
        positions = await self._cluster.committed(wanted.group, None)
        owners = {part: member.id for member in group.members for part in member.partitions}
        members = [
            {"id": member.id, "client": member.client_id, "host": member.host, "partitions": member.partitions}
            for member in group.members
        ]
        keys = {*positions, *owners}
        offsets = {key: positions[key].offset if key in positions else None for key in sorted(keys)}
        measured = await self._cluster.measure({key: offset or 0 for key, offset in offsets.items()})
        rows = [
            {"topic": key.topic, "partition": key.partition, "offset": offset, "owner": owners.get(key, "")}
            | _lag(measured.get(key))
            for key, offset in offsets.items()
        ]
        return {"group": group.name, **self._standing(group), "members": members, "partitions": rows}

    def _standing(self, group: RegisteredGroup) -> dict[str, str]:
        kept = self._kafka_groups().get(group.name)
        if kept is not None:
            return {"protocol": "kafka", "state": STATES[kept.state]}
        if not group.members:
            return {"protocol": "", "state": STATES[State.EMPTY]}
        return {"protocol": "native" if group.native else "kafka", "state": STATES[State.STABLE]}

    async def _offsets(self, wanted: OneGroup) -> list[list[Any]]:
        positions = await self._cluster.committed(wanted.group, None)
        return [[*key, position.offset] for key, position in sorted(positions.items())]

    async def _commit(self, wanted: CommitOffsets) -> None:
        offsets: dict[TopicPartition, Commit | None] = {}
        for topic, partition, offset in wanted.offsets:
            if offset < 0:
                raise InvalidRequest(f"offset {offset} of {topic}-{partition}: must be 0 or more")
            offsets[TopicPartition(topic, partition)] = Commit(offset)
        arguments = {"group": wanted.group, "offsets": wanted.offsets}
        if not await self._cluster.elsewhere(wanted.group, "commit", arguments, wanted.forwarded):
            for error in (await self._cluster.commit(wanted.group, offsets)).values():
                raise error

    async def _delete_offsets(self, wanted: DeleteOffsets) -> None:
        arguments = {"group": wanted.group, "partitions": wanted.partitions}
        if await self._cluster.elsewhere(wanted.group, "delete_offsets", arguments, wanted.forwarded):
            return
        if wanted.partitions is None:
            await self._cluster.forget(wanted.group)
        else:
            dropped = [TopicPartition(*key) for key in wanted.partitions]
            await self._cluster.commit(wanted.group, dict.fromkeys(dropped))


def _brief(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": len(topic.partitions)}


def _extent(measured: Measured | None) -> dict[str, int | None]:
    if measured is None:
        return dict.fromkeys(("start", "end", "bytes", "messages"))
    start, end, messages, _ = measured
    return {"start": start, "end": end, "bytes": end - start, "messages": messages}


def _lag(measured: Measured | None) -> dict[str, float | None]:
    shown: dict[str, float | None] = {"end": None if measured is None else measured.end}
    lag = (None, None, None) if measured is None or measured.lag is None else measured.lag
    return shown | dict(zip(("lag_messages", "lag_bytes", "lag_seconds"), lag, strict=True))
