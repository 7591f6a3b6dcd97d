"""How fast is the native listener, with the client in Python?

One producer, then one consumer, one partition, the durable defaults.  acks=0 takes until the log has everything.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial

from ...client import Consumer, Producer
from ...client.admin import Admin
from ...wire.requests import EARLIEST
from .. import stamps
from ..brokers import OurBroker
from ..harness import Harness, drop_page_cache
from ..kafka_clients import Run

TITLE = "The native listener"
ROUND_S = 45
SIZE = 200
WORKLOADS = ((1000, 2_000_000), (50, 1_000_000), (1, 100_000))
ACKS: tuple[int | str, ...] = (0, 1, "all")
PATIENCE_S = 60
_numbers = itertools.count(1)


class NativeSide:
    """An appliance with the native client."""

    def __init__(self, broker: OurBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self.admin = Admin(broker.server.native)

    def cpu_s(self) -> float:
        return self.broker.cpu_s()

    def topic(self) -> str:
        name = f"bench-{next(_numbers)}"
        drop_page_cache()
        self.admin.create_topic(name, 1)
        return name

    def produce(self, topic: str, batch: int, acks: int | str, count: int) -> Run:
        values = [stamps.message(number, SIZE) for number in range(count)]
        cpu, start = time.process_time(), time.perf_counter()
        with Producer(self.broker.server.native, acks=acks, batch_messages_max=batch, batch_bytes_max=1 << 20,
                      linger_ms=100) as producer:  # fmt: skip
            if batch == 1:
                for value in values:
                    producer.send(topic, value)
            else:
                for first in range(0, count, batch):
                    producer.send_many(topic, values[first : first + batch])
            producer.flush()
        if acks == 0:
            self._wait_for_end(topic, count)
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        check = stamps.check(range(count))
        self.consume(topic, count)
        return Run(count, seconds, used, check)

    def consume(self, topic: str, count: int) -> Run:
        cpu, start = time.process_time(), time.perf_counter()
        batches = list(self._batches(topic, count))
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        stamps_read = [stamps.stamp_of(bytes(value or b"")) for values in batches for value in values]
        if stamps_read != list(range(count)):
            raise stamps.Wrong(f"{len(stamps_read)} of {count} messages, or not in order")
        return Run(count, seconds, used, stamps.check(stamps_read))

    def _batches(self, topic: str, count: int) -> Iterator[list[bytes | None]]:
        with Consumer(self.broker.server.native) as consumer:
            consumer.assign({(topic, 0): EARLIEST})
            seen = 0
            while seen < count:
                for batch in consumer.fetch_batches(timeout=PATIENCE_S):
                    seen += len(batch.values)
                    yield list(batch.values)

    def _wait_for_end(self, topic: str, count: int) -> None:
        """Wait until the log has ``count`` messages: acks=0 has no replies."""
        deadline = time.perf_counter() + PATIENCE_S
        while sum(partition["messages"] for partition in self.admin.topics([topic])[0]["partitions"]) < count:
            if time.perf_counter() > deadline:
                raise stamps.Wrong("messages without acknowledgement are missing")
            time.sleep(0.001)


def run(harness: Harness) -> None:
    harness.note(message_bytes=SIZE, partitions=1, client="Python, native")
    with harness.started([lambda directory: OurBroker(directory, harness.options.settings)]) as (broker,):
        sides = {acks: NativeSide(broker, f"acks={acks}") for acks in ACKS}
        for batch, full in WORKLOADS:
            count = max(harness.scaled(full) // batch, 1) * batch
            producing = _producing(batch, {side.name: acks for acks, side in sides.items()}, count)
            bound = {"limit": "page cache write", "bytes_each": SIZE}
            harness.run(f"produce, {batch} a batch", list(sides.values()), NativeSide.topic, producing, **bound)  # type: ignore[arg-type]
            consumer = NativeSide(broker, "consumer")
            harness.run(
                f"consume, {batch} a batch", [consumer], partial(_filled, batch, count),
                lambda side, topic: side.consume(topic, count),  # noqa: B023 - run at once
                limit="loopback sendfile", bytes_each=SIZE,
            )  # fmt: skip


def _producing(batch: int, acks: dict[str, int | str], count: int) -> Callable[[NativeSide, str], Run]:
    return lambda side, topic: side.produce(topic, batch, acks[side.name], count)


def _filled(batch: int, count: int, side: NativeSide) -> str:
    topic = side.topic()
    side.produce(topic, batch, 1, count)
    return topic
