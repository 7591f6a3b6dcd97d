"""appliance.processes.network.producing: connections wait for a slow writer, and are resumed."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.addresses import PLAINTEXT, Listener
from appliance.config import Config, Network
from appliance.processes.network.client_session import ClientSession
from appliance.processes.network.connection_state import Connection
from appliance.processes.network.connections import Connections
from appliance.processes.network.handing_over import HandingOver
from appliance.processes.network.inbox import Buffers, Inbox
from appliance.processes.network.known_partitions import KnownPartitions
from appliance.processes.network.places import Places
from appliance.processes.network.producing import Producing, _runs
from appliance.processes.network.relaying import Relaying
from appliance.processes.network.turn import Turn
from appliance.processes.network.writer_link import HandedOver, WriterLink
from appliance.wire.listener_codecs import codec_of
from appliance.wire.requests import Codec, Produce, ProducePart
from appliance.wire.transport import PlainTransport

ARENA_BYTES = 1 << 16


class Rig:
    """A worker's connections, half of the arena taken, and one partition whose writer may have nothing in hand."""

    def __init__(self) -> None:
        self.turn = turn = Turn()
        epoll = select.epoll()
        self.buffers = Buffers(memoryview(bytearray(ARENA_BYTES)), ARENA_BYTES)
        assert self.buffers.arena.allocate(ARENA_BYTES // 2) is not None
        self.link = WriterLink("t-0", 0, epoll)
        partitions = SimpleNamespace(of=lambda request: [SimpleNamespace(link=self.link)] * len(request.parts))
        self.connections = Connections(turn, epoll, self.buffers, Network())
        self.places = Places(turn, Network())
        handing_over = HandingOver(turn, self.connections, self.buffers, self.places, Relaying(epoll), 0)
        self.handing_over = handing_over
        known = cast(KnownPartitions, partitions)
        self.producing = Producing(turn, self.connections, known, handing_over, self.buffers, lambda key: None)
        self.connections.connect({}, handing_over.hand_over, self.producing.ask_for_room, self.producing.forget)
        self._epoll = epoll
        self._sockets: list[socket.socket] = []

    def connection(self) -> Connection:
        ours, _ = self.pair()
        listener = Listener("native", PLAINTEXT, "")
        made = Connection(PlainTransport(ours), listener, "", cast(Codec, None), Inbox(self.buffers), ClientSession())
        self.connections.add(made)
        return made

    def pair(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        self._sockets += [ours, theirs]
        return ours, theirs

    def produce(self, connection: Connection) -> bool:
        request = Produce(None, 1, 0, [ProducePart("t", 0, 0, 10)])
        return self.producing.start(connection, request, 0, memoryview(b""))

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._epoll.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_a_closed_connection_is_not_kept_by_a_writer_that_does_not_answer(rig: Rig) -> None:
    stays, goes = rig.connection(), rig.connection()
    assert not rig.produce(stays) and not rig.produce(goes)
    assert list(rig.link.stalled) == [stays, goes]
    rig.connections.close(goes)
    assert list(rig.link.stalled) == [stays] and goes.stalled_by is None


def test_who_waits_for_a_writer_goes_on_when_it_answers(rig: Rig) -> None:
    waits = rig.connection()
    assert not rig.produce(waits)
    answered: Any = SimpleNamespace(link=rig.link)
    rig.producing._fail(answered, [], cast(Any, None))
    assert not rig.link.stalled and waits.stalled_by is None and rig.connections.resumed


def test_a_session_that_is_over_is_gated_as_soon_as_its_connection_comes_back(rig: Rig) -> None:
    """A busy producer would be handed over again before anybody looks."""
    rig.turn.begin()
    listener = Listener("native", PLAINTEXT, "")
    for deadline_ms, over in ((rig.turn.now_ms - 1, True), (rig.turn.now_ms + 1_000, False), (0, False)):
        session = ClientSession()
        session.begin("User:alice", "PLAIN", deadline_ms)
        rig.places.enter(session)
        ours, _ = rig.pair()
        rig.handing_over.take_back(HandedOver(listener, "", codec_of("native", Config()), session, 0), ours)
        assert session.gated is over, deadline_ms


def test_parts_of_joined_requests_are_added_at_once_unless_one_is_empty() -> None:
    here: Any = object()
    alike = [ProducePart("t", 0, 10, 20), ProducePart("t", 0, 30, 50)]
    joined = Produce(None, 1, 0, alike, count=2)
    assert _runs(joined, 100, [here, here]) == [(0, 2, [110, 120, 130, 150], here)]
    several = Produce(None, 1, 0, alike)
    assert _runs(several, 100, [here, here]) == [(0, 1, [110, 120], here), (1, 1, [130, 150], here)]
    empty = Produce(None, 1, 0, [alike[0], ProducePart("t", 0, 30, 30)], count=2)
    assert _runs(empty, 100, [here, here]) == [(0, 1, [110, 120], here), (1, 1, [], here)]
    assert _runs(Produce(None, 1, 0, []), 100, []) == []
