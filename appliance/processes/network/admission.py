"""Admits requests: asks the rights of their client, and whether it uses more than its quotas, before they start.

One place decides for all requests of clients that are logged in or need no login: the handlers stand behind its
questions (:meth:`Admission.fill_handlers`).  Before a login, ``Connections`` lets nothing else through.  Parts of a
request that the client has no right to are noted in it (``denied``), and the handler answers them with
TOPIC_AUTHORIZATION_FAILED.  What the coordinator answers it checks itself, by the same rules.

The rules come with the snapshot (:mod:`appliance.processes.snapshot`).  Until it has come, no request starts: without
rules, clients would be refused what they may do, and who is locked would not be known, with or without an authorizer.
When the rules change, every connection gets its access anew at its
next request, and connections that writers serve come back, since a writer asks nothing.  A fetch that waits was
admitted before, and is answered.

Without an authorizer and without quotas the handlers stand alone from then on, and this costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final
from weakref import WeakValueDictionary

from ...security.acls import UNRESTRICTED, Access, Decisions, Operation, ResourceType
from ...security.api_rights import How
from ...security.audit_log import Reason
from ...security.authorizer import Authorizer
from ...security.principals import user_of_principal
from ...security.quotas import BURST_MS, BYTES_IN, BYTES_OUT, REPORT_MS, REQUESTS, Bucket, Limit, Quota, Quotas, Sharers
from ...security.security_state import SecurityState
from ...wire.kafka.apis import APIS
from ...wire.requests import Fetch, FileRange, Offsets, Produce, Request
from ..connection import Starter
from ..messages import UsageRow
from .connections import Connections
from .turn import Turn
from .worker_connection import Meter, Pending, WorkerConnection

OWING_MAX: Final = 10_000
KEPT_OF_OWING: Final = 9 * OWING_MAX // 10
"""To find those that are forgotten takes some milliseconds: so they are a tenth at once."""
TOPIC_DECISIONS: Final = {
    Operation.WRITE: attrgetter("writable"),
    Operation.READ: attrgetter("readable"),
    Operation.DESCRIBE: attrgetter("describable"),
}
"""Where an access keeps the decisions about a right to topics: asked for each request, so they cost one attribute."""


def _decisions_of(kind: type[Produce | Fetch | Offsets]) -> Callable[[Access], Decisions]:
    """What a request to topics asks of an access, by the row of its API, which its native kin shares."""
    (operation,) = (right.operation for right in APIS[kind.api].rights if right[1:] == (ResourceType.TOPIC, How.EACH))
    return TOPIC_DECISIONS[operation]


DECISIONS_OF: Final[Mapping[type[Request], Callable[[Access], Decisions]]] = {
    kind: _decisions_of(kind) for kind in (Produce, Fetch, Offsets)
}


class Meters:
    """Meters what clients use, and throttles those that use more than their quotas.

    A limit has a bucket (:mod:`appliance.security.quotas`), which the clients that share it take from: requests,
    bytes that they produce, bytes that they fetch.  A request is served also when it takes more than there is.  Its
    reply tells the client for how long it is throttled, and its connection is *muted* for that long: it is not
    read, and no request of it starts.  So only the client waits, and the worker never does.

    The debt is that of all clients that share the limit, on whatever connection: a request that would add to it
    does not start, and its connection is muted, until it is over.  So connections of one client take turns, and
    whoever connects again finds the debt that it has left.  A debt is remembered when its last connection is gone,
    until the bucket is full again; a changed quota does not end it.  Requests that take nothing from an empty
    bucket go on.

    Workers tell each other what their clients have taken, every ``REPORT_MS``, through the coordinator; each of
    them may give a client one request before it knows.  While there is no coordinator, or it does not read, each worker
    counts its own clients alone, and tells later what is still owed then.  A worker that is started again has forgotten
    what its own clients owed, and begins with full buckets.  Connections with a limit are not handed over to writers,
    which count nothing.  Unix sockets have no limits, so that the administrator gets in.

    Bounds: ``OWING_MAX`` buckets without a connection; of more, those are forgotten that would be full soonest.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._quotas = Quotas()
        self._buckets: WeakValueDictionary[Sharers, Bucket] = WeakValueDictionary()
        self._owing: dict[Sharers, Bucket] = {}
        """Those that are not full: they outlive the connections of their clients."""
        self._muted: dict[WorkerConnection, None] = {}
        self._report_ms = 0
        self.active = False
        """Whether there is anything to do: quotas, debts, or connections that are muted."""

    @property
    def muted(self) -> int:
        """How many connections are muted."""
        return len(self._muted)

    def take_quotas(self, quotas: Iterable[Quota], connections: Iterable[WorkerConnection]) -> None:
        """Take new quotas for these, all connections.  Muted ones stay so for as long as they were told."""
        self._quotas = Quotas(quotas)
        self.active = bool(self._quotas or self._muted or self._owing)
        for connection in connections:
            connection.session.meter = connection.session.metered = None

    # ---- requests

    def must_wait(self, connection: WorkerConnection, request: Request, frame: memoryview) -> bool:
        """Whether a request would add to a debt; its connection is muted then, and the request starts afterwards."""
        meter = self._meter(connection, frame)
        if meter is None:
            return False
        used = meter.bytes_in if isinstance(request, Produce) else meter.bytes_out if type(request) is Fetch else None
        debts_ms = [bucket.take_for_others(0, self._turn.now_ms) for bucket in (meter.requests, used) if bucket]
        owed_ms = max(debts_ms, default=0)
        self._mute(connection, owed_ms)
        return owed_ms > 0

    def charge(self, connection: WorkerConnection, request: Request, frame: memoryview) -> None:
        """Take what a request that has started uses from the buckets of its client."""
        meter = self._meter(connection, frame)
        if meter is None:
            return
        throttle_ms = 0
        if meter.requests is not None:
            throttle_ms = self._take(meter.requests, request.count if isinstance(request, Produce) else 1)
        if meter.bytes_in is not None and isinstance(request, Produce):
            amount = sum(part.stop - part.start for part in request.parts)
            throttle_ms = max(throttle_ms, self._take(meter.bytes_in, amount))
        self._mute(connection, throttle_ms)

    def limit_fetch(self, connection: WorkerConnection, request: Fetch, frame: memoryview) -> None:
        """Let a fetch ask for no more than its client may have at once."""
        meter = self._meter(connection, frame)
        if meter is not None and meter.bytes_out is not None:
            request.bytes_max = min(request.bytes_max, meter.fetch_bytes_max)

    def throttle(self, pending: Pending, reply: list[bytes | FileRange]) -> list[bytes | FileRange]:
        """Take what a reply uses, and tell in it for how long the client is throttled."""
        connection, request = pending.connection, pending.request
        meter = connection.session.meter
        if meter is not None and meter.bytes_out is not None and type(request) is Fetch:
            amount = sum(len(piece) if isinstance(piece, bytes) else piece[2] for piece in reply)
            self._mute(connection, self._take(meter.bytes_out, amount))
        left_ms = connection.session.muted_until_ms - self._turn.now_ms
        if left_ms > 0 and reply and isinstance(reply[0], bytes):
            reply[0] = connection.codec.with_throttle(request, reply[0], left_ms)
        return reply

    # ---- buckets

    def _meter(self, connection: WorkerConnection, frame: memoryview) -> Meter | None:
        """The buckets of the client that has sent a request; None: it has no limit."""
        session = connection.session
        client_id = connection.codec.client_id(frame)
        key = (self._quotas, session.principal, client_id)
        if session.metered != key:
            session.metered = key
            session.meter = None if connection.listener.unix else self._new_meter(session.principal, client_id)
        return session.meter

    def _new_meter(self, principal: str, client_id: bytes) -> Meter | None:
        limits = self._quotas.limits(user_of_principal(principal), client_id.decode(errors="replace"))
        if not limits:
            return None
        requests, bytes_in, bytes_out = (self._bucket(limits.get(key)) for key in (REQUESTS, BYTES_IN, BYTES_OUT))
        rate = limits[BYTES_OUT].rate if BYTES_OUT in limits else 0
        return Meter(requests, bytes_in, bytes_out, max(1, int(min(rate * BURST_MS / 1000, 2**31 - 1))))

    def _bucket(self, limit: Limit | None) -> Bucket | None:
        if limit is None:
            return None
        bucket = self._buckets.get(limit.sharers)
        if bucket is None:
            bucket = self._buckets[limit.sharers] = Bucket(limit, self._turn.now_ms)
        elif bucket.rate != limit.rate:
            bucket.set_rate(limit.rate, self._turn.now_ms)
        return bucket

    def _take(self, bucket: Bucket, amount: int) -> int:
        """Take what a client of this worker uses; return for how many ms it is throttled."""
        self._keep(bucket)
        return bucket.take_tokens(amount, self._turn.now_ms)

    def _keep(self, bucket: Bucket) -> None:
        """Remember a bucket until it is full again."""
        if len(self._owing) >= OWING_MAX and bucket.sharers not in self._owing:
            now_ms = self._turn.now_ms
            latest = sorted(self._owing.values(), key=lambda owing: owing.full_ms(now_ms), reverse=True)
            self._owing = {owing.sharers: owing for owing in latest[:KEPT_OF_OWING]}
        self._owing[bucket.sharers] = bucket

    def _usage(self) -> list[UsageRow]:
        """What was taken here since the last report; forgets the buckets that are full."""
        now_ms = self._turn.now_ms
        taken = [(bucket, bucket.report(now_ms)) for bucket in self._owing.values()]
        self._owing = {bucket.sharers: bucket for bucket, _ in taken if bucket.full_ms(now_ms) > 0}
        return [(*bucket.sharers, bucket.rate, amount) for bucket, amount in taken if amount]

    # ---- muted connections

    def _mute(self, connection: WorkerConnection, throttle_ms: int) -> None:
        if not throttle_ms or connection.closed:
            return
        session = connection.session
        if not session.muted_until_ms:
            self._muted[connection] = None
            self.active = True
            self._turn.audit.refused(Reason.THROTTLED, session.principal, connection.peer, ms=throttle_ms)
        session.held = True
        session.muted_until_ms = max(session.muted_until_ms, self._turn.now_ms + throttle_ms)
        connection.cancel_handoff()

    def begin_turn(self, may_report: bool) -> tuple[list[WorkerConnection], list[UsageRow]]:
        """The connections whose time is over, to be read again, and what to tell the other workers that was taken."""
        now_ms = self._turn.now_ms
        over = [muted for muted in self._muted if muted.closed or muted.session.muted_until_ms <= now_ms]
        for connection in over:
            del self._muted[connection]
            connection.session.muted_until_ms, connection.session.held = 0, False
        self.active = bool(self._quotas or self._muted or self._owing)
        report: list[UsageRow] = []
        if self._owing and now_ms - self._report_ms >= REPORT_MS:
            self._report_ms = now_ms
            report = self._usage() if may_report else []
        return [connection for connection in over if not connection.closed], report

    def next_ms(self, now_ms: int) -> int:
        """When :meth:`begin_turn` has something to do."""
        deadlines = [muted.session.muted_until_ms for muted in self._muted]
        if self._owing:
            deadlines.append(max(now_ms, self._report_ms + REPORT_MS))
        return min(deadlines, default=now_ms + REPORT_MS * 1_000)

    def on_usage(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take what the clients of other workers have taken."""
        for *names, rate, amount in rows:
            limit = Limit(Sharers(*names), rate)
            bucket = self._buckets.get(limit.sharers) or self._bucket(limit)
            assert bucket is not None
            bucket.take_for_others(amount, self._turn.now_ms)
            self._keep(bucket)


class Admission:
    """Decides which requests may start.

    ``handlers``: what starts each kind of request, which only this class changes; ``recall`` takes back the connections
    that writers serve.
    """

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        authorizer: Authorizer,
        handlers: dict[type[Request], Starter],
        meters: Meters,
        recall: Callable[[], None],
    ) -> None:
        self._turn, self._connections, self._authorizer, self._recall = turn, connections, authorizer, recall
        self._meters, self._handlers = meters, handlers
        self._quotas: tuple[Quota, ...] = ()
        self._rights = authorizer.rights
        self._metered = False
        """Whether there are quotas, or were while connections were muted."""
        self._guarded_handlers: Mapping[type[Request], Starter] = {}
        self._has_rules = False
        self._waiting: dict[WorkerConnection, None] = {}
        """Connections with requests that wait for the first rules, or for who is locked."""

    def fill_handlers(self, free: Mapping[type[Request], Starter], guarded: Mapping[type[Request], Starter]) -> None:
        """Let requests start: ``guarded`` ones behind the questions that there are, ``free`` ones at once.

        Called once, when the worker has made all its parts.
        """
        self._guarded_handlers = guarded
        self._handlers.update(free)
        self._guard()

    def _guard(self) -> None:
        """Let the questions that there are now stand before the handlers."""
        self._handlers.update({kind: self._guarded(kind, start) for kind, start in self._guarded_handlers.items()})

    def _guarded(self, kind: type[Request], handler: Starter) -> Starter:
        if self._metered:
            handler = self._behind_quotas(kind, handler)
        if not self._authorizer.enforced:
            return handler if self._has_rules else self._behind_rules(handler)
        return self._behind_rights(kind, handler) if kind in DECISIONS_OF else self._behind_rules(handler)

    def _behind_quotas(self, kind: type[Request], handler: Starter) -> Starter:
        meters, touched = self._meters, self._connections.touched

        def begin(connection: WorkerConnection, request: Any, start: int, frame: memoryview) -> bool:
            if connection.session.held:
                return False
            if not self._quotas:
                return handler(connection, request, start, frame)
            if meters.must_wait(connection, request, frame):
                touched[connection] = None  # it is not watched from the end of this turn on
                return False
            if kind is Fetch:
                meters.limit_fetch(connection, request, frame)
            if not handler(connection, request, start, frame):
                return False
            meters.charge(connection, request, frame)
            if connection.session.held:
                touched[connection] = None
            return True

        return begin

    def _behind_rules(self, handler: Starter) -> Starter:
        """For requests whose rights others check, by the rules that have come."""

        def begin(connection: WorkerConnection, request: Any, start: int, frame: memoryview) -> bool:
            return (self._has_rules or self._wait(connection)) and handler(connection, request, start, frame)

        return begin

    def _behind_rights(self, kind: type[Request], handler: Starter) -> Starter:
        """What a client is known to have a right to, which is nearly everything, costs one look-up for each part."""
        decisions_of = DECISIONS_OF[kind]

        def begin(connection: WorkerConnection, request: Any, start: int, frame: memoryview) -> bool:
            access = connection.session.access
            if access is None or access.rights is not self._rights:
                if not self._has_rules:
                    return self._wait(connection)
                access = self.access(connection)
            decisions = decisions_of(access)
            if kind is Produce and request.transactional_id is not None:
                _check_id(request, access)
            for part in request.parts:
                if not decisions[part[0]] and not request.denied:
                    _deny(request, decisions)
                    break
            if not handler(connection, request, start, frame):
                return False
            if request.denied:  # not before: a request that has to wait comes here again, as another object
                self._refuse_parts(connection, request)
            return True

        def begin_produce(connection: WorkerConnection, request: Produce, start: int, frame: memoryview) -> bool:
            access, parts = connection.session.access, request.parts
            if (
                access is not None
                and access.rights is self._rights
                and len(parts) == request.count  # one, or joined ones, which are of one topic
                and access.writable[parts[0][0]]
                and request.transactional_id is None
            ):
                return handler(connection, request, start, frame)
            return begin(connection, request, start, frame)

        return begin_produce if kind is Produce else begin

    def on_security(self, state: SecurityState) -> None:
        """Take the rules of a new state."""
        if self._authorizer.enforce(state):
            self._rights = self._authorizer.rights
            self._recall()
        if state.quotas != self._quotas:
            self._quotas = state.quotas
            self._meters.take_quotas(state.quotas, self._connections.by_fd.values())
            self._metered = self._meters.active
            self._guard()
            self._recall()
        if not self._has_rules:
            self._has_rules = True
            self._guard()
            for connection in self._waiting:
                connection.disown(self)
                connection.session.held = False
                self._connections.resume_next_turn(connection)
            self._waiting = {}

    def access(self, connection: WorkerConnection) -> Access:
        """What the client of a connection may do."""
        if not self._authorizer.enforced:
            return UNRESTRICTED
        session = connection.session
        access = session.access
        if access is None or access.rights is not self._rights:
            access = session.access = self._authorizer.access(connection.origin)
        return access

    def _wait(self, connection: WorkerConnection) -> bool:
        """Let the requests of a connection wait for the rules."""
        self._waiting[connection] = None
        connection.own(self, partial(self._waiting.pop, connection))
        connection.session.held = True
        return False

    def _refuse_parts(self, connection: WorkerConnection, request: Any) -> None:
        """Note the refusal of parts of a request that has started."""
        if type(request) is Produce and request.id_denied:
            self.refuse(connection, f"Produce {request.transactional_id or ''}")
            return
        names = dict.fromkeys(request.parts[index][0] for index in sorted(request.denied))
        self.refuse(connection, f"{type(request).__name__} {next(iter(names))}", len(names) - 1)

    def refuse(self, connection: WorkerConnection, what: str, more: int = 0) -> None:
        """Note a refusal: the request, the first name in it that the client has no right to, and how many more."""
        others = {"more": more} if more else {}
        self._turn.audit.refused(Reason.DENIED, connection.session.principal, connection.peer, what=what, **others)


def _deny(request: Any, decisions: Decisions) -> None:
    """Note in a request the parts that its client may not have.  A topic id that is not known denies nothing."""
    by_id = (type(request) is Fetch and request.session.by_id) or (
        type(request) is Produce and request.topic_ids is not None
    )
    request.denied = frozenset(
        index for index, part in enumerate(request.parts) if not decisions[part[0]] and (part[0] or not by_id)
    )


def _check_id(request: Produce, access: Access) -> None:
    """Note that a client has no right to all of a request whose transactional id it may not use."""
    if not access.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id or ""):
        request.denied, request.id_denied = frozenset(range(len(request.parts))), True
