"""The error codes of the Kafka listener: API x condition, the same at Apache Kafka 4.4.

Clients decide by the code whether they retry, look for another broker, or fail for good.  So a code that Kafka does not
answer in a case may leave a client waiting, or end it.  A row is a request and all codes of its reply, 0 among them.
``{topic}`` has two partitions and messages, ``{live}`` is a group whose ``{member}`` reads it; others do not exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from appliance.records.encode import encode_values
from appliance.wire.kafka.codes import Code

from ..rules.test_api_rights_matrix import codes
from ..support.kafka_peer import KafkaPeer
from ..support.server import wait_for
from .conftest import Broker
from .test_as_kafka import create, find, join, kafka, produce

__all__ = ["kafka"]  # a fixture

BATCH: Final = encode_values([b"v"], 1_000)
DAMAGED: Final = BATCH[:20] + bytes([BATCH[20] ^ 1]) + BATCH[21:]
BEYOND: Final = 10**9
OFFER: Final = [{"name": "range", "metadata": bytes(10)}]
Row = tuple[str, int, dict[str, Any], set[int]]


def to_produce(*wanted: int, topic: str = "{topic}", index: int = 0, records: bytes = BATCH, acks: int = -1) -> Row:
    part = {"name": topic, "partition_data": [{"index": index, "records": records}]}
    return "Produce", 8, {"acks": acks, "timeout_ms": 5_000, "topic_data": [part]}, set(wanted)


def to_fetch(*wanted: int, topic: str = "{topic}", partition: int = 0, offset: int = 0, epoch: int = -1) -> Row:
    part = {"partition": partition, "current_leader_epoch": epoch, "fetch_offset": offset, "partition_max_bytes": 1_000}
    values = {"replica_id": -1, "max_wait_ms": 1, "max_bytes": 1_000, "session_id": 0, "session_epoch": -1}
    return "Fetch", 11, {**values, "topics": [{"topic": topic, "partitions": [part]}]}, {0, *wanted}


def to_look_up(*wanted: int, topic: str = "{topic}", partition: int = 0, at: int = -1, epoch: int = -1) -> Row:
    part = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": at}
    return "ListOffsets", 5, {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]}, set(wanted)


def to_describe(*wanted: int, topic: str, creates: bool = False) -> Row:
    return "Metadata", 8, {"topics": [{"name": topic}], "allow_auto_topic_creation": creates}, {0, *wanted}


def to_commit(
    *wanted: int,
    group: str = "{group}",
    topic: str = "{topic}",
    partition: int = 0,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    note: str = "",
) -> Row:
    part = {"partition_index": partition, "committed_offset": 1, "committed_metadata": note}
    values = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member}
    row = {"name": topic, "partitions": [part]}
    return "OffsetCommit", 7, {**values, "group_instance_id": instance, "topics": [row]}, set(wanted)


def to_join(*wanted: int, **values: Any) -> Row:
    times = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
    name = {"group_id": "{group}", "member_id": "", "group_instance_id": None}
    return "JoinGroup", 5, {**times, **name, "protocol_type": "consumer", "protocols": OFFER, **values}, set(wanted)


def as_member(api: str, *wanted: int, group: str, generation: int = 1, member: str = "m", instance: Any = None) -> Row:
    values = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": instance}
    more = {"assignments": []} if api == "SyncGroup" else {}
    return api, 3, {**values, **more}, set(wanted)


def to_leave(*wanted: int, group: str, member: str = "m", instance: str | None = None) -> Row:
    return (
        "LeaveGroup",
        3,
        {"group_id": group, "members": [{"member_id": member, "group_instance_id": instance}]},
        {
            0,
            *wanted,
        },
    )


def to_create(*wanted: int, name: str = "{new}", partitions: int = 1, replicas: int = 1, **more: Any) -> Row:
    row = {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}
    return "CreateTopics", 4, {"topics": [row], "timeout_ms": 5_000, "validate_only": True}, set(wanted)


def to_add(*wanted: int, topic: str, count: int) -> Row:
    row = {"name": topic, "count": count, "assignments": None}
    return "CreatePartitions", 1, {"topics": [row], "timeout_ms": 5_000, "validate_only": True}, set(wanted)


def to_trim(*wanted: int, topic: str = "{topic}", partition: int = 0, offset: int = 0) -> Row:
    row = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
    return "DeleteRecords", 1, {"topics": [row], "timeout_ms": 5_000}, set(wanted)


def to_alter(
    *wanted: int, name: str, value: str | None, operation: int = 0, topic: str = "{topic}", times: int = 1
) -> Row:
    configs = [{"name": name, "config_operation": operation, "value": value}] * times
    row = {"resource_type": 2, "resource_name": topic, "configs": configs}
    return "IncrementalAlterConfigs", 1, {"resources": [row], "validate_only": True}, set(wanted)


def to_show(*wanted: int, kind: int, name: str) -> Row:
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return "DescribeConfigs", 3, {"resources": [row]}, set(wanted)


ROWS: Final[dict[str, Row]] = {
    "produce": to_produce(0),
    "produce: no such topic": to_produce(3, topic="none"),
    "produce: no such partition": to_produce(3, index=7),
    "produce: a negative partition": to_produce(3, index=-1),
    "produce: a name that is none": to_produce(3, topic="a/b"),
    "produce: acks=2": to_produce(21, acks=2),
    "produce: a damaged batch": to_produce(2, records=DAMAGED),
    "produce: no batch": to_produce(87, records=b""),
    "produce: too large": to_produce(10, records=encode_values([bytes(1_100_000)], 1_000)),
    "fetch": to_fetch(),
    "fetch: no such topic": to_fetch(3, topic="none"),
    "fetch: no such partition": to_fetch(3, partition=7),
    "fetch: beyond the end": to_fetch(1, offset=BEYOND),
    "fetch: a negative offset": to_fetch(1, offset=-1),
    "fetch: a newer epoch": to_fetch(Code.UNKNOWN_LEADER_EPOCH, epoch=99),
    "offsets: no such topic": to_look_up(3, topic="none"),
    "offsets: no such partition": to_look_up(3, partition=7),
    "offsets: a newer epoch": to_look_up(Code.UNKNOWN_LEADER_EPOCH, epoch=99),
    "offsets: in the future": to_look_up(0, at=2**60),
    "metadata: no such topic": to_describe(3, topic="none"),
    "metadata: a name that is none": to_describe(Code.INVALID_TOPIC_EXCEPTION, topic="a/b"),
    "metadata: to be made, a name that is none": to_describe(Code.INVALID_TOPIC_EXCEPTION, topic="a/b", creates=True),
    "commit: no such topic": to_commit(3, topic="none"),
    "commit: no such partition": to_commit(3, partition=9),
    "commit: a long note": to_commit(Code.OFFSET_METADATA_TOO_LARGE, note="x" * 5_000),
    "commit: while there are members": to_commit(Code.UNKNOWN_MEMBER_ID, group="{live}"),
    "commit: as a stranger": to_commit(Code.UNKNOWN_MEMBER_ID, group="{live}", generation=1, member="m"),
    "commit: another generation": to_commit(Code.ILLEGAL_GENERATION, group="{live}", generation=9, member="{member}"),
    "commit: as a member": to_commit(0, group="{live}", generation=1, member="{member}"),
    "find: an unknown type": ("FindCoordinator", 3, {"key": "g", "key_type": 7}, {Code.INVALID_REQUEST}),
    "join: no group": to_join(Code.INVALID_GROUP_ID, group_id=""),
    "join: a short session": to_join(Code.INVALID_SESSION_TIMEOUT, session_timeout_ms=1),
    "join: a long session": to_join(Code.INVALID_SESSION_TIMEOUT, session_timeout_ms=10**8),
    "join: as a stranger": to_join(Code.UNKNOWN_MEMBER_ID, member_id="m"),
    "join: without protocols": to_join(Code.INCONSISTENT_GROUP_PROTOCOL, protocols=[]),
    "join: without a type": to_join(Code.INCONSISTENT_GROUP_PROTOCOL, protocol_type=""),
    "join: with another protocol": to_join(
        Code.INCONSISTENT_GROUP_PROTOCOL, group_id="{live}", protocols=[{"name": "other", "metadata": b""}]
    ),
    "sync: no such group": as_member("SyncGroup", Code.UNKNOWN_MEMBER_ID, group="{group}"),
    "sync: no group": as_member("SyncGroup", Code.INVALID_GROUP_ID, group=""),
    "sync: another generation": as_member(
        "SyncGroup", Code.ILLEGAL_GENERATION, group="{live}", generation=9, member="{member}"
    ),
    "heartbeat: no such group": as_member("Heartbeat", Code.UNKNOWN_MEMBER_ID, group="{group}"),
    "heartbeat: no group": as_member("Heartbeat", Code.INVALID_GROUP_ID, group=""),
    "heartbeat: as a stranger": as_member("Heartbeat", Code.UNKNOWN_MEMBER_ID, group="{live}"),
    "heartbeat: another generation": as_member(
        "Heartbeat", Code.ILLEGAL_GENERATION, group="{live}", generation=9, member="{member}"
    ),
    "heartbeat: another instance": as_member(
        "Heartbeat", Code.UNKNOWN_MEMBER_ID, group="{live}", member="{member}", instance="i"
    ),
    "leave: no such group": to_leave(Code.UNKNOWN_MEMBER_ID, group="{group}"),
    "leave: as a stranger": to_leave(Code.UNKNOWN_MEMBER_ID, group="{live}"),
    "leave: an unknown instance": to_leave(Code.UNKNOWN_MEMBER_ID, group="{live}", member="", instance="i"),
    "delete groups: with members": ("DeleteGroups", 1, {"groups_names": ["{live}"]}, {Code.NON_EMPTY_GROUP}),
    "delete groups: no such": ("DeleteGroups", 1, {"groups_names": ["none"]}, {Code.GROUP_ID_NOT_FOUND}),
    "delete offsets: no such group": (
        "OffsetDelete",
        0,
        {"group_id": "none", "topics": [{"name": "{topic}", "partitions": [{"partition_index": 0}]}]},
        {Code.GROUP_ID_NOT_FOUND},
    ),
    "create": to_create(0),
    "create: there is one": to_create(Code.TOPIC_ALREADY_EXISTS, name="{topic}"),
    "create: a name that is none": to_create(Code.INVALID_TOPIC_EXCEPTION, name="a/b"),
    "create: no name": to_create(Code.INVALID_TOPIC_EXCEPTION, name=""),
    "create: a long name": to_create(Code.INVALID_TOPIC_EXCEPTION, name="x" * 250),
    "create: no partitions": to_create(Code.INVALID_PARTITIONS, partitions=0),
    "create: no replicas": to_create(Code.INVALID_REPLICATION_FACTOR, replicas=0),
    "create: three replicas": to_create(Code.INVALID_REPLICATION_FACTOR, replicas=3),
    "create: an unknown setting": to_create(Code.INVALID_CONFIG, configs=[{"name": "no.such", "value": "1"}]),
    "create: a wrong value": to_create(Code.INVALID_CONFIG, configs=[{"name": "retention.ms", "value": "x"}]),
    "delete: no such topic": ("DeleteTopics", 3, {"topic_names": ["none"], "timeout_ms": 5_000}, {3}),
    "add partitions: no such topic": to_add(3, topic="none", count=2),
    "add partitions: fewer": to_add(Code.INVALID_PARTITIONS, topic="{topic}", count=1),
    "trim: beyond the end": to_trim(1, offset=BEYOND),
    "trim: no such topic": to_trim(3, topic="none"),
    "trim: no such partition": to_trim(3, partition=7),
    "settings: no such topic": to_show(3, kind=2, name="none"),
    "settings: a name that is none": to_show(Code.INVALID_TOPIC_EXCEPTION, kind=2, name="a/b"),
    "settings: another broker": to_show(Code.INVALID_REQUEST, kind=4, name="99"),
    "settings: an unknown kind": to_show(Code.INVALID_REQUEST, kind=77, name="x"),
    "alter: no such topic": to_alter(3, name="retention.ms", value="5", topic="none"),
    "alter: an unknown setting": to_alter(Code.INVALID_CONFIG, name="no.such", value="5"),
    "alter: a wrong value": to_alter(Code.INVALID_CONFIG, name="retention.ms", value="x"),
    "alter: no value": to_alter(Code.INVALID_REQUEST, name="retention.ms", value=None),
    "alter: twice": to_alter(Code.INVALID_REQUEST, name="retention.ms", value="5", times=2),
    "alter: no list": to_alter(Code.INVALID_CONFIG, name="retention.ms", value="5", operation=2),
    "producers: no such topic": (
        "DescribeProducers", 0, {"topics": [{"name": "none", "partition_indexes": [0]}]}, {3},
    ),
    "users: no such": (
        "DescribeUserScramCredentials", 0, {"users": [{"name": "nobody"}]}, {0, Code.RESOURCE_NOT_FOUND},
    ),
}  # fmt: skip


@dataclass
class Prepared:
    """A broker with what the rows name."""

    address: str
    names: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> Prepared:
        tail = uuid.uuid4().hex[:8]
        self.names = {"topic": f"topic-{tail}", "group": f"group-{tail}", "live": f"live-{tail}", "new": f"new-{tail}"}
        with KafkaPeer(self.address) as peer:
            wait_for(lambda: find(peer, "any").error_code == 0, "a coordinator of groups")
            create(peer, self.names["topic"], 2)
            produce(peer, self.names["topic"], BATCH)
            self.names["member"] = join(peer, self.names["live"])[0]
        return self

    def filled(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.format(**self.names)
        if isinstance(value, list):
            return [self.filled(one) for one in value]
        return {name: self.filled(one) for name, one in value.items()} if isinstance(value, dict) else value


@pytest.fixture(scope="module", params=["appliance", "kafka"])
def prepared(request: pytest.FixtureRequest) -> Iterator[Prepared]:
    broker = request.getfixturevalue("broker" if request.param == "appliance" else "kafka")
    yield Prepared(broker.kafka if isinstance(broker, Broker) else broker).prepare()


@pytest.mark.parametrize("name", ROWS)
def test_error_codes(prepared: Prepared, name: str) -> None:
    api, version, values, wanted = ROWS[name]
    with KafkaPeer(prepared.address) as peer:
        assert codes(peer.ask(api, version, **prepared.filled(values))) == wanted
