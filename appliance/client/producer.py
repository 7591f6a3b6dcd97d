"""The producer: messages in, batches out, and for each message a word on what became of it.

    with Producer("127.0.0.1:9091") as producer:
        producer.send("logs", b"line")                                  # asynchronous
        sent = producer.send("logs", b"line", key=b"host-1").result()   # sent at once, and waited for
        producer.send_many("logs", lines)                               # the fast path for plain values

A batch is for one partition and is sent when it is full (``batch_bytes_max``, ``batch_messages_max``) or has
lingered for ``linger_ms``, whichever comes first.  Messages without key or partition go to a random
partition that takes messages, another one for each batch; a key decides by murmur2 as in Kafka's Java client.
Messages of one partition arrive in the order in which they were sent, also through retries (``partition_queue.py``),
unless ``idempotent=False``.

Messages in hand, until their callbacks have returned, are bounded by ``buffer_bytes_max``: beyond, ``send``
waits up to ``block_ms_max`` and then
raises :class:`~appliance.errors.BufferFull`; with 0 it raises at once.  Nothing is ever dropped silently:
every message is delivered or fails, at the latest ``delivery_timeout_ms`` after it was sent (or in
``close``).

``acks``: "all" (default): delivered when it is flushed to the disk; 1: when it is written; 0: when it has
left this process, which is all that is known then.  With 1 and "all" the producer is idempotent: a retry
never doubles.

Thread-safe.  Not fork-safe: a child that inherits a producer gets :class:`~appliance.errors.InvalidRequest`
from it, because messages and replies cannot be shared; make producers after forking.  Callbacks run in
whatever thread finds the reply; they may send, but must not wait.  What a callback raises stops no other one:
``flush`` and ``close`` raise it as :class:`~appliance.errors.CallbackFailed` when they are done; Ctrl-C goes through to
whoever was calling, and ``close`` still flushes.

Should this producer's thread end, or a call be interrupted in the middle of a step, every message that is not
delivered fails with :class:`~appliance.errors.ClientBroken`, and every call raises it.

Errors: BadValue for arguments of the constructor, InvalidRequest for a message that cannot be one,
MessageTooLarge, UnknownPartition, BufferFull from ``send``; everything else arrives in the delivery.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import random
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from ..errors import (
    ApplianceError,
    BadValue,
    BufferFull,
    ClientBroken,
    InvalidRequest,
    MessageTooLarge,
    NotLeader,
    RequestTimedOut,
    UnknownPartition,
)
from ..records.batch import HEADER_BYTES
from ..records.encode import Headers
from ..records.partitioner import partition_for
from .cluster_client import NO_BROKER, Cluster, TopicView
from .delivery import Batch, Delivery, OnDelivery
from .sender import Sender, SenderOptions
from .troubles import Trouble

logger = logging.getLogger(__name__)

BATCH_BYTES: Final = 1024
"""What a batch in hand costs beside its messages."""
PLAIN_BYTES: Final = 24
"""More than what a plain record takes beside its value."""
MESSAGE_BYTES_MAX_DEFAULT: Final = 1_048_588
KEYS_CACHED_MAX: Final = 10_000
ACKS: Final[dict[int | str, int]] = {0: 0, 1: 1, -1: -1, "all": -1, "0": 0, "1": 1, "-1": -1}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
CLOSE_AT_EXIT_S: Final = 10.0

_delivery = tuple.__new__


class _Topic:
    """What the producer keeps of a topic: its last view, the bound for batches, where keys go."""

    def __init__(self, view: TopicView, batch_bytes_max: int, codec: str) -> None:
        self.view = view
        self.count = len(view.leaders)
        self.message_bytes_max = int(view.settings.get("max.message.bytes", MESSAGE_BYTES_MAX_DEFAULT))
        # A batch that is compressed is smaller than it looks; what it will be nobody knows before.
        self.batch_bytes_max = min(batch_bytes_max, self.message_bytes_max) - HEADER_BYTES
        self.lone_bytes_max = self.message_bytes_max - HEADER_BYTES if codec == "none" else None
        self.keys: dict[bytes, int] = {}
        live = [partition for partition, leader in enumerate(view.leaders) if leader != NO_BROKER]
        self.live: Sequence[int] = live or range(self.count)

    def partition_of(self, key: bytes) -> int:
        partition = self.keys.get(key)
        if partition is None:
            if len(self.keys) >= KEYS_CACHED_MAX:
                self.keys.clear()
            partition = self.keys[key] = partition_for(key, self.count)
        return partition


class Producer:
    foreign = False  # inherited through a fork
    _closed = False

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
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        _require(codec in CODECS, f"codec={codec!r}: give one of {', '.join(CODECS)}")
        _at_least(0, linger_ms=linger_ms, block_ms_max=block_ms_max)
        _at_least(1, batch_messages_max=batch_messages_max, in_flight_max=in_flight_max)
        _at_least(1024, batch_bytes_max=batch_bytes_max)
        _at_least(batch_bytes_max, buffer_bytes_max=buffer_bytes_max)
        rng = rng or random.Random()
        self._codec = codec
        self._linger_s = linger_ms / 1000
        self._batch_bytes_max = batch_bytes_max
        self._batch_messages_max = batch_messages_max
        self._limit = batch_messages_max - 1 if linger_ms else 0
        self._buffer_bytes_max = buffer_bytes_max
        self._block_s_max = block_ms_max / 1000
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._clock = clock
        self._clock_ms = clock_ms
        self._choice = rng.choice
        self._pid = os.getpid()
        self._cluster = Cluster(bootstrap, client_name=client_name, request_timeout_ms=request_timeout_ms)
        options = _sender_options(
            acks,
            idempotent,
            codec,
            linger_ms,
            in_flight_max,
            request_timeout_ms,
            retry_backoff_ms,
            retry_backoff_ms_max,
        )
        jitter = functools.partial(rng.uniform, 0.8, 1.2)
        self._sender = Sender(self._cluster, options, self._seal_due, self._seal_all, clock=clock, jitter=jitter)
        self._lock: AbstractContextManager[Any] = self._sender.lock
        self._callbacks = self._sender.callbacks
        self._topics: dict[str, _Topic] = {}
        self._open: dict[tuple[str, int], Batch] = {}  # in the order of creation
        self._sticky: dict[str, Batch] = {}  # where plain values go
        _registry.add(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except ClientBroken as error:
            if kind is None:
                raise
            logger.error("%s", error)  # what is under way is not to be replaced by it

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
        """Put one message into a batch; returns at once unless the buffer is full or the topic not known yet.

        Args:
            timestamp: ms since 1970; by default about now (all messages of a batch share one reading of the
                clock).
            on_delivery: called once with (error or None, topic, partition, offset).
        """
        # The common case costs one lock, one append and one small tuple.
        if type(value) is bytes and key is None and partition is None and timestamp is None and not headers:
            size = len(value) + PLAIN_BYTES
            with self._lock:
                batch = self._sticky.get(topic)
                if batch is None or batch.left_bytes < size:
                    batch = self._another(topic, size)
                    if batch is not None and not batch.uniform:
                        batch = None  # it holds whole records: this value must become one
                if batch is not None:
                    batch.left_bytes -= size
                    items = batch.items
                    index = len(items)
                    items.append(value)
                    if on_delivery is not None:
                        _add_callback(batch, index, on_delivery)
                    if index >= batch.limit:
                        self._send_off(batch)
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
        """Any message, also the first one to a topic, and those that have to wait for room."""
        plain = timestamp is None and key is None and not headers and value is not None
        kept = _as_bytes(value, "value") if value is not None else None
        key = _as_bytes(key, "key") if key is not None else None
        if headers or timestamp is not None:
            _check_details(headers, timestamp)
        size = PLAIN_BYTES + (len(kept) if kept is not None else 0) + (len(key) if key is not None else 0)
        for name, detail in headers:
            size += PLAIN_BYTES + 4 * len(name) + (len(detail) if detail is not None else 0)
        known, partition = self._place(topic, key, partition, size)
        deadline_s: float | None = None
        while True:
            with self._lock:
                batch = self._batch_for(topic, known, partition, size, plain=plain)
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
                        _add_callback(batch, index, on_delivery)
                    self._sender.torn = False
                    if index >= batch.limit:
                        self._send_off(batch)
            if batch is not None:
                self._callbacks.run()
                return _delivery(Delivery, (batch, index))
            deadline_s = self._make_room(size, deadline_s)

    def send_many(self, topic: str, values: Iterable[bytes]) -> list[Delivery]:
        """Send plain values; returns the delivery of the last value in each batch: wait for all of them.

        When this raises, the values before the one that could not be sent have been.
        """
        rest = values if isinstance(values, list) else list(values)
        if not set(map(type, rest)) <= {bytes}:
            rest = [_as_bytes(value, "value") for value in rest]
        deliveries: list[Delivery] = []
        start, stop = 0, len(rest)
        deadline_s: float | None = None
        while start < stop:
            size = len(rest[start]) + PLAIN_BYTES
            known, _ = self._place(topic, None, None, size)
            with self._lock:
                batch = self._batch_for(topic, known, None, size, plain=True)
                if batch is not None:
                    start += self._add_values(batch, rest, start)
                    deliveries.append(_delivery(Delivery, (batch, len(batch.items) - 1)))
                    if len(batch.items) > batch.limit or batch.left_bytes <= PLAIN_BYTES:
                        self._send_off(batch)
            deadline_s = self._make_room(size, deadline_s) if batch is None else None
        self._callbacks.run()
        return deliveries

    def _add_values(self, batch: Batch, values: list[bytes], start: int) -> int:
        """Put as many of ``values[start:]`` into the batch as fit, at least one; how many."""
        chunk = values[start : start + self._batch_messages_max - len(batch.items)]
        size = sum(map(len, chunk)) + PLAIN_BYTES * len(chunk)
        while size > batch.left_bytes and len(chunk) > 1:
            fitting = max(1, min(len(chunk) - 1, len(chunk) * batch.left_bytes // size))
            chunk = chunk[:fitting]
            size = sum(map(len, chunk)) + PLAIN_BYTES * len(chunk)
        self._sender.torn = True
        batch.left_bytes -= size
        if batch.uniform:
            batch.items += chunk
        else:
            now_ms = self._clock_ms()
            batch.records().extend([(None, value, (), now_ms) for value in chunk])
        self._sender.torn = False
        return len(chunk)

    def partitions(self, topic: str) -> range:
        """The partitions that the topic has, as far as is known here; asks if nothing is."""
        self._check_usable()
        known = self._cluster.view.topics.get(topic)
        return range(len(known.leaders) if known is not None and not known.error else self._learn(topic).count)

    def troubles(self) -> list[Trouble]:
        """What this producer waits for at the moment, the oldest first: brokers, partitions, metadata."""
        return self._sender.troubles.current()

    @property
    def delivered(self) -> int:
        """How many messages have been delivered."""
        return self._sender.delivered

    @property
    def failure(self) -> Batch | None:
        """The first batch that was not delivered: its partition and error; None while there is none."""
        return self._sender.failure

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now and wait until all of it is delivered or has failed, and all callbacks have
        returned.

        Raises:
            RequestTimedOut: not within ``timeout`` seconds; the producer goes on trying.
            CallbackFailed: a callback raised; all the others have been called.
        """
        self._check_usable()
        self._flush(timeout)
        self._sender.check()

    def _flush(self, timeout: float | None) -> None:
        with self._lock:
            self._seal_all()
        sender = self._sender
        if not sender.drive(lambda: not sender.unsettled, timeout):
            raise RequestTimedOut(f"{len(sender.unsettled)} batches are still on their way after {timeout} s")

    def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds; what is not delivered then fails.  Closing twice does nothing.

        Raises:
            ClientBroken: the producer broke, or a callback failed; everything is closed all the same.
        """
        if self._closed:
            return
        try:
            self._flush(timeout)
        except RequestTimedOut:
            pass  # each message that is left says so itself
        finally:
            self._closed = True
            with self._lock:
                self._seal_all()
            self._sender.stop()
            self._cluster.close()
        self._sender.check()

    # ---- for deliveries

    def wait_for(self, batch: Batch, timeout: float | None) -> bool:
        """Send ``batch`` now and wait until it is settled."""
        self._check_usable(closed_ok=True)
        with self._lock:
            if self._open.get((batch.topic, batch.partition)) is batch:
                self._seal(batch)
        return self._sender.drive(lambda: batch.settled, timeout)

    def on_settled(self, batch: Batch, index: int, callback: OnDelivery) -> bool:
        """Have ``callback`` called; False when ``batch`` is settled already."""
        self._check_usable(closed_ok=True)
        with self._lock:
            if batch.settled:
                return False
            _add_callback(batch, index, callback)
            return True

    # ---- batches

    def _place(self, topic: str, key: bytes | None, partition: int | None, size: int) -> tuple[_Topic, int | None]:
        """The topic, and the partition that a message goes to; None: any."""
        self._check_usable()
        known = self._topics.get(topic)
        if known is None or self._cluster.view.topics.get(topic) is not known.view:
            known = self._learn(topic)
        if known.lone_bytes_max is not None and size - PLAIN_BYTES > known.lone_bytes_max:
            text = f"a message of {size} bytes; topic {topic!r} takes {known.message_bytes_max} (max.message.bytes)"
            raise MessageTooLarge(text)
        if partition is not None and not 0 <= partition < known.count:
            raise UnknownPartition(f"topic {topic!r} has the partitions 0 to {known.count - 1}, not {partition}")
        if partition is None and key is not None:
            partition = known.partition_of(key)
        return known, partition

    def _batch_for(self, topic: str, known: _Topic, partition: int | None, size: int, *, plain: bool) -> Batch | None:
        """An open batch with ``size`` bytes of room; None while the buffer is full."""
        self._check_usable()
        batch = self._find_open(topic, partition, size) or self._open_batch(topic, known, partition, size)
        if batch is not None and not plain and self._sticky.get(topic) is batch:
            del self._sticky[topic]  # it will not be uniform any more
        return batch

    def _another(self, topic: str, size: int) -> Batch | None:
        """A batch for a plain value that the present one has no room for; None where that takes more thought."""
        known = self._topics.get(topic)
        if known is None or self._cluster.view.topics.get(topic) is not known.view:
            return None
        if self._closed or self.foreign or not self._sender.is_whole():
            return None
        if known.lone_bytes_max is not None and size - PLAIN_BYTES > known.lone_bytes_max:
            return None
        batch = self._sticky.get(topic)
        if batch is not None:
            self._send_off(batch)
        return self._open_batch(topic, known, None, size)

    def _find_open(self, topic: str, partition: int | None, size: int) -> Batch | None:
        batch = self._sticky.get(topic) if partition is None else self._open.get((topic, partition))
        if batch is not None and batch.left_bytes < size:
            self._send_off(batch)
            return None
        return batch

    def _open_batch(self, topic: str, known: _Topic, partition: int | None, size: int) -> Batch | None:
        """A new batch, or the one open for a partition chosen at random; None while the buffer is full."""
        sticky = partition is None
        if partition is None:
            partition = known.live[0] if len(known.live) == 1 else self._choice(self._going(topic, known.live))
            batch = self._open.get((topic, partition))
            if batch is not None and batch.left_bytes >= size:
                if batch.uniform:
                    self._sticky[topic] = batch
                return batch
            if batch is not None:
                self._seal(batch)
        sender = self._sender
        bytes_max = known.batch_bytes_max if known.batch_bytes_max >= size else size
        if sender.buffered_bytes + bytes_max > self._buffer_bytes_max and sender.buffered_bytes:
            return None
        now_s = self._clock()
        deadline_s = now_s + self._delivery_timeout_s
        batch = Batch(self, topic, partition, bytes_max, self._limit, self._clock_ms(), now_s, deadline_s)
        sender.buffered_bytes += bytes_max
        self._open[topic, partition] = batch
        if sticky:
            self._sticky[topic] = batch
        sender.awaken()
        return batch

    def _going(self, topic: str, live: Sequence[int]) -> Sequence[int]:
        """The partitions that take messages at the moment, as far as is known; all, if none does."""
        troubles = self._sender.troubles
        if not troubles:
            return live
        return [partition for partition in live if (topic, partition) not in troubles] or live

    def _send_off(self, batch: Batch) -> None:
        """The batch is full."""
        self._seal(batch)
        self._sender.pump(self._clock(), False)

    def _seal(self, batch: Batch) -> None:
        sender = self._sender
        if not sender.is_whole() and batch.settled:
            return
        sender.torn = True
        topic = batch.topic
        sender.unsettled[batch] = None  # first: whatever is in there is settled in the end
        self._open.pop((topic, batch.partition), None)
        if self._sticky.get(topic) is batch:
            del self._sticky[topic]
        batch.count = len(batch.items)
        unused = batch.left_bytes - BATCH_BYTES
        batch.bytes -= unused
        sender.buffered_bytes -= unused
        sender.enqueue(sender.lane(topic, batch.partition), batch)
        sender.torn = False

    def _seal_all(self) -> None:
        for batch in list(self._open.values()):
            self._seal(batch)

    def _seal_due(self, now_s: float) -> float | None:
        """Seal what has lingered; when the next one will have.  Called by the sender, with the lock held."""
        while self._open:
            batch = next(iter(self._open.values()))
            due_s = batch.created_s + self._linger_s
            if due_s > now_s:
                return due_s
            self._seal(batch)
        return None

    def _make_room(self, size: int, deadline_s: float | None) -> float:
        """Wait until a batch may be opened, or the deadline; returns when that is, for the next time."""
        sender = self._sender
        if deadline_s is None:
            deadline_s = self._clock() + self._block_s_max
        wanted = self._buffer_bytes_max - max(self._batch_bytes_max, size)
        with self._lock:
            self._seal_all()  # what they reserve and do not use is room, too
        timeout_s = max(0.0, deadline_s - self._clock())
        if not sender.drive(lambda: sender.buffered_bytes <= max(0, wanted), timeout_s):
            raise BufferFull(
                f"{sender.buffered_bytes} of {self._buffer_bytes_max} bytes are still on their way after "
                f"{self._block_s_max:g} s: send slower, raise buffer_bytes_max or block_ms_max"
                + "".join(f"; {trouble}" for trouble in self.troubles())
            )
        return deadline_s

    # ---- topics

    def _learn(self, topic: str) -> _Topic:
        """Ask about a topic until it is known; one that does not exist is made if the appliance does that."""
        deadline_s = self._clock() + self._block_s_max
        pause_s = 0.01
        while True:
            try:
                self._sender.prepare()
                view = self._cluster.view.topics.get(topic) or self._cluster.refresh([topic]).topics[topic]
                if view.error == UnknownPartition.code:
                    self._cluster.admin("ensure_topic", {"name": topic})
                    self._cluster.refresh([topic])
                view = self._cluster.topic(topic)
                if not view.leaders:
                    raise NotLeader(f"topic {topic!r} has no partitions yet")
                break
            except ApplianceError as error:
                if not error.retriable or self._clock() + pause_s > deadline_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
        known = _Topic(view, self._batch_bytes_max, self._codec)
        self._topics[topic] = known
        return known

    def disown(self) -> None:
        """In a forked child: refuse everything.  Another thread may have held the lock, so it is not touched."""
        self.foreign = True
        self._lock = _Foreign(self._pid)

    def _check_usable(self, *, closed_ok: bool = False) -> None:
        if self._closed and not closed_ok:
            raise InvalidRequest("this producer is closed")
        if self.foreign:
            self._lock.__enter__()
        if self._sender.broken is not None and not closed_ok:
            raise self._sender.broken


class _Foreign(contextlib.nullcontext[Any]):
    """In place of the lock of a producer that another process made."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def __enter__(self) -> Any:
        raise InvalidRequest(f"this producer belongs to process {self._pid}: make one after forking")


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise BadValue(text)


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        _require(value >= least, f"{name}={value!r}: must be at least {least}")


