"""Kafka Streams counts words exactly once, although its processes and ours are killed at random."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ..support.server import Server, wait_for
from .adapters import DEADLINE_S, SHORT_LIVED, compiled, confluent_events, jars

STREAMS = ("org.apache.kafka:kafka-streams:4.4.0", "org.slf4j:slf4j-simple:1.7.36")
PARTITIONS = 2
WORDS = ("one", "two", "three", "five", "eight", "thirteen", "twenty-one")
KILLS = 16
SEED = 30


class Instance:
    """One process of the application."""

    def __init__(self, server: Server, place: Path) -> None:
        if shutil.which("java") is None:
            pytest.skip("no java")
        path = compiled("java-WordCount", "WordCount.java", f"{jars('streams', STREAMS)}/*")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        arguments = [server.kafka, "words", "lines", "counts", str(place)]
        self._command = ["java", "-Xmx256m", *SHORT_LIVED, quiet, "-cp", path, "WordCount", *arguments]
        self._log = place.with_suffix(".log")
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    settings = {"zookeeper.nodes": 1, "disk.check_ms": 200, "disk.free_bytes_min": 0}
    with Server(tmp_path / "data", **settings) as started:
        started.wait_for_zookeeper()
        admin = AdminClient({"bootstrap.servers": started.kafka})
        for created in admin.create_topics([NewTopic(name, PARTITIONS) for name in ("lines", "counts")]).values():
            created.result(DEADLINE_S)
        yield started


def counted(server: Server) -> dict[str, list[int]]:
    """For each word what was said of it, in the order of the log."""
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition("counts", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    numbers: dict[str, list[int]] = defaultdict(list)
    ends = 0
    for message in confluent_events(consumer):
        if message.error() is None:
            numbers[message.key().decode()].append(int(message.value()))
        else:
            ends += 1
        if ends == PARTITIONS:
            break
    consumer.close()
    return numbers


def strike(server: Server, instances: list[Instance], chance: random.Random) -> None:
    """Kill one process: of the application, which is started again, or of the appliance, which does so itself."""
    role = chance.choice(["application"] * 3 + ["coordinator", "network", "writer"])
    if role == "application":
        instance = chance.choice(instances)
        instance.kill()
        instance.start()
    else:
        server.kill(chance.choice(wait_for(lambda: server.pids(role), role)))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_words_are_counted_exactly_once(server: Server, tmp_path: Path) -> None:
    """What is said of a word are the numbers from 1 to how often it was there, each once and in order."""
    chance = random.Random(SEED)
    producer = Producer({"bootstrap.servers": server.kafka, "enable.idempotence": True})
    expected: Counter[str] = Counter()

    def write() -> None:
        for _ in range(50):
            words = chance.choices(WORDS, k=4)
            expected.update(words)
            producer.produce("lines", " ".join(words), partition=chance.randrange(PARTITIONS))
        assert producer.flush(DEADLINE_S) == 0

    def total() -> int:
        return sum(map(len, counted(server).values()))

    instances = [Instance(server, tmp_path / f"state-{number}") for number in range(2)]
    try:
        write()
        wait_for(total, "the first counts", 180)
        for _ in range(KILLS):
            write()
            before = total()
            strike(server, instances, chance)
            wait_for(lambda before=before: total() > before or total() == expected.total(), "it goes on", 180)
        wait_for(lambda: total() >= expected.total(), "all words are counted", 300)
    finally:
        for instance in instances:
            instance.kill()
    assert counted(server) == {word: list(range(1, count + 1)) for word, count in expected.items()}
