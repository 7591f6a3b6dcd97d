"""What real administration clients of Kafka ask, and get: settings, and the APIs whose honest answer is "none"."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from kafka import TopicPartition as PythonPartition
from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ACLResourcePatternType, KafkaAdminClient
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ResourcePatternFilter as PythonPattern
from kafka.admin import ResourceType as PythonKind
from kafka.errors import SecurityDisabledError, UnsupportedVersionError

from appliance.kafka_settings import ACCEPTED

from ..support.kafka_peer import KafkaPeer
from ..support.server import Server

DEADLINE_S = 60
COPIED = {name: accepted.default for name, accepted in ACCEPTED.items() if accepted.current}
"""What a tool gives that copies all of a topic's settings from a Kafka cluster."""


@pytest.fixture(scope="module")
def confluent(appliance: Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": appliance.kafka})


@pytest.fixture(scope="module")
def python(appliance: Server) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=appliance.kafka)
    yield client
    client.close()


def only(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(DEADLINE_S)


def refused(futures: dict[Any, Any]) -> tuple[str, str]:
    """Name and text of the one error."""
    with pytest.raises(KafkaException) as raised:
        only(futures)
    return raised.value.args[0].name(), raised.value.args[0].str()


def test_a_topic_keeps_the_settings_that_are_so_anyway(confluent: AdminClient, topic: str) -> None:
    only(confluent.create_topics([NewTopic(topic, 1, 1, config={**COPIED, "retention.ms": "60000"})]))
    described = only(confluent.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    for name, value in COPIED.items():
        assert (described[name].value, described[name].source) == (value, ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    entries = [
        ConfigEntry("file.delete.delay.ms", "5", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("preallocate", None, incremental_operation=AlterConfigOpType.DELETE),
        ConfigEntry("no.such.setting", None, incremental_operation=AlterConfigOpType.DELETE),
    ]
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    only(confluent.incremental_alter_configs([change]))
    described = only(confluent.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    assert described["file.delete.delay.ms"].value == "5"
    assert described["cleanup.policy"].value == "delete,compact"
    assert (described["preallocate"].value, described["preallocate"].is_default) == ("false", True)


@pytest.mark.parametrize(
    "name, value, reason",
    [
        ("min.insync.replicas", "2", "stored once"),
        ("unclean.leader.election.enable", "true", "stored once"),
        ("compression.type", "zstd", "stored as they came"),
        ("cleanup.policy", "compress", "must be one of delete, compact"),
        ("remote.storage.enable", "true", "local"),
        ("retention.sm", "5", "did you mean 'retention.ms'"),
    ],
)
def test_settings_that_would_not_be_so_are_refused_with_the_reason(
    confluent: AdminClient, topic: str, name: str, value: str, reason: str
) -> None:
    code, text = refused(confluent.create_topics([NewTopic(topic, 1, 1, config={name: value})]))
    assert code == "INVALID_CONFIG" and name in text and reason in text
    assert topic not in confluent.list_topics(timeout=DEADLINE_S).topics


def test_each_client_is_shown_the_brokers_configuration(
    appliance: Server, confluent: AdminClient, python: KafkaAdminClient
) -> None:
    described = only(confluent.describe_configs([ConfigResource(ResourceType.BROKER, "0")]))
    listening = f"PLAINTEXT://{appliance.kafka}"
    assert described["listeners"].value == described["advertised.listeners"].value == listening
    assert described["num.partitions"].is_read_only and described["log.dirs"].value == str(appliance.data_dir)
    assert [row.name for row in described["num.partitions"].synonyms.values()] == ["num.partitions"]
    rows = python.describe_configs([PythonResource("BROKER", "0")], config_filter="all")["broker"]["0"]
    assert {name: row["value"] for name, row in rows.items()} == {name: row.value for name, row in described.items()}

    async def with_aiokafka() -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=appliance.kafka)
        await client.start()
        try:
            return await client.describe_configs([AioResource(AioType.BROKER, "0")])
        finally:
            await client.close()

    (reply,) = asyncio.run(with_aiokafka())
    rows = reply.resources[0][4]
    assert len(rows) == len(described) and {row[0]: row[1] for row in rows}["listeners"] == listening


@pytest.fixture
def made(confluent: AdminClient, topic: str) -> str:
    """A topic of one partition."""
    only(confluent.create_topics([NewTopic(topic, 1, 1)]))
    return topic


def test_kafka_python_learns_that_there_is_none(python: KafkaAdminClient, made: str) -> None:
    part = PythonPartition(made, 0)
    assert python.list_partition_reassignments() == {}
    assert python.alter_partition_reassignments({part: [0]}) == {part: None}
    python.elect_leaders(0, [part])  # raises what is not ELECTION_NOT_NEEDED
    assert python.list_transactions() == {0: []}
    assert python.find_hanging_transactions() == []
    with pytest.raises(UnsupportedVersionError):  # it asks for the coordinator first
        python.describe_transactions(["tx"])
    assert python.describe_producers([part])[part].active_producers == [], "nobody has produced"
    assert python.describe_user_scram_credentials() == {}
    pattern = PythonPattern(PythonKind.TOPIC, made, ACLResourcePatternType.ANY)
    rules = ACLFilter("User:a", "*", ACLOperation.ANY, ACLPermissionType.ANY, pattern)
    with pytest.raises(SecurityDisabledError):
        python.describe_acls(rules)
    described = python.describe_topic_partitions([made])
    (partition,) = described["topics"][0]["partitions"]
    assert (partition["leader_id"], partition["isr_nodes"], described["next_cursor"]) == (0, [0], None)
    assert made in python.list_config_resources()["topic"]


def test_librdkafka_learns_that_there_is_none(confluent: AdminClient, made: str) -> None:
    part = TopicPartition(made, 0)
    elected = confluent.elect_leaders(ElectionType.PREFERRED, [part]).result(DEADLINE_S)
    assert elected[part].name() == "ELECTION_NOT_NEEDED"
    reader = ("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW)
    code, _ = refused(
        confluent.create_acls([AclBinding(ResourceType.TOPIC, made, ResourcePatternType.LITERAL, *reader)])
    )
    assert code == "SECURITY_DISABLED"
    assert refused(confluent.describe_user_scram_credentials(["a"]))[0] == "RESOURCE_NOT_FOUND"
    found = confluent.list_offsets({part: OffsetSpec.earliest()})
    assert only(found).offset == 0


def test_names_are_judged_as_kafka_does(confluent: AdminClient, python: KafkaAdminClient, topic: str) -> None:
    only(confluent.create_topics([NewTopic(f"{topic}.b", 1, 1)]))
    code, text = refused(confluent.create_topics([NewTopic(f"{topic}_b", 1, 1)]))
    assert code == "TOPIC_EXCEPTION" and f"collides with '{topic}.b'" in text
    for name, error in (("a/b", "TOPIC_EXCEPTION"), ("__consumer_offsets", "UNKNOWN_TOPIC_OR_PART")):
        metadata = confluent.list_topics(name, timeout=DEADLINE_S).topics[name]
        assert metadata.error is not None and metadata.error.name() == error
    assert "__consumer_offsets" not in python.list_topics()


def test_the_cluster_has_an_id(appliance: Server, confluent: AdminClient, python: KafkaAdminClient) -> None:
    with KafkaPeer(appliance.kafka) as kafka:
        known = {kafka.ask("Metadata", topics=[]).cluster_id, kafka.ask("DescribeCluster").cluster_id}
    known |= {confluent.list_topics(timeout=DEADLINE_S).cluster_id, python.describe_cluster()["cluster_id"]}
    assert len(known) == 1 and known.pop()
