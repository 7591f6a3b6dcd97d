"""A network worker's links to the processes behind it: one writer per partition, and the coordinator.

Writers: requests' record batches are described in *bundles*, at most one open bundle per writer and acks in a turn
of the loop, over all connections.  A bundle holds the extents its positions lie in until the writer has answered.
While there is no writer (not forked yet, retiring, killed) closed bundles wait; what a writer had in hand when it
died is answered with a retriable error, since nobody knows whether it was written.

The coordinator: frames that a worker does not understand travel as they are, and so do the replies.  What a killed
coordinator has not answered is given to its successor, once: a frame that two coordinators have died of, or with, is
not given to a third.  Its connection is closed, so that one request cannot keep the coordinator from coming back.

All memories are bounded: bundles by the arena, of which one partition gets a part (``WriterLink.is_full``), connections
that are handed over by ``handoff.CONNECTIONS_MAX``, frames by ``IN_FLIGHT_BYTES_MAX``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from ...errors import ProtocolFault
from ...shared.arena import Extent
from ...wire.requests import Codec
from .. import handoff
from ..answers import Answer
from ..control import Channel
from ..snapshot import SNAPSHOT
from .connection import Connection, Pending

WRITER_WAIT_MS_MIN: Final = 1_000
WRITER_WAIT_MS_MAX: Final = 15_000
"""A produce waits so long for its partition's writer to be forked and to recover, whatever timeout it asks for."""
BUNDLE_REQUESTS_MAX: Final = 2_048
"""Requests in one bundle: described with two numbers of 5 bytes each and answered with three of up to 9."""
BUNDLE_POSITIONS_MAX: Final = 2 * BUNDLE_REQUESTS_MAX
REPLY_BYTES_MAX: Final = 256 << 20
READ_BYTES: Final = 1 << 20
READS_MAX: Final = 16
"""What is taken of the coordinator's stream at once: more than lies in a socket."""
IN_FLIGHT_BYTES_MAX: Final = 64 << 20
"""Frames that wait for the coordinator, of all connections together; reaching it ends the connection that does."""
GIVEN_MAX: Final = 2
"""Coordinators that one frame is given to: the one that was there, and its successor if that died before answering."""

Target = tuple[Connection, Pending | None, int]
"""Whose request a part belongs to (None: acks=0, no reply), and which of its parts it is."""


class Bundle:
    """Record batches for one partition, in order, answered together."""

    __slots__ = ("acks", "bytes", "deadline_ms", "extents", "positions", "targets")

    def __init__(self, acks: int, deadline_ms: int) -> None:
        self.acks = acks
        self.bytes = 0
        self.deadline_ms = deadline_ms
        self.positions: list[int] = []
        self.targets: list[Target] = []
        self.extents: list[Extent] = []

    def add(self, extent: Extent, start: int, stop: int, target: Target) -> None:
        if not self.extents or self.extents[-1] is not extent:
            extent.hold()
            self.extents.append(extent)
            self.bytes += extent.stop - extent.start
        self.positions += (start, stop)
        self.targets.append(target)

    def release(self) -> None:
        for extent in self.extents:
            extent.drop()
        self.extents.clear()


@dataclass(slots=True)
class Away:
    """A connection that a writer has: what the worker needs when it comes back, and what has come ahead of it."""

    door: str
    listener: str
    peer: str
    codec: Codec
    buffer_bytes: int
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)


Returned = tuple[Away, socket.socket | None]
"""A connection that a writer gives back; without a socket when that has not arrived: it is closed."""


