"""Counts the connections of one worker by address and by user, so that no client takes the places of all others.

Bounds: ``network.connections_per_address_max`` and ``network.connections_per_user_max``.  A connection that a writer
serves is counted, too.  Unix sockets have no address.  Not counted by user: who has not logged in, the brokers of the
cluster, and administrators: root, and the user of the service, through a Unix socket.
"""

from __future__ import annotations

from collections import Counter

from ...config import Network
from ...machine_limits import PER_ADDRESS_MAX, PER_USER_MAX
from ...security.audit_log import Reason
from ...security.principals import ANONYMOUS, BROKERS
from .client_session import ClientSession
from .turn import Turn


class Places:
    """The counts.  What is refused is in the audit log; the caller closes it, as Kafka does."""

    def __init__(self, turn: Turn, limits: Network) -> None:
        self._turn = turn
        self._per_address, self._per_user = limits.connections_per_address_max, limits.connections_per_user_max
        self._by_address: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()

    def admits_address(self, host: str, peer: str, handshakes: int) -> bool:
        """Whether there is room for one more connection of an address, which has so many handshakes."""
        if not self._per_address or not host or self._by_address[host] + handshakes < self._per_address:
            return True
        self._turn.audit.refused(Reason.CONNECTIONS_PER_ADDRESS, "", peer, what=PER_ADDRESS_MAX)
        return False

    def admits(self, session: ClientSession, principal: str, peer: str) -> bool:
        """Whether there is room for one more connection of a principal, which this one will be."""
        if not self._per_user or not _is_counted(session, principal) or self._by_user[principal] < self._per_user:
            return True
        self._turn.audit.refused(Reason.CONNECTIONS_PER_USER, principal, peer, what=PER_USER_MAX)
        return False

    def enter(self, session: ClientSession) -> None:
        if session.host:
            self._by_address[session.host] += 1
        if _is_counted(session, session.principal):
            self._by_user[session.principal] += 1

    def leave(self, session: ClientSession) -> None:
        if session.host:
            take(self._by_address, session.host)
        if _is_counted(session, session.principal):
            take(self._by_user, session.principal)

    def log_in(self, session: ClientSession, principal: str, peer: str) -> bool:
        """Count the connection for the principal that it has logged in as; False when there is no room."""
        if principal == session.principal:
            return True
        if not self.admits(session, principal, peer):
            return False
        self.leave(session)
        session.become(principal)
        self.enter(session)
        return True


def _is_counted(session: ClientSession, principal: str) -> bool:
    return not session.administrator and principal != ANONYMOUS and not principal.startswith(BROKERS)


def take(counts: Counter[str], name: str) -> None:
    """Count one less; the last one leaves no entry."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
