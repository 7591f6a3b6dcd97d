"""A connection of a network worker, beyond what all connections are (:mod:`appliance.processes.connection`).

Order: requests take effect in the order in which they came.  A request starts when all before it have taken effect;
until then it stays in the inbox, and nothing more is read (``stalled``).  Two kinds of requests may overlap with others
of their kind: produce requests, which keep their order in each partition, and commits.  ``started`` counts started
requests that have not taken effect, acks=0 included.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...addresses import Listener
from ...connected_clients import ClientName
from ...security.acls import Access
from ...security.login_exchange import Exchange
from ...security.principals import ANONYMOUS, Origin
from ...security.quotas import Bucket
from ...shared.counters import ListenerCounters
from ...wire.requests import Codec, Request
from ...wire.transport import Transport
from ..connection import Connection, PendingReply, Traffic
from .inbox import Inbox
from .turn import Turn


class Meter(NamedTuple):
    """The buckets of one client; None: no limit.  ``fetch_bytes_max``: of record batches in a reply to it."""

    requests: Bucket | None
    bytes_in: Bucket | None
    bytes_out: Bucket | None
    fetch_bytes_max: int


class ClientSession(Traffic):
    """The session of one connection.

    ``gated``: only ApiVersions, hello and the messages of a login may start; ``deadline_ms``: until when the client has
    to log in, or how long its session lasts, 0: for ever; ``login``: the one in progress; ``mechanism``: that of the
    last login, "" before.
    """

    __slots__ = (
        "access",
        "administrator",
        "client_id",
        "client_name",
        "counted",
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
        "since_ms",
        "software",
    )

    def __init__(
        self,
        principal: str = ANONYMOUS,
        login_by_ms: int = 0,
        host: str = "",
        administrator: bool = False,
        since_ms: int = 0,
    ) -> None:
        """
        Args:
            principal: who the client is without a login.
            login_by_ms: until when it has to log in; 0: it need not.
            host: its address without the port; "" at a Unix socket.
            administrator: it has places of its own, see ``acceptor``.
            since_ms: when it has connected.
        """
        super().__init__()
        self.host, self.administrator, self.since_ms = host, administrator, since_ms
        self.client_id: str | None = None
        """What it calls itself; None before its first request."""
        self.software = ""
        """What ApiVersions has said of it (KIP-511)."""
        self.client_name: ClientName | None = None
        """What it is counted as; None: it says something else of itself since it was counted."""
        self.counted = (0, 0)
        """Its bytes in and out when they were last counted (``client_counts``)."""
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

    def log_in(self, principal: str, mechanism: str, deadline_ms: int) -> None:
        """Note that the client has logged in, until ``deadline_ms`` (0: without an end)."""
        self.become(principal)
        self.mechanism, self.deadline_ms = mechanism, deadline_ms
        self.login, self.gated = None, False

    def become(self, principal: str) -> None:
        """The client is this one from now on; what it may do is asked anew."""
        self.principal, self.access, self.client_name = principal, None, None

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


if TYPE_CHECKING:
    from .writer_link import WriterLink

TURNS_TO_HAND_OVER: Final = 32
HANDOFF_WINDOW_MS: Final = 1_000
"""A connection is handed over after TURNS_TO_HAND_OVER turns in this time with produce requests and nothing else."""
HANDOFF_RETRY_MS: Final = 30_000
"""When to try again with a connection whose handoff was cancelled, or whose frames do not fit a writer's buffer."""


class HandoffCount:
    """Counts the turns in which a connection only produced to one partition, always with the same acks.

    ``alone``: nothing that is outstanding is older than that.
    """

    __slots__ = ("_not_before_ms", "_turn_ns", "acks", "alone", "link", "since_ms", "turns")

    def __init__(self) -> None:
        self.link: WriterLink | None = None
        self.acks = self.turns = self.since_ms = 0
        self.alone = False
        self._turn_ns = self._not_before_ms = 0

    def is_due(self, link: WriterLink, acks: int, turn: Turn, alone: bool) -> bool:
        """Note a produce request, and its turn once; return whether to hand the connection over.

        ``alone``: nothing else is outstanding.
        """
        if link is not self.link or acks != self.acks:
            self.link, self.acks, self.alone, self.turns = link, acks, False, 0
        if not self.turns or turn.now_ms - self.since_ms > HANDOFF_WINDOW_MS:
            self.turns, self.since_ms = 0, turn.now_ms
        self.alone = self.alone or alone
        if turn.now_ns != self._turn_ns:
            self._turn_ns = turn.now_ns
            self.turns += 1
        return self.turns >= TURNS_TO_HAND_OVER and turn.now_ms >= self._not_before_ms

    def try_later(self, now_ms: int) -> None:
        """Let the connection stay here for HANDOFF_RETRY_MS: its handoff was cancelled, or it came back at once."""
        self._not_before_ms = now_ms + HANDOFF_RETRY_MS


