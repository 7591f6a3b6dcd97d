"""The native door's cold requests: metadata and the admin verbs.  Frames in, frames out; :mod:`.topics` does
it.

``wire/native.py`` specifies the frames.  The verbs, their arguments and results (JSON-like):

    create_topic    {name, partitions?, settings?}        {name, partitions}
    ensure_topic    {name}                                {name, partitions}; made where auto_create is on
    alter_topic     {name, settings?, partitions?}        {name, partitions}; a setting of nil is taken back
    delete_topic    {name}                                nil
    topics          {names?}                              [{name, settings, own, partitions: [...]}]
    init_producer   {}                                    {producer_id, epoch}
    status          {}                                    see :mod:`appliance.status`
    groups          {}                                    [{group, protocol, state, members: how many}]
    group           {group}                               {group, protocol, state, members: [...], partitions:
    [...]} offsets         {group}                               [[topic, partition, offset]] commit
    {group, offsets: [[topic, partition, offset]]}   nil, or what was refused as an error delete_offsets
    {group, partitions?: [[topic, partition]]}       nil; without partitions the whole group goes

A topic's ``settings`` are those in force, ``own`` those that were set for it.  A partition is {partition,
leader, start, end, bytes, messages, state}; what only its leader knows is nil elsewhere.

A group's ``protocol`` is that of its members, native or kafka, "" without any; its ``state`` is stable or
empty. A member is {id, client, host, partitions: [[topic, partition]]}; a partition of a group {topic,
partition, offset, end, lag_messages, lag_bytes, lag_seconds, owner}, with nil for what only the partition's
leader knows.

Errors: any :class:`ApplianceError` is answered with its code and message; a frame of the wrong shape is a
:class:`ProtocolFault` and closes the connection; wrong arguments are an :class:`InvalidRequest`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .. import status
from ..catalog import Topic
from ..errors import (
    ApplianceError,
    InvalidRequest,
    ProtocolFault,
    StorageFault,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
)
from ..groups.cluster import Commit, RegisteredGroup
from ..wire import native
from .cluster import Cluster
from .partitions import Key

NAMES_MAX = 10_000
Names = list[str]


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partitions: int | None = None
    settings: dict[str, str | int] = {}


class AlterTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    settings: dict[str, str | int | None] = {}
    partitions: int | None = None


class OneTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class ManyTopics(msgspec.Struct, forbid_unknown_fields=True):
    names: Names | None = None


class OneGroup(msgspec.Struct, forbid_unknown_fields=True):
    group: str


class CommitOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: str
    offsets: list[tuple[str, int, int]]


class DeleteOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: str
    partitions: list[tuple[str, int]] | None = None


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Verb(NamedTuple):
    arguments: type[msgspec.Struct]
    run: Callable[[Any], Awaitable[Any]]


class NativeDoor:
    """One for all connections; requests run side by side."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
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
        header, _ = native.decode_header(memoryview(frame))
        api, correlation_id, *rest = header
        if api == native.METADATA and len(rest) == 1:
            names = rest[0]
            if names is not None and not _are_names(names):
                raise ProtocolFault("metadata takes an array of names, or nil for all topics")
            return native.encode_frame([correlation_id, 0, self._metadata(names, listener)])
        if api == native.ADMIN and len(rest) == 2:
            code, message, result = await self._admin(*rest)
            return native.encode_frame([correlation_id, code, message, result])
        raise ProtocolFault(f"api {api} with {len(rest)} fields is not a request of this protocol")

    # ---- metadata

    def _metadata(self, names: Names | None, listener: str) -> dict[str, Any]:
        cluster = self._cluster
        wanted = sorted(cluster.topics()) if names is None else dict.fromkeys(names[:NAMES_MAX])
        return {
            "cluster": cluster.cluster_id,
            "broker": cluster.broker_id,
            "zookeeper": cluster.registry.connect_string,
            "brokers": [list(broker) for broker in cluster.brokers(listener, "native")],
            "topics": [self._topic_metadata(name) for name in wanted],
        }

    def _topic_metadata(self, name: str) -> dict[str, Any]:
        cluster = self._cluster
        topic = cluster.topics().get(name)
        if topic is None:
            return {"name": name, "error": UnknownPartition.code, "settings": {}, "partitions": []}
        return {
            "name": name,
            "error": 0,
            "settings": cluster.settings(topic).as_kafka(),
            "partitions": [[number, cluster.leader(topic, number)] for number in sorted(topic.partitions)],
        }

    # ---- admin

    async def _admin(self, name: Any, given: Any) -> tuple[int, str, Any]:
        try:
            verb = self._verbs.get(name) if isinstance(name, str) else None
            if verb is None:
                known = ", ".join(sorted(self._verbs))
                raise InvalidRequest(f"unknown admin verb {name!r:.100}: use one of {known}")
            try:
                arguments = msgspec.convert(given, verb.arguments)
            except msgspec.ValidationError as error:
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
        names = sorted(self._cluster.topics()) if wanted.names is None else wanted.names[:NAMES_MAX]
        described = []
        for name in names:
            described.append(self._describe(self._cluster.topic_operations.get(name)))
            await asyncio.sleep(0)  # thousands of partitions may have to be looked at
        return described

    def _describe(self, topic: Topic) -> dict[str, Any]:
        return {
            "name": topic.name,
            "settings": self._cluster.settings(topic).as_kafka(),
            "own": topic.settings,
            "partitions": [self._describe_partition(topic, number) for number in sorted(topic.partitions)],
        }

    def _describe_partition(self, topic: Topic, partition: int) -> dict[str, Any]:
        cluster, key = self._cluster, (topic.name, partition)
        row: dict[str, Any] = {"partition": partition, "leader": cluster.leader(topic, partition)}
        row |= dict.fromkeys(("start", "end", "bytes", "messages"))
        if cluster.broker_id not in topic.partitions[partition]:
            return row | {"state": "elsewhere"}
        row["state"] = cluster.partitions.state(*key)
        try:
            view = cluster.partitions.table(*key).view()
            row |= {"start": view.start, "end": view.end, "bytes": view.end - view.start}
            row["messages"] = cluster.messages(*key)
        except (UnknownPartition, Unavailable, StorageFault):  # being opened, or offline: the state says so
            pass
        return row

    async def _init_producer(self, wanted: Nothing) -> dict[str, int]:
        return {"producer_id": self._cluster.producer_id(), "epoch": 0}

    async def _status(self, wanted: Nothing) -> dict[str, Any]:
        return await asyncio.to_thread(status.collect, Path(self._cluster.data_dir))

    # ---- groups

    async def _groups(self, wanted: Nothing) -> list[dict[str, Any]]:
        return [
            {"group": group.name, **_standing(group), "members": len(group.members)}
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
        rows = [self._position(key, positions.get(key), owners.get(key, "")) for key in {*positions, *owners}]
        rows.sort(key=lambda row: (row["topic"], row["partition"]))
        return {"group": group.name, **_standing(group), "members": members, "partitions": rows}

    def _position(self, key: Key, position: Commit | None, owner: str) -> dict[str, Any]:
        row: dict[str, Any] = {"topic": key[0], "partition": key[1], "owner": owner}
        row["offset"] = None if position is None else position.offset
        row |= dict.fromkeys(("end", "lag_messages", "lag_bytes", "lag_seconds"))
        try:
            start, row["end"] = self._cluster.extent(*key)
            lag = self._cluster.lag(*key, start if position is None else position.offset)
            row |= {"lag_messages": lag.messages, "lag_bytes": lag.bytes, "lag_seconds": lag.seconds}
        except (UnknownPartition, Unavailable, StorageFault):  # stored elsewhere, or not readable now
            pass
        return row

    async def _offsets(self, wanted: OneGroup) -> list[list[Any]]:
        positions = await self._cluster.committed(wanted.group, None)
        return [[*key, position.offset] for key, position in sorted(positions.items())]

    async def _commit(self, wanted: CommitOffsets) -> None:
        offsets = {}
        for topic, partition, offset in wanted.offsets:
            if offset < 0:
                raise InvalidRequest(f"offset {offset} of {topic}-{partition}: must be 0 or more")
            offsets[topic, partition] = Commit(offset)
        for error in (await self._cluster.commit(wanted.group, offsets)).values():
            raise error

    async def _delete_offsets(self, wanted: DeleteOffsets) -> None:
        await self._cluster.forget(wanted.group, wanted.partitions)


def _brief(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": len(topic.partitions)}


def _standing(group: RegisteredGroup) -> dict[str, str]:
    if not group.members:
        return {"protocol": "", "state": "empty"}
    return {"protocol": "native" if group.native else "kafka", "state": "stable"}


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(type(name) is str for name in names)
