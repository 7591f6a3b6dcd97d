"""Topics, settings, groups and the cluster through the admin clients and Kafka's own command-line tools."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from ..support.server import Server
from .adapters import (
    CLIENTS,
    DEADLINE_S,
    confluent_group,
    confluent_produce,
    java,
    kcat,
    new_topic,
)
from .conftest import Broker


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[AdminClient]:
    yield AdminClient({"bootstrap.servers": broker.kafka})


def done(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(4 * DEADLINE_S)


def code(futures: dict[Any, Any]) -> str:
    (future,) = futures.values()
    with pytest.raises(KafkaException) as raised:
        future.result(DEADLINE_S)
    return str(raised.value.args[0].name())


def test_a_topic_is_created_described_changed_and_deleted(admin: AdminClient) -> None:
    topic = new_topic()
    done(admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "60000"})]))
    metadata = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
    assert sorted(metadata.partitions) == [0, 1, 2] and metadata.error is None
    done(admin.create_partitions([NewPartitions(topic, 5)]))
    assert len(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions) == 5
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert settings(admin, topic)["retention.ms"] == "60000"
    entry = ConfigEntry("segment.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    done(admin.incremental_alter_configs([change]))
    changed = settings(admin, topic)
    assert (changed["segment.bytes"], changed["retention.ms"]) == ("1000000", "60000")
    with pytest.warns(DeprecationWarning):  # AlterConfigs replaces all that was set
        done(admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, {"flush.ms": "500"})]))
    changed = settings(admin, topic)
    assert (changed["flush.ms"], changed["segment.bytes"]) == ("500", str(2**30))
    assert code(admin.create_topics([NewTopic(topic, 3, 1)])) == "TOPIC_ALREADY_EXISTS"
    assert code(admin.create_partitions([NewPartitions(topic, 2)])) == "INVALID_PARTITIONS"
    done(admin.delete_topics([topic]))
    assert code(admin.delete_topics([topic])) == "UNKNOWN_TOPIC_OR_PART"
    assert code(admin.describe_configs([resource])) == "UNKNOWN_TOPIC_OR_PART"


def settings(admin: AdminClient, topic: str) -> dict[str, str]:
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in future.result(DEADLINE_S).items()}


def test_what_is_wrong_is_refused_by_name(admin: AdminClient) -> None:
    for topic, partitions, config, name in (
        ("no/slashes", 1, {}, "TOPIC_EXCEPTION"),
        (new_topic(), 0, {}, "INVALID_PARTITIONS"),
        (new_topic(), 1, {"retention.sm": "5"}, "INVALID_CONFIG"),
        (new_topic(), 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
    ):
        assert code(admin.create_topics([NewTopic(topic, partitions, 1, config=config)])) == name


def test_the_cluster_is_described(broker: Broker) -> None:
    """With kafka-python: confluent-kafka's describe_cluster has ended the whole process now and then."""
    client = KafkaAdminClient(bootstrap_servers=broker.kafka)
    cluster = client.describe_cluster()
    client.close()
    assert cluster["cluster_id"]
    host, port = broker.kafka.rsplit(":", 1)
    (node,) = cluster["brokers"]
    assert (node["host"], str(node["port"])) == (host, port)
    assert cluster["controller_id"] == node["broker_id"]


def test_groups_are_listed_described_reset_and_deleted(admin: AdminClient, broker: Broker) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    topic, group = new_topic(), f"group-{uuid.uuid4()}"
    offsets = confluent_produce(broker.kafka, topic, "none", 20)
    confluent_group(broker.kafka, topic, group, 10)
    listed = admin.list_consumer_groups().result(DEADLINE_S)
    assert group in {entry.group_id for entry in listed.valid} and not listed.errors
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert (described.state.name, described.members) == ("EMPTY", [])
    asked = ConsumerGroupTopicPartitions(group)
    (found,) = admin.list_consumer_group_offsets([asked])[group].result(DEADLINE_S).topic_partitions
    assert (found.topic, found.partition, found.offset) == (topic, 0, offsets[9] + 1)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offsets[5])])
    admin.alter_consumer_group_offsets([wanted])[group].result(DEADLINE_S)
    assert confluent_group(broker.kafka, topic, group, 1)[0].offset == offsets[5]
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    listed = admin.list_consumer_groups().result(DEADLINE_S)
    assert group not in {entry.group_id for entry in listed.valid}


