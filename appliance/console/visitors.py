"""Finds out who sent a request, and what this visitor may see and change::

    visitor          where clients                 sees                           changes
    not logged in    need not log in               what User:ANONYMOUS may see    nothing
    not logged in    have to, or could             nothing                        nothing
    logged in        either                        what the user may see          what the user may change, with the
                                                                                  CSRF token of the session

Clients have to log in, or could, where a listener asks for a login or a certificate, where there are users, or where
the page is meant for other hosts: ``console.hosts`` or ``console.proxies`` name some, or its address is not loopback.
From where a visitor really comes cannot be seen: a proxy, like a tunnel, makes everybody a visitor of this host.  With
``console.anonymous`` visitors who are not logged in see what User:ANONYMOUS may all the same, on loopback.

What a user may do is decided by the access rules of ``security.authorizer``, for the console as for a listener.
Without an authorizer there are no rules: all visitors who see anything see everything, and those who are logged in
change everything.  An address that other hosts reach needs ``security.allow_insecure``, because the page has no TLS.

Users, verifiers of passwords and access rules come from the file that the coordinator stores
(``security/security_file``).  It is read again when it has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from ..addresses import Listener, site_of
from ..errors import BadCredentials, BufferFull, ClusterNotPermitted, LoginOutOfOrder, StorageFault, UserLocked
from ..processes.child import lower_priority_of_thread
from ..security import security_file
from ..security.accounts import OPEN
from ..security.acls import CLUSTER_NAME, Access, Operation, ResourceType, word
from ..security.audit_log import Audit, Reason
from ..security.authorizer import Authorizer
from ..security.configuration import Security
from ..security.credentials import Credentials
from ..security.login_exchange import PlainCheck
from ..security.principals import ANONYMOUS, USER_CHARACTERS_MAX, Origin, principal_of
from ..security.scram import PASSWORD_BYTES_MAX
from ..security.security_state import SecurityState
from .console_sessions import Attempts, Sessions, UserStanding, VisitorSession, is_csrf

logger = logging.getLogger(__name__)

CHECKS_MAX: Final = 2
"""Passwords that are compared at a time: each takes a core for some milliseconds, which others have to wait for."""
NICENESS: Final = 10
WAITING_MAX: Final = 16
WAITING_RESERVED: Final = 8
"""Places among them for users at addresses from which they have logged in before."""
WAITING_OF_ADDRESS_MAX: Final = 2


class Visitor(NamedTuple):
    """Who is asking.  ``session`` is None for who is not logged in."""

    access: Access
    peer: str
    session: VisitorSession | None = None

    def check_right(
        self, operation: Operation, resource: ResourceType, name: str = CLUSTER_NAME, *, audit: Audit, what: str
    ) -> None:
        """Raises NotPermitted: the visitor may not; the audit log has it, with ``what`` was asked for."""
        if not self.access.may(operation, resource, name):
            audit.refused(Reason.DENIED, self.access.principal, self.peer, what=f"{what} {name}")
            advice = "" if self.session else ": log in as a user who may"
            raise ClusterNotPermitted(f"not permitted: {word(operation)} on {word(resource).lower()} {name!r}{advice}")

    def check_logged_in(self, csrf: str) -> None:
        """Check that the visitor may change anything at all.

        Raises:
            LoginOutOfOrder: not logged in, or not with this request's token.
        """
        if self.session is None:
            raise LoginOutOfOrder("the console is read-only until you log in")
        if not is_csrf(self.session, csrf):
            raise LoginOutOfOrder("the page is older than the login: load it again")


class Visitors:
    """Knows the users, their sessions and their rights."""

    def __init__(
        self,
        listener: Listener,
        security: Security,
        path: Path,
        sessions: Sessions,
        attempts: Attempts,
        audit: Audit,
        *,
        login_first: bool,
        anonymous: bool,
        wall_ms: Callable[[], int],
    ) -> None:
        """
        Args:
            listener: where visitors come from.
            path: the file of users and rules.
            login_first: nothing may be seen before a login.
            anonymous: otherwise something may be seen also when there are users.
            wall_ms: the time since 1970, by which users expire.
        """
        self._wall_ms = wall_ms
        self.admit(login_first=login_first, anonymous=anonymous)
        self._listener, self._path = listener, path
        self._sessions, self._attempts, self.audit = sessions, attempts, audit
        self._authorizer = Authorizer(
            security.authorizer, security.super_users, without_acl=security.allow_everyone_if_no_acl
        )
        self._state = SecurityState()
        self._credentials = Credentials({}, b"")
        self._stamp: tuple[int, int, int] | None = None
        self._checks = ThreadPoolExecutor(CHECKS_MAX, "passwords", lower_priority_of_thread, (NICENESS,))
        self._waiting: Counter[str] = Counter()
        """Passwords that wait or are compared, by address."""

    def admit(self, *, login_first: bool, anonymous: bool) -> None:
        """Decide anew what is seen without a login."""
        self._login_first, self._anonymous = login_first, anonymous

    @property
    def has_users(self) -> bool:
        """Whether anybody can log in."""
        self._refresh()
        return bool(self._state.users)

    def find(self, token: str, peer: str) -> Visitor | None:
        """Who is asking, by the token of the cookie; None for who may not see anything before a login."""
        self._refresh()
        session = self._sessions.find(token, self._standing_of) if token else None
        if session is None and (self._login_first or (self._state.users and not self._anonymous)):
            return None
        principal = principal_of(session.user) if session else ANONYMOUS
        return Visitor(self._authorizer.access(Origin(self._listener, peer, principal)), peer, session)

    async def log_in(self, user: str, password: str, peer: str) -> str:
        """Begin a session, and return its token.

        Raises:
            BadCredentials: wrong password or unknown user.
            UserLocked: the password is right.
            BufferFull: too many passwords are tried; the message says when to try again.
        """
        secret = password.encode("utf-8", "replace")
        if not 0 < len(user) <= USER_CHARACTERS_MAX or not 0 < len(secret) <= PASSWORD_BYTES_MAX:
            raise BadCredentials("a login has a user and a password")
        address = peer.rpartition(":")[0].strip("[]")
        wait_s = self._attempts.wait_s(user, address)
        if wait_s or not self._has_room(user, address):
            self.audit.refused(Reason.THROTTLED, principal_of(user), peer, what="console")
            raise BufferFull(f"too many logins: try again in {round(wait_s) or 1} s")
        self._refresh()
        verifiers = self._state.users.get(user, {})
        check = PlainCheck(user, secret, *self._credentials.find_any(user))
        self._waiting[site_of(address)] += 1
        try:
            right = await asyncio.get_running_loop().run_in_executor(self._checks, check.run)
        finally:
            self._waiting -= Counter([site_of(address)])
        self._refresh()
        if not right or self._state.users.get(user, {}) != verifiers:  # deleted or changed meanwhile
            self._attempts.failed(user, address)
            self.audit.refused(Reason.BAD_CREDENTIALS, principal_of(user), peer, what="console")
            raise BadCredentials("wrong password or unknown user")
        standing = self._standing_of(user)
        if refusal := self._state.accounts.get(user, OPEN).refusal(self._wall_ms()):
            self.audit.refused(Reason.LOCKED, principal_of(user), peer, what="console")
            raise UserLocked(refusal)
        self._attempts.succeeded(user, address)
        self.audit.logged_in(principal_of(user), peer, listener="console", mechanism=check.mechanism)
        return self._sessions.begin(user, standing)[0]

    def _has_room(self, user: str, address: str) -> bool:
        """Whether one more password may wait."""
        waiting = self._waiting.total()
        if self._attempts.is_known(user, address):
            return waiting < WAITING_MAX
        return waiting < WAITING_MAX - WAITING_RESERVED and self._waiting[site_of(address)] < WAITING_OF_ADDRESS_MAX

    def log_out(self, token: str) -> None:
        self._sessions.end(token)

    def _standing_of(self, user: str) -> UserStanding:
        account = self._state.accounts.get(user, OPEN)
        refused = account.refusal(self._wall_ms())
        return UserStanding({} if refused else self._state.users.get(user, {}), account.ended)

    def _refresh(self) -> None:
        """Read the file again if it has changed.  One that cannot be read leaves the last state in force."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            return
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._state = security_file.load(self._path)
        except StorageFault as error:
            logger.error("%s", error)
            return
        self._credentials = Credentials(self._state.users, self._state.secret)
        self._authorizer.enforce(self._state)
