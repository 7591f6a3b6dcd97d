"""Relays the connections with TLS that writers serve: the worker encrypts and decrypts, the writer does all else.

The keys of a connection with TLS cannot leave the process, so its socket cannot be handed over to a writer.  Instead
the writer gets one end of a pair of Unix sockets, which it serves as it serves a plain connection::

    client ── records ──► transport ── plain bytes ──► near ═══ far ──► writer
    client ◄── records ── transport ◄── plain bytes ── near ═══ far ◄── writer

The worker passes bytes on and does not look at them: a request costs it a fraction of what parsing, an append request
and a reply take.

A relay begins when a connection is handed over, and ends when it comes back or is lost; see
:mod:`appliance.processes.handoff`.  At the end of the client's stream the writer gets an end, too, and gives the
connection back.  When it comes back, bytes are left in both Unix sockets: :meth:`Relays.end_relay` takes them out.

Bounds of a relay: what two Unix sockets hold, RECEIVE_BYTES that were decrypted and PIECE_BYTES that were not sent.  It
does not read one side while the other does not take.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Final

from ...wire.transport import PIECE_BYTES, RECEIVE_BYTES, Transport
from .turn import Turn

HANG_UP: Final = select.EPOLLHUP | select.EPOLLERR

_plain = memoryview(bytearray(RECEIVE_BYTES))
"""Decrypted bytes on their way to a writer; used within one call only."""


class Relay:
    """One connection.  ``near``: the worker's end of the pair.  ``ended``: nothing more comes from the client."""

    __slots__ = (
        "client_events",
        "client_fd",
        "ended",
        "near",
        "near_events",
        "near_fd",
        "to_client",
        "to_writer",
        "transport",
    )

    def __init__(self, transport: Transport, near: socket.socket) -> None:
        self.transport, self.near = transport, near
        self.client_fd, self.near_fd = transport.sock.fileno(), near.fileno()
        self.to_writer = self.to_client = b""
        self.client_events = self.near_events = 0
        self.ended = False


class Relays:
    """All relays of one worker; ``by_fd`` has each under its two descriptors."""

    def __init__(self, turn: Turn, epoll: select.epoll) -> None:
        self._turn, self._epoll = turn, epoll
        self.by_fd: dict[int, Relay] = {}

    @property
    def count(self) -> int:
        """How many connections are relayed; each takes a descriptor of its own beside that of its client."""
        return len(self.by_fd) // 2

    def begin_relay(self, transport: Transport, near: socket.socket) -> Relay:
        """Relay a connection that nobody else reads any more."""
        relay = Relay(transport, near)
        self.by_fd[relay.client_fd] = self.by_fd[relay.near_fd] = relay
        self._epoll.register(relay.client_fd, 0)
        self._epoll.register(relay.near_fd, 0)
        if transport.pending:
            self._read_client(relay)
        self._watch(relay)
        return relay

    def end_relay(self, relay: Relay, far: socket.socket) -> tuple[bytes, bytes]:
        """End a relay whose connection comes back; return the bytes that neither side has taken: received, unsent."""
        self._forget(relay)
        received, unsent = _drain(far) + relay.to_writer, relay.to_client + _drain(relay.near)
        self._turn.close_at_end(far.close)
        self._turn.close_at_end(relay.near.close)
        return received, unsent

    def lose(self, relay: Relay) -> None:
        """End a relay whose writer is gone.

        Its client still gets the replies that the writer has sent, as far as its socket takes them.
        """
        if self.by_fd.get(relay.near_fd) is not relay:
            return
        self._forget(relay)
        self._turn.close_at_end(relay.near.close)
        self._turn.close_at_end(relay.transport.close)
        replies = relay.to_client + _drain(relay.near)
        with contextlib.suppress(OSError):
            while replies:
                replies = replies[relay.transport.send(replies) :]

    def on_event(self, fd: int, event: int) -> None:
        """Pass on what has come."""
        relay = self.by_fd[fd]
        if fd == relay.client_fd:
            if event & HANG_UP:
                self._end_client(relay)
            else:
                if event & select.EPOLLOUT:
                    self._send_client(relay)
                if event & select.EPOLLIN and not relay.ended:
                    self._read_client(relay)
        elif event & HANG_UP:  # the writer's end is closed: its link says why
            self.lose(relay)
            return
        else:
            if event & select.EPOLLOUT:
                self._send_writer(relay)
            if event & select.EPOLLIN:
                with contextlib.suppress(OSError):  # the writer's end is closed: the next event says so
                    relay.to_client = relay.near.recv(PIECE_BYTES)
                self._send_client(relay)
        self._watch(relay)

    def _read_client(self, relay: Relay) -> None:
        transport = relay.transport
        try:
            count = transport.receive_into(_plain)
            while count:
                self._pass_on(relay, count)
                if relay.to_writer or not transport.pending:
                    return
                count = transport.receive_into(_plain)
        except BlockingIOError:
            return
        except OSError:
            pass  # the worker gets the same error when the connection has come back
        self._end_client(relay)

    def _pass_on(self, relay: Relay, count: int) -> None:
        sent = 0
        with contextlib.suppress(OSError):  # it takes nothing now, or is closed: the next event says which
            sent = relay.near.send(_plain[:count])
        if sent < count:
            relay.to_writer = bytes(_plain[sent:count])

    def _send_writer(self, relay: Relay) -> None:
        with contextlib.suppress(OSError):
            relay.to_writer = relay.to_writer[relay.near.send(relay.to_writer) :]
        if not relay.to_writer:
            if relay.ended:
                _end_stream(relay.near)
            elif relay.transport.pending:
                self._read_client(relay)

    def _send_client(self, relay: Relay) -> None:
        try:
            while relay.to_client:
                relay.to_client = relay.to_client[relay.transport.send(relay.to_client) :]
        except BlockingIOError:
            pass
        except OSError:
            self._end_client(relay)

    def _end_client(self, relay: Relay) -> None:
        """Nothing more comes: let the writer give the connection back, which then ends in the worker."""
        if relay.ended:
            return
        relay.ended = True
        self._epoll.unregister(relay.client_fd)
        with contextlib.suppress(OSError):
            relay.transport.sock.shutdown(socket.SHUT_RD)
        if not relay.to_writer:
            _end_stream(relay.near)

    def _watch(self, relay: Relay) -> None:
        """Let epoll report what can be passed on."""
        client = (0 if relay.to_writer else select.EPOLLIN) | (select.EPOLLOUT if relay.to_client else 0)
        near = (0 if relay.to_client else select.EPOLLIN) | (select.EPOLLOUT if relay.to_writer else 0)
        if client != relay.client_events and not relay.ended:
            relay.client_events = client
            self._epoll.modify(relay.client_fd, client)
        if near != relay.near_events:
            relay.near_events = near
            self._epoll.modify(relay.near_fd, near)

    def _forget(self, relay: Relay) -> None:
        del self.by_fd[relay.client_fd], self.by_fd[relay.near_fd]
        if not relay.ended:
            self._epoll.unregister(relay.client_fd)
        self._epoll.unregister(relay.near_fd)


def _end_stream(near: socket.socket) -> None:
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_WR)


def _drain(sock: socket.socket) -> bytes:
    """All bytes that wait in a Unix socket."""
    pieces = []
    with contextlib.suppress(OSError):
        while piece := sock.recv(PIECE_BYTES, socket.MSG_DONTWAIT):
            pieces.append(piece)
    return b"".join(pieces)
