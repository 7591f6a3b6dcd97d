"""Who a connection belongs to, and until when.  ``logging_in`` has its states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...security.acls import Access
from ...security.login_exchange import Exchange
from ...security.principals import ANONYMOUS

if TYPE_CHECKING:
    from .metering import Meter


class ClientSession:
    """The session of one connection.

    ``gated``: only ApiVersions, hello and the messages of a login may start; ``deadline_ms``: until when the client has
    to log in, or how long its session lasts, 0: for ever; ``login``: the one in progress; ``mechanism``: that of the
    last login, "" before.
    """

    __slots__ = (
        "access",
        "administrator",
        "deadline_ms",
        "gated",
        "held",
        "host",
        "login",
        "mechanism",
        "meter",
        "metered",
        "muted_until_ms",
        "principal",
    )

    def __init__(
        self, principal: str = ANONYMOUS, login_by_ms: int = 0, host: str = "", administrator: bool = False
    ) -> None:
        """
        Args:
            principal: who the client is without a login.
            login_by_ms: until when it has to log in; 0: it need not.
            host: its address without the port; "" at a Unix socket.
            administrator: it has places of its own, see ``accepting``.
        """
        self.host, self.administrator = host, administrator
        self.principal, self.mechanism = principal, ""
        self.gated = bool(login_by_ms)
        self.deadline_ms = login_by_ms
        self.login: Exchange | None = None
        self.access: Access | None = None
        """What its principal may do, by the rules of its last request."""
        self.meter: Meter | None = None
        """The buckets of its client, None without a limit; those of ``metered``: quotas, principal, client id."""
        self.metered: tuple[object, str, bytes] | None = None
        self.muted_until_ms = 0
        """Until when it is throttled; 0: it is not."""
        self.held = False
        """It is not read, and no request of it starts: it is throttled, or the rules have not come yet."""

    def begin(self, principal: str, mechanism: str, deadline_ms: int) -> None:
        """The client has logged in."""
        self.become(principal)
        self.mechanism, self.deadline_ms = mechanism, deadline_ms
        self.login, self.gated = None, False

    def become(self, principal: str) -> None:
        """The client is this one from now on; what it may do is asked anew."""
        self.principal, self.access = principal, None

    def is_over(self, now_ms: int) -> bool:
        """Whether its time, to log in or of its session, is over."""
        return 0 < self.deadline_ms < now_ms

    def expire(self) -> None:
        """The session is over: the client has to log in again."""
        self.gated, self.deadline_ms = True, 0

    @property
    def ended(self) -> bool:
        """Whether the client was logged in, and is not any more."""
        return self.gated and self.mechanism != ""
