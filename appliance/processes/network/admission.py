"""Admits requests: asks the rights of their client, and whether it is throttled, before they start.

One place decides for all requests of clients that are logged in or need no login: the handlers stand behind its
questions (:meth:`Admission.guard`).  Before a login, ``Connections`` lets nothing else through.  Parts of a request
that the client has no right to are noted in it (``denied``), and the handler answers them with
TOPIC_AUTHORIZATION_FAILED.  What the coordinator answers it checks itself, by the same rules.

The rules come with the snapshot (:mod:`appliance.processes.snapshot`).  Until it has come, no request starts: without
rules, clients would be refused what they may do.  When the rules change, every connection gets its access anew at its
next request, and connections that writers serve come back, since a writer asks nothing.  A fetch that waits was
admitted before, and is answered.

Without an authorizer and without quotas (:mod:`.metering`) the handlers stand alone, and this costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from ...security.acls import UNRESTRICTED, Access, Decisions, Operation, ResourceType
from ...security.audit_log import Reason
from ...security.authorizer import Authorizer
from ...security.quotas import Quota
from ...security.security_state import SecurityState
from ...wire.requests import Fetch, Offsets, Produce, Request
from .connection_state import Connection
from .connections import Connections, Handler
from .metering import Metering
from .turn import Turn

DECISIONS_OF: Final[Mapping[type[Request], Callable[[Access], Decisions]]] = {
    Produce: attrgetter("writable"),
    Fetch: attrgetter("readable"),
    Offsets: attrgetter("describable"),
}
"""What each request to topics asks of an access."""


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
        self._rights = authorizer.rights
        self._metered = False
        """Whether there are quotas, or were while connections were muted."""
        self._handlers: Mapping[type[Request], Handler] = {}
        self._has_rules = False
        self._waiting: dict[Connection, None] = {}
        """Connections with requests that wait for the first rules."""

    def guard(self, handlers: Mapping[type[Request], Handler]) -> None:
        """Let these handlers start requests, each behind the questions that there are."""
        self._handlers = handlers
        self._connections.handlers.update({kind: self._guarded(kind, handlers[kind]) for kind in handlers})

    def _guarded(self, kind: type[Request], handler: Handler) -> Handler:
        if self._metered:
            handler = self._behind_quotas(kind, handler)
        if not self._authorizer.enforced:
            return handler
        return self._behind_rights(kind, handler) if kind in DECISIONS_OF else self._behind_rules(handler)

    def _behind_quotas(self, kind: type[Request], handler: Handler) -> Handler:
        metering = self._metering

        def begin(connection: Connection, request: Any, start: int, frame: memoryview) -> bool:
            if connection.session.held:
                return False
            if not self._quotas:
                return handler(connection, request, start, frame)
            if metering.must_wait(connection, request, frame):
                return False
            if kind is Fetch:
                metering.limit_fetch(connection, request, frame)
            if not handler(connection, request, start, frame):
                return False
            metering.charge(connection, request, frame)
            return True

        return begin

    def _behind_rules(self, handler: Handler) -> Handler:
        """For requests whose rights others check, by the rules that have come."""

        def begin(connection: Connection, request: Any, start: int, frame: memoryview) -> bool:
            return (self._has_rules or self._wait(connection)) and handler(connection, request, start, frame)

        return begin

    def _behind_rights(self, kind: type[Request], handler: Handler) -> Handler:
        """What a client is known to have a right to, which is nearly everything, costs one look-up for each part."""
        decisions_of = DECISIONS_OF[kind]

        def begin(connection: Connection, request: Any, start: int, frame: memoryview) -> bool:
            access = connection.session.access
            if access is None or access.rights is not self._rights:
                if not self._has_rules:
                    return self._wait(connection)
                access = self.access(connection)
            decisions = decisions_of(access)
            if kind is Produce and request.transactional_id is not None:
                self._check_id(connection, request, access)
            for part in request.parts:
                if not decisions[part[0]] and not request.denied:
                    self._deny(connection, request, decisions)
                    break
            return handler(connection, request, start, frame)

        def begin_produce(connection: Connection, request: Produce, start: int, frame: memoryview) -> bool:
            access, parts = connection.session.access, request.parts
            if (
                access is not None
                and access.rights is self._rights
                and len(parts) == request.count  # one, or joined ones, which are of one topic
                and access.writable[parts[0][0]]
                and request.transactional_id is None
            ):
                return handler(connection, request, start, frame)
            return begin(connection, request, start, frame)

        return begin_produce if kind is Produce else begin

    def on_security(self, state: SecurityState) -> None:
        """Take the rules of a new state."""
        if self._authorizer.take(state.acls):
            self._rights = self._authorizer.rights
            self._recall()
        if state.quotas != self._quotas:
            self._quotas = state.quotas
            self._metering.take_quotas(state.quotas)
            self._metered = self._metering.active
            self.guard(self._handlers)
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
        if access is None or access.rights is not self._rights:
            access = session.access = self._authorizer.access(connection.origin)
        return access

    def _wait(self, connection: Connection) -> bool:
        """Let the requests of a connection wait for the rules."""
        self._waiting[connection] = None
        connection.session.held = True
        return False

    def _deny(self, connection: Connection, request: Any, decisions: Decisions) -> None:
        """Note the parts of a request that its client may not have.  A topic id that is not known denies nothing."""
        by_id = type(request) is Fetch and request.session.by_id
        denied = frozenset(
            index for index, part in enumerate(request.parts) if not decisions[part[0]] and (part[0] or not by_id)
        )
        if not denied:
            return
        request.denied = denied
        names = dict.fromkeys(request.parts[index][0] for index in sorted(denied))
        self.refuse(connection, f"{type(request).__name__} {next(iter(names))}", len(names) - 1)

    def _check_id(self, connection: Connection, request: Produce, access: Access) -> None:
        """Refuse all of a request whose transactional id its client may not use."""
        name = request.transactional_id or ""
        if not access.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            request.denied, request.id_denied = frozenset(range(len(request.parts))), True
            self.refuse(connection, f"Produce {name}")

    def refuse(self, connection: Connection, what: str, more: int = 0) -> None:
        """Note a refusal: the request, the first name in it that the client has no right to, and how many more."""
        others = {"more": more} if more else {}
        self._turn.audit.refused(Reason.DENIED, connection.session.principal, connection.peer, what=what, **others)

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._waiting.pop(connection, None)
