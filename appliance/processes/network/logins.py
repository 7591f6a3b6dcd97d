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
passwords on one connection, and the loop goes on meanwhile.  For a token the answer that says so is the delayed one,
and the connection is closed once the client has seen the reason.  Wrong passwords and unknown users get one answer
after the same work.  Passwords and tokens are neither logged nor part of an error.

A login waits until the snapshot has come, which is soon after a worker has begun.  It is compared with the verifiers of
when it began, and must hold with those of when it ends.

Passwords of PLAIN are compared with verifiers in a thread (:class:`PlainChecks`), since that takes milliseconds.
PBKDF2 runs without Python's lock, so the worker's loop goes on meanwhile.  One thread does one password at a time, of
each address in turn; ``WAITING_MAX`` may wait, about a third of a second with the most iterations that a verifier may
have.  For one more, the last one of the address with the most is closed. So who tries passwords, from however many
connections, has one place in the order, and takes none of others.  The thread is NICENESS nicer than the loop: trying
passwords, which needs no login, does not take half of a core from all others.

Tokens of OAUTHBEARER are checked in the loop, which takes about 100 us.  The keys of their provider come in a thread
(:mod:`.provider_keys`); a login whose key is not known is held until that has tried to get it, once.

A password that was right is remembered as long as its verifier, as an HMAC with a key that only this process has.  So
a client that connects again and again costs microseconds, also while others try passwords.  Wrong ones are never
remembered: each costs its sender a turn in the queue.
"""

from __future__ import annotations

import hmac
import os
import select
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...clock import wall_s
from ...config import Config
from ...errors import BadCredentials, LoginFault, LoginOutOfOrder, UnknownMechanism, UserLocked
from ...security.audit_log import Reason
from ...security.bearer_tokens import OAUTHBEARER, BearerTokens
from ...security.configuration import takes_tokens
from ...security.credentials import Credentials
from ...security.login_exchange import BROKER_LOGIN, Exchange, LoginState, PlainCheck, parse_mechanisms
from ...security.security_state import SecurityState
from ...wire.requests import Login, LoginReply
from ..child import lower_priority_of_thread
from ..snapshot import WorkerSnapshot
from .acceptor import ConnectionPlaces, site_of_host
from .connections import Connections
from .provider_keys import ProviderKeys
from .turn import Turn
from .worker_connection import Pending, WorkerConnection

FAILED_LOGIN_DELAY_MS: Final = 100
"""As Kafka's connection.failed.authentication.delay.ms."""
REASONS: Final[dict[type[LoginFault], Reason]] = {
    BadCredentials: Reason.BAD_CREDENTIALS,
    UserLocked: Reason.LOCKED,
    UnknownMechanism: Reason.UNKNOWN_MECHANISM,
    LoginOutOfOrder: Reason.OUT_OF_ORDER,
}
NO_LOGIN_HERE: Final = "this listener has no login: use one with SASL_SSL, or connect without SASL"
WAITING_MAX: Final = 64
NICENESS: Final = 10
"""A tenth of the loop's share of a busy core, by the weights of Linux."""
SESSION_MS_MAX: Final = 365 * 86_400_000
"""However long a token is good."""
REMEMBERED_MAX: Final = 4096
KEY_BYTES: Final = 32