def _sender_options(
    acks: int | str,
    idempotent: bool | None,
    codec: str,
    linger_ms: float,
    in_flight_max: int,
    request_timeout_ms: int,
    backoff_ms: float,
    backoff_ms_max: float,
) -> SenderOptions:
    number = ACKS.get(acks)
    if number is None:
        raise BadValue(f"acks={acks!r}: give 0, 1 or 'all'")
    _require(not (idempotent and number == 0), "idempotent=True needs acks=1 or 'all'")
    return SenderOptions(
        acks=number,
        codec=codec,
        linger_s=linger_ms / 1000,
        in_flight_max=in_flight_max,
        request_timeout_ms=request_timeout_ms,
        backoff_s=backoff_ms / 1000,
        backoff_s_max=backoff_ms_max / 1000,
        idempotent=number != 0 if idempotent is None else idempotent,
    )


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


def _add_callback(batch: Batch, index: int, callback: OnDelivery) -> None:
    if isinstance(batch.callbacks, list):
        batch.callbacks.append((index, callback))
    else:
        batch.callbacks = [(index, callback)]


class _Registry:
    """All producers of this process: closed at exit, so that a program that forgot to still delivers, and
    disowned in a forked child.
    """

    def __init__(self) -> None:
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._hooked = False

    def add(self, producer: Producer) -> None:
        if not self._hooked:
            self._hooked = True
            atexit.register(self._close_all)
            os.register_at_fork(after_in_child=self._disown_all)
        self._producers.add(producer)

    def _close_all(self) -> None:
        for producer in list(self._producers):
            if not producer.foreign:
                try:
                    producer.close(CLOSE_AT_EXIT_S)
                except ApplianceError as error:
                    logger.error("%s", error)

    def _disown_all(self) -> None:
        for producer in list(self._producers):
            producer.disown()


_registry = _Registry()
