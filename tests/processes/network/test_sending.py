"""appliance.processes.connection: replies leave whole and in order, whatever the socket takes."""

from __future__ import annotations

import os
import select
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.addresses import PLAINTEXT, Listener
from appliance.config import Config, NetworkSection
from appliance.log.page_cache import LogFile
from appliance.processes import connection as shared_connection
from appliance.processes.connection import JOINED_BYTES_MAX, FileFault
from appliance.processes.network.cold_reads import ColdReads
from appliance.processes.network.connections import Connections
from appliance.processes.network.inbox import Buffers, Inbox
from appliance.processes.network.turn import Turn
from appliance.processes.network.worker_connection import ClientSession, Pending, WorkerConnection
from appliance.shared.counters import Counters
from appliance.wire.listener_codecs import codec_of
from appliance.wire.requests import Fetch, FileRange, Produce
from appliance.wire.transport import PlainTransport, Transport

from ...support.certificates import make_certificates
from ...wire.test_transport import Pair

FILE_BYTES = 3 * JOINED_BYTES_MAX
SIZES = st.one_of(
    st.integers(0, 300),
    st.sampled_from([JOINED_BYTES_MAX // 2, JOINED_BYTES_MAX - 1, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1, FILE_BYTES]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["bytes", "file"]), SIZES),
        st.tuples(st.just("send"), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 1 << 17)),
    ),
    max_size=25,
)


class Plain:
    """A transport, and what its client has received."""

    def __init__(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, kind)
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.transport: Transport = PlainTransport(self.near)

    def to_client(self, most: int) -> None:
        self.received = b""
        with suppress(BlockingIOError):
            self.received = self.far.recv(most)

    def read(self) -> bytes:
        return self.received

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, "ca")
    make_certificates(directory, "server", "localhost")
    return directory


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> tuple[LogFile, bytes]:
    data = os.urandom(FILE_BYTES)
    path = tmp_path_factory.mktemp("segment") / "log"
    path.write_bytes(data)
    file = LogFile(path)
    file.do_not_wait()
    return file, data


def connection(transport: Transport) -> WorkerConnection:
    listener, inbox = Listener("native", PLAINTEXT, ""), Inbox(Buffers(memoryview(bytearray(1 << 16)), 1 << 16))
    return WorkerConnection(
        transport,
        listener,
        "",
        codec_of("native", Config()),
        inbox,
        ClientSession(),
        Counters().listener_counters(listener),
    )


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@settings(max_examples=60)
@given(steps=STEPS)
def test_any_replies_arrive_through_any_socket(
    segment: tuple[LogFile, bytes], certificates: Path, tls: bool, steps: list[tuple[str, int]]
) -> None:
    """Goal: what is received is what was put, and nothing of a file stays in memory for a client that does not read."""
    file, data = segment
    pair = Pair(certificates, ssl.TLSVersion.TLSv1_3) if tls else Plain()
    if isinstance(pair, Pair):
        pair.connect()
    sender = connection(pair.transport)
    expected, got, kinds = b"", b"", []
    for step, size in [*steps, ("read", 0)]:
        if step == "bytes":
            expected += data[-size:] if size else b""
            sender.put(data[-size:] if size else b"")
            kinds.append(bytes)
        elif step == "file":
            position = size % 1000 if size < FILE_BYTES else 0
            expected += data[position : position + size]
            sender.put(FileRange(file, position, size))
            kinds.append(FileRange)
        elif step == "send":
            sender.send()
        else:
            pair.to_client(size or 1 << 20)
            got += pair.read()
        assert [type(piece) for piece in sender.out] == kinds[len(kinds) - len(sender.out) :]
        sizes = [len(piece) if isinstance(piece, bytes) else piece.count for piece in sender.out]
        assert sender.out_bytes == sum(sizes)
    while sender.out or len(got) < len(expected):
        sender.send()
        pair.to_client(1 << 20)
        got += pair.read()
    assert got == expected
    pair.close()


def test_a_small_reply_is_one_message(segment: tuple[LogFile, bytes]) -> None:
    """Method: a socket that keeps the limits of what is sent at once."""
    file, data = segment
    pair = Plain(socket.SOCK_SEQPACKET)
    sender = connection(pair.transport)
    for piece in (b"header", FileRange(file, 10, 1000), b"trailer"):
        sender.put(piece)
    assert sender.send() == 1013
    pair.to_client(1 << 20)
    assert pair.read() == b"header" + data[10:1010] + b"trailer"
    pair.close()


