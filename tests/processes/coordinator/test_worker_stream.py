"""appliance.processes.coordinator.worker_stream: requests of a worker are answered, whatever they come to."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence

import pytest

from appliance.addresses import PLAINTEXT, Listener
from appliance.processes.coordinator import worker_stream
from appliance.processes.coordinator.worker_stream import WorkerStream
from appliance.processes.message_stream import MessageReader, packed
from appliance.processes.messages import (
    FROM_COORDINATOR_STREAM,
    ForwardRequest,
    LimitsTaken,
    LimitsUsed,
    RequestAnswered,
    UsageRow,
)
from appliance.security.principals import Origin

ORIGIN = Origin(Listener("kafka", PLAINTEXT, "a:1"), "b:2", "User:c")
ROWS: list[UsageRow] = [("request_percentage", "u", "", 1.0, 0.5)]


class Worker:
    """The far end of a stream, whose coordinator answers a frame with itself."""

    def __init__(self) -> None:
        near, self._far = socket.socketpair()
        self._far.setblocking(False)
        self.stream = WorkerStream(self._answer, lambda stream: None, self._on_usage, 1_000)
        self._near, self._reader = near, MessageReader(FROM_COORDINATOR_STREAM, 1 << 20)
        self.origins: list[Origin] = []
        self.usage: list[Sequence[UsageRow]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _answer(self, origin: Origin, frame: bytes) -> bytes:
        self.origins.append(origin)
        if frame == b"break":
            raise ZeroDivisionError("a bug")
        await self.may_answer.wait()
        return frame

    def _on_usage(self, stream: WorkerStream, rows: Sequence[UsageRow]) -> None:
        self.usage.append(rows)

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: self.stream, sock=self._near)

    async def send(self, *messages: ForwardRequest | LimitsTaken) -> None:
        await asyncio.get_running_loop().sock_sendall(self._far, b"".join(map(packed, messages)))

    async def receive(self) -> RequestAnswered | object:
        async with asyncio.timeout(60):
            while (message := self._reader.take_message()) is None:
                self._reader.feed(await asyncio.get_running_loop().sock_recv(self._far, 1 << 16))
            return message

    def close(self) -> None:
        self.stream.close()
        self._far.close()


def test_each_request_gets_its_answer_and_what_cannot_be_answered_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug and a reply that no worker would take cost one connection each, and the journal has them."""
    monkeypatch.setattr(worker_stream, "REPLY_BYTES_MAX", 10)

    async def ask() -> None:
        worker = Worker()
        await worker.connect()
        frames = [b"0123456789", b"break", b"01234567890", b""]
        await worker.send(*(ForwardRequest(token, ORIGIN, frame) for token, frame in enumerate(frames, 1)))
        answers = [await worker.receive() for _ in frames]
        assert answers == list(map(RequestAnswered, range(1, 5), [b"0123456789", None, None, b""]))
        assert worker.origins == [ORIGIN] * 4
        worker.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(ask())
    assert "the reply to b:2 has 11 bytes" in caplog.text and "ZeroDivisionError" in caplog.text


def test_what_clients_have_taken_from_their_limits_goes_to_the_other_workers() -> None:
    async def tell() -> None:
        worker, other = Worker(), Worker()
        for each in (worker, other):
            await each.connect()
        await worker.send(LimitsTaken(ROWS), ForwardRequest(1, ORIGIN, b"x"))
        assert await worker.receive() == RequestAnswered(1, b"x")
        (rows,) = worker.usage
        other.stream.send_usage(rows)
        assert await other.receive() == LimitsUsed(ROWS)
        worker.close()
        other.close()

    asyncio.run(tell())


def test_answers_of_one_turn_are_sent_with_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wake the worker once: a transaction of ZooKeeper answers a hundred commits."""
    count = 50

    async def ask() -> None:
        worker = Worker()
        await worker.connect()
        worker.may_answer.clear()
        await worker.send(*(ForwardRequest(token, ORIGIN, b"%d" % token) for token in range(count)))
        while len(worker.origins) < count:
            await asyncio.sleep(0)
        written: list[bytes] = []
        monkeypatch.setattr(worker.stream._transport, "write", written.append)
        worker.may_answer.set()
        while not written:
            await asyncio.sleep(0)
        reader = MessageReader(FROM_COORDINATOR_STREAM, 1 << 20)
        reader.feed(written[0])
        assert [reader.take_message() for _ in range(count)] == [
            RequestAnswered(token, b"%d" % token) for token in range(count)
        ]
        worker.close()

    asyncio.run(asyncio.wait_for(ask(), 60))
