"""Links a producer to one broker: the connection, the requests in flight, the partition queues that wait to send."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..errors import ApplianceError, RequestTimedOut
from ..wire.native import ProduceHead
from .broker_connection import Address, BrokerConnection, ConnectionReply
from .partition_queue import PartitionQueue

CONNECT_TIMEOUT_S: Final = 5.0
STILL_S: Final = 0.05
"""A broker that has not answered for so long is not about to."""


class RoutedQueue(PartitionQueue):
    """A partition queue with the link to the partition's leader; None while the leader is not known."""

    link: BrokerLink | None = None
    trouble: ApplianceError | None = None  # why the queue makes no progress; None while it does

    def __init__(self, topic: str, partition: int, head: ProduceHead, **options: Any) -> None:
        super().__init__(topic, partition, **options)
        self.head = head


class BrokerLink:
    """One broker and the connection to it, which is opened when there is something to send."""

    def __init__(self, broker_id: int, address: Address, epoll: select.epoll, *, expects_replies: bool) -> None:
        self.broker_id = broker_id
        self.address = address
        self.connection: BrokerConnection | None = None
        self.ready: dict[RoutedQueue, None] = {}  # an ordered set: queues that may have something to send
        self.awaiting: deque[tuple[RoutedQueue, float]] = deque()  # in the order of requests, with the time of each
        self.flushed_s = 0.0
        self.resume_s = 0.0
        self.failures = 0
        self._epoll = epoll
        self._expects_replies = expects_replies
        self._unsent: deque[tuple[RoutedQueue, int]] = deque()  # acks=0: done when this many bytes are written
        self._posted_bytes = 0
        self._blocked = False  # the socket takes no more for now
        self._events = 0
        self._connected_s = 0.0

    @property
    def name(self) -> str:
        return f"appliance {self.broker_id}"

    @property
    def in_use(self) -> bool:
        """Whether bytes or replies are on their way."""
        connection = self.connection
        return connection is not None and bool(self.awaiting or self._unsent or connection.out_bytes or self.ready)

    def stands_still(self, now_s: float) -> bool:
        """Whether what is in use has waited for its broker for long."""
        connection = self.connection
        assert connection is not None
        since_s = self.awaiting[0][1] if connection.greeted and self.awaiting else self._connected_s
        return now_s - since_s > STILL_S and (bool(self.awaiting) or not connection.greeted)

    def connect(self, dial: Callable[[Address], BrokerConnection], now_s: float) -> BrokerConnection:
        """Begin to connect.

        Raises:
            BrokerAway: connecting failed at once.
        """
        connection = self.connection = dial(self.address)
        self._connected_s = now_s
        self._posted_bytes = connection.out_bytes
        self._blocked = connection.connecting
        self._events = 0
        self._watch()
        return connection

    def disconnect(self) -> list[RoutedQueue]:
        """Drop the connection.  Returns the queues whose batches were in flight, and those that were ready."""
        if self.connection is not None:
            self._epoll.unregister(self.connection.fileno())
            self.connection.close()
            self.connection = None
        queues = [queue for queue, _ in self.awaiting] + [queue for queue, _ in self._unsent]
        unanswered = [*dict.fromkeys(queues), *self.ready]
        self.awaiting.clear()
        self._unsent.clear()
        self.ready.clear()
        return unanswered

    def post(self, queue: RoutedQueue, encoded: bytes, now_s: float) -> None:
        """Queue one produce request on the connection."""
        connection = self.connection
        assert connection is not None
        connection.post_batch(queue.head, encoded, self._expects_replies)
        if self._expects_replies:
            self.awaiting.append((queue, now_s))
        else:
            self._posted_bytes += queue.head.bytes + len(encoded)
            self._unsent.append((queue, self._posted_bytes))

    def flush(self, now_s: float) -> None:
        """Write as much as the socket takes.

        Raises:
            BrokerAway: the connection is gone.
        """
        connection = self.connection
        assert connection is not None
        self.flushed_s = now_s
        self._blocked = not connection.flush() and connection.wants_write
        self._watch()

    def take_sent(self) -> Iterator[RoutedQueue]:
        """With acks=0: the queues of the batches that were written to the socket, one entry for each batch."""
        assert self.connection is not None
        sent_bytes = self._posted_bytes - self.connection.out_bytes
        while self._unsent and self._unsent[0][1] <= sent_bytes:
            yield self._unsent.popleft()[0]

    def receive(self) -> list[ConnectionReply]:
        """The replies that have arrived.

        Raises:
            ApplianceError: the connection is gone, or the received bytes are no reply.
        """
        connection = self.connection
        if connection is None:
            return []
        if connection.connecting:  # what was posted follows the handshake
            self.flush(self.flushed_s)
        return connection.receive()

    def overdue(self, now_s: float, request_timeout_s: float) -> RequestTimedOut | None:
        """The error if the broker has not answered, or not taken bytes, in time; else None."""
        connection = self.connection
        if connection is None:
            return None
        if not connection.greeted and now_s >= self._connected_s + CONNECT_TIMEOUT_S:
            return RequestTimedOut(f"{connection} did not answer within {CONNECT_TIMEOUT_S:g} s")
        if self.awaiting:
            queue, sent_s = self.awaiting[0]
            if now_s >= min(sent_s + request_timeout_s, queue.in_flight[0].deadline_s):
                return RequestTimedOut(f"{connection} did not answer within {now_s - sent_s:.1f} s")
        if self._unsent and now_s >= self._unsent[0][0].in_flight[0].deadline_s:
            return RequestTimedOut(f"{connection} takes no more bytes")
        return None

    def _watch(self) -> None:
        """Set the events that epoll reports: writability only while the socket's buffer is full."""
        assert self.connection is not None
        events = select.EPOLLIN | (select.EPOLLOUT if self._blocked else 0)
        if events != self._events:
            (self._epoll.modify if self._events else self._epoll.register)(self.connection.fileno(), events)
            self._events = events
