"""The producer: it collects messages in batches, sends them, and reports for each message whether it was delivered.

Example::

    with Producer("127.0.0.1:9091") as producer:
        producer.send("logs", b"line")  # asynchronous
        sent = producer.send("logs", b"line", key=b"host-1").result()  # sends at once, and waits
        producer.send_many("logs", lines)  # the fast path for plain values

A batch is for one partition.  It is sent when it is full (``batch_bytes_max``, ``batch_messages_max``) or has lingered
for ``linger_ms``, whichever comes first.  Messages without key or partition go to a random partition that takes
messages, another one for each batch.  A key selects a partition by murmur2, as in Kafka's Java client.  Messages of one
partition arrive in the order of sending, also after retries (``partition_queue.py``), unless ``idempotent=False``.

``buffer_bytes_max`` bounds the messages whose callbacks have not returned yet.  Beyond that, ``send`` waits up to
``block_ms_max`` and then raises :class:`~appliance.errors.BufferFull`; with 0 it raises at once.  Nothing is dropped
silently: every message is delivered or fails, at the latest ``delivery_timeout_ms`` after it was sent (or in
``close``).

With a ``transactional_id`` it sends in transactions only: see ``transactions.py``.

``acks`` says when a message counts as delivered:

- "all" (default): when it is flushed to the disk;
- 1: when it is written;
- 0: when it has left this process; there is no reply.

With 1 and "all" the producer is idempotent: a retry never doubles a message.

Thread-safe.  Not fork-safe: in a forked child an inherited producer raises :class:`~appliance.errors.InvalidRequest`,
because messages and replies cannot be shared.  Make producers after forking.

Callbacks run in the thread that finds the reply.  They may send, but must not wait.  An exception in a callback does
not stop others: ``flush`` and ``close`` raise it as :class:`~appliance.errors.CallbackFailed` when they are done.
Ctrl-C is raised to the caller, and ``close`` still flushes.

If this producer's thread ends, or a call is interrupted in the middle of a step, every undelivered message fails with
:class:`~appliance.errors.ClientBroken`, and every call raises it.

Errors: BadValue for arguments of the constructor; InvalidRequest, MessageTooLarge, UnknownPartition and BufferFull from
``send``; all others are in the delivery.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..errors import (
    ApplianceError,
    BadValue,
    ClientBroken,
    InvalidRequest,
    MessageTooLarge,
    RequestTimedOut,
    TransactionAborted,
    UnknownPartition,
)
from ..records.batch import HEADER_BYTES
from ..records.encode import Headers
from .arguments import check_functions, check_least, function, partition_number, seconds, shown, topic_name
from .client_security import ClientSecurity
from .cluster_client import Cluster
from .delivery import Delivery, OnDelivery, ProducerBatch
from .group import GroupConsumer
from .known_topics import KnownTopic, KnownTopics
from .lifetime import ForeignLock, inherited, register
from .open_batches import OpenBatches
from .outgoing import PLAIN_BYTES, OutgoingMessage, check_block, outgoing, plain_values
from .producer_options import ProducerOptions, acks_number
from .sender import Sender
from .threads import fresh
from .transactions import ProducerStep, Transaction
from .troubles import Trouble

logger = logging.getLogger(__name__)

_delivery = tuple.__new__  # twice as fast as the constructor of a NamedTuple


class Producer:
    """See the module's docstring."""

    foreign = False  # inherited through a fork
    _closed = False
    _batches: OpenBatches

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: int | str = "all",
        codec: str = "none",
        linger_ms: float = 5,
        batch_bytes_max: int = 256 * 1024,
        batch_messages_max: int = 10_000,
        buffer_bytes_max: int = 32 * 1024 * 1024,
        block_ms_max: float = 60_000,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: float = 50,
        retry_backoff_ms_max: float = 1_000,
        in_flight_max: int = 1_000,
        idempotent: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        client_name: str = "",
        security: ClientSecurity | None = None,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        check_least(0, linger_ms=linger_ms, block_ms_max=block_ms_max, delivery_timeout_ms=delivery_timeout_ms)
        check_least(0, retry_backoff_ms=retry_backoff_ms, retry_backoff_ms_max=retry_backoff_ms_max)
        check_functions(clock=clock, clock_ms=clock_ms)
        number, rng = acks_number(acks), _checked_rng(rng)
        options = ProducerOptions(
            acks=number,
            codec=codec,
            linger_s=linger_ms / 1000,
            batch_bytes_max=batch_bytes_max,
            batch_messages_max=batch_messages_max,
            buffer_bytes_max=buffer_bytes_max,
            block_s_max=block_ms_max / 1000,
            delivery_timeout_s=delivery_timeout_ms / 1000,
            request_timeout_ms=request_timeout_ms,
            backoff_s=retry_backoff_ms / 1000,
            backoff_s_max=retry_backoff_ms_max / 1000,
            in_flight_max=in_flight_max,
            idempotent=number != 0 if idempotent is None else idempotent,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        self._clock, self._clock_ms, self._pid = clock, clock_ms, os.getpid()
        self._cluster = Cluster(bootstrap, security, client_name=client_name, request_timeout_ms=request_timeout_ms)
        seal_due, seal_all = lambda now_s: self._batches.seal_due(now_s), lambda: self._batches.seal_all()
        jitter = functools.partial(rng.uniform, 0.8, 1.2)
        self._sender = Sender(self._cluster, options, seal_due, seal_all, clock=clock, jitter=jitter)
        self._transactions = self._sender.transactions
        self._lock: AbstractContextManager[Any] = self._sender.lock
        self._callbacks = self._sender.callbacks
        self._topics = KnownTopics(self._cluster, options, clock=clock, prepare=self._sender.prepare)
        self._batches = OpenBatches(self, self._sender, options, clock=clock, clock_ms=clock_ms, choice=rng.choice)
        self._sticky = self._batches.sticky
        register(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except ClientBroken as error:
            if kind is None:
                raise
            logger.error("%s", error)  # it must not replace the exception under way

    # ---- sending

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Put one message into a batch.  Returns at once unless the buffer is full or the topic is not known yet.

        Args:
            timestamp: ms since 1970; by default about now (the clock is read once for plain messages of a batch).
            on_delivery: called once with (error or None, topic, partition, offset).
        """
        # The common case costs one lock, one append and one small tuple.
        if (
            (type(value) is bytes and type(topic) is str)
            and (key is None and partition is None and timestamp is None)
            and headers == ()
            and (on_delivery is None or callable(on_delivery))
        ):
            size = len(value) + PLAIN_BYTES
            with self._lock:
                batch = self._sticky.get(topic)
                if batch is None or batch.left_bytes < size:
                    batch = self._another_sticky(topic, size)
                    if batch is not None and not batch.uniform:
                        batch = None  # it holds whole records: this value must become one
                if batch is not None:
                    batch.left_bytes -= size
                    items = batch.items
                    index = len(items)
                    items.append(value)
                    if on_delivery is not None:
                        batch.add_callback(index, on_delivery)
                    if index >= batch.limit:
                        self._batches.send_off(batch)
            if batch is not None:
                if self._callbacks.pending:
                    self._callbacks.run()
                return _delivery(Delivery, (batch, index))
        return self._send_any(topic, value, key, headers, timestamp, partition, on_delivery)

    def _send_any(self, *message: Any) -> Delivery:
        """Send any message, also the first one to a topic, and one that must wait for free buffer."""
        checked = outgoing(*message)
        deadline_s: float | None = None
        while (delivery := self.offer(checked)) is None:
            deadline_s = self.make_way(checked.topic, checked.size, deadline_s)
        return delivery

    def send_many(self, topic: str, values: Iterable[bytes]) -> list[Delivery]:
        """Send plain values.  Returns the delivery of the last value in each batch: wait for all of them.

        When this raises, the values before the failing one have been sent.
        """
        topic_name(topic)
        checked = plain_values(values)
        deliveries: list[Delivery] = []
        start = 0
        deadline_s: float | None = None
        while start < len(checked):
            taken = self.offer_values(topic, checked, start)
            if taken is None:
                deadline_s = self.make_way(topic, len(checked[start]) + PLAIN_BYTES, deadline_s)
            else:
                start, delivery = taken
                deliveries.append(delivery)
                deadline_s = None
        return deliveries

    def send_block(
        self,
        topic: str,
        partition: int,
        values: list[bytes],
        *,
        tails: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Send values as one batch of their own: for programs that read in blocks and account for each.

        Args:
            values: kept until the batch is done: do not change the list.
            tails: the headers of each, from :func:`appliance.records.encode.encode_headers`.
            keys: the key of each; None: they have none.
            on_delivery: called once, with the offset of the first message; those of the others follow it.

        Raises:
            MessageTooLarge: together they take more than :meth:`block_bytes_max`.
        """
        topic_name(topic)
        partition_number(partition)
        function("on_delivery", on_delivery)
        check_block(values, tails, keys, timestamp)
        size = sum(map(len, values)) + sum(map(len, tails)) + sum(map(len, keys or ())) + PLAIN_BYTES * len(values)
        if size > (limit := self.block_bytes_max(topic)):
            raise MessageTooLarge(f"a block of {size} bytes; the topic {topic!r} takes {limit}")
        known_topic = self._topics.current(topic) or self._topics.learn(topic)
        if not 0 <= partition < known_topic.count:
            raise UnknownPartition(f"{topic}-{partition}: the topic has {known_topic.count} partitions")
        deadline_s: float | None = None
        while True:
            with self._lock:
                self._check_usable()
                batch = self._batches.open_block(topic, partition, size)
                if batch is not None:
                    self._sender.torn = True
                    batch.items, batch.tails, batch.keys = values, tails, keys
                    batch.left_bytes -= size
                    if timestamp is not None:
                        batch.timestamp = timestamp
                    if on_delivery is not None:
                        batch.add_callback(0, on_delivery)
                    self._sender.torn = False
                    self._batches.send_off(batch)
            if batch is not None:
                self._callbacks.run()
                return _delivery(Delivery, (batch, len(values) - 1))
            deadline_s = self._batches.make_room(size, deadline_s)

    def block_bytes_max(self, topic: str) -> int:
        """The largest block that the topic takes: bytes of values, headers and keys, and PLAIN_BYTES for each value."""
        self._check_usable()
        topic_name(topic)
        known_topic = self._topics.current(topic) or self._topics.learn(topic)
        return known_topic.message_bytes_max - HEADER_BYTES

    def partitions(self, topic: str) -> range:
        """The partitions of the topic, from the last metadata; requests them if there are none."""
        self._check_usable()
        topic_name(topic)
        snapshot = self._cluster.snapshot.topics.get(topic)
        return range(
            len(snapshot.leaders) if snapshot is not None and not snapshot.error else self._topics.learn(topic).count
        )

    def troubles(self) -> list[Trouble]:
        """What this producer waits for at the moment, the oldest first: brokers, partitions, metadata."""
        return self._sender.troubles.current()

    @property
    def delivered(self) -> int:
        """How many messages have been delivered."""
        return self._sender.outstanding.delivered

    @property
    def failure(self) -> ProducerBatch | None:
        """The first batch that was not delivered: its partition and error; None while there is none."""
        return self._sender.outstanding.failure

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now; wait until all of it is delivered or has failed, and all callbacks have returned.

        Raises:
            RequestTimedOut: not within ``timeout`` seconds; the producer goes on trying.
            CallbackFailed: a callback raised; all the others have been called.
        """
        self._check_usable()
        self._flush(seconds(timeout))
        self._sender.raise_error()

    def _flush(self, timeout: float | None) -> None:
        with self._lock:
            self._batches.seal_all()
        batches = self._sender.outstanding.batches
        if not self._sender.drive(lambda: not batches, timeout):
            raise RequestTimedOut(f"{len(batches)} batches are still on their way after {timeout} s")

    # ---- transactions

    def transaction(self, consumer: GroupConsumer | None = None) -> Transaction:
        """A transaction, as a context: see ``transactions.py``.

        Args:
            consumer: a group consumer that commits nothing by itself; the transaction commits what it has handed out.

        Raises:
            InvalidRequest: this producer has no transactional_id, or the consumer commits by itself, or is none.
        """
        self._check_usable()
        if consumer is not None and not isinstance(consumer, GroupConsumer):
            raise InvalidRequest(f"consumer={shown(consumer)}: give a GroupConsumer")
        if self._transactions is None:
            raise InvalidRequest("this producer has no transactional_id")
        if consumer is not None:
            consumer.check_transactional()
        return Transaction(self._transactions, self, consumer)

    def begin_transaction(self) -> None:
        """For the transaction: see :class:`.transactions.Sending`, as the next three."""
        self._check_usable()
        self._sender.begin_transaction()

    def check_may_wait(self) -> None:
        if self._callbacks.is_here:
            raise InvalidRequest("a delivery callback must not wait: begin and end transactions outside of it")

    def deliver(self) -> ApplianceError | None:
        with self._lock:
            self._batches.seal_all()
        self._sender.add_partitions()
        batches = self._sender.outstanding.batches
        if not self._sender.drive(lambda: not batches, None):
            return RequestTimedOut(f"{len(batches)} batches are still on their way")  # in a callback
        failure = self._sender.outstanding.failure
        return failure.error if failure is not None else self._sender.broken

    def drop(self, deadline_s: float | None = None) -> bool:
        with self._lock:
            self._batches.seal_all()
        return self._sender.drop(TransactionAborted("the transaction was aborted before this was sent"), deadline_s)

    # ---- the end

    def close(self, timeout: float | None = None) -> None:
        """Abort an open transaction and flush, for up to ``timeout`` seconds, then fail undelivered messages.

        Closing twice does nothing.  In a delivery callback, which must not wait, it leaves an open transaction to the
        appliance, which aborts it when its time is up.

        Raises:
            ClientBroken: the producer broke, or a callback failed.  Everything is closed nevertheless.
        """
        timeout_s = seconds(timeout)
        if self._closed:
            return
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        try:
            if self._transactions is not None and self._transactions.state is ProducerStep.OPEN:
                self._transactions.abort(self, deadline_s)
            self._flush(None if deadline_s is None else max(0.0, deadline_s - self._clock()))
        except RequestTimedOut:
            pass  # each message that is left gets an error of its own
        finally:
            self._closed = True
            with self._lock:
                self._batches.seal_all()
            self._sender.stop()
            self._cluster.close()
        self._sender.raise_error()

    # ---- for deliveries

    def wait_for(self, batch: ProducerBatch, timeout: float | None) -> bool:
        """Send ``batch`` now and wait until it is done."""
        self._check_usable(closed_ok=True)
        with self._lock:
            self._batches.seal_if_open(batch)
        return self._sender.drive(lambda: batch.done, timeout)

    def call_when_done(self, batch: ProducerBatch, index: int, callback: OnDelivery) -> bool:
        """Add a callback.  False if ``batch`` is done already."""
        self._check_usable(closed_ok=True)
        with self._lock:
            if batch.done:
                return False
            batch.add_callback(index, callback)
            return True

    def hurry(self, batches: Iterable[ProducerBatch]) -> None:
        """Send these batches without lingering, and wait for none."""
        with self._lock:
            for batch in batches:
                self._batches.seal_if_open(batch)
            self._sender.pump(self._clock(), True, stays=False)
        self._callbacks.run()

    # ---- where a message goes, in steps of which only ``make_way`` waits

    def offer(self, message: OutgoingMessage) -> Delivery | None:
        """Put a message into a batch.  None if that takes waiting: :meth:`make_way`, and offer it again.

        Raises:
            MessageTooLarge, UnknownPartition: the topic does not take it.
        """
        topic, value, key, headers, timestamp, partition, on_delivery, plain, size = message
        destination = self._destination(topic, key, partition, size)
        if destination is None:
            return None
        known_topic, partition = destination
        with self._lock:
            self._check_usable()
            batch = self._batches.batch_with_room(topic, known_topic, partition, size, plain=plain)
            if batch is not None:
                index = len(batch.items)
                self._sender.torn = True
                batch.left_bytes -= size
                if plain and batch.uniform:
                    batch.items.append(value)
                else:
                    now_ms = self._clock_ms() if timestamp is None else timestamp
                    batch.records().append((key, value, headers, now_ms))
                if on_delivery is not None:
                    batch.add_callback(index, on_delivery)
                self._sender.torn = False
                if index >= batch.limit:
                    self._batches.send_off(batch)
        if batch is None:
            return None
        if self._callbacks.pending:
            self._callbacks.run()
        return _delivery(Delivery, (batch, index))

    def offer_values(self, topic: str, values: list[bytes], start: int) -> tuple[int, Delivery] | None:
        """Put plain values from ``start`` on into one batch, as many as it takes; None as for :meth:`offer`.

        Returns which value is next, and the delivery of the one before it.
        """
        size = len(values[start]) + PLAIN_BYTES
        destination = self._destination(topic, None, None, size)
        if destination is None:
            return None
        with self._lock:
            self._check_usable()
            batch = self._batches.batch_with_room(topic, destination[0], None, size, plain=True)
            if batch is not None:
                start += self._batches.add_values(batch, values, start)
                delivery = _delivery(Delivery, (batch, len(batch.items) - 1))
                if len(batch.items) > batch.limit or batch.left_bytes <= PLAIN_BYTES:
                    self._batches.send_off(batch)
        if batch is None:
            return None
        self._callbacks.run()
        return start, delivery

    def make_way(self, topic: str, size: int, deadline_s: float | None) -> float | None:
        """Wait for what the topic's next message of this size lacks.  Returns the deadline, for the next call.

        Raises:
            ApplianceError: the topic cannot be used, or was not known within ``block_ms_max``.
            BufferFull: there was no room by the deadline.
        """
        self._check_usable()
        if self._topics.current(topic) is None:
            self._topics.learn(topic)
            return deadline_s
        return self._batches.make_room(size, deadline_s)

    def knows(self, topic: str) -> bool:
        """Whether the topic's next message waits for nothing but room."""
        return self._topics.current(topic) is not None

    def _destination(
        self, topic: str, key: bytes | None, partition: int | None, size: int
    ) -> tuple[KnownTopic, int | None] | None:
        """The topic, and the partition for a message (None: any); None while the topic is not known."""
        known_topic = self._topics.current(topic)
        if known_topic is None:
            return None
        if known_topic.lone_bytes_max is not None and size - PLAIN_BYTES > known_topic.lone_bytes_max:
            text = (
                f"a message of {size} bytes; topic {topic!r} takes {known_topic.message_bytes_max} (max.message.bytes)"
            )
            raise MessageTooLarge(text)
        if partition is not None and not 0 <= partition < known_topic.count:
            raise UnknownPartition(f"topic {topic!r} has the partitions 0 to {known_topic.count - 1}, not {partition}")
        if partition is None and key is not None:
            partition = known_topic.partition_of(key)
        return known_topic, partition

    def _another_sticky(self, topic: str, size: int) -> ProducerBatch | None:
        """A new sticky batch for a plain value that did not fit; None where ``_send_any`` must handle the message."""
        known_topic = self._topics.current(topic)
        if known_topic is None or self._closed or self.foreign or not self._sender.is_whole():
            return None
        if known_topic.lone_bytes_max is not None and size - PLAIN_BYTES > known_topic.lone_bytes_max:
            return None
        return self._batches.renew_sticky(topic, known_topic, size)

    def disown(self) -> None:
        """In a forked child: refuse every call.  Another thread may have held the lock, so it is replaced."""
        self.foreign = True
        self._lock = ForeignLock(inherited("producer", self._pid))

    def _check_usable(self, *, closed_ok: bool = False) -> None:
        if self._closed and not closed_ok:
            raise InvalidRequest("this producer is closed")
        if self.foreign:
            self._lock.__enter__()
        if self._sender.broken is not None and not closed_ok:
            raise fresh(self._sender.broken)


def _checked_rng(rng: random.Random | None) -> random.Random:
    if rng is not None and not isinstance(rng, random.Random):
        raise BadValue(f"rng={shown(rng)}: give a random.Random")
    return rng or random.Random()
