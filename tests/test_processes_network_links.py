"""appliance.processes.network.links: the largest messages fit their channel; no frame is replayed for ever."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import msgpack

from appliance.processes.control import MESSAGE_BYTES_MAX
from appliance.processes.network import links
from appliance.processes.writer import link as answers
from appliance.processes.writer import process as writer

OFFSET_MAX = 2**63 - 1
POSITION_MAX = 2**32 - 1


def test_the_largest_description_fits() -> None:
    """A message is closed by the bundle that fills it, which may be a full one."""
    bundle = (2**40, -1, [POSITION_MAX] * links.BUNDLE_POSITIONS_MAX)
    almost = (2**40, -1, [POSITION_MAX] * (links.BUNDLE_POSITIONS_MAX - 2))
    assert len(msgpack.packb([almost, bundle])) < MESSAGE_BYTES_MAX


def test_the_largest_answer_fits() -> None:
    texts = {index: "x" * writer.TEXT_CHARACTERS_MAX for index in range(writer.TEXTS_MAX)}
    full = [2**40, [90, OFFSET_MAX, OFFSET_MAX] * links.BUNDLE_REQUESTS_MAX, texts, 2**41]
    small = [[2**40, [0, OFFSET_MAX, OFFSET_MAX], {}, 2**41]] * (
        answers.NUMBERS_PER_MESSAGE // (answers.BUNDLE_NUMBERS + 3)
    )
    assert len(msgpack.packb([*small, full])) < MESSAGE_BYTES_MAX
    refused = [2**40, [2, -1, -1], {0: "x" * writer.TEXT_CHARACTERS_MAX}, -1]
    count = answers.NUMBERS_PER_MESSAGE // (answers.BUNDLE_NUMBERS + 3) + 1
    assert len(msgpack.packb([refused] * count)) < MESSAGE_BYTES_MAX


class Coordinators:
    """One after the other at the far end of a worker's link; each is read by the test."""

    def __init__(self) -> None:
        self.link = links.CoordinatorLink(lambda message: None)

    def start(self) -> list[Any]:
        ours, self.socket = socket.socketpair()
        return self.link.connect(ours)

    def frames(self) -> list[bytes]:
        """What this one has been given."""
        unpacker = msgpack.Unpacker()
        self.socket.setblocking(False)
        try:
            while True:
                unpacker.feed(self.socket.recv(1 << 20))
        except BlockingIOError:
            return [message[4] for message in unpacker if len(message) > 1]

    def answer(self, token: int) -> None:
        self.socket.sendall(msgpack.packb([token, b"reply"]))

    def die(self) -> None:
        self.socket.close()
        assert self.link.receive() is None, "an end of the stream is seen"


def request() -> Any:
    return SimpleNamespace(connection=SimpleNamespace(door="kafka", listener="l", peer="p"))


def test_a_frame_that_two_coordinators_have_died_of_is_not_given_to_a_third() -> None:
    """Method: a poisonous frame, one that comes while nobody is there, and one before each death."""
    coordinators = Coordinators()
    link = coordinators.link
    assert coordinators.start() == []
    poison, honest, late = request(), request(), request()
    link.ask(poison, memoryview(b"poison"))
    link.ask(honest, memoryview(b"honest"))
    assert coordinators.frames() == [b"poison", b"honest"]
    coordinators.answer(2)
    coordinators.socket.shutdown(socket.SHUT_WR)
    assert link.receive() == [(honest, b"reply")]
    coordinators.die()
    link.ask(late, memoryview(b"late"))
    assert coordinators.start() == [] and coordinators.frames() == [b"poison", b"late"]
    coordinators.die()
    assert coordinators.start() == [poison] and coordinators.frames() == [b"late"]
    coordinators.die()
    assert coordinators.start() == [late] and coordinators.frames() == []
    assert link._in_flight_bytes == 0
    coordinators.socket.close()
    assert link.sock is not None
    link.sock.close()
