"""Hands connections that only produce to one partition over to its writer, and takes them back.

See :mod:`appliance.processes.handoff`.  Bounds: ``network.handoff_bytes_max`` for the buffers of all of them.
"""

from __future__ import annotations

import socket

from ...wire.transport import PlainTransport
from .. import handoff
from .connection_state import Connection
from .connections import Connections
from .inbox import Buffers, Inbox
from .places import Places
from .turn import Turn
from .writer_link import HandedOver, WriterLink


class HandingOver:
    """Decides which connections are handed over, and takes them back."""

    def __init__(self, turn: Turn, connections: Connections, buffers: Buffers, places: Places, bytes_max: int) -> None:
        self._turn = turn
        self._connections = connections
        self._buffers, self._places = buffers, places
        self._bytes_left = bytes_max
        self.count = 0
        """Connections that writers serve now."""

    def consider(self, connection: Connection, link: WriterLink | None, acks: int) -> None:
        """Count a produce request; ``link`` is None if it has several partitions, or none that is known.

        A client with a limit stays here: writers do not meter.
        """
        if link is None or not acks or connection.session.meter is not None:
            connection.cancel_handoff()
            return
        is_due = connection.handoff_count.is_due(link, acks, self._turn.now_ms)
        no_acks_0 = connection.started <= len(connection.requests)  # one may wait for another writer
        may_leave = is_due and no_acks_0 and connection.transport.may_be_handed_over and link.may_hand_over
        connection.hand_over_to = link if may_leave else None
        if acks == 1 and connection.hand_over_to is not None:  # acks=all goes on reading: its flush may wait for more
            self._connections.watch(connection)

    def hand_over(self, connection: Connection) -> bool:
        """Send a connection with nothing outstanding to the writer, if that is still possible."""
        link, inbox = connection.hand_over_to, connection.inbox
        assert link is not None
        buffer_bytes = max(inbox.buffer_bytes, handoff.BUFFER_BYTES_MIN)
        fits = buffer_bytes <= self._bytes_left and len(inbox) <= handoff.PIECE_BYTES
        if not fits or not link.may_hand_over or self._turn.stopping:
            connection.cancel_handoff()
            return False
        try:
            link.hand_over(connection, buffer_bytes)
        except OSError:  # the kernel has no descriptor for the message
            connection.cancel_handoff()
            return False
        self.count += 1
        self._bytes_left -= buffer_bytes
        self._connections.close(connection)
        self._places.enter(connection.session)
        return True

    def take_back(self, handed_over: HandedOver, sock: socket.socket | None) -> None:
        """Serve a connection that comes back; without a socket it is closed."""
        self._forget(handed_over)
        if sock is None:
            return
        sock.setblocking(False)
        one = handed_over
        inbox = Inbox(self._buffers, bytes(one.received))
        connection = Connection(PlainTransport(sock), one.listener, one.peer, one.codec, inbox, one.session)
        if one.unsent:
            connection.put(bytes(one.unsent))
        connection.close_when_sent = self._turn.stopping
        self._places.enter(one.session)
        self._connections.take_in(connection)

    def on_lost(self, handed_over: HandedOver) -> None:
        """The writer is gone, and the connection with it."""
        self._forget(handed_over)
        text = "%s listener: connection of %s ended with the writer that served it"
        self._turn.complain(text, handed_over.listener.protocol, handed_over.peer)

    def _forget(self, handed_over: HandedOver) -> None:
        self.count -= 1
        self._places.leave(handed_over.session)
        self._bytes_left += handed_over.buffer_bytes
