"""systemd/OUTGROWING.md works as it is written there: from an appliance to a Kafka cluster, and from Kafka into one.

Method: commands and files are taken from the page, with the test's addresses and paths in place of those that it shows,
and nothing else.  Kafka's programs are those of its jars.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from ..support.kafka_cluster import KafkaCluster
from ..support.server import Server, wait_for
from .adapters import DEADLINE_S, SHORT_LIVED, confluent_events, jars, kafka_jars

PAGE = Path(__file__).parents[2] / "systemd" / "OUTGROWING.md"
MIRROR = (
    "org.apache.kafka:connect-mirror:4.3.1",
    "org.apache.kafka:connect-runtime:4.3.1",
    "org.slf4j:slf4j-simple:1.7.36",
)
"""There is no connect-mirror 4.4.0 in Maven's repository."""
PROGRAMS = {
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}
PARTS = [("orders", 0), ("orders", 1), ("orders", 2), ("prices", 0)]
MARKER_BYTES = 78
WAIT_S = 180


def blocks(heading: str, language: str) -> list[str]:
    """The code blocks of one language below a heading of the page."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert section, f"{PAGE.name} has no section {heading!r}"
    return re.findall(rf"^```{language}\n(.*?)^```\n", section[1], re.DOTALL | re.MULTILINE)


def commands(heading: str) -> list[str]:
    return [line.removeprefix("$ ") for block in blocks(heading, "console") for line in block.splitlines()]


class Host:
    """The host of the page: where Kafka's programs and the file of properties are."""

    def __init__(self, place: Path, server: Server, cluster: KafkaCluster) -> None:
        self.place, self.server, self.cluster = place, server, cluster
        (place / "bin").mkdir()
        mirror = jars("mirror", MIRROR)
        self._program("connect-mirror-maker.sh", "org.apache.kafka.connect.mirror.MirrorMaker", mirror)
        for name, main in PROGRAMS.items():
            self._program(name, main, cluster.jars)
        self._script("appliance", f'{sys.executable} -m appliance "$@"')

    def _program(self, name: str, main: str, libraries: Path) -> None:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        options = " ".join(("-Xmx320m", *SHORT_LIVED, quiet))
        self._script(name, f"{shutil.which('java')} {options} -cp '{libraries}/*' {main} \"$@\"")

    def _script(self, name: str, command: str) -> None:
        path = self.place / "bin" / name
        path.write_text(f"#!/bin/sh\nexec {command}\n")
        path.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.place / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "APPLIANCE_DATA": str(self.server.data_dir)}

    def here(self, text: str) -> str:
        """The text with the test's addresses and paths."""
        shown = {
            "logs.example.net:9092": self.server.kafka,
            "kafka1.example.net:9092, kafka2.example.net:9092": self.cluster.addresses,
            "kafka1.example.net:9092": self.cluster.nodes[0].address,
            "/etc/mirror.properties": str(self.place / "mirror.properties"),
        }
        for there, here in shown.items():
            text = text.replace(there, here)
        return text

    def run(self, command: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            self.here(command), shell=True, capture_output=True, text=True, timeout=120, env=self.environment
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    @contextmanager
    def mirror(self, how_it_ends: signal.Signals) -> Iterator[None]:
        """MirrorMaker as the page starts it."""
        (command,) = commands("2. Start to copy")
        with (self.place / "mirror.log").open("ab") as log:
            process = subprocess.Popen(
                shlex.split(self.here(command)), stdout=log, stderr=log, env=self.environment, cwd=self.place
            )
        try:
            yield
            assert process.poll() is None, (self.place / "mirror.log").read_text()[-3000:]
        finally:
            process.send_signal(how_it_ends)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outgrowing")


@pytest.fixture(scope="module")
def host(place: Path) -> Iterator[Host]:
    if shutil.which("java") is None:
        pytest.skip("no java")
    libraries, _ = Path(kafka_jars()), jars("mirror", MIRROR)
    with (
        Server(place / "data", **{"zookeeper.nodes": 1}) as server,
        KafkaCluster(place / "kafka", libraries) as cluster,
    ):
        server.wait_for_zookeeper()
        yield Host(place, server, cluster)


def create(address: str, topics: list[NewTopic]) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics(topics).values():
        created.result(DEADLINE_S)


def fill(address: str, topic: str, partitions: int, transactional_id: str) -> None:
    """What there may be: transactions of both ends, all codecs, keys and values that are missing, and empty headers."""
    settings = {"bootstrap.servers": address, "batch.num.messages": 7}
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = Producer({**settings, "compression.type": codec, "transactional.id": f"{transactional_id}-{number}"})
        producer.init_transactions(DEADLINE_S)
        for ending in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for index in range(40):
                headers: list[tuple[str, bytes | None]] = [("codec", codec.encode()), ("empty", b""), ("none", None)]
                key, value = f"k-{index % 9}", None if index % 9 == 8 else f"{codec}-{index}-{ending.__name__}-größe"
                timestamp = int(time.time() * 1000) - 1000 + index
                producer.produce(topic, value, key, index % partitions, headers=headers, timestamp=timestamp)
            ending(DEADLINE_S)


class Writing:
    """A producer that goes on until the end: ``n-0``, ``n-1``, … to the three partitions of a topic in turn."""

    def __init__(self, address: str, topic: str = "orders") -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "enable.idempotence": True})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            self._producer.produce(self._topic, f"n-{self.count}", f"k-{self.count % 9}", self.count % 3)
            self.count += 1
            self._producer.poll(0)
        assert self._producer.flush(DEADLINE_S) == 0

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.end()


