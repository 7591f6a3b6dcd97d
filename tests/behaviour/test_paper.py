"""The paper on real parts: each test holds one statement of *Kafka: a Distributed Messaging System for Log Processing*.

A docstring names its section first: "3.1, Simple storage" is a section of the paper (NetDB'11), "0.7.2, Disk" what its
implementation, Kafka 0.7.2, does.  Then come what is stated, the goal and the method.  A "+" marks
where this appliance does better than the system of the paper, and how.

One appliance with one ZooKeeper node serves the module; who breaks things starts an appliance of its own.  Here a
batch is what the paper calls a message set; the paper's offset of the next message is where the next batch begins.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from appliance.client import EARLIEST, LATEST, Admin, Consumer, GroupConsumer, Producer, Whitelist
from appliance.config import TopicSettings
from appliance.errors import CorruptBatch, OffsetOutOfRange
from appliance.records.batch import ATTRIBUTES_AT, CODEC_MASK, read_header, walk
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_values
from appliance.wire import native
from appliance.zookeeper.paths import BrokerInfo, decode_broker, decode_subscription, decode_topic

from ..support.group_readers import Member, MemberProcess, Reader
from ..support.native_peer import Peer
from ..support.server import Server, wait_for

TIMEOUT_S = 60
SESSION_MS = 2_000
CORRUPT, OUT_OF_RANGE = CorruptBatch.code, OffsetOutOfRange.code

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to watch system calls")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings: dict[str, Any] = {"zookeeper.nodes": 1, "zookeeper.session_timeout_ms": SESSION_MS}
    with Server(tmp_path_factory.mktemp("paper") / "data", **settings) as running:
        running.wait_for_zookeeper()
        yield running


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    with Peer(server.native) as connected:
        yield connected


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    with Admin(server.native) as connected:
        yield connected


@pytest.fixture(scope="module")
def tree(server: Server) -> Iterator[KazooClient]:
    """ZooKeeper, seen from outside."""
    client = server.zookeeper_client()
    client.start()
    yield client
    client.stop()
    client.close()


def directory(server: Server, topic: str, partition: int = 0) -> Path:
    return server.data_dir / f"{topic}-{partition}"


def segments(server: Server, topic: str) -> list[Path]:
    return sorted(directory(server, topic).glob("*.log"))


def stored(server: Server, topic: str) -> bytes:
    """The whole log as it is on the disk."""
    return b"".join(path.read_bytes() for path in segments(server, topic))


def publish(server: Server, topic: str, values: list[bytes], partition: int | None = None) -> None:
    """All of them are flushed when this returns; without a partition, each goes where its value, as a key, says."""
    with Producer(server.native) as producer:
        for value in values:
            producer.send(topic, value, partition=partition, key=value if partition is None else None)


def numbers(stop: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, stop)]


def counts(log: bytes) -> list[int]:
    """The numbers of messages in the batches of a log."""
    return [read_header(log, start).count for start, *_ in walk(memoryview(log), 0, len(log))]


def emptied(path: Path) -> bool:
    """Whether nothing is in a segment's file, or it has been deleted."""
    try:
        return not path.stat().st_size
    except FileNotFoundError:
        return True


def until(condition: Callable[[], Any], what: str) -> Any:
    return wait_for(condition, what, TIMEOUT_S)


def writers(server: Server, topic: str) -> list[int]:
    return [row["pid"] for row in server.processes("writer") if row["topic"] == topic]


