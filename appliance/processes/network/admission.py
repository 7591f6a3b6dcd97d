"""Admits requests: asks the rights of their client, and whether it is throttled, before they start.

One place decides for all requests of clients that are logged in or need no login: :meth:`Admission.admit`, which is
asked before any handler runs (:meth:`Admission.guard`).  Before a login, ``Connections`` lets nothing else through.
Parts of a request that the client has no right to are noted in it (``denied``), and the handler answers them with
TOPIC_AUTHORIZATION_FAILED.  What the coordinator answers it checks itself, by the same rules.

The rules come with the snapshot (:mod:`appliance.processes.snapshot`).  Until it has come, no request starts: without
rules, clients would be refused what they may do.  When the rules change, every connection gets its access anew at its
next request, and connections that writers serve come back, since a writer asks nothing.  A fetch that waits was
admitted before, and is answered.

Without an authorizer and without quotas (:mod:`.metering`) this costs the test of one attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...security.acls import UNRESTRICTED, Access
from ...security.audit_log import Reason
from ...security.authorizer import Authorizer
from ...security.quotas import Quota
from ...security.security_state import SecurityState
from ...wire.requests import Fetch, Offsets, Produce, Request
from .connection_state import Connection
from .connections import Connections, Handler
from .metering import Metering
from .turn import Turn


class Admission:
    """Decides which requests may start.  ``recall`` takes back the connections that writers serve."""

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        authorizer: Authorizer,
        metering: Metering,
        recall: Callable[[], None],
    ) -> None:
        self._turn, self._connections, self._authorizer, self._recall = turn, connections, authorizer, recall
        self._metering = metering
        self._quotas: tuple[Quota, ...] = ()
        self._asks = authorizer.enforced
        """Whether there is anything to ask."""
        self._has_rules = False
        self._waiting: dict[Connection, None] = {}
        """Connections with requests that wait for the first rules."""

    def guard(self, handlers: Mapping[type[Request], Handler]) -> dict[type[Request], Handler]:
        """The handlers, behind the question whether the request may start."""
        return {kind: self._guarded(handler) for kind, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        metering, enforced = self._metering, self._authorizer.enforced

        def begin(connection: Connection, request: Any, start: int, frame: memoryview) -> bool:
            if not self._asks:
                return handler(connection, request, start, frame)
            if connection.session.held or (enforced and not self.admit(connection, request)):
                return False
            if not self._quotas:
                return handler(connection, request, start, frame)
            if type(request) is Fetch:
                metering.limit_fetch(connection, request, frame)
            if not handler(connection, request, start, frame):
                return False
            metering.charge(connection, request, frame)
            return True

        return begin

    def on_security(self, state: SecurityState) -> None:
        """Take the rules of a new state."""
        if self._authorizer.take(state.acls):
            self._recall()
        if state.quotas != self._quotas:
            self._quotas = state.quotas
            self._metering.take_quotas(state.quotas)
            self._asks = self._authorizer.enforced or self._metering.active
            self._recall()
        if not self._has_rules:
            self._has_rules = True
            for connection in self._waiting:
                connection.session.held = False
                self._connections.resume_next_turn(connection)
            self._waiting = {}

    def access(self, connection: Connection) -> Access:
        """What the client of a connection may do."""
        if not self._authorizer.enforced:
            return UNRESTRICTED
        session = connection.session
        access = session.access
        if access is None or access.rights is not self._authorizer.rights or access.principal != session.principal:
            access = session.access = self._authorizer.access(connection.origin)
        return access

    def admit(self, connection: Connection, request: Request) -> bool:
        """Note the parts of a request that its client may not have; False when it has to wait for the rules."""
        if not self._has_rules:
            self._waiting[connection] = None
            connection.session.held = True
            return False
        kind = type(request)
        session = connection.session
        access = session.access
        if access is None or access.rights is not self._authorizer.rights or access.principal != session.principal:
            access = self.access(connection)
        if kind is Produce:
            decisions = access.writable
        elif kind is Fetch:
            decisions = access.readable
        elif kind is Offsets:
            decisions = access.describable
        else:
            return True
        parts = request.parts  # type: ignore[union-attr]
        of_one_topic = len(parts) == 1 or (kind is Produce and len(parts) == request.count)  # type: ignore[union-attr]
        if of_one_topic and decisions[parts[0][0]]:
            return True
        denied = frozenset(index for index, part in enumerate(parts) if not decisions[part[0]])
        if denied:
            request.denied = denied  # type: ignore[union-attr]
            self.refuse(connection, f"{kind.__name__} {parts[min(denied)][0]}")
        return True

    def refuse(self, connection: Connection, what: str) -> None:
        """Note a refusal: the request, and the first name in it that the client has no right to."""
        self._turn.audit.refused(Reason.DENIED, connection.session.principal, connection.peer, what=what)

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._waiting.pop(connection, None)
