"""The producer's engine: takes sealed batches to their brokers and settles them.

Who does the work: **whoever is there**.  A thread that fills a batch encodes and sends it itself; a thread
that waits (``flush``, ``result``, a full buffer) drives the sockets until it has what it waits for; a
background thread does both when nobody else does, and the slow errands (metadata, producer ids) always.
Measured against a thread that does all sending, client and broker on the same two busy cores: the same CPU;
with 1000 messages a batch the thread was a fifth faster, with 50 a batch a tenth to a third slower (after
each system call two threads fight for the interpreter lock), and every synchronous send waits for one more
wake-up.

So that many small batches share a system call, bytes that are ready wait, but only while replies are
outstanding or the last write was less than the linger time ago, and never for more than :data:`WRITE_BYTES`.

Locking: one lock, ``lock``, guards all state here and in the producer.  It is never held while waiting for a
socket, a broker or a callback.  Callbacks run one after another, outside of the lock, in whatever thread
settles them: see ``callbacks.py``.
"""

from __future__ import annotations

import logging
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..errors import (
    ApplianceError,
    BrokerAway,
    ClientBroken,
    MessageTooLarge,
    NotLeader,
    RequestTimedOut,
    UnknownPartition,
    from_code,
)
from ..wire.native import ProduceHead
from .broker_connection import Address, Connection
from .callbacks import Callbacks
from .cluster_client import Cluster
from .delivery import OFFSET_UNKNOWN, Batch
from .partition_queue import Identity, Lane, Settled
from .threads import Threads
from .troubles import Troubles

logger = logging.getLogger(__name__)

