"""Counts delivered messages and publishes the counts: the producer's side of the paper's audit.

Example::

    with Producer(address) as producer, Audit(producer, "audit") as audit:
        audit.send("logs", b"line")
        audit.send_many("logs", lines)

The audit counts delivered messages per topic and fixed window of time, by their timestamps.  It publishes the counts as
messages of another topic: every ``publish_ms`` while messages are sent, and the rest when it is closed.  A reader of
both topics can find lost or duplicated messages (``appliance.spark.pipeline.audit_verdicts`` does).  A count is
published once.  The counts of one window, in several messages or from several servers, add up::

    {"server": "web-1", "topic": "logs", "window_start_ms": 1795219200000, "window_ms": 60000, "count": 123}

Failed messages are not counted: their senders got an error.  When counts could not be delivered, the next ``publish``
or ``close`` raises the error and sends them again.

Not thread-safe by itself; use one for each thread that sends, over the same producer.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from ..errors import ApplianceError, BadValue
from .arguments import check_functions, check_texts, check_whole, several, shown, topic_name
from .delivery import Delivery, ProducerBatch
from .producer import Producer

Window = tuple[str, int]
"""A topic, and the start of a window in ms."""
WINDOW_MS: Final = 60_000
PUBLISH_MS: Final = 10_000
BATCHES_MAX: Final = 10_000
"""Most unfinished batches; beyond that, finished ones are counted before the next publication."""


class Audit:
    """Wraps a producer and counts the messages that are sent through it.

    Args:
        topic: topic of the counts; it is not counted itself.
        server: name of the sender in the counts; by default the host's name.
        window_ms: the same as in the pipeline, or a divisor of it.
        publish_ms: interval of the publications.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        server: str = "",
        window_ms: int = WINDOW_MS,
        publish_ms: int = PUBLISH_MS,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        if not isinstance(producer, Producer):
            raise BadValue(f"producer={shown(producer)}: give a Producer")
        topic_name(topic)
        check_texts(server=server)
        check_whole(1, window_ms=window_ms, publish_ms=publish_ms)
        check_functions(clock_ms=clock_ms)
        self._producer = producer
        self._topic = topic
        self._server = server or socket.gethostname()
        self._window_ms = window_ms
        self._publish_ms = publish_ms
        self._clock_ms = clock_ms
        self._published_ms = clock_ms()
        self._under_way: dict[ProducerBatch, Counter[int]] = {}
        self._delivered: Counter[Window] = Counter()
        self._unconfirmed: list[tuple[Delivery, Window, int]] = []

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, topic: str, value: bytes | None, *, timestamp: int | None = None, **options: Any) -> Delivery:
        """As the producer's ``send``; ``timestamp`` is now if none is given."""
        if topic == self._topic:
            raise BadValue(f"{topic!r} is the topic of the counts: it is not counted itself")
        stamp = self._clock_ms() if timestamp is None else timestamp
        delivery = self._producer.send(topic, value, timestamp=stamp, **options)
        batch = delivery[0]
        counts = self._under_way.get(batch)
        fresh = counts is None
        if counts is None:
            counts = self._under_way[batch] = Counter()
        counts[stamp - stamp % self._window_ms] += 1
        if fresh:
            self._publish_if_due()
        return delivery

    def send_many(self, topic: str, values: Iterable[bytes]) -> Delivery | None:
        """Send plain values, all with the same timestamp.  Returns the delivery of the last one."""
        stamp = self._clock_ms()
        delivery = None
        for value in several("values", values):
            delivery = self.send(topic, value, timestamp=stamp)
        return delivery

    def _publish_if_due(self) -> None:
        """Publish if it is time.  Called once for each new batch, to save the cost of a call for each message."""
        if self._clock_ms() - self._published_ms >= self._publish_ms:
            self.publish()
        elif len(self._under_way) > BATCHES_MAX:
            self._count_delivered()

    def _count_delivered(self) -> None:
        """Count the messages of batches that are delivered; drop batches that have failed."""
        for batch in [batch for batch in self._under_way if batch.done]:
            for start_ms, count in self._under_way.pop(batch).items():
                if batch.error is None:
                    self._delivered[batch.topic, start_ms] += count

    def flush(self, timeout: float | None = None) -> None:
        """As the producer's ``flush``."""
        self._producer.flush(timeout)

    def publish(self) -> None:
        """Send the counts of delivered messages that were not published yet.

        Raises:
            ApplianceError: earlier counts could not be delivered.  They have been sent again now.
        """
        self._published_ms = self._clock_ms()
        error = self._confirm()
        self._count_delivered()
        counts, self._delivered = self._delivered, Counter()
        for (topic, start_ms), count in counts.items():
            window = {"window_start_ms": start_ms, "window_ms": self._window_ms, "count": count}
            message = json.dumps({"server": self._server, "topic": topic} | window).encode()
            delivery = self._producer.send(self._topic, message)
            self._unconfirmed.append((delivery, (topic, start_ms), count))
        if error is not None:
            raise error

    def _confirm(self) -> ApplianceError | None:
        """Drop published counts that were delivered, take back those that failed.  Returns one of the errors."""
        waiting, error = [], None
        for delivery, window, count in self._unconfirmed:
            if not delivery.done():
                waiting.append((delivery, window, count))
            elif (failed := delivery.exception()) is not None:
                self._delivered[window] += count
                error = failed
        self._unconfirmed = waiting
        return error

    def close(self) -> None:
        """Wait for all messages and for their counts.  The producer stays open.

        Raises:
            ApplianceError: counts could not be delivered.
        """
        self._producer.flush()
        self.publish()
        self._producer.flush()
        if (error := self._confirm()) is not None:
            raise error
