"""appliance.processes.connection: any order of events is one stream of requests, and one of replies, in their order."""

from __future__ import annotations

import select
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.addresses import PLAINTEXT, Listener
from appliance.config import Config
from appliance.processes.connection import Connection, Lifetime, PendingReply, Traffic
from appliance.processes.network.inbox import Buffers, Inbox
from appliance.processes.writer.handed_over import Buffer
from appliance.shared.counters import Counters
from appliance.wire import native
from appliance.wire.listener_codecs import codec_of
from appliance.wire.requests import Produce
from appliance.wire.transport import PlainTransport

BUFFER_BYTES = 1 << 16
REPLY_BYTES = 1_500
"""Some replies fill the socket."""


@given(owned=st.lists(st.integers(0, 9), unique=True), done=st.sets(st.integers(0, 9)), takes_along=st.integers(0, 9))
def test_what_is_owned_ends_once_the_latest_first(owned: list[int], done: set[int], takes_along: int) -> None:
    """Also when the end of one thing ends another: ``takes_along`` is the first to have been owned that is left."""
    lifetime, ended = Lifetime(), list[int]()

    def end(thing: int) -> None:
        ended.append(thing)
        if thing == takes_along and left[0] != thing:
            ended.append(left[0])
            lifetime.disown(left[0])

    for thing in owned:
        lifetime.own(thing, lambda thing=thing: end(thing))  # type: ignore[misc]
    for thing in done:
        lifetime.disown(thing)
    left = [thing for thing in owned if thing not in done]
    lifetime.end()
    lifetime.end()
    assert sorted(ended) == sorted(left)
    rest = [thing for thing in left if takes_along not in left or thing != left[0]]
    assert [thing for thing in ended if thing in rest] == rest[::-1]