@contextmanager
def straced(pids: list[int], output: Path, *arguments: str) -> Iterator[None]:
    """``strace`` on these processes and their threads while the block runs; it can inject faults, too."""
    targets = [word for pid in pids for word in ("-p", str(pid))]
    command = ["strace", "-f", "-y", "-o", str(output), *arguments, *targets]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    try:
        for _ in pids:
            if "attached" not in (line := tracer.stderr.readline()):
                pytest.skip(f"strace cannot attach here: {line.strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.wait()
        tracer.stderr.close()


# ---- 3.1, Simple storage


def test_a_message_is_addressed_by_its_logical_offset(server: Server, peer: Peer, topic: str) -> None:
    """3.1, Simple storage: "a message stored in Kafka doesn't have an explicit message id.  Instead, each message is
    addressed by its logical offset in the log".

    Goal: an offset is a place in the log, nothing has to be looked up to find it, and nothing else names a message.
    Method: what a fetch at an offset returns is what the file holds at that byte, for every batch and for offsets
    in the middle of a batch; on its way in nothing but the 8 bytes of the base offset was changed.
    """
    peer.create(topic)
    batches = [encode_values([b"x" * size] * 3, 1_000) for size in (1, 50, 7, 300)]
    starts = []
    for batch in batches:
        error, base, end, message = peer.produce(topic, batch, acks=-1)
        assert error == 0, message
        starts.append(end - len(batch))
        assert base == end - 3, "three messages, the last of which ends where the batch does"
    log = stored(server, topic)
    for start, batch in zip(starts, batches, strict=True):
        assert log[start + 8 : start + len(batch)] == batch[8:]
        for offset in (start, start + 1, start + len(batch) - 1):
            part, data = peer.fetch(topic, offset)
            assert part[0] == 0 and data == log[start:]


def test_the_next_offset_is_this_one_plus_the_length(peer: Peer, topic: str) -> None:
    """3.1, Simple storage: "our message ids are increasing but not consecutive.  To compute the id of the next message,
    we have to add the length of the current message to its id".

    Goal: a consumer finds its way with additions alone.  Method: pull at 0, add the length of what came first, pull
    there, until the end.  The base offset that other Kafka clients see is in step: start + size - number of messages.
    """
    peer.create(topic)
    batches = [encode_values([b"m" * size], 1_000) for size in (3, 1, 500, 20)]
    for batch in batches:
        assert peer.produce(topic, batch, acks=-1)[0] == 0
    offset, ids = 0, []
    while offset < peer.end(topic):
        _, data = peer.fetch(topic, offset, bytes_max=1)
        ((start, size, end),) = walk(memoryview(data), 0, len(data))
        assert start == 0 and end == offset + size
        assert int.from_bytes(data[:8], "big") == end - counts(data)[0]
        ids.append(offset)
        offset += size
    assert ids == list(itertools.accumulate(map(len, batches[:-1]), initial=0))


def test_segments_are_rolled_by_size_and_named_by_their_first_offset(server: Server, peer: Peer, topic: str) -> None:
    """3.1, Simple storage: "a log is implemented as a set of segment files of approximately the same size"; 0.7.2,
    Disk: the name is the offset of the first message, %020d.

    Goal: files follow on each other without gaps; only the last one is written.  Method: publish ten times the segment
    size; look at names and sizes; publish more, and compare the older files with what they were.
    """
    peer.create(topic, segment_bytes=4096)
    batch = encode_values([b"v" * 900], 1_000)

    def append(count: int) -> None:
        for _ in range(count):
            assert peer.produce(topic, batch, acks=-1)[0] == 0

    append(45)
    files = segments(server, topic)
    offset = 0
    for path in files:
        assert path.name == f"{offset:020d}.log"
        offset += path.stat().st_size
    assert offset == 45 * len(batch) == peer.end(topic)
    assert all(4096 - len(batch) < path.stat().st_size <= 4096 for path in files[:-1])
    before = {path: path.read_bytes() for path in files}
    append(5)
    assert segments(server, topic)[: len(files)] == files
    assert all(path.read_bytes() == before[path] for path in files[:-1])
    assert len(stored(server, topic)) == 50 * len(batch)


def test_the_broker_finds_the_segment_of_any_offset(server: Server, peer: Peer, topic: str) -> None:
    """3.1, Simple storage: the broker keeps "a sorted list of offsets, including the offset of the first message in
    every segment file" and finds a message by searching it.

    Goal: every offset of a log of many segments is answered with the batch that contains it.  Method: pull at the
    first byte, one inside, and the last of each batch; below the first offset and beyond the end are out of range.
    """
    peer.create(topic, segment_bytes=2048)
    boundaries = [0]
    for i in range(60):
        _, _, end, _ = peer.produce(topic, encode_values([b"%d" % i * (i % 7 * 20 + 1)], 1_000), acks=-1)
        boundaries.append(end)
    assert len(segments(server, topic)) > 3
    log = stored(server, topic)
    for start, stop in itertools.pairwise(boundaries):
        for offset in (start, (start + stop) // 2, stop - 1):
            part, data = peer.fetch(topic, offset, bytes_max=1)
            assert part[0] == 0 and data == log[start:stop]
    assert peer.fetch(topic, boundaries[-1])[0][0] == 0
    assert peer.fetch(topic, boundaries[-1] + 1)[0][0] == OUT_OF_RANGE


def test_messages_are_flushed_and_exposed_after_a_number_of_them(server: Server, peer: Peer, topic: str) -> None:
    """3.1, Simple storage: "we flush the segment files to disk only after a configurable number of messages have been
    published or a certain amount of time has elapsed.  A message is only exposed to the consumers after it is flushed".

    Goal: the number.  Method: nine messages of ten are written and acknowledged, yet a consumer that waits gets none of
    them; with the tenth all of them come at once.  Who asks for the end of the log has them flushed first.
    """
    peer.create(topic, flush_messages=10, flush_ms=600_000)
    batch = encode_values([b"message"], 1_000)
    for _ in range(9):
        assert peer.produce(topic, batch, acks=1)[0] == 0
    assert len(stored(server, topic)) == 9 * len(batch)
    part, data = peer.fetch(topic, 0, wait_ms=1)
    assert part[:3] == [0, 0, 0] and data == b""
    assert peer.produce(topic, batch, acks=1)[0] == 0
    _, data = peer.fetch(topic, 0, wait_ms=20_000)
    assert len(data) == 10 * len(batch)
    assert peer.produce(topic, batch, acks=1)[0] == 0
    assert peer.end(topic) == 11 * len(batch)


def test_messages_are_flushed_and_exposed_after_a_time(peer: Peer, topic: str) -> None:
    """3.1, Simple storage, as above: "or a certain amount of time has elapsed".

    Goal: the time.  Method: one message of a thousand; a consumer that waits gets it, but not earlier than that.
    """
    peer.create(topic, flush_messages=1_000, flush_ms=400)
    started_s = time.monotonic()
    assert peer.produce(topic, encode_values([b"message"], 1_000), acks=1)[0] == 0
    _, data = peer.fetch(topic, 0, wait_ms=20_000)
    assert data and time.monotonic() - started_s > 0.39


@needs_strace
def test_what_cannot_be_flushed_is_never_exposed(server: Server, peer: Peer, topic: str, tmp_path: Path) -> None:
    """3.1, Simple storage: "only exposed to the consumers after it is flushed"; 0.7.2, Disk: an I/O error on flush
    stops the broker.

    Goal: exposure waits for the disk's word, not for the attempt.  Method: have fdatasync fail; the message lies in
    the file and was acknowledged as written, but is not served.  + Only this partition stops, and says why.
    """
    peer.create(topic)
    batch = encode_values([b"message"], 1_000)
    assert peer.produce(topic, batch, acks=-1)[0] == 0
    (writer,) = until(lambda: writers(server, topic), "the writer is known")
    with straced([writer], tmp_path / "trace", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"):
        assert peer.produce(topic, batch, acks=1)[0] == 0
        until(lambda: f"{topic}-0" in server.state["offline"], "the partition is offline")
    assert stored(server, topic)[len(batch) + 8 :] == batch[8:]
    _, exposed = peer.fetch(topic, len(batch))
    if exposed or peer.end(topic) not in (-1, len(batch)):  # recovery has flushed it since: the disk is well again
        until(lambda: f"{topic}-0" not in server.state["offline"], "the partition is served again")


def test_an_offset_acknowledges_all_before_it(server: Server, admin: Admin, topic: str) -> None:
    """3.1, Simple storage: "if the consumer acknowledges a particular message offset, it implies that the consumer has
    received all messages prior to that offset in the partition".

    Goal: one number is all that is stored of a consumer's progress.  Method: acknowledge the message in the middle
    alone; the next consumer of the group begins right behind it.
    """
    admin.create_topic(topic, 1)
    publish(server, topic, numbers(20), partition=0)
    with Consumer(server.native) as consumer:
        consumer.assign([(topic, 0)])
        tenth = next(itertools.islice(consumer.messages(TIMEOUT_S), 9, None))
    admin.commit(topic, {(topic, 0): tenth.offset + 1})
    with Member(server.native, topic, topic) as member:
        until(lambda: len(member.seen) >= 10, "the rest is read")
        assert member.values() == numbers(20, 10)


# ---- 3.1, Efficient transfer


def test_a_pull_names_an_offset_and_a_number_of_bytes(peer: Peer, topic: str) -> None:
    """3.1, Efficient transfer: "each pull request from a consumer also retrieves multiple messages up to a certain
    size, typically hundreds of kilobytes".

    Goal: a pull brings many messages, and no more bytes than asked for.  Method: pull with several sizes.
    + Only whole batches come, and one that is larger than the size comes all the same: nobody is stuck in front of it
    (0.7.2, Consumer API: InvalidMessageSizeException).
    """
    peer.create(topic)
    batches = [encode_values([b"%d" % i * 100] * 20, 1_000) for i in range(30)]
    for batch in batches:
        assert peer.produce(topic, batch, acks=-1)[0] == 0
    _, data = peer.fetch(topic, 0, bytes_max=300_000)
    found = list(walk(memoryview(data), 0, len(data)))
    assert len(found) == 30 and sum(counts(data)) == 600
    for bytes_max in (10_000, 4_000):
        _, data = peer.fetch(topic, 0, bytes_max=bytes_max)
        assert bytes_max - max(map(len, batches)) < len(data) <= bytes_max
    assert len(peer.fetch(topic, 0, bytes_max=100)[1]) == len(batches[0])


def test_one_request_pulls_from_several_partitions(peer: Peer, topic: str) -> None:
    """0.7.2, Wire: MultiFetch answers several fetches in one response.

    Method: ask for three partitions, one of which does not exist; each part has its own error and its own bytes.
    """
    peer.create(topic, 2)
    batches = [encode_values([b"of partition %d" % partition], 1_000) for partition in range(2)]
    for partition, batch in enumerate(batches):
        assert peer.produce(topic, batch, partition, acks=-1)[0] == 0
    parts = [[topic, partition, 0, 10_000] for partition in (1, 5, 0)]
    header, data = peer.call([native.FETCH, 9, 0, 1, 10_000, parts])
    errors, sizes = [row[0] for row in header[2]], [row[3] for row in header[2]]
    assert errors == [0, 3, 0] and sizes == [len(batches[1]), 0, len(batches[0])]
    assert [decode_batch(memoryview(data), at)[0].value for at in (0, sizes[0])] == [
        b"of partition 1",
        b"of partition 0",
    ]


@needs_strace
def test_segments_go_from_file_to_socket_by_sendfile(server: Server, peer: Peer, topic: str, tmp_path: Path) -> None:
    """3.1, Efficient transfer: "we exploit the sendfile API to efficiently deliver bytes in a log segment file from a
    broker to a consumer", and do not cache messages in the process.

    Goal: the bytes of messages do not enter the memory of the process that serves them, but for replies, or the ends of
    replies, that are so small that sendfile costs more.  Method: watch the network workers' system calls while a
    consumer reads a log in large replies.
    """
    peer.create(topic)
    publish(server, topic, [b"%d" % i * 3_000 for i in range(500)], partition=0)
    end = peer.end(topic)
    trace = tmp_path / "trace"
    calls = "trace=sendfile,read,pread64,preadv,readv"
    with straced(server.pids("network"), trace, "-e", calls), Consumer(server.native) as consumer:
        consumer.assign([(topic, 0)])
        assert sum(1 for _ in itertools.islice(consumer.messages(TIMEOUT_S), 500)) == 500
    files = re.escape(str(directory(server, topic)))
    moved: Counter[str] = Counter()
    unfinished: dict[str, str] = {}  # by thread: a line breaks off where another thread's comes between
    for line in trace.read_text().splitlines():
        thread = line.partition(" ")[0]
        if begun := re.search(rf"(\w+)\(.*<{files}/\d{{20}}\.log>", line):
            unfinished[thread] = begun[1]
        ended = re.search(r"= (\d+)$", line)
        if ended and (call := unfinished.pop(thread, "")):
            moved[call] += int(ended[1])
    assert moved.total() >= end
    assert moved.total() - moved["sendfile"] < end // 5, "ends of replies, and batch headers"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_stay_compressed_from_producer_to_consumer(
    server: Server, admin: Admin, topic: str, codec: str
) -> None:
    """0.7.2, Wire: a compressed set travels and is stored as one message; the broker keeps it as it is.

    Goal: whoever compresses saves network and disk, and the broker no time on it.  Method: the log on the disk is
    smaller than its values and carries the codec's mark; the consumer gets back what was sent.
    + Offsets inside of the set are the messages' own, so a commit there does not deliver the set again.
    """
    admin.create_topic(topic, 1)
    values = [b"GET /index.html 200 %d" % (i % 10) for i in range(1_000)]
    with Producer(server.native, codec=codec, batch_messages_max=500, linger_ms=10_000) as producer:
        for value in values:
            producer.send(topic, value)
    log = stored(server, topic)
    marks = {log[start + ATTRIBUTES_AT + 1] & CODEC_MASK for start, *_ in walk(memoryview(log), 0, len(log))}
    assert marks == {["none", "gzip", "snappy", "lz4", "zstd"].index(codec)}
    assert len(log) < sum(map(len, values)) / 2
    with Consumer(server.native) as consumer:
        consumer.assign([(topic, 0)])
        messages = list(itertools.islice(consumer.messages(TIMEOUT_S), len(values)))
        assert [message.value for message in messages] == values
        consumer.seek(topic, 0, messages[123].offset + 1)
        assert next(consumer.messages(TIMEOUT_S)).offset == messages[124].offset


def test_a_message_costs_few_bytes_beside_its_payload(server: Server, admin: Admin, topic: str) -> None:
    """5, Producer test: "on average, each message had an overhead of 9 bytes in Kafka, versus 144 bytes in ActiveMQ".

    Goal: the same order at the paper's sizes, 200 bytes and 50 a batch: at most 11.  Method: divide the log's size.
    """
    admin.create_topic(topic, 1)
    with Producer(server.native, batch_messages_max=50, linger_ms=10_000) as producer:
        for _ in range(5_000):
            producer.send(topic, b"p" * 200)
    log = stored(server, topic)
    assert set(counts(log)) == {50}
    assert len(log) / 5_000 - 200 <= 11


def test_a_producer_publishes_a_set_of_messages_in_one_request(peer: Peer, topic: str) -> None:
    """3: "For efficiency, the producer can send a set of messages in a single publish request"; 0.7.2, Wire:
    Produce has no response at all.

    Method: publish without acknowledgement, then ask something else on the connection: the answer to that is the
    first that comes.  + With acks=1 or all the producer learns the offsets.
    """
    peer.create(topic)
    batch = encode_values(numbers(100), 1_000)
    peer.send([native.PRODUCE, 7, topic, 0, 0, 10_000], batch)
    header, _ = peer.call([native.METADATA, 8, [topic]])
    assert header[0] == 8
    _, data = peer.fetch(topic, 0, wait_ms=20_000)
    assert [record.value for record in decode_batch(memoryview(data))] == numbers(100)
    error, base, end, _ = peer.produce(topic, batch, acks=1)
    assert (error, base, end) == (0, 2 * len(batch) - 100, 2 * len(batch))


def test_the_asynchronous_producer_batches_by_number_and_by_time(server: Server, admin: Admin, topic: str) -> None:
    """0.7.2, Producer: async collects up to batch.size messages for up to queue.time.

    Goal: a full batch leaves by its number, one that does not fill by its time; send waits for neither.  Method: send
    110 with 50 a batch, which nobody flushes or waits for: two full batches come at once, ten more after the linger.
    """
    admin.create_topic(topic, 1)
    with Producer(server.native, batch_messages_max=50, linger_ms=500) as producer:
        producer.send(topic, b"first").result(TIMEOUT_S)  # the topic is known from here on
        started_s = time.monotonic()
        deliveries = [producer.send(topic, value) for value in numbers(110)]
        assert not deliveries[-1].done()
        until(deliveries[-1].done, "the linger sends the rest")
        assert time.monotonic() - started_s >= 0.5
    log = stored(server, topic)
    assert counts(log) == [1, 50, 50, 10]


# ---- 3.1, Stateless broker


def test_a_consumer_rewinds_and_consumes_again(server: Server, admin: Admin, topic: str) -> None:
    """3.1, Stateless broker: "A consumer can deliberately rewind back to an old offset and re-consume data".

    Method: read everything, rewind to the beginning and to the middle, read the same again; a second consumer that
    reads meanwhile is at a place of its own.
    """
    admin.create_topic(topic, 1)
    publish(server, topic, numbers(100), partition=0)
    with Consumer(server.native) as consumer, Consumer(server.native) as other:
        for each in (consumer, other):
            each.assign({(topic, 0): EARLIEST})
        first = list(itertools.islice(consumer.messages(TIMEOUT_S), 100))
        assert next(other.messages(TIMEOUT_S)) == first[0]
        consumer.rewind()
        assert list(itertools.islice(consumer.messages(TIMEOUT_S), 100)) == first
        consumer.seek(topic, 0, first[50].offset)
        assert list(itertools.islice(consumer.messages(TIMEOUT_S), 50)) == first[50:]
        assert next(other.messages(TIMEOUT_S)) == first[1]


def test_the_broker_keeps_nothing_about_consumers(server: Server, admin: Admin, tree: KazooClient, topic: str) -> None:
    """3.1, Stateless broker: "the information about how much each consumer has consumed is not maintained by the
    broker, but by the consumer itself".

    Goal: consuming leaves no trace where the broker keeps its state.  Method: compare the data directory's files and
    the groups in ZooKeeper before and after a consumer of explicit partitions has read everything, twice.
    """
    admin.create_topic(topic, 1)
    publish(server, topic, numbers(100), partition=0)

    def kept() -> Any:
        files = [path for path in [*directory(server, topic).iterdir(), server.data_dir / "catalog.json"]]
        groups = tree.get_children("/consumers") if tree.exists("/consumers") else []
        return sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files), sorted(groups)

    before = kept()
    for _ in range(2):
        with Consumer(server.native) as consumer:
            consumer.assign([(topic, 0)])
            assert sum(1 for _ in itertools.islice(consumer.messages(TIMEOUT_S), 100)) == 100
    assert kept() == before


def test_messages_are_kept_for_a_time_whoever_has_read_them(make_appliance: Callable[..., Server]) -> None:
    """3.1, Stateless broker: "A message is automatically deleted if it has been retained in the broker longer than a
    certain period, typically 7 days"; 0.7.2, Flush / retention: by the time of the segment file.

    Goal: age alone decides, by whole segments, the last one too.  Method: let some segment files of a stopped appliance
    look older than the period: they go, although nobody has read them; the younger ones stay.
    """
    assert TopicSettings().retention_ms == 7 * 24 * 3_600_000
    server = make_appliance(**{"disk.check_ms": 100})
    with Peer(server.native) as peer:
        for name in ("two", "all"):
            peer.create(name, segment_bytes=2048, retention_ms=3_600_000)
            for _ in range(20):
                assert peer.produce(name, encode_values([b"v" * 500], 1_000), acks=-1)[0] == 0
    server.stop()
    files = {name: segments(server, name) for name in ("two", "all")}
    long_ago_s = time.time() - 7_200
    for path in files["two"][:2] + files["all"]:
        os.utime(path, (long_ago_s, long_ago_s))
    server.start()
    until(lambda: segments(server, "two") == files["two"][2:], "old segments are deleted")
    until(lambda: [path for path in segments(server, "all") if not emptied(path)] == [], "all is deleted")
    start = int(files["two"][2].stem)
    with Peer(server.native) as peer:
        part, _ = peer.fetch("two", 0)
        assert part[:2] == [OUT_OF_RANGE, start]
        part, data = peer.fetch("two", start)
        assert part[0] == 0 and data == stored(server, "two")[: len(data)] != b""


# ---- 3, streams and groups


def test_the_iterator_never_terminates(server: Server, admin: Admin, topic: str) -> None:
    """3: "the message stream iterator never terminates.  If there are currently no more messages to consume, the
    iterator blocks until new messages are published to the topic".

    Method: a thread iterates; it has read everything and waits, several times over; each new message wakes it.
    """
    admin.create_topic(topic, 1)
    with Member(server.native, topic, topic) as member:
        (thread,) = member.reader.threads
        for number in range(4):
            publish(server, topic, [b"%d" % number], partition=0)
            until(lambda: len(member.seen) == number + 1, "the new message arrives")  # noqa: B023
            assert thread.is_alive()
    assert member.values() == numbers(4) and not thread.is_alive(), "only closing the consumer ends it"


def test_messages_are_spread_over_the_streams_of_a_consumer(server: Server, admin: Admin, topic: str) -> None:
    """3: "a consumer first creates one or more message streams for the topic.  The messages published to that topic
    will be evenly distributed into these sub-streams".

    Method: three streams over six partitions with ten messages each: each stream gets twenty, from two partitions.
    """
    admin.create_topic(topic, 6)
    for partition in range(6):
        publish(server, topic, numbers(10 * partition + 10, 10 * partition), partition)
    with Member(server.native, topic, topic, streams=3) as member:
        until(lambda: len(member.seen) == 60, "everything is read")
    for seen in member.reader.by_stream:
        assert len(seen) == 20 and len({entry.partition for entry in seen}) == 2


def test_a_consumer_subscribes_to_topics_by_a_filter(
    server: Server, admin: Admin, tree: KazooClient, topic: str
) -> None:
    """0.7.2, Consumer API: createMessageStreamsByFilter(Whitelist/Blacklist, n); ZooKeeper: ``*N*regex``.

    Method: subscribe to a pattern that one topic of two matches; another one that matches is created later.
    """
    for name in ("a", "x"):
        admin.create_topic(f"{topic}-{name}", 1)
        publish(server, f"{topic}-{name}", [name.encode()], partition=0)
    with GroupConsumer(server.native, topic, session_timeout_ms=SESSION_MS) as consumer:
        reader = Reader(consumer.create_message_streams_by_filter(Whitelist(f"{topic}-[abc]"), 2))
        until(lambda: reader.values() == [b"a"], "the topic that matches")
        assert tree.get(f"/consumers/{topic}/ids/{consumer.consumer_id}")[0] == f"*2*{topic}-[abc]".encode()
        admin.create_topic(f"{topic}-b", 1)
        publish(server, f"{topic}-b", [b"b"], partition=0)
        until(lambda: sorted(reader.values()) == [b"a", b"b"], "the new one")
    for thread in reader.threads:
        thread.join()


def test_groups_are_point_to_point_inside_and_publish_subscribe_among_each_other(
    server: Server, admin: Admin, topic: str
) -> None:
    """3, and 3.2: "each message is delivered to only one of the consumers within the group.  Different consumer groups
    each independently consume the full set of subscribed messages".

    Method: two groups of two consumers read one topic; each group as a whole has every message exactly once.
    """
    admin.create_topic(topic, 4)
    groups = {name: [Member(server.native, f"{topic}-{name}", topic) for _ in range(2)] for name in "ab"}
    members = list(itertools.chain.from_iterable(groups.values()))
    until(lambda: all(len(member.partitions) == 2 for member in members), "both groups have shared the topic")
    publish(server, topic, numbers(500))
    for group in groups.values():
        until(lambda: sum(len(member.seen) for member in group) >= 500, "the group has read everything")  # noqa: B023
        assert all(member.seen for member in group)
        assert Counter(value for member in group for value in member.values()) == Counter(numbers(500))
    for member in members:
        member.close()


def test_a_producer_chooses_a_random_partition_or_the_one_of_the_key(server: Server, admin: Admin, topic: str) -> None:
    """3.2: "Each producer can publish a message to either a randomly selected partition or a partition semantically
    determined by a partitioning key and a partitioning function".

    Method: many batches without a key reach all partitions; every key is found in one partition only, in order,
    whichever producer sent it.
    """
    admin.create_topic(topic, 4)
    with Producer(server.native, batch_messages_max=5) as producer:
        for i in range(500):
            producer.send(topic, b"%d" % i)
    for first in (0, 100):
        with Producer(server.native) as producer:
            for i in range(first, first + 100):
                producer.send(topic, b"%d" % i, key=b"key-%d" % (i % 10))
    places: dict[bytes | None, set[int]] = defaultdict(set)
    orders: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    with Consumer(server.native) as consumer:
        consumer.assign_topic(topic)
        for message in itertools.islice(consumer.messages(TIMEOUT_S), 700):
            places[message.key].add(message.partition)
            orders[message.key].append(message.value)
    assert places.pop(None) == {0, 1, 2, 3}
    assert len(places) == 10 and all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) > 1
    assert all(orders[key] == [b"%d" % i for i in range(int(key[-1:]), 200, 10)] for key in places if key)


