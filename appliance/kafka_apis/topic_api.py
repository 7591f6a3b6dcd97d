"""Creates and deletes topics, adds partitions, deletes records.  Each resource of a request gets its own error code.

There is one copy of each partition, so a replication factor is 1 (or -1, "as the broker likes").
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from ..catalog import Topic
from ..config import TopicSettings
from ..errors import (
    ApplianceError,
    InvalidRequest,
    InvalidSetting,
    NotLeader,
    OffsetOutOfRange,
    TopicNotPermitted,
    UnknownPartition,
)
from ..security.acls import Operation, ResourceType
from ..wire.kafka.call import Answer, Call, Encoded, Handler
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import NO_ID, asked_id, topic_id
from .appliance import Appliance
from .settings_reply import HIDDEN, Created, encode_created, encode_new_topic

Name = TypeVar("Name", str, "str | UUID")
T = TypeVar("T")
CONCURRENT_MAX: Final = 32
AS_CONFIGURED: Final = -1
TO_THE_END: Final = -1
REPLICATION_FACTOR: Final = 1


class _Refused(ApplianceError):
    """An error with a code that only Kafka's API has."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.refusal = code


def _code_of(error: ApplianceError) -> int:
    return error.refusal if isinstance(error, _Refused) else error.code


def _not_permitted(topic: str) -> TopicNotPermitted:
    return TopicNotPermitted(f"not permitted on topic {topic!r}")


