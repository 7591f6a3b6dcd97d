"""Holes that repair leaves in a log: the clients that people use read everything else, up to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.client import Consumer, Producer
from appliance.log.files import log_path
from appliance.log.tools import DumpedBatch, dump
from appliance.records.holes import HOLE_BYTES_MAX, HOLE_BYTES_MIN

from ..support.command_line import succeeding
from ..support.server import Server, wait_for

TOPIC = "web"
BATCHES: list[list[bytes | None]] = [
    [b"first"],
    [b"small"],
    [b"second", b"third"],
    [None],  # smaller than a hole with a text
    [b"fourth"],
    [b"large" * HOLE_BYTES_MAX],
    [b"fifth"],
    [b"one"],
    [b"after the other"],
    [b"sixth"],
    [b"last"],
]
DAMAGED = (1, 3, 5, 7, 8, 10)
LEFT = [value for number, values in enumerate(BATCHES) for value in values if number not in DAMAGED]


@pytest.fixture(scope="module")
def holed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A log with holes of all kinds; two damaged neighbours become one, and the log ends with one."""
    with Server(tmp_path_factory.mktemp("holes") / "data") as server:
        succeeding("topics", "create", TOPIC, "--data", str(server.data_dir))
        with Producer(server.native) as producer:
            for values in BATCHES:
                for value in values:
                    producer.send(TOPIC, value)
                producer.flush()
        server.stop()
        path = server.data_dir / f"{TOPIC}-0"
        _damage(path)
        succeeding("log", "repair", "--data", str(server.data_dir))
        sizes = [found.header.size for found in dump(path) if isinstance(found, DumpedBatch) and found.is_hole]
        assert min(sizes) < HOLE_BYTES_MIN and max(sizes) == HOLE_BYTES_MAX
        yield server.start()


def _damage(path: Path) -> None:
    file = log_path(path, 0)
    data = bytearray(file.read_bytes())
    found = [batch for batch in dump(path) if isinstance(batch, DumpedBatch)]
    assert len(found) == len(BATCHES)
    for number in DAMAGED:
        data[found[number].position + 16 : found[number].position + 60] = b"\xa5" * 44
    file.write_bytes(data)


def end_of(server: Server) -> int:
    return log_path(server.data_dir / f"{TOPIC}-0", 0).stat().st_size


def until_the_end(
    read: Callable[[], list[bytes | None]], position: Callable[[], int], server: Server
) -> tuple[list[bytes | None], int]:
    """What a reader finds that gives up when nothing comes for a second, and its position at the end."""
    values: list[bytes | None] = []
    wait_for(lambda: values.extend(read()) or position() >= end_of(server), "all to be read")
    return values, position()


def with_consumer(server: Server) -> tuple[list[bytes | None], int]:
    with Consumer(server.native) as consumer:
        consumer.assign_topic(TOPIC)
        return until_the_end(
            lambda: [message.value for message in consumer.messages(1)], lambda: consumer.position(TOPIC, 0), server
        )


def with_batches(server: Server) -> tuple[list[bytes | None], int]:
    with Consumer(server.native, check_crc=False) as consumer:
        consumer.assign_topic(TOPIC)
        return until_the_end(
            lambda: [value for batch in consumer.fetch_batches(1) for value in batch.values],
            lambda: consumer.position(TOPIC, 0),
            server,
        )


def with_confluent(server: Server) -> tuple[list[bytes | None], int]:
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
    from confluent_kafka import Consumer as Confluent

    settings = {"bootstrap.servers": server.kafka, "group.id": "g", "enable.partition.eof": True, "check.crcs": True}
    consumer = Confluent(settings)
    try:
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        values: list[bytes | None] = []
        while True:
            message = consumer.poll(60)
            assert message is not None, values
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return values, message.offset() or -1
            values.append(message.value())  # type: ignore[arg-type]
    finally:
        consumer.close()


def with_kafka_python(server: Server) -> tuple[list[bytes | None], int]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=server.kafka, consumer_timeout_ms=1000)
    try:
        consumer.assign([TopicPartition(TOPIC, 0)])
        consumer.seek_to_beginning()
        return until_the_end(
            lambda: [message.value for message in consumer], lambda: consumer.position(TopicPartition(TOPIC, 0)), server
        )
    finally:
        consumer.close()


def with_aiokafka(server: Server) -> tuple[list[bytes | None], int]:
    return asyncio.run(_aiokafka(server))


async def _aiokafka(server: Server) -> tuple[list[bytes | None], int]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=server.kafka)
    await consumer.start()
    try:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning()
        values: list[bytes | None] = []
        while await consumer.position(partition) < end_of(server):
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                values += [message.value for message in messages]
        return values, await consumer.position(partition)
    finally:
        await consumer.stop()


@pytest.mark.parametrize("read", [with_consumer, with_batches, with_confluent, with_kafka_python, with_aiokafka])
def test_clients_step_over_holes(holed: Server, read: Callable[[Server], tuple[list[bytes | None], int]]) -> None:
    values, position = read(holed)
    assert values == LEFT
    assert position == end_of(holed)