# ---- 3.2, Distributed coordination


def registered(tree: KazooClient, broker_id: int) -> BrokerInfo:
    return decode_broker("", tree.get(f"/brokers/ids/{broker_id}")[0])


def owners(tree: KazooClient, group: str, topic: str) -> dict[int, str]:
    """The ownership registry: partition -> consumer-stream."""
    path = f"/consumers/{group}/owners/{topic}"
    found = {}
    for name in tree.get_children(path) if tree.exists(path) else []:
        try:
            found[int(name)] = tree.get(f"{path}/{name}")[0].decode()
        except NoNodeError:  # released meanwhile
            continue
    return found


def test_range_assignment(server: Server, admin: Admin, tree: KazooClient, topic: str) -> None:
    """3.2, Algorithm 1: partitions and consumers are sorted; consumer j of n gets a contiguous range; 0.7.2,
    Rebalance: by thread, the first P mod C of which get one partition more.

    Goal: what the consumers agree on through ZooKeeper is what the algorithm says.  Method: seven partitions among
    two streams of one consumer and one of another; compute the ranges here, compare with the ownership registry.
    """
    admin.create_topic(topic, 7)
    with Member(server.native, topic, topic, streams=2) as two, Member(server.native, topic, topic) as one:
        threads = sorted([f"{two.id}-0", f"{two.id}-1", f"{one.id}-0"])
        expected = dict(enumerate([threads[0]] * 3 + [threads[1]] * 2 + [threads[2]] * 2))
        until(lambda: owners(tree, topic, topic) == expected, "the ranges of the algorithm")
        for member in (two, one):
            mine = {partition for partition, thread in expected.items() if thread.startswith(member.id)}
            until(lambda: member.partitions == mine, "it reads what it owns")  # noqa: B023


