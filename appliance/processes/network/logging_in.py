"""Logs clients in: the messages of SASL, from both listeners, against the users of the snapshot.

A connection of a listener with a login begins *gated*: until it is logged in, only ApiVersions, hello and the messages
of a login start (``connections``), its frames are small, and it has ``security.login_ms_max`` in all.  With
``security.sessions_ms_max`` a session ends: the connection is gated again, and its client logs in again as the same
user (KIP-368)::

    state         gated    deadline_ms            leaves it by
    new           yes      login_ms_max           a login;  the deadline: closed
    logged in     no       end of session, or 0   the deadline;  SaslHandshake: logging in again
    ended         yes      0                      a login;  any other request: closed
    again         yes      as before              a login;  anything else: closed

Brokers of the cluster log in on any native listener, also where clients need not: ``processes/coordinator/peers.py``.

What fails is answered ``FAILED_LOGIN_DELAY_MS`` later, and the connection is closed (KIP-306): nobody can try many
passwords on one connection, and the loop goes on meanwhile.  Wrong passwords and unknown users get one answer after
the same work.  Passwords and tokens are neither logged nor part of an error.

A login waits until the snapshot has come, which is soon after a worker has begun.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ...config import Config
from ...errors import BadCredentials, LoginFault, LoginOutOfOrder, UnknownMechanism
from ...security.audit_log import Reason
from ...security.credentials import Credentials
from ...security.login_exchange import BROKERS, Exchange, PlainCheck, State, parse_mechanisms
from ...security.security_state import SecurityState
from ...wire.requests import Login, LoginReply
from ..snapshot import Snapshot
from .connection_state import Connection, Pending
from .connections import Connections
from .places import Places
from .plain_checks import PlainChecks
from .turn import Turn

FAILED_LOGIN_DELAY_MS: Final = 100
"""As Kafka's connection.failed.authentication.delay.ms."""
REASONS: Final[dict[type[LoginFault], Reason]] = {
    BadCredentials: Reason.BAD_CREDENTIALS,
    UnknownMechanism: Reason.UNKNOWN_MECHANISM,
    LoginOutOfOrder: Reason.OUT_OF_ORDER,
}
NO_LOGIN_HERE: Final = "this listener has no login: use one with SASL_SSL, or connect without SASL"