class Pending(PendingReply):
    """A request that waits for its reply.  ``results``: of the parts of a produce request, ``missing`` as many yet."""

    __slots__ = ("connection", "missing", "results")

    def __init__(self, connection: WorkerConnection, request: Request, count: int = 1) -> None:
        # Not through the base: that costs a fiftieth of a small request.
        self.request, self.count, self.since_ns = request, count, connection.read_ns
        self.reply = None
        self.connection = connection
        self.results: list[Any] = []
        self.missing = 0


class WorkerConnection(Connection[Inbox, Pending]):
    """A connection that a network worker serves, with what decides whether its next request may start."""

    __slots__ = (
        "active_ms",
        "announcements_read",
        "close_when_sent",
        "hand_over_to",
        "handoff_count",
        "listener",
        "memory_since_ms",
        "overlap",
        "peer",
        "read_ns",
        "session",
        "settling",
        "stalled",
        "stalled_overlap",
        "started",
        "warm_since_ms",
    )

    def __init__(
        self,
        transport: Transport,
        listener: Listener,
        peer: str,
        codec: Codec,
        inbox: Inbox,
        session: ClientSession,
        counters: ListenerCounters,
    ) -> None:
        """``listener`` has the address that the client connected to."""
        super().__init__(transport, codec, inbox, counters, session)
        self.listener, self.peer, self.session = listener, peer, session
        self.started = 0
        self.overlap = ""
        """The kind of overlap of the requests that have started."""
        self.stalled = False
        self.stalled_overlap = ""
        self.announcements_read = False
        """Whether the supervisor's messages have been read for the stalled request."""
        self.warm_since_ms = 0
        """Since when, or later, ``warm_bytes`` are known to be in memory."""
        self.active_ms = self.read_ns = 0
        self.memory_since_ms = 0
        """Since when it waits for memory (``memory_waits``); 0: it does not."""
        self.close_when_sent = False
        """No request starts any more."""
        self.handoff_count = HandoffCount()
        self.hand_over_to: WriterLink | None = None
        self.settling = False
        """It is not read until nothing is outstanding, since it will be handed over then."""

    @property
    def origin(self) -> Origin:
        """Where its requests come from, for the coordinator."""
        return Origin(self.listener, self.peer, self.session.principal)

    # ---- order

    def may_start(self, overlap: str) -> bool:
        """Whether a request takes effect after all before it if it starts now."""
        return not self.started or (overlap != "" and overlap == self.overlap)

    def begin_request(self, pending: Pending) -> None:
        """Note a started request that wants a reply."""
        self.expect(pending)
        self.started += 1
        self.overlap = pending.request.overlap

    def stall(self, request: Request, position: int) -> None:
        """Let a request wait, and all after it, until it may start."""
        super().stall(request, position)
        self.stalled, self.stalled_overlap = True, request.overlap

    def wait_for_memory(self, now_ms: int) -> None:
        """Note since when it does, unless it does already."""
        self.memory_since_ms = self.memory_since_ms or now_ms

    @property
    def may_move(self) -> bool:
        """Whether nothing is outstanding: see :mod:`appliance.processes.handoff`."""
        return not (self.is_waiting or self.out)

    @property
    def is_waiting(self) -> bool:
        """Whether its client waits for us: for a reply, for a request to start, for memory."""
        return bool(self.started or self.requests or self.stalled or self.inbox.starved or self.inbox.parked)

    def cancel_handoff(self) -> None:
        self.handoff_count.link = None  # it begins again
        self.hand_over_to = None
        self.settling = False

    def give_up(self, kind: type) -> None:
        """Forget the first unanswered request of this kind, and all after it: their replies could not be sent."""
        kept = takewhile(
            lambda pending: pending.reply is not None or not isinstance(pending.request, kind), self.requests
        )
        self.requests = deque(kept)
        self.answered = self.taken - sum(pending.count for pending in self.requests)
