"""The link from a network worker to the writer of one partition: append requests, and handed-over connections.

An *append request* lists the positions of record batches in the arena.  All connections add to it; at most one is open
per writer and acks in a turn of the loop.  It holds the extents of the arena with these positions until the writer has
answered.  While there is no writer (not forked yet, retiring, killed) closed append requests wait.  When a writer dies,
its unanswered append requests fail, since they may have been written or not.  An append request that fails takes along
those that wait behind it and have batches of the same connections: these must not take effect before it.

Bounds: append requests by the arena, of which one partition gets a share (:attr:`WriterLink.is_full`); handed-over
connections by ``handoff.CONNECTIONS_MAX``.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never

from ...addresses import Listener
from ...shared.arena import Extent
from ...shared.counters import ListenerCounters, listener_number
from ...wire.requests import Codec
from .. import handoff
from ..answers import AppendAnswer
from ..control import Channel
from ..messages import (
    FROM_WRITER,
    Append,
    Appended,
    AppendRow,
    Carried,
    ConnectionLost,
    FlushNow,
    FlushSoon,
    FromWorker,
    GivenBack,
    Handoff,
    ProduceFailed,
    Recall,
    Received,
    Unreceivable,
    Unsent,
)
from .relays import Relay
from .turn import Turn
from .worker_connection import ClientSession

if TYPE_CHECKING:
    from .worker_connection import Pending, WorkerConnection

WRITER_WAIT_MS_MIN: Final = 1_000
WRITER_WAIT_MS_MAX: Final = 30_000
WRITER_WAIT_SHARE: Final = 0.9
"""Bounds of the wait of a produce request for a writer to be forked and to recover: most of its timeout, so that its
client gets the answer in time.  Where more partitions are written to than writers may run, they are served in turn."""
APPEND_PARTS_MAX: Final = 2_048
"""Parts in one append request: each has two numbers of 5 bytes, and three of up to 9 bytes in the answer."""
POSITIONS_MAX: Final = 2 * APPEND_PARTS_MAX

Target = tuple["WorkerConnection", "Pending | None", int, int]
"""The connection, the request (None: acks=0, no reply), the index of its first part and how many parts follow it."""


class AppendRequest:
    """Record batches for one partition, in order, answered together."""

    __slots__ = ("acks", "bytes", "deadline_ms", "extents", "positions", "targets")

    def __init__(self, acks: int, deadline_ms: int) -> None:
        self.acks = acks
        self.bytes = 0
        """Bytes of the arena that it holds."""
        self.deadline_ms = deadline_ms
        self.positions: list[int] = []
        self.targets: list[Target] = []
        self.extents: list[Extent] = []

    def add_batches(self, extent: Extent, positions: Sequence[int], target: Target) -> int:
        """Add record batches; return how many more bytes of the arena it holds."""
        self.positions += positions
        self.targets.append(target)
        if self.extents and self.extents[-1] is extent:
            return 0
        extent.hold()
        self.extents.append(extent)
        size = extent.stop - extent.start
        self.bytes += size
        return size

    def release(self) -> None:
        for extent in self.extents:
            extent.drop()
        self.extents.clear()


@dataclass(slots=True, eq=False)
class HandedOver:
    """A connection that a writer serves, as the worker keeps it.

    ``received`` and ``unsent``: bytes that the writer sends before it gives the connection back.  ``failure``: why the
    connection is to be closed then.
    """

    listener: Listener
    peer: str
    codec: Codec
    session: ClientSession
    counters: ListenerCounters
    buffer_bytes: int
    relay: Relay | None = None
    """With TLS: what passes its bytes on to the writer."""
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    failure: str = ""


Returned = tuple[HandedOver, socket.socket | None]
"""A connection that a writer gives back; without a socket when that has not arrived: it is closed."""

Reaction = tuple[list[tuple[AppendRequest, AppendAnswer]], Returned | None]
"""What a message of a writer brings: answers of append requests, or a connection that comes back."""


class WriterLink:
    """The link to one partition's writer, if there is one, and the append requests that wait for it."""

    def __init__(self, name: str, in_hand_bytes_max: int, epoll: select.epoll) -> None:
        """``in_hand_bytes_max``: the share of the arena for this writer, so that a slow one leaves room for others."""
        self.name = name
        self.channel: Channel | None = None
        self.retiring = False
        self.waiting: list[AppendRequest] = []
        """Closed append requests that were not sent yet."""
        self.waits_for_room: dict[WorkerConnection, None] = {}
        """Connections whose next request waits until the writer has released a part of the arena."""
        self._epoll = epoll
        self._open: dict[int, AppendRequest] = {}
        """The open append requests, by acks."""
        self._handed_over: dict[int, HandedOver] = {}
        self._in_hand_bytes_max = in_hand_bytes_max
        self._in_hand_bytes = 0
        self._in_flight: dict[int, AppendRequest] = {}
        self._token = 0
        self._flush_asked = (0, False)

    # ---- the writer comes and goes

    def connect(self, sock: socket.socket) -> None:
        """Take the channel to a writer that has started."""
        self.channel = Channel(sock)
        self.retiring = False
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def disconnect(self, turn: Turn) -> tuple[list[AppendRequest], list[HandedOver]]:
        """The writer is gone: return its unanswered append requests, and the connections that ended with it."""
        lost = list(self._in_flight.values()), list(self._handed_over.values())
        self._in_flight.clear()
        self._handed_over.clear()
        if self.channel is not None:
            self._epoll.unregister(self.channel.fileno())
            turn.close_at_end(self.channel.close)
        self.channel = None
        self.retiring = False
        self._flush_asked = (0, False)
        return lost

    @property
    def idle(self) -> bool:
        return not self._in_flight and not self._handed_over

    def _send(self, message: FromWorker, fds: tuple[int, ...] = ()) -> None:
        """Send a message; epoll reports when a full channel takes more.

        Raises:
            OSError: the kernel refuses a descriptor for the message; nothing was sent.
        """
        channel = self.channel
        assert channel is not None
        channel.send(message, fds)
        if channel.pending:
            self._epoll.modify(channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """Send queued messages: the channel takes more."""
        channel = self.channel
        assert channel is not None
        channel.flush()
        if not channel.pending:
            self._epoll.modify(channel.fileno(), select.EPOLLIN)

    # ---- appending

    @property
    def is_full(self) -> bool:
        return self._in_hand_bytes >= self._in_hand_bytes_max

    @property
    def in_hand_bytes(self) -> int:
        """Bytes of the arena that its append requests hold."""
        return self._in_hand_bytes

    def retire(self) -> None:
        """The writer is to end: send it what waits, for which it was perhaps started, and nothing after that."""
        self.send()
        self.retiring = True

    def add_batches(
        self, acks: int, now_ms: int, timeout_ms: int, extent: Extent, positions: Sequence[int], target: Target
    ) -> None:
        """Add record batches, at most APPEND_PARTS_MAX of one target, to the open append request for ``acks``.

        A change of acks closes the others, so that order is kept.  The timeout of the first produce request, within
        bounds, limits the wait of all for a writer.
        """
        append = self._open.get(acks)
        if append is None or len(append.positions) + len(positions) > POSITIONS_MAX:
            self.waiting += self._open.values()
            self._open.clear()
            wait_ms = min(max(int(timeout_ms * WRITER_WAIT_SHARE), WRITER_WAIT_MS_MIN), WRITER_WAIT_MS_MAX)
            append = self._open[acks] = AppendRequest(acks, now_ms + wait_ms)
        self._in_hand_bytes += append.add_batches(extent, positions, target)

    def send(self) -> None:
        """Close the open append requests, and send all that wait if there is a writer."""
        self.waiting += self._open.values()
        self._open.clear()
        if self.channel is None or self.retiring:
            return
        rows: list[AppendRow] = []
        positions = 0
        for append in self.waiting:
            self._token += 1
            self._in_flight[self._token] = append
            rows.append((self._token, append.acks, append.positions))
            positions += len(append.positions)
            if positions >= POSITIONS_MAX:
                self._send(Append(rows))
                rows, positions = [], 0
        if rows:
            self._send(Append(rows))
        self.waiting.clear()

    def release(self, append: AppendRequest) -> None:
        """Release the arena's bytes of an answered append request."""
        append.release()
        self._in_hand_bytes -= append.bytes

    def take_expired(self, now_ms: int) -> list[AppendRequest]:
        """Take the append requests that have waited too long for a writer, and those behind them."""
        first = next((append for append in self.waiting if append.deadline_ms <= now_ms), None)
        return self.take_behind([first], now_ms) if first is not None else []

    def take_behind(self, failed: Sequence[AppendRequest], now_ms: int = 0) -> list[AppendRequest]:
        """Take the waiting append requests that have batches of the same connections as ``failed``, or have expired."""
        connections = {target[0] for append in failed for target in append.targets}
        taken, kept = [], []
        for append in (*self.waiting, *self._open.values()):
            own = {target[0] for target in append.targets}
            if append.deadline_ms <= now_ms or not own.isdisjoint(connections):
                connections |= own
                taken.append(append)
            else:
                kept.append(append)
        self.waiting = kept
        self._open.clear()
        return taken

    def take_waiting(self) -> list[AppendRequest]:
        """Take all append requests that were not sent: no writer will come."""
        appends = [*self.waiting, *self._open.values()]
        self.waiting.clear()
        self._open.clear()
        return appends

    def ask_for_flush(self, written: int, now: bool) -> None:
        """Ask the writer not to delay its next flush, because a client waits for it; ``now``: to flush at once.

        ``written``: the log end offset that the client waits for; the writer is asked once for each.
        """
        if self.channel is not None and (written, now) > self._flush_asked:
            self._flush_asked = written, now
            self._send(FlushNow() if now else FlushSoon())

    def ask_for_room(self) -> None:
        """Ask the writer to flush, because a client waits for memory that it releases after a flush."""
        if self.channel is not None and self._in_hand_bytes:
            self._send(FlushNow())

    # ---- handing over

    @property
    def may_hand_over(self) -> bool:
        channel = self.channel
        connected = channel is not None and not channel.closed and not self.retiring
        return connected and len(self._handed_over) < handoff.CONNECTIONS_MAX

    def hand_over(self, connection: WorkerConnection, fd: int, buffer_bytes: int) -> HandedOver:
        """Send a connection with nothing outstanding to the writer, as ``fd``, which the caller then closes.

        Raises:
            OSError: the kernel refuses a descriptor for the message; nothing was sent.
        """
        assert self.channel is not None and connection.may_move
        self._token += 1
        received = connection.inbox.copy()
        acks = connection.handoff_count.acks
        listener = connection.listener
        kind = listener_number(listener)
        message = Handoff(self._token, listener.protocol, kind, acks, buffer_bytes, received)
        self._send(message, (fd,))
        handed_over = self._handed_over[self._token] = HandedOver(
            *(connection.listener, connection.peer, connection.codec, connection.session, connection.counters),
            buffer_bytes,
        )
        return handed_over

    def recall(self) -> None:
        """Ask the writer to give all handed-over connections back."""
        if self._handed_over and self.channel is not None:
            self._send(Recall())

    def recall_expired(self, now_ms: int) -> None:
        """As :meth:`recall`, when the session of one of them is over; the others will be handed over again."""
        if any(handed_over.session.is_over(now_ms) for handed_over in self._handed_over.values()):
            self.recall()

    # ---- messages of the writer

    def receive(self) -> Reaction | None:
        """Receive one message; None: there is none."""
        assert self.channel is not None
        taken = self.channel.take_message(FROM_WRITER)
        if taken is None:
            return None
        message, fds = taken
        match message:
            case Appended(answers):
                in_flight = self._in_flight
                return [
                    (in_flight.pop(token), AppendAnswer(numbers, texts, append_ms))
                    for token, numbers, texts, append_ms in answers
                ], None
            case Received(token, data):
                self._handed_over[token].received += data
            case Unsent(token, data):
                self._handed_over[token].unsent += data
            case Carried(rows):
                for token, bytes_in, bytes_out in rows:
                    session = self._handed_over[token].session
                    session.bytes_in += bytes_in
                    session.bytes_out += bytes_out
            case ProduceFailed(token, reason):
                self._handed_over[token].failure = reason
            case GivenBack(token):
                return [], (self._handed_over.pop(token), socket.socket(fileno=fds[0]))
            case ConnectionLost(token) | Unreceivable(GivenBack(token)):
                return [], (self._handed_over.pop(token), None)
            case Unreceivable():
                raise AssertionError(message)  # nothing else from a writer has a descriptor
            case _:
                assert_never(message)
        return [], None