class LoggingIn:
    """Starts the messages of logins.  ``read_snapshot`` reads what the coordinator has sent."""

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        places: Places,
        epoll: select.epoll,
        snapshot: Snapshot,
        read_snapshot: Callable[[], None],
        config: Config,
    ) -> None:
        self._turn, self._connections, self._places = turn, connections, places
        self._snapshot, self._read_snapshot, self._config = snapshot, read_snapshot, config
        self.mechanisms: Sequence[str] = parse_mechanisms(config.security.mechanisms)
        self._state: SecurityState | None = None
        self._credentials = Credentials({}, b"")
        self._plain = PlainChecks()
        self._waiting: list[Pending] = []
        """Messages of logins that wait for the snapshot."""
        self._failed: deque[tuple[int, Pending, bytes]] = deque()
        """When to send the reply, the request, the reply; the earliest first."""
        epoll.register(self._plain.fd, select.EPOLLIN)

    @property
    def fd(self) -> int:
        """Readable when a password has been compared."""
        return self._plain.fd

    @property
    def due_ms(self) -> int | None:
        """When the next answer to a failed login is due."""
        return self._failed[0][0] if self._failed else None

    def start(self, connection: Connection, request: Login, start: int, frame: memoryview) -> bool:
        """Take a message of a login."""
        pending = Pending(connection, request)
        connection.begin(pending)
        by_broker = connection.listener.protocol == "native" and (
            request.mechanism == BROKERS or connection.session.login is not None
        )
        if not (connection.listener.sasl or by_broker):
            refusal = LoginReply(LoginOutOfOrder.code, NO_LOGIN_HERE)
            self._connections.answer(pending, [connection.codec.encode_login(request, refusal)])
        elif self._snapshot.complete:
            self._take(pending)
        else:
            self._waiting.append(pending)
        return True

    def _take(self, pending: Pending) -> None:
        try:
            self._advance(pending)
        except LoginFault as error:
            self._fail(pending, error)

    def _advance(self, pending: Pending) -> None:
        """Raises LoginFault."""
        session, request = pending.connection.session, pending.request
        assert isinstance(request, Login)
        if request.mechanism is not None:
            if session.login is None:
                listener = pending.connection.listener
                mechanisms = self.mechanisms if listener.sasl else ()
                session.login = Exchange(mechanisms, self._current(), brokers=listener.protocol == "native")
                session.gated = True
            session.login.choose(request.mechanism)
            if session.mechanism not in ("", request.mechanism):
                raise BadCredentials("a client logs in again with the same mechanism")
        login = session.login
        if login is None:
            raise LoginOutOfOrder("no mechanism is chosen yet")
        reply = b""
        if request.message is not None:
            answer = login.respond(request.message)
            if isinstance(answer, bytes):
                reply = answer
            elif self._plain.is_remembered(answer):
                login.checked(True)
            else:
                self._compare(pending, answer)
                return
        self._answer(pending, login, reply)

    def _current(self) -> Credentials:
        """The verifiers of all users now."""
        self._read_snapshot()
        if self._snapshot.security is not self._state:
            self._state = self._snapshot.security
            self._credentials = Credentials(self._state.users, self._state.secret)
        return self._credentials

    def _compare(self, pending: Pending, check: PlainCheck) -> None:
        if not self._plain.begin(check, pending):
            connection = pending.connection
            self._turn.audit.refused(Reason.THROTTLED, "", connection.peer, what="PLAIN")
            self._connections.disconnect(connection, "too many passwords wait to be compared")

    def on_event(self) -> None:
        """Passwords have been compared."""
        self._plain.take(self._compared)

    def _compared(self, pending: Pending, right: bool) -> None:
        login = pending.connection.session.login
        if pending.connection.closed or login is None:
            return
        try:
            login.checked(right)
            self._answer(pending, login, b"")
        except LoginFault as error:
            self._fail(pending, error)

    def _answer(self, pending: Pending, login: Exchange, message: bytes) -> None:
        """Raises BadCredentials when a client logs in again as another user."""
        connection, request = pending.connection, pending.request
        assert isinstance(request, Login)
        over = login.state is State.DONE
        if over and connection.session.mechanism and login.principal != connection.session.principal:
            raise BadCredentials("a client logs in again as the same user")
        if over and not self._places.log_in(connection.session, login.principal, connection.peer):
            self._connections.close(connection)
            return
        lifetime_ms = self._log_in(connection, login) if over else 0
        reply = LoginReply(0, "", message, self.mechanisms, lifetime_ms, over)
        encoded = connection.codec.encode_login(request, reply)
        if over:
            connection.codec = connection.codec.logged_in()
        self._connections.answer(pending, [encoded])

    def _log_in(self, connection: Connection, login: Exchange) -> int:
        """Begin a session; return its lifetime in ms, 0 for one without an end."""
        session, principal = connection.session, login.principal
        lifetime_ms = self._config.security.sessions_ms_max
        session.begin(principal, login.mechanism, self._turn.now_ms + lifetime_ms if lifetime_ms else 0)
        self._turn.audit.logged_in(
            principal, connection.peer, listener=connection.listener.security, mechanism=login.mechanism
        )
        return lifetime_ms

    def _fail(self, pending: Pending, error: LoginFault) -> None:
        """Answer a failed login, after a delay."""
        connection, request = pending.connection, pending.request
        assert isinstance(request, Login)
        login = connection.session.login
        connection.session.gated = True
        who = login.principal if login is not None else ""
        mechanism = login.mechanism if login is not None else ""
        self._turn.audit.refused(REASONS[type(error)], who, connection.peer, what=mechanism or request.mechanism or "-")
        reply = connection.codec.encode_login(request, LoginReply(error.code, str(error), b"", self.mechanisms))
        self._failed.append((self._turn.now_ms + FAILED_LOGIN_DELAY_MS, pending, reply))

    def check_timeouts(self) -> None:
        """Close connections that have not logged in in time; gate those whose session is over."""
        connections = list(self._connections.by_fd.values())
        for connection in connections:
            session = connection.session
            if not session.is_over(self._turn.now_ms):
                continue
            if session.mechanism:
                session.expire()
                connection.cancel_handoff()
                self._connections.watch(connection)
            else:
                self._turn.audit.refused(Reason.TIMEOUT, "", connection.peer, what="login")
                self._connections.disconnect(connection, "it has not logged in within security.login_ms_max")

    def answer_due(self) -> None:
        """Send the answers to failed logins whose delay is over; take waiting messages once the snapshot has come."""
        while self._failed and self._failed[0][0] <= self._turn.now_ms:
            _, pending, reply = self._failed.popleft()
            if not pending.connection.closed:
                pending.connection.close_when_sent = True
                self._connections.answer(pending, [reply] if reply else [])
        if self._waiting and self._snapshot.complete:
            waiting, self._waiting = self._waiting, []
            for pending in waiting:
                if not pending.connection.closed:
                    self._take(pending)
