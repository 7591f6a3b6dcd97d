"""Names who a request comes from, as Kafka does: ``User:alice``; and roles, whose rules are like those of a user."""

from __future__ import annotations

import unicodedata
from typing import Final, NamedTuple

from ..addresses import Listener

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection without a login."""
USER_CHARACTERS_MAX: Final = 249
BROKER_PREFIX: Final = "Broker:"
"""The prefix of principals of brokers of this cluster, such as ``Broker:2``: no user has one."""
SEPARATOR: Final = ";"
"""Between super users: the name in a certificate may have commas."""
USERS: Final = "User:"
"""The prefix of principals of all who log in."""
ROLES: Final = "Role:"
"""The prefix of principals of roles: rules name them, and nobody logs in as one."""


def name_fault(user: str) -> str:
    """Why nobody may be called so; "" if somebody may.

    Names that look alike would be taken for each other, and one that ends in ``*`` for all that begin so.
    """
    if not 0 < len(user) <= USER_CHARACTERS_MAX or not user.isprintable():
        return f"a user's name has 1 to {USER_CHARACTERS_MAX} printable characters, not {user!r:.300}"
    if user != user.strip() or user.endswith("*"):
        return f"a user's name neither begins nor ends with a blank, nor ends with *: {user!r:.300}"
    if not unicodedata.is_normalized("NFC", user):
        return f"a user's name has composed letters (Unicode's form NFC): {unicodedata.normalize('NFC', user)!r:.300}"
    return ""


def login_fault(user: str) -> str:
    """Why nobody may log in under a name; "" if somebody may."""
    if principal_of(user) == ANONYMOUS:
        return f"{user} is everybody who need not log in"
    return name_fault(user)


def principal_of(user: str) -> str:
    return f"{USERS}{user}"


def principal_of_role(role: str) -> str:
    return f"{ROLES}{role}"


def role_of_principal(principal: str) -> str:
    """The role whose principal it is; "": that of no role."""
    return principal.removeprefix(ROLES) if principal.startswith(ROLES) else ""


def principal_of_broker(broker_id: str) -> str:
    return f"{BROKER_PREFIX}{broker_id}"


def parse_super_users(text: str) -> frozenset[str]:
    """The principals that ``security.super_users`` names."""
    return frozenset(filter(None, map(str.strip, text.split(SEPARATOR))))


def user_of_principal(principal: str) -> str:
    return principal.partition(":")[2]


class Origin(NamedTuple):
    """Where a request comes from: the listener that the client connected to, the client's "host:port", who it is."""

    listener: Listener
    peer: str
    principal: str = ANONYMOUS

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self.peer.rpartition(":")[0].strip("[]")
