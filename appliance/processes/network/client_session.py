"""Who a connection belongs to, and until when."""

from __future__ import annotations

from ...security.principals import ANONYMOUS


class ClientSession:
    """The login of one connection.

    ``gated``: only ApiVersions, hello and the messages of a login may start.
    """

    __slots__ = ("expires_ms", "gated", "principal")

    def __init__(self, principal: str = ANONYMOUS, gated: bool = False) -> None:
        self.principal = principal
        self.gated = gated
        self.expires_ms = 0
        """When the client has to log in again; 0: never."""
