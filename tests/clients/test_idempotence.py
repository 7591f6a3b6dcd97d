"""Idempotent producers: nothing is duplicated, lost or out of order, and none of them fails for good.

While a network cuts connections at random; while their topic is deleted and made again; while writers are killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.client import Producer as NativeProducer
from appliance.errors import UnknownPartition
from appliance.records.encode import encode_values

from ..support.kafka_peer import KafkaPeer
from ..support.long import LONG
from ..support.native_peer import Peer
from ..support.server import stopped, wait_for
from .adapters import CLIENTS, DEADLINE_S, Client, confluent_events, confluent_read, expected, java, new_topic
from .conftest import Broker
from .proxy import CuttingProxy

MESSAGES = 1_000_000 if LONG else 300_000


@pytest.fixture(scope="module")
def cut_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, CuttingProxy]]:
    """An appliance whose only advertised address is that of the proxy."""
    data = tmp_path_factory.mktemp("cut") / "data"
    with (
        CuttingProxy(bytes_mean=300_000, seed=23) as proxy,
        Broker(data, {"kafka.advertised": proxy.address}) as broker,
    ):
        host, port = broker.kafka.rsplit(":", 1)
        proxy.target = host, int(port)
        yield broker, proxy


def test_librdkafka_loses_and_doubles_nothing(cut_broker: tuple[Broker, CuttingProxy]) -> None:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

    _, proxy = cut_broker
    topic, failures, cuts = new_topic(), [], proxy.cuts
    producer = Producer(
        {
            "bootstrap.servers": proxy.address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.num.messages": 500,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 5,
            "queue.buffering.max.messages": 200_000,
            "log_level": 0,
        }
    )

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(MESSAGES):
        while True:
            try:
                producer.produce(topic, b"%200d" % number, partition=0, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0 and not failures, failures[:3]
    assert proxy.cuts - cuts > MESSAGES * 200 // 1_000_000
    proxy.calm = True

    settings = {"bootstrap.servers": proxy.address, "group.id": "unused", "enable.partition.eof": True}
    settings |= {"log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    wanted = iter(range(MESSAGES))
    for message in confluent_events(consumer):
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        assert int(message.value()) == next(wanted)
    consumer.close()
    proxy.calm = False
    assert next(wanted, None) is None


IDEMPOTENT = [
    pytest.param(client, id=client.name, marks=[pytest.mark.long] if client.name == "franz-go" else [])
    for client in CLIENTS
    if client.name not in ("kafka-python", "kafka-go", "kafkajs")  # kafka-go has no idempotent producer
]


@pytest.mark.parametrize("client", IDEMPOTENT)
def test_other_idempotent_clients(cut_broker: tuple[Broker, CuttingProxy], client: Client) -> None:
    """So many messages in a tenth of so many requests, while connections live for some kilobytes."""
    _, proxy = cut_broker
    topic, count, mean = new_topic(), 2_000 if LONG else 500, proxy.bytes_mean
    proxy.bytes_mean = 20_000
    try:
        client.produce(proxy.address, topic, "none", count)
    finally:
        proxy.bytes_mean, proxy.calm = mean, True
    messages = confluent_read(proxy.address, topic, 0, count)
    proxy.calm = False
    assert [tuple(message[1:]) for message in messages] == [expected(i) for i in range(count)]


# ---- a topic that is made again


@pytest.fixture(scope="module")
def plain_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """An appliance where no client makes a topic again by asking for it."""
    settings = {"zookeeper.nodes": 0, "topics.auto_create": False, "network.workers": 2}
    with Broker(tmp_path_factory.mktemp("plain") / "data", settings) as broker:
        yield broker


def values_of(broker: Broker, topic: str) -> list[bytes]:
    """All messages of partition 0."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {"bootstrap.servers": broker.kafka, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    for message in confluent_events(consumer):
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        values.append(message.value())
    consumer.close()
    return values


MakeAgain = Callable[[], None]
BEFORE, AFTER = 150, 150


