"""Handing over: connections that only produce to one partition move to its writer, and come back.

See :mod:`appliance.processes.handoff`.  Bounds: ``network.handoff_bytes_max`` of buffers for all that is handed over.
"""

from __future__ import annotations

import socket

from .. import handoff
from .connection_state import Connection
from .connections import Connections
from .inbox import Buffers, Inbox
from .turn import Turn
from .writer_link import HandedOver, WriterLink


class HandingOver:
    """Decides which connections are handed over, and takes them back."""

    def __init__(self, turn: Turn, connections: Connections, buffers: Buffers, bytes_max: int) -> None:
        self._turn = turn
        self._connections = connections
        self._buffers = buffers
        self._bytes_left = bytes_max
        self.count = 0
        """Connections that writers have."""

    def consider(self, connection: Connection, link: WriterLink | None, acks: int) -> None:
        """Count another produce request, for one partition unless ``link`` is None."""
        if link is None or not acks:
            connection.cancel_handoff()
            return
        is_due = connection.handoff_count.is_due(link, acks, self._turn.now_ms)
        settles = connection.started <= len(connection.requests)  # no acks=0 waits for a writer, maybe another one
        connection.hand_over_to = link if is_due and settles and link.may_hand_over else None
        if acks == 1 and connection.hand_over_to is not None:  # acks=all may be waiting for what is still to be read
            self._connections.watch(connection)

    def hand_over(self, connection: Connection) -> bool:
        """Send a settled connection to the writer, if it can still be done."""
        link, inbox = connection.hand_over_to, connection.inbox
        assert link is not None
        buffer_bytes = max(inbox.buffer_bytes, handoff.BUFFER_BYTES_MIN)
        fits = buffer_bytes <= self._bytes_left and len(inbox) <= handoff.PIECE_BYTES
        if not fits or not link.may_hand_over or self._turn.stopping:
            connection.cancel_handoff()
            return False
        try:
            link.hand_over(connection, buffer_bytes)
        except OSError:  # no descriptor to be had
            connection.cancel_handoff()
            return False
        self.count += 1
        self._bytes_left -= buffer_bytes
        self._connections.close(connection)
        return True

    def take_back(self, handed_over: HandedOver, sock: socket.socket | None) -> None:
        """Go on where the writer has stopped."""
        self._forget(handed_over)
        if sock is None:
            return
        sock.setblocking(False)
        one = handed_over
        inbox = Inbox(self._buffers, bytes(one.received))
        connection = Connection(sock, one.protocol, one.listener, one.peer, one.codec, inbox)
        if one.unsent:
            connection.put(bytes(one.unsent))
        connection.close_when_sent = self._turn.stopping
        self._connections.take_in(connection)

    def on_lost(self, handed_over: HandedOver) -> None:
        """The writer is gone, and the connection with it."""
        self._forget(handed_over)
        text = "%s listener: connection of %s ended with the writer that served it"
        self._turn.complain(text, handed_over.protocol, handed_over.peer)

    def _forget(self, handed_over: HandedOver) -> None:
        self.count -= 1
        self._bytes_left += handed_over.buffer_bytes