def content(address: str, part: tuple[str, int]) -> list[tuple[Any, ...]]:
    """All that was committed in a partition, without offsets."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition(*part, OFFSET_BEGINNING)])
    messages = []
    for message in confluent_events(consumer):
        if message.error() is not None:
            break
        messages.append((message.key(), message.value(), message.headers(), message.timestamp()))
    consumer.close()
    return messages


def read_as(
    address: str, group: str, count: int | None = None, *, topic: str = "orders", reset: str = "earliest"
) -> list[bytes]:
    """The values of the next ``count`` messages of a group in a topic, or of all that there are; committed.

    ``reset``: where it begins in a partition of which it has no position.
    """
    settings = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": reset}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.subscribe([topic])
    values: list[bytes] = []
    ended: set[int] = set()
    for message in iter(lambda: consumer.poll(DEADLINE_S), None):  # one at a time: what is handed out is committed
        if message.error() is None:
            values.append(message.value())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise AssertionError(message.error())
        if len(values) == count or len(ended) == 3:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def numbers_in(values: list[bytes]) -> list[int]:
    """The numbers of a :class:`Writing` among values."""
    return sorted(int(value[2:]) for value in values if value and value.startswith(b"n-"))


def offsets_copied(text: str) -> dict[tuple[str, int], int]:
    """The message of each partition that was copied last, from what the second command of step 3 prints."""
    copied: dict[tuple[str, int], int] = {}
    for line in text.splitlines():
        key, _, value = line.partition("\t")
        connector, source = json.loads(key)
        if connector == "MirrorSourceConnector":
            copied[source["topic"], source["partition"]] = json.loads(value)["offset"]
    return copied


def ends_and_copied(host: Host) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """What the commands of step 3 print: where each partition ends, and the message that was copied last."""
    ends_command, positions_command = commands("3. Stop the producers, and wait for the copy")
    ends: dict[tuple[str, int], int] = {}
    for line in host.run(ends_command).splitlines():
        topic, number, end = line.split(":")
        ends[topic, int(number)] = int(end)
    return ends, offsets_copied(host.run(positions_command))


def all_copied(host: Host) -> bool:
    ends, copied = ends_and_copied(host)
    assert ends.keys() == set(PARTS)
    return all(copied.get(part, -1) + 1 in (end, end - MARKER_BYTES) for part, end in ends.items())


def lags(host: Host, group: str) -> dict[int, int]:
    """What the second command of step 4 prints: the lag of each partition of ``orders`` at the cluster."""
    command = commands("4. Let the consumers read to the end, and stop them")[1].replace("readers", group)
    rows = [line.split() for line in host.run(command).splitlines() if line.startswith(group)]
    return {int(row[2]): int(row[5]) for row in rows if row[5] != "-"}


def nothing_to_read(address: str, group: str, parts: list[TopicPartition]) -> bool:
    """Whether the positions of a group are behind the last message of each partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "enable.partition.eof": True})
    try:
        positions = consumer.committed(parts, DEADLINE_S)
        if any(position.offset < 0 for position in positions):
            return False
        consumer.assign(positions)
        events = itertools.islice(confluent_events(consumer), len(parts))
        return all(message.error() is not None for message in events)
    finally:
        consumer.close()


def settings_of(address: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": address})
    (answer,) = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in answer.result(DEADLINE_S).items()}


