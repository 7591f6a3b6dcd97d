"""A topic that is deleted and made again is another topic: groups of both listeners read it from its beginning."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from appliance.client.group import GroupConsumer
from appliance.errors import UnknownTopicId
from appliance.records.encode import encode_values

from ..support.kafka_peer import KafkaPeer
from ..support.native_peer import Peer
from ..support.server import Server, wait_for

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("identity") / "data", **{"zookeeper.nodes": 1}) as running:
        running.wait_for_zookeeper()
        yield running


@pytest.fixture
def topic(server: Server) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    make(server, name)
    return name


def make(server: Server, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)


def make_again(server: Server, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    admin.delete_topics([name])[name].result(60)
    make(server, name)


def fill(server: Server, topic: str, tag: str, count: int) -> list[str]:
    producer = Producer({"bootstrap.servers": server.kafka})
    values = [f"{tag}-{number}" for number in range(count)]
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(60) == 0
    return values


def read_by_kafka_group(server: Server, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": server.kafka,
            "group.id": f"of-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    values: list[str] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            values.append(message.value().decode())
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def read_by_native_group(server: Server, topic: str, count: int) -> list[str]:
    values: list[str] = []
    with GroupConsumer(server.native, f"native-of-{topic}") as consumer:
        for message in consumer.create_message_streams({topic: 1})[topic][0]:
            values.append(message.value.decode())
            if len(values) == count:
                break
    return values


@pytest.mark.parametrize("read", [read_by_kafka_group, read_by_native_group])
def test_a_group_reads_a_topic_that_was_made_again_from_its_beginning(
    server: Server, topic: str, read: Callable[[Server, str, int], list[str]]
) -> None:
    old = fill(server, topic, "old", 10)
    assert read(server, topic, 10) == old
    make_again(server, topic)
    new = fill(server, topic, "new", 20)
    assert read(server, topic, 20) == new
    more = fill(server, topic, "more", 1)  # and from then on where it was
    assert read(server, topic, 1) == more


def test_a_member_that_stays_reads_the_next_topic_from_its_beginning(server: Server, topic: str) -> None:
    old = fill(server, topic, "old", 10)
    values: list[str] = []
    with GroupConsumer(server.native, f"stays-in-{topic}", auto_commit_ms=50) as consumer:
        messages = consumer.create_message_streams({topic: 1})[topic][0]
        for message in messages:
            values.append(message.value.decode())
            if values == old:
                make_again(server, topic)
                new = fill(server, topic, "new", 20)
            if len(values) == 30:
                break
    assert values == old + new


def test_a_commit_in_an_earlier_topic_is_no_position_in_the_next(server: Server, topic: str) -> None:
    """Method: an operator's look at the position after the topic was made again."""
    fill(server, topic, "old", 10)
    read_by_kafka_group(server, topic, 10)
    with Peer(server.native) as peer:
        assert peer.admin("offsets", group=f"of-{topic}")[0][2] > 0
        make_again(server, topic)
        assert peer.admin("offsets", group=f"of-{topic}") == []
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": f"of-{topic}"})
    (position,) = consumer.committed([TopicPartition(topic, 0)], 20)
    assert position.offset < 0
    consumer.close()


def test_messages_for_a_deleted_topic_do_not_come_into_the_one_of_its_name(server: Server, topic: str) -> None:
    """Produce 13 names the topic by its id, also on a connection that the partition's writer serves."""

    def produce(peer: KafkaPeer, topic_id: UUID) -> int:
        data = {"topic_id": topic_id, "partition_data": [{"index": 0, "records": bytes(encode_values([b"v"], 1_000))}]}
        reply = peer.ask("Produce", 13, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data])
        return int(reply.responses[0].partition_responses[0].error_code)

    def id_now(peer: KafkaPeer) -> UUID:
        (row,) = peer.ask("Metadata", topics=[{"topic_id": None, "name": topic}]).topics
        return UUID(str(row.topic_id))

    with KafkaPeer(server.kafka) as peer:
        first = id_now(peer)
        wait_for(lambda: produce(peer, first) == 0, "the id is known")
        assert {produce(peer, first) for _ in range(200)} == {0}  # more than it takes to hand the connection over
        make_again(server, topic)
        second = id_now(peer)
        assert second != first and produce(peer, first) == UnknownTopicId.code
        wait_for(lambda: produce(peer, second) == 0, "the new id is known")
        assert {produce(peer, first), produce(peer, UUID(int=5))} == {UnknownTopicId.code}
    with Peer(server.native) as native_peer:
        (row,) = native_peer.admin("topics", names=[topic])
        assert row["partitions"][0]["messages"] == 1
