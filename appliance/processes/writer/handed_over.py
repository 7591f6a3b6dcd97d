"""Serves connections that workers have handed over: produce requests reach the writer with no process in between.

The writer answers the produce requests of the connection.  It gives the connection back after: another request, a frame
that is wrong or larger than the buffer, a client that does not read its replies, a request with acks=0 that has failed,
the end of the stream, or a second with few requests.  :mod:`appliance.processes.handoff` has the states, the messages,
and what follows when either side dies.

What a connection is, and which thread has what of it, is in :mod:`appliance.processes.connection`.  Each has its own
receive buffer.  Its requests are written before the next turn receives.

Bounds: the buffer, and ``network.requests_max`` requests that wait for a flush; beyond it the connection is not read.
The workers limit the number of connections.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...config import Config, NetworkSection
from ...errors import FrameTooLarge, ProtocolFault, StorageFault
from ...log.partition_directory import topic_id_of
from ...names import TopicPartition
from ...shared.table import SegmentTable
from ...wire.frames import SIZE_BYTES, frame_bytes, split
from ...wire.listener_codecs import codec_of
from ...wire.requests import Codec, Produce, Request
from ...wire.transport import PlainTransport
from ..answers import AppendAnswer, acks_0_failure
from ..connection import Connection, PendingReply, Traffic
from ..handoff import pieces
from ..messages import AppendRow, Carried, ConnectionLost, GivenBack, Handoff, ProduceFailed, Received, Unsent
from .worker_link import AppendSource, WorkerLink

CHECK_MS: Final = 1_000
TURNS_TO_KEEP: Final = 8
"""A connection that brings requests fewer times in ``CHECK_MS`` is given back."""


class _Common(NamedTuple):
    """Values that all connections of a writer share; ``wake``: see :class:`HandedOverConnections`."""

    partition: TopicPartition
    limits: NetworkSection
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
        directory: Path,
    ) -> None:
        """``wake`` is called, by either thread, when the loop should call :meth:`give_back`.

        ``directory``: that of the partition.
        """
        self._config, self._directory = config, directory
        self._topic_names: dict[bytes, str] = {}
        self._common = _Common(partition, config.network, table, epoll, wake)
        self.lock = lock
        self._by_fd: dict[int, WriterConnection] = {}
        self._check_ms = 0

    def __contains__(self, fd: int) -> bool:
        return fd in self._by_fd

    def __bool__(self) -> bool:
        return bool(self._by_fd)

    def accept(self, link: WorkerLink, handoff: Handoff, fd: int, now_ms: int) -> None:
        """Take a connection over."""
        if not self._by_fd:
            self._check_ms = now_ms
        if not self._topic_names:  # without it, a request that names the topic by its id brings the connection back
            with suppress(StorageFault):
                topic_id = bytes.fromhex(topic_id_of(self._directory))
                self._topic_names = {topic_id: self._common.partition.topic}
        codec = codec_of(handoff.protocol, self._config, greeted=True, topic_names=self._topic_names)
        connection = WriterConnection(self._common, link, handoff, socket.socket(fileno=fd), codec)
        self._by_fd[fd] = connection
        with self.lock:
            connection.resume()

    def take_requests(self, fd: int, now_ns: int) -> list[tuple[AppendSource, AppendRow]]:
        """Receive from a connection; return its append requests."""
        connection = self._by_fd[fd]
        if connection.events is None:  # by the flusher, since epoll returned it
            return []
        appends, more = connection.take_requests(now_ns)
        if not more:
            with self.lock:
                connection.leave()
        elif connection.unanswered > self._common.limits.requests_max:
            with self.lock:
                if connection.unanswered > self._common.limits.requests_max:  # still, now that answers cannot interfere
                    connection.pause()
        return appends

    def recall(self, link: WorkerLink | None = None) -> None:
        """Give back all connections, or those of one worker, once they are answered."""
        with self.lock:
            for connection in self._by_fd.values():
                if link is None or connection.link is link:
                    connection.leave()

    def give_back_quiet(self, now_ms: int) -> None:
        """Once in CHECK_MS, give back connections with few requests."""
        if now_ms - self._check_ms < CHECK_MS:
            return
        self._check_ms = now_ms
        with self.lock:
            carried: dict[WorkerLink, list[tuple[int, int, int]]] = {}
            for connection in self._by_fd.values():
                carried.setdefault(connection.link, []).append(connection.take_carried())
                if connection.turns < TURNS_TO_KEEP:
                    connection.leave()
                connection.turns = 0
            for link, rows in carried.items():
                link.send(Carried(rows))

    def give_back(self) -> None:
        """Give back the connections that leave and are answered."""
        with self.lock:
            for fd, connection in list(self._by_fd.items()):
                if connection.may_move:
                    del self._by_fd[fd]
                    connection.give_back()

    def lose(self, link: WorkerLink) -> None:
        """Close the connections of a worker that is gone.  Call with the lock held."""
        for fd, connection in list(self._by_fd.items()):
            if connection.link is link:
                del self._by_fd[fd]
                connection.close()


class Buffer:
    """The inbox of one connection: memory of its own, of a fixed size.

    What has been parsed stays until the next time that it receives.
    """

    __slots__ = ("_parsed", "filled", "memory")

    def __init__(self, received: bytes, size: int) -> None:
        self.memory = memoryview(bytearray(max(size, len(received))))
        self.memory[: len(received)] = received
        self._parsed, self.filled = 0, len(received)

    def room(self) -> memoryview:
        memory, parsed = self.memory, self._parsed
        rest = self.filled - parsed
        if rest and parsed:
            memory[:rest] = bytes(memory[parsed : self.filled])
        self._parsed, self.filled = 0, rest
        if (need := frame_bytes(memory, 0, rest)) > len(memory):
            raise FrameTooLarge(need - SIZE_BYTES, len(memory))
        return memory[rest:]

    def frames(self, frame_bytes_max: int, first_bytes_max: int) -> list[tuple[int, int]]:
        frames, self._parsed = split(self.memory, self._parsed, self.filled, frame_bytes_max, first_bytes_max)
        return frames

    def rewind(self, start: int) -> None:
        self._parsed = start - SIZE_BYTES

    def copy(self) -> bytes:
        return bytes(self.memory[self._parsed : self.filled])

    def clear(self) -> None:
        self._parsed = self.filled = 0


class WriterConnection(Connection[Buffer, PendingReply]):
    """A connection that the writer serves.  Implements :class:`AppendSource`.

    ``leaving``: it is not read any more, and is given back when all requests are answered (``may_move``).
    """

    __slots__ = (
        "_acks",
        "_appends",
        "_common",
        "_failure",
        "_now_ns",
        "_token",
        "_told",
        "arena",
        "leaving",
        "link",
        "turns",
    )

    def __init__(self, common: _Common, link: WorkerLink, handoff: Handoff, sock: socket.socket, codec: Codec) -> None:
        buffer = Buffer(handoff.received, handoff.buffer_bytes)
        super().__init__(PlainTransport(sock), codec, buffer, common.table.handed_over(handoff.listener), Traffic())
        self.link, self.arena = link, buffer.memory
        self.turns = TURNS_TO_KEEP  # the first check comes before it has had CHECK_MS
        self.leaving = False
        self._common, self._token, self._acks = common, handoff.token, handoff.acks
        self._appends: list[tuple[AppendSource, AppendRow]] = []
        self._now_ns = 0
        self._failure = ""
        self._told = (0, 0)

    @property
    def may_move(self) -> bool:
        return self.leaving and self.taken == self.answered

    # ---- taking: the loop alone

    def take_requests(self, now_ns: int) -> tuple[list[tuple[AppendSource, AppendRow]], bool]:
        """Read once.

        Returns:
            Append requests, whose token is the produce request; False at EOF, or when another request has come.
        """
        self._appends, self._now_ns = [], now_ns
        bytes_max, more = self._common.limits.frame_bytes_max, False
        try:
            if self.receive():
                more = self.start_requests(WriterConnection.append_request, bytes_max, bytes_max)
        except ProtocolFault:
            pass  # the worker parses it again, and closes the connection, or has room for it
        if self._appends:
            self.turns += 1
        return self._appends, more

    def append_request(self, request: Request, start: int, frame: memoryview) -> bool:
        """Start a produce request; False when it is another one than this connection is here for."""
        if (
            not isinstance(request, Produce)
            or request.acks != self._acks
            or len(request.parts) != request.count
            or request.parts[0][:2] != self._common.partition
        ):
            return False
        pending = PendingReply(request, request.count, self._now_ns)
        positions: list[int] = []
        for _, _, part_start, part_stop in request.parts:
            positions += (start + part_start, start + part_stop)
        self._appends.append((self, (pending, self._acks, positions)))
        if self._acks:
            self.expect(pending)
        else:
            self.taken += request.count
        return True

    # ---- answering and giving back: with the lock held

    def answer(self, answers: Sequence[tuple[Any, AppendAnswer]]) -> None:
        log_start = self._common.table.start
        for pending, answer in answers:
            request = pending.request
            if answer.texts:
                self.counters.failed(Produce.api, sum(map(bool, answer.numbers[::3])))
            if self._acks:
                self.set_reply(pending, [self.codec.encode_produce(request, answer.results(log_start))])
            else:
                self.answered += pending.count
                self.counters.unanswered(Produce.api, pending.count)
                for text in answer.texts.values():
                    self._failure = self._failure or acks_0_failure(text)
        self.collect()
        if self.out and not self.blocked:
            try:
                self.send()
            except OSError:  # the worker gets the same error
                self.leave()
            if self.blocked:  # what the socket has not taken is for the worker, which waits until it does
                self.leave()
        if self._failure:
            self.leave()
        if self.may_move:
            self._common.wake()
        elif not self.leaving and self.events is None and self.unanswered <= self._common.limits.requests_max:
            self.resume()

    def resume(self) -> None:
        """Let epoll report what comes."""
        self.watch(self._common.epoll, select.EPOLLIN)

    def pause(self) -> None:
        """Read nothing; not even an error of the socket is reported, which would be reported for ever."""
        self.unwatch(self._common.epoll)

    def leave(self) -> None:
        """Read nothing more; once all is answered it is given back."""
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
        for piece in pieces(self.inbox.copy()):
            send(Received(token, piece))
        for piece in pieces(b"".join(reply for reply in self.out if isinstance(reply, bytes))):
            send(Unsent(token, piece))
        if self._failure:
            send(ProduceFailed(token, self._failure))
        try:
            send(GivenBack(token), (self.sock.fileno(),))
        except OSError:
            send(ConnectionLost(token))
        self.close()

    def take_carried(self) -> tuple[int, int, int]:
        """The bytes received and sent since the last call, for a :class:`~..messages.Carried`."""
        (told_in, told_out), traffic = self._told, self.traffic
        self._told = bytes_in, bytes_out = traffic.bytes_in, traffic.bytes_out
        return self._token, bytes_in - told_in, bytes_out - told_out

    def close(self) -> None:
        self.leaving = True  # requests of it may still be answered
        self.pause()
        super().close()
        self.sock.close()
