"""Serves connections that workers have handed over: produce requests reach the writer with no process in between.

The writer answers the produce requests of the connection.  It gives the connection back after: another request, a frame
that is wrong or larger than the buffer, a client that does not read its replies, a request with acks=0 that has failed,
the end of the stream, or a second with few requests.  :mod:`appliance.processes.handoff` has the states, the messages,
and what follows when either side dies.

Each connection has its own receive buffer.  Its requests are written before the next turn receives.

Threads: the loop receives; the loop and the flusher answer, with the flusher's lock held.

Bounds: the buffer, and ``network.requests_max`` requests that wait for a flush; beyond it the connection is not read.
The workers limit the number of connections.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ...config import Config, Network
from ...errors import ProtocolFault
from ...names import TopicPartition
from ...shared.counters import ListenerCounters
from ...shared.table import SegmentTable
from ...wire.frames import SIZE_BYTES, frame_bytes, split
from ...wire.listener_codecs import codec_of
from ...wire.requests import Codec, Produce, Request, decode_frames
from ..answers import Answer, acks_0_failure
from ..handoff import pieces
from ..messages import AppendRow, Carried, ConnectionLost, GivenBack, Handoff, ProduceFailed, Received, Unsent
from .worker_link import Link, Source

CHECK_MS: Final = 1_000
TURNS_TO_KEEP: Final = 8
"""A connection that brings requests fewer times in ``CHECK_MS`` is given back."""


class _Common(NamedTuple):
    """Values that all connections of a writer share; ``wake``: see :class:`HandedOverConnections`."""

    partition: TopicPartition
    limits: Network
    table: SegmentTable
    epoll: select.epoll
    wake: Callable[[], None]


class HandedOverConnections:
    """All connections that one writer has taken over."""

    def __init__(
        self,
        partition: TopicPartition,
        config: Config,
        table: SegmentTable,
        epoll: select.epoll,
        lock: threading.Lock,
        wake: Callable[[], None],
    ) -> None:
        """``wake`` is called, by either thread, when the loop should call :meth:`give_back`."""
        self._config = config
        self._common = _Common(partition, config.network, table, epoll, wake)
        self.lock = lock
        self._by_fd: dict[int, HandedOver] = {}
        self._check_ms = 0

    def __contains__(self, fd: int) -> bool:
        return fd in self._by_fd

    def __bool__(self) -> bool:
        return bool(self._by_fd)

    def accept(self, link: Link, handoff: Handoff, fd: int, now_ms: int) -> None:
        """Take a connection over."""
        if not self._by_fd:
            self._check_ms = now_ms
        codec = codec_of(handoff.protocol, self._config, greeted=True)
        received = handoff.received
        buffer = bytearray(max(handoff.buffer_bytes, len(received)))
        buffer[: len(received)] = received
        counters = self._common.table.handed_over(handoff.listener)
        sock = socket.socket(fileno=fd)
        handed = HandedOver(
            self._common, link, handoff.token, sock, codec, counters, handoff.acks, buffer, len(received)
        )
        self._by_fd[fd] = handed
        with self.lock:
            handed.watch()

    def take(self, fd: int, now_ns: int) -> list[tuple[Source, AppendRow]]:
        """Receive from a connection; return its append requests."""
        handed = self._by_fd[fd]
        if not handed.watched:  # by the flusher, since epoll returned it
            return []
        appends, more = handed.take(now_ns)
        if not more:
            with self.lock:
                handed.leave()
        elif handed.unanswered > self._common.limits.requests_max:
            with self.lock:
                if handed.unanswered > self._common.limits.requests_max:  # still, now that answers cannot interfere
                    handed.pause()
        return appends

    def recall(self, link: Link | None = None) -> None:
        """Give back all connections, or those of one worker, once they are answered."""
        with self.lock:
            for handed in self._by_fd.values():
                if link is None or handed.link is link:
                    handed.leave()

    def check(self, now_ms: int) -> None:
        """Once in CHECK_MS, give back connections with few requests."""
        if now_ms - self._check_ms < CHECK_MS:
            return
        self._check_ms = now_ms
        with self.lock:
            carried: dict[Link, list[tuple[int, int, int]]] = {}
            for handed in self._by_fd.values():
                carried.setdefault(handed.link, []).append(handed.take_carried())
                if handed.turns < TURNS_TO_KEEP:
                    handed.leave()
                handed.turns = 0
            for link, rows in carried.items():
                link.send(Carried(rows))

    def give_back(self) -> None:
        """Give back the connections that leave and are answered."""
        with self.lock:
            for fd, handed in list(self._by_fd.items()):
                if handed.may_move:
                    del self._by_fd[fd]
                    handed.give_back()

    def lose(self, link: Link) -> None:
        """Close the connections of a worker that is gone.  Call with the lock held."""
        for fd, handed in list(self._by_fd.items()):
            if handed.link is link:
                del self._by_fd[fd]
                handed.close()


class HandedOver:
    """One connection.  Implements :class:`Source`.

    ``leaving``: it is not read any more, and is given back when all requests are answered (``may_move``).
    """

    __slots__ = (
        "_acks",
        "_answered",
        "_bytes_in",
        "_bytes_out",
        "_codec",
        "_common",
        "_counters",
        "_failure",
        "_filled",
        "_parsed",
        "_sock",
        "_taken",
        "_token",
        "_told_in",
        "_unsent",
        "arena",
        "leaving",
        "link",
        "turns",
        "watched",
    )

    def __init__(
        self,
        common: _Common,
        link: Link,
        token: int,
        sock: socket.socket,
        codec: Codec,
        counters: ListenerCounters,
        acks: int,
        buffer: bytearray,
        filled: int,
    ) -> None:
        self.link = link
        self.arena = memoryview(buffer)
        self.turns = TURNS_TO_KEEP  # the first check comes before it has had CHECK_MS
        self.watched = self.leaving = False
        self._common, self._token, self._sock, self._codec, self._acks = common, token, sock, codec, acks
        self._counters = counters
        self._parsed, self._filled = 0, filled
        self._taken = 0  # stored by the loop alone
        self._answered = 0  # stored with the lock held
        self._unsent = b""
        self._failure = ""
        self._bytes_in = 0  # stored by the loop alone
        self._told_in = self._bytes_out = 0  # stored with the lock held

    @property
    def unanswered(self) -> int:
        return self._taken - self._answered

    @property
    def may_move(self) -> bool:
        return self.leaving and self._taken == self._answered

    # ---- taking: the loop alone

    def take(self, now_ns: int) -> tuple[list[tuple[Source, AppendRow]], bool]:
        """Read once.

        Returns:
            Append requests, whose token is the produce request and when it came; False at EOF, or when another request
            has come.
        """
        if not self._make_room():
            return [], False
        try:
            count = self._sock.recv_into(self.arena[self._filled :])
        except BlockingIOError:
            return [], True
        except OSError:
            count = 0
        self._filled += count
        more = count > 0
        self._counters.received(count)
        self._bytes_in += count
        appends: list[tuple[Source, AppendRow]] = []
        frames: list[tuple[int, int]] = []
        taken = 0
        try:
            frames, parsed = split(self.arena, self._parsed, self._filled, self._common.limits.frame_bytes_max)
            for request, start, _ in decode_frames(self._codec, self.arena, frames):
                if not self._is_usual(request):
                    break
                assert isinstance(request, Produce)
                positions: list[int] = []
                for _, _, part_start, part_stop in request.parts:
                    positions += (start + part_start, start + part_stop)
                appends.append((self, ((request, now_ns), self._acks, positions)))
                taken += request.count
        except ProtocolFault:
            more = False  # the worker parses it again, and closes the connection
        if taken < len(frames):
            parsed = frames[taken][0] - SIZE_BYTES
            more = False
        if frames:
            self._parsed = parsed
        if taken:
            self.turns += 1
            self._taken += taken
        return appends, more

    def _make_room(self) -> bool:
        """Move an unfinished frame to the front; False when the frame is larger than the buffer."""
        parsed, filled = self._parsed, self._filled
        rest = filled - parsed
        if rest and parsed:
            self.arena[:rest] = bytes(self.arena[parsed:filled])
        self._parsed, self._filled = 0, rest
        return frame_bytes(self.arena, 0, rest) <= len(self.arena)

    def _is_usual(self, request: Request) -> bool:
        return (
            isinstance(request, Produce)
            and request.acks == self._acks
            and len(request.parts) == request.count
            and request.parts[0][:2] == self._common.partition
        )

    # ---- answering and giving back: with the lock held

    def answer(self, answers: Sequence[tuple[Any, Answer]]) -> None:
        log_start = self._common.table.start
        replies = []
        for (request, since_ns), answer in answers:
            self._answered += request.count
            if answer.texts:
                self._counters.failed(Produce.api, sum(map(bool, answer.numbers[::3])))
            if self._acks:
                self._counters.answered(Produce.api, request.count, since_ns)
                replies.append(self._codec.encode_produce(request, answer.results(log_start)))
            else:
                self._counters.unanswered(Produce.api, request.count)
                for text in answer.texts.values():
                    self._failure = self._failure or acks_0_failure(text)
        if replies:
            self._send(b"".join(replies))
        if self._failure:
            self.leave()
        if self.may_move:
            self._common.wake()
        elif not self.leaving and not self.watched and self.unanswered <= self._common.limits.requests_max:
            self.watch()

    def _send(self, data: bytes) -> None:
        """Send bytes; those that the socket does not take are kept for the worker, which waits until it does."""
        sent = 0
        if not self._unsent:
            try:
                sent = self._sock.send(data)
                self._counters.sent(sent)
                self._bytes_out += sent
            except BlockingIOError:
                pass
            except OSError:  # the worker gets the same error
                sent = len(data)
                self.leave()
        if sent < len(data):
            self._unsent += data[sent:]
            self.leave()

    def watch(self) -> None:
        self.watched = True
        self._common.epoll.register(self._sock.fileno(), select.EPOLLIN)

    def pause(self) -> None:
        if self.watched:
            self.watched = False
            self._common.epoll.unregister(self._sock.fileno())

    def leave(self) -> None:
        self.leaving = True
        self.pause()
        if self.may_move:
            self._common.wake()

    def give_back(self) -> None:
        """Send the connection's bytes, then its descriptor, to the worker, and close it here.

        If the kernel has no descriptor for the message, the connection ends: its client reconnects.
        """
        send, token = self.link.send, self._token
        send(Carried([self.take_carried()]))
        for piece in pieces(self.arena[self._parsed : self._filled]):
            send(Received(token, piece))
        for piece in pieces(self._unsent):
            send(Unsent(token, piece))
        if self._failure:
            send(ProduceFailed(token, self._failure))
        try:
            send(GivenBack(token), (self._sock.fileno(),))
        except OSError:
            send(ConnectionLost(token))
        self.close()

    def take_carried(self) -> tuple[int, int, int]:
        """The bytes received and sent since the last call, for a :class:`~..messages.Carried`."""
        bytes_in, bytes_out = self._bytes_in - self._told_in, self._bytes_out
        self._told_in, self._bytes_out = self._bytes_in, 0
        return self._token, bytes_in, bytes_out

    def close(self) -> None:
        self.leaving = True  # requests of it may still be answered
        self.pause()
        self._sock.close()
