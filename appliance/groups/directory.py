"""Which brokers and topics there are, as both listeners' metadata tell it.

The coordinator has a :class:`~.cluster.Directory` in its catalog and the registry, a network worker in the snapshot
that the coordinator has sent it.  The answers are made here for both, so that they are the same wherever a client asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from appliance.catalog import Topic
from appliance.errors import UnknownPartition
from appliance.names import is_topic

from .cluster import Directory
from .codes import Code
from .metadata import MetadataEncoder, Row, topic_id


def why_missing(name: str) -> Code:
    """Why there is no topic of this name."""
    return Code.UNKNOWN_TOPIC_OR_PARTITION if is_topic(name) else Code.INVALID_TOPIC_EXCEPTION


class MetadataAnswers:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._encoder = MetadataEncoder(directory.leader)

    def kafka(
        self,
        correlation_id: int,
        version: int,
        listener: str,
        wanted: Sequence[str | UUID] | None,
        errors: Mapping[str, int],
        *,
        topic_operations: bool,
        cluster_operations: bool,
    ) -> bytes:
        """The reply frame to Metadata; ``errors``: what to say about topics that do not exist, if not just that."""
        directory = self._directory
        if wanted is None:
            topics = self._encoder.all_topics(version, directory.revision, self._sorted_topics, topic_operations)
        else:
            topics = self._encoder.topics(version, self._rows(wanted, errors), topic_operations)
        return self._encoder.frame(
            correlation_id,
            version,
            directory.brokers(listener),
            directory.cluster_id,
            directory.broker_id,
            topics,
            cluster_operations,
        )

    def _rows(self, wanted: Sequence[str | UUID], errors: Mapping[str, int]) -> list[Row]:
        """Each topic that is asked for once, or an error in its place; those by name come first."""
        known = self._directory.topics()
        names = [name for name in dict.fromkeys(wanted) if isinstance(name, str)]
        ids = [one for one in dict.fromkeys(wanted) if not isinstance(one, str)]
        rows: list[Row] = [(name, known.get(name) or errors.get(name) or why_missing(name)) for name in names]
        by_id = {topic_id(topic): topic for topic in known.values()} if ids else {}
        for wanted_id in ids:
            topic = by_id.get(wanted_id)
            rows.append((topic.name, topic) if topic is not None else (wanted_id, Code.UNKNOWN_TOPIC_ID))
        return rows

    def _sorted_topics(self) -> list[Topic]:
        return [topic for _, topic in sorted(self._directory.topics().items())]

    def native(self, names: Sequence[str] | None, listener: str) -> dict[str, Any]:
        """The reply to the native protocol's metadata request."""
        directory = self._directory
        wanted = sorted(directory.topics()) if names is None else dict.fromkeys(names)
        return {
            "cluster": directory.cluster_id,
            "broker": directory.broker_id,
            "zookeeper": directory.zookeeper,
            "brokers": [list(broker) for broker in directory.brokers(listener, "native")],
            "topics": [self._native_topic(name) for name in wanted],
        }

    def _native_topic(self, name: str) -> dict[str, Any]:
        directory = self._directory
        topic = directory.topics().get(name)
        if topic is None:
            return {"name": name, "error": UnknownPartition.code, "settings": {}, "partitions": []}
        return {
            "name": name,
            "error": 0,
            "settings": directory.settings(topic).as_kafka(),
            "partitions": [[number, directory.leader(topic, number)] for number in sorted(topic.partitions)],
        }
