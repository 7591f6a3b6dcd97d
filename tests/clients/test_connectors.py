"""Stream processors with the Kafka connectors that they bring: Flink's source and sink, Spark's source and sink."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .adapters import DEADLINE_S, PROGRAMS, SHORT_LIVED, compiled, confluent_events, jars, new_topic, run
from .conftest import Broker

LINES = 3_000
FLINK = (
    "org.apache.flink:flink-clients:1.20.1",
    "org.apache.flink:flink-connector-base:1.20.1",
    "org.apache.flink:flink-connector-kafka:3.4.0-1.20",
)
SPARK = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
"""Of what the first one needs, these are what Spark does not have already."""


def create(broker: Broker, topic: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)
    return topic


@functools.cache
def flink() -> list[str]:
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util")]
    return [
        "java",
        "-Xmx512m",
        *SHORT_LIVED,
        *opened,
        "-cp",
        compiled("flink-job", "Flink.java", f"{jars('flink', FLINK)}/*"),
        "Flink",
    ]


@pytest.mark.timeout(400)  # the first time its jars are fetched
def test_flink_reads_and_writes(broker: Broker) -> None:
    """Every line of three partitions, once, by way of two tasks."""
    source, target = create(broker, new_topic(), 3), create(broker, new_topic(), 2)
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5})
    lines = [f"line {number}" for number in range(LINES)]
    for number, line in enumerate(lines):
        producer.produce(source, line, partition=number % 3)
    assert producer.flush(DEADLINE_S) == 0
    run([*flink(), broker.kafka, source, target])
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition(target, partition, OFFSET_BEGINNING) for partition in range(2)])
    found, ends = [], 0
    for message in confluent_events(consumer):
        if message.error() is None:
            found.append(message.value().decode())
        else:
            ends += 1
        if ends == 2:
            break
    consumer.close()
    assert sorted(found) == sorted(line.upper() for line in lines)


@pytest.mark.long  # a minute; the Java client that it uses has tests of its own
@pytest.mark.timeout(400)
def test_sparks_own_connector_reads_writes_and_goes_on(broker: Broker, tmp_path: Path) -> None:
    """A thousand rows as a batch and as a stream; five hundred more, and the stream reads no more than these."""
    pytest.importorskip("pyspark")
    found = jars("spark-kafka", SPARK, alone=True)
    needed = ",".join(str(found / "{1}-{2}.jar".format(*artifact.split(":"))) for artifact in SPARK)
    topic = create(broker, new_topic(), 2)
    out = run([sys.executable, str(PROGRAMS / "spark_kafka.py"), broker.kafka, topic, needed, str(tmp_path)])
    assert out.split() == ["1000"] * 4 + ["1500"] * 2