class TopicApi:
    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "CreateTopics": self._create,
            "DeleteTopics": self._delete,
            "CreatePartitions": self._grow,
            "DeleteRecords": self._delete_records,
        }

    # -- topics ---------------------------------------------------------------------------------------

    async def _create(self, call: Call) -> Answer:
        counts = Counter(topic.name for topic in call.request.topics)
        topics = {topic.name: topic for topic in call.request.topics}
        of_all = call.may(Operation.CREATE, ResourceType.CLUSTER)
        made_partitions: dict[str, int] = {}

        async def create(name: str) -> Created:
            try:
                if counts[name] > 1:
                    raise InvalidRequest(f"topic {name!r} is asked for {counts[name]} times in one request")
                if not (of_all or call.may(Operation.CREATE, ResourceType.TOPIC, name)):
                    raise _not_permitted(name)
                made = await self._create_one(topics[name], call.request.validate_only)
                made_partitions[name] = made.partitions
                shown = call.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name)
                return made if shown else made._replace(partitions=-1, replicas=-1, settings=HIDDEN)
            except ApplianceError as error:
                return Created(name, _code_of(error), str(error))

        created = await _side_by_side(create, list(topics))
        rows = [
            {"name": outcome.name, "error_code": outcome.error, "created": made_partitions.get(outcome.name)}
            for outcome in created
        ]
        return Encoded(
            encode_created(call.correlation_id, call.version, created),
            rows,
            sum(not outcome.error for outcome in created),
        )

    async def _create_one(self, new_topic: Any, validate_only: bool) -> Created:
        cluster = self._appliance
        count = None if new_topic.num_partitions == AS_CONFIGURED else new_topic.num_partitions
        if new_topic.assignments:
            count = self._check_assignments(new_topic)
        if new_topic.replication_factor not in (AS_CONFIGURED, REPLICATION_FACTOR):
            raise _Refused(
                Code.INVALID_REPLICATION_FACTOR,
                f"replication factor {new_topic.replication_factor}: each partition is stored once; ask for 1 or -1",
            )
        settings = _settings(new_topic.configs)
        base = cluster.topic_store.defaults.settings_of(new_topic.name)
        if validate_only:
            cluster.topic_store.check_creation(new_topic.name, count, settings)
            topic = Topic(new_topic.name, settings=TopicSettings.texts(settings, base))
            partitions, made_id = count or cluster.config.partitions_of(new_topic.name), NO_ID
        else:
            await cluster.topic_store.create(new_topic.name, count, settings)
            topic = self._topic(new_topic.name)
            partitions, made_id = len(topic.partitions), topic_id(topic)
        own = tuple(sorted(topic.settings.items()))
        return Created(
            new_topic.name,
            partitions=partitions,
            replicas=REPLICATION_FACTOR,
            id=made_id,
            settings=encode_new_topic(own, base),
        )

    def _check_assignments(self, new_topic: Any) -> int:
        """A manual assignment is fine as long as it says what we do: partitions from 0 on, each on this
        broker.
        """
        if new_topic.num_partitions != AS_CONFIGURED or new_topic.replication_factor != AS_CONFIGURED:
            raise InvalidRequest("give either replica assignments or numbers of partitions and replicas, not both")
        numbers = sorted(assignment.partition_index for assignment in new_topic.assignments)
        if numbers != list(range(len(numbers))):
            raise _Refused(Code.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps")
        self._check_brokers(assignment.broker_ids for assignment in new_topic.assignments)
        return len(numbers)

    def _check_brokers(self, assignments: Any) -> None:
        here = self._appliance.broker_id
        if any(list(broker_ids) != [here] for broker_ids in assignments):
            raise _Refused(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"each partition is stored once, on the broker that is asked: assign them to [{here}]",
            )

    async def _delete(self, call: Call) -> Answer:
        names: list[str | UUID] = list(call.request.topic_names or ())
        twofold = set()
        if call.version >= 6:
            names = [asked_id(topic.topic_id) if topic.name is None else topic.name for topic in call.request.topics]
            twofold = {topic.name for topic in call.request.topics if topic.name is not None and topic.topic_id}
        counts = Counter(names)
        by_id: dict[UUID, str] = {}
        if any(isinstance(name, UUID) for name in names):
            by_id = {topic_id(topic): topic.name for topic in self._appliance.topics().values()}

        async def delete(name_or_id: str | UUID) -> dict[str, Any]:
            name = by_id.get(name_or_id) if isinstance(name_or_id, UUID) else name_or_id
            row = {"name": name, "topic_id": name_or_id if isinstance(name_or_id, UUID) else NO_ID}
            if counts[name_or_id] > 1 or name_or_id in twofold:
                message = f"{name_or_id} is given twice, or by name and by id, in one request"
                return row | {"error_code": Code.INVALID_REQUEST, "error_message": message}
            if name is None:
                return row | {
                    "error_code": Code.UNKNOWN_TOPIC_ID,
                    "error_message": f"there is no topic of id {name_or_id}",
                }
            if not call.may(Operation.DELETE, ResourceType.TOPIC, name):
                named = name if name_or_id == name or call.access.describable[name] else None
                return row | {"name": named, "error_code": Code.TOPIC_AUTHORIZATION_FAILED}
            try:
                await self._appliance.delete_topic(name)
            except ApplianceError as error:
                return row | {"error_code": error.code, "error_message": str(error)}
            return row | {"error_code": Code.NONE}

        return {"responses": await _side_by_side(delete, list(dict.fromkeys(names)))}

    async def _grow(self, call: Call) -> Answer:
        rows = []
        counts = Counter(topic.name for topic in call.request.topics)
        for topic in {topic.name: topic for topic in call.request.topics}.values():
            row: dict[str, Any] = {"name": topic.name, "error_code": Code.NONE, "error_message": None}
            try:
                if counts[topic.name] > 1:
                    raise InvalidRequest(f"topic {topic.name!r} is asked for {counts[topic.name]} times in one request")
                if not call.may(Operation.ALTER, ResourceType.TOPIC, topic.name):
                    raise _not_permitted(topic.name)
                present = len(self._topic(topic.name).partitions)
                if topic.count <= present:
                    raise _Refused(
                        Code.INVALID_PARTITIONS,
                        f"topic {topic.name!r} has {present} partitions; {topic.count} is no increase",
                    )
                if topic.assignments is not None:
                    assigned, new = len(topic.assignments), topic.count - present
                    if assigned != new:
                        message = f"{new} new partitions need as many assignments, not {assigned}"
                        raise _Refused(Code.INVALID_REPLICA_ASSIGNMENT, message)
                    self._check_brokers(assignment.broker_ids for assignment in topic.assignments)
                if not call.request.validate_only:
                    await self._appliance.topic_store.alter(topic.name, {}, topic.count)
            except ApplianceError as error:
                row |= {"error_code": _code_of(error), "error_message": str(error)}
            rows.append(row)
        return {"results": rows}

    def _topic(self, name: str) -> Topic:
        topic = self._appliance.topics().get(name)
        if topic is None:
            raise UnknownPartition(f"there is no topic {name!r}")
        return topic

    # -- records --------------------------------------------------------------------------------------

    async def _delete_records(self, call: Call) -> Answer:
        topics = []
        for topic in call.request.topics:
            partitions = []
            for part in topic.partitions:
                row = {"partition_index": part.partition_index, "low_watermark": -1, "error_code": Code.NONE}
                try:
                    if not call.may(Operation.DELETE, ResourceType.TOPIC, topic.name):
                        raise _not_permitted(topic.name)
                    row["low_watermark"] = await self._delete_before(topic.name, part.partition_index, part.offset)
                except ApplianceError as error:
                    row["error_code"] = error.code
                partitions.append(row)
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    async def _delete_before(self, name: str, partition: int, offset: int) -> int:
        topic = self._topic(name)
        if partition not in topic.partitions:
            raise UnknownPartition(f"there is no partition {name}-{partition}")
        if self._appliance.leader(topic, partition) != self._appliance.broker_id:
            raise NotLeader(f"{name}-{partition} is stored elsewhere")
        extent = self._appliance.extent(name, partition)
        if offset == TO_THE_END:
            offset = extent.end
        if not 0 <= offset <= extent.end:
            raise OffsetOutOfRange(f"offset {offset} is outside 0 to {extent.end}")
        return await self._appliance.delete_records(name, partition, max(offset, extent.start))


async def _side_by_side(work: Callable[[Name], Awaitable[T]], names: list[Name]) -> list[T]:
    """The rows of all names, in their order; CONCURRENT_MAX are under way at a time."""
    rows: list[T] = []
    for start in range(0, len(names), CONCURRENT_MAX):
        rows += await asyncio.gather(*map(work, names[start : start + CONCURRENT_MAX]))
    return rows


def _settings(configs: Sequence[Any]) -> dict[str, str]:
    values: dict[str, str] = {}
    for config in configs:
        if config.value is None:
            raise InvalidSetting(f"{config.name}: a value is missing; leave the setting out to get its default")
        if config.name in values:
            raise InvalidRequest(f"{config.name} is given twice")
        values[config.name] = config.value
    return values
