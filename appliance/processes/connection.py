"""What a connection of a client is: a network worker and a writer each serve some, with the same rules.

A connection reads bytes into its inbox, starts the whole requests among them in order, and sends the replies in the
order of the requests, as in Kafka: clients match replies by order.  Each process has its own loop, says which requests
it starts (``Starter``), and answers them.

::

    state     it reads  requests start  replies are sent  leaves it by
    open      yes       yes             yes               any of the following
    full      no        no              yes               replies: the bound of unanswered or unsent bytes is kept again
    stalled   no        no              yes               what its next request waits for
    leaving   no        no              yes               nothing is outstanding: it moves, or is closed
    ended     no        no              no                -

    state     in a network worker                                 in a writer (``handed_over``)
    full      requests_max, send_bytes_max                        requests_max
    stalled   the request is rewound, and starts later            -: it leaves, and the worker starts the request
    leaving   settling: to a writer; close_when_sent: closed      back to its worker, with what is not parsed or sent
    ended     its descriptor is closed at the end of the turn     as soon as the worker has it

Owners: the inbox and ``taken`` belong to the loop alone.  All else, from ``requests`` to what epoll watches, belongs to
the loop of a worker, and in a writer to whoever has the flusher's lock; the loop adds to ``requests`` without it, since
another thread only takes what is answered from the other end.  What others keep for a connection is owned by it
(:class:`Lifetime`), and ends with it.

Sending: bytes are sent with ``send``, file ranges with ``send_file`` of the transport (``wire/transport.py``), small
ones joined with what is before and after them; ``MSG_MORE`` keeps a header and its batches in one TCP segment.
"""

from __future__ import annotations

import errno
import select
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

from ..errors import ProtocolFault
from ..log.page_cache import NotInMemory
from ..shared.counters import ListenerCounters
from ..wire.requests import Codec, FileRange, Produce, Request, decode_frames
from ..wire.transport import MORE, Transport

JOINED_BYTES_MAX: Final = 1 << 16
"""Replies are joined up to about this size; a larger one would copy more bytes again when the socket is full.

A range of a file that fits is read and joined, too: a header, sendfile and a trailer cost three system calls, and the
client wakes up for each.
"""
OF_DISKS: Final = frozenset({errno.EIO, errno.EISDIR, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA, errno.ESTALE})
"""Errors of sendfile(2) that a file causes, and not a socket."""


class FileFault(OSError):
    """A part of a reply cannot be read from its segment file, or is not in it any more: ``piece``."""

    def __init__(self, piece: FileRange) -> None:
        super().__init__("the segment file cannot be read, or is shorter than its table says")
        self.piece = piece


class ReceivedBytes(Protocol):
    """An inbox: bytes that have been received, in ``memory``, until they are parsed into requests.

    A worker's are in an arena that writers read (``network/inbox.py``), a writer's in a buffer of the connection.
    """

    memory: memoryview
    filled: int
    """Where the received bytes end."""

    def room(self) -> memoryview | None:
        """Where the next bytes are received, behind ``filled``; None when none fits now.

        Raises:
            FrameTooLarge: a frame has begun that will never fit.
        """

    def frames(self, frame_bytes_max: int, first_bytes_max: int) -> list[tuple[int, int]]:
        """The whole frames that have arrived, as (start, stop) in ``memory``.  Raises FrameTooLarge."""

    def rewind(self, start: int) -> None:
        """Let the frame at ``start``, and all after it, wait."""

    def copy(self) -> bytes:
        """The bytes that are not parsed."""

    def clear(self) -> None:
        """Release all memory."""


