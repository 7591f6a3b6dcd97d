"""Serves the client connections of a network worker: receives, starts requests in order, sends replies, closes.

:mod:`appliance.processes.connection` has what a connection is, :mod:`.inbox` the memory for received bytes.  The other
parts of the worker start each kind of request: its :data:`.Starter`.

A connection without memory for received bytes is *starved*: it waits, after those that wait longer, until there is
room; administrators go before all others.  One whose request is *parked* waits until memory for all of it is free.
While others wait for memory, a connection whose unfinished request comes too slowly to be complete in time is closed.

Bounds: ``network.requests_max`` unanswered requests and ``network.send_bytes_max`` unsent bytes of a connection, memory
for received bytes, ``REQUESTS_PER_TURN`` requests of one connection in a turn, and only one when that is over
(:meth:`.Turn.is_over`): then it goes on in the next one.  A connection that reaches one of the others
is not read; TCP slows its client down.  EPOLLRDHUP shows a client that closes while it has too many unanswered
requests: its later bytes are dropped.
"""

from __future__ import annotations

import select
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from ...config import NetworkSection
from ...connected_clients import shown
from ...errors import ProtocolFault, TlsOnPlain
from ...security.audit_log import Audit, Reason
from ...wire.requests import Fetch, FileRange, Local, Login, Offsets, Produce, Request
from ..connection import FileFault, Starter
from .cold_reads import STRETCH_BYTES, ColdReads
from .inbox import Buffers, Inbox
from .turn import Turn
from .worker_connection import Pending, WorkerConnection

REQUESTS_PER_TURN: Final = 100
"""Requests of one connection in a turn; joined produce requests count once."""

WARM_MS_MAX: Final = 100
"""How long what was found in memory is believed to be there, for a client that takes it in pieces."""
STARVED_MS_MAX: Final = 500
"""How long connections wait for memory before a connection that is behind with its request is closed."""


class Starved:
    """See the module's docstring.  ``feed`` lets a connection receive as if no other had waited longer."""

    def __init__(self, turn: Turn, feed: Callable[[WorkerConnection], None]) -> None:
        self._turn, self._feed = turn, feed
        self.waiting: OrderedDict[WorkerConnection, None] = OrderedDict()
        self._since_ms = 0
        """When the first of them began to wait, or one was last fed."""

    @property
    def due_ms(self) -> int:
        """When the wait is too long."""
        return self._since_ms + STARVED_MS_MAX

    def add(self, connection: WorkerConnection) -> None:
        """Let the connection wait until there is room for its bytes."""
        if not self.waiting:
            self._since_ms = self._turn.now_ms
        connection.wait_for_memory(self._turn.now_ms)
        self.waiting.setdefault(connection)
        connection.own(self, partial(self.discard, connection))
        if connection.session.administrator:
            self.waiting.move_to_end(connection, last=False)

    def discard(self, connection: WorkerConnection) -> None:
        """It waits no more."""
        self.waiting.pop(connection, None)
        connection.disown(self)

    def feed(self) -> bool:
        """Let the connections try again, those that wait longest first; return whether they have waited too long."""
        while self.waiting and self._feed_one(next(iter(self.waiting))):
            pass
        if not self.waiting or self._turn.now_ms < self.due_ms:
            return False
        self._since_ms = self._turn.now_ms
        return True

    def _feed_one(self, connection: WorkerConnection) -> bool:
        """Let a connection read; return whether it waits no more."""
        if not connection.closed:
            since_ms, connection.memory_since_ms = connection.memory_since_ms, 0
            self._feed(connection)
            if connection.inbox.starved:
                connection.memory_since_ms = since_ms
                return False
        self.discard(connection)
        self._since_ms = self._turn.now_ms
        return True


