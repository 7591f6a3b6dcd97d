"""What moves data by itself: Flink's source and sink, Spark's source and sink, and Kafka Connect."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ..support.ready import free_port
from ..support.server import Server, wait_for
from .adapters import (
    DEADLINE_S,
    KAFKA_VERSION,
    PROGRAMS,
    SHORT_LIVED,
    compiled,
    confluent_events,
    jars,
    new_topic,
    run,
)
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
def flink(program: str) -> list[str]:
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util")]
    path = compiled(f"flink-{program}", f"{program}.java", f"{jars('flink', FLINK)}/*")
    return ["java", "-Xmx512m", *SHORT_LIVED, *opened, "-cp", path, program]


def committed_lines(broker: Broker, topic: str, partitions: int) -> list[str]:
    """What a topic has, without what is in no committed transaction."""
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    lines, ends = [], 0
    for message in confluent_events(consumer):
        if message.error() is None:
            lines.append(message.value().decode())
        else:
            ends += 1
        if ends == partitions:
            break
    consumer.close()
    return lines


@pytest.mark.long
@pytest.mark.timeout(400)  # the first time its jars are fetched
def test_flink_reads_and_writes(broker: Broker) -> None:
    """Every line of three partitions, once, by way of two tasks."""
    source, target = create(broker, new_topic(), 3), create(broker, new_topic(), 2)
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5})
    lines = [f"line {number}" for number in range(LINES)]
    for number, line in enumerate(lines):
        producer.produce(source, line, partition=number % 3)
    assert producer.flush(DEADLINE_S) == 0
    run([*flink("Flink"), broker.kafka, source, target])
    assert sorted(committed_lines(broker, target, 2)) == sorted(line.upper() for line in lines)


@pytest.mark.long  # a job takes 10 s to start
@pytest.mark.timeout(600)
def test_flink_writes_exactly_once(broker: Broker, tmp_path: Path) -> None:
    """Jobs that are killed go on from a checkpoint, and end the transactions of those before as it says."""
    source, target = create(broker, new_topic(), 3), create(broker, new_topic(), 2)
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5})
    (tmp_path / "checkpoints").mkdir()
    command = [*flink("FlinkExactlyOnce"), broker.kafka, source, target, str(tmp_path / "checkpoints")]
    lines: list[str] = []

    def write(count: int) -> None:
        for _ in range(count):
            lines.append(f"line {len(lines)}")
            producer.produce(source, lines[-1], partition=len(lines) % 3)
        assert producer.flush(DEADLINE_S) == 0

    for enough in (0.2, 0.5, 0.8, 1):  # a job that is killed has written more than its last checkpoint has
        write(LINES)
        with (tmp_path / "flink.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wanted = len(lines) - LINES + int(enough * LINES)
            wait_for(lambda wanted=wanted: len(committed_lines(broker, target, 2)) >= wanted, "what it writes", 200)
            if enough < 1:
                write(LINES // 10)
        finally:
            process.kill()
            process.wait()
    assert sorted(committed_lines(broker, target, 2)) == sorted(line.upper() for line in lines)


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


# ---- Kafka Connect, which keeps what it knows in compacted topics

CONNECT = (f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}", f"org.apache.kafka:connect-file:{KAFKA_VERSION}")
FILES = "org.apache.kafka.connect.file.FileStream"
WORKER = """
bootstrap.servers={kafka}
group.id=connect
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.topic=connect-offsets
offset.storage.replication.factor=1
offset.storage.partitions=1
offset.storage.segment.bytes=2048
offset.storage.min.cleanable.dirty.ratio=0.01
offset.flush.interval.ms=100
config.storage.topic=connect-configs
config.storage.replication.factor=1
status.storage.topic=connect-status
status.storage.replication.factor=1
listeners=HTTP://127.0.0.1:{port}
plugin.path={plugins}
plugin.discovery=only_scan
"""


@contextmanager
def connect_worker(properties: Path, log: Path) -> Iterator[None]:
    """A worker, killed at the end: what it has not stored is lost with it."""
    libraries = f"{jars(f'connect-{KAFKA_VERSION}', CONNECT)}/*"
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    with log.open("ab") as output:
        command = ["java", "-Xmx384m", *SHORT_LIVED, "-cp", libraries, main, str(properties)]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def put_connector(port: int, name: str, config: dict[str, str]) -> bool:
    """Make a connector, or leave it; False while the worker cannot."""
    url = f"http://127.0.0.1:{port}/connectors/{name}/config"
    body = json.dumps(config | {"tasks.max": "1"}).encode()
    try:
        urlopen(Request(url, body, {"Content-Type": "application/json"}, method="PUT"), timeout=30).close()
    except (URLError, TimeoutError, ConnectionError):
        return False
    return True


def stored_position(server: Server) -> int:
    """How far Connect has read the file, as its topic of offsets says."""
    settings = {"bootstrap.servers": server.kafka, "group.id": "unused", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("connect-offsets", 0, OFFSET_BEGINNING)])
    position = 0
    for message in confluent_events(consumer):
        if message.error() is not None:
            break
        position = json.loads(message.value())["position"]
    consumer.close()
    return position


@pytest.mark.long  # a worker takes 20 s to start
@pytest.mark.timeout(500)
def test_connect_goes_on_where_a_killed_worker_was(tmp_path: Path) -> None:
    """Every line of a file comes into another one, by way of a topic; what Connect knows is in compacted topics."""
    port, source, target = free_port(), tmp_path / "in.txt", tmp_path / "out.txt"
    (tmp_path / "plugins").mkdir()
    reader = {"connector.class": f"{FILES}SourceConnector", "file": str(source), "topic": "lines"}
    writer = {"connector.class": f"{FILES}SinkConnector", "file": str(target), "topics": "lines"}
    settings: dict[str, Any] = {"zookeeper.nodes": 1, "disk.check_ms": 200, "disk.free_bytes_min": 0}

    def copied() -> bool:
        return target.exists() and set(target.read_text().splitlines()) >= set(source.read_text().splitlines())

    def stored() -> bool:
        return stored_position(server) == source.stat().st_size

    with Server(tmp_path / "data", **settings) as server:
        properties = tmp_path / "worker.properties"
        properties.write_text(WORKER.format(kafka=server.kafka, port=port, plugins=tmp_path / "plugins"))
        for first in (0, 1000):
            with connect_worker(properties, tmp_path / "log"):
                wait_for(lambda: put_connector(port, "source", reader), "the worker takes a connector", 180)
                wait_for(lambda: put_connector(port, "sink", writer), "the worker takes another one", 60)
                for start in range(first, first + 1000, 50):
                    with source.open("a") as file:
                        file.writelines(f"line {number}\n" for number in range(start, start + 50))
                    wait_for(copied, "its lines are copied", 120)
                wait_for(stored, "it has stored how far it is", 60)
        lines = target.read_text().splitlines()
        assert set(lines) == {f"line {number}" for number in range(2000)} and len(lines) < 3000, "it began again"
        wait_for(lambda: server.state["compaction"]["connect-offsets-0"]["compacted_to"], "its offsets are compacted")
        assert stored()
