"""Connections that a writer serves, in a real appliance: nobody notices, whatever comes or dies."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from appliance.errors import CorruptBatch, UnknownPartition, WriterGone
from appliance.processes.handoff import CONNECTIONS_MAX
from appliance.processes.network.worker_connection import TURNS_TO_HAND_OVER
from appliance.records.decode import decode_batch, decode_values
from appliance.records.encode import encode_values
from appliance.wire import native
from appliance.wire.frames import split

from ..support.native_peer import Peer
from ..support.ready import writable
from ..support.server import Server, wait_for
from ..support.sockets import open_files, tcp_sockets

BATCH = encode_values([b"one", b"two", b"three"], 1_000)
LARGE = encode_values([os.urandom(500_000)], 1_000)


@pytest.fixture
def server(make_appliance: Callable[..., Server]) -> Server:
    return make_appliance(**{"network.workers": 1})


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    with Peer(server.native) as peer:
        peer.create("t")
        yield peer


def is_handed_over(server: Server, peer: Peer) -> bool:
    """Whether a writer holds the server's end of this connection."""
    return peer.sock.getsockname()[1] in handed_ports(server)


def handed_ports(server: Server) -> set[int]:
    """The ports of clients whose connections writers hold."""
    ports = {each.file: each.peer_port for each in tcp_sockets()}
    held = set[str]().union(*map(open_files, server.pids("writer")))
    return {ports[name] for name in held & ports.keys()}


def hand_over(server: Server, peer: Peer, acks: int = 1) -> int:
    """Do what gets a connection handed over; returns the end of the log."""

    def is_handed_over_after_some_more() -> int:
        end = 0
        for _ in range(TURNS_TO_HAND_OVER + 1):
            error, _, end, message = peer.produce("t", BATCH, acks=acks)
            assert error == 0, message
        return end if is_handed_over(server, peer) else 0

    return int(wait_for(is_handed_over_after_some_more, "the connection to be handed over"))


def hand_over_acks_0(server: Server, peer: Peer) -> int:
    """As :func:`hand_over`, with acks=0."""
    before, count = peer.end("t"), 0
    while not is_handed_over(server, peer):
        assert count < 50_000, "the connection is not handed over"
        for _ in range(2 * TURNS_TO_HAND_OVER):
            peer.sock.sendall(produce_frame(count, acks=0))
            count += 1
            select.select([], [], [], 0.001)  # so that most are read by themselves
    return before + count * len(BATCH)


def come_back(server: Server, peer: Peer) -> None:
    wait_for(lambda: not is_handed_over(server, peer), "the connection to come back")


def produce_frame(correlation: int, batch: bytes = BATCH, acks: int = 1, topic: str = "t") -> bytes:
    return native.encode_frame([native.PRODUCE, correlation, topic, 0, acks, 10_000], len(batch)) + batch


def receive_many(peer: Peer, count: int) -> list[list[Any]]:
    """The headers of so many replies: in time that grows with their number, not with its square."""
    headers: list[list[Any]] = []
    rest = b""
    while len(headers) < count:
        data = memoryview(rest + peer.sock.recv(1 << 16))
        assert len(data) > len(rest), "the server has hung up"
        frames, parsed = split(data, 0, len(data), 1 << 20)
        headers += [native.decode_header(data[start:stop])[0] for start, stop in frames]
        rest = bytes(data[parsed:])
    return headers


@pytest.mark.parametrize("acks", [1, -1])
def test_anything_else_brings_it_back_and_replies_keep_their_order(server: Server, peer: Peer, acks: int) -> None:
    for _ in range(3):
        end = hand_over(server, peer, acks)
        peer.sock.sendall(
            produce_frame(70_000, acks=acks)
            + produce_frame(70_001, acks=acks)
            + native.encode_frame([native.METADATA, 70_002, ["t"]])
            + native.encode_frame([native.FETCH, 70_003, 1_000, 1, 1 << 20, [["t", 0, 0, 1]]])
            + produce_frame(70_004, acks=acks)
            + produce_frame(70_005, acks=0)
            + produce_frame(70_006, acks=-acks)
        )
        replies = [peer.receive() for _ in range(6)]
        assert [header[0] for header, _ in replies] == [70_000, 70_001, 70_002, 70_003, 70_004, 70_006]
        ends = [replies[number][0][3] - end for number in (0, 1, 4, 5)]
        assert ends == [len(BATCH), 2 * len(BATCH), 3 * len(BATCH), 5 * len(BATCH)]
        assert len(replies[3][1]) == len(BATCH)
        assert not is_handed_over(server, peer)


def test_acks_0_moves_too_and_nothing_overtakes_it(server: Server, peer: Peer) -> None:
    for _ in range(3):
        end = hand_over_acks_0(server, peer)
        peer.sock.sendall(produce_frame(70_000, acks=0) + produce_frame(70_001, acks=0))
        assert peer.end("t") == end + 2 * len(BATCH)
        come_back(server, peer)
        assert peer.produce("t", BATCH)[2] == end + 3 * len(BATCH)


