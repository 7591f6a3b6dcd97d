"""Brings connections of TLS listeners through their handshakes, before they may send requests.

A handshake has a socket and OpenSSL's state, nothing else: no inbox, no codec, no place among the connections::

    accepted ── began ──► handshake ── complete ──► connection
                             │
                             └── failed, too slow, too large, or pushed out ──► closed, counted by reason

Signing takes up to a millisecond, so STEPS_PER_TURN handshakes go on in one turn of the loop; epoll reports the others
again.

Bounds: ``tls.handshakes_max`` handshakes of a worker, ``tls.handshake_ms_max`` of time, HANDSHAKE_BYTES_MAX of received
bytes.  When there is no room for one more, the oldest is closed: an honest client needs milliseconds, so it is gone
from here long before, and those who hold places without going on lose them to those who come.
"""

from __future__ import annotations

import select
import ssl
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from ...security.audit_log import Reason
from ...security.configuration import Tls
from ...security.principals import principal_of
from ...wire.transport import PlainOnTls, TlsTransport
from .accepting import Accepted, take
from .turn import Turn

STEPS_PER_TURN: Final = 8
HANDSHAKE_BYTES_MAX: Final = 128 * 1024
"""A client's certificates have a few kilobytes; OpenSSL takes at most 100 KiB of them."""


class _Handshake(NamedTuple):
    transport: TlsTransport
    accepted: Accepted
    deadline_ms: int


class Handshakes:
    """All handshakes of one worker.  ``on_complete`` is called with a transport that can be used."""

    def __init__(
        self, turn: Turn, epoll: select.epoll, limits: Tls, on_complete: Callable[[TlsTransport, Accepted], None]
    ) -> None:
        self._turn, self._epoll, self._limits = turn, epoll, limits
        self._on_complete = on_complete
        self._steps = STEPS_PER_TURN
        self.by_fd: OrderedDict[int, _Handshake] = OrderedDict()
        """The oldest first."""
        self.by_address: Counter[str] = Counter()
        """How many each address has."""

    def reload(self, limits: Tls) -> None:
        self._limits = limits

    def begin(self, accepted: Accepted, context: ssl.SSLContext) -> None:
        """Let a new connection begin its handshake."""
        while len(self.by_fd) >= self._limits.handshakes_max:
            fd, oldest = next(iter(self.by_fd.items()))
            self._refuse(fd, oldest, Reason.TIMEOUT, "pushed out by newer handshakes: tls.handshakes_max")
        transport = TlsTransport(accepted.sock, context)
        fd = accepted.sock.fileno()
        self.by_fd[fd] = _Handshake(transport, accepted, self._turn.now_ms + self._limits.handshake_ms_max)
        self.by_address[accepted.host] += 1
        self._epoll.register(fd, select.EPOLLIN)

    def begin_turn(self) -> None:
        self._steps = STEPS_PER_TURN

    def on_event(self, fd: int) -> None:
        """Go on with a handshake whose socket is ready."""
        if not self._steps:
            return
        self._steps -= 1
        handshake = self.by_fd[fd]
        transport = handshake.transport
        writing = transport.wants_write
        try:
            complete = transport.handshake()
        except PlainOnTls:
            self._refuse(fd, handshake, Reason.PLAIN_ON_TLS, "its first bytes are not those of TLS")
            return
        except ssl.SSLError as error:
            self._refuse(fd, handshake, *_reason_of(error))
            return
        except OSError:  # it went away, perhaps since it refuses our certificate without saying so
            self._remove(fd, handshake)
            transport.sock.close()
            return
        if complete:
            self._remove(fd, handshake)
            self._note_login(transport, handshake.accepted)
            self._on_complete(transport, handshake.accepted)
        elif transport.received_bytes > HANDSHAKE_BYTES_MAX:
            self._refuse(fd, handshake, Reason.TLS_HANDSHAKE, f"more than {HANDSHAKE_BYTES_MAX} bytes")
        elif transport.wants_write != writing:
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if transport.wants_write else 0))

    def _note_login(self, transport: TlsTransport, accepted: Accepted) -> None:
        """Note who a client is by its certificate; with SASL it still has to log in."""
        listener = accepted.listener
        if transport.subject and not listener.sasl:
            who, where = principal_of(transport.subject), f"{listener.protocol} {listener.security}"
            self._turn.audit.logged_in(who, accepted.peer, listener=where, mechanism="certificate")

    def check_timeouts(self) -> None:
        """Close the handshakes that take too long."""
        for fd, handshake in list(self.by_fd.items()):
            if handshake.deadline_ms > self._turn.now_ms:
                break
            self._refuse(fd, handshake, Reason.TIMEOUT, "a handshake takes longer than tls.handshake_ms_max")

    def _refuse(self, fd: int, handshake: _Handshake, reason: Reason, what: str) -> None:
        """Close a connection, with one line in the audit log."""
        self._remove(fd, handshake)
        listener = handshake.accepted.listener
        where = f"{listener.protocol} {listener.security}"
        self._turn.audit.refused(reason, "", handshake.accepted.peer, listener=where, what=what)
        self._turn.close_at_end(handshake.transport.sock.close)

    def _remove(self, fd: int, handshake: _Handshake) -> None:
        del self.by_fd[fd]
        take(self.by_address, handshake.accepted.host)
        self._epoll.unregister(fd)

    def close(self) -> None:
        """The worker stops."""
        for fd, handshake in list(self.by_fd.items()):
            self._remove(fd, handshake)
            handshake.transport.sock.close()


def _reason_of(error: ssl.SSLError) -> tuple[Reason, str]:
    """Whether a failed handshake is about a certificate, and why it failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Reason.CERTIFICATE, error.verify_message
    why = (error.reason or type(error).__name__).lower().replace("_", " ")
    return (Reason.CERTIFICATE if "certificate" in why or "unknown ca" in why else Reason.TLS_HANDSHAKE), why
