"""The network worker in a real appliance: order of replies, long polls, and what bad input gets."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from appliance.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OffsetOutOfRange,
    UnknownPartition,
    UnsupportedVersion,
)
from appliance.processes.network.fetches import FLUSH_WAIT_MS
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_batch, encode_values
from appliance.wire import native

from ...support.measures import memory_bytes
from ...support.native_peer import Peer
from ...support.server import Server, wait_for

BATCH = encode_values([b"one", b"two", b"three"], 1_000)


@pytest.fixture
def peer(appliance: Server) -> Iterator[Peer]:
    with Peer(appliance.native) as peer:
        yield peer


def test_what_is_produced_is_fetched(peer: Peer, topic: str) -> None:
    peer.create(topic)
    error, base, end, _ = peer.produce(topic, BATCH, acks=-1)
    assert (error, base, end) == (0, len(BATCH) - 3, len(BATCH))
    part, fetched = peer.fetch(topic, 0)
    assert part == [0, 0, end, len(BATCH)]
    assert [(record.offset, record.value) for record in decode_batch(memoryview(fetched))] == [
        (base, b"one"),
        (base + 1, b"two"),
        (base + 2, b"three"),
    ]
    assert fetched[8:] == BATCH[8:]  # I9: identical, the base offset aside


def test_a_long_poll_ends_when_data_comes(appliance: Server, peer: Peer, topic: str) -> None:
    peer.create(topic)
    peer.send([native.FETCH, 7, 60_000, 1, 1 << 20, [[topic, 0, 0, 1 << 20]]])
    with Peer(appliance.native) as other:
        assert other.produce(topic, BATCH)[0] == 0
    header, payload = peer.receive()
    assert header[0] == 7 and len(payload) == len(BATCH)


def test_a_long_poll_waits_for_as_many_bytes_as_it_asks(appliance: Server, peer: Peer, topic: str) -> None:
    peer.create(topic)
    peer.send([native.FETCH, 7, 60_000, 2 * len(BATCH), 1 << 20, [[topic, 0, 0, 1 << 20]]])
    with Peer(appliance.native) as other:
        assert other.produce(topic, BATCH)[0] == 0
        assert other.produce(topic, BATCH)[0] == 0
    assert len(peer.receive()[1]) == 2 * len(BATCH)


def test_a_long_poll_over_several_partitions(appliance: Server, peer: Peer, topic: str) -> None:
    peer.create(topic, partitions=3)
    parts = [[topic, partition, 0, 1 << 20] for partition in range(3)]
    peer.send([native.FETCH, 7, 60_000, 2 * len(BATCH), 1 << 20, parts])
    with Peer(appliance.native) as other:
        assert other.produce(topic, BATCH, partition=1)[0] == 0
        assert other.produce(topic, BATCH, partition=2)[0] == 0
    header, payload = peer.receive()
    assert [part[3] for part in header[2]] == [0, len(BATCH), len(BATCH)]
    assert len(payload) == 2 * len(BATCH)


def test_replies_leave_in_the_order_of_requests_also_behind_a_waiting_fetch(peer: Peer, topic: str) -> None:
    peer.create(topic)
    peer.send([native.FETCH, 1, 300, 1, 1 << 20, [[topic, 0, 0, 1 << 20]]])
    peer.send([native.OFFSETS, 2, [[topic, 0, -1, -1]]])
    peer.send([native.METADATA, 3, [topic]])
    peer.send([native.PRODUCE, 4, topic, 0, -1, 1_000], BATCH)
    assert [peer.receive()[0][0] for _ in range(4)] == [1, 2, 3, 4]


def test_many_requests_in_flight(peer: Peer, topic: str) -> None:
    peer.create(topic)
    frames = [
        native.encode_frame([native.PRODUCE, number, topic, 0, (1, -1)[number % 2], 1_000], len(BATCH)) + BATCH
        for number in range(2_000)
    ]
    peer.sock.sendall(b"".join(frames[:1_000]))
    replies = [peer.receive()[0] for _ in range(500)]
    peer.sock.sendall(b"".join(frames[1_000:]))
    replies += [peer.receive()[0] for _ in range(1_500)]
    assert [reply[0] for reply in replies] == list(range(2_000))
    ends = [reply[3] for reply in replies]
    assert ends == [len(BATCH) * (number + 1) for number in range(2_000)]


def test_requests_alike_are_answered_each_for_itself(peer: Peer, topic: str) -> None:
    """A bad batch among good ones, another question between them: every reply is its own and in its place."""
    peer.create(topic)
    bad = BATCH[:-1] + b"?"
    batches = [BATCH, BATCH, bad, BATCH, None, BATCH, BATCH]
    frames = [
        native.encode_frame([native.OFFSETS, 70_000 + number, [[topic, 0, -2, -1]]])
        if batch is None
        else native.encode_frame([native.PRODUCE, 70_000 + number, topic, 0, 1, 1_000], len(batch)) + batch
        for number, batch in enumerate(batches)
    ]
    peer.sock.sendall(b"".join(frames))
    replies = [peer.receive()[0] for _ in batches]
    assert [reply[0] for reply in replies] == list(range(70_000, 70_007))
    assert [reply[1] for reply in replies] == [0, 0, CorruptBatch.code, 0, 0, 0, 0]
    assert [replies[number][3] for number in (0, 1, 3, 5, 6)] == [len(BATCH) * number for number in range(1, 6)]


def test_what_comes_before_garbage_is_taken(appliance: Server, peer: Peer, topic: str) -> None:
    peer.create(topic)
    frame = native.encode_frame([native.PRODUCE, 70_000, topic, 0, 0, 1_000], len(BATCH)) + BATCH
    with Peer(appliance.native) as other:
        other.sock.sendall(3 * frame + native.encode_frame([99, 70_000]))
        assert other.hung_up()
    wait_for(lambda: peer.end(topic) == 3 * len(BATCH), "the three")


def test_a_request_of_several_batches_is_taken_whole_or_not_at_all(peer: Peer, topic: str) -> None:
    peer.create(topic)
    assert peer.produce(topic, BATCH + BATCH)[:3] == (0, len(BATCH) - 3, 2 * len(BATCH))
    assert peer.produce(topic, BATCH + BATCH[:-1] + b"?")[0] == CorruptBatch.code
    assert peer.produce(topic, BATCH, acks=-1)[2] == 3 * len(BATCH)


# ---- bad input: the named error, and the connection is kept


def spoilt(position: int, layout: str, value: int) -> bytes:
    batch = bytearray(BATCH)
    struct.pack_into(layout, batch, position, value)
    return bytes(batch)


@pytest.mark.parametrize(
    "batch, error, says",
    [
        (BATCH[:-1] + b"?", CorruptBatch, "CRC32C"),
        (BATCH[:40], CorruptBatch, "header"),
        (BATCH[:-5], CorruptBatch, "only"),
        (b"", InvalidRecord, "without record batches"),
        (spoilt(16, ">b", 1), UnsupportedVersion, "magic 1"),
        (encode_values([os.urandom(2_000_000)], 1_000), MessageTooLarge, "max.message.bytes"),
        (encode_values([b"x"], -5), InvalidTimestamp, "-5 ms"),
    ],
    ids=["checksum", "cut header", "cut records", "empty", "old magic", "too large", "timestamp"],
)
def test_a_bad_batch_gets_its_error(peer: Peer, topic: str, batch: bytes, error: type, says: str) -> None:
    peer.create(topic)
    code, base, end, message = peer.produce(topic, batch)
    assert (code, base, end) == (error.code, -1, -1)  # type: ignore[attr-defined]
    assert says in message
    assert peer.produce(topic, BATCH)[:3] == (0, len(BATCH) - 3, len(BATCH))


def test_unknown_topics_offsets_and_timestamps(peer: Peer, topic: str) -> None:
    assert peer.produce("nowhere", BATCH)[0] == UnknownPartition.code
    assert peer.fetch("nowhere", 0)[0][0] == UnknownPartition.code
    peer.create(topic)
    assert peer.produce(topic, BATCH, partition=9)[0] == UnknownPartition.code
    end = peer.produce(topic, BATCH, acks=-1)[2]
    for offset in (-1, end + 1, 1 << 62):
        assert peer.fetch(topic, offset)[0][:3] == [OffsetOutOfRange.code, 0, end]
    header, _ = peer.call([native.OFFSETS, 1, [[topic, 0, -9, -1], [topic, 0, 5_000, -1], [topic, 0, 900, -1]]])
    assert header[2] == [[InvalidTimestamp.code, -1, -1, -1], [0, -1, -1, -1], [0, len(BATCH) - 3, 1_000, 0]]


def test_what_is_acknowledged_but_not_shown_is_not_out_of_range(peer: Peer, topic: str) -> None:
    """A consumer that waits leaves the flush policy as it is; who asks without time, or for the end, flushes."""
    peer.create(topic, flush_messages=1_000, flush_ms=60_000)
    _, base, end, _ = peer.produce(topic, BATCH, acks=1)
    assert peer.fetch(topic, base, wait_ms=1)[0] == [0, 0, 0, 0]
    assert peer.fetch(topic, end, wait_ms=1)[0] == [0, 0, 0, 0]
    assert peer.fetch(topic, end + 1)[0][:3] == [OffsetOutOfRange.code, 0, 0]
    assert peer.end(topic) == end
    _, base, end, _ = peer.produce(topic, BATCH, acks=1)
    assert peer.fetch(topic, base)[0] == [0, 0, end, len(BATCH)]


def test_a_question_about_the_end_waits_for_the_flush_of_what_is_told(peer: Peer, topic: str) -> None:
    peer.create(topic, partitions=2)
    parts = [[topic, 0, -1, -1], [topic, 1, -1, -1]]
    for _ in range(20):
        ends = [peer.produce(topic, BATCH, partition, acks=1)[2] for partition in (0, 1)]
        asked = time.monotonic()
        header, _ = peer.call([native.OFFSETS, 1, parts])
        told = [part[1] for part in header[2]]
        assert told == ends or time.monotonic() - asked > 0.9 * FLUSH_WAIT_MS / 1000  # or the disk is slow


def test_a_fetch_that_has_no_time_waits_for_the_flush_of_what_it_asks_for(peer: Peer, topic: str) -> None:
    """In Kafka with one replica what is acknowledged is there: EndToEndLatency, say, polls without waiting."""
    peer.create(topic, partitions=2)
    for _ in range(20):
        bases = [peer.produce(topic, BATCH, partition, acks=1)[1] for partition in (0, 1)]
        parts = [[topic, partition, base, 1 << 20] for partition, base in enumerate(bases)]
        for asked_for in (parts[1:], parts):
            asked = time.monotonic()
            header, _ = peer.call([native.FETCH, 1, 0, 1 << 20, 1 << 20, asked_for])
            sizes = [part[3] for part in header[2]]
            assert any(sizes) or time.monotonic() - asked > 0.9 * FLUSH_WAIT_MS / 1000  # or the disk is slow


# ---- bad bytes: the connection ends, with one line in the log, and nobody else notices


def hello(version: int = native.VERSION, magic: str = native.MAGIC) -> bytes:
    return native.encode_frame([native.HELLO, 0, magic, version, "test"])


@pytest.mark.parametrize(
    "data, says",
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "announced a frame of"),
        (b"\xff\xff\xff\xff", "announced a frame of"),
        (b"\0\0\0\1x", "too short"),
        (b"\0\0\0\6\xff\xff\xff\xff\x90\x90", "longer than its frame"),
        (b"\0\0\0\7\0\0\0\3\xc1\xc1\xc1", "malformed"),
        (b"\0\0\0\5\0\0\0\1\x05", "Expected `array`"),
        (native.encode_frame([native.METADATA, 1, None]), "must be first"),
        (hello(magic="other"), "must be first"),
        (hello() + native.encode_frame([77, 1, 2]), "Invalid value 77"),
        (hello() + native.encode_frame([native.PRODUCE, 1, "t"]), "Expected `array`"),
        (
            hello() + native.encode_frame([native.FETCH, 1, 0, 0, 0, [["t", "0", 0, 0]]]),
            "Expected `int`, got `str` - at `$[5][0][1]`",
        ),
        (hello() + native.encode_frame([native.FETCH, 1, 0, 2**64 - 1, 2**64 - 1, []]), "- at `$[3]`"),
        (hello() + native.encode_frame([native.METADATA, 1, ["n" * 249] * 4_300]), "limit 1048576"),
        (b"\0\0\x10\x01", "limit 4096"),
        (hello() + native.encode_frame([native.PRODUCE, 1, "t", 0, 5, 0]), "Invalid enum value 5 - at `$[4]`"),
    ],
)
def test_garbage_ends_its_connection_only(appliance: Server, peer: Peer, data: bytes, says: str) -> None:
    before = len(appliance.log().splitlines())
    with Peer(appliance.native, hello=False) as bad:
        bad.sock.sendall(data)
        if data.startswith(hello()):
            bad.receive()
        assert bad.hung_up()
        port = bad.sock.getsockname()[1]
    lines = wait_for(lambda: [line for line in appliance.log().splitlines()[before:] if f":{port} " in line], "a line")
    assert len(lines) == 1 and says in lines[0]
    assert peer.admin("topics") is not None


def test_another_version_is_told_ours(appliance: Server) -> None:
    with Peer(appliance.native, hello=False) as bad:
        bad.sock.sendall(hello(version=99))
        header, _ = bad.receive()
        assert header[1:3] == [UnsupportedVersion.code, native.VERSION]
        assert bad.hung_up()


def test_acks_0_can_only_be_told_by_hanging_up(appliance: Server) -> None:
    with Peer(appliance.native) as bad:
        bad.send([native.PRODUCE, 1, "nowhere", 0, 0, 1_000], BATCH)
        assert bad.hung_up()


def test_an_unfinished_frame_is_given_up(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.frame_ms_max": 100})
    with Peer(server.native) as slow:
        slow.sock.sendall(b"\0\0\1\0half a fr")
        assert slow.hung_up()
    assert "network.frame_ms_max" in server.log()


def test_too_many_connections_are_refused_and_counted(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.connections_max": 3, "network.workers": 1})
    peers = [Peer(server.native) for _ in range(3)]
    with socket.create_connection(tuple(server.native.rsplit(":", 1)), 5) as refused:  # type: ignore[arg-type]
        assert refused.recv(1) == b""
    assert "network.connections_max" in server.log()
    (worker,) = wait_for(lambda: [row for row in server.processes("network") if row.get("refused") == 1], "the count")
    assert worker["connections"] == 3
    for peer in peers:
        assert peer.admin("topics") == []
        peer.close()


# ---- bounds


def test_a_consumer_that_does_not_read_costs_no_memory_and_stops_nobody(appliance: Server, topic: str) -> None:
    """Its requests are answered from the file; once ``network.send_bytes_max`` is unsent it is not read any more."""
    batch = encode_values([os.urandom(100_000)], 1_000)
    with Peer(appliance.native) as peer, Peer(appliance.native) as stuck:
        peer.create(topic)
        for _ in range(50):
            assert peer.produce(topic, batch, acks=-1)[0] == 0
        before = sum(memory_bytes(pid) for pid in appliance.pids("network"))
        for number in range(500):
            stuck.send([native.FETCH, number, 0, 1, 1 << 23, [[topic, 0, 0, 1 << 23]]])
        assert len(peer.fetch(topic, 0, bytes_max=1 << 23)[1]) == 50 * len(batch)
        after = sum(memory_bytes(pid) for pid in appliance.pids("network"))
    assert after - before < 4 << 20


def test_a_full_arena_stops_reading_and_loses_nothing(make_appliance: Callable[..., Server]) -> None:
    """More clients in the middle of a frame than the arena has room for: they wait their turn, all are served."""
    server = make_appliance(**{
        "network.workers": 1, "network.arena_bytes": 1 << 20, "network.frame_bytes_max": 1 << 19,
        "topics.max.message.bytes": 400_000,
    })  # fmt: skip
    batch = encode_values([os.urandom(300_000)], 1_000)
    frame = native.encode_frame([native.PRODUCE, 1, "t", 0, 1, 10_000], len(batch)) + batch
    peers = [Peer(server.native) for _ in range(8)]
    peers[0].create("t")
    for peer in peers:
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        peer.sock.sendall(frame[:150_000])
    for peer in peers:
        peer.sock.sendall(frame[150_000:])
    ends = sorted(peer.receive()[0][3] for peer in peers)
    assert ends == list(itertools.accumulate([len(batch)] * 8))
    for peer in peers:
        peer.close()


def test_the_offset_for_a_time_is_that_of_the_first_such_record(peer: Peer, topic: str) -> None:
    """Also inside a batch, compressed or not; the records before it are counted."""
    peer.create(topic)
    ends = [0]
    for number, codec in enumerate(("none", "zstd")):
        records = [(None, b"%d" % at, (), 1_000 * number + 100 * at) for at in range(5)]
        ends.append(peer.produce(topic, encode_batch(records, codec=codec), acks=-1)[2])
    asked = [0, 150, 200, 401, 1_250, 1_400, 1_401]
    header, _ = peer.call([native.OFFSETS, 1, [[topic, 0, timestamp, -1] for timestamp in asked]])
    first, second = ends[1] - 5, ends[2] - 5
    assert header[2] == [
        [0, first, 0, 0],
        [0, first + 2, 200, 2],
        [0, first + 2, 200, 2],
        [0, second, 1_000, 5],
        [0, second + 3, 1_300, 8],
        [0, second + 4, 1_400, 9],
        [0, -1, -1, -1],
    ]