class Play:
    """A connection with the inbox of one of both processes, its loop, and its client.

    Produce requests come to two topics, so some are joined and some are not.  ``stalls``: none starts now.
    """

    def __init__(self, kind: str, topics: list[int]) -> None:
        self.frames = [frame(number, topic) for number, topic in enumerate(topics)]
        self.unsent = b"".join(self.frames)
        self.client, served = socket.socketpair()
        served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self.client.setblocking(False)
        served.setblocking(False)
        buffers = Buffers(memoryview(bytearray(1 << 18)), 1 << 18)
        inbox: Any = Inbox(buffers) if kind == "worker" else Buffer(b"", BUFFER_BYTES)
        listener = Listener("native", PLAINTEXT, "")
        codec, counters = codec_of("native", Config(), greeted=True), Counters().listener_counters(listener)
        self.traffic = Traffic()
        self.connection: Connection[Any, PendingReply] = Connection(
            PlainTransport(served), codec, inbox, counters, self.traffic
        )
        self.epoll = select.epoll()
        self.connection.watch(self.epoll, select.EPOLLIN)
        self.stalls = self.stalled = self.ended = False
        self.started: list[tuple[PendingReply, int]] = []
        """Each with the number of its first frame."""
        self.batches: list[bytes] = []
        self.answered: set[int] = set()
        self.sent = self.gone = 0
        self.got = b""

    # ---- what happens

    def client_sends(self, size: int) -> None:
        if not self.ended:
            self.sent += self.client.send(self.unsent[:size])
            self.unsent = self.unsent[size:]

    def client_ends(self, _: int) -> None:
        if not self.ended:
            self.ended = True
            self.client.shutdown(socket.SHUT_WR)

    def client_reads(self, size: int) -> None:
        try:
            self.got += self.client.recv(size)
        except BlockingIOError:
            return
        self.connection.blocked = False
        self._send()

    def pause(self, _: int) -> None:
        self.connection.unwatch(self.epoll)

    def resume(self, _: int) -> None:
        self.connection.watch(self.epoll, select.EPOLLIN)

    def stall(self, _: int) -> None:
        self.stalls = True

    def go_on(self, _: int) -> None:
        self.stalls = False
        if self.stalled:
            self._start()

    def loop(self, _: int) -> None:
        if any(event & select.EPOLLIN for _, event in self.epoll.poll(0)) and not self.stalled:
            if self.connection.receive():
                self._start()
            else:
                self.connection.unwatch(self.epoll)

    def answer(self, number: int) -> None:
        """Answer one of those that have started and are not answered."""
        waiting = [index for index in range(len(self.started)) if index not in self.answered]
        if waiting:
            index = waiting[number % len(waiting)]
            self.answered.add(index)
            pending, first = self.started[index]
            replies: list[Any] = [reply(first + more) for more in range(pending.count)]
            self.connection.set_reply(pending, replies)
            self._send()

    def _start(self) -> None:
        connection = self.connection
        self.stalled = not connection.start_requests(self._start_one, BUFFER_BYTES, BUFFER_BYTES)
        if isinstance(connection.inbox, Inbox):
            connection.inbox.release_parsed(0, self.stalled)

    def _start_one(self, connection: Any, request: Produce, position: int, frame: memoryview) -> bool:
        if self.stalls:
            return False
        pending = PendingReply(request, request.count, 0)
        connection.expect(pending)
        self.started.append((pending, len(self.batches)))
        memory = connection.inbox.memory
        self.batches += [bytes(memory[position + part.start : position + part.stop]) for part in request.parts]
        return True

    def _send(self) -> None:
        self.connection.collect()
        if self.connection.out and not self.connection.blocked:
            self.connection.send()

    # ---- what always holds

    def check(self) -> None:
        batches = [batch(number) for number in range(len(self.batches))]
        assert self.batches == batches, "each request has started once, in order"
        in_order = next((index for index in range(len(self.started)) if index not in self.answered), len(self.started))
        replied = sum(pending.count for pending, _ in self.started[:in_order])
        expected = b"".join(map(reply, range(replied)))
        assert expected.startswith(self.got), "each reply comes once, after all before it"
        assert self.connection.unanswered == len(self.batches) - replied
        assert len(expected) == self.traffic.bytes_out + self.connection.out_bytes
        parsed = b"".join(self.frames[: len(self.batches)])
        stream = b"".join(self.frames)
        assert parsed + self.connection.inbox.copy() == stream[: self.traffic.bytes_in], "no byte is lost"

    def finish(self) -> None:
        """Everything that has come is answered, and has arrived."""
        self.go_on(0)
        self.resume(0)
        while self.traffic.bytes_in < self.sent:
            self.loop(0)
        while len(self.answered) < len(self.started):
            self.answer(0)
        while self.connection.out:
            self.client_reads(1 << 20)
        self.client_reads(1 << 20)
        self.check()
        stream = b"".join(self.frames)[: self.sent]
        whole = sum(stream.startswith(b"".join(self.frames[: number + 1])) for number in range(len(self.frames)))
        assert len(self.batches) == whole and self.got == b"".join(map(reply, range(whole)))

    def die(self) -> None:
        """Either side ends now; answers still come, and go nowhere."""
        connection, ended = self.connection, []
        connection.own("kept for it", lambda: ended.append(connection.closed))
        connection.unwatch(self.epoll)
        connection.close()
        for index, (pending, _) in enumerate(self.started):
            if index not in self.answered:
                connection.set_reply(pending, [b"late"])
                connection.collect()
        assert ended == [True] and not connection.out and not connection.requests and not connection.inbox.copy()
        assert self.epoll.poll(0) == []

    def close(self) -> None:
        self.client.close()
        self.connection.sock.close()
        self.epoll.close()


def batch(number: int) -> bytes:
    return b"batch %d" % number


def frame(number: int, topic: int) -> bytes:
    head = native.encode_frame([native.PRODUCE, 70_000 + number, f"t{topic}", 0, 1, 1_000], len(batch(number)))
    return head + batch(number)


def reply(number: int) -> bytes:
    return b"%d," % number * (1 + number % 3 * REPLY_BYTES)


EVENTS = [
    *(Play.client_sends, Play.client_ends, Play.client_reads, Play.pause, Play.resume),
    *(Play.stall, Play.go_on, Play.loop, Play.answer),
]


@pytest.mark.parametrize("kind", ["worker", "writer"])
@given(
    topics=st.lists(st.integers(0, 1), max_size=12),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 200)), max_size=60),
    dies=st.booleans(),
)
def test_any_order_of_events_keeps_the_order_of_requests_and_replies(
    kind: str, topics: list[int], events: list[tuple[Any, int]], dies: bool
) -> None:
    """Bytes in any split, answers in any order, pauses, stalls, a client that does not read, ends of either side."""
    play = Play(kind, topics)
    try:
        for happens, size in events:
            happens(play, size)
            play.check()
        play.die() if dies else play.finish()
    finally:
        play.close()
