"""The paper's audit, on the producer's side: it counts what was delivered, and publishes the counts.

Example::

    with Producer(address) as producer, Audit(producer, "audit") as audit:
        audit.send("logs", b"line")
        audit.send_many("logs", lines)

For each topic and fixed window of time the audit counts the messages that its producer has delivered, by the timestamp
that they carry.  It publishes these counts as messages of another topic: now and then while messages are sent, and the
rest when it is closed.  Whoever reads both topics can see what was lost or doubled on the way
(``appliance.spark.pipeline.audit_verdicts`` does).  A count is published once; counts of one window add up, over
messages as over servers::

    {"server": "web-1", "topic": "logs", "window_start_ms": 1795219200000, "window_ms": 60000, "count": 123}

Messages that failed are not counted: the producer has said so to whoever sent them.  Counts that cannot be published
raise where they were to be published, ``publish`` or ``close``, and are kept for the next time.

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
from .delivery import Batch, Delivery
from .producer import Producer

Window = tuple[str, int]
"""A topic, and the start of a window in ms."""
WINDOW_MS: Final = 60_000
PUBLISH_MS: Final = 10_000
BATCHES_MAX: Final = 10_000
"""Batches whose outcome is looked at only when counts are published."""


class Audit:
    """Wraps a producer; what is sent through it is counted.

    Args:
        topic: where counts go; not one that is counted.
        server: whose counts these are; by default the host's name.
        window_ms: the same as in the pipeline, or a part of it.
        publish_ms: how often counts of what has been delivered are published.
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
        if window_ms < 1 or publish_ms < 1:
            raise BadValue(f"window_ms={window_ms}, publish_ms={publish_ms}: must be at least 1")
        self._producer = producer
        self._topic = topic
        self._server = server or socket.gethostname()
        self._window_ms = window_ms
        self._publish_ms = publish_ms
        self._clock_ms = clock_ms
        self._published_ms = clock_ms()
        self._under_way: dict[Batch, Counter[int]] = {}
        self._delivered: Counter[Window] = Counter()
        self._unconfirmed: list[tuple[Delivery, Window, int]] = []

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, topic: str, value: bytes | None, *, timestamp: int | None = None, **options: Any) -> Delivery:
        """As the producer's; ``timestamp`` is now if none is given."""
        if topic == self._topic:
            raise BadValue(f"{topic!r} is where counts go: it is not counted itself")
        stamp = self._clock_ms() if timestamp is None else timestamp
        delivery = self._producer.send(topic, value, timestamp=stamp, **options)
        batch = delivery[0]
        counts = self._under_way.get(batch)
        fresh = counts is None
        if counts is None:
            counts = self._under_way[batch] = Counter()
        counts[stamp - stamp % self._window_ms] += 1
        if fresh:
            self._tend()
        return delivery

    def send_many(self, topic: str, values: Iterable[bytes]) -> Delivery | None:
        """Send plain values, all with the same time; the delivery of the last one."""
        stamp = self._clock_ms()
        delivery = None
        for value in values:
            delivery = self.send(topic, value, timestamp=stamp)
        return delivery

    def _tend(self) -> None:
        """Called once for each new batch, which is often enough and costs nothing for each message."""
        if self._clock_ms() - self._published_ms >= self._publish_ms:
            self.publish()
        elif len(self._under_way) > BATCHES_MAX:
            self._count_delivered()

    def _count_delivered(self) -> None:
        """Take in what has been delivered since; forget what has failed."""
        for batch in [batch for batch in self._under_way if batch.done]:
            for start_ms, count in self._under_way.pop(batch).items():
                if batch.error is None:
                    self._delivered[batch.topic, start_ms] += count

    def flush(self, timeout: float | None = None) -> None:
        """As the producer's."""
        self._producer.flush(timeout)

    def publish(self) -> None:
        """Send the counts of what has been delivered and not been published yet.

        Raises:
            ApplianceError: earlier counts could not be delivered; they are sent again now.
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
        """Forget published counts that have arrived, take back those that have not; one of the errors."""
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
        """Wait for everything that was sent, and for its counts; the producer stays open.

        Raises:
            ApplianceError: counts could not be delivered.
        """
        self._producer.flush()
        self.publish()
        self._producer.flush()
        if (error := self._confirm()) is not None:
            raise error
