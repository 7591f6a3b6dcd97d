"""Offsets as clients see them: ends, lag, time, retention, and reading at places where no record begins."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient, NewTopic

from .adapters import (
    BATCH,
    DEADLINE_S,
    confluent_events,
    confluent_produce,
    confluent_read,
    expected,
    kcat,
    new_topic,
)
from .conftest import Broker

COUNT = 40


@pytest.fixture(scope="module")
def filled(broker: Broker) -> tuple[str, list[int]]:
    topic = new_topic()
    return topic, confluent_produce(broker.kafka, topic, "none", COUNT)


def test_a_caught_up_consumer_has_no_lag(broker: Broker, filled: tuple[str, list[int]]) -> None:
    """Last record + 1 is the end of the log, for a client that never sees batch headers, too."""
    topic, offsets = filled
    settings = {"bootstrap.servers": broker.kafka, "group.id": f"lag-{uuid.uuid4()}", "enable.partition.eof": True}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    count = 0
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            break
        count += 1
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)
    position = consumer.position([TopicPartition(topic, 0)])[0].offset
    consumer.close()
    assert (count, low, high, position) == (COUNT, 0, offsets[-1] + 1, offsets[-1] + 1)


def test_kafka_python_reaches_the_end_that_it_was_told(broker: Broker, filled: tuple[str, list[int]]) -> None:
    topic, offsets = filled
    partition = KafkaPythonPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=broker.kafka, enable_auto_commit=False)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    count = 0
    while count < COUNT:
        count += sum(map(len, consumer.poll(timeout_ms=10_000).values()))
    assert consumer.position(partition) == consumer.end_offsets([partition])[partition] == offsets[-1] + 1
    assert consumer.beginning_offsets([partition])[partition] == 0
    consumer.close()


def test_every_offset_of_the_log_can_be_read_from(broker: Broker, filled: tuple[str, list[int]]) -> None:
    """Each single one of three batches: the next message at or after it comes, and no other."""
    topic, offsets = filled
    settings = {"bootstrap.servers": broker.kafka, "group.id": "unused", "fetch.wait.max.ms": 5}
    consumer = Consumer(settings)
    for start in range(0, offsets[3 * BATCH - 1] + 2, 7):
        first = next(index for index, offset in enumerate(offsets) if offset >= start)
        consumer.assign([TopicPartition(topic, 0, start)])
        message = consumer.poll(DEADLINE_S)
        assert message is not None and message.error() is None
        assert (message.offset(), (message.value() or b"").decode()) == (offsets[first], expected(first)[1])
    consumer.close()


def test_offsets_by_time(broker: Broker, filled: tuple[str, list[int]]) -> None:
    """The answer is a record at or before the first with that time, in the same batch; nothing is skipped."""
    topic, offsets = filled
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "unused"})
    for index in (0, 1, BATCH - 1, BATCH, COUNT - 1):
        asked = TopicPartition(topic, 0, expected(index)[3])
        (found,) = consumer.offsets_for_times([asked], timeout=DEADLINE_S)
        assert offsets[index - index % BATCH] <= found.offset <= offsets[index]
    (after,) = consumer.offsets_for_times([TopicPartition(topic, 0, expected(COUNT)[3])], timeout=DEADLINE_S)
    consumer.close()
    assert after.offset in (-1, offsets[-1] + 1)


def test_beyond_the_end_is_out_of_range(broker: Broker, filled: tuple[str, list[int]]) -> None:
    topic, offsets = filled
    settings = {"bootstrap.servers": broker.kafka, "group.id": "unused", "auto.offset.reset": "error"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, offsets[-1] + 1000)])
    message = consumer.poll(DEADLINE_S)
    consumer.close()
    error = message.error() if message is not None else None
    assert error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET


def test_where_acks_1_has_just_written_is_not_out_of_range(broker: Broker) -> None:
    """A reader at an offset that is told already, but shown only once it is flushed, waits as at the tail."""
    topic = new_topic()
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    flushed_late = {"flush.messages": "1000", "flush.ms": "1000"}
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1, topic_configs=flushed_late)])
    admin.close()
    told: list[int] = []
    producer = Producer({"bootstrap.servers": broker.kafka, "acks": "1"})
    for value in (b"first", b"second"):
        producer.produce(topic, value, partition=0, on_delivery=lambda _, message: told.append(message.offset()))
        assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "unused", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, told[1])])
    message = consumer.poll(DEADLINE_S)
    consumer.close()
    assert message is not None and message.error() is None and message.value() == b"second"


def test_the_tail_of_an_empty_topic(broker: Broker) -> None:
    """A consumer waits at the end; the first message ever comes to it."""
    topic = new_topic()
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=1)])
    admin.close()
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "unused", "auto.offset.reset": "latest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.3) is None
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, b"first", partition=0)
    producer.flush(DEADLINE_S)
    message = consumer.poll(DEADLINE_S)
    consumer.close()
    assert message is not None and message.value() == b"first"


def test_kcat_reads_from_an_offset_and_the_last_messages(broker: Broker, filled: tuple[str, list[int]]) -> None:
    topic, offsets = filled
    common = ("-b", broker.kafka, "-t", topic, "-C", "-p", "0", "-e", "-q", "-f", "%o %k %s\n")
    lines = [f"{offset} {expected(i)[0]} {expected(i)[1]}" for i, offset in enumerate(offsets)]
    assert kcat(*common, "-o", "beginning").splitlines() == lines
    assert kcat(*common, "-o", str(offsets[13])).splitlines() == lines[13:]
    assert kcat(*common, "-o", "-3").splitlines() == lines[-3:]


def test_retention_moves_the_beginning_and_readers_follow(broker: Broker) -> None:
    """DeleteRecords moves it to the offset, in a batch or not; who was before it is reset to it."""
    topic = new_topic()
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    settings = {"segment.bytes": "65536"}
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1, topic_configs=settings)])
    producer = Producer({"bootstrap.servers": broker.kafka, "batch.num.messages": 10, "linger.ms": 1000})
    for number in range(1_000):
        producer.produce(topic, b"%400d" % number, partition=0)
        if number % 10 == 9:
            producer.flush(DEADLINE_S)
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "unused", "auto.offset.reset": "earliest"})
    _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)
    admin.delete_records({KafkaPythonPartition(topic, 0): high // 2})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S) == (high // 2, high)
    consumer.assign([TopicPartition(topic, 0, 0)])
    numbers = take_until(consumer, 999)
    assert numbers == list(range(numbers[0], 1_000)) and 0 < numbers[0] < 1_000
    assert confluent_end(broker.kafka, topic) == high
    admin.delete_records({KafkaPythonPartition(topic, 0): -1})
    admin.close()
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S) == (high, high)
    producer.produce(topic, b"1000", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    assert take_until(consumer, 1_000) == [1_000]
    consumer.close()


def take_until(consumer: Consumer, last: int) -> list[int]:
    numbers: list[int] = []
    for message in confluent_events(consumer):
        assert message.error() is None, message.error()
        numbers.append(int(message.value()))
        if numbers[-1] == last:
            break
    return numbers


def confluent_end(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)
    consumer.close()
    return int(high)


def test_reading_again_after_a_restart_gives_the_same(broker: Broker, filled: tuple[str, list[int]]) -> None:
    topic, offsets = filled
    assert broker.stop() == 0
    broker.start()
    assert [m.offset for m in confluent_read(broker.kafka, topic, 0, COUNT)] == offsets
