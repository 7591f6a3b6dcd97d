"""Compacted topics with real clients of Kafka: what is refused, what stays, and what a reader sees meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from appliance.client.consumer import Consumer as NativeConsumer
from appliance.log.tools import verify

from ..support.server import Server, wait_for

DEADLINE_S = 60
SMALL = {"segment.bytes": "4096", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings: dict[str, Any] = {"zookeeper.nodes": 1, "disk.check_ms": 100, "disk.free_bytes_min": 0}
    with Server(tmp_path_factory.mktemp("compacted") / "data", **settings) as running:
        yield running
        assert running.stop() == 0
        assert running.leftovers() == []


@pytest.fixture
def admin(server: Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.kafka})


def make(admin: AdminClient, topic: str, **settings: str) -> None:
    config = SMALL | {name.replace("_", "."): value for name, value in settings.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(DEADLINE_S)


def alter(admin: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(DEADLINE_S)


def produce(server: Server, topic: str, pairs: list[tuple[str | None, str | None]], **settings: Any) -> list[str]:
    """Produce in order; return the errors."""
    errors: list[str] = []

    def on_delivery(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error.name())

    producer = Producer({"bootstrap.servers": server.kafka, "linger.ms": 1, "batch.num.messages": 20, **settings})
    for key, value in pairs:
        producer.produce(topic, value, key, partition=0, on_delivery=on_delivery)
    assert producer.flush(DEADLINE_S) == 0
    return errors


def read(server: Server, topic: str, start: int = 0) -> list[tuple[int, str | None, str | None]]:
    """What librdkafka reads from an offset to the end."""
    consumer = Consumer(
        {"bootstrap.servers": server.kafka, "group.id": "x", "enable.partition.eof": True, "check.crcs": True}
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    found = []
    try:
        while (message := consumer.poll(DEADLINE_S)) is not None:
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            key, value = message.key(), message.value()
            found.append((message.offset(), key and key.decode(), None if value is None else value.decode()))
    finally:
        consumer.close()
    raise AssertionError("no end")


def read_with_python(server: Server, topic: str) -> list[tuple[int, str | None, str | None]]:
    consumer = KafkaConsumer(bootstrap_servers=server.kafka, enable_auto_commit=False, consumer_timeout_ms=60_000)
    part = PythonPartition(topic, 0)
    consumer.assign([part])
    consumer.seek(part, 0)
    end, found = consumer.end_offsets([part])[part], []
    for message in consumer:
        key, value = message.key, message.value
        found.append((message.offset, key and key.decode(), None if value is None else value.decode()))
        if message.offset + 1 >= end:
            break
    consumer.close()
    return found


def read_natively(server: Server, topic: str, end: int) -> list[tuple[int, str | None, str | None]]:
    found: list[tuple[int, str | None, str | None]] = []
    with NativeConsumer(server.native) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek(topic, 0, 0)
        while not found or found[-1][0] + 1 < end:
            for one in consumer.poll(DEADLINE_S):
                value = None if one.value is None else one.value.decode()
                found.append((one.offset, one.key and one.key.decode(), value))
    return found


def writer_pid(server: Server, topic: str) -> int:
    return int(next(row["pid"] for row in server.processes("writer") if topic in str(row)))


def shown(server: Server, topic: str) -> dict[str, Any]:
    row: dict[str, Any] = server.state.get("compaction", {}).get(f"{topic}-0", {})
    return row


def wait_compacted(server: Server, topic: str, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """Wait until a reader sees few enough messages; return them."""

    def compacted() -> list[Any] | None:
        found = read(server, topic)
        return found if enough(found) else None

    result = wait_for(compacted, "it is compacted", DEADLINE_S)
    assert result is not None
    wait_for(lambda: shown(server, topic).get("dirty_bytes") == 0, "nothing more is to be compacted")
    wait_for(lambda: not server.processes("compactor"), "the compactor has ended")
    return read(server, topic)


def test_the_last_message_of_each_key_is_what_every_client_reads(
    server: Server, admin: AdminClient, topic: str
) -> None:
    make(admin, topic, min_compaction_lag_ms=str(86_400_000))  # not before it was read whole
    pairs: list[tuple[str | None, str | None]] = [(f"k{n % 50}", f"value {n}") for n in range(2000)]
    assert produce(server, topic, pairs) == []
    before = read(server, topic)
    assert [pair[1:] for pair in before] == pairs
    alter(admin, topic, "min.compaction.lag.ms", "0")
    found = wait_compacted(server, topic, lambda found: len(found) < 400)
    last = {key: (offset, key, value) for offset, key, value in before}
    assert set(last.values()) <= set(found) <= set(before)
    end = before[-1][0] + 1
    assert read_with_python(server, topic) == read_natively(server, topic, end) == read(server, topic)
    for start in range(0, before[-1][0], before[-1][0] // 7):
        assert read(server, topic, start) == [one for one in read(server, topic) if one[0] >= start]
    assert shown(server, topic)["compacted_to"] > 0
    assert not list((server.data_dir / f"{topic}-0").glob("*.compacted"))


def test_a_message_without_a_key_is_refused(server: Server, admin: AdminClient, topic: str) -> None:
    make(admin, topic)
    assert produce(server, topic, [(None, "x")]) == ["INVALID_RECORD"]
    assert produce(server, topic, [("k", "x")], **{"compression.type": "zstd"}) == []
    assert [one[1:] for one in read(server, topic)] == [("k", "x")]


def test_a_policy_can_be_changed_and_is_shown(server: Server, admin: AdminClient, topic: str) -> None:
    make(admin, topic, cleanup_policy="delete")
    assert produce(server, topic, [(None, "old")] + [(f"k{n % 3}", "x" * 200) for n in range(200)]) == []
    alter(admin, topic, "cleanup.policy", "compact, delete")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    described = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert described["cleanup.policy"].value == "compact,delete"
    assert produce(server, topic, [(None, "new")]) == ["INVALID_RECORD"]
    wait_compacted(server, topic, lambda found: len(found) < 60 and found[0][1] is not None)
    with pytest.raises(KafkaException, match="cleanup"):
        bad = NewTopic(f"{topic}-bad", 1, 1, config={"cleanup.policy": "compress"})
        admin.create_topics([bad])[f"{topic}-bad"].result(DEADLINE_S)


def test_deleted_keys_are_forgotten_later(server: Server, admin: AdminClient, topic: str) -> None:
    make(admin, topic, delete_retention_ms="200")
    pairs: list[tuple[str | None, str | None]] = [(f"k{n}", "x" * 300) for n in range(30)]
    pairs += [(f"k{n}", None) for n in range(29)] + [(f"other{n}", "x" * 300) for n in range(30)]
    assert produce(server, topic, pairs, **{"linger.ms": 0, "batch.num.messages": 1}) == []
    found = wait_compacted(server, topic, lambda found: not any(value is None for *_, value in found[:-1]))
    assert {key for _, key, _ in found} == {"k29", *(f"other{n}" for n in range(30))}


def test_an_idempotent_producer_goes_on_in_a_compacted_topic(server: Server, admin: AdminClient, topic: str) -> None:
    """Its batches are gone, what is known of it is not: also after the writer has ended."""
    make(admin, topic)
    producer = Producer({"bootstrap.servers": server.kafka, "enable.idempotence": True, "linger.ms": 0})
    for number in range(300):
        producer.produce(topic, "x" * 100, f"k{number % 2}", partition=0)
        assert producer.flush(DEADLINE_S) == 0
    wait_compacted(server, topic, lambda found: len(found) < 100)
    server.kill(writer_pid(server, topic))
    errors: list[Any] = []
    producer.produce(topic, "last", "k", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0 and errors == [None]
    assert read(server, topic)[-1][1:] == ("k", "last")


def test_what_was_compacted_is_sound_and_survives_a_kill_of_everything(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"zookeeper.nodes": 1, "disk.check_ms": 100, "disk.free_bytes_min": 0}
    server = Server(tmp_path / "data", **settings)
    with server:
        admin = AdminClient({"bootstrap.servers": server.kafka})
        make(admin, "kept")
        pairs: list[tuple[str | None, str | None]] = [(f"k{n % 20}", "x" * (n % 100)) for n in range(3000)]
        assert produce(server, "kept", pairs) == []
        found = wait_compacted(server, "kept", lambda found: len(found) < 500)
        server.kill_supervisor()
    path = server.data_dir / "kept-0"
    with Server(server.data_dir, **settings) as server:
        again = read(server, "kept")
        assert set(again) <= set(found) and {one[1:] for one in again} >= {pair for pair in pairs[-20:]}
        assert server.stop() == 0
    assert verify(path).sound, verify(path)
    assert json.loads((path / "compaction").read_bytes())["dirty_start"] > 0
