"""Names who a request comes from, as Kafka does: ``User:alice``."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..addresses import Listener

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection without a login."""
USER_CHARACTERS_MAX: Final = 249
BROKERS: Final = "Broker:"
"""What the principals of brokers of this cluster begin with, such as ``Broker:2``: no user is called that."""


def principal_of(user: str) -> str:
    return f"User:{user}"


def principal_of_broker(broker_id: str) -> str:
    return f"{BROKERS}{broker_id}"


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
