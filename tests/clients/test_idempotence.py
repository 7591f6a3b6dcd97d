"""Producers that retry, on a network that cuts connections at random: nothing duplicated, lost or out of order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..long import LONG
from .adapters import CLIENTS, DEADLINE_S, Client, confluent_events, confluent_read, expected, new_topic
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
    pytest.param(client, id=client.name)
    for client in CLIENTS
    if client.name not in ("kafka-python", "kafka-go", "kafkajs")  # kafka-go has no idempotent producer
]


@pytest.mark.parametrize("client", IDEMPOTENT)
def test_other_idempotent_clients(cut_broker: tuple[Broker, CuttingProxy], client: Client) -> None:
    """Two thousand messages in two hundred requests, while connections live for some kilobytes."""
    _, proxy = cut_broker
    topic, count, mean = new_topic(), 2_000, proxy.bytes_mean
    proxy.bytes_mean = 20_000
    try:
        client.produce(proxy.address, topic, "none", count)
    finally:
        proxy.bytes_mean, proxy.calm = mean, True
    messages = confluent_read(proxy.address, topic, 0, count)
    proxy.calm = False
    assert [tuple(message[1:]) for message in messages] == [expected(i) for i in range(count)]