@pytest.mark.long
def test_kafkas_tools_for_topics(broker: Broker) -> None:
    topic, server, tools = new_topic(), ("--bootstrap-server", broker.kafka), "org.apache.kafka.tools"
    java(f"{tools}.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "2")
    described = java(f"{tools}.TopicCommand", *server, "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described and described.count("Leader: ") == 2
    topics = ("--entity-type", "topics", "--entity-name", topic)
    java("org.apache.kafka.tools.ConfigCommand", *server, "--alter", *topics, "--add-config", "retention.ms=123456")
    assert "retention.ms=123456" in java("org.apache.kafka.tools.ConfigCommand", *server, "--describe", *topics)
    offsets = java(f"{tools}.GetOffsetShell", *server, "--topic", topic)
    assert [line.rsplit(":", 1)[0] for line in offsets.split()] == [f"{topic}:0", f"{topic}:1"]


@pytest.mark.timeout(400)
def test_kafkas_own_tools(broker: Broker, admin: AdminClient) -> None:
    """ProducerPerformance, ConsoleConsumer and ConsumerGroupCommand."""
    topic, group, server = new_topic(), f"group-{uuid.uuid4()}", ("--bootstrap-server", broker.kafka)
    tools = "org.apache.kafka.tools"
    done(admin.create_topics([NewTopic(topic, 2, 1)]))
    out = java(
        f"{tools}.ProducerPerformance",
        *("--topic", topic, "--num-records", "20000", "--record-size", "200", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.kafka}"),
    )
    assert "20000 records sent" in out
    read = java(
        f"{tools}.consumer.ConsoleConsumer",
        *(*server, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "20000"),
        *("--timeout-ms", "60000"),
    )
    assert len(read.splitlines()) == 20_000
    lag = java(f"{tools}.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", group)
    rows = [line.split() for line in lag.splitlines() if topic in line]
    assert len(rows) == 2 and all(row[5] == "0" for row in rows), lag


@pytest.mark.timeout(400)  # the first time its jars are fetched
def test_kafkas_admin_client_is_answered_at_once_whatever_it_asks(broker: Broker) -> None:
    """Each question is answered, or refused by name, and none waits for its time-out."""
    outcomes = json.loads(java("AdminAll", broker.kafka, new_topic()))
    assert len(outcomes) == 28 and {name: outcome for name, outcome in outcomes.items() if outcome} == {
        "createTopics, 3 replicas": "InvalidReplicationFactorException",
        "incrementalAlterConfigs, brokers": "InvalidRequestException",
        "electLeaders": "ElectionNotNeededException",
        "describeAcls": "SecurityDisabledException",
        "describeConsumerGroups": "GroupIdNotFoundException",
        "describeTransactions": "TransactionalIdNotFoundException",
        "describeMetadataQuorum": "UnsupportedVersionException",
    }


@pytest.mark.long
def test_kafkas_own_tools_learn_that_there_is_none(broker: Broker, admin: AdminClient, tmp_path: Path) -> None:
    """Leader elections, reassignments, transactions, quotas: what they ask before and after what they do."""
    topic, server, tools = new_topic(), ("--bootstrap-server", broker.kafka), "org.apache.kafka.tools"
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    part = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "already elected" in java(f"{tools}.LeaderElectionCommand", *server, *part)
    moved = tmp_path / "moved.json"
    moved.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [0]}]}))
    reassign = (f"{tools}.reassign.ReassignPartitionsCommand", *server, "--reassignment-json-file", str(moved))
    assert f"started partition reassignment for {topic}-0" in java(*reassign, "--execute")
    verified = java(*reassign, "--verify")
    assert f"{topic}-0 is completed" in verified and "Clearing topic-level throttles" in verified
    assert "TransactionalId" in java(f"{tools}.TransactionsCommand", *server, "list")
    assert java("org.apache.kafka.tools.ConfigCommand", *server, "--describe", "--entity-type", "users").strip() == ""
    local = java(f"{tools}.GetOffsetShell", *server, "--topic", topic, "--time", "earliest-local")
    assert local.split() == [f"{topic}:0:0"]


@pytest.mark.long
def test_kafkas_config_command_sets_what_a_group_may_set(broker: Broker) -> None:
    command = ("org.apache.kafka.tools.ConfigCommand", "--bootstrap-server", broker.kafka)
    group, setting = f"group-{uuid.uuid4()}", "consumer.session.timeout.ms"
    entity = ("--entity-type", "groups", "--entity-name", group)
    java(*command, "--alter", *entity, "--add-config", f"{setting}=4000")
    described = java(*command, "--describe", *entity)
    assert f"{setting}=4000 sensitive=false synonyms={{GROUP_CONFIG:{setting}=4000" in described.replace("DYNAMIC_", "")
    with pytest.raises(AssertionError, match="InvalidConfigurationException"):
        java(*command, "--alter", *entity, "--add-config", f"{setting}=999")
    java(*command, "--alter", *entity, "--delete-config", setting)
    assert "4000" not in java(*command, "--describe", *entity)


