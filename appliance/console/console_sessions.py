"""Keeps the sessions of visitors who have logged in, and bounds how often passwords can be tried.

The browser has a random token in a cookie (HttpOnly, SameSite=Strict); here is only its hash.  A request that changes
something brings the session's CSRF token in a header, which pages of other origins cannot read.  Sessions live in the
memory of this process: they end with it, when their time is over, and with a change of the user's password.

Not thread-safe: everything runs in the loop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..security.scram import Verifier

SESSIONS_MAX: Final = 1_000
"""The oldest one ends when there are more."""
SESSION_S_DEFAULT: Final = 12 * 3_600
TOKEN_BYTES: Final = 32

ATTEMPTS_S: Final = 60.0
ATTEMPTS_OF_ADDRESS_MAX: Final = 10
ATTEMPTS_MAX: Final = 100
"""Logins per ATTEMPTS_S, from one address and from all."""
ADDRESSES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Session:
    """One login.  ``verifiers``: those of the user then; other ones end the session."""

    user: str
    verifiers: Mapping[str, Verifier]
    csrf: str
    until_s: float


class Sessions:
    def __init__(self, clock: Callable[[], float], lifetime_s: float = SESSION_S_DEFAULT) -> None:
        self._clock, self._lifetime_s = clock, lifetime_s
        self._by_hash: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, user: str, verifiers: Mapping[str, Verifier]) -> tuple[str, Session]:
        """Begin a session; returns the token for the cookie."""
        token, csrf = secrets.token_urlsafe(TOKEN_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        session = Session(user, verifiers, csrf, self._clock() + self._lifetime_s)
        self._by_hash[_hash(token)] = session
        while len(self._by_hash) > SESSIONS_MAX:
            self._by_hash.popitem(last=False)
        return token, session

    def find(self, token: str, verifiers_of: Callable[[str], Mapping[str, Verifier]]) -> Session | None:
        """The session of a token; None when it is over.  ``verifiers_of`` returns those that a user has now."""
        key = _hash(token)
        session = self._by_hash.get(key)
        if session is None:
            return None
        if session.until_s <= self._clock() or verifiers_of(session.user) != session.verifiers:
            del self._by_hash[key]
            return None
        return session

    def end(self, token: str) -> None:
        self._by_hash.pop(_hash(token), None)


def is_csrf(session: Session, given: str) -> bool:
    """Whether a request brings the session's CSRF token."""
    return hmac.compare_digest(session.csrf.encode(), given.encode("utf-8", "replace"))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


class Attempts:
    """Counts logins by address, in windows of ATTEMPTS_S; success counts, too, since it costs as much."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    def admit(self, address: str) -> float:
        """Count an attempt; 0 if it may be made, else how long to wait, in seconds."""
        now_s = self._clock()
        if now_s - self._since_s >= ATTEMPTS_S:
            self._since_s, self._total = now_s, 0
            self._counts.clear()
        count = self._counts.get(address, 0)
        if count >= ATTEMPTS_OF_ADDRESS_MAX or self._total >= ATTEMPTS_MAX or len(self._counts) >= ADDRESSES_MAX:
            return self._since_s + ATTEMPTS_S - now_s
        self._counts[address] = count + 1
        self._total += 1
        return 0.0