@pytest.mark.parametrize("size", [1000, JOINED_BYTES_MAX + 1])
def test_a_segment_that_is_too_short_ends_the_connection(segment: tuple[LogFile, bytes], size: int) -> None:
    """Goal: no reply is shorter than its header says."""
    pair = Plain()
    sender = connection(pair.transport)
    sender.put(FileRange(segment[0], FILE_BYTES - 10, size))
    with pytest.raises(FileFault):
        for _ in range(2):
            sender.send()
            pair.to_client(1 << 20)
    pair.close()


def test_what_is_whole_is_sent_before_a_segment_that_is_too_short(segment: tuple[LogFile, bytes]) -> None:
    """Goal: a fault of one partition's file takes no acknowledgement of another with it."""
    pair = Plain()
    sender = connection(pair.transport)
    for piece in (b"acknowledged", FileRange(segment[0], 0, 100), b"header", FileRange(segment[0], FILE_BYTES, 1)):
        sender.put(piece)
    with pytest.raises(FileFault):
        sender.send()
    pair.to_client(1 << 20)
    assert pair.read() == b"acknowledged" + segment[1][:100] + b"header"
    pair.close()


def test_nothing_is_read_for_a_socket_that_is_full(
    segment: tuple[LogFile, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a client that asks and does not read costs no reading of files with each thing that it asks."""
    reads: list[FileRange] = []
    read = shared_connection._read

    def counted(piece: FileRange) -> bytes:
        reads.append(piece)
        return read(piece)

    monkeypatch.setattr(shared_connection, "_read", counted)
    turn, epoll, pair = Turn(), select.epoll(), Plain()
    connections = Connections(
        *(turn, epoll, Buffers(memoryview(bytearray(1 << 16)), 1 << 16), NetworkSection(), ColdReads()),
        handlers={},
        throttle=lambda _, reply: reply,
        on_unreadable=lambda piece: None,
    )
    sender = connection(pair.transport)
    connections.add_connection(sender)
    for _ in range(10):
        sender.put(FileRange(segment[0], 0, JOINED_BYTES_MAX))
    for _ in range(50):
        connections.touched[sender] = None
        connections.advance_touched()
    assert len(reads) == 1 and sender.events & select.EPOLLOUT
    got = b""
    while sender.out:
        assert not epoll.poll(0)
        while not epoll.poll(0):
            pair.to_client(1 << 16)
            got += pair.read()
        sender.blocked = False  # as the worker does then
        connections.touched[sender] = None
        connections.advance_touched()
    pair.to_client(1 << 20)
    assert got + pair.read() == 10 * segment[1][:JOINED_BYTES_MAX]
    epoll.close()
    pair.close()


REPLIES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([Produce, Fetch]), st.integers(0, 5_000), st.integers(0, 5_000)),
        st.tuples(st.just("read"), st.integers(1, 20_000), st.just(0)),
    ),
    max_size=30,
)


@example(steps=[(Produce, 0, 4225), (Fetch, 0, 1), (Produce, 0, 0)])
@example(steps=[(Produce, 0, 705), (Produce, 0, 4225), (Fetch, 0, 1), (Produce, 0, 0)])
@given(steps=REPLIES)
def test_an_acknowledgement_is_owed_until_its_last_byte_is_sent(steps: list[tuple[Any, int, int]]) -> None:
    """Whatever replies are before and behind it: an ordered stop waits for no other."""
    pair = Plain()
    sender = connection(pair.transport)
    stream: list[bool] = []  # of each byte: whether it is of an answer to a produce request
    sent = 0
    try:
        for step, first, second in steps:
            if step == "read":
                pair.to_client(first)
            else:
                pending = Pending(sender, step.__new__(step))
                sender.requests.append(pending)
                assert sender.owes_acknowledgement == (step is Produce or any(stream[sent:]))
                pending.reply = [bytes(first), bytes(second)]
                stream += [step is Produce] * (first + second)
                sender.taken += 1
                sender.collect()
            sent += sender.send()
            assert sender.owes_acknowledgement == any(stream[sent:])
    finally:
        pair.close()