def test_a_partition_has_one_consumer_and_over_partitioning_balances_the_load(
    server: Server, admin: Admin, tree: KazooClient, topic: str
) -> None:
    """3.2: "at any given time, all messages from one partition are consumed only by a single consumer within each
    consumer group"; for the load to be balanced "we require many more partitions in a topic than the consumers in each
    group.  We can easily achieve this by over partitioning a topic".

    Method: three consumers on eight partitions own 3, 3 and 2 of them; on one partition, one works and two wait.
    """
    admin.create_topic(topic, 8)
    admin.create_topic(f"{topic}-lone", 1)
    for name, expected in ((topic, [2, 3, 3]), (f"{topic}-lone", [0, 0, 1])):
        members = [Member(server.native, name, name) for _ in range(3)]
        until(
            lambda: sorted(len(member.partitions) for member in members) == expected,  # noqa: B023
            f"the group owns {expected}",
        )
        owned = [partition for member in members for partition in member.partitions]
        assert len(owned) == len(set(owned)) == len(owners(tree, name, name))
        for member in members:
            member.close()


def test_registries_have_the_papers_paths_and_kinds(
    server: Server, admin: Admin, tree: KazooClient, topic: str
) -> None:
    """3.2: "The paths created in Zookeeper are ephemeral for the broker registry, the consumer registry, and the
    ownership registry, and persistent for the offset registry"; 0.7.2, ZooKeeper: paths and values.

    Method: read all five from ZooKeeper while a consumer of two streams runs; then again when it has left.
    """
    admin.create_topic(topic, 2, {"retention.ms": "1d"})
    publish(server, topic, numbers(10), partition=1)
    group = f"/consumers/{topic}"
    with Member(server.native, topic, topic, streams=2) as member:
        until(lambda: len(member.seen) == 10 and len(owners(tree, topic, topic)) == 2, "it has read everything")
        until(lambda: registered(tree, 0).partitions.get(topic) == [0, 1], "the broker shows what it stores")
        assert (registered(tree, 0).native, registered(tree, 0).kafka) == (server.native, server.kafka)
        assert tree.get("/brokers/ids/0")[1].ephemeralOwner
        value, stat = tree.get(f"/brokers/topics/{topic}")
        assert not stat.ephemeralOwner
        assert decode_topic("", value).partitions == {0: [0], 1: [0]}
        assert decode_topic("", value).settings == {"retention.ms": "86400000"}
        (name,) = tree.get_children(f"{group}/ids")
        value, stat = tree.get(f"{group}/ids/{name}")
        assert stat.ephemeralOwner and name == member.id
        assert decode_subscription("", value).topics == {topic: 2} and value == b'{"%s": 2}' % topic.encode()
        assert re.fullmatch(rf"{topic}_.+-\d+-[0-9a-f]{{32}}", name), "<group>_<host>-<ms>-<32 hex>"
        for partition in (0, 1):
            value, stat = tree.get(f"{group}/owners/{topic}/{partition}")
            assert stat.ephemeralOwner and value.decode() == f"{member.id}-{partition}"
    assert tree.get_children(f"{group}/ids") == [] == tree.get_children(f"{group}/owners/{topic}")
    value, stat = tree.get(f"{group}/offsets/{topic}/1")
    with Peer(server.native) as peer:
        assert not stat.ephemeralOwner and json.loads(value)["offset"] == peer.end(topic, 1)


