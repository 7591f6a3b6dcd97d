"""appliance.processes.network.inbox: in whatever pieces it comes, a stream is whole, and memory is bounded."""

from __future__ import annotations

import select
import socket
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.addresses import PLAINTEXT, Listener
from appliance.config import Config
from appliance.errors import FrameTooLarge
from appliance.processes.connection import Connection, PendingReply, Traffic
from appliance.processes.network.inbox import Buffers, Inbox
from appliance.processes.tls_files import TlsFiles
from appliance.security.configuration import Tls
from appliance.shared.arena import BLOCK_BYTES, Extent
from appliance.shared.counters import Counters
from appliance.wire.listener_codecs import codec_of
from appliance.wire.transport import PlainTransport, TlsTransport, Transport

from ...support.certificates import make_certificates

FRAME_BYTES_MAX = 3 * BLOCK_BYTES
ARENA_BYTES = 8 * BLOCK_BYTES
PRIVATE_BYTES_MAX = 4 * BLOCK_BYTES


class Client:
    """Both ends of a connection: what is sent into it, and what a worker makes of that."""

    def __init__(self, buffers: Buffers, frames: list[bytes], received: bytes = b"") -> None:
        self.far, self.near = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.transport: Transport = PlainTransport(self.near)
        self.inbox = Inbox(buffers, received)
        self.connection = self.connected()
        self.unsent = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)[len(received) :]
        self.taken: list[bytes] = []
        self.waits = False

    def connected(self) -> Connection[Inbox, PendingReply]:
        codec, counters = codec_of("native", Config()), Counters().listener_counters(Listener("native", PLAINTEXT, ""))
        return Connection(self.transport, codec, self.inbox, counters, Traffic())

    def send(self, count: int) -> None:
        if self.unsent:
            try:
                self.unsent = self.unsent[self.far.send(self.unsent[:count]) :]
            except BlockingIOError:
                pass

    def turn(self, buffers: Buffers, may_take: int, held: list[Extent], now_ms: int) -> None:
        """As a worker does: receive, take some of the whole frames, leave the others, settle."""
        inbox = self.inbox
        inbox.starved = False
        if inbox.parked and (next(iter(buffers.parked)) is not inbox or not inbox.admit(now_ms)):
            return
        assert self.connection.receive()
        stalled = False
        if not inbox.starved:
            for number, (start, stop) in enumerate(inbox.frames(FRAME_BYTES_MAX, FRAME_BYTES_MAX)):
                if number >= may_take:
                    inbox.rewind(start)
                    stalled = True
                    break
                self.taken.append(bytes(buffers.memory[start:stop]))
                assert inbox.extent is not None
                if number == 0:  # a writer has it in hand
                    inbox.extent.hold()
                    held.append(inbox.extent)
            inbox.release_parsed(now_ms, stalled)
        self.waits = stalled or inbox.starved

    def close(self) -> None:
        self.far.close()
        self.near.close()
        self.inbox.clear()


