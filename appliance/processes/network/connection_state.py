"""The state of one client connection of a network worker: which requests have started, and what is left to send.

Order: requests take effect in the order in which they came, and their replies are sent in this order, as in Kafka.  A
request starts when all before it have taken effect; until then it stays in the inbox, and nothing more is read
(``stalled``).  Two kinds of requests may overlap with others of their kind: produce requests, which keep their order in
each partition, and commits.  ``started`` counts started requests that have not taken effect, acks=0 included.

Sending: every request that wants a reply has a :class:`Pending` in ``requests``, oldest first.  A reply is sent after
all before it: clients match replies by order.  Bytes are sent with ``send``, file ranges with ``send_file`` of the
connection's transport (``wire/transport.py``), small ones joined with what is before and after them; ``MSG_MORE`` keeps
a header and its batches in one TCP segment.
"""

from __future__ import annotations

import errno
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from ...addresses import Listener
from ...connected_clients import ClientName
from ...log.page_cache import NotInMemory
from ...security.acls import Access
from ...security.login_exchange import Exchange
from ...security.principals import ANONYMOUS, Origin
from ...shared.counters import ListenerCounters
from ...wire.requests import Codec, FileRange, Produce, Request
from ...wire.transport import MORE, Transport
from .inbox import Inbox
from .turn import Turn

if TYPE_CHECKING:
    from .metering import Meter


class ClientSession:
    """The session of one connection.

    ``gated``: only ApiVersions, hello and the messages of a login may start; ``deadline_ms``: until when the client has
    to log in, or how long its session lasts, 0: for ever; ``login``: the one in progress; ``mechanism``: that of the
    last login, "" before.
    """

    __slots__ = (
        "access",
        "administrator",
        "bytes_in",
        "bytes_out",
        "client_id",
        "client_name",
        "counted",
        "deadline_ms",
        "gated",
        "held",
        "host",
        "login",
        "mechanism",
        "meter",
        "metered",
        "muted_until_ms",
        "principal",
        "since_ms",
        "software",
    )

    def __init__(
        self,
        principal: str = ANONYMOUS,
        login_by_ms: int = 0,
        host: str = "",
        administrator: bool = False,
        since_ms: int = 0,
    ) -> None:
        """
        Args:
            principal: who the client is without a login.
            login_by_ms: until when it has to log in; 0: it need not.
            host: its address without the port; "" at a Unix socket.
            administrator: it has places of its own, see ``accepting``.
            since_ms: when it has connected.
        """
        self.host, self.administrator, self.since_ms = host, administrator, since_ms
        self.client_id: str | None = None
        """What it calls itself; None before its first request."""
        self.software = ""
        """What ApiVersions has said of it (KIP-511)."""
        self.client_name: ClientName | None = None
        """What it is counted as; None: it says something else of itself since it was counted."""
        self.bytes_in = self.bytes_out = 0
        self.counted = (0, 0)
        """Both of these when they were last counted (``client_counts``)."""
        self.principal, self.mechanism = principal, ""
        self.gated = bool(login_by_ms)
        self.deadline_ms = login_by_ms
        self.login: Exchange | None = None
        self.access: Access | None = None
        """What its principal may do, by the rules of its last request."""
        self.meter: Meter | None = None
        """The buckets of its client, None without a limit; those of ``metered``: quotas, principal, client id."""
        self.metered: tuple[object, str, bytes] | None = None
        self.muted_until_ms = 0
        """Until when it is throttled; 0: it is not."""
        self.held = False
        """It is not read, and no request of it starts: it is throttled, or the rules have not come yet."""

    def begin(self, principal: str, mechanism: str, deadline_ms: int) -> None:
        """The client has logged in."""
        self.become(principal)
        self.mechanism, self.deadline_ms = mechanism, deadline_ms
        self.login, self.gated = None, False

    def become(self, principal: str) -> None:
        """The client is this one from now on; what it may do is asked anew."""
        self.principal, self.access, self.client_name = principal, None, None

    def is_over(self, now_ms: int) -> bool:
        """Whether its time, to log in or of its session, is over."""
        return 0 < self.deadline_ms < now_ms

    def expire(self) -> None:
        """The session is over: the client has to log in again."""
        self.gated, self.deadline_ms = True, 0

    @property
    def ended(self) -> bool:
        """Whether the client was logged in, and is not any more."""
        return self.gated and self.mechanism != ""


if TYPE_CHECKING:
    from .wait_lists import DelayedRequest
    from .writer_link import WriterLink

