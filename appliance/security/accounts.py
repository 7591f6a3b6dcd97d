"""What is decided of a user beside passwords and rights: locked, expired, thrown out.

An account has the name of the user, or of whoever logs in with a certificate or a token.  It is part of the security
state, so every worker of every broker learns of a change (``processes/network/revocations.py``).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

EXPIRY_MS_MAX: Final = 253_370_764_800_000
"""The year 9999, the last that texts of times have."""


class Account(Struct, frozen=True):
    """``ended`` gets a new text each time that all connections of the user are ended."""

    locked: bool = False
    expires_ms: int = 0
    """Since 1970; 0: never."""
    ended: str = ""

    def refusal(self, now_ms: int) -> str:
        """Why the user may not be connected; "": nothing is against it."""
        if self.locked:
            return "this user is locked"
        if self.has_expired(now_ms):
            return "this user has expired"
        return ""

    def has_expired(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms


OPEN = Account()
"""That of a user of whom nothing is decided; it is not stored."""