def test_a_failed_broker_leaves_the_registry(
    server: Server, tree: KazooClient, topic: str, make_appliance: Callable[..., Server]
) -> None:
    """3.2: "If a broker fails, all partitions on it are automatically removed from the broker registry".

    Method: kill a second broker of the cluster: its node is gone with its session, and the other broker says that
    nobody leads its partitions; the topic and the other half of it remain.  Started again, it has them back.
    """
    other = make_appliance(**second_broker(server))
    until(lambda: tree.exists("/brokers/ids/7"), "the second broker is registered")
    with Admin(other.native) as there:
        there.create_topic(topic, 2)

    def leaders() -> list[int]:
        with Admin(server.native) as here:
            found = [row for row in here.topics() if row["name"] == topic]
            return [row["leader"] for row in here.topics([topic])[0]["partitions"]] if found else []

    until(lambda: sorted(leaders()) == [0, 7], "the topic is spread over both")
    (partition,) = until(lambda: registered(tree, 7).partitions.get(topic), "its half is registered")
    other.kill_supervisor()
    until(lambda: not tree.exists("/brokers/ids/7"), "its node is gone")
    until(lambda: sorted(leaders()) == [-1, 0], "nobody leads its partition")
    assert tree.exists(f"/brokers/topics/{topic}")
    other.start()
    until(lambda: sorted(leaders()) == [0, 7], "it leads its partition again")
    until(lambda: registered(tree, 7).partitions.get(topic) == [partition], "its half is registered again")