def test_acks_0_that_fails_ends_the_connection_and_what_is_behind_it(server: Server, peer: Peer) -> None:
    end = hand_over_acks_0(server, peer)
    damaged = BATCH[:-1] + bytes([BATCH[-1] ^ 1])
    peer.sock.sendall(produce_frame(70_000, acks=0) + produce_frame(70_001, damaged, acks=0))
    assert peer.hung_up()
    with Peer(server.native) as again:
        assert again.end("t") == end + len(BATCH)
    assert "produce with acks=0 failed: " in server.log()


def test_a_refused_request_has_its_error_in_its_place(server: Server, peer: Peer) -> None:
    end = hand_over(server, peer)
    bad = BATCH[:-1] + b"?"
    peer.sock.sendall(b"".join(produce_frame(70_000 + n, bad if n in (1, 3) else BATCH) for n in range(5)))
    headers = [peer.receive()[0] for _ in range(5)]
    assert [header[:2] for header in headers] == [[70_000 + n, CorruptBatch.code * (n in (1, 3))] for n in range(5)]
    assert [headers[n][3] - end for n in (0, 2, 4)] == [len(BATCH) * count for count in (1, 2, 3)]
    assert "CRC32C" in headers[1][5] and is_handed_over(server, peer)


def test_a_frame_in_pieces_and_one_larger_than_the_extent(server: Server, peer: Peer) -> None:
    end = hand_over(server, peer)
    frame = produce_frame(70_000)
    for at in (1, 3, 4, 5, 30, len(frame) - 1):
        peer.sock.sendall(frame + frame[:at])
        assert peer.receive()[0][3] == end + len(BATCH)
        peer.sock.sendall(frame[at:])
        end += 2 * len(BATCH)
        assert peer.receive()[0][3] == end
    assert is_handed_over(server, peer)
    peer.sock.sendall(frame + produce_frame(70_001, LARGE) + frame)
    ends = [peer.receive()[0][3] - end for _ in range(3)]
    assert ends == [len(BATCH), len(BATCH) + len(LARGE), 2 * len(BATCH) + len(LARGE)]


def test_half_a_frame_and_silence_bring_it_back(server: Server, peer: Peer) -> None:
    end = hand_over(server, peer)
    frame = produce_frame(70_000)
    peer.sock.sendall(frame + frame[:50])
    assert peer.receive()[0][3] == end + len(BATCH)
    come_back(server, peer)
    peer.sock.sendall(frame[50:])
    assert peer.receive()[0][3] == end + 2 * len(BATCH)


def test_garbage_ends_it_after_what_came_before(server: Server, peer: Peer) -> None:
    end = hand_over(server, peer)
    peer.sock.sendall(produce_frame(70_000) + native.encode_frame([99, 70_001]) + produce_frame(70_002))
    assert peer.receive()[0][3] == end + len(BATCH)
    assert peer.hung_up()
    assert "Invalid value 99" in server.log()
    with Peer(server.native) as other:
        assert other.produce("t", BATCH, acks=-1)[2] == end + 2 * len(BATCH)
        hand_over(server, other)
        other.sock.sendall(b"\xff\xff\xff\xff")
        assert other.hung_up()
    assert "announced a frame of" in server.log()


@pytest.mark.parametrize("acks", [1, -1])
def test_a_client_that_does_not_read_its_replies_has_them_later(
    make_appliance: Callable[..., Server], acks: int
) -> None:
    server = make_appliance(**{"network.workers": 1, "network.send_bytes_max": 64 * 1024})
    with Peer(server.native) as peer:
        peer.create("t")
        end = hand_over(server, peer, acks)
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        frame = produce_frame(70_000, acks=acks)
        data = memoryview(frame * 500_000)
        sent = 0
        while sent < len(data) and writable(peer.sock, 1):
            sent += peer.sock.send(data[sent : sent + 65_536], socket.MSG_DONTWAIT)
        assert sent < len(data) and not is_handed_over(server, peer)
        count = sent // len(frame)
        told = [(header[1], header[3] - end) for header in receive_many(peer, count)]
        assert told == [(0, number * len(BATCH)) for number in range(1, count + 1)]
        peer.sock.sendall(frame[sent % len(frame) :])
        assert peer.receive()[0][3] == end + (count + 1) * len(BATCH)


def test_many_that_wait_for_a_flush_are_bounded_and_all_answered(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 1, "network.requests_max": 10})
    with Peer(server.native) as peer:
        peer.create("t", flush_messages=1_000, flush_ms=5)
        end = hand_over(server, peer, -1)
        for _ in range(5):
            peer.sock.sendall(produce_frame(70_000, acks=-1) * 1_000)
        ends = [peer.receive()[0][3] - end for _ in range(5_000)]
        assert ends == [len(BATCH) * (number + 1) for number in range(5_000)]


