"""The native door's cold requests: metadata and the admin verbs.  Frames in, frames out; :mod:`.topics` does
it.

``wire/native.py`` specifies the frames.  The verbs, their arguments and results (JSON-like):

    create_topic   {name, partitions?, settings?}          {name, partitions}
    ensure_topic   {name}                                  {name, partitions}; makes it where auto_create is
    on alter_topic    {name, settings?, partitions?}          {name, partitions}; a setting of nil is taken
    back delete_topic   {name}                                  nil topics         {names?}
    [{name, settings, own, partitions: [...]}] init_producer  {}
    {producer_id, epoch}

A topic's ``settings`` are those in force, ``own`` those that were set for it.  A partition is {partition,
leader, start, end, bytes, messages, state}; what only its leader knows is nil elsewhere.

Errors: any :class:`ApplianceError` is answered with its code and message; a frame of the wrong shape is a
:class:`ProtocolFault` and closes the connection; wrong arguments are an :class:`InvalidRequest`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from ..catalog import Topic
from ..errors import (
    ApplianceError,
    InvalidRequest,
    ProtocolFault,
    StorageFault,
    Unavailable,
    UnknownPartition,
)
from ..wire import native
from .cluster import Cluster
from .topics import DEFAULT_PARTITIONS

NAMES_MAX = 10_000
Names = list[str]


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partitions: int = DEFAULT_PARTITIONS
    settings: dict[str, str | int] = {}


class AlterTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    settings: dict[str, str | int | None] = {}
    partitions: int | None = None


class OneTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class ManyTopics(msgspec.Struct, forbid_unknown_fields=True):
    names: Names | None = None


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
            if names is not None and not (
                isinstance(names, list) and all(type(name) is str for name in names)
            ):
                raise ProtocolFault("metadata takes an array of names, or nil for all topics")
            return native.encode_frame([correlation_id, 0, self._metadata(names, listener)])
        if api == native.ADMIN and len(rest) == 2:
            code, message, result = await self._admin(*rest)
            return native.encode_frame([correlation_id, code, message, result])
        raise ProtocolFault(f"api {api} with {len(rest)} fields is not a request of this protocol")

    # ---- metadata

    def _metadata(self, names: Names | None, listener: str) -> dict[str, Any]:
        cluster = self._cluster
        wanted = (
            sorted(cluster.topics.catalog.topics) if names is None else list(dict.fromkeys(names))[:NAMES_MAX]
        )
        return {
            "cluster": cluster.id,
            "broker": cluster.broker_id,
            "zookeeper": cluster.zookeeper_connect,
            "brokers": [list(broker) for broker in cluster.brokers("native", listener)],
            "topics": [self._topic_metadata(name) for name in wanted],
        }

    def _topic_metadata(self, name: str) -> dict[str, Any]:
        topics = self._cluster.topics
        topic = topics.catalog.topics.get(name)
        if topic is None:
            return {"name": name, "error": UnknownPartition.code, "settings": {}, "partitions": []}
        partitions = [
            [partition, self._cluster.leader(topic, partition)] for partition in sorted(topic.partitions)
        ]
        return {
            "name": name,
            "error": 0,
            "settings": topics.settings(name).as_kafka(),
            "partitions": partitions,
        }

    # ---- admin

    async def _admin(self, name: Any, given: Any) -> tuple[int, str, Any]:
        try:
            verb = self._verbs.get(name) if isinstance(name, str) else None
            if verb is None:
                raise InvalidRequest(
                    f"unknown admin verb {name!r}: use one of {', '.join(sorted(self._verbs))}"
                )
            try:
                arguments = msgspec.convert(given, verb.arguments)
            except msgspec.ValidationError as error:
                raise InvalidRequest(f"{name}: {error}") from None
            return 0, "", await verb.run(arguments)
        except ApplianceError as error:
            return error.code, str(error), None

    async def _create_topic(self, wanted: CreateTopic) -> dict[str, Any]:
        return _brief(await self._cluster.topics.create(wanted.name, wanted.partitions, wanted.settings))

    async def _ensure_topic(self, wanted: OneTopic) -> dict[str, Any]:
        return _brief(await self._cluster.topics.ensure(wanted.name))

    async def _alter_topic(self, wanted: AlterTopic) -> dict[str, Any]:
        return _brief(await self._cluster.topics.alter(wanted.name, wanted.settings, wanted.partitions))

    async def _delete_topic(self, wanted: OneTopic) -> None:
        await self._cluster.topics.delete(wanted.name)

    async def _topics(self, wanted: ManyTopics) -> list[dict[str, Any]]:
        topics = self._cluster.topics
        names = sorted(topics.catalog.topics) if wanted.names is None else wanted.names[:NAMES_MAX]
        return [self._describe(topics.get(name)) for name in names]

    def _describe(self, topic: Topic) -> dict[str, Any]:
        return {
            "name": topic.name,
            "settings": self._cluster.topics.settings(topic.name).as_kafka(),
            "own": topic.settings,
            "partitions": [
                self._describe_partition(topic, partition) for partition in sorted(topic.partitions)
            ],
        }

    def _describe_partition(self, topic: Topic, partition: int) -> dict[str, Any]:
        leader = self._cluster.leader(topic, partition)
        row: dict[str, Any] = {
            "partition": partition,
            "leader": leader,
            "start": None,
            "end": None,
            "bytes": None,
            "messages": None,
        }
        partitions = self._cluster.partitions
        if (topic.name, partition) not in partitions:
            return row | {"state": "elsewhere" if leader != self._cluster.broker_id else "opening"}
        row["state"] = partitions.state(topic.name, partition)
        try:
            view = partitions.table(topic.name, partition).view()
            row |= {"start": view.start, "end": view.end, "bytes": view.end - view.start}
            row["messages"] = self._cluster.messages(topic.name, partition, view)
        except (Unavailable, StorageFault):  # being opened, or offline: the state says so
            pass
        return row

    async def _init_producer(self, wanted: Nothing) -> dict[str, int]:
        return {"producer_id": self._cluster.producer_ids.take(), "epoch": 0}


def _brief(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": len(topic.partitions)}