class Connections:
    """All connections of one worker."""

    def __init__(
        self,
        turn: Turn,
        epoll: select.epoll,
        buffers: Buffers,
        limits: NetworkSection,
        cold_reads: ColdReads,
        handlers: Mapping[type[Request], Starter],
        throttle: Callable[[Pending, list[bytes | FileRange]], list[bytes | FileRange]],
        on_unreadable: Callable[[FileRange], None],
    ) -> None:
        """
        Args:
            handlers: what starts each kind of request.  Who does needs the connections first, so the worker fills it
                when it has made all its parts (:meth:`.Admission.fill_handlers`), before the first connection comes.
            throttle: meters a reply to a client with a limit (:meth:`.Meters.throttle`).
            on_unreadable: reports a part of a segment file that could not be sent.
        """
        self._turn, self._epoll, self._buffers, self._limits = turn, epoll, buffers, limits
        self._cold_reads, self._throttle, self._on_unreadable = cold_reads, throttle, on_unreadable
        self._handlers = handlers
        self._requests_left = 0
        """How many more may start in this turn of the connection whose requests are started."""
        self.by_fd: dict[int, WorkerConnection] = {}
        self.touched: dict[WorkerConnection, None] = {}
        """Connections that may have something to send, or to start, at the end of this turn."""
        self.resumed: dict[WorkerConnection, None] = {}
        """Connections with requests that can start in the next turn."""
        self.starved = Starved(turn, self._feed)
        self._parked: dict[Inbox, WorkerConnection] = {}
        """The connections of the parked inboxes."""
        self._parked_since_ms = 0
        """When one of them was last admitted, or one was closed for them."""
        self.unread: dict[WorkerConnection, None] = {}
        """Connections whose transport has received bytes that epoll does not report; they are read in the next turn."""
        self.leaving: list[WorkerConnection] = []
        """Those with nothing outstanding that are to be handed over at the end of this turn (``handoffs``)."""
        self.wants_room = False
        """Set when a connection starves while none did: all writers flush at the turn's end, and free the arena."""

    def add_connection(self, connection: WorkerConnection) -> None:
        """Begin to read a connection, as one that is active now."""
        connection.active_ms, connection.read_ns = self._turn.now_ms, self._turn.now_ns
        self.by_fd[connection.sock.fileno()] = connection
        connection.watch(self._epoll, select.EPOLLIN)

    def take_in(self, connection: WorkerConnection) -> None:
        """Add a connection that comes back from a writer, with its received and unsent bytes."""
        self.add_connection(connection)
        connection.stalled = True  # its requests start at the end of this turn, when all its events have been handled
        self.touched[connection] = None

    # ---- receiving

    def read(self, connection: WorkerConnection, first: bool = False) -> None:
        """Receive, and start whole requests; ``first``: no other connection has waited longer for the arena."""
        inbox = connection.inbox
        connection.active_ms, connection.read_ns = self._turn.now_ms, self._turn.now_ns
        inbox.starved = bool(self.starved.waiting) and not first and not inbox
        if not inbox.starved:
            if not connection.receive():
                self._end(connection)
                return
            if not self._take_frames(connection):
                return
        if inbox.starved:
            self._starve(connection)
        if inbox.starved or connection.stalled or connection.transport.pending:
            self.watch(connection)

    def read_unread(self) -> None:
        """Read the connections whose transport has received bytes."""
        unread, self.unread = self.unread, {}
        for connection in unread:
            if not connection.closed and (connection.events or 0) & select.EPOLLIN:
                self.read(connection)

    def _take_frames(self, connection: WorkerConnection) -> bool:
        """Start the whole requests that a connection has received, in order; False when it has been closed."""
        inbox, first_bytes_max = connection.inbox, connection.codec.first_bytes_max
        bytes_max = first_bytes_max if connection.session.gated else self._limits.frame_bytes_max
        self._requests_left, connection.stalled = REQUESTS_PER_TURN, False
        try:
            connection.start_requests(self._start, bytes_max, first_bytes_max)
        except ProtocolFault as error:
            if isinstance(error, TlsOnPlain):
                self._turn.audit.refused(Reason.TLS_ON_PLAIN, "", connection.peer)
            self.disconnect(connection, str(error))
        if connection.closed:
            return False
        inbox.release_parsed(self._turn.now_ms, connection.stalled)
        if inbox.starved:
            self._starve(connection)
        if inbox.parked and inbox not in self._parked:
            self._park(connection)
        return True

    def _start(self, connection: WorkerConnection, request: Request, start: int, frame: memoryview) -> bool:
        """Start a request; False when it has to wait, until the connection is resumed."""
        self._requests_left = requests_left = self._requests_left - 1
        if not requests_left or (requests_left < REQUESTS_PER_TURN - 1 and self._turn.is_over()):
            self.resumed[connection] = None
            return False
        limits = self._limits
        if (
            connection.closed
            or connection.close_when_sent
            or not connection.may_start(request.overlap)
            or connection.taken - connection.answered > limits.requests_max
            or connection.out_bytes > limits.send_bytes_max
        ):
            return False
        kind = type(request)
        if connection.session.gated and kind is not Login and not (isinstance(request, Local) and request.free):
            raise _refusal(connection, self._turn.audit)
        if connection.session.client_id is None:
            connection.session.client_id = shown(connection.codec.client_id(frame).decode(errors="replace"))
            connection.session.client_name = None
        if kind is not Produce:
            connection.cancel_handoff()
            self.touched[connection] = None
        return self._handlers[kind](connection, request, start, frame)

    def answer_local(self, connection: WorkerConnection, request: Local, start: int, frame: memoryview) -> bool:
        """Send a reply that the codec has made."""
        session = connection.session
        if not session.software and (software := shown(connection.codec.software(frame))):
            session.software, session.client_name = software, None
        pending = Pending(connection, request)
        connection.begin_request(pending)
        self.answer(pending, [request.reply])
        connection.close_when_sent = connection.close_when_sent or request.close
        return True

    def defer_for_announcement(
        self, connection: WorkerConnection, request: Produce | Fetch | Offsets, partitions: Sequence[object | None]
    ) -> bool:
        """Put a request that names an unknown partition off to the next turn; return whether it was.

        That turn reads the supervisor's messages first: the supervisor may have announced the partition, and the client
        may know it from another connection.  What the client may not have counts as known.
        """
        is_unknown = None in partitions and any(
            partition is None and index not in request.denied for index, partition in enumerate(partitions)
        )
        connection.announcements_read = not connection.announcements_read and is_unknown
        if connection.announcements_read:
            self.resumed[connection] = None
        return connection.announcements_read

    def resume_next_turn(self, connection: WorkerConnection) -> None:
        """Start the stalled request in the next turn."""
        self.resumed[connection] = None

    def start_resumed(self) -> None:
        """Let the resumed connections start their requests at the end of this turn."""
        self.touched.update(self.resumed)
        self.resumed = {}

    # ---- memory for received bytes

    def _starve(self, connection: WorkerConnection) -> None:
        """Let the connection wait until there is room for its bytes."""
        if not self.starved.waiting:
            self.wants_room = True
        self.starved.add(connection)

    def _park(self, connection: WorkerConnection) -> None:
        """Let the connection wait until there is room for the whole of its request."""
        if not self._parked:
            self._parked_since_ms = self._turn.now_ms
        connection.wait_for_memory(self._turn.now_ms)
        self._parked[connection.inbox] = connection
        connection.own(connection.inbox, partial(self._parked.pop, connection.inbox, None))
        self.watch(connection)

    @property
    def waits_for_memory(self) -> bool:
        return bool(self.starved.waiting or self._buffers.parked)

    @property
    def memory_due_ms(self) -> int | None:
        """When connections have waited too long for memory; None: none waits."""
        starved_ms = self.starved.due_ms if self.starved.waiting else None
        if not self._buffers.parked:
            return starved_ms
        parked_ms = self._parked_since_ms + STARVED_MS_MAX
        return parked_ms if starved_ms is None else min(starved_ms, parked_ms)

    def feed_waiting(self) -> None:
        """Let connections that wait for memory try again; close one that is behind when they have waited too long."""
        if self.starved.waiting and self.starved.feed():
            self._make_room()
        now_ms = self._turn.now_ms
        while self._buffers.parked:
            inbox = next(iter(self._buffers.parked))
            if not inbox.admit(now_ms):
                break
            self._parked_since_ms = now_ms
            connection = self._parked.pop(inbox)
            connection.disown(inbox)
            connection.memory_since_ms = 0
            self.read(connection)
            if not connection.closed:
                self.watch(connection)
        if self._buffers.parked and now_ms >= self._parked_since_ms + STARVED_MS_MAX:
            self._parked_since_ms = now_ms
            self._make_room()

    def _feed(self, connection: WorkerConnection) -> None:
        self.read(connection, first=True)
        if not connection.inbox.starved and not connection.closed:
            self.watch(connection)

    def _make_room(self) -> None:
        """Make room for those that wait.

        First all go that are throttled and have sent requests all the same.  When there is none, the connection goes
        whose unfinished request has begun last, of those that will not be complete in time.  One that settles before
        a handoff, and is not read for that, is read again instead.
        """
        if held := [
            connection for connection in self.by_fd.values() if connection.session.muted_until_ms and connection.inbox
        ]:
            for connection in held:
                self.disconnect(connection, "it is throttled, and its requests keep memory that others wait for")
            return
        now_ms, frame_ms_max = self._turn.now_ms, self._limits.frame_ms_max
        behind = [candidate for candidate in self.by_fd.values() if candidate.inbox.is_behind(now_ms, frame_ms_max)]
        if not behind:
            return
        connection = max(behind, key=lambda candidate: candidate.inbox.frame_since_ms)
        if connection.settling:  # it is behind because we do not read it, not because the client is slow
            connection.cancel_handoff()
            connection.handoff_count.try_later(now_ms)
            self.watch(connection)
        else:
            self.disconnect(
                connection, "its unfinished request comes too slowly, and keeps memory that others wait for"
            )

    # ---- sending

    def answer(self, pending: Pending, reply: list[bytes | FileRange]) -> None:
        """Set the reply of a request, which has taken effect."""
        connection = pending.connection
        connection.set_reply(pending, reply if connection.session.meter is None else self._throttle(pending, reply))
        connection.started -= 1
        self.touched[connection] = None

    def advance_touched(self) -> None:
        """For each touched connection: send ready replies, start stalled requests, let it leave if that is due."""
        while self.touched:
            self._advance(self.touched.popitem()[0])

    def _advance(self, connection: WorkerConnection) -> None:
        if connection.closed:
            return
        connection.collect()
        if not connection.blocked and connection.cold is None and connection.out and not self._send(connection):
            return
        if connection.close_when_sent and not connection.out and not connection.requests:
            self.close(connection)
            return
        if (
            connection.stalled
            and not connection.session.held
            and connection.may_start(connection.stalled_overlap)
            and connection not in self.resumed
            and not self._take_frames(connection)
        ):
            return
        if connection.hand_over_to is not None and connection.may_move:
            self.leaving.append(connection)
            return
        self.watch(connection)

    def _send(self, connection: WorkerConnection) -> bool:
        """Send what the socket takes, and ask for what is next if it is not in memory; False: it had to be closed."""
        now_ms = self._turn.now_ms
        if now_ms - connection.warm_since_ms > WARM_MS_MAX:
            connection.warm_bytes, connection.warm_since_ms = 0, now_ms
        try:
            sent = connection.send()
        except OSError as error:
            if isinstance(error, FileFault):  # the header has promised these bytes: the client has to ask again
                self._on_unreadable(error.piece)
            self.close(connection)
            return False
        if sent:
            connection.active_ms = now_ms
        if (cold := connection.cold) is not None:
            stretch = cold._replace(count=min(cold.count, STRETCH_BYTES))
            self._cold_reads.bring(connection, connection, [stretch], partial(self._on_brought, connection))
        return True

    def _on_brought(self, connection: WorkerConnection) -> None:
        """What is next is in memory now, or cannot be read: sending it tells."""
        connection.cold = None
        connection.active_ms = self._turn.now_ms
        self.touched[connection] = None

    def watch(self, connection: WorkerConnection) -> None:
        """Let epoll report the events that this connection can handle now."""
        limits = self._limits
        events = select.EPOLLOUT if connection.out and connection.cold is None else 0
        if (
            not connection.stalled  # its next request cannot start yet: more of them would only take memory
            and not connection.inbox.starved  # read in its turn, when the arena has room: see feed_waiting
            and not connection.inbox.parked  # likewise, when there is room for its whole request
            and not connection.close_when_sent  # nothing that comes now is answered
            and not connection.session.held
            and not connection.settling
            and connection.taken - connection.answered <= limits.requests_max
            and connection.out_bytes <= limits.send_bytes_max  # a client that sends and takes no replies has to wait
        ):
            events |= select.EPOLLIN
            if connection.transport.pending:  # TLS has it already, so the socket will not become readable for it
                self.unread[connection] = None
        elif connection.taken - connection.answered > limits.requests_max:  # EOF is not read: it may be late
            events |= select.EPOLLRDHUP
        if events != connection.events:
            connection.watch(self._epoll, events)

    # ---- closing

    def disconnect(self, connection: WorkerConnection, reason: str) -> None:
        """Close a connection for a reason that is logged, after the replies that are ready."""
        protocol = connection.listener.protocol
        self._turn.complain("%s listener: connection of %s closed: %s", protocol, connection.peer, reason)
        connection.collect()
        if connection.cold is None:
            with suppress(OSError):  # it was closed by the peer already
                connection.send()
        self.close(connection)

    def _end(self, connection: WorkerConnection) -> None:
        """Close a connection whose stream has ended."""
        if connection.transport.fault:
            self._turn.audit.refused(Reason.TLS_HANDSHAKE, "", connection.peer, what=connection.transport.fault)
        self.close(connection)

    def close(self, connection: WorkerConnection) -> None:
        if connection.closed:
            return
        self.release(connection)
        self._turn.close_at_end(connection.transport.close)

    def release(self, connection: WorkerConnection) -> None:
        """Forget a connection, and all that ends with it; its transport stays open."""
        del self.by_fd[connection.sock.fileno()]
        connection.unwatch(self._epoll)
        connection.close()

    def close_when_sent(self, unanswered: type[Request]) -> None:
        """Close all connections after the replies to started requests, except those of the kind ``unanswered``."""
        for connection in self.by_fd.values():
            connection.close_when_sent = True
            connection.give_up(unanswered)
            self.touched[connection] = None

    def close_unmoved(self, still_ms: int) -> None:
        """Close the connections that an ordered stop does not wait for.

        Those that are owed an answer to a produce request are kept: without it the client sends the batch again.  But
        all are closed whose output has not moved for ``still_ms``.  A reply to a fetch can be cut: the client fetches
        again.
        """
        for connection in list(self.by_fd.values()):
            moves = not connection.out or self._turn.now_ms - connection.active_ms < still_ms
            if not connection.owes_acknowledgement or not moves:
                self.close(connection)

    def check_timeouts(self) -> None:
        """Close connections that are silent, or do not complete a frame.

        Nobody is silent who waits for us, except for a reply that it does not read.
        """
        limits, now_ms = self._limits, self._turn.now_ms
        for connection in list(self.by_fd.values()):
            since_ms = connection.inbox.frame_since_ms
            if since_ms and now_ms - since_ms > limits.frame_ms_max and (connection.events or 0) & select.EPOLLIN:
                self.disconnect(connection, "a frame was not completed within network.frame_ms_max")
            elif now_ms - connection.active_ms > limits.idle_ms and (connection.out or not connection.is_waiting):
                self.close(connection)


def _refusal(connection: WorkerConnection, audit: Audit) -> ProtocolFault:
    """The error of a request that needs a login."""
    session = connection.session
    if session.ended:
        audit.refused(Reason.SESSION_EXPIRED, session.principal, connection.peer)
        return ProtocolFault("it has to log in again")
    audit.refused(Reason.NOT_LOGGED_IN, "", connection.peer)
    return ProtocolFault("it has to log in first")
