"""Finds out who sent a request, and what this visitor may see and change::

    visitor          console.listen is             sees                           changes
    not logged in    loopback                      what User:ANONYMOUS may see    nothing
    not logged in    reached by other hosts        nothing                        nothing
    logged in        either                        what the user may see          what the user may change, with the
                                                                                  CSRF token of the session

What a user may do is decided by the access rules of ``security.authorizer``, for the console as for a listener.
Without an authorizer there are no rules: all visitors who see anything see everything, and those who are logged in
change everything.  An address that other hosts reach needs ``security.allow_insecure``, because the page has no TLS.

Users, verifiers of passwords and access rules come from the file that the coordinator stores
(``security/security_file``).  It is read again when it has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ..addresses import Listener
from ..errors import BadCredentials, BufferFull, ClusterNotPermitted, LoginOutOfOrder, StorageFault
from ..security import security_file
from ..security.acls import CLUSTER_NAME, Access, Operation, ResourceType, word
from ..security.audit_log import Audit, Reason
from ..security.authorizer import Authorizer
from ..security.configuration import Security
from ..security.credentials import Credentials
from ..security.login_exchange import PlainCheck
from ..security.principals import ANONYMOUS, USER_CHARACTERS_MAX, Origin, principal_of
from ..security.scram import PASSWORD_BYTES_MAX, Verifier
from ..security.security_state import SecurityState
from .console_sessions import Attempts, Session, Sessions, is_csrf

logger = logging.getLogger(__name__)

CHECKS_MAX: Final = 2
"""Passwords that are compared at a time: each takes some milliseconds of a core."""
WAITING_MAX: Final = 16


class Visitor(NamedTuple):
    """Who is asking.  ``session`` is None for who is not logged in."""

    access: Access
    peer: str
    session: Session | None = None

    def check_see(self, operation: Operation, resource: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raises NotPermitted: the visitor may not see it."""
        if not self.access.may(operation, resource, name):
            advice = "" if self.session else ": log in as a user who may"
            raise ClusterNotPermitted(f"not permitted: {word(operation)} on {word(resource).lower()} {name!r}{advice}")

    def check_change(self, csrf: str) -> None:
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
        self, listener: Listener, security: Security, path: Path, sessions: Sessions, attempts: Attempts, audit: Audit
    ) -> None:
        """``path``: the file of users and rules.  ``listener``: where visitors come from."""
        self.login_first = False
        """Whether nothing may be seen before a login."""
        self._listener, self._path = listener, path
        self._sessions, self._attempts, self.audit = sessions, attempts, audit
        self._authorizer = Authorizer(
            security.authorizer, security.super_users, without_acl=security.allow_everyone_if_no_acl
        )
        self._state = SecurityState()
        self._credentials = Credentials({}, b"")
        self._stamp: tuple[int, int, int] | None = None
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._waiting = 0

    @property
    def has_users(self) -> bool:
        """Whether anybody can log in."""
        self._refresh()
        return bool(self._state.users)

    def find(self, token: str, peer: str) -> Visitor | None:
        """Who is asking, by the token of the cookie; None for who may not see anything before a login."""
        self._refresh()
        session = self._sessions.find(token, self._verifiers_of) if token else None
        if session is None and self.login_first:
            return None
        principal = principal_of(session.user) if session else ANONYMOUS
        return Visitor(self._authorizer.access(Origin(self._listener, peer, principal)), peer, session)

    async def log_in(self, user: str, password: str, peer: str) -> str:
        """Begin a session, and return its token.

        Raises:
            BadCredentials: wrong password or unknown user.
            BufferFull: too many passwords are tried; the message says when to try again.
        """
        wait_s = self._attempts.admit(peer.rpartition(":")[0])
        if wait_s or self._waiting >= WAITING_MAX:
            self.audit.refused(Reason.THROTTLED, "", peer, what="console")
            raise BufferFull(f"too many logins: try again in {round(wait_s) or 1} s")
        secret = password.encode("utf-8", "replace")
        if not 0 < len(user) <= USER_CHARACTERS_MAX or not 0 < len(secret) <= PASSWORD_BYTES_MAX:
            raise BadCredentials("a login has a user and a password")
        self._refresh()
        check = PlainCheck(user, secret, *self._credentials.find_any(user))
        self._waiting += 1
        try:
            async with self._checks:
                right = await asyncio.to_thread(check.run)
        finally:
            self._waiting -= 1
        if not right:
            self.audit.refused(Reason.BAD_CREDENTIALS, principal_of(user), peer, what="console")
            raise BadCredentials("wrong password or unknown user")
        self.audit.logged_in(principal_of(user), peer, listener="console", mechanism=check.mechanism)
        return self._sessions.begin(user, self._verifiers_of(user))[0]

    def log_out(self, token: str) -> None:
        self._sessions.end(token)

    def _verifiers_of(self, user: str) -> Mapping[str, Verifier]:
        return self._state.users.get(user, {})

    def _refresh(self) -> None:
        """Read the file again if it has changed.  One that cannot be read leaves the last state in force."""
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
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
        self._authorizer.take(self._state.acls)
