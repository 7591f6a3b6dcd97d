"""Sends sealed batches to the leaders of their partitions, and completes them with the replies.

:class:`Dispatcher` has no thread and, except in :meth:`Dispatcher.wait`, never blocks.  The sender calls it with its
lock held.  There is a queue for each partition (``partition_queue.py``) and a link for each broker
(``broker_link.py``).  A queue is in one of three places:

- ``link.ready``: its broker is known, and it may have a batch to send;
- ``_stalled``: it has batches, and waits for a leader, a producer id, a back-off or replies.  Every :data:`CHECK_S` it
  is tried again;
- in neither: it has nothing to send, or waits for replies to its batches in flight.

Small batches share a system call: bytes that are ready wait while other replies are outstanding, if the last write was
less than the linger time ago, and until there are :data:`WRITE_BYTES` of them.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Iterable
from typing import Final

from ..errors import (
    ApplianceError,
    BrokerAway,
    MessageTooLarge,
    NotLeader,
    UnknownPartition,
    from_code,
)
from ..wire.native import ProduceHead
from .background_requests import BackgroundRequests
from .broker_connection import BrokerConnection
from .broker_link import BrokerLink, RoutedQueue
from .cluster_client import Cluster
from .delivery import OFFSET_UNKNOWN, ProducerBatch
from .outstanding import Outstanding
from .partition_queue import BACKOFF_DOUBLINGS_MAX, Numbering
from .producer_options import ProducerOptions
from .troubles import Troubles

WRITE_BYTES: Final = 64 * 1024
OUT_BYTES_MAX: Final = 1024 * 1024
"""Unsent bytes of a connection beyond which batches stay in their queues."""
HEAD_BYTES_MAX: Final = 1024
"""Upper bound of a produce request's header."""
CHECK_S: Final = 0.02
"""Interval of the checks for deadlines, timeouts and stalled queues."""


