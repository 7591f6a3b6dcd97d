"""Names the users of this host, who come through a Unix socket: the kernel says which user a client is."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache
from typing import Final

USERS_MAX: Final = 1_000
"""Names that are remembered: to find one may take a question to another host."""


@lru_cache(USERS_MAX)
def user_of(uid: int) -> str:
    """The name of a user; its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_administrator(uid: int) -> bool:
    """Whether a user is one of :func:`administrators`."""
    return uid in (0, os.geteuid())


def administrators() -> frozenset[str]:
    """Who may do everything through a Unix socket: root, and the user that the service runs as."""
    return frozenset({user_of(0), user_of(os.geteuid())})