def confluent_through(broker: Broker, topic: str, make_again: MakeAgain) -> list[str]:
    from confluent_kafka import Producer

    failures: list[str] = []
    settings = {"bootstrap.servers": broker.kafka, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1}
    producer = Producer({**settings, "log_level": 0})
    for number in range(BEFORE + AFTER):
        if number == BEFORE:
            make_again()
        delivered = lambda error, message: failures.append(error.name()) if error else None  # noqa: E731
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=delivered)
        producer.poll(0.001)
    assert producer.flush(DEADLINE_S) == 0
    return failures


def kafka_python_through(broker: Broker, topic: str, make_again: MakeAgain) -> list[str]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.kafka, enable_idempotence=True, linger_ms=0, batch_size=1)
    sent = []
    for number in range(BEFORE + AFTER):
        if number == BEFORE:
            sent[0].get(DEADLINE_S)
            make_again()
        sent.append(producer.send(topic, b"%d" % number, partition=0))
    producer.flush(DEADLINE_S)
    failures = [type(future.exception).__name__ for future in sent if future.exception is not None]
    producer.close()
    return failures


def aiokafka_through(broker: Broker, topic: str, make_again: MakeAgain) -> list[str]:
    from aiokafka import AIOKafkaProducer

    async def run() -> list[str]:
        producer = AIOKafkaProducer(bootstrap_servers=broker.kafka, enable_idempotence=True, linger_ms=0)
        await producer.start()
        sent = []
        for number in range(BEFORE + AFTER):
            if number == BEFORE:
                await asyncio.to_thread(make_again)
            sent.append(await producer.send(topic, b"%d" % number, partition=0))
            await asyncio.sleep(0)
        results = await asyncio.gather(*sent, return_exceptions=True)
        await producer.stop()
        return [type(result).__name__ for result in results if isinstance(result, BaseException)]

    return asyncio.run(asyncio.wait_for(run(), 2 * DEADLINE_S))


def native_through(broker: Broker, topic: str, make_again: MakeAgain) -> list[str]:
    failures: list[str] = []
    with NativeProducer(broker.native, linger_ms=0, batch_messages_max=1) as producer:
        for number in range(BEFORE + AFTER):
            if number == BEFORE:
                make_again()
            told = lambda error, *_: failures.append(type(error).__name__) if error else None  # noqa: E731
            with suppress(UnknownPartition):
                producer.send(topic, b"%d" % number, partition=0, on_delivery=told)
        producer.flush(DEADLINE_S)
    return failures


@pytest.mark.parametrize("through", [confluent_through, kafka_python_through, aiokafka_through, native_through])
def test_a_producer_goes_on_when_its_topic_is_made_again(
    plain_broker: Broker, through: Callable[[Broker, str, MakeAgain], list[str]]
) -> None:
    """Goal: no error, and all that was sent after the topic was made again is there once, in order."""
    topic = new_topic()
    with Peer(plain_broker.native) as peer:
        peer.create(topic)

        def make_again() -> None:
            peer.admin("delete_topic", name=topic)
            peer.create(topic)

        assert through(plain_broker, topic, make_again) == []
    numbers = [int(value) for value in values_of(plain_broker, topic)]
    assert numbers == list(range(numbers[0], BEFORE + AFTER)) and numbers[0] <= BEFORE


def test_a_producer_of_java_goes_on_when_its_topic_is_made_again(plain_broker: Broker) -> None:
    topic = new_topic()
    with Peer(plain_broker.native) as peer:
        peer.create(topic)
    assert java("MadeAgain", plain_broker.kafka, topic, str(BEFORE)).split() == [str(2 * BEFORE)]
    numbers = [int(value) for value in values_of(plain_broker, topic)]
    assert numbers == list(range(numbers[0], 2 * BEFORE)) and numbers[0] <= BEFORE


# ---- writers that are killed


KILLS = 60 if LONG else 8