@pytest.mark.long  # MirrorMaker takes 20 s to start
@pytest.mark.timeout(600)
def test_from_a_cluster_into_an_appliance(host: Host) -> None:
    """What MirrorMaker writes here are transactions, of which none is lost or doubled by a kill of it or of us."""
    ours, theirs = host.server.kafka, host.cluster.addresses
    settings = {"retention.ms": "86400000", "compression.type": "gzip", "min.insync.replicas": "2"}
    create(theirs, [NewTopic("rates", 3, 2, config=settings)])
    create(theirs, [NewTopic("sites", 1, 2, config={"cleanup.policy": "compact"})])
    parts = [("rates", 0), ("rates", 1), ("rates", 2), ("sites", 0)]
    fill(theirs, "rates", 3, "rates-filler")
    fill(theirs, "sites", 1, "sites-filler")
    count = len(read_as(theirs, "theirs", topic="rates"))
    (properties,) = blocks("The other way", "properties")
    (host.place / "mirror.properties").write_text(host.here(properties))

    def all_equal() -> bool:
        return all(content(ours, part) == content(theirs, part) for part in parts)

    with Writing(theirs, "rates") as writing:
        with host.mirror(signal.SIGKILL):
            wait_for(lambda: content(ours, parts[0]), "some messages are copied", WAIT_S)
        with host.mirror(signal.SIGTERM):
            for role in ("writer", "coordinator", "network"):
                before = len(content(ours, parts[0]))
                host.server.kill(host.server.pids(role)[0])
                wait_for(lambda before=before: len(content(ours, parts[0])) > before, "it is copied on", WAIT_S)
            writing.end()
            wait_for(all_equal, "all is copied", WAIT_S)
            assert sum(len(content(ours, part)) for part in parts[:3]) == count + writing.count
            read_as(theirs, "theirs", topic="rates")
            at_end = [TopicPartition("rates", number) for number in range(3)]
            wait_for(lambda: nothing_to_read(ours, "theirs", at_end), "the positions of the group", WAIT_S)
    assert settings_of(ours, "rates")["retention.ms"] == "86400000"
    assert settings_of(ours, "sites")["cleanup.policy"] == "compact"


@pytest.mark.long  # MirrorMaker takes 20 s to start, three times
@pytest.mark.timeout(900)
def test_from_an_appliance_to_a_cluster(host: Host) -> None:
    ours, theirs = host.server.kafka, host.cluster.addresses
    create(ours, [NewTopic("orders", 3, config={"retention.ms": "86400000"})])
    create(ours, [NewTopic("prices", 1, config={"cleanup.policy": "compact"})])
    fill(ours, "orders", 3, "orders-filler")
    fill(ours, "prices", 1, "prices-filler")
    before = read_as(ours, "behind", 150)
    assert read_as(ours, "readers", 100)
    (properties,) = blocks("1. Prepare the cluster", "properties")
    compared = commands("5. Go on at the cluster")
    (host.place / "mirror.properties").write_text(host.here(properties))
    with Writing(ours) as writing:
        with host.mirror(signal.SIGKILL):
            wait_for(lambda: len(content(theirs, PARTS[0])) > 20, "some messages are copied", WAIT_S)
        with host.mirror(signal.SIGTERM):
            count = writing.count
            wait_for(lambda: writing.count > count + 500, "messages that are written meanwhile")
            writing.end()
            wait_for(lambda: all_copied(host), "all is copied", WAIT_S)
            read_as(ours, "readers")
            assert "readers" in host.run(commands("4. Let the consumers read to the end, and stop them")[0])
            wait_for(lambda: lags(host, "readers").keys() == {0, 1, 2}, "the positions of a group", WAIT_S)
            wait_for(lambda: max(lags(host, "readers").values()) <= 1, "it has read all", WAIT_S)
            wait_for(lambda: lags(host, "behind"), "the positions of another one", WAIT_S)
    moved = []
    for part in PARTS:
        here, there = content(ours, part), content(theirs, part)
        assert here == there, part
        moved += [message[1] for message in there if part[0] == "orders"]
        ranges = [line.replace("orders --partition 0", "{} --partition {}".format(*part)) for line in compared]
        assert len({host.run(line) for line in ranges}) == 1, part
    assert settings_of(theirs, "orders")["retention.ms"] == "86400000"
    assert settings_of(theirs, "prices")["cleanup.policy"] == "compact"
    with Writing(theirs) as going_on:
        wait_for(lambda: going_on.count > 100, "messages that are written at the cluster")
    host.cluster.kill(1)
    assert numbers_in(read_as(theirs, "readers", reset="error")) == list(range(going_on.count))
    assert Counter(read_as(theirs, "behind")) >= Counter(moved) - Counter(before)