class WriterLink:
    """What this worker has to do with one partition's writer."""

    def __init__(self, name: str, bytes_max: int) -> None:
        """``bytes_max``: of the arena that this writer may have in hand, so that a slow one leaves room for others."""
        self.name = name
        self.channel: Channel | None = None
        self.retiring = False
        self.asked = False
        self.open: dict[int, Bundle] = {}
        self.waiting: list[Bundle] = []
        self.away: dict[int, Away] = {}
        self.stalled: dict[Connection, None] = {}
        """Connections whose next request waits until there is room again."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._in_flight: dict[int, Bundle] = {}
        self._token = 0
        self._flush_asked = (0, False)

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._bytes_max

    def add(
        self, acks: int, now_ms: int, timeout_ms: int, extent: Extent, start: int, stop: int, target: Target
    ) -> None:
        """Put record batches into the open bundle for ``acks``.

        A change of acks closes the other ones, so that order is kept.  The first request's timeout, within bounds, is
        how long all wait for a writer.
        """
        bundle = self.open.get(acks)
        if bundle is None or len(bundle.positions) >= BUNDLE_POSITIONS_MAX:
            self.waiting += self.open.values()
            self.open.clear()
            wait_ms = min(max(timeout_ms, WRITER_WAIT_MS_MIN), WRITER_WAIT_MS_MAX)
            bundle = self.open[acks] = Bundle(acks, now_ms + wait_ms)
        self._bytes -= bundle.bytes
        bundle.add(extent, start, stop, target)
        self._bytes += bundle.bytes

    def release(self, bundle: Bundle) -> None:
        """A bundle is answered: nobody needs its bytes any more."""
        bundle.release()
        self._bytes -= bundle.bytes

    def send(self) -> None:
        """Close the open bundles and send all that wait, if there is a writer to send them to."""
        self.waiting += self.open.values()
        self.open.clear()
        if self.channel is None or self.retiring:
            return
        message: list[Any] = []
        positions = 0
        for bundle in self.waiting:
            self._token += 1
            self._in_flight[self._token] = bundle
            message.append((self._token, bundle.acks, bundle.positions))
            positions += len(bundle.positions)
            if positions >= BUNDLE_POSITIONS_MAX:
                self.channel.send(message)
                message, positions = [], 0
        if message:
            self.channel.send(message)
        self.waiting.clear()

    def ask_for_flush(self, written: int, now: bool) -> None:
        """Somebody has come for what is written: no flush need be late for more; ``now``: flush at once.

        Asked once for the same ``written``: a writer that stands still is not told the same again and again.
        """
        if self.channel is not None and (written, now) > self._flush_asked:
            self._flush_asked = written, now
            self.channel.send(("flush",) if now else ())

    def ask_for_room(self) -> None:
        """Somebody waits for memory that this writer has in hand, if only until a flush."""
        if self.channel is not None and self._bytes:
            self.channel.send(("flush",))

    @property
    def may_hand_over(self) -> bool:
        return self.channel is not None and not self.retiring and len(self.away) < handoff.CONNECTIONS_MAX

    def hand_over(self, connection: Connection, buffer_bytes: int) -> None:
        """Send a settled connection to the writer; then the caller closes its own descriptor and releases its bytes.

        Raises:
            OSError: the kernel refuses a descriptor for the message; nothing was sent.
        """
        assert self.channel is not None and connection.settled
        self._token += 1
        received = connection.inbox.copy()
        message = ("handoff", self._token, connection.door, connection.habit.acks, buffer_bytes, received)
        self.channel.send(message, (connection.sock.fileno(),))
        self.away[self._token] = Away(
            connection.door, connection.listener, connection.peer, connection.codec, buffer_bytes
        )

    def recall(self) -> None:
        """Ask for what is handed over."""
        if self.away and self.channel is not None:
            self.channel.send(("recall",))

    def receive(self) -> tuple[list[tuple[Bundle, Answer]], Returned | None]:
        """The bundles that one message answers, or a connection that it gives back."""
        assert self.channel is not None
        message, fds = self.channel.take()
        match message:
            case ["received", token, data]:
                self.away[token].received += data
            case ["unsent", token, data]:
                self.away[token].unsent += data
            case ["back", token]:
                return [], (self.away.pop(token), socket.socket(fileno=fds[0]))
            case ["gone", token] | ["refused", "back", token]:
                return [], (self.away.pop(token), None)
            case [*_]:
                in_flight = self._in_flight
                return [(in_flight.pop(token), Answer(*answer)) for token, *answer in message], None
        return [], None

    @property
    def idle(self) -> bool:
        return not self._in_flight and not self.away

    def lose(self) -> tuple[list[Bundle], list[Away]]:
        """The writer is gone: what it had in hand, and the connections that ended with it."""
        lost = list(self._in_flight.values()), list(self.away.values())
        self._in_flight.clear()
        self.away.clear()
        if self.channel is not None:
            self.channel.close()
        self.channel = None
        self.retiring = False
        self.asked = False
        self._flush_asked = (0, False)
        return lost

    def take_expired(self, now_ms: int) -> list[Bundle]:
        """Bundles that have waited too long for a writer."""
        expired = [bundle for bundle in self.waiting if bundle.deadline_ms <= now_ms]
        if expired:
            self.waiting = [bundle for bundle in self.waiting if bundle.deadline_ms > now_ms]
        return expired

    def take_waiting(self) -> list[Bundle]:
        """Everything that no writer has been told of: the partition is being deleted."""
        bundles = [*self.waiting, *self.open.values()]
        self.waiting.clear()
        self.open.clear()
        return bundles


def _unpacker() -> msgpack.Unpacker:
    return msgpack.Unpacker(max_buffer_size=REPLY_BYTES_MAX, strict_map_key=False)


class _Forwarded:
    """A frame that waits for its answer, packed; ``given``: how many coordinators have been given it so far."""

    __slots__ = ("given", "packed", "pending")

    def __init__(self, pending: Pending, packed: bytes) -> None:
        self.pending, self.packed, self.given = pending, packed, 0


class CoordinatorLink:
    """The stream to the coordinator: ``[token, door, listener, peer, frame]`` there, ``[token, reply]`` back.

    What comes back beside the replies is for the worker's snapshot (:mod:`appliance.processes.snapshot`): ``told``.

    A dead coordinator is an EOF (:meth:`receive` returns None).  A frame counts as given as soon as there is a
    coordinator to send it to, whether the socket has taken it yet or not.
    """

    def __init__(self, told: Callable[[list[Any]], None]) -> None:
        self.sock: socket.socket | None = None
        self._told = told
        self._out = bytearray()
        self._unpacker = _unpacker()
        self._in_flight: dict[int, _Forwarded] = {}
        self._in_flight_bytes = 0
        self._token = 0

    @property
    def pending(self) -> bool:
        return bool(self._out)

    def connect(self, sock: socket.socket) -> list[Pending]:
        """A new coordinator: give it what the old one has not answered.

        Returns the requests that have been given to GIVEN_MAX of them already: hang up, nobody will answer.
        """
        sock.setblocking(False)
        self.sock = sock
        self._unpacker = _unpacker()
        given_up = [token for token, frame in self._in_flight.items() if frame.given >= GIVEN_MAX]
        outlived = [self._drop(token) for token in given_up]
        self._out.clear()
        for frame in self._in_flight.values():
            self._give(frame)
        self.flush()
        return outlived

    def _give(self, frame: _Forwarded) -> None:
        frame.given += 1
        self._out += frame.packed

    def _drop(self, token: int) -> Pending:
        frame = self._in_flight.pop(token)
        self._in_flight_bytes -= len(frame.packed)
        return frame.pending

    def ask(self, pending: Pending, frame: memoryview) -> None:
        """Pass a frame on.

        Raises:
            ProtocolFault: what is unanswered already takes IN_FLIGHT_BYTES_MAX.
        """
        if self._in_flight_bytes + len(frame) > IN_FLIGHT_BYTES_MAX:
            raise ProtocolFault("too much waits for the coordinator already")
        connection = pending.connection
        self._token += 1
        packed = msgpack.packb((self._token, connection.door, connection.listener, connection.peer, bytes(frame)))
        forwarded = self._in_flight[self._token] = _Forwarded(pending, packed)
        self._in_flight_bytes += len(packed)
        if self.sock is not None:
            self._give(forwarded)
            self.flush()

    def forget(self, connection: Connection) -> None:
        """The connection is gone: nobody wants its answers."""
        gone = [token for token, frame in self._in_flight.items() if frame.pending.connection is connection]
        for token in gone:
            self._drop(token)
            if self.sock is not None:
                self._out += msgpack.packb([token])
        if gone:
            self.flush()

    def flush(self) -> None:
        """Send what the socket takes; a lost coordinator shows at the next receive."""
        try:
            while self._out and self.sock is not None:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()

    def _read(self) -> bytes | None:
        """What has come, b"" at the end of the stream, None when nothing has."""
        assert self.sock is not None
        try:
            return self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def receive(self) -> list[tuple[Pending, bytes | None]] | None:
        """Replies that have arrived (None in place of one: hang up); None when the coordinator is gone."""
        assert self.sock is not None
        data = self._read()
        if data == b"":
            self.sock.close()
            self.sock = None
            self._out.clear()
            return None
        for reads in range(READS_MAX):
            if not data:  # nothing more; an end of the stream shows again at the next call
                break
            self._unpacker.feed(data)
            more = len(data) == READ_BYTES and reads + 1 < READS_MAX
            data = self._read() if more else None
        replies = []
        for token, reply in self._unpacker:
            if token == SNAPSHOT:
                self._told(reply)
            elif token in self._in_flight:
                replies.append((self._drop(token), reply))
        return replies
