"""appliance.processes.network.relays: connections with TLS that a writer serves, in a real appliance.

What holds for plain ones (``test_processes_handoff``) holds for them; its tests run here with TLS.
"""

from __future__ import annotations

import contextlib
import functools
import random
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.processes.network.relays import Relay, Relays
from appliance.processes.network.turn import Turn
from appliance.processes.network.worker_connection import TURNS_TO_HAND_OVER
from appliance.wire import native
from appliance.wire.transport import PIECE_BYTES, RECEIVE_BYTES, PlainTransport

from ...support.certificates import make_certificates
from ...support.native_peer import Peer
from ...support.ready import writable
from ...support.server import Server
from ...support.sockets import ESTABLISHED, open_files, tcp_sockets
from .. import test_handoff as plain
from ..test_handoff import (  # noqa: F401
    BATCH,
    LARGE,
    hand_over,
    produce_frame,
    receive_many,
    test_a_frame_in_pieces_and_one_larger_than_the_extent,
    test_a_killed_process_ends_the_connection_and_loses_nothing,
    test_a_stop_lets_go_of_it,
    test_anything_else_brings_it_back_and_replies_keep_their_order,
    test_half_a_frame_and_silence_bring_it_back,
)

STREAM = "0001"
"""The type of a Unix socket with a stream, in /proc/net/unix; channels between processes have another."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, "ca")
    make_certificates(directory, "server", "127.0.0.1")
    return directory


@pytest.fixture
def server(make_appliance: Callable[..., Server], certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """An appliance with TLS; clients of the other module's tests speak it, too."""
    context = ssl.create_default_context(cafile=f"{certificates}/ca.pem")
    monkeypatch.setattr(Server, "native", property(lambda self: self.address("native", "SSL")))
    monkeypatch.setattr(plain, "Peer", functools.partial(Peer, tls=context))
    monkeypatch.setattr(plain, "is_handed_over", is_relayed)
    return make_appliance(
        **{
            "network.workers": 1,
            "network.send_bytes_max": 64 * 1024,
            "native.listen": "127.0.0.1:0, SSL://127.0.0.1:0",
            "tls.certificate": f"{certificates}/server.pem",
            "tls.key": f"{certificates}/server.key",
        }
    )


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    with plain.Peer(server.native) as peer:
        peer.create("t")
        yield peer


