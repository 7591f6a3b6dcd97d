"""Defines the arguments and answers of the handlers of forwarded Kafka requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from ...addresses import Listener
from ...errors import ApplianceError, Unavailable
from .codes import Code


class Call(NamedTuple):
    """A forwarded request.  ``request`` has kafka-python's field names; a field that the version lacks has its default.

    ``listener`` is the one that the client connected to, ``peer`` the client's "host:port".
    """

    request: Any
    version: int
    correlation_id: int
    client_id: str
    listener: Listener
    peer: str

    @property
    def client_host(self) -> str:
        """The peer's address as Kafka's tools show it: "/10.0.0.1"."""
        return "/" + self.peer.rpartition(":")[0].strip("[]")


Answer = Mapping[str, Any] | bytes
"""The fields of the response by Kafka's names in snake case; or, where speed matters, the whole reply frame."""

Handler = Callable[[Call], Awaitable[Answer]]


def retriable(error: ApplianceError, while_unavailable: Code) -> int:
    """The code for an error.  Temporary errors get ``while_unavailable``, on which clients of this API retry."""
    return while_unavailable if isinstance(error, Unavailable) else error.code
