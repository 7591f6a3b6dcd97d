"""Connections that network workers have lent to a writer: produce requests with no process in between.

Through a worker a request costs four wake-ups: worker, writer, worker, client.  A connection that does nothing but
produce to one partition is therefore lent to the partition's writer, with the extent of the arena that it receives
into.  The writer takes its requests and answers them, and gives the connection back as soon as anything else comes:
another request, a frame that is wrong or larger than the extent, a client that does not read its replies, the end of
the stream, a second with little to do.  What is unusual is a worker's business alone.

Nobody but the writer reads, writes or closes a connection while it is lent, and it is lent and given back with
nothing unanswered: so replies keep their order.  When the writer dies, the worker closes what it has lent, since
nobody knows what has been answered; when the worker dies, the writer does.

Messages, beside those of :mod:`appliance.processes.writer.process`::

    worker → writer   ["lend", loan, door, acks, start, stop, parsed, filled] +fd     the extent, and what is in it
                      ["recall"]                                                      give all back
    writer → worker   ["unsent", loan, bytes] ...  ["back", loan, parsed, filled]

Threads: the writer's loop takes; it and the flusher answer, holding the flusher's lock.

Bounds: the extent, and ``network.requests_max`` requests that wait for a flush; then it is not read until they have it.
How many are lent is the workers' business.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...config import Config
from ...errors import ProtocolFault
from ...shared.table import SegmentTable
from ...wire.doors import codec_of
from ...wire.frames import SIZE_BYTES, cut
from ...wire.requests import Codec, Produce, Request, decode_frames
from ..answers import Answer
from .link import Bundle, Link, Source

SWEEP_MS: Final = 1_000
TURNS_TO_KEEP: Final = 8
"""A connection that brings requests fewer times in ``SWEEP_MS`` is given back."""
UNSENT_BYTES_PER_MESSAGE: Final = 64 * 1024


class Loans:
    """All connections that one writer has been lent."""

    def __init__(
        self,
        key: tuple[str, int],
        config: Config,
        table: SegmentTable,
        epoll: select.epoll,
        lock: threading.Lock,
        wake: Callable[[], None],
    ) -> None:
        """``wake`` is called, by either thread, when the loop should call :meth:`give_back`."""
        self.key, self.config, self.table = key, config, table
        self.epoll, self.lock, self.wake = epoll, lock, wake
        self._by_fd: dict[int, Loan] = {}
        self._sweep_ms = 0

    def __contains__(self, fd: int) -> bool:
        return fd in self._by_fd

    def __bool__(self) -> bool:
        return bool(self._by_fd)

    def borrow(self, link: Link, terms: Sequence[Any], fd: int, now_ms: int) -> None:
        """``terms``: loan, door, acks and the extent, as in the message."""
        if not self._by_fd:
            self._sweep_ms = now_ms
        token, door, acks, *extent = terms
        loan = Loan(
            self, link, token, socket.socket(fileno=fd), codec_of(door, self.config, greeted=True), acks, extent
        )
        self._by_fd[fd] = loan
        with self.lock:
            loan.watch()

    def take(self, fd: int) -> list[tuple[Source, Bundle]]:
        """What a connection has sent."""
        loan = self._by_fd[fd]
        if not loan.watched:  # by the flusher, since epoll told of it
            return []
        bundles, more = loan.take()
        if not more:
            with self.lock:
                loan.leave()
        elif loan.unanswered > self.config.network.requests_max:
            with self.lock:
                if loan.unanswered > self.config.network.requests_max:  # still: else nothing may come to resume it
                    loan.pause()
        return [(loan, bundle) for bundle in bundles]

    def recall(self, link: Link | None = None) -> None:
        """Give back all, or what one worker has lent, once it is answered."""
        with self.lock:
            for loan in self._by_fd.values():
                if link is None or loan.link is link:
                    loan.leave()

    def sweep(self, now_ms: int) -> None:
        """Give back what has little to do."""
        if now_ms - self._sweep_ms < SWEEP_MS:
            return
        self._sweep_ms = now_ms
        with self.lock:
            for loan in self._by_fd.values():
                if loan.turns < TURNS_TO_KEEP:
                    loan.leave()
                loan.turns = 0

    def give_back(self) -> None:
        """Those that are answered and not read any more."""
        with self.lock:
            for fd, loan in list(self._by_fd.items()):
                if loan.settled:
                    del self._by_fd[fd]
                    loan.give_back()

    def lose(self, link: Link) -> None:
        """The worker is gone.  Call with the lock held."""
        for fd, loan in list(self._by_fd.items()):
            if loan.link is link:
                del self._by_fd[fd]
                loan.close()


class Loan:
    """One connection.  Implements :class:`Source`.

    ``leaving``: it is not read any more, and given back once it is ``settled``, with nothing unanswered.
    """

    __slots__ = (
        "_acks",
        "_answered",
        "_codec",
        "_desk",
        "_filled",
        "_parsed",
        "_sock",
        "_start",
        "_stop",
        "_taken",
        "_token",
        "_unsent",
        "arena",
        "leaving",
        "link",
        "turns",
        "watched",
    )

    def __init__(
        self, desk: Loans, link: Link, token: int, sock: socket.socket, codec: Codec, acks: int, extent: list[int]
    ) -> None:
        self.link = link
        self.arena = link.arena
        self.turns = TURNS_TO_KEEP  # until the first sweep it has not had its time
        self.watched = self.leaving = False
        self._desk, self._token, self._sock, self._codec, self._acks = desk, token, sock, codec, acks
        self._start, self._stop, self._parsed, self._filled = extent
        self._taken = 0  # stored by the loop alone
        self._answered = 0  # stored with the lock held
        self._unsent = b""

    @property
    def unanswered(self) -> int:
        return self._taken - self._answered

    @property
    def settled(self) -> bool:
        return self.leaving and self._taken == self._answered

    # ---- taking: the loop alone

    def take(self) -> tuple[list[Bundle], bool]:
        """Read once.

        Returns:
            Requests alike as bundles, with the request as token; False when something else has come, or the end.
        """
        if not self._make_room():
            return [], False
        try:
            count = self._sock.recv_into(self.arena[self._filled : self._stop])
        except BlockingIOError:
            return [], True
        except OSError:
            count = 0
        self._filled += count
        more = count > 0
        bundles: list[Bundle] = []
        frames: list[tuple[int, int]] = []
        taken = 0
        try:
            frames, parsed = cut(self.arena, self._parsed, self._filled, self._desk.config.network.frame_bytes_max)
            for request, start, _ in decode_frames(self._codec, self.arena, frames):
                if not self._is_usual(request):
                    break
                assert isinstance(request, Produce)
                bundles.append((request, self._acks, _positions(request, start)))
                taken += request.count
        except ProtocolFault:
            more = False  # the worker comes upon it again, and knows what to do
        if taken < len(frames):
            parsed = frames[taken][0] - SIZE_BYTES
            more = False
        if frames:
            self._parsed = parsed
        if taken:
            self.turns += 1
            self._taken += taken
        return bundles, more

    def _make_room(self) -> bool:
        """Move an unfinished frame to the front; False when the extent does not hold the whole of it."""
        start, parsed, filled = self._start, self._parsed, self._filled
        rest = filled - parsed
        if rest and parsed > start:
            self.arena[start : start + rest] = bytes(self.arena[parsed:filled])
        self._parsed, self._filled = start, start + rest
        if rest < SIZE_BYTES:
            return True
        size = int.from_bytes(self.arena[start : start + SIZE_BYTES], "big")
        return start + SIZE_BYTES + size <= self._stop

    def _is_usual(self, request: Request) -> bool:
        return (
            isinstance(request, Produce)
            and request.acks == self._acks
            and len(request.parts) == request.count
            and request.parts[0][:2] == self._desk.key
        )

    # ---- answering and giving back: with the lock held

    def answer(self, answers: Sequence[tuple[Any, Answer]]) -> None:
        log_start = self._desk.table.start
        replies = []
        for request, answer in answers:
            self._answered += request.count
            replies.append(self._codec.encode_produce(request, list(answer.results(log_start))))
        self._send(b"".join(replies))
        if self.settled:
            self._desk.wake()
        elif not self.leaving and not self.watched and self.unanswered <= self._desk.config.network.requests_max:
            self.watch()

    def _send(self, data: bytes) -> None:
        """What the socket does not take is kept for the worker, which waits until it does."""
        sent = 0
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                pass
            except OSError:  # the worker finds out
                sent = len(data)
                self.leave()
        if sent < len(data):
            self._unsent += data[sent:]
            self.leave()

    def watch(self) -> None:
        self.watched = True
        self._desk.epoll.register(self._sock.fileno(), select.EPOLLIN)

    def pause(self) -> None:
        if self.watched:
            self.watched = False
            self._desk.epoll.unregister(self._sock.fileno())

    def leave(self) -> None:
        self.leaving = True
        self.pause()
        if self.settled:
            self._desk.wake()

    def give_back(self) -> None:
        send, unsent = self.link.send, self._unsent
        for start in range(0, len(unsent), UNSENT_BYTES_PER_MESSAGE):
            send(("unsent", self._token, unsent[start : start + UNSENT_BYTES_PER_MESSAGE]))
        send(("back", self._token, self._parsed, self._filled))
        self.close()

    def close(self) -> None:
        self.pause()
        self._sock.close()


def _positions(request: Produce, start: int) -> list[int]:
    return [start + position for part in request.parts for position in part[2:]]
