"""Names who a request comes from, as Kafka does: ``User:alice``; and roles, whose rules are like those of a user."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..addresses import Listener

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection without a login."""
USER_CHARACTERS_MAX: Final = 249
BROKERS: Final = "Broker:"
"""What the principals of brokers of this cluster begin with, such as ``Broker:2``: no user is called that."""
SEPARATOR: Final = ";"
"""Between super users: the name in a certificate may have commas."""
USERS: Final = "User:"
"""What the principals of all who log in begin with."""
ROLES: Final = "Role:"
"""What the principals of roles begin with: rules have them, and nobody logs in as one."""


def principal_of(user: str) -> str:
    return f"{USERS}{user}"


def principal_of_role(role: str) -> str:
    return f"{ROLES}{role}"


def role_of_principal(principal: str) -> str:
    """The role whose principal it is; "": that of no role."""
    return principal.removeprefix(ROLES) if principal.startswith(ROLES) else ""


def principal_of_broker(broker_id: str) -> str:
    return f"{BROKERS}{broker_id}"


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
