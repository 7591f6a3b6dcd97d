"""Meters what clients use, and throttles those that use more than their quotas.

A limit has a bucket (:mod:`appliance.security.quotas`), which the clients that share it take from: requests, bytes that
they produce, bytes that they fetch.  A request is served also when it takes more than there is.  Its reply tells the
client for how long it is throttled, and its connection is *muted* for that long: it is not read, and no request of it
starts.  So only the client waits, and the worker never does.

The debt is that of all clients that share the limit, on whatever connection: a request that would add to it does not
start, and its connection is muted, until it is over.  So connections of one client take turns, and whoever connects
again finds the debt that it has left.  A debt is remembered when its last connection is gone, until the bucket is full
again; a changed quota does not end it.  Requests that take nothing from an empty bucket go on.

Workers tell each other what their clients have taken, every ``REPORT_MS``, through the coordinator; each of them may
give a client one request before it knows.  While there is no coordinator, each worker counts its own clients alone.  A
worker that is started again has forgotten what its own clients owed, and begins with full buckets.  Connections with a
limit are not handed over to writers, which count nothing.  Unix sockets have no limits, so that the administrator gets
in.

Bounds: ``OWING_MAX`` buckets without a connection; of more, those are forgotten that would be full soonest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from ...security.audit_log import Reason
from ...security.principals import user_of_principal
from ...security.quotas import BURST_MS, BYTES_IN, BYTES_OUT, REQUESTS, Bucket, Limit, Quota, Quotas, Sharers
from ...wire.requests import Fetch, FileRange, Produce, Request
from ..snapshot import UsageRow
from .connection_state import Connection, Pending
from .connections import Connections
from .turn import Turn

REPORT_MS: Final = 200
"""How often workers tell each other."""
OWING_MAX: Final = 10_000
KEPT_OF_OWING: Final = 9 * OWING_MAX // 10
"""To find those that are forgotten takes some milliseconds: so they are a tenth at once."""


class Meter(NamedTuple):
    """The buckets of one client; None: no limit.  ``fetch_bytes_max``: of record batches in a reply to it."""

    requests: Bucket | None
    bytes_in: Bucket | None
    bytes_out: Bucket | None
    fetch_bytes_max: int


class Metering:
    """The buckets of one worker, and its muted connections."""

    def __init__(self, turn: Turn, connections: Connections) -> None:
        self._turn, self._connections = turn, connections
        self._quotas = Quotas()
        self._buckets: WeakValueDictionary[Sharers, Bucket] = WeakValueDictionary()
        self._owing: dict[Sharers, Bucket] = {}
        """Those that are not full: they outlive the connections of their clients."""
        self._muted: dict[Connection, None] = {}
        self._report_ms = 0
        self.active = False
        """Whether there is anything to do: quotas, debts, or connections that are muted."""

    @property
    def muted(self) -> int:
        """How many connections are muted."""
        return len(self._muted)

    def take_quotas(self, quotas: Iterable[Quota]) -> None:
        """Take new quotas.  Muted connections stay so for as long as they were told."""
        self._quotas = Quotas(quotas)
        self.active = bool(self._quotas or self._muted or self._owing)
        for connection in self._connections.by_fd.values():
            connection.session.meter = connection.session.metered = None

    # ---- requests

    def must_wait(self, connection: Connection, request: Request, frame: memoryview) -> bool:
        """Whether a request would add to a debt; its connection is muted then, and the request starts afterwards."""
        meter = self._meter(connection, frame)
        if meter is None:
            return False
        used = meter.bytes_in if isinstance(request, Produce) else meter.bytes_out if type(request) is Fetch else None
        debts_ms = [bucket.take_for_others(0, self._turn.now_ms) for bucket in (meter.requests, used) if bucket]
        owed_ms = max(debts_ms, default=0)
        self._mute(connection, owed_ms)
        return owed_ms > 0

    def charge(self, connection: Connection, request: Request, frame: memoryview) -> None:
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

    def limit_fetch(self, connection: Connection, request: Fetch, frame: memoryview) -> None:
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

    def _meter(self, connection: Connection, frame: memoryview) -> Meter | None:
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
        return bucket.take(amount, self._turn.now_ms)

    def _keep(self, bucket: Bucket) -> None:
        """Remember a bucket until it is full again."""
        if len(self._owing) >= OWING_MAX and bucket.sharers not in self._owing:
            now_ms = self._turn.now_ms
            latest = sorted(self._owing.values(), key=lambda one: one.full_ms(now_ms), reverse=True)
            self._owing = {one.sharers: one for one in latest[:KEPT_OF_OWING]}
        self._owing[bucket.sharers] = bucket

    def _usage(self) -> list[UsageRow]:
        """What was taken here since the last report; forgets the buckets that are full."""
        self._report_ms = now_ms = self._turn.now_ms
        taken = [(bucket, bucket.report()) for bucket in self._owing.values()]
        self._owing = {bucket.sharers: bucket for bucket, _ in taken if bucket.full_ms(now_ms) > 0}
        return [(*bucket.sharers, bucket.rate, amount) for bucket, amount in taken if amount]

    # ---- muted connections

    def _mute(self, connection: Connection, throttle_ms: int) -> None:
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
        self._connections.watch(connection)

    def begin_turn(self) -> list[UsageRow]:
        """Read the connections again whose time is over.  Returns what to tell the other workers that was taken."""
        now_ms = self._turn.now_ms
        for connection in [one for one in self._muted if one.closed or one.session.muted_until_ms <= now_ms]:
            del self._muted[connection]
            connection.session.muted_until_ms, connection.session.held = 0, False
            if not connection.closed:
                self._connections.touched[connection] = None
        self.active = bool(self._quotas or self._muted or self._owing)
        if self._owing and now_ms - self._report_ms >= REPORT_MS:
            return self._usage()
        return []

    def next_ms(self, now_ms: int) -> int:
        """When :meth:`begin_turn` has something to do."""
        deadlines = [one.session.muted_until_ms for one in self._muted]
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