class Dispatcher:
    """See the module's docstring.  ``jitter`` returns a factor for a back-off, around 1."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        outstanding: Outstanding,
        background: BackgroundRequests,
        troubles: Troubles,
        *,
        jitter: Callable[[], float],
    ) -> None:
        self.queues: dict[tuple[str, int], RoutedQueue] = {}
        self._cluster = cluster
        self._options = options
        self._outstanding = outstanding
        self._background = background
        self._troubles = troubles
        self._jitter = jitter
        self._links: dict[int, BrokerLink] = {}
        self._stalled: dict[RoutedQueue, None] = {}  # an ordered set
        self._check_due_s = 0.0
        self._epoll = select.epoll()

    # ---- queues

    def enqueue(self, batch: ProducerBatch) -> None:
        """Send a sealed batch as soon as the order of its partition allows."""
        queue = self.queues.get((batch.topic, batch.partition))
        if queue is None:
            queue = self.queues[batch.topic, batch.partition] = self._new_queue(batch.topic, batch.partition)
        queue.waiting.append(batch)
        link = queue.link
        if link is not None:
            link.ready[queue] = None
        else:
            self._make_ready(queue)

    def identify(self, producer_id: int, epoch: int) -> None:
        """Pass a new producer id to the queues that wait for one."""
        for queue in self.queues.values():
            if queue.identity is Numbering.WANTED:
                queue.identify(producer_id, epoch)

    def unidentified(self) -> list[tuple[str, int]]:
        """The partitions whose batches wait for a producer id, or for being added to a transaction."""
        return [part for part, queue in self.queues.items() if queue.waiting and queue.identity is Numbering.WANTED]

    def suspend(self) -> None:
        """A transaction begins: its batches wait until their partitions are added."""
        for queue in self.queues.values():
            queue.suspend()

    def join(self, parts: Iterable[tuple[str, int]], producer_id: int, epoch: int) -> None:
        """These partitions are in the transaction."""
        for part in parts:
            queue = self.queues.get(part)
            if queue is not None and queue.identity is Numbering.WANTED:
                queue.join(producer_id, epoch)
                self._stalled.pop(queue, None)
                self._make_ready(queue)

    def refuse(self, parts: Iterable[tuple[str, int]], error: ApplianceError) -> None:
        """These partitions cannot be in the transaction: fail what waits for them."""
        for part in parts:
            queue = self.queues.get(part)
            if queue is not None and queue.identity is Numbering.WANTED:
                for batch in queue.drop_waiting():
                    self._outstanding.fail(batch, error)

    def drop_waiting(self) -> list[ProducerBatch]:
        """Remove and return the batches that are not in flight."""
        return [batch for queue in self.queues.values() for batch in queue.drop_waiting()]

    def _new_queue(self, topic: str, partition: int) -> RoutedQueue:
        options = self._options
        queue = RoutedQueue(
            topic,
            partition,
            ProduceHead(topic, partition, options.acks, options.request_timeout_ms),
            idempotent=options.idempotent,
            transactional=options.transactional_id is not None,
            backoff_s=options.backoff_s,
            backoff_s_max=options.backoff_s_max,
            jitter=self._jitter,
        )
        if options.idempotent and self._background.producer_id >= 0:
            queue.identify(self._background.producer_id, 0)
        return queue

    def _make_ready(self, queue: RoutedQueue) -> None:
        if queue.link is None:
            self._find_link(queue)
        if queue.link is not None:
            queue.link.ready[queue] = None
        else:
            self._stalled[queue] = None

    def _find_link(self, queue: RoutedQueue) -> None:
        try:
            broker_id = self._cluster.leader(queue.topic, queue.partition)
        except ApplianceError as error:
            self._background.stale_topics.add(queue.topic)
            self._note_trouble(queue, error)
            return
        link = self._links.get(broker_id)
        if link is None:
            address = self._cluster.address(broker_id)
            link = BrokerLink(broker_id, address, self._epoll, expects_replies=self._options.acks != 0)
            self._links[broker_id] = link
        queue.link = link

    # ---- the work

    def work(self, now_s: float, hurry: bool) -> None:
        """Take replies and send batches.  ``hurry``: write all bytes now, instead of sharing a system call later."""
        if hurry:
            for link in self._links.values():
                self._receive(link, now_s)
        if now_s >= self._check_due_s:
            self._check_due_s = now_s + CHECK_S
            self._check_timeouts(now_s)
        for link in self._links.values():
            if link.ready:
                self._fill(link, now_s)
            connection = link.connection
            if connection is not None and connection.out_bytes:
                idle = len(link.awaiting) == 1 or now_s - link.flushed_s >= self._options.linger_s
                if hurry or idle or connection.out_bytes >= WRITE_BYTES:
                    self._flush(link, now_s)
                    if not hurry:
                        self._receive(link, now_s)
                        if link.ready:
                            self._fill(link, now_s)

    @property
    def has_stalled(self) -> bool:
        return bool(self._stalled)

    @property
    def in_use(self) -> bool:
        """Whether something moves, or is to be answered, on a connection."""
        return any(link.in_use for link in self._links.values())

    def stands_still(self, now_s: float) -> bool:
        """Whether all that is in use waits for brokers that have not answered for long."""
        return all(link.stands_still(now_s) for link in self._links.values() if link.in_use)

    @property
    def due_s(self) -> float:
        """When there will be something to do while no connection is in use: a back-off or the time of a batch ends."""
        due_s = math.inf
        for link in self._links.values():
            if link.ready:
                due_s = min(due_s, link.resume_s)
        for queue in self.queues.values():
            if queue.waiting:
                due_s = min(due_s, queue.waiting[0].deadline_s)
        background = self._background
        for queue in self._stalled:
            is_requested = queue.topic in background.stale_topics
            is_requested = is_requested or (queue.identity is Numbering.WANTED and background.wants_id)
            if queue.waiting and not is_requested:
                due_s = min(due_s, max(queue.resume_s, self._check_due_s))
        return due_s

    def wait(self, timeout_s: float) -> None:
        """Wait until a connection can be read or written.  The only method to call without the lock."""
        self._epoll.poll(timeout_s)

    def disconnect(self) -> None:
        """Close all connections and drop all queues."""
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()  # epoll forgets it by itself
        self._links.clear()
        self.queues.clear()
        self._stalled.clear()

    def close(self) -> None:
        self._epoll.close()

    # ---- sending

    def _fill(self, link: BrokerLink, now_s: float) -> None:
        """Post batches, one of each queue in turn, until none is left or a limit of the connection is reached."""
        connection = link.connection or self._connect(link, now_s)
        if connection is None:
            return
        options = self._options
        ready = link.ready
        while ready and len(link.awaiting) < options.in_flight_max and connection.out_bytes < OUT_BYTES_MAX:
            queue = next(iter(ready))
            del ready[queue]
            batch = queue.take_batch(now_s, options.codec)
            if batch is None:
                if queue.waiting and not queue.draining and not queue.waits_for_first:
                    self._stalled[queue] = None
                    self._background.wants_id = self._background.wants_id or queue.identity is Numbering.WANTED
                continue
            if queue.waiting:
                ready[queue] = None
            encoded = batch.encoded
            assert encoded is not None
            frame_bytes_max = connection.frame_bytes_max
            if frame_bytes_max and len(encoded) + HEAD_BYTES_MAX > frame_bytes_max:
                self._refuse_large(queue, batch, frame_bytes_max, now_s)
            else:
                link.post(queue, encoded, now_s)

    def _refuse_large(self, queue: RoutedQueue, batch: ProducerBatch, limit: int, now_s: float) -> None:
        text = f"a batch of {batch.count} messages is larger than the broker's largest frame ({limit} bytes)"
        queue.withdraw(now_s)
        self._outstanding.fail(batch, MessageTooLarge(text))
        if queue.waiting and not queue.in_flight:
            self._stalled[queue] = None

    def _connect(self, link: BrokerLink, now_s: float) -> BrokerConnection | None:
        if now_s < link.resume_s:
            return None
        link.address = self._cluster.snapshot.brokers.get(link.broker_id, link.address)
        try:
            return link.connect(self._cluster.dial, now_s)
        except BrokerAway as error:
            self._on_link_failed(link, error, now_s)
            return None

    def _flush(self, link: BrokerLink, now_s: float) -> None:
        try:
            link.flush(now_s)
        except BrokerAway as error:
            self._on_link_failed(link, error, now_s)
            return
        for queue in link.take_sent():
            self._on_reply(queue, None, OFFSET_UNKNOWN, now_s)

    # ---- replies

    def _receive(self, link: BrokerLink, now_s: float) -> None:
        try:
            replies = link.receive()
        except ApplianceError as error:
            self._on_link_failed(link, error, now_s)
            return
        if replies and link.failures:
            link.failures = 0
            self._troubles.note_progress(link.name)
        for (_, code, base, _, _, message), _ in replies:
            queue, _ = link.awaiting.popleft()
            self._on_reply(queue, from_code(code, message) if code else None, base, now_s)

    def _on_reply(self, queue: RoutedQueue, error: ApplianceError | None, base: int, now_s: float) -> None:
        if isinstance(error, NotLeader | UnknownPartition | MessageTooLarge):
            # Another broker leads the partition by now, or the topic's size limit was lowered.
            self._background.stale_topics.add(queue.topic)
        troubled = error is not None or queue.draining
        if queue.waits_for_first and queue.waiting and queue.link is not None:
            queue.link.ready[queue] = None
        done = queue.on_reply(error, base, now_s)
        if done is not None:
            self._outstanding.complete(*done)
        if error is not None and done is None:
            self._note_trouble(queue, error)
        elif queue.trouble is not None:
            queue.trouble = None
            self._troubles.note_progress((queue.topic, queue.partition))
        if troubled and not queue.in_flight:
            if queue.link is not None:
                queue.link.ready.pop(queue, None)
                queue.link = None  # look up the leader again
            if queue.waiting:
                self._stalled[queue] = None

    def _on_link_failed(self, link: BrokerLink, error: ApplianceError, now_s: float) -> None:
        self._troubles.note_trouble(link.name, error)
        options = self._options
        doubled = min(link.failures, BACKOFF_DOUBLINGS_MAX)
        link.failures += 1
        link.resume_s = now_s + min(options.backoff_s * 2**doubled, options.backoff_s_max) * self._jitter()
        for queue in link.disconnect():
            queue.on_connection_lost(now_s)
            queue.link = None
            if queue.waiting:
                self._stalled[queue] = None
                self._background.stale_topics.add(queue.topic)

    def _note_trouble(self, queue: RoutedQueue, error: ApplianceError) -> None:
        queue.trouble = error
        self._troubles.note_trouble((queue.topic, queue.partition), error)

    # ---- every CHECK_S

    def _check_timeouts(self, now_s: float) -> None:
        """Check deadlines and timeouts, and try the stalled queues again."""
        for link in self._links.values():
            overdue = link.overdue(now_s, self._options.request_timeout_ms / 1000)
            if overdue is not None:
                self._on_link_failed(link, overdue, now_s)
        for queue in self.queues.values():
            if queue.waiting and queue.waiting[0].deadline_s <= now_s:
                cause = queue.trouble or self._oldest_trouble()
                for done in queue.expire(now_s, cause):
                    self._outstanding.complete(*done)
        stalled, self._stalled = self._stalled, {}
        for queue in stalled:
            if queue.waiting:
                self._make_ready(queue)

    def _oldest_trouble(self) -> ApplianceError | None:
        """The cause for a partition without a trouble of its own: the oldest one of a broker or the metadata."""
        if not self._troubles:
            return None
        return next((trouble.error for trouble in self._troubles.current() if trouble.topic_partition is None), None)