WRITE_BYTES: Final = 64 * 1024
OUT_BYTES_MAX: Final = 1024 * 1024
"""Unsent bytes per connection beyond which batches stay where they are."""
HEAD_BYTES_MAX: Final = 1024
"""More than a produce request's header takes."""
TICK_S_MAX: Final = 0.005
TICK_S_MIN: Final = 0.001
HOUSEKEEPING_S: Final = 0.02
CONNECT_TIMEOUT_S: Final = 5.0
METADATA_AGE_S: Final = 60.0
"""So old may metadata get before they are asked for anew: partitions may have been added."""
AWAKE_S: Final = 0.5
"""The background thread goes on ticking that long after the last batch: waking it costs more."""
POLL_S_MAX: Final = 0.05
JOIN_S_MAX: Final = 5.0
"""So long the thread may take to end; what it may wait for is cut short."""
QUIET_PUMPS: Final = 2
"""While other threads do the work so often in a tick, the background thread leaves the sockets to them: it
would only fight them for the interpreter lock."""
DUPLICATE_SEQUENCE: Final = 46
"""Kafka's code for "written before, no longer remembered where": delivered."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    acks: int
    codec: str
    linger_s: float
    in_flight_max: int
    request_timeout_ms: int
    backoff_s: float
    backoff_s_max: float
    idempotent: bool


class Link:
    """A broker: the connection to it, who waits for its replies, who has something for it."""

    def __init__(self, broker_id: int, address: Address) -> None:
        self.broker_id = broker_id
        self.address = address
        self.connection: Connection | None = None
        self.waiting: deque[tuple[BoundLane, float]] = deque()  # in the order of requests, with the time of each
        self.unsent: deque[tuple[BoundLane, int]] = deque()  # acks=0: done when this many bytes have left
        self.ready: dict[BoundLane, None] = {}  # an ordered set
        self.posted_bytes = 0
        self.flushed_s = 0.0
        self.blocked = False  # the socket takes no more for now
        self.events = 0
        self.connected_s = 0.0
        self.resume_s = 0.0
        self.failures = 0


class BoundLane(Lane):
    """A lane and the broker that leads its partition, as far as is known."""

    link: Link | None = None
    trouble: ApplianceError | None = None  # why it does not go on, if it does not

    def __init__(self, topic: str, partition: int, head: ProduceHead, **options: Any) -> None:
        super().__init__(topic, partition, **options)
        self.head = head


class Sender:
    """Sends sealed batches and settles them.

    ``seal_due(now)`` seals open batches that have lingered and returns when the next one will have, or None.
    ``broke()`` is called, with the lock held, when this sender sends no more.

    An exception that no one expected, or an interrupt, may leave a step in its middle: ``torn`` is set during every
    step that changes batches, so whoever finds it set knows that a step did not end.  Such a sender is *broken*, as
    is one whose thread has ended: everything unsettled fails with the same :class:`ClientBroken`, nothing is sent any
    more, and every call of the producer's raises that error.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: SenderOptions,
        seal_due: Callable[[float], float | None],
        broke: Callable[[], None],
        *,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self.troubles = Troubles(clock)
        self._cluster = cluster
        self._options = options
        self._expects_replies = options.acks != 0
        self._clock = clock
        self._jitter = jitter
        self._seal_due = seal_due
        self._broke = broke
        self.lock = threading.Lock()
        self.broken: ClientBroken | None = None
        self.torn = False
        self.buffered_bytes = 0
        self.unsettled: dict[Batch, None] = {}
        """Batches that are sealed and not settled, or whose callbacks still run; an ordered set."""
        self.delivered = 0
        """Messages."""
        self.failure: Batch | None = None
        """The first batch that was not delivered."""
        self._lanes: dict[tuple[str, int], BoundLane] = {}
        self._links: dict[int, Link] = {}
        self._stalled: dict[BoundLane, None] = {}
        self._epoll = select.epoll()
        self._producer_id = -1
        self.callbacks = Callbacks(self.lock, self._finished)
        self._changed = threading.Condition(self.lock)
        self._waiters = 0
        self._driver = 0  # the thread that waits for the sockets
        self._pumps = 0
        self._housekeeping_s = 0.0
        self._refresh_topics: set[str] = set()
        self._refresh_s = 0.0
        self._aged_s = clock() + METADATA_AGE_S
        self._identity_wanted = False
        self._threads = Threads("producer", self._thread_ended)
        self._wake = threading.Event()
        self._asleep = False
        self._stopping = False
        self._tick_s = min(max(options.linger_s, TICK_S_MIN), TICK_S_MAX)

    # ---- from the producer, with the lock held

    def lane(self, topic: str, partition: int) -> BoundLane:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = self._new_lane(topic, partition)
        return lane

    def enqueue(self, lane: BoundLane, batch: Batch) -> None:
        """A sealed batch; it is sent as soon as the order of its partition allows."""
        self.unsettled[batch] = None
        if self.broken is not None:
            self._settle((batch, self.broken, OFFSET_UNKNOWN))
            return
        lane.queue.append(batch)
        link = lane.link
        if link is not None:
            link.ready[lane] = None
        else:
            self._make_ready(lane)

    def awaken(self) -> None:
        """There will be something to do in the background: an open batch lingers."""
        if not self._threads.started:
            self._threads.start("sending", self._run)
        elif self._asleep:
            self._asleep = False
            self._wake.set()

    def pump(self, now_s: float, hurry: bool) -> None:
        """Take replies, send what can be sent; ``hurry``: no byte stays behind to share a system call."""
        if not self.is_whole():
            return
        self.torn = True
        self._pump(now_s, hurry)
        self.torn = False

    def _pump(self, now_s: float, hurry: bool) -> None:
        self._pumps += 1
        if hurry:
            self._receive(now_s)
        if now_s >= self._housekeeping_s:
            self._housekeep(now_s)
        for link in self._links.values():
            if link.ready:
                self._fill(link, now_s)
            connection = link.connection
            if connection is not None and connection.out_bytes:
                idle = len(link.waiting) == 1 or now_s - link.flushed_s >= self._options.linger_s
                if hurry or idle or connection.out_bytes >= WRITE_BYTES:
                    self._flush(link, now_s)
                    if not hurry:
                        self._receive_from(link, now_s)
                        if link.ready:
                            self._fill(link, now_s)

    def is_whole(self) -> bool:
        """Whether this sender works; breaks it when a step was left in its middle."""
        if self.torn and self.broken is None:
            self._break(ClientBroken("a call of this producer was interrupted in its middle: close it, make another"))
        return self.broken is None

    # ---- waiting, without the lock

    def drive(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Work until ``done()``; False when time is up first, and at once in a callback, which must not wait."""
        if self.callbacks.is_here:
            return done()
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        here = threading.get_ident()
        try:
            while True:
                with self.lock:
                    if not done():
                        self.pump(self._clock(), True)
                    finished = done()
                self.callbacks.run()
                if finished or done():
                    return True
                pause_s = HOUSEKEEPING_S if self._stalled else POLL_S_MAX
                if deadline_s is not None:
                    left_s = deadline_s - self._clock()
                    if left_s <= 0:
                        return False
                    pause_s = min(pause_s, left_s)
                with self.lock:
                    if not self._driver:
                        self._driver = here
                    elif not done():
                        self._waiters += 1
                        self._changed.wait(pause_s)
                        self._waiters -= 1
                if self._driver == here:
                    self._epoll.poll(pause_s)
                    self._driver = 0
        finally:
            if self._driver == here:
                self._driver = 0

    def check(self) -> None:
        """Raise what broke this sender, or what a callback raised.

        Raises:
            ClientBroken, CallbackFailed: the cause is attached.
        """
        if self.broken is not None:
            raise self.broken
        self.callbacks.check()

    def prepare(self) -> None:
        """Get a producer id if one is needed; blocks."""
        if not self._options.idempotent or self._producer_id >= 0:
            return
        producer_id, _ = self._ask_identity()
        with self.lock:
            self._producer_id = producer_id

    def stop(self) -> None:
        """Give up what is left (its callbacks say so), end the thread, close the connections."""
        with self.lock:
            self._stopping = True
            if self.unsettled and self.is_whole():
                self._give_up()
            self._close_links()
            self._wake.set()
        self._cluster.abort()
        self.callbacks.run()
        if self._threads.join(JOIN_S_MAX):
            logger.warning("a delivery callback does not return: its thread is left behind")
        else:
            self._epoll.close()

    def _give_up(self) -> None:
        """Fail what is not settled: the producer is closed."""
        left = [batch for batch in self.unsettled if not batch.settled]
        if left:
            messages = sum(batch.count for batch in left)
            logger.warning("this producer was closed before %d messages could be delivered", messages)
        error = RequestTimedOut("the producer was closed before this could be delivered")
        for batch in left:
            self._settle((batch, error, OFFSET_UNKNOWN))

    def _thread_ended(self, error: ClientBroken) -> None:
        with self.lock:
            if self.broken is None:
                self._break(error)
            elif self.broken.__cause__ is None:  # a caller came first and found what this thread had torn
                self.broken.__cause__ = error.__cause__
        self.callbacks.run()

    def _break(self, error: ClientBroken) -> None:
        """Fail everything and do nothing any more.  Nothing here may be whole, so little of it is relied on."""
        self.broken = error
        self._stopping = True
        self._close_links()
        for batch in list(self.unsettled):
            if not batch.settled:
                self._settle((batch, error, OFFSET_UNKNOWN))
            elif batch.callbacks:
                self.callbacks.add(batch)  # at worst again, which calls nothing twice
            else:
                self._finished(batch)
        self._broke()
        self._wake.set()

    def _close_links(self) -> None:
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()  # epoll forgets it by itself
        self._links.clear()
        self._lanes.clear()
        self._stalled.clear()

    # ---- lanes and links

    def _new_lane(self, topic: str, partition: int) -> BoundLane:
        options = self._options
        lane = BoundLane(
            topic,
            partition,
            ProduceHead(topic, partition, options.acks, options.request_timeout_ms),
            idempotent=options.idempotent,
            backoff_s=options.backoff_s,
            backoff_s_max=options.backoff_s_max,
            jitter=self._jitter,
        )
        if options.idempotent and self._producer_id >= 0:
            lane.identify(self._producer_id, 0)
        return lane

    def _make_ready(self, lane: BoundLane) -> None:
        if lane.link is None:
            self._find_link(lane)
        if lane.link is not None:
            lane.link.ready[lane] = None
        else:
            self._stalled[lane] = None

    def _find_link(self, lane: BoundLane) -> None:
        try:
            broker_id = self._cluster.leader(lane.topic, lane.partition)
        except ApplianceError as error:
            self._want_refresh(lane.topic)
            self._in_trouble(lane, error)
            return
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = Link(broker_id, self._cluster.address(broker_id))
        lane.link = link

    def _fill(self, link: Link, now_s: float) -> None:
        """Post batches, one of each lane in turn, until the lanes or the connection have had enough."""
        connection = link.connection or self._connect(link, now_s)
        if connection is None:
            return
        options = self._options
        ready = link.ready
        while ready and len(link.waiting) < options.in_flight_max and connection.out_bytes < OUT_BYTES_MAX:
            lane = next(iter(ready))
            del ready[lane]
            batch = lane.take(now_s, options.codec)
            if batch is None:
                if lane.queue and not lane.draining:
                    self._stalled[lane] = None
                    self._identity_wanted = self._identity_wanted or lane.identity is Identity.WANTED
                continue
            if lane.queue:
                ready[lane] = None
            self._post(link, connection, lane, batch, now_s)

    def _post(self, link: Link, connection: Connection, lane: BoundLane, batch: Batch, now_s: float) -> None:
        encoded = batch.encoded
        assert encoded is not None
        frame_bytes_max = connection.frame_bytes_max
        if frame_bytes_max and len(encoded) + HEAD_BYTES_MAX > frame_bytes_max:
            self._refuse_large(lane, batch, frame_bytes_max, now_s)
            return
        connection.post_batch(lane.head, encoded, self._expects_replies)
        if self._expects_replies:
            link.waiting.append((lane, now_s))
        else:
            link.posted_bytes += lane.head.bytes + len(encoded)
            link.unsent.append((lane, link.posted_bytes))

    def _refuse_large(self, lane: BoundLane, batch: Batch, limit: int, now_s: float) -> None:
        text = f"a batch of {batch.count} messages is larger than the {limit} bytes that the broker takes at once"
        lane.withdraw(now_s)
        self._settle((batch, MessageTooLarge(text), OFFSET_UNKNOWN))
        if lane.queue and not lane.in_flight:
            self._stalled[lane] = None

    def _connect(self, link: Link, now_s: float) -> Connection | None:
        if now_s < link.resume_s:
            return None
        link.address = self._cluster.view.brokers.get(link.broker_id, link.address)
        try:
            link.connection = Connection(link.address, client_name=self._cluster.client_name)
        except BrokerAway as error:
            self._link_failed(link, error, now_s)
            return None
        link.connected_s = now_s
        link.posted_bytes = link.connection.out_bytes
        link.blocked = link.connection.connecting
        link.events = 0
        self._watch(link)
        return link.connection

    def _disconnect(self, link: Link, now_s: float) -> None:
        if link.connection is not None:
            self._epoll.unregister(link.connection.fileno())
            link.connection.close()
            link.connection = None
        lanes = dict.fromkeys([lane for lane, _ in link.waiting] + [lane for lane, _ in link.unsent])
        link.waiting.clear()
        link.unsent.clear()
        for lane in [*lanes, *link.ready]:
            lane.lost(now_s)
            lane.link = None
            if lane.queue:
                self._stalled[lane] = None
                self._want_refresh(lane.topic)
        link.ready.clear()

    def _link_failed(self, link: Link, error: ApplianceError, now_s: float) -> None:
        self.troubles.begin(f"appliance {link.broker_id}", error)
        doubled = min(link.failures, 10)
        link.failures += 1
        link.resume_s = now_s + min(self._options.backoff_s * 2**doubled, self._options.backoff_s_max) * self._jitter()
        self._disconnect(link, now_s)

    def _watch(self, link: Link) -> None:
        """Tell epoll what we wait for; waiting to write only when the socket refused."""
        assert link.connection is not None
        events = select.EPOLLIN | (select.EPOLLOUT if link.blocked else 0)
        if events != link.events:
            (self._epoll.modify if link.events else self._epoll.register)(link.connection.fileno(), events)
            link.events = events

    def _flush(self, link: Link, now_s: float) -> None:
        connection = link.connection
        assert connection is not None
        link.flushed_s = now_s
        try:
            link.blocked = not connection.flush()
        except BrokerAway as error:
            self._link_failed(link, error, now_s)
            return
        self._watch(link)
        if link.unsent:
            gone_bytes = link.posted_bytes - connection.out_bytes
            while link.unsent and link.unsent[0][1] <= gone_bytes:
                lane, _ = link.unsent.popleft()
                self._answer(lane, None, OFFSET_UNKNOWN, now_s)

    # ---- replies

    def _receive(self, now_s: float) -> None:
        for link in self._links.values():
            if link.connection is not None:
                self._receive_from(link, now_s)

    def _receive_from(self, link: Link, now_s: float) -> None:
        connection = link.connection
        if connection is None:
            return
        try:
            replies = connection.receive()
        except ApplianceError as error:
            self._link_failed(link, error, now_s)
            return
        if replies and link.failures:
            link.failures = 0
            self.troubles.end(f"appliance {link.broker_id}")
        for (_, code, base, _, _, message), _ in replies:
            lane, _ = link.waiting.popleft()
            self._answer(lane, from_code(code, message) if code else None, base, now_s)

    def _answer(self, lane: BoundLane, error: ApplianceError | None, base: int, now_s: float) -> None:
        if error is not None:
            if error.code == DUPLICATE_SEQUENCE:
                error, base = None, OFFSET_UNKNOWN
            elif isinstance(error, NotLeader | UnknownPartition | MessageTooLarge):
                # Another broker leads it by now, or the topic takes less than it did.
                self._want_refresh(lane.topic)
        troubled = error is not None or lane.draining
        settled = lane.answered(error, base, now_s)
        if settled is not None:
            self._settle(settled)
        if error is not None and settled is None:
            self._in_trouble(lane, error)
        elif lane.trouble is not None:
            lane.trouble = None
            self.troubles.end((lane.topic, lane.partition))
        if troubled and not lane.in_flight:
            if lane.link is not None:
                lane.link.ready.pop(lane, None)
                lane.link = None  # ask again who leads
            if lane.queue:
                self._stalled[lane] = None

    def _in_trouble(self, lane: BoundLane, error: ApplianceError) -> None:
        lane.trouble = error
        self.troubles.begin((lane.topic, lane.partition), error)

    def _settle(self, settled: Settled) -> None:
        batch, error, offset = settled
        if error is None:
            self.delivered += batch.count
        elif self.failure is None:
            self.failure = batch
        batch.settle(error, offset)
        if batch.callbacks:
            self.callbacks.add(batch)
        else:
            self._finished(batch)

    def _finished(self, batch: Batch) -> None:
        if batch in self.unsettled:
            del self.unsettled[batch]
            self.buffered_bytes -= batch.bytes
        if self._waiters:
            self._changed.notify_all()

    # ---- now and then

    def _housekeep(self, now_s: float) -> None:
        """Deadlines, time-outs, and lanes that waited for a time, a leader or a producer id."""
        self._housekeeping_s = now_s + HOUSEKEEPING_S
        for link in self._links.values():
            overdue = self._overdue(link, now_s)
            if overdue is not None:
                self._link_failed(link, overdue, now_s)
        for lane in self._lanes.values():
            if lane.queue and lane.queue[0].deadline_s <= now_s:
                cause = lane.trouble or (self._away(lane) if self.troubles else None)
                for settled in lane.expire(now_s, cause):
                    self._settle(settled)
        stalled, self._stalled = self._stalled, {}
        for lane in stalled:
            if lane.queue:
                self._make_ready(lane)

    def _overdue(self, link: Link, now_s: float) -> RequestTimedOut | None:
        """What the broker at the other end did not do in time."""
        connection = link.connection
        if connection is None:
            return None
        if not connection.greeted and now_s >= link.connected_s + CONNECT_TIMEOUT_S:
            return RequestTimedOut(f"{connection} did not answer within {CONNECT_TIMEOUT_S:g} s")
        if link.waiting:
            lane, sent_s = link.waiting[0]
            timeout_s = self._options.request_timeout_ms / 1000
            if now_s >= min(sent_s + timeout_s, lane.in_flight[0].deadline_s):
                return RequestTimedOut(f"{connection} did not answer within {now_s - sent_s:.1f} s")
        if link.unsent and now_s >= link.unsent[0][0].in_flight[0].deadline_s:
            return RequestTimedOut(f"{connection} takes no more bytes")
        return None

    def _away(self, lane: BoundLane) -> ApplianceError | None:
        """Why nothing of this lane was sent: the oldest trouble that is not another partition's."""
        return next((trouble.error for trouble in self.troubles.current() if trouble.place is None), None)

    def _want_refresh(self, topic: str) -> None:
        self._refresh_topics.add(topic)

    # ---- the background thread

    def _run(self) -> None:
        self.callbacks.own_thread = threading.get_ident()
        awake_until_s = 0.0
        pumps = 0
        while True:
            with self.lock:
                if self._stopping:
                    return
                now_s = self._clock()
                quiet = self._pumps < pumps + QUIET_PUMPS and not self._driver
                due_s = self._seal_due(now_s)
                self.pump(now_s, quiet)
                pumps = self._pumps
                if self.unsettled or due_s is not None:
                    awake_until_s = now_s + AWAKE_S
                errands = self._errands(now_s)
                self._asleep = now_s >= awake_until_s and not errands
                self._wake.clear()
            self.callbacks.run()
            if errands:
                self._run_errands(errands)
            elif self._asleep:
                self._wake.wait()
            else:
                pause_s = self._tick_s if due_s is None else min(max(due_s - now_s, 0.0), self._tick_s)
                if quiet:
                    self._epoll.poll(pause_s)
                else:
                    self._wake.wait(pause_s)

    def _errands(self, now_s: float) -> set[str] | bool:
        """The topics to ask about, True for a producer id only, False (or nothing) when there is none."""
        if now_s >= self._aged_s and self._cluster.view.topics:
            self._aged_s = now_s + METADATA_AGE_S
            self._refresh_topics.update(topic for topic, _ in self._lanes)
        if now_s < self._refresh_s or not (self._refresh_topics or self._identity_wanted):
            return False
        self._refresh_s = now_s + self._options.backoff_s
        topics, self._refresh_topics = self._refresh_topics, set()
        return topics or True

    def _run_errands(self, errands: set[str] | bool) -> None:
        try:
            if isinstance(errands, set):
                self._cluster.refresh(errands)
                if self.troubles:
                    self.troubles.end("metadata")
            if self._identity_wanted:
                producer_id, epoch = self._ask_identity()
                with self.lock:
                    self._identity_wanted = False
                    self._producer_id = producer_id
                    for lane in self._lanes.values():
                        if lane.identity is Identity.WANTED:
                            lane.identify(producer_id, epoch)
        except ApplianceError as error:
            self.troubles.begin("metadata", error)
            if isinstance(errands, set):
                with self.lock:
                    self._refresh_topics |= errands

    def _ask_identity(self) -> tuple[int, int]:
        result = self._cluster.admin("init_producer", {})
        return int(result["producer_id"]), int(result["epoch"])
