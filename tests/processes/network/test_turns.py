"""A turn of a network worker is over after a few milliseconds, whatever one client asks for."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from appliance.addresses import PLAINTEXT, Listener
from appliance.broker import plan
from appliance.config import Config, NetworkSection
from appliance.processes.connection import Starter
from appliance.processes.network import turn as turns
from appliance.processes.network.cold_reads import ColdReads
from appliance.processes.network.connections import REQUESTS_PER_TURN, Connections
from appliance.processes.network.inbox import Buffers, Inbox
from appliance.processes.network.offset_lookups import OffsetLookups
from appliance.processes.network.turn import TURN_MS_MAX, Turn
from appliance.processes.network.wait_lists import WaitLists
from appliance.processes.network.worker_connection import ClientSession, Pending, WorkerConnection
from appliance.shared.counters import Counters
from appliance.wire import native
from appliance.wire.listener_codecs import codec_of
from appliance.wire.requests import Fetch, Local, Offsets, OffsetsPart, Request
from appliance.wire.transport import PlainTransport

FETCH = native.encode_frame([native.FETCH, 1, 0, 1, 1, [["t", 0, 0, 1]]])


class Clock:
    """The time, which passes when somebody works."""

    def __init__(self) -> None:
        self.now_ns = 0

    def work(self, milliseconds: float) -> None:
        self.now_ns += int(milliseconds * 1_000_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "now_ns", lambda: clock.now_ns)
    return clock


class Loop:
    """A worker's loop with connections whose fetches take so many milliseconds each."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.turn, self.epoll = clock, Turn(), select.epoll()
        self.buffers = Buffers(memoryview(bytearray(1 << 20)), 1 << 20)
        self.cold_reads = ColdReads(threads_max=0)
        none: Any = lambda *_: None  # noqa: E731
        handlers: dict[type[Request], Starter] = {Fetch: self._fetch}
        self.connections = Connections(
            *(self.turn, self.epoll, self.buffers, NetworkSection(), self.cold_reads),
            handlers=handlers,
            throttle=none,
            on_unreadable=none,
        )
        handlers[Local] = self.connections.answer_local
        self.cost_ms: dict[WorkerConnection, float] = {}
        self.peers: list[socket.socket] = []

    def client(self, cost_ms: float) -> socket.socket:
        near, far = socket.socketpair()
        near.setblocking(False)
        listener, codec, inbox = Listener("native", PLAINTEXT, ""), codec_of("native", Config()), Inbox(self.buffers)
        counters = Counters().listener_counters(listener)
        one = WorkerConnection(PlainTransport(near), listener, "", codec, inbox, ClientSession(), counters)
        self.cost_ms[one] = cost_ms
        self.connections.add_connection(one)
        self.peers += near, far
        far.sendall(native.encode_frame([native.HELLO, 0, native.MAGIC, native.VERSION, "test"]))
        self.step()
        far.recv(1 << 10)
        return far

    def _fetch(self, connection: WorkerConnection, request: Any, start: int, frame: memoryview) -> bool:
        pending = Pending(connection, request)
        connection.begin_request(pending)
        self._clock.work(self.cost_ms[connection])
        self.connections.answer(pending, [b"."])
        return True

    def step(self) -> float:
        """One turn; how many milliseconds it took."""
        events = self.epoll.poll(0)
        self.turn.begin()
        if self.connections.resumed:
            self.connections.start_resumed()
        for fd, _ in events:
            self.connections.read(self.connections.by_fd[fd])
        self.connections.advance_touched()
        self.turn.end()
        return (self._clock.now_ns - self.turn.now_ns) / 1_000_000

    def close(self) -> None:
        for sock in self.peers:
            sock.close()
        self.epoll.close()
        os.close(self.cold_reads.fd)


@pytest.fixture
def loop(clock: Clock) -> Iterator[Loop]:
    loop = Loop(clock)
    yield loop
    loop.close()


def test_many_requests_of_one_client_take_many_turns_and_another_is_answered_between(loop: Loop) -> None:
    heavy, light = loop.client(cost_ms=2), loop.client(cost_ms=0)
    heavy.sendall(80 * FETCH)
    answered = 0
    for _ in range(80):
        light.sendall(FETCH)
        assert loop.step() <= TURN_MS_MAX + 2
        assert light.recv(10) == b"."
        if not loop.connections.resumed:
            break
    answered = len(heavy.recv(1 << 10))
    assert answered == 80


def test_a_request_that_takes_longer_than_a_turn_is_alone_in_it(loop: Loop) -> None:
    heavy = loop.client(cost_ms=3 * TURN_MS_MAX)
    heavy.sendall(3 * FETCH)
    assert [loop.step() for _ in range(4)] == [3 * TURN_MS_MAX] * 3 + [0]
    assert heavy.recv(10) == b"..."


def test_cheap_requests_are_bounded_by_their_number(loop: Loop) -> None:
    client = loop.client(cost_ms=0)
    client.sendall(2 * REQUESTS_PER_TURN * FETCH)
    loop.step()
    assert len(client.recv(1 << 10)) == REQUESTS_PER_TURN - 1 and loop.connections.resumed


def test_look_ups_go_on_in_the_next_turn(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: as many as fit into a turn, one at least, and of each client in turn."""
    answers: list[str] = []
    connections: Any = type("", (), {"answer": lambda _, pending, reply: answers.append(pending.connection.name)})()
    partition: Any = type("", (), {"reader": type("", (), {"looked_bytes": 0})()})()

    def look(part: OffsetsPart, partition: Any, *_: object) -> Any:
        clock.work(2)
        partition.reader.looked_bytes += 100_000
        return plan.OffsetsResult(0, 0, 0, 0)

    monkeypatch.setattr(plan, "offsets", look)
    turn = Turn()
    wait_lists = WaitLists(0, turn.is_over)
    lookups = OffsetLookups(turn, connections, cast(Any, None), wait_lists, cast(Any, None), 100 << 20)

    def ask(name: str, count: int) -> None:
        codec = type("", (), {"encode_offsets": lambda *_: b""})()
        client: Any = type("", (), {"closed": False, "name": name, "codec": codec, "read_ns": 0})()
        parts: Sequence[OffsetsPart] = [OffsetsPart("t", 0, 5, -1)] * count
        lookups._enqueue(Pending(client, cast(Any, None)), Offsets(None, list(parts)), [partition] * count)

    lookups.begin_turn()
    ask("long", 20)
    ask("short", 2)
    assert clock.now_ns <= (TURN_MS_MAX + 2) * 1_000_000 and not answers
    spent = []
    while lookups.unfinished:
        turn.begin()
        lookups.begin_turn()
        spent.append((clock.now_ns - turn.now_ns) / 1_000_000)
    assert answers == ["short", "long"] and max(spent) <= TURN_MS_MAX + 2