def second_broker(server: Server) -> dict[str, Any]:
    """Settings of another appliance in the same cluster."""
    return server.zookeeper_access | {"broker.id": 7, "zookeeper.session_timeout_ms": 1_000}


def test_consumers_and_brokers_that_come_and_go_trigger_a_rebalance(
    server: Server, admin: Admin, topic: str, make_appliance: Callable[..., Server]
) -> None:
    """3.2: each consumer watches broker and consumer registry "and will be notified whenever a change in the broker set
    or the consumer group occurs".

    Method: a consumer is alone and owns all; another one joins: they share; a broker joins and is given partitions of
    the topic: they share those, too, and read from both brokers; the other consumer leaves: all is the first one's.
    """
    admin.create_topic(topic, 2)
    with Member(server.native, topic, topic) as first:
        until(lambda: first.partitions == {0, 1}, "alone it owns everything")
        with Member(server.native, topic, topic) as second:
            until(lambda: len(first.partitions) == len(second.partitions) == 1, "they share")
            other = make_appliance(**second_broker(server))
            until(lambda: len(admin.status()["partitions"]) and 7 in brokers(server), "the other broker is known")
            admin.alter_topic(topic, partitions=4)
            until(lambda: len(first.partitions) == len(second.partitions) == 2, "new partitions are shared, too")
            with Admin(other.native) as there:
                until(lambda: topic in {row["name"] for row in there.topics()}, "the other broker has its part")

                def led() -> set[int]:
                    return {row["partition"] for row in there.topics([topic])[0]["partitions"] if row["leader"] == 7}

                until(led, "the other broker leads its part")
                assert led() <= {2, 3}
            for partition in range(4):
                publish(server, topic, [b"%d" % partition], partition)
            until(lambda: sorted(first.values() + second.values()) == numbers(4), "both brokers are read")
        until(lambda: first.partitions == {0, 1, 2, 3}, "what the other one had is taken over")