def test_a_thousand_topics_in_one_metadata_reply(make_appliance: Callable[..., Server]) -> None:
    """Made by one request, too, and found again after a restart."""
    server = make_appliance()
    names = {f"topic-{number:04d}" for number in range(1_000)}
    maker = AdminClient({"bootstrap.servers": server.kafka})
    done(maker.create_topics([NewTopic(name, 1, 1) for name in sorted(names)], request_timeout=4 * DEADLINE_S))
    for _ in range(2):
        assert AdminClient({"bootstrap.servers": server.kafka}).list_topics(timeout=DEADLINE_S).topics.keys() == names
        client = KafkaAdminClient(bootstrap_servers=server.kafka)
        assert set(client.list_topics()) == names
        client.close()
        listed = set(re.findall(r'topic "([^"]+)" with 1 partitions', kcat("-b", server.kafka, "-L")))
        assert listed == names
        assert server.stop() == 0
        server.start()


def test_message_sizes_from_nothing_to_the_limit(broker: Broker, admin: AdminClient) -> None:
    """max.message.bytes bounds a batch; what is larger is refused, and the same producer goes on."""
    topic = new_topic()
    done(admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "100000"})]))
    failures: list[str] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(error.name())  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": broker.kafka, "message.max.bytes": 10_000_000})
    for size in (0, 1, 99_000, 200_000, 5):
        producer.produce(topic, bytes(size), partition=0, on_delivery=delivered)
        assert producer.flush(DEADLINE_S) == 0
    assert failures == ["MSG_SIZE_TOO_LARGE"]
    out = kcat("-b", broker.kafka, "-t", topic, "-C", "-e", "-q", "-o", "beginning", "-f", "%S\n")
    assert out.split() == ["0", "1", "99000", "5"]


def test_producers_are_told_the_time_of_appending(admin: AdminClient, broker: Broker) -> None:
    """message.timestamp.type=LogAppendTime: what a delivery report says is what consumers find."""
    topic = new_topic()
    done(admin.create_topics([NewTopic(topic, 1, 1, config={"message.timestamp.type": "LogAppendTime"})]))
    told: list[tuple[int, int]] = []
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(3):
        report = lambda error, message: told.append(message.timestamp())  # noqa: E731
        producer.produce(topic, b"x", timestamp=1_000 + number, partition=0, on_delivery=report)
        assert producer.flush(DEADLINE_S) == 0
    found = kcat("-b", broker.kafka, "-t", topic, "-C", "-e", "-q", "-o", "beginning", "-f", "%T\n").split()
    assert told == [(TIMESTAMP_LOG_APPEND_TIME, int(time_ms)) for time_ms in found] and len(told) == 3


def confluent_transaction(bootstrap: str) -> str:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx", "log_level": 0})
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(DEADLINE_S)
    assert raised.value.args[0].fatal()
    return str(raised.value.args[0].str())


def kafka_python_transaction(bootstrap: str) -> str:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="tx")
    with pytest.raises(KafkaError) as raised:
        producer.init_transactions()
    producer.close(timeout=0)
    return str(raised.value)


def aiokafka_transaction(bootstrap: str) -> str:
    async def run() -> str:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="tx")
        with pytest.raises(AioKafkaError) as raised:
            await asyncio.wait_for(producer.start(), DEADLINE_S)
        await producer.stop()
        return str(raised.value)

    return asyncio.run(run())


def java_transaction(bootstrap: str) -> str:
    return java("Transactional", bootstrap)


OUR_WORDS = "transactions need ZooKeeper"


@pytest.mark.parametrize(
    "begin, words",
    [
        (confluent_transaction, OUR_WORDS),
        (java_transaction, OUR_WORDS),
        (kafka_python_transaction, "UnsupportedVersionError"),
        (aiokafka_transaction, "UnsupportedVersionError"),
    ],
)
def test_a_transactional_producer_is_told_that_there_can_be_no_transactions(
    appliance: Server, begin: Callable[[str], str], words: str
) -> None:
    """Without ZooKeeper.  At once, as what it is: nobody repeats the request until a time-out, or looks for a rule."""
    said = begin(appliance.kafka)
    assert words in said, said


def test_every_client_makes_a_topic_by_producing(broker: Broker) -> None:
    """Auto-creation, with the configured number of partitions, through each client's way of asking."""
    for client in CLIENTS[:3]:
        topic = new_topic()
        assert len(client.produce(broker.kafka, topic, "none", 1)) == 1