class TlsClient(Client):
    """A client with TLS.  As in a worker, it is read when epoll or the transport report something."""

    def __init__(self, buffers: Buffers, frames: list[bytes], contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        super().__init__(buffers, frames)
        near, far = TlsTransport(self.near, contexts[0]), TlsTransport(self.far, contexts[1], "localhost")
        self.transport, self.sending = near, far
        self.connection = self.connected()
        connected = greeted = False
        while not (connected and greeted):
            greeted = greeted or far.handshake()
            connected = connected or near.handshake()

    def send(self, count: int) -> None:
        if self.unsent:
            try:
                self.unsent = self.unsent[self.sending.send(self.unsent[:count]) :]
            except BlockingIOError:
                pass

    def turn(self, buffers: Buffers, may_take: int, held: list[Extent], now_ms: int) -> None:
        poll = select.poll()
        poll.register(self.near, select.POLLIN)
        if self.waits or self.transport.pending or poll.poll(0):
            super().turn(buffers, may_take, held, now_ms)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Those of a server and of its clients."""
    directory = tmp_path_factory.mktemp("certificates")
    for arguments in (("ca",), ("server", "localhost")):
        make_certificates(directory, *arguments)
    serving = TlsFiles(Tls(certificate=f"{directory}/server.pem", key=f"{directory}/server.key")).context
    return serving, ssl.create_default_context(cafile=f"{directory}/ca.pem")


sizes = st.sampled_from((0, 1, 5, 1_000, BLOCK_BYTES - 4, BLOCK_BYTES, 2 * BLOCK_BYTES, FRAME_BYTES_MAX))


@given(
    streams=st.lists(st.lists(sizes, max_size=5), min_size=1, max_size=6),
    came_back=st.integers(0, 10),
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 200_000), st.integers(0, 3), st.booleans()), max_size=40
    ),
)
def test_every_stream_is_whole(
    streams: list[list[int]], came_back: int, steps: list[tuple[int, int, int, bool]]
) -> None:
    """The first connection comes back from a writer with some bytes; ``steps``: who sends how much, how many frames
    may be taken, and whether writers answer after it."""
    buffers = Buffers(memoryview(bytearray(ARENA_BYTES)), PRIVATE_BYTES_MAX)
    frames = [[bytes([index + 1]) * size for size in stream] for index, stream in enumerate(streams)]
    first = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames[0])[:came_back]
    clients = [Client(buffers, some, b"" if index else first) for index, some in enumerate(frames)]
    held: list[Extent] = []

    def answer() -> None:
        while held:
            held.pop().drop()

    for now_ms, (who, count, may_take, answers) in enumerate(steps, 1):
        client = clients[who % len(clients)]
        client.send(count)
        client.turn(buffers, may_take, held, now_ms)
        assert buffers.private_bytes <= PRIVATE_BYTES_MAX + ARENA_BYTES + FRAME_BYTES_MAX + 4
        if answers:
            answer()
    for now_ms in range(1_000, 1_400):  # all go on, and writers answer: nobody waits for ever
        for client in clients:
            client.send(200_000)
            client.turn(buffers, 10, held, now_ms)
            answer()
    assert [client.taken for client in clients] == frames
    for client in clients:
        client.close()
    assert (buffers.private_bytes, buffers.arena.used_bytes) == (0, 0)
    assert not buffers.holders and not buffers.parked and not buffers.admitted and not buffers.reserved_bytes


@given(
    streams=st.lists(st.lists(sizes, max_size=5), min_size=1, max_size=4),
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 200_000), st.integers(0, 3), st.booleans()), max_size=40
    ),
)
def test_every_stream_is_whole_over_tls(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    streams: list[list[int]],
    steps: list[tuple[int, int, int, bool]],
) -> None:
    """Goal: no byte stays in a transport unseen, wherever the inbox keeps its bytes."""
    buffers = Buffers(memoryview(bytearray(ARENA_BYTES)), PRIVATE_BYTES_MAX)
    frames = [[bytes([index + 1]) * size for size in stream] for index, stream in enumerate(streams)]
    clients = [TlsClient(buffers, some, contexts) for some in frames]
    held: list[Extent] = []
    for now_ms, (who, count, may_take, answers) in enumerate(steps, 1):
        client = clients[who % len(clients)]
        client.send(count)
        client.turn(buffers, may_take, held, now_ms)
        while answers and held:
            held.pop().drop()
    for now_ms in range(1_000, 1_400):
        for client in clients:
            client.send(200_000)
            client.turn(buffers, 10, held, now_ms)
            while held:
                held.pop().drop()
    assert [client.taken for client in clients] == frames
    for client in clients:
        client.close()


def test_a_frame_that_is_too_large_is_refused_wherever_its_size_is() -> None:
    buffers = Buffers(memoryview(bytearray(ARENA_BYTES)), PRIVATE_BYTES_MAX)
    for received in (b"", b"\xff", b"\xff\xff\xff\xff"):
        client = Client(buffers, [], received)
        client.unsent = b"\xff\xff\xff\xff"[len(received) :]
        client.send(4)
        with pytest.raises(FrameTooLarge):
            for now_ms in range(1, 4):
                client.turn(buffers, 1, [], now_ms)
        client.close()


def test_who_holds_longest_makes_room_first() -> None:
    buffers = Buffers(memoryview(bytearray(ARENA_BYTES)), PRIVATE_BYTES_MAX)
    blocks = ARENA_BYTES // BLOCK_BYTES
    clients = [Client(buffers, [b"x" * 100]) for _ in range(blocks + 3)]
    for now_ms, client in enumerate(clients, 1):
        client.send(50)
        client.turn(buffers, 1, [], now_ms)
    assert [client.inbox.extent is None for client in clients] == [True] * 3 + [False] * blocks
    assert buffers.private_bytes <= 3 * 128
    for client in clients:
        client.send(54)
        held: list[Extent] = []
        for _ in range(3):
            client.turn(buffers, 1, held, 100)
            while held:
                held.pop().drop()
        assert client.taken == [b"x" * 100]
        client.close()


def test_what_is_admitted_by_its_size_is_completed_before_what_comes_later() -> None:
    """Goal: no frame that has been let in waits for, or is thrown away for, one that came later."""
    buffers = Buffers(memoryview(bytearray(ARENA_BYTES)), PRIVATE_BYTES_MAX)
    taken = [extent for _ in range(8) if (extent := buffers.arena.allocate(BLOCK_BYTES))]  # by writers: all is private
    large = [Client(buffers, [b"x" * FRAME_BYTES_MAX], b"\x00") for _ in range(3)]
    small = Client(buffers, [b"x" * 100], b"\x00")
    for _ in range(4):
        for client in (*large, small):
            client.send(50)
            client.turn(buffers, 1, [], 1)
    assert [client.inbox.parked for client in (*large, small)] == [False, True, True, False]
    first, second, third = large
    for _ in range(400):
        for client in large:
            client.send(1_000)
            client.turn(buffers, 1, [], 1)
    assert first.inbox.starved and len(second.inbox) < 200, "the first is whole, the others were not read"
    for extent in taken:
        extent.drop()
    for who, later in ((first, second), (second, third), (third, None)):
        held: list[Extent] = []
        for _ in range(300):
            who.send(1_000)
            who.turn(buffers, 1, held, 1)
        while held:
            held.pop().drop()
        assert who.taken == [b"x" * FRAME_BYTES_MAX] and (later is None or not later.taken)
    for client in (*large, small):
        client.close()


def test_a_frame_that_cannot_be_complete_in_time_is_behind() -> None:
    buffers = Buffers(memoryview(bytearray(ARENA_BYTES)), PRIVATE_BYTES_MAX)
    client = Client(buffers, [b"x" * (FRAME_BYTES_MAX - 4)])
    client.send(FRAME_BYTES_MAX // 10)
    client.turn(buffers, 1, [], 1_000)
    assert [client.inbox.is_behind(1_000 + ms, 30_000) for ms in (0, 1_999, 2_500, 3_100)] == [False] * 3 + [True]
    client.send(FRAME_BYTES_MAX // 10)
    client.turn(buffers, 1, [], 4_000)
    assert not client.inbox.is_behind(4_000, 30_000)
    client.close()