def brokers(server: Server) -> set[int]:
    with Peer(server.native) as peer:
        header, _ = peer.call([native.METADATA, 3, []])
        return {row[0] for row in header[2]["brokers"]}


def test_an_owner_in_the_way_makes_a_consumer_release_and_try_again(
    server: Server, admin: Admin, tree: KazooClient, topic: str
) -> None:
    """3.2: "it is possible that one consumer tries to take ownership of a partition still owned by another consumer.
    When this happens, the first consumer simply releases all the partitions that it currently owns, waits a bit and
    retries the rebalance process".

    Method: the owner of both partitions is stopped while another one comes, which is seen to own none of the two; when
    the other's session is over it owns both.  + It takes none before it may have all that it wants, and it does not
    wait its time out, but looks as soon as that happens.
    """
    admin.create_topic(topic, 2)
    publish(server, topic, numbers(10))
    path = f"/consumers/{topic}/owners/{topic}"
    with MemberProcess(server.native, topic, topic) as first:
        until(lambda: len(first.seen) == 10, "the first one reads both")
        first.freeze()
        with Member(server.native, topic, topic) as member:
            ids = f"/consumers/{topic}/ids"
            until(lambda: len(tree.get_children(ids)) == 2 or member.partitions, "the second one has come")
            until(lambda: member.partitions == {0, 1}, "it has both")
            assert {tree.get(f"{path}/{number}")[0].decode() for number in (0, 1)} == {f"{member.id}-0"}
            first.kill()


def test_a_new_group_begins_at_the_smallest_or_the_largest_offset(server: Server, admin: Admin, topic: str) -> None:
    """3.2: when "no offsets are available in the offset registry ... the consumers will begin with either the smallest
    or the largest offset (depending on a configuration) available on each subscribed partition, using an API that we
    provide on the brokers".

    Method: two new groups, one of each kind, on a topic with ten messages; then ten more are published.
    """
    admin.create_topic(topic, 1)
    publish(server, topic, numbers(10), partition=0)
    with Consumer(server.native) as consumer:
        places = [(topic, 0)]
        smallest, largest = (consumer.offsets_at(when, places)[topic, 0] for when in (EARLIEST, LATEST))
    with (
        Member(server.native, f"{topic}-small", topic, start="earliest") as early,
        Member(server.native, f"{topic}-large", topic, start="latest") as late,
    ):
        until(lambda: len(early.seen) == 10 and late.consumer.positions == {(topic, 0): largest}, "both have begun")
        publish(server, topic, numbers(20, 10), partition=0)
        until(lambda: len(early.seen) == 20 and len(late.seen) == 10, "both read on")
    assert early.values() == numbers(20) and early.seen[0].offset >= smallest
    assert late.values() == numbers(20, 10)


# ---- 3.3, Delivery guarantees