class PlainChecks:
    """The queue and the thread, which begins with the first password.  ``fd`` is readable when results are there."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._key = os.urandom(KEY_BYTES)
        self._right: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        """(user, stored key) → HMAC of the password; the last used is last."""
        self._lock = threading.Lock()
        """Of what waits: the loop adds, the thread takes."""
        self._waiting: OrderedDict[str, deque[tuple[PlainCheck, Any]]] = OrderedDict()
        """By address; the one whose turn is next is first."""
        self._count = 0
        self._results: deque[tuple[Any, PlainCheck, bool]] = deque()
        self._work_count = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def is_remembered(self, check: PlainCheck) -> bool:
        """Whether this password was right for this verifier before."""
        key = check.user, check.verifier.stored_key
        digest = self._right.get(key)
        if digest is None or not hmac.compare_digest(digest, self._digest(check)):
            return False
        self._right.move_to_end(key)
        return True

    def begin_check(self, check: PlainCheck, token: Any, site: str) -> Any:
        """Compare in the thread, for a client at the address ``site``; :meth:`take_results` returns it with ``token``.

        Returns:
            The token that gives way since too many wait: this one, or one of an address with more.  None: none does.
        """
        with self._lock:
            own = self._waiting.get(site, deque())
            if self._count >= WAITING_MAX:
                longest = max(self._waiting.values(), key=len)
                if len(longest) <= len(own) + 1:
                    return token
                _, crowded = longest.pop()
                own.append((check, token))
                self._waiting[site] = own
                return crowded
            own.append((check, token))
            self._waiting[site] = own
            self._count += 1
        self._work_count.release()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="passwords", daemon=True)
            self._thread.start()
        return None

    def _next(self) -> tuple[PlainCheck, Any]:
        """The first of the address that has waited longest for its turn."""
        with self._lock:
            site, own = next(iter(self._waiting.items()))
            self._count -= 1
            first = own.popleft()
            if own:
                self._waiting.move_to_end(site)
            else:
                del self._waiting[site]
            return first

    def take_results(self, done: Callable[[Any, bool], None]) -> None:
        """Call ``done`` with the token and the result of each comparison that has ended."""
        os.eventfd_read(self.fd)
        while self._results:
            token, check, right = self._results.popleft()
            if right:
                self._right[check.user, check.verifier.stored_key] = self._digest(check)
                while len(self._right) > REMEMBERED_MAX:
                    self._right.popitem(last=False)
            done(token, right)

    def _digest(self, check: PlainCheck) -> bytes:
        return hmac.digest(self._key, check.verifier.salt + check.password, "sha256")

    def _run(self) -> None:
        lower_priority_of_thread(NICENESS)
        while True:
            self._work_count.acquire()
            check, token = self._next()
            self._results.append((token, check, check.run()))
            os.eventfd_write(self.fd, 1)


class Logins:
    """Starts the messages of logins.

    ``read_snapshot`` reads what the coordinator has sent; ``refusal_of`` a principal says why it may not log in.
    """

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        places: ConnectionPlaces,
        epoll: select.epoll,
        snapshot: WorkerSnapshot,
        read_snapshot: Callable[[], None],
        refusal_of: Callable[[str], str],
        config: Config,
    ) -> None:
        self._turn, self._connections, self._places = turn, connections, places
        self._snapshot, self._read_snapshot, self._config = snapshot, read_snapshot, config
        self._refusal_of = refusal_of
        self.mechanisms: Sequence[str] = parse_mechanisms(config.security.mechanisms)
        self._state: SecurityState | None = None
        self._credentials = Credentials({}, b"")
        self._plain = PlainChecks()
        self._waiting: list[Pending] = []
        """Messages of logins that wait for the snapshot."""
        self._failed: deque[tuple[int, Pending, bytes, bool]] = deque()
        """When to send the reply, the request, the reply, whether it is the last one; the earliest first."""
        self._keys: ProviderKeys | None = None
        self._tokens: BearerTokens | None = None
        self._held: list[tuple[int, Pending, bytes]] = []
        """The attempt to get keys that a login waits for, the login, and its message with a token."""
        if takes_tokens(config.security):
            self._keys = ProviderKeys(config.oauth.jwks, lambda: os.eventfd_write(self._plain.fd, 1))
            self._tokens = BearerTokens(config.oauth, self._keys, wall_s)
        epoll.register(self._plain.fd, select.EPOLLIN)

    @property
    def fd(self) -> int:
        """Readable when a password has been compared, or keys of tokens have been asked for."""
        return self._plain.fd

    @property
    def due_ms(self) -> int | None:
        """When the next answer to a failed login is due."""
        return self._failed[0][0] if self._failed else None

    def start(self, connection: WorkerConnection, request: Login, start: int, frame: memoryview) -> bool:
        """Take a message of a login."""
        pending = Pending(connection, request)
        connection.begin_request(pending)
        by_broker = connection.listener.protocol == "native" and (
            request.mechanism == BROKER_LOGIN or connection.session.login is not None
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
                brokers = listener.protocol == "native"
                session.login = Exchange(mechanisms, self._current(), brokers=brokers, tokens=self._tokens)
                session.gated = True
            session.login.choose(request.mechanism)
            if session.mechanism not in ("", request.mechanism):
                raise BadCredentials("a client logs in again with the same mechanism")
        login = session.login
        if login is None:
            raise LoginOutOfOrder("no mechanism is chosen yet")
        if request.message is not None and self._holds(pending, login, request.message):
            return
        self._respond(pending, login, request.message)

    def _holds(self, pending: Pending, login: Exchange, message: bytes) -> bool:
        """Hold a message with a token whose key is not known."""
        if login.mechanism != OAUTHBEARER or login.state is not LoginState.CHOSEN or self._tokens is None:
            return False
        if self._keys is None or not self._tokens.lacks_key(message):
            return False
        self._held.append((self._keys.want(), pending, message))
        return True

    def _respond(self, pending: Pending, login: Exchange, message: bytes | None) -> None:
        """Raises LoginFault."""
        reply = b""
        if message is not None:
            answer = login.respond(message)
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
        crowded = self._plain.begin_check(check, pending, site_of_host(pending.connection.session.host))
        if crowded is not None and not crowded.connection.closed:
            connection = crowded.connection
            self._turn.audit.refused(Reason.THROTTLED, "", connection.peer, what="PLAIN")
            self._connections.disconnect(connection, "too many passwords wait to be compared")

    def on_event(self) -> None:
        """Passwords have been compared, or keys of tokens have been asked for."""
        self._plain.take_results(self._compared)
        done = self._keys.attempts if self._keys is not None else 0
        over = [held for held in self._held if held[0] <= done]
        self._held = [held for held in self._held if held[0] > done]
        for _, pending, message in over:
            login = pending.connection.session.login
            if pending.connection.closed or login is None:
                continue
            try:
                self._respond(pending, login, message)
            except LoginFault as error:
                self._fail(pending, error)

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
        """Raises BadCredentials when a client logs in again as another user or with what holds no more, UserLocked."""
        connection, request = pending.connection, pending.request
        assert isinstance(request, Login)
        over = login.state is LoginState.DONE
        if over:
            login.check_present(self._current())
        if over and (why := self._refusal_of(login.principal)):
            raise UserLocked(why)
        if over and connection.session.mechanism and login.principal != connection.session.principal:
            raise BadCredentials("a client logs in again as the same user")
        if over and not self._places.log_in(connection, login.principal):
            self._connections.close(connection)
            return
        lifetime_ms = self._log_in(connection, login) if over else 0
        reply = LoginReply(0, "", message, self.mechanisms, lifetime_ms, over)
        encoded = connection.codec.encode_login(request, reply)
        if login.state is LoginState.REFUSED:
            self._delay(pending, BadCredentials, encoded, is_last=False)
            return
        if over:
            connection.codec = connection.codec.logged_in()
        self._connections.answer(pending, [encoded])

    def _log_in(self, connection: WorkerConnection, login: Exchange) -> int:
        """Begin a session; return its lifetime in ms, 0 for one without an end."""
        session, principal = connection.session, login.principal
        lifetime_ms = self._config.security.sessions_ms_max
        if login.expires_s:  # the session ends with the token (KIP-368)
            left_ms = max(1, round(min(login.expires_s - wall_s(), SESSION_MS_MAX / 1000) * 1000))
            lifetime_ms = min(lifetime_ms or left_ms, left_ms)
        session.log_in(principal, login.mechanism, self._turn.now_ms + lifetime_ms if lifetime_ms else 0)
        self._turn.audit.logged_in(
            principal, connection.peer, listener=connection.listener.security, mechanism=login.mechanism
        )
        return lifetime_ms

    def _fail(self, pending: Pending, error: LoginFault) -> None:
        """Answer a failed login, after a delay; that of a token has been noted and delayed already."""
        connection, request = pending.connection, pending.request
        assert isinstance(request, Login)
        login = connection.session.login
        connection.session.gated = True
        reply = connection.codec.encode_login(request, LoginReply(error.code, str(error), b"", self.mechanisms))
        if login is not None and login.has_refused_token and isinstance(error, BadCredentials):
            connection.close_when_sent = True
            self._connections.answer(pending, [reply] if reply else [])
        else:
            self._delay(pending, type(error), reply, is_last=True)

    def _delay(self, pending: Pending, error: type[LoginFault], reply: bytes, is_last: bool) -> None:
        """Note that a client is refused, and answer after a delay."""
        connection, request = pending.connection, pending.request
        assert isinstance(request, Login)
        login = connection.session.login
        who = login.principal if login is not None else ""
        mechanism = login.mechanism if login is not None else ""
        self._turn.audit.refused(REASONS[error], who, connection.peer, what=mechanism or request.mechanism or "-")
        self._failed.append((self._turn.now_ms + FAILED_LOGIN_DELAY_MS, pending, reply, is_last))

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
            _, pending, reply, is_last = self._failed.popleft()
            if not pending.connection.closed:
                if is_last:
                    pending.connection.close_when_sent = True
                self._connections.answer(pending, [reply] if reply else [])
        if self._waiting and self._snapshot.complete:
            waiting, self._waiting = self._waiting, []
            for pending in waiting:
                if not pending.connection.closed:
                    self._take(pending)