JOINED_BYTES_MAX: Final = 1 << 16
"""Replies are joined up to about this size; a larger one would copy more bytes again when the socket is full.

A range of a file that fits is read and joined, too: a header, sendfile and a trailer cost three system calls, and the
client wakes up for each.
"""
OF_DISKS: Final = frozenset({errno.EIO, errno.EISDIR, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA, errno.ESTALE})
"""Errors of sendfile(2) that a file causes, and not a socket."""
TURNS_TO_HAND_OVER: Final = 32
HANDOFF_WINDOW_MS: Final = 1_000
"""A connection is handed over after TURNS_TO_HAND_OVER turns in this time with produce requests and nothing else."""
HANDOFF_RETRY_MS: Final = 30_000
"""When to try again with a connection that was not read for nothing, or whose frames do not fit a writer's buffer."""


class FileFault(OSError):
    """A part of a reply cannot be read from its segment file, or is not in it any more: ``piece``."""

    def __init__(self, piece: FileRange) -> None:
        super().__init__("the segment file cannot be read, or is shorter than its table says")
        self.piece = piece


class HandoffCount:
    """Counts the turns in which a connection only produced to one partition, always with the same acks.

    ``alone``: nothing that is outstanding is older than that.
    """

    __slots__ = ("_not_before_ms", "_turn_ns", "acks", "alone", "link", "since_ms", "turns")

    def __init__(self) -> None:
        self.link: WriterLink | None = None
        self.acks = self.turns = self.since_ms = 0
        self.alone = False
        self._turn_ns = self._not_before_ms = 0

    def is_due(self, link: WriterLink, acks: int, turn: Turn, alone: bool) -> bool:
        """Note a produce request, and its turn once; return whether to hand the connection over.

        ``alone``: nothing else is outstanding.
        """
        if link is not self.link or acks != self.acks:
            self.link, self.acks, self.alone, self.turns = link, acks, False, 0
        if not self.turns or turn.now_ms - self.since_ms > HANDOFF_WINDOW_MS:
            self.turns, self.since_ms = 0, turn.now_ms
        self.alone = self.alone or alone
        if turn.now_ns != self._turn_ns:
            self._turn_ns = turn.now_ns
            self.turns += 1
        return self.turns >= TURNS_TO_HAND_OVER and turn.now_ms >= self._not_before_ms

    def try_later(self, now_ms: int) -> None:
        """Let the connection stay here for a while: it was handed over, or was about to be, for nothing."""
        self._not_before_ms = now_ms + HANDOFF_RETRY_MS


class Pending:
    """A request that waits for its reply, or ``count`` joined requests.  ``reply`` is None until it is ready.

    ``since_ns``: when its connection was last read.
    """

    __slots__ = ("connection", "count", "missing", "reply", "request", "results", "since_ns")

    def __init__(self, connection: Connection, request: Request, count: int = 1) -> None:
        self.connection = connection
        self.request = request
        self.count = count
        self.since_ns = connection.read_ns
        self.results: list[Any] = []
        self.missing = 0
        self.reply: list[bytes | FileRange] | None = None