def is_relayed(server: Server, peer: Peer) -> bool:
    """Whether a writer holds one end of a pair of Unix sockets: of the only connection that can be handed over."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    streams = {f"socket:[{row[6]}]" for row in rows if row[4] == STREAM}
    return bool(streams & set[str]().union(*map(open_files, server.pids("writer"))))


def test_a_client_that_does_not_read_its_replies_has_them_later(server: Server, peer: Peer) -> None:
    end = hand_over(server, peer)
    frame = produce_frame(70_000)
    data, sent, piece = memoryview(frame * 500_000), 0, 16_384
    peer.sock.settimeout(0)
    while sent < len(data) and writable(peer.sock, 1):
        with contextlib.suppress(ssl.SSLWantWriteError):
            sent += peer.sock.send(data[sent : sent + piece])
    assert sent < len(data)
    plain.wait_for(lambda: not is_relayed(server, peer), "the connection to come back")
    peer.sock.settimeout(60)
    count = sent // len(frame)
    told = [(header[1], header[3] - end) for header in receive_many(peer, count)]
    assert told == [(0, number * len(BATCH)) for number in range(1, count + 1)]
    rest = data[sent : sent + piece]  # a part of it is in a record that OpenSSL has begun to send
    peer.sock.sendall(rest)
    sent += len(rest)
    peer.sock.sendall(data[sent : -(-sent // len(frame)) * len(frame)])
    more = -(-sent // len(frame)) - count
    assert [header[3] - end for header in receive_many(peer, more)][-1] == (count + more) * len(BATCH)


def test_a_client_that_ends_its_stream_is_gone_at_both_ends(server: Server, peer: Peer) -> None:
    end = hand_over(server, peer)
    with plain.Peer(server.native) as other:
        assert other.end("t") == end
        peer.sock.sendall(produce_frame(70_000))
        assert peer.receive()[0][3] == end + len(BATCH)
        peer.close()
        plain.wait_for(lambda: not is_relayed(server, other), "the writer to give it back")
        plain.wait_for(lambda: len(sockets_of(server)) == 1, "the worker to close it")
        assert other.produce("t", BATCH)[2] == end + 2 * len(BATCH)


def sockets_of(server: Server) -> set[str]:
    """The connections of clients with TLS that the worker holds."""
    port = int(server.native.rpartition(":")[2])
    ends = {each.file for each in tcp_sockets() if each.state == ESTABLISHED and each.port == port}
    return ends & set[str]().union(*map(open_files, server.pids("network")))


def test_large_requests_stay_with_the_worker(server: Server, peer: Peer) -> None:
    for _ in range(TURNS_TO_HAND_OVER + 5):
        assert peer.produce("t", LARGE)[0] == 0
    assert not is_relayed(server, peer)
    assert peer.call([native.METADATA, 1, ["t"]])[0][1] == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["client sends", "writer sends"]), st.integers(1, 400_000)),
        st.tuples(st.sampled_from(["client reads", "writer reads"]), st.integers(1, 600_000)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_byte_is_lost_whoever_does_not_take_it(steps: list[tuple[str, int]]) -> None:
    """Ends at any time: what a side has not got is what :meth:`Relays.end_relay` returns, in its order."""
    epoll, sockets = select.epoll(), [*socket.socketpair(), *socket.socketpair()]
    for sock in sockets:
        sock.setblocking(False)
    client, inner, near, far = sockets
    turn = Turn()
    relays = Relays(turn, epoll)
    relay = relays.begin_relay(PlainTransport(inner), near)
    sent, got = {client: bytearray(), far: bytearray()}, {client: bytearray(), far: bytearray()}
    for step, size in steps:
        sock = client if step.startswith("client") else far
        with contextlib.suppress(BlockingIOError):
            if step.endswith("sends"):
                data = random.Random(len(sent[sock])).randbytes(size)
                sent[sock] += data[: sock.send(data)]
            else:
                got[sock] += sock.recv(size)
        for _ in range(3):
            for fd, event in epoll.poll(0):
                relays.on_event(fd, event)
        assert held_bytes(relay) <= RECEIVE_BYTES + PIECE_BYTES
    with contextlib.suppress(BlockingIOError):
        while True:
            got[client] += client.recv(1 << 20)
    received, unsent = relays.end_relay(relay, far)
    with contextlib.suppress(BlockingIOError):
        received += inner.recv(1 << 20)  # the worker reads on where the relay has ended
    assert got[far] + received == sent[client]
    assert got[client] + unsent == sent[far]
    assert not relays.by_fd
    turn.end()
    for sock in (client, inner):
        sock.close()
    epoll.close()


class Ends:
    """A relay and the sockets at both its ends; epoll is only told, events are the test's."""

    def __init__(self) -> None:
        self.client, inner = socket.socketpair()
        near, self.far = socket.socketpair()
        for sock in (inner, near):
            sock.setblocking(False)
        self.epoll = select.epoll()
        self.turn = Turn()
        self.relays = Relays(self.turn, self.epoll)
        self.relay = self.relays.begin_relay(PlainTransport(inner), near)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    if made.relays.by_fd:
        made.relays.lose(made.relay)
    made.turn.end()
    for sock in (made.client, made.far):
        sock.close()
    made.epoll.close()


def test_the_client_gets_what_its_writer_sent_before_it_died(ends: Ends) -> None:
    ends.far.sendall(b"reply")
    ends.far.close()
    ((fd, event),) = ends.epoll.poll(1)
    assert event & select.EPOLLHUP and event & select.EPOLLIN
    ends.relays.on_event(fd, event)
    assert ends.client.recv(100) == b"reply"
    near_fd = ends.relay.near_fd
    assert ends.relay.near.fileno() == near_fd, "open until the turn ends: a number that is reused has no old event"
    ends.turn.end()
    assert ends.client.recv(100) == b""


def test_nothing_is_read_of_a_client_that_has_just_ended(ends: Ends) -> None:
    """Its reply cannot be sent, and its next request is in the same event."""
    ends.client.sendall(b"request")
    ends.client.close()
    ends.relay.to_client = b"reply"
    ends.relays.on_event(ends.relay.client_fd, select.EPOLLIN | select.EPOLLOUT)
    assert ends.relay.ended and not ends.relay.to_writer
    assert not ends.relay.near_events & select.EPOLLOUT, "which would be reported in every turn"
    assert ends.far.recv(100) == b""


def held_bytes(relay: Relay) -> int:
    return len(relay.to_writer) + len(relay.to_client)