class Traffic:
    """The bytes that a client has moved; those of a worker outlive the connection that a writer serves meanwhile."""

    __slots__ = ("bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = 0


class PendingReply:
    """A request that waits for its reply, or ``count`` joined requests.  ``reply`` is None until it is ready.

    ``since_ns``: when its connection was last read.
    """

    __slots__ = ("count", "reply", "request", "since_ns")

    def __init__(self, request: Request, count: int, since_ns: int) -> None:
        self.request, self.count, self.since_ns = request, count, since_ns
        self.reply: list[bytes | FileRange] | None = None


Starter = Callable[[Any, Any, int, memoryview], bool]
"""Starts a request: (connection, request, position of its first frame in the inbox, that frame).

Returns:
    False when the request has to wait.

Raises:
    ProtocolFault: the connection is to be closed.
"""


class Lifetime:
    """Owns what ends with a connection.

    Whoever keeps something for a connection says at once how it is forgotten (:meth:`own`), and no longer when it is
    done (:meth:`disown`).  So a new thing to forget needs no change where connections end.
    """

    __slots__ = ("_owned",)

    def __init__(self) -> None:
        self._owned: dict[Hashable, Callable[[], object]] = {}

    def own(self, thing: Hashable, end: Callable[[], object]) -> None:
        """Call ``end`` at the end, unless the thing is disowned before."""
        self._owned[thing] = end

    def disown(self, thing: Hashable) -> None:
        """The thing is done, if it was owned."""
        self._owned.pop(thing, None)

    def end(self) -> None:
        """End all that is owned, the latest first; one thing may end others."""
        while self._owned:
            _, end = self._owned.popitem()
            end()


InboxT = TypeVar("InboxT", bound=ReceivedBytes)
PendingT = TypeVar("PendingT", bound=PendingReply)


class Connection(Lifetime, Generic[InboxT, PendingT]):
    """One connection; see the module's docstring."""

    __slots__ = (
        "answered",
        "blocked",
        "closed",
        "codec",
        "cold",
        "counters",
        "cuttable_bytes",
        "events",
        "inbox",
        "out",
        "out_bytes",
        "requests",
        "sock",
        "taken",
        "traffic",
        "transport",
        "warm_bytes",
    )

    def __init__(
        self, transport: Transport, codec: Codec, inbox: InboxT, counters: ListenerCounters, traffic: Traffic
    ) -> None:
        """``counters``: those of its listener."""
        super().__init__()
        self.transport, self.sock = transport, transport.sock
        self.codec, self.inbox, self.counters, self.traffic = codec, inbox, counters, traffic
        self.requests: deque[PendingT] = deque()
        """Those that want a reply, the oldest first."""
        self.taken = self.answered = 0
        """Requests; two counts, since in a writer two threads store them."""
        self.out: deque[bytes | FileRange] = deque()
        self.out_bytes = 0
        self.cuttable_bytes = 0
        """Bytes put into the output since the last answer to a produce request."""
        self.blocked = False
        """The socket has not taken all of the output; until epoll says that it takes more, nothing is sent."""
        self.cold: FileRange | None = None
        """What is next, and not in memory: nothing is sent until it has been brought."""
        self.warm_bytes = 0
        """Bytes of the range of a file that is sent next, known to be in memory."""
        self.events: int | None = None
        """The events that epoll watches the socket for; None: epoll does not know it."""
        self.closed = False

    # ---- receiving

    def receive(self) -> bool:
        """Read once, if there is room; False at the end of the stream.

        Raises:
            FrameTooLarge: as :meth:`ReceivedBytes.room`.
        """
        inbox = self.inbox
        room = inbox.room()
        if room is None:
            return True
        try:
            count = self.transport.receive_into(room)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not count:
            return False
        inbox.filled += count
        self.counters.received(count)
        self.traffic.bytes_in += count
        return True

    def start_requests(self, start: Starter, frame_bytes_max: int, first_bytes_max: int) -> bool:
        """Start the whole requests that have been received, in order; False: one waits, and all after it.

        Raises:
            ProtocolFault: the next request is none that can be answered; all before it have been started.
        """
        inbox, request, position = self.inbox, None, 0
        frames = inbox.frames(frame_bytes_max, first_bytes_max)
        try:
            for request, position, frame in decode_frames(self.codec, inbox.memory, frames):
                if not start(self, request, position, frame):
                    self.stall(request, position)
                    return False
                if self.closed:
                    return True
        except ProtocolFault:
            if not self.closed:  # the next frame has not been decoded, since all before it have been started
                inbox.rewind(self._start_behind(frames, request, position))
            raise
        return True

    @staticmethod
    def _start_behind(frames: list[tuple[int, int]], request: Request | None, position: int) -> int:
        """Where the frame begins that follows those of a request; None: where the first one does."""
        if request is None:
            return frames[0][0]
        count = request.count if isinstance(request, Produce) else 1
        return frames[min(bisect_left(frames, (position,)) + count, len(frames) - 1)][0]

    def stall(self, request: Request, position: int) -> None:
        """Let a request wait, and all after it."""
        self.inbox.rewind(position)

    @property
    def unanswered(self) -> int:
        """How many requests wait for their replies."""
        return self.taken - self.answered

    # ---- answering

    def expect(self, pending: PendingT) -> None:
        """Note a started request; its reply is sent after those of all requests before it."""
        self.requests.append(pending)
        self.taken += pending.count

    def set_reply(self, pending: PendingT, reply: list[bytes | FileRange]) -> None:
        """Set the reply of a request, which has taken effect; the caller then collects and sends."""
        pending.reply = reply
        self.counters.answered(pending.request.api, pending.count, pending.since_ns)

    def collect(self) -> None:
        """Move the replies that are next in order to the output."""
        requests = self.requests
        while requests and requests[0].reply is not None:
            pending = requests.popleft()
            self.answered += pending.count
            more = 0
            for piece in pending.reply or ():
                self.out.append(piece)
                more += len(piece) if isinstance(piece, bytes) else piece.count
            self.out_bytes += more
            answers_produce = more and type(pending.request) is Produce  # with acks=0 there is no answer
            self.cuttable_bytes = 0 if answers_produce else self.cuttable_bytes + more

    def put(self, piece: bytes | FileRange) -> None:
        """Queue a part of a reply."""
        self.out.append(piece)
        self.out_bytes += len(piece) if isinstance(piece, bytes) else piece[2]

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether an answer to a produce request is not sent, or not made, yet."""
        kinds = (type(pending.request) for pending in self.requests)
        return self.out_bytes > self.cuttable_bytes or Produce in kinds

    def send(self) -> int:
        """Send as much as the socket takes, and is in memory; return the number of bytes.

        Raises:
            FileFault: what is next cannot be read.
            OSError: the connection is gone.
        """
        before, out = self.out_bytes, self.out
        try:
            if len(out) == 1 and isinstance(reply := out[0], bytes):  # as usual
                sent = self.transport.send(reply)
                if sent == before:
                    out.clear()
                    self.out_bytes = self.warm_bytes = 0
                else:
                    self._remove(sent)
            while out:
                piece = out[0]
                if isinstance(piece, bytes) or piece.count <= JOINED_BYTES_MAX:
                    if not self._send_joined():
                        break
                else:
                    self._send_file(piece)
        except BlockingIOError:
            pass
        except NotInMemory as missing:
            self.cold = missing.cold
        self.blocked = bool(out) and self.cold is None
        sent = before - self.out_bytes
        self.counters.sent(sent)
        self.traffic.bytes_out += sent
        return sent

    def _send_joined(self) -> bool:
        """Send the next pieces at once: a system call each would cost more than copying little.

        Returns:
            False when some bytes are left: they are not read from their file again before the socket takes more.
        """
        chunks: list[bytes | bytearray] = []
        size = more = self.warm_bytes = 0
        for piece in self.out:
            if isinstance(piece, bytes):
                if size >= JOINED_BYTES_MAX:
                    more = MORE
                    break
                chunks.append(piece)
            elif size + piece.count <= JOINED_BYTES_MAX:
                try:
                    chunks.append(_read(piece))
                except (OSError, NotInMemory):
                    if chunks:  # whole replies may be among them: the next step raises
                        break
                    raise
            else:
                more = MORE if self._follows(piece) else 0
                break
            size += len(chunks[-1])
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)  # cheaper than sendmsg
        sent = self.transport.send(data, more)
        self._remove(sent)
        return sent == len(data)

    def _follows(self, piece: FileRange) -> bool:
        """Whether a range can be sent right behind what is sent now, which must not wait for a disk with it."""
        try:
            warm_bytes = piece.file.sendable_bytes(piece.position, piece.count)
        except OSError:  # the next step asks again, and raises
            return False
        if piece.count <= JOINED_BYTES_MAX:
            return warm_bytes == piece.count
        self.warm_bytes = warm_bytes
        return warm_bytes > 0

    def _send_file(self, piece: FileRange) -> None:
        try:
            if not self.warm_bytes:
                self.warm_bytes = piece.file.sendable_bytes(piece.position, piece.count)
            if not self.warm_bytes:
                raise NotInMemory(piece)
            sent = self.transport.send_file(piece.file.fd, piece.position, min(piece.count, self.warm_bytes))
        except OSError as error:
            if error.errno in OF_DISKS:
                raise FileFault(piece) from error
            raise
        if sent == 0:
            raise FileFault(piece)
        self.warm_bytes = max(0, self.warm_bytes - sent)  # TLS may have encrypted more before
        self._remove(sent)

    def _remove(self, sent: int) -> None:
        """Remove the first bytes of the output; what is left of a file is read again, and not kept."""
        out = self.out
        self.out_bytes -= sent
        while out:
            piece = out[0]
            size = len(piece) if isinstance(piece, bytes) else piece.count
            if sent < size:
                if sent:
                    out[0] = piece[sent:] if isinstance(piece, bytes) else _remainder(piece, sent)
                return
            sent -= size
            out.popleft()

    # ---- what epoll watches, and the end

    def watch(self, epoll: select.epoll, events: int) -> None:
        """Let epoll report these events; it always reports errors."""
        if events == self.events:
            return
        if self.events is None:
            epoll.register(self.sock.fileno(), events)
        else:
            epoll.modify(self.sock.fileno(), events)
        self.events = events

    def unwatch(self, epoll: select.epoll) -> None:
        """Let epoll report nothing, not even that the client is gone."""
        if self.events is not None:
            self.events = None
            epoll.unregister(self.sock.fileno())

    def close(self) -> None:
        """End what ends with it, and release all memory; the transport stays open."""
        self.closed = True
        self.end()
        self.out.clear()
        self.requests.clear()
        self.inbox.clear()


def _remainder(piece: FileRange, count: int) -> FileRange:
    """What follows the first ``count`` bytes."""
    return piece._replace(position=piece.position + count, count=piece.count - count)


def _read(piece: FileRange) -> bytes | bytearray:
    """Read a range.

    Raises:
        FileFault: the disk fails, or the file is too short.
        NotInMemory: it has to be brought first.
    """
    try:
        data = piece.file.read(piece.count, piece.position)
    except OSError as error:
        raise FileFault(piece) from error
    if len(data) < piece.count:
        raise FileFault(piece)
    return data