class Connection:
    """The state of one socket.  It has more attributes than other classes: each is about this one connection."""

    __slots__ = (
        "active_ms",
        "announcements_read",
        "blocked",
        "close_when_sent",
        "closed",
        "codec",
        "cold",
        "counters",
        "cuttable_bytes",
        "delayed",
        "events",
        "hand_over_to",
        "handoff_count",
        "inbox",
        "listener",
        "out",
        "out_bytes",
        "overlap",
        "peer",
        "read_ns",
        "requests",
        "session",
        "settling",
        "sock",
        "stalled",
        "stalled_by",
        "stalled_overlap",
        "started",
        "transport",
        "unanswered",
        "warm_bytes",
        "warm_since_ms",
    )

    def __init__(
        self,
        transport: Transport,
        listener: Listener,
        peer: str,
        codec: Codec,
        inbox: Inbox,
        session: ClientSession,
    ) -> None:
        """``listener`` has the address that the client connected to."""
        self.transport, self.sock = transport, transport.sock
        self.listener, self.peer, self.codec = listener, peer, codec
        self.inbox = inbox
        self.session = session
        self.counters: ListenerCounters
        """Counts for its listener; set when it is added."""
        self.requests: deque[Pending] = deque()
        self.unanswered = 0
        self.started = 0
        self.overlap = ""
        """The kind of overlap of the requests that have started."""
        self.stalled = False
        self.stalled_overlap = ""
        self.stalled_by: WriterLink | None = None
        """The writer that has too many unanswered bytes to take the stalled request."""
        self.announcements_read = False
        """Whether the supervisor's messages have been read for the stalled request."""
        self.delayed: DelayedRequest | None = None
        self.out: deque[bytes | FileRange] = deque()
        self.out_bytes = 0
        self.cuttable_bytes = 0
        """Bytes put into the output since the last answer to a produce request."""
        self.events = 0
        """The events that epoll watches the socket for."""
        self.cold: FileRange | None = None
        """What is next, and not in memory: nothing is sent until it has been brought."""
        self.warm_bytes = self.warm_since_ms = 0
        """Bytes of the range of a file that is sent next, known to be in memory since that time or later."""
        self.blocked = False
        """The socket has not taken all of the output; until epoll says that it takes more, nothing is sent."""
        self.active_ms = self.read_ns = 0
        self.closed = False
        self.close_when_sent = False
        """No request starts any more."""
        self.handoff_count = HandoffCount()
        self.hand_over_to: WriterLink | None = None
        self.settling = False
        """It is not read until nothing is outstanding, since it will be handed over then."""

    @property
    def origin(self) -> Origin:
        """Where its requests come from, for the coordinator."""
        return Origin(self.listener, self.peer, self.session.principal)

    # ---- order

    def may_start(self, overlap: str) -> bool:
        """Whether a request takes effect after all before it if it starts now."""
        return not self.started or (overlap != "" and overlap == self.overlap)

    def begin(self, pending: Pending) -> None:
        """Note a started request; its reply is sent after those of all requests before it."""
        self.requests.append(pending)
        self.unanswered += pending.count
        self.started += 1
        self.overlap = pending.request.overlap

    def stall(self, start: int, overlap: str) -> None:
        """Let the request whose frame is at ``start`` wait, and all after it."""
        self.stalled, self.stalled_overlap = True, overlap
        self.inbox.rewind(start)

    @property
    def may_move(self) -> bool:
        """Whether nothing is outstanding: see :mod:`appliance.processes.handoff`."""
        return not (
            self.started or self.requests or self.out or self.stalled or self.inbox.starved or self.inbox.parked
        )

    def cancel_handoff(self) -> None:
        self.handoff_count.link = None  # it begins again
        self.hand_over_to = None
        self.settling = False

    # ---- sending

    def collect(self) -> None:
        """Move the replies that are next in order to the output."""
        requests = self.requests
        while requests and requests[0].reply is not None:
            pending = requests.popleft()
            self.unanswered -= pending.count
            before = self.out_bytes
            for piece in pending.reply or ():
                self.put(piece)
            more = self.out_bytes - before
            answers_produce = more and type(pending.request) is Produce  # with acks=0 there is no answer
            self.cuttable_bytes = 0 if answers_produce else self.cuttable_bytes + more

    def put(self, piece: bytes | FileRange) -> None:
        """Queue a part of a reply."""
        self.out.append(piece)
        self.out_bytes += len(piece) if isinstance(piece, bytes) else piece[2]

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether an answer to a produce request is not sent, or not made, yet."""
        return self.out_bytes > self.cuttable_bytes or any(type(one.request) is Produce for one in self.requests)

    def give_up(self, kind: type) -> None:
        """Forget the first unanswered request of this kind, and all after it: their replies could not be sent."""
        requests = takewhile(lambda one: one.reply is not None or not isinstance(one.request, kind), self.requests)
        self.requests = deque(requests)
        self.unanswered = sum(one.count for one in self.requests)

    def send(self) -> int:
        """Send as much as the socket takes, and is in memory; return the number of bytes.

        Raises:
            FileFault: what is next cannot be read.
            OSError: the connection is gone.
        """
        before = self.out_bytes
        try:
            while self.out:
                piece = self.out[0]
                if isinstance(piece, bytes) or piece.count <= JOINED_BYTES_MAX:
                    if not self._send_joined():
                        break
                else:
                    self._send_file(piece)
        except BlockingIOError:
            pass
        except NotInMemory as missing:
            self.cold = missing.wanted
        self.blocked = bool(self.out) and self.cold is None
        return before - self.out_bytes

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
            warm_bytes = piece.file.in_memory(piece.position, piece.count)
        except OSError:  # the next step asks again, and raises
            return False
        if piece.count <= JOINED_BYTES_MAX:
            return warm_bytes == piece.count
        self.warm_bytes = warm_bytes
        return warm_bytes > 0

    def _send_file(self, piece: FileRange) -> None:
        try:
            if not self.warm_bytes:
                self.warm_bytes = piece.file.in_memory(piece.position, piece.count)
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
                    out[0] = piece[sent:] if isinstance(piece, bytes) else _after(piece, sent)
                return
            sent -= size
            out.popleft()

    def close(self) -> None:
        """Release all memory."""
        self.closed = True
        self.out.clear()
        self.requests.clear()
        self.inbox.clear()


def _after(piece: FileRange, count: int) -> FileRange:
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
