"""Answers requests for metadata, the cluster, log directories, leader epochs and producers.

Metadata creates a missing topic, where that is configured, and waits for it: one round trip instead of
LEADER_NOT_AVAILABLE and a retry 100 ms later.  Topics that cannot be created now are answered LEADER_NOT_AVAILABLE, and
the client asks again.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from ..broker.metadata_answers import MetadataAnswers, cluster_operations_of, why_missing
from ..catalog import LEADER_EPOCH, Topic
from ..errors import (
    ApplianceError,
    NotLeader,
    TopicExists,
    TopicNotPermitted,
    Unavailable,
    UnknownPartition,
    UnsupportedVersion,
)
from ..names import INTERNAL_TOPICS, check_topic, is_reserved, is_topic
from ..security.acls import Operation, ResourceType
from ..wire.kafka.call import Answer, Call, Encoded, Handler
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import NO_LEADER, asked_id, operation_bits, topic_id
from ..wire.kafka.primitives import epoch_refusal
from ..wire.kafka.reply import ReplyEncoder
from .appliance import Appliance, ProducerInLog

CREATIONS_MAX: Final = 64
"""Topics that one metadata request may have made; the client asks again for the rest."""
PAGE_PARTITIONS_MAX: Final = 2_000
"""Partitions in one answer to DescribeTopicPartitions; as Kafka's max.request.partition.size.limit."""
BROKER_ENDPOINTS: Final = 1
_NO_THROTTLE: Final = bytes(4)
_PARTITION = struct.Struct(">ih")
_PRODUCER = struct.Struct(">qiiqiqx")