def test_requests_that_wait_for_more_of_their_kind_are_still_read(peer: Peer) -> None:
    """flush.messages=300: the flush of all comes with the last of them, so none may be left unread meanwhile."""
    peer.create("rarely", flush_messages=300, flush_ms=60_000)
    for _ in range(100):
        peer.sock.sendall(produce_frame(70_000, acks=-1, topic="rarely"))
        select.select([], [], [], 0.001)  # so that each is read by itself
    assert [peer.receive()[0][1] for _ in range(100)] == [0] * 100


@pytest.mark.parametrize("role", ["writer", "network"])
def test_a_killed_process_ends_the_connection_and_loses_nothing(server: Server, peer: Peer, role: str) -> None:
    end = hand_over(server, peer)
    with Peer(server.native) as other:
        other.create("u")
        server.kill(server.pid_of(role))
        assert peer.hung_up()
        with Peer(server.native) as again:
            answer = again.produce("t", BATCH, acks=-1)
            while answer[0] == WriterGone.code:  # the worker has not heard of the next writer yet
                answer = again.produce("t", BATCH, acks=-1)
            assert answer[:3] == (0, end + len(BATCH) - 3, end + len(BATCH))
            hand_over(server, again)
        if role == "writer":
            assert other.produce("u", BATCH)[0] == 0


def test_a_deleted_topic_is_unknown_and_the_connection_kept(server: Server, peer: Peer) -> None:
    hand_over(server, peer)
    with Peer(server.native) as other:
        other.admin("delete_topic", name="t")
    come_back(server, peer)
    assert peer.produce("t", BATCH)[0] == UnknownPartition.code
    peer.create("t")
    assert peer.produce("t", BATCH)[:3] == (0, len(BATCH) - 3, len(BATCH))


def test_an_idle_writer_retires_all_the_same(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 1, "writer.idle_ms": 100})
    with Peer(server.native) as peer:
        peer.create("t")
        end = hand_over(server, peer)
        wait_for((server.data_dir / "t-0" / "clean-shutdown").exists, "the writer to retire")
        assert peer.produce("t", BATCH)[2] == end + len(BATCH)


def test_a_stop_lets_go_of_it(server: Server, peer: Peer) -> None:
    end = hand_over(server, peer)
    assert server.stop() == 0
    assert peer.hung_up()
    server.start()
    with Peer(server.native) as again:
        assert again.end("t") == end
        assert (server.data_dir / "t-0" / "clean-shutdown").exists()


def test_who_is_not_handed_over(server: Server, peer: Peer) -> None:
    """More than CONNECTIONS_MAX at once; several partitions; and an arena that is not larger."""
    peer.create("u", partitions=2)
    for number in range(200):
        assert peer.produce("u", BATCH, partition=number % 2)[0] == 0
    assert not is_handed_over(server, peer)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(server.native)) for _ in range(CONNECTIONS_MAX + 1)]

        def handed_over() -> int:
            for each in peers:
                for _ in range(10):
                    assert each.produce("t", BATCH)[0] == 0
            return sum(is_handed_over(server, each) for each in peers)

        for one in peers[:-1]:
            hand_over(server, one)
        # On a slow machine each waits so long for its turn that some go back; more than these places there never are.
        assert 0 < max(handed_over() for _ in range(10)) <= CONNECTIONS_MAX


def test_what_it_writes_is_what_others_read(server: Server, peer: Peer) -> None:
    """Durable, visible at once to a consumer that waits, and byte for byte what was sent."""
    end = hand_over(server, peer, -1)
    with Peer(server.native) as reader:
        reader.send([native.FETCH, 7, 60_000, 1, 1 << 20, [["t", 0, end, 1 << 20]]])
        assert peer.produce("t", BATCH, acks=-1)[2] == end + len(BATCH)
        payload = reader.receive()[1]
    assert payload[8:] == BATCH[8:]
    assert [record.offset - end for record in decode_batch(memoryview(payload))] == [len(BATCH) - n for n in (3, 2, 1)]


def test_a_producer_of_kafka(server: Server) -> None:
    """One message a batch; in between it asks for metadata."""
    producer = Producer({"bootstrap.servers": server.kafka, "linger.ms": 0, "batch.num.messages": 1, "acks": 1})
    told: list[int] = []
    sent = 0
    for _ in range(3):
        done = 0
        while not (done and handed_ports(server)):
            assert done < 50_000, "the connection is not handed over"
            for _ in range(500):
                producer.produce("k", b"%d" % sent, partition=0, on_delivery=lambda error, m: told.append(m.offset()))
                sent += 1
            assert producer.flush(60) == 0
            done += 500
        assert producer.list_topics("k", 20).topics["k"].partitions.keys() == {0}
    assert len(told) == sent and told == sorted(told)
    with Peer(server.native) as peer:
        end, offset = peer.end("k"), 0
        values: list[bytes | None] = []
        while offset < end:
            start, payload = offset, peer.fetch("k", offset)[1]
            while offset < start + len(payload):
                found, offset = decode_values(payload, offset - start)
                values += found
    assert values == [b"%d" % number for number in range(sent)]
