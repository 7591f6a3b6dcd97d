"""Hands connections that only produce to one partition over to its writer, and takes them back.

See :mod:`appliance.processes.handoff`.  Bounds: ``network.handoff_bytes_max`` for the buffers of all of them.
"""

from __future__ import annotations

import socket
from typing import Final

from ...shared.arena import BLOCK_BYTES
from ...wire.frames import frame_bytes
from ...wire.transport import PlainTransport
from .. import handoff
from .acceptor import ConnectionPlaces
from .connections import Connections
from .inbox import Buffers, Inbox
from .known_partitions import WorkerPartition
from .relays import Relays
from .turn import Turn
from .worker_connection import WorkerConnection
from .writer_link import HandedOver, WriterLink

SETTLING_MS_MAX: Final = 2_000
"""A connection that is left unread is read again at the next check, within a second, so long after its first turn."""


class Handoffs:
    """Decides which connections are handed over, and takes them back."""

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        buffers: Buffers,
        places: ConnectionPlaces,
        relays: Relays,
        bytes_max: int,
    ) -> None:
        self._turn = turn
        self._connections = connections
        self._buffers, self._places, self._relays = buffers, places, relays
        self._bytes_left = bytes_max
        self.served: dict[HandedOver, None] = {}
        """Connections that writers serve now."""

    @property
    def count(self) -> int:
        """How many connections writers serve now."""
        return len(self.served)

    def consider(self, connection: WorkerConnection, partition: WorkerPartition | None, acks: int, parts: int) -> None:
        """Count a produce request with so many parts that has started.

        ``partition`` is None if it has several, or none that is known.  A client with a limit stays here: writers do
        not meter.
        """
        if partition is None or connection.session.meter is not None:
            connection.cancel_handoff()
            return
        link, count = partition.link, connection.handoff_count
        outstanding = connection.started
        is_due = count.is_due(link, acks, self._turn, outstanding <= (1 if acks else parts))
        # A request with acks=0 to another writer may wait for long.
        none_elsewhere = count.alone if acks == 0 else outstanding <= len(connection.requests)
        may_leave = (
            is_due and none_elsewhere and self._fits(connection) and link.may_hand_over and _is_worth_it(connection)
        )
        connection.hand_over_to = link if may_leave else None
        # A flush that waits for more of its kind would wait for what is not read.
        connection.settling = may_leave and (acks >= 0 or partition.table.flushes_at_once)
        if connection.settling:  # unless the next request changes it, it is not read from the end of this turn on
            self._connections.touched[connection] = None

    def hand_over_leaving(self) -> None:
        """Send the connections that may leave to their writers; those for which that is not possible stay here."""
        leaving, self._connections.leaving = self._connections.leaving, []
        for connection in leaving:
            if connection.closed:
                continue
            # Another's request may have brought new rules meanwhile, by which none is handed over.
            may_leave = connection.hand_over_to is not None and connection.may_move
            if not (may_leave and self._hand_over(connection)):
                self._connections.watch(connection)

    def _hand_over(self, connection: WorkerConnection) -> bool:
        """Send a connection with nothing outstanding to the writer, if that is still possible."""
        link = connection.hand_over_to
        assert link is not None
        buffer_bytes = self._buffer_bytes(connection)
        metered = connection.session.meter is not None
        if not self._fits(connection) or metered or not link.may_hand_over or self._turn.stopping:
            connection.cancel_handoff()
            return False
        near = None
        try:
            if connection.transport.may_be_handed_over:
                handed_over = link.hand_over(connection, connection.sock.fileno(), buffer_bytes)
            else:
                handed_over, near = _hand_over_pair(connection, link, buffer_bytes)
        except OSError:  # the kernel has no descriptor for the message
            connection.cancel_handoff()
            return False
        if near is None:
            self._connections.close(connection)
        else:
            self._connections.release(connection)
            handed_over.relay = self._relays.begin_relay(connection.transport, near)
        self.served[handed_over] = None
        self._bytes_left -= buffer_bytes
        self._places.enter(connection.session)
        return True

    def check_timeouts(self) -> None:
        """Read connections again that have been settling for long: a flush is slow, or waits for more after all."""
        for connection in list(self._connections.by_fd.values()):
            count = connection.handoff_count
            if connection.settling and self._turn.now_ms - count.since_ms > SETTLING_MS_MAX:
                count.try_later(self._turn.now_ms)
                self._keep(connection)

    def keep_all(self) -> None:
        """Hand none over that was about to be: what a client may do has changed."""
        for connection in list(self._connections.by_fd.values()):
            if connection.hand_over_to is not None:
                self._keep(connection)

    def _keep(self, connection: WorkerConnection) -> None:
        connection.cancel_handoff()
        self._connections.watch(connection)

    def _fits(self, connection: WorkerConnection) -> bool:
        """Whether its bytes fit a message, and its buffer what is left for all."""
        return len(connection.inbox) <= handoff.PIECE_BYTES and self._buffer_bytes(connection) <= self._bytes_left

    def _buffer_bytes(self, connection: WorkerConnection) -> int:
        """The size of its buffer in a writer."""
        return max(connection.inbox.buffer_bytes, handoff.BUFFER_BYTES_MIN)

    def take_back(self, handed_over: HandedOver, sock: socket.socket | None) -> None:
        """Serve a connection that comes back; without a socket it is closed."""
        self._forget(handed_over)
        relay = handed_over.relay
        if sock is None:
            self._lose_relay(handed_over)
            return
        sock.setblocking(False)
        if handed_over.session.is_over(self._turn.now_ms):  # else it would be handed over again before anybody looks
            handed_over.session.expire()
        received, unsent, transport = bytes(handed_over.received), bytes(handed_over.unsent), None
        if relay is not None:
            transport = relay.transport
            passed_on, replies = self._relays.end_relay(relay, sock)
            received, unsent = received + passed_on, replies + unsent
        inbox = Inbox(self._buffers, received)
        connection = WorkerConnection(
            transport or PlainTransport(sock),
            handed_over.listener,
            handed_over.peer,
            handed_over.codec,
            inbox,
            handed_over.session,
            handed_over.counters,
        )
        if unsent:
            connection.put(unsent)
        connection.close_when_sent = self._turn.stopping
        if frame_bytes(received, 0, len(received)) > handed_over.buffer_bytes:
            connection.handoff_count.try_later(self._turn.now_ms)
        self._places.hold(connection)
        if handed_over.failure:
            self._connections.add_connection(connection)
            self._connections.disconnect(connection, handed_over.failure)
        else:
            self._connections.take_in(connection)

    def on_lost(self, handed_over: HandedOver) -> None:
        """The writer is gone, and the connection with it."""
        self._forget(handed_over)
        self._lose_relay(handed_over)
        text = "%s listener: connection of %s ended with the writer that served it"
        self._turn.complain(text, handed_over.listener.protocol, handed_over.peer)

    def _lose_relay(self, handed_over: HandedOver) -> None:
        if handed_over.relay is not None:
            self._relays.lose(handed_over.relay)

    def _forget(self, handed_over: HandedOver) -> None:
        del self.served[handed_over]
        self._places.leave(handed_over.session)
        self._bytes_left += handed_over.buffer_bytes


def _hand_over_pair(
    connection: WorkerConnection, link: WriterLink, buffer_bytes: int
) -> tuple[HandedOver, socket.socket]:
    """Hand a connection with TLS over, as one end of a pair of Unix sockets; return the other end, too.

    Raises:
        OSError: the kernel has no descriptor for that; nothing was sent.
    """
    near, far = socket.socketpair()
    with far:
        near.setblocking(False)
        far.setblocking(False)  # for the writer, too: it is a property of what both processes hold
        try:
            return link.hand_over(connection, far.fileno(), buffer_bytes), near
        except OSError:
            near.close()
            raise


def _is_worth_it(connection: WorkerConnection) -> bool:
    """A relay copies bytes twice more: it is for small requests, of which each costs more than its bytes."""
    return connection.transport.may_be_handed_over or connection.inbox.buffer_bytes <= BLOCK_BYTES
