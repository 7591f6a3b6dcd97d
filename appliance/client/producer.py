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
    ClientBroken,
    InvalidRequest,
    MessageTooLarge,
    RequestTimedOut,
    UnknownPartition,
)
from ..records.batch import HEADER_BYTES
from ..records.encode import Headers
from .client_security import ClientSecurity
from .cluster_client import Cluster
from .delivery import Batch, Delivery, OnDelivery
from .known_topics import KnownTopic, KnownTopics
from .lifetime import ForeignLock, register
from .open_batches import PLAIN_BYTES, OpenBatches
from .producer_options import ProducerOptions, acks_number
from .sender import Sender
from .threads import fresh
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
        client_name: str = "",
        security: ClientSecurity | None = None,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        number = acks_number(acks)
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
        )
        rng = rng or random.Random()
        self._clock_ms, self._pid = clock_ms, os.getpid()
        self._cluster = Cluster(bootstrap, security, client_name=client_name, request_timeout_ms=request_timeout_ms)
        seal_due, seal_all = lambda now_s: self._batches.seal_due(now_s), lambda: self._batches.seal_all()
        jitter = functools.partial(rng.uniform, 0.8, 1.2)
        self._sender = Sender(self._cluster, options, seal_due, seal_all, clock=clock, jitter=jitter)
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
        if type(value) is bytes and key is None and partition is None and timestamp is None and not headers:
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

    def _send_any(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp: int | None,
        partition: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        """Send any message, also the first one to a topic, and one that must wait for free buffer."""
        plain = timestamp is None and key is None and not headers and value is not None
        kept = _as_bytes(value, "value") if value is not None else None
        key = _as_bytes(key, "key") if key is not None else None
        if headers or timestamp is not None:
            _check_details(headers, timestamp)
        size = PLAIN_BYTES + (len(kept) if kept is not None else 0) + (len(key) if key is not None else 0)
        for name, detail in headers:
            size += PLAIN_BYTES + 4 * len(name) + (len(detail) if detail is not None else 0)
        known, partition = self._destination(topic, key, partition, size)
        deadline_s: float | None = None
        while True:
            with self._lock:
                self._check_usable()
                batch = self._batches.take(topic, known, partition, size, plain=plain)
                if batch is not None:
                    index = len(batch.items)
                    self._sender.torn = True
                    batch.left_bytes -= size
                    if plain and batch.uniform:
                        batch.items.append(kept)
                    else:
                        records = batch.records()
                        records.append((key, kept, headers, self._clock_ms() if timestamp is None else timestamp))
                    if on_delivery is not None:
                        batch.add_callback(index, on_delivery)
                    self._sender.torn = False
                    if index >= batch.limit:
                        self._batches.send_off(batch)
            if batch is not None:
                self._callbacks.run()
                return _delivery(Delivery, (batch, index))
            deadline_s = self._batches.make_room(size, deadline_s)

    def send_many(self, topic: str, values: Iterable[bytes]) -> list[Delivery]:
        """Send plain values.  Returns the delivery of the last value in each batch: wait for all of them.

        When this raises, the values before the failing one have been sent.
        """
        rest = values if isinstance(values, list) else list(values)
        if not set(map(type, rest)) <= {bytes}:
            rest = [_as_bytes(value, "value") for value in rest]
        deliveries: list[Delivery] = []
        start, stop = 0, len(rest)
        deadline_s: float | None = None
        while start < stop:
            size = len(rest[start]) + PLAIN_BYTES
            known, _ = self._destination(topic, None, None, size)
            with self._lock:
                self._check_usable()
                batch = self._batches.take(topic, known, None, size, plain=True)
                if batch is not None:
                    start += self._batches.add_values(batch, rest, start)
                    deliveries.append(_delivery(Delivery, (batch, len(batch.items) - 1)))
                    if len(batch.items) > batch.limit or batch.left_bytes <= PLAIN_BYTES:
                        self._batches.send_off(batch)
            deadline_s = self._batches.make_room(size, deadline_s) if batch is None else None
        self._callbacks.run()
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
        if not values:
            raise InvalidRequest("a block has at least one message")
        size = sum(map(len, values)) + sum(map(len, tails)) + sum(map(len, keys or ())) + PLAIN_BYTES * len(values)
        if size > (limit := self.block_bytes_max(topic)):
            raise MessageTooLarge(f"a block of {size} bytes; the topic {topic!r} takes {limit}")
        known = self._topics.current(topic) or self._topics.learn(topic)
        if not 0 <= partition < known.count:
            raise UnknownPartition(f"{topic}-{partition}: the topic has {known.count} partitions")
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
        known = self._topics.current(topic) or self._topics.learn(topic)
        return known.message_bytes_max - HEADER_BYTES

    def partitions(self, topic: str) -> range:
        """The partitions of the topic, from the last metadata; requests them if there are none."""
        self._check_usable()
        known = self._cluster.snapshot.topics.get(topic)
        return range(len(known.leaders) if known is not None and not known.error else self._topics.learn(topic).count)

    def troubles(self) -> list[Trouble]:
        """What this producer waits for at the moment, the oldest first: brokers, partitions, metadata."""
        return self._sender.troubles.current()

    @property
    def delivered(self) -> int:
        """How many messages have been delivered."""
        return self._sender.outstanding.delivered

    @property
    def failure(self) -> Batch | None:
        """The first batch that was not delivered: its partition and error; None while there is none."""
        return self._sender.outstanding.failure

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now; wait until all of it is delivered or has failed, and all callbacks have returned.

        Raises:
            RequestTimedOut: not within ``timeout`` seconds; the producer goes on trying.
            CallbackFailed: a callback raised; all the others have been called.
        """
        self._check_usable()
        self._flush(timeout)
        self._sender.check()

    def _flush(self, timeout: float | None) -> None:
        with self._lock:
            self._batches.seal_all()
        batches = self._sender.outstanding.batches
        if not self._sender.drive(lambda: not batches, timeout):
            raise RequestTimedOut(f"{len(batches)} batches are still on their way after {timeout} s")

    def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds, then fail undelivered messages.  Closing twice does nothing.

        Raises:
            ClientBroken: the producer broke, or a callback failed.  Everything is closed nevertheless.
        """
        if self._closed:
            return
        try:
            self._flush(timeout)
        except RequestTimedOut:
            pass  # each message that is left gets an error of its own
        finally:
            self._closed = True
            with self._lock:
                self._batches.seal_all()
            self._sender.stop()
            self._cluster.close()
        self._sender.check()

    # ---- for deliveries

    def wait_for(self, batch: Batch, timeout: float | None) -> bool:
        """Send ``batch`` now and wait until it is done."""
        self._check_usable(closed_ok=True)
        with self._lock:
            self._batches.seal_if_open(batch)
        return self._sender.drive(lambda: batch.done, timeout)

    def call_when_done(self, batch: Batch, index: int, callback: OnDelivery) -> bool:
        """Add a callback.  False if ``batch`` is done already."""
        self._check_usable(closed_ok=True)
        with self._lock:
            if batch.done:
                return False
            batch.add_callback(index, callback)
            return True

    # ---- where a message goes

    def _destination(
        self, topic: str, key: bytes | None, partition: int | None, size: int
    ) -> tuple[KnownTopic, int | None]:
        """The topic, and the partition for a message; None: any."""
        self._check_usable()
        known = self._topics.current(topic) or self._topics.learn(topic)
        if known.lone_bytes_max is not None and size - PLAIN_BYTES > known.lone_bytes_max:
            text = f"a message of {size} bytes; topic {topic!r} takes {known.message_bytes_max} (max.message.bytes)"
            raise MessageTooLarge(text)
        if partition is not None and not 0 <= partition < known.count:
            raise UnknownPartition(f"topic {topic!r} has the partitions 0 to {known.count - 1}, not {partition}")
        if partition is None and key is not None:
            partition = known.partition_of(key)
        return known, partition

    def _another_sticky(self, topic: str, size: int) -> Batch | None:
        """A new sticky batch for a plain value that did not fit; None where ``_send_any`` must handle the message."""
        known = self._topics.current(topic)
        if known is None or self._closed or self.foreign or not self._sender.is_whole():
            return None
        if known.lone_bytes_max is not None and size - PLAIN_BYTES > known.lone_bytes_max:
            return None
        return self._batches.renew_sticky(topic, known, size)

    # ---- the end

    def disown(self) -> None:
        """In a forked child: refuse every call.  Another thread may have held the lock, so it is replaced."""
        self.foreign = True
        self._lock = ForeignLock(self._pid)

    def _check_usable(self, *, closed_ok: bool = False) -> None:
        if self._closed and not closed_ok:
            raise InvalidRequest("this producer is closed")
        if self.foreign:
            self._lock.__enter__()
        if self._sender.broken is not None and not closed_ok:
            raise fresh(self._sender.broken)


def _as_bytes(value: Any, what: str) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest(f"a message's {what} is bytes, not {type(value).__name__}: encode it first")


def _check_details(headers: Headers, timestamp: int | None) -> None:
    if timestamp is not None and (not isinstance(timestamp, int) or timestamp < 0):
        raise InvalidRequest(f"timestamp {timestamp!r}: give milliseconds since 1970")
    for pair in headers:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InvalidRequest(f"header {pair!r}: give pairs of a name and bytes (or None)")
        if not isinstance(pair[1], bytes | None):
            raise InvalidRequest(f"header {pair[0]!r}: its value is bytes or None")
