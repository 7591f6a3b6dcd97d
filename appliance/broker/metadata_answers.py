"""Answers metadata requests of both listeners.

The coordinator's :class:`Directory` is its catalog and the registry.  A network worker's is the snapshot that the
coordinator has sent it.  Both make their answers here, so that all clients get the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from ..addresses import Listener
from ..catalog import Topic
from ..config import TopicSettings
from ..errors import TopicNotPermitted, UnknownPartition
from ..names import is_topic
from ..security.acls import Access, Operation, ResourceType
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import Broker, MetadataEncoder, MetadataRow, Operations, topic_id


class Directory(Protocol):
    """The brokers and topics of the cluster."""

    @property
    def broker_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def zookeeper(self) -> str:
        """The ensemble that members of native groups use; "" without one."""

    @property
    def revision(self) -> int:
        """Changes with every change of ``topics()`` and of a leader, so that encoded topics can be cached by it."""

    def brokers(self, listener: Listener) -> Sequence[Broker]:
        """Live brokers that have a listener of this protocol and security, by id; always includes this one.

        ``listener`` has the address that the client connected to.  A client of one network does not get an address of
        another, unless an advertised address is configured.
        """

    def topics(self) -> Mapping[str, Topic]: ...

    def leader(self, topic: Topic, partition: int) -> int:
        """The live broker that serves a partition; NO_LEADER without one."""

    def settings(self, topic: Topic) -> TopicSettings:
        """The settings of a topic: its own ones over the defaults."""


def why_missing(name: str) -> Code:
    """The error for a name that no topic has."""
    return Code.UNKNOWN_TOPIC_OR_PARTITION if is_topic(name) else Code.INVALID_TOPIC_EXCEPTION


def cluster_operations_of(access: Access) -> frozenset[int]:
    """The operations on the cluster that a client may do, and be told."""
    may = access.may(Operation.DESCRIBE, ResourceType.CLUSTER)
    return access.operations(ResourceType.CLUSTER) if may else frozenset()


class MetadataAnswers:
    """Makes replies from the current state of ``directory``."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._encoder = MetadataEncoder(directory.leader)

    def kafka(
        self,
        correlation_id: int,
        version: int,
        listener: Listener,
        names_or_ids: Sequence[str | UUID] | None,
        errors: Mapping[str, int],
        access: Access,
        *,
        topic_operations: bool,
        cluster_operations: bool,
    ) -> bytes:
        """The reply frame to Metadata.

        Args:
            errors: errors of missing topics, by name, instead of the usual one.
            access: what the client may do.  It sees the topics that it may describe.
        """
        directory = self._directory
        operations: Operations | None = None
        if topic_operations:
            operations = functools.partial(access.operations, ResourceType.TOPIC)
        if names_or_ids is not None:
            topics = self._encoder.topics(version, self._rows(names_or_ids, errors, access), operations)
        elif access.unrestricted:
            topics = self._encoder.all_topics(version, directory.revision, self._sorted_topics, operations)
        else:
            shown: list[MetadataRow] = [
                (topic.name, topic) for topic in self._sorted_topics() if access.describable[topic.name]
            ]
            topics = self._encoder.topics(version, shown, operations)
        return self._encoder.frame(
            correlation_id,
            version,
            directory.brokers(listener),
            directory.cluster_id,
            directory.broker_id,
            topics,
            cluster_operations_of(access) if cluster_operations else None,
        )

    def _rows(self, names_or_ids: Sequence[str | UUID], errors: Mapping[str, int], access: Access) -> list[MetadataRow]:
        """Each requested topic once, or its error; topics by name come first."""
        topics = self._directory.topics()
        names = [name for name in dict.fromkeys(names_or_ids) if isinstance(name, str)]
        ids = [id_ for id_ in dict.fromkeys(names_or_ids) if not isinstance(id_, str)]
        hidden = Code.TOPIC_AUTHORIZATION_FAILED
        rows: list[MetadataRow] = [
            (name, (topics.get(name) or errors.get(name) or why_missing(name)) if access.describable[name] else hidden)
            for name in names
        ]
        by_id = {topic_id(topic): topic for topic in topics.values()} if ids else {}
        for wanted_id in ids:
            topic = by_id.get(wanted_id)
            if topic is None:
                rows.append((wanted_id, Code.UNKNOWN_TOPIC_ID))
            else:
                rows.append((topic.name, topic) if access.describable[topic.name] else (wanted_id, hidden))
        return rows

    def hidden(self, names_or_ids: Sequence[str | UUID] | None, access: Access) -> str:
        """The first topic of a request, by its name or id, that is refused; "" when none is."""
        if access.unrestricted or names_or_ids is None:
            return ""
        refused = (
            name for name, topic in self._rows(names_or_ids, {}, access) if topic is Code.TOPIC_AUTHORIZATION_FAILED
        )
        return str(next(refused, ""))

    def _sorted_topics(self) -> list[Topic]:
        return [topic for _, topic in sorted(self._directory.topics().items())]

    def native(self, names: Sequence[str] | None, listener: Listener, access: Access) -> dict[str, Any]:
        """The reply to the native protocol's metadata request."""
        directory = self._directory
        may = access.describable
        shown = dict.fromkeys(names or ())
        if names is None:
            shown = dict.fromkeys(name for name in sorted(directory.topics()) if may[name])
        return {
            "cluster": directory.cluster_id,
            "broker": directory.broker_id,
            "zookeeper": directory.zookeeper,
            "brokers": [list(broker) for broker in directory.brokers(listener)],
            "topics": [self._native_topic(name, may[name]) for name in shown],
        }

    def _native_topic(self, name: str, permitted: bool) -> dict[str, Any]:
        directory = self._directory
        topic = directory.topics().get(name)
        if topic is None or not permitted:
            error = UnknownPartition.code if permitted else TopicNotPermitted.code
            return {"name": name, "error": error, "id": "", "settings": {}, "partitions": []}
        return {
            "name": name,
            "error": 0,
            "id": topic.id,
            "settings": directory.settings(topic).as_kafka(),
            "partitions": [[number, directory.leader(topic, number)] for number in sorted(topic.partitions)],
        }
