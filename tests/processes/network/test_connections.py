"""appliance.processes.network.connections: the starved are served in order, and are not kept waiting for ever."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.addresses import PLAINTEXT, Listener
from appliance.config import Config, NetworkSection
from appliance.processes.network.cold_reads import ColdReads
from appliance.processes.network.connections import STARVED_MS_MAX, Connections
from appliance.processes.network.inbox import BEHIND_MS_MIN, Buffers, Inbox
from appliance.processes.network.memory_waits import MemoryWaits, count_memory_waits
from appliance.processes.network.turn import Turn
from appliance.processes.network.worker_connection import ClientSession, WorkerConnection
from appliance.shared.arena import BLOCK_BYTES
from appliance.shared.counters import Counters
from appliance.wire import native
from appliance.wire.listener_codecs import codec_of
from appliance.wire.requests import Fetch
from appliance.wire.transport import PlainTransport

FETCH = native.encode_frame([native.FETCH, 1, 0, 1, 1, [["t", 0, 0, 1]]])


class Crowd:
    """Connections of a worker whose arena has one block, and that has no private memory."""

    def __init__(self) -> None:
        self.turn, self.epoll = Turn(), select.epoll()
        self.buffers = Buffers(memoryview(bytearray(BLOCK_BYTES)), 0)
        self.served: list[WorkerConnection] = []
        self.may_start = True
        self.connections = Connections(
            *(self.turn, self.epoll, self.buffers, NetworkSection(), ColdReads(threads_max=0)),
            handlers={Fetch: self._fetch},
            throttle=lambda _, reply: reply,
            on_unreadable=lambda piece: None,
        )
        self.sockets: list[socket.socket] = []

    def client(self, administrator: bool = False) -> tuple[WorkerConnection, socket.socket]:
        near, far = socket.socketpair()
        near.setblocking(False)
        self.sockets += near, far
        listener, codec = Listener("native", PLAINTEXT, ""), codec_of("native", Config(), greeted=True)
        session = ClientSession(administrator=administrator)
        connection = WorkerConnection(
            *(PlainTransport(near), listener, "", codec, Inbox(self.buffers), session),
            Counters().listener_counters(listener),
        )
        self.connections.add_connection(connection)
        return connection, far

    def _fetch(self, connection: WorkerConnection, request: Any, start: int, frame: memoryview) -> bool:
        if self.may_start:
            self.served.append(connection)
        return self.may_start

    def later(self, ms: int) -> None:
        self.turn.now_ms += ms

    def close(self) -> None:
        self.turn.end()
        for sock in self.sockets:
            sock.close()
        self.epoll.close()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    made = Crowd()
    yield made
    made.close()


def test_starved_connections_are_served_in_the_order_in_which_they_came_administrators_first(crowd: Crowd) -> None:
    in_writers_hands = crowd.buffers.arena.allocate(BLOCK_BYTES)
    assert in_writers_hands is not None
    (first, _), (second, _), (administrator, _) = clients = [crowd.client(), crowd.client(), crowd.client(True)]
    for connection, far in clients:
        far.sendall(FETCH)
        crowd.connections.read(connection)
        assert connection.inbox.starved and not connection.events & select.EPOLLIN
    assert crowd.connections.wants_room, "writers are to flush, and release what they have"
    crowd.connections.feed_waiting()
    assert not crowd.served and crowd.connections.waits_for_memory
    in_writers_hands.drop()
    crowd.connections.feed_waiting()
    assert crowd.served == [administrator, first, second] and not crowd.connections.waits_for_memory
    assert all(connection.events & select.EPOLLIN for connection, _ in clients)


@pytest.mark.parametrize("waits_for", ["the first rules", "memory"])
def test_a_client_that_waits_for_us_is_not_silent(crowd: Crowd, waits_for: str) -> None:
    (waiting, far), (silent, _) = crowd.client(), crowd.client()
    in_writers_hands = crowd.buffers.arena.allocate(BLOCK_BYTES) if waits_for == "memory" else None
    crowd.may_start = False
    far.sendall(FETCH)
    crowd.connections.read(waiting)
    crowd.later(NetworkSection().idle_ms + 1)
    crowd.connections.check_timeouts()
    assert silent.closed and not waiting.closed
    if in_writers_hands is not None:
        in_writers_hands.drop()


def test_a_wait_for_memory_is_counted_from_its_beginning_to_its_end(crowd: Crowd) -> None:
    in_writers_hands = crowd.buffers.arena.allocate(BLOCK_BYTES)
    assert in_writers_hands is not None
    for connection, far in (crowd.client(), crowd.client()):
        far.sendall(FETCH)
        crowd.connections.read(connection)
        crowd.later(100)
        crowd.connections.feed_waiting()  # in vain
    counted = lambda: count_memory_waits(crowd.connections.by_fd.values(), crowd.turn.now_ms)  # noqa: E731
    assert counted() == MemoryWaits(starved=2, longest_ms=200, wanted_bytes=2 * BLOCK_BYTES)
    in_writers_hands.drop()
    crowd.connections.feed_waiting()
    assert counted() == MemoryWaits()


def test_a_starved_connection_that_ends_is_forgotten(crowd: Crowd) -> None:
    in_writers_hands = crowd.buffers.arena.allocate(BLOCK_BYTES)
    assert in_writers_hands is not None
    connection, far = crowd.client()
    far.sendall(FETCH)
    crowd.connections.read(connection)
    crowd.connections.close(connection)
    assert not crowd.connections.waits_for_memory and crowd.connections.memory_due_ms is None


def test_for_connections_that_starve_too_long_one_whose_request_does_not_go_on_is_closed(crowd: Crowd) -> None:
    (slow, sends_slowly), (starved, waits) = crowd.client(), crowd.client()
    sends_slowly.sendall(FETCH[:6])
    crowd.connections.read(slow)
    crowd.later(max(STARVED_MS_MAX, BEHIND_MS_MIN) * 10)
    waits.sendall(FETCH)
    crowd.connections.read(starved)
    crowd.later(STARVED_MS_MAX - 1)
    crowd.connections.feed_waiting()
    assert starved.inbox.starved and not slow.closed
    crowd.later(1)
    assert crowd.connections.memory_due_ms == crowd.turn.now_ms
    crowd.connections.feed_waiting()
    assert slow.closed
    crowd.connections.feed_waiting()
    assert crowd.served == [starved]