CRASHING = """
import os, signal, sys
from appliance.client import GroupConsumer
address, group, topic = sys.argv[1:]
consumer = GroupConsumer(address, group, auto_commit=False, session_timeout_ms=1000)
for number, message in enumerate(consumer.create_message_streams({topic: 1})[topic][0], 1):
    print(message.value.decode(), flush=True)
    if number == 10:
        consumer.commit()
    if number == 25:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_crash_delivery_is_at_least_once(server: Server, admin: Admin, tree: KazooClient, topic: str) -> None:
    """3.3: "when a consumer process crashes without a clean shutdown, the consumer process that takes over those
    partitions owned by the failed consumer may get some duplicate messages that are after the last offset successfully
    committed to zookeeper"; 3.2: its failure "causes it to lose its entry in the consumer registry and all partitions
    that it owns in the ownership registry".

    Goal: nothing is lost, and only what came after the last commit is delivered again.  Method: a process commits
    after ten messages and is killed after 25 of a hundred; its nodes go; the next consumer begins with the eleventh.
    """
    admin.create_topic(topic, 1)
    publish(server, topic, numbers(100), partition=0)
    command = [sys.executable, "-c", CRASHING, server.native, topic, topic]
    crashed = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, cwd=Path(__file__).parents[2])
    assert crashed.stdout.split() == numbers(25), crashed.stderr.decode()
    with Member(server.native, topic, topic) as member:
        until(lambda: len(member.seen) >= 90, "the partition is taken over")
        assert member.values() == numbers(100, 10)
        assert tree.get_children(f"/consumers/{topic}/ids") == [member.id]
        assert owners(tree, topic, topic) == {0: f"{member.id}-0"}


def test_messages_of_a_partition_arrive_in_order(server: Server, admin: Admin, topic: str) -> None:
    """3.3: "Kafka guarantees that messages from a single partition are delivered to a consumer in order".

    Method: several threads publish at once; in the log and at the consumer, each thread's messages keep their order,
    in all partitions.
    """
    admin.create_topic(topic, 3)

    def publish_some(sender: int, producer: Producer) -> None:
        for i in range(300):
            producer.send(topic, b"%d %d" % (sender, i), partition=i % 3)

    with Producer(server.native, batch_messages_max=7, linger_ms=1) as one, Producer(server.native) as two:
        threads = [threading.Thread(target=publish_some, args=(i, (one, two)[i % 2])) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    orders: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    with Member(server.native, topic, topic, streams=2) as member:
        until(lambda: len(member.seen) == 1_200, "everything is read")
    for seen in member.reader.by_stream:
        for entry in seen:
            sender, number = entry.value.split()
            orders[entry.partition, sender].append(int(number))
    assert len(orders) == 12
    assert all(order == list(range(partition, 300, 3)) for (partition, _), order in orders.items())


def test_a_damaged_message_set_is_refused_on_arrival(server: Server, peer: Peer, topic: str) -> None:
    """3.3: "Having the CRC at the message level also allows us to check network errors after a message is produced".

    Method: flip one bit in each byte that the checksum covers, in turn; all are refused by name, nothing is stored,
    and the connection goes on.  The CRC is one per message set: it travels and is stored with it, as one.
    """
    peer.create(topic)
    batch = encode_values([b"message"], 1_000)
    for at in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        assert peer.produce(topic, bytes(damaged), acks=-1)[0] == CORRUPT, at
    assert peer.end(topic) == 0 and stored(server, topic) == b""
    assert peer.produce(topic, batch, acks=-1)[0] == 0


def test_damage_on_the_disk_is_noticed_by_the_consumer(server: Server, peer: Peer, topic: str) -> None:
    """3.3, as above: "to check network errors after a message is ... consumed".

    Goal: the check goes from end to end, so whatever happened in between is noticed.  Method: change a byte of a
    segment file under the broker; the consumer names the place, or passes over the set and counts it.
    """
    peer.create(topic)
    for value in numbers(3):
        assert peer.produce(topic, encode_values([value * 50], 1_000), acks=-1)[0] == 0
    size = peer.end(topic) // 3
    with segments(server, topic)[0].open("r+b") as file:
        file.seek(2 * size - 10)
        file.write(b"?")
    with Consumer(server.native) as consumer, Consumer(server.native, on_corrupt="skip") as tolerant:
        for each in (consumer, tolerant):
            each.assign([(topic, 0)])
        messages = consumer.messages(TIMEOUT_S)
        assert next(messages).value == b"0" * 50
        with pytest.raises(CorruptBatch, match=f"{topic}-0: damaged batch at {size}"):
            next(messages)
        assert [m.value for m in itertools.islice(tolerant.messages(TIMEOUT_S), 2)] == [b"0" * 50, b"2" * 50]
        assert tolerant.corrupt_batches == 1


def test_recovery_removes_a_torn_tail_and_refuses_damage_before_it(make_appliance: Callable[..., Server]) -> None:
    """3.3: "If there is any I/O error on the broker, Kafka runs a recovery process to remove those messages with
    inconsistent CRCs"; 0.7.2, Disk: without a clean shutdown the last segment is truncated at the first bad message.

    Method: kill the broker; write half a message set behind one log, change a byte in the middle of another.  After
    the restart the first goes on where its last whole set ends.  + The second had told its messages to consumers, so
    they are not cut off behind anybody's back: that partition alone is offline, with file and position named.
    """
    server = make_appliance()
    batch = encode_values([b"message" * 10], 1_000)
    with Peer(server.native) as peer:
        for name in ("torn", "damaged"):
            peer.create(name)
            for _ in range(3):
                assert peer.produce(name, batch, acks=-1)[0] == 0
    kill_all(server, ["torn", "damaged"])
    with segments(server, "torn")[0].open("ab") as file:
        file.write(batch[:50])
    with segments(server, "damaged")[0].open("r+b") as file:
        file.seek(len(batch) + 100)
        file.write(b"?")
    server.start()
    with Peer(server.native) as peer:
        assert peer.end("torn") == 3 * len(batch) == len(stored(server, "torn"))
        error, _, end, message = peer.produce("torn", batch, acks=-1)
        assert (error, end) == (0, 4 * len(batch)), message
        assert peer.fetch("damaged", 0)[1] == b""
        assert peer.produce("damaged", batch)[0] != 0
    reason = server.state["offline"]["damaged-0"]
    assert str(segments(server, "damaged")[0]) in reason and f":{len(batch)}:" in reason
    assert len(stored(server, "damaged")) == 3 * len(batch)


def kill_all(server: Server, topics: list[str]) -> None:
    """Supervisor and writers at once; a writer alone would see that it is orphaned, and close its log in good order."""
    (pids,) = until(lambda: [found] if all(found := [writers(server, topic) for topic in topics]) else [], "writers")
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    for (pid,) in pids:
        server.kill(pid)
    server.kill_supervisor()
    until(lambda: is_free(server.data_dir / "lock"), "all are gone")


def is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
