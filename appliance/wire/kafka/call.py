"""One forwarded Kafka request as its handler sees it, and the answer's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from ...errors import ApplianceError, Unavailable
from .codes import Code


class Call(NamedTuple):
    """``request`` has kafka-python's field names; a field that the version lacks reads as its default.

    ``listener`` is the "host:port" of ours that the client came to, ``peer`` its own.
    """

    request: Any
    version: int
    correlation_id: int
    client_id: str
    listener: str
    peer: str

    @property
    def client_host(self) -> str:
        """The peer's address as Kafka's tools show it: "/10.0.0.1"."""
        return "/" + self.peer.rpartition(":")[0].strip("[]")


Answer = Mapping[str, Any] | bytes
"""The response's fields by Kafka's names in snake case, or the whole reply frame where speed matters."""

Handler = Callable[[Call], Awaitable[Answer]]


def retriable(error: ApplianceError, while_unavailable: Code) -> int:
    """The code for an error; what passes by itself gets ``while_unavailable``, on which this API's clients retry."""
    return while_unavailable if isinstance(error, Unavailable) else error.code
