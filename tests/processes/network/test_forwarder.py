"""appliance.processes.network.forwarder: no frame is replayed for ever."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.addresses import PLAINTEXT, Listener
from appliance.processes.message_stream import MessageReader, packed
from appliance.processes.messages import TO_COORDINATOR_STREAM, ForwardRequest, LimitsTaken, RequestAnswered, UsageRow
from appliance.processes.network.forwarder import FLUSHED_BYTES, CoordinatorLink
from appliance.processes.network.worker_connection import ClientSession
from appliance.security.principals import Origin


class Coordinators:
    """One after the other at the far end of a worker's link; each is read by the test."""

    def __init__(self) -> None:
        self.link = CoordinatorLink(lambda message: None)

    def start(self) -> list[Any]:
        ours, self.socket = socket.socketpair()
        return self.link.connect(ours)

    def frames(self) -> list[bytes]:
        """What this one has been sent."""
        self.link.flush()
        reader = MessageReader(TO_COORDINATOR_STREAM, 1 << 20)
        self.socket.setblocking(False)
        try:
            while True:
                reader.feed(self.socket.recv(1 << 20))
        except BlockingIOError:
            messages = iter(reader.take_message, None)
            return [message.frame for message in messages if isinstance(message, ForwardRequest)]

    def answer(self, token: int) -> None:
        self.socket.sendall(packed(RequestAnswered(token, b"reply")))

    def die(self) -> None:
        self.socket.close()
        assert self.link.receive() is None, "an end of the stream is seen"
        self.link.disconnect().close()


def request() -> Any:
    origin = Origin(Listener("kafka", PLAINTEXT, "l:1"), "p:1", "User:a")
    return SimpleNamespace(connection=SimpleNamespace(origin=origin, session=ClientSession()))


def test_a_frame_that_two_coordinators_have_died_of_is_not_sent_to_a_third() -> None:
    """Method: a poisonous frame, one that comes while nobody is there, and one before each death."""
    coordinators = Coordinators()
    link = coordinators.link
    assert coordinators.start() == []
    poison, honest, late = request(), request(), request()
    link.forward(poison, memoryview(b"poison"))
    link.forward(honest, memoryview(b"honest"))
    assert coordinators.frames() == [b"poison", b"honest"]
    coordinators.answer(2)
    coordinators.socket.shutdown(socket.SHUT_WR)
    assert link.receive() == [(honest, b"reply")]
    coordinators.die()
    link.forward(late, memoryview(b"late"))
    assert coordinators.start() == [] and coordinators.frames() == [b"poison", b"late"]
    coordinators.die()
    assert coordinators.start() == [poison] and coordinators.frames() == [b"late"]
    coordinators.die()
    assert coordinators.start() == [late] and coordinators.frames() == []
    assert link._frames_bytes == 0
    coordinators.socket.close()
    assert link.sock is not None
    link.sock.close()


def test_a_reply_that_nobody_wants_any_more_is_dropped() -> None:
    coordinators = Coordinators()
    link = coordinators.link
    coordinators.start()
    gone, there = request(), request()
    token = link.forward(gone, memoryview(b"gone"))
    link.forward(there, memoryview(b"there"))
    link.abandon(token)
    for answered in (token, token + 1):
        coordinators.answer(answered)
    assert link.receive() == [(there, b"reply")] and link._frames_bytes == 0
    coordinators.socket.close()
    assert link.sock is not None
    link.sock.close()


def test_the_requests_of_a_turn_wake_the_coordinator_once() -> None:
    """Also those of a turn that has many, which go on their way in pieces that it can begin with."""
    coordinators = Coordinators()
    link = coordinators.link
    coordinators.start()
    coordinators.socket.setblocking(False)
    link.forward(request(), memoryview(b"first"))
    link.forward(request(), memoryview(b"second"))
    with pytest.raises(BlockingIOError):
        coordinators.socket.recv(1)
    assert coordinators.frames() == [b"first", b"second"]
    link.forward(request(), memoryview(bytes(FLUSHED_BYTES)))
    assert len(coordinators.socket.recv(2 * FLUSHED_BYTES)) > FLUSHED_BYTES
    coordinators.socket.close()
    assert link.sock is not None
    link.sock.close()


def test_a_coordinator_that_does_not_read_is_not_told_of_limits() -> None:
    """It may be stopped for hours, and the workers go on: what they have for it stays as it is."""
    coordinators = Coordinators()
    link = coordinators.link
    assert not link.may_report, "there is none"
    coordinators.start()
    rows: list[UsageRow] = [("request_rate", "a", "", 1.0, 1)] * 1_000
    reports = 0
    while link.may_report and reports < 1_000:
        link.report(rows)
        link.flush()
        reports += 1
    waiting = len(link._out)
    assert 1 < reports < 1_000 and waiting <= len(packed(LimitsTaken(rows)))
    coordinators.frames()
    link.flush()
    assert link.may_report, "it reads again"
    coordinators.die()
    assert not link.may_report
