"""Keeps the sessions of visitors who have logged in, and bounds how often passwords can be tried.

The browser has a random token in a cookie (HttpOnly, SameSite=Strict); here is only its hash.  A request that changes
something brings the session's CSRF token in a header, which pages of other origins cannot read.  Sessions live in the
memory of this process: they end with it, when their time is over, with a change of the user's password, and when the
user is locked or thrown out.

Not thread-safe: everything runs in the loop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..addresses import site_of
from ..security.scram import Verifier

SESSIONS_MAX: Final = 1_000
"""The oldest one ends when there are more."""
SESSION_S_DEFAULT: Final = 12 * 3_600
TOKEN_BYTES: Final = 32

ATTEMPTS_S: Final = 60.0
FAILURES_MAX: Final = 10
FAILURES_OF_ADDRESS_MAX: Final = 30
"""Failed logins per ATTEMPTS_S from one address: those of one user, and those of all users together."""
COUNTED_MAX: Final = 10_000
KNOWN_MAX: Final = 1_000


class UserStanding(NamedTuple):
    """What a session depends on: the user's verifiers, and which order to end connections was the last."""

    verifiers: Mapping[str, Verifier]
    ended: str = ""


@dataclass(frozen=True, slots=True)
class VisitorSession:
    """One login.  ``standing``: that of the user then; another one ends the session."""

    user: str
    standing: UserStanding
    csrf: str
    until_s: float


class Sessions:
    def __init__(self, clock: Callable[[], float], lifetime_s: float = SESSION_S_DEFAULT) -> None:
        self._clock, self._lifetime_s = clock, lifetime_s
        self._by_hash: OrderedDict[bytes, VisitorSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, user: str, standing: UserStanding) -> tuple[str, VisitorSession]:
        """Begin a session; returns the token for the cookie."""
        token, csrf = secrets.token_urlsafe(TOKEN_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        session = VisitorSession(user, standing, csrf, self._clock() + self._lifetime_s)
        self._by_hash[_hash(token)] = session
        while len(self._by_hash) > SESSIONS_MAX:
            self._by_hash.popitem(last=False)
        return token, session

    def find(self, token: str, standing_of: Callable[[str], UserStanding]) -> VisitorSession | None:
        """The session of a token; None when it is over.  ``standing_of`` returns that of a user now."""
        key = _hash(token)
        session = self._by_hash.get(key)
        if session is None:
            return None
        if session.until_s <= self._clock() or standing_of(session.user) != session.standing:
            del self._by_hash[key]
            return None
        return session

    def end(self, token: str) -> None:
        self._by_hash.pop(_hash(token), None)


def is_csrf(session: VisitorSession, token: str) -> bool:
    """Whether a request brings the session's CSRF token."""
    return hmac.compare_digest(session.csrf.encode(), token.encode("utf-8", "replace"))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


class Attempts:
    """Counts failed logins in windows of ATTEMPTS_S, by user and address: who guesses keeps nobody else out.

    A user who has logged in from an address is known there: such a login waits before all others.

    Bounds: COUNTED_MAX counts and KNOWN_MAX known pairs; the oldest are forgotten.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()
        self._failures: OrderedDict[tuple[str, str], int] = OrderedDict()
        """By address and user; with the user "" those of an address together."""
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def wait_s(self, user: str, address: str) -> float:
        """How long this login has to wait, in seconds; 0 if it may be tried."""
        now_s, site = self._clock(), site_of(address)
        if now_s - self._since_s >= ATTEMPTS_S:
            self._since_s = now_s
            self._failures.clear()
        of_user, of_address = self._failures.get((site, user), 0), self._failures.get((site, ""), 0)
        if of_user < FAILURES_MAX and (of_address < FAILURES_OF_ADDRESS_MAX or self.is_known(user, address)):
            return 0.0
        return self._since_s + ATTEMPTS_S - now_s

    def is_known(self, user: str, address: str) -> bool:
        return (site_of(address), user) in self._known

    def failed(self, user: str, address: str) -> None:
        site = site_of(address)
        for key in ((site, user), (site, "")):
            self._failures[key] = self._failures.get(key, 0) + 1
            self._failures.move_to_end(key)
        while len(self._failures) > COUNTED_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, user: str, address: str) -> None:
        key = site_of(address), user
        self._failures.pop(key, None)
        self._known[key] = None
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
