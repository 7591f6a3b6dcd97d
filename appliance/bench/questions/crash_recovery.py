"""How long does a broker take to serve again after kill -9, and after a clean stop, with a log of some gigabytes?

All processes are killed at once, while nobody writes; the page cache stays.  *start* is from the start of the process
until the listener answers, *first message* until a message for the partition with the log is acknowledged (acks=all).
At the end the whole log is read, and every message is in it.  10 and 50 GB are measured with ``--large``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .. import stamps
from ..brokers import MeasuredBroker
from ..harness import Harness
from ..kafka_clients import LARGE, QUEUE, KafkaClient, outcome
from ..kafka_side import KafkaSide, launchers

TITLE = "Recovery after kill -9"
ROUND_S = 30
SIZE = 1_000
GB = 1_000_000_000
SIZES = {"1 GB": GB}
LARGE_SIZES = {"10 GB": 10 * GB, "50 GB": 50 * GB}
SMOKE_SIZES = {"5 MB": 5_000_000}
ROOM = 1.2
"""Free disk that is needed, as a multiple of the bytes of messages."""
PATIENCE_S = 60
EAGER = {
    "acks": "all", "linger.ms": "0", "retry.backoff.ms": "5", "retry.backoff.max.ms": "5",
    "reconnect.backoff.ms": "5", "reconnect.backoff.max.ms": "5", "log_level": "0",
}  # fmt: skip
"""Settings of a producer that tries again soon."""


class Logged:
    """A broker with one partition, which has messages with the numbers 0 to ``count`` - 1."""

    def __init__(self, broker: MeasuredBroker, client: KafkaClient, count: int) -> None:
        self.name, self._broker, self._side, self._count = broker.name, broker, KafkaSide(broker, client), count
        self._topic = self._side.topic()
        settings = QUEUE | LARGE | {"acks": "1"}
        outcome(client.start("produce", broker.address, self._topic, 1, count, SIZE, settings), count)
        self._side.wait_for(count, self._topic)

    def killed(self) -> dict[str, float]:
        return self._restart(self._broker.kill)

    def stopped(self) -> dict[str, float]:
        return self._restart(self._broker.stop)

    def check(self) -> None:
        """Read the whole log.

        Raises:
            Wrong: a message that was acknowledged is missing or out of order.
        """
        consumed = self._side.consume(self._topic, self._count, SIZE)
        if consumed.check != stamps.check(range(self._count)):
            raise stamps.Wrong(f"{self.name}: the log has other messages than those that were acknowledged")

    def _restart(self, end: Callable[[], None]) -> dict[str, float]:
        """End the broker, start it, and produce to the log meanwhile."""
        end()
        with ThreadPoolExecutor(1) as producer:
            start = time.perf_counter()
            acknowledged = producer.submit(self._produce_one)
            self._broker.start()
            return {"start_s": self._broker.start_s, "first_s": acknowledged.result() - start}

    def _produce_one(self) -> float:
        """When the next message was acknowledged."""
        from confluent_kafka import Producer

        acknowledged: list[float] = []

        def on_delivery(error: object, message: object) -> None:
            if error is None:
                acknowledged.append(time.perf_counter())

        producer = Producer({"bootstrap.servers": self._broker.address} | EAGER)
        value = stamps.message(self._count, SIZE)
        producer.produce(self._topic, value, partition=0, on_delivery=on_delivery)
        producer.flush(PATIENCE_S)
        if not acknowledged:
            raise stamps.Wrong(f"{self.name}: nothing is acknowledged {PATIENCE_S} s after the start")
        self._count += 1
        return acknowledged[0]


def run(harness: Harness) -> None:
    client = harness.kafka_client()
    harness.note(message_bytes=SIZE, partitions=1, client=client.name)
    sizes = SMOKE_SIZES if harness.options.smoke else SIZES | (LARGE_SIZES if harness.options.large else {})
    for name, size in sizes.items():
        for maker in launchers(harness):  # one after the other: their logs need not have room at the same time
            if shutil.disk_usage(harness.options.directory).free < size * ROOM:
                harness.notice(f"a log of {name} is skipped, missing: so much free disk")
                continue
            with harness.started([maker]) as brokers:
                sides = [Logged(broker, client, size // SIZE) for broker in brokers]
                harness.figures(f"{name}, kill -9", sides, Logged.killed)
                harness.figures(f"{name}, clean stop", sides, Logged.stopped)
                for side in sides:
                    side.check()