def confluent_writes(broker: Broker, topic: str, name: str, count: int) -> list[str]:
    from confluent_kafka import Producer

    failures: list[str] = []
    settings = {"bootstrap.servers": broker.kafka, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 3}
    backoff = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 5}
    producer = Producer({**settings, **backoff, "log_level": 0})
    for number in range(count):
        delivered = lambda error, message: failures.append(error.name()) if error else None  # noqa: E731
        producer.produce(topic, b"%s %d" % (name.encode(), number), partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    return failures


def native_writes(broker: Broker, topic: str, name: str, count: int) -> list[str]:
    failures: list[str] = []
    told = lambda error, *_: failures.append(type(error).__name__) if error else None  # noqa: E731
    with NativeProducer(broker.native, linger_ms=0, batch_messages_max=3) as producer:
        for number in range(count):
            producer.send(topic, b"%s %d" % (name.encode(), number), partition=0, on_delivery=told)
        producer.flush(DEADLINE_S)
    return failures


@pytest.mark.parametrize("handoff_bytes", [0, 64 << 20])
def test_new_producers_keep_their_order_while_writers_are_killed(tmp_path: Path, handoff_bytes: int) -> None:
    """Goal: a batch in flight at a writer that dies is not overtaken by those behind it, nor doubled.

    Method: producers that the log does not know begin all the time, so that any sequence would be taken from them.
    """
    topic, failures, written = new_topic(), [], {}
    settings = {"zookeeper.nodes": 0, "network.workers": 2, "network.handoff_bytes_max": handoff_bytes}
    over = threading.Event()
    with Broker(tmp_path / "data", settings) as broker:
        with Peer(broker.native) as peer:
            peer.create(topic)

        def begin_producers(kind: str, write: Callable[[Broker, str, str, int], list[str]]) -> None:
            life = 0
            while not over.is_set():
                life += 1
                failures.extend(write(broker, topic, f"{kind}-{life}", 200))
                written[f"{kind}-{life}"] = 200

        writes: dict[str, Any] = {"a": confluent_writes, "b": confluent_writes, "c": native_writes}
        threads = [threading.Thread(target=begin_producers, args=pair) for pair in writes.items()]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            before = sum(written.values())
            wait_for(lambda: sum(written.values()) > before or failures, "more to be written", 2 * DEADLINE_S)  # noqa: B023
            for pid in broker.pids("writer"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        over.set()
        for thread in threads:
            thread.join()
        found: dict[str, list[int]] = {}
        for value in values_of(broker, topic):
            name, number = value.split()
            found.setdefault(name.decode(), []).append(int(number))
    assert failures == []
    assert found == {name: list(range(count)) for name, count in written.items()}


def batch_of(producer_id: int, sequence: int, value: bytes) -> bytes:
    return encode_values([value], 1_000, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def test_what_follows_a_batch_that_died_with_its_writer_is_not_appended(tmp_path: Path) -> None:
    """Method: the writer stands still with the first batch of a producer, and is killed; the second one follows."""
    topic = new_topic()

    def ask(peer: KafkaPeer, sequence: int) -> None:
        part = {"name": topic, "partition_data": [{"index": 0, "records": batch_of(7, sequence, b"%d" % sequence)}]}
        peer.send("Produce", 8, acks=-1, timeout_ms=10_000, topic_data=[part])

    settings = {"zookeeper.nodes": 0, "network.workers": 1, "liveness.timeout_ms": 600_000}
    with Broker(tmp_path / "data", settings) as broker, Peer(broker.native) as other:
        other.create(topic)
        assert other.produce(topic, encode_values([b"first"], 1_000))[0] == 0
        writer = broker.pid_of("writer")
        with KafkaPeer(broker.kafka) as peer, stopped(writer, may_die=True):
            ask(peer, 0)
            for _ in range(2):  # so many turns of the one worker
                other.fetch(topic, 0)
            broker.kill(writer)
            ask(peer, 1)
            with pytest.raises((EOFError, ConnectionError)):
                peer.receive("Produce", 8)
        with KafkaPeer(broker.kafka) as peer:
            for sequence in (0, 1):
                ask(peer, sequence)
                said = peer.receive("Produce", 8).responses[0].partition_responses[0]
                assert said.error_code == 0, said
        assert values_of(broker, topic) == [b"first", b"0", b"1"]