class ClusterApi:
    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance
        self._answers = MetadataAnswers(appliance)

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "Metadata": self._metadata,
            "DescribeCluster": self._describe_cluster,
            "DescribeTopicPartitions": self._describe_partitions,
            "DescribeLogDirs": self._describe_log_dirs,
            "OffsetForLeaderEpoch": self._end_of_epoch,
            "DescribeProducers": self._describe_producers,
        }

    # -- metadata -------------------------------------------------------------------------------------

    async def _metadata(self, call: Call) -> Answer:
        request = call.request
        names_or_ids: list[str | UUID] | None = None
        errors: dict[str, int] = {}
        made: dict[str, int] = {}
        if request.topics is not None and (call.version > 0 or request.topics):
            names_or_ids = [asked_id(topic.topic_id) if topic.name is None else topic.name for topic in request.topics]
            if self._appliance.topic_store.auto_create and (call.version < 4 or request.allow_auto_topic_creation):
                errors, made = await self._create_missing(call, names_or_ids)
        rows = [{"name": name, "error_code": code} for name, code in errors.items() if code]
        rows += [{"name": name, "error_code": 0, "created": count} for name, count in made.items()]
        if hidden := self._answers.hidden(names_or_ids, call.access):
            rows.append({"name": hidden, "error_code": Code.TOPIC_AUTHORIZATION_FAILED})
        frame = self._answers.kafka(
            call.correlation_id,
            call.version,
            call.listener,
            names_or_ids,
            errors,
            call.access,
            topic_operations=bool(request.include_topic_authorized_operations),
            cluster_operations=bool(request.include_cluster_authorized_operations),
        )
        return Encoded(frame, rows, len(self._appliance.topics()) if names_or_ids is None else len(names_or_ids))

    async def _create_missing(
        self, call: Call, names_or_ids: Sequence[str | UUID]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Create missing topics that the client may see.

        Returns:
            The codes of missing topics; the numbers of partitions of those that were created.
        """
        existing = self._appliance.topics()
        names = [
            name for name in dict.fromkeys(names_or_ids) if isinstance(name, str) and call.access.describable[name]
        ]
        missing = [name for name in names if name not in existing and is_topic(name) and not is_reserved(name)]
        refused = dict.fromkeys(missing, int(Code.TOPIC_AUTHORIZATION_FAILED))
        if not call.may(Operation.CREATE, ResourceType.CLUSTER):
            missing = [name for name in missing if call.may(Operation.CREATE, ResourceType.TOPIC, name)]
        for name in missing:
            del refused[name]
        errors: dict[str, int] = dict.fromkeys(missing[CREATIONS_MAX:], Code.LEADER_NOT_AVAILABLE)
        tried = missing[:CREATIONS_MAX]
        codes = dict(zip(tried, await asyncio.gather(*(self._create(name) for name in tried)), strict=True))
        topics = self._appliance.topics()
        made = {name: len(topics[name].partitions) for name, code in codes.items() if not code and name in topics}
        return refused | errors | codes, made

    async def _create(self, name: str) -> int:
        try:
            await self._appliance.topic_store.create(name, None, {})
        except (TopicExists, Unavailable):  # somebody else was first, or it is not the time: ask again
            return Code.LEADER_NOT_AVAILABLE
        except ApplianceError as error:
            return error.code
        return Code.NONE

    async def _describe_partitions(self, call: Call) -> Answer:
        """Metadata page by page: topics by name, from the cursor on, as many partitions as are asked for."""
        request, topics_by_name, may = call.request, self._appliance.topics(), call.access.describable
        named = {topic.name for topic in request.topics}
        names = sorted(named or (name for name in topics_by_name if may[name]))
        first, first_partition = "", 0
        if request.cursor is not None:
            first, first_partition = request.cursor.topic_name, request.cursor.partition_index
            names = [name for name in names if name >= first]
        room = min(max(request.response_partition_limit, 1), PAGE_PARTITIONS_MAX)
        topics: list[dict[str, Any]] = []
        for name in names:
            topic = topics_by_name.get(name) if may[name] else None
            if topic is None:
                error = why_missing(name) if may[name] else Code.TOPIC_AUTHORIZATION_FAILED
                topics.append({"name": name, "error_code": error})
                continue
            numbers = [number for number in sorted(topic.partitions) if name != first or number >= first_partition]
            if not room and numbers:
                return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": numbers[0]}}
            operations = operation_bits(call.access.operations(ResourceType.TOPIC, name))
            topics.append(self._described(topic, numbers[:room]) | {"topic_authorized_operations": operations})
            if len(numbers) > room:
                return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": numbers[room]}}
            room -= len(numbers)
        return {"topics": topics, "next_cursor": None}

    def _described(self, topic: Topic, numbers: list[int]) -> dict[str, Any]:
        rows = []
        for number in numbers:
            leader, replicas = self._appliance.leader(topic, number), topic.partitions[number]
            alive = leader != NO_LEADER
            rows.append(
                {
                    "error_code": Code.NONE if alive else Code.LEADER_NOT_AVAILABLE,
                    "partition_index": number,
                    "leader_id": leader,
                    "leader_epoch": LEADER_EPOCH,
                    "replica_nodes": replicas,
                    "isr_nodes": [leader] if alive else [],
                    "eligible_leader_replicas": [],
                    "last_known_elr": [],
                    "offline_replicas": [] if alive else replicas,
                }
            )
        return {
            "error_code": Code.NONE,
            "name": topic.name,
            "topic_id": topic_id(topic),
            "is_internal": topic.name in INTERNAL_TOPICS,
            "partitions": rows,
        }

    # -- brokers --------------------------------------------------------------------------------------

    async def _describe_cluster(self, call: Call) -> Answer:
        request = call.request
        if request.endpoint_type != BROKER_ENDPOINTS:
            return {
                "error_code": UnsupportedVersion.code,
                "error_message": "there are no controllers to describe: ask for brokers (endpoint type 1)",
                "cluster_id": self._appliance.cluster_id,
            }
        operations = cluster_operations_of(call.access) if request.include_cluster_authorized_operations else None
        return {
            "cluster_id": self._appliance.cluster_id,
            "controller_id": self._appliance.broker_id,
            "brokers": [
                {"broker_id": broker.id, "host": broker.host, "port": broker.port}
                for broker in self._appliance.brokers(call.listener)
            ],
            "authorized_operations": operations,
        }

    async def _describe_log_dirs(self, call: Call) -> Answer:
        requested = call.request.topics
        if requested is None:
            keys = [(name, number) for name, topic in self._appliance.topics().items() for number in topic.partitions]
        else:
            keys = [(topic.topic, number) for topic in requested for number in topic.partitions]
        topics: dict[str, list[dict[str, Any]]] = {}
        for name, number in keys:
            try:
                extent = self._appliance.extent(name, number)
            except ApplianceError:  # not stored here, or not readable now
                continue
            row = {"partition_index": number, "partition_size": extent.end - extent.start, "offset_lag": 0}
            topics.setdefault(name, []).append(row)
        total, usable = self._appliance.disk_space()
        directory = {
            "log_dir": self._appliance.data_dir,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
            "total_bytes": total,
            "usable_bytes": usable,
        }
        return {"results": [directory]}

    # -- partitions -----------------------------------------------------------------------------------

    async def _end_of_epoch(self, call: Call) -> Answer:
        return {
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": [
                        self._end_of_one(topic.topic, part)
                        if call.access.describable[topic.topic]
                        else {"partition": part.partition, "error_code": Code.TOPIC_AUTHORIZATION_FAILED}
                        for part in topic.partitions
                    ],
                }
                for topic in call.request.topics
            ]
        }

    def _end_of_one(self, name: str, part: Any) -> dict[str, Any]:
        """Where the asked epoch ends: the end of the log for ours, nothing for one that never was."""
        row: dict[str, Any] = {"partition": part.partition, "error_code": Code.NONE}
        try:
            topic = self._appliance.topics().get(name)
            if topic is None or part.partition not in topic.partitions:
                raise UnknownPartition(f"there is no partition {name}-{part.partition}")
            if self._appliance.leader(topic, part.partition) != self._appliance.broker_id:
                raise NotLeader(f"{name}-{part.partition} is stored elsewhere")
            if refusal := epoch_refusal(part.current_leader_epoch):
                return row | {"error_code": refusal}
            end = self._appliance.extent(name, part.partition).end
        except ApplianceError as error:
            return row | {"error_code": error.code}
        if part.leader_epoch > LEADER_EPOCH:
            return row
        return row | {"leader_epoch": part.leader_epoch, "end_offset": end}

    async def _describe_producers(self, call: Call) -> Answer:
        """Encoded by hand: a partition remembers thousands of producers."""
        r = ReplyEncoder(flexible=True)
        parts, refused, served = [_NO_THROTTLE, r.count(len(call.request.topics))], [], 0
        for topic in call.request.topics:
            parts += [r.string(topic.name), r.count(len(topic.partition_indexes))]
            for number in topic.partition_indexes:
                error, message, producers = await self._producers_of(call, topic.name, number)
                if error:
                    refused.append({"name": topic.name, "error_code": error})
                served += not error
                parts += [_PARTITION.pack(number, error), r.message(message), r.count(len(producers))]
                parts += [_PRODUCER.pack(*producer) for producer in producers]
                parts.append(r.tags)
            parts.append(r.tags)
        return Encoded(r.frame(call.correlation_id, [*parts, r.tags]), refused, served)

    async def _producers_of(self, call: Call, name: str, partition: int) -> tuple[int, str, Sequence[ProducerInLog]]:
        """Error, message, producers."""
        try:
            if not call.may(Operation.READ, ResourceType.TOPIC, name):
                raise TopicNotPermitted(f"not permitted on topic {name!r}")
            check_topic(name)
            topic = self._appliance.topics().get(name)
            if topic is None or partition not in topic.partitions:
                raise UnknownPartition(f"there is no partition {name}-{partition}")
            if self._appliance.leader(topic, partition) != self._appliance.broker_id:
                raise NotLeader(f"{name}-{partition} is stored elsewhere")
            return Code.NONE, "", await self._appliance.producers(name, partition)
        except ApplianceError as error:
            return error.code, str(error), ()
