"""How many bytes per second can be produced and consumed, by the size of messages?

LinkedIn's list of 2014 has it from 10 bytes to 100 KB.  One producer with large batches, acks=1, one partition.
"""

from __future__ import annotations

from ..harness import Harness
from ..kafka_clients import LARGE, Run
from ..kafka_side import KafkaSide, ours_and_kafka

TITLE = "Throughput by the size of messages"
ROUND_S = 60
SIZES = (10, 100, 1_000, 10_000, 100_000)
COUNT_MAX, BYTES_MAX = 2_000_000, 400_000_000


def run(harness: Harness) -> None:
    harness.note(partitions=1, acks=1)
    with ours_and_kafka(harness) as sides:
        for size in SIZES[::4] if harness.options.smoke else SIZES:
            _measure_size(harness, sides, size)


def _measure_size(harness: Harness, sides: list[KafkaSide], size: int) -> None:
    count = harness.scaled(min(COUNT_MAX, BYTES_MAX // size))

    def produce(side: KafkaSide, topic: str) -> Run:
        return side.produce(topic, count, size, LARGE | {"acks": "1"})

    def consume(side: KafkaSide, topic: str) -> Run:
        return side.consume(topic, count, size)

    name = f"{size:,} bytes"
    harness.run(f"produce, {name}", sides, KafkaSide.empty, produce, limit="page cache write", bytes_each=size)
    harness.run(
        f"consume, {name}", sides, lambda side: side.filled(count, size), consume,
        limit="loopback sendfile", bytes_each=size,
    )  # fmt: skip
