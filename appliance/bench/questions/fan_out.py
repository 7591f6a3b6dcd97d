"""How fast do 1, 8 and 32 consumers read one partition together?

Each consumer is a process of its own and reads everything, in large fetches.  The rate is that of all, from the first
fetch of the first one to the last message of the last one.
"""

from __future__ import annotations

import time

import msgspec

from ..harness import Harness
from ..kafka_clients import Run, outcome
from ..kafka_side import KafkaSide, bare, ours_and_kafka
from ..stamps import Wrong

TITLE = "Consumers of one partition"
ROUND_S = 40
SIZE = 200
CONSUMERS = (1, 8, 32)
COUNT = 2_000_000
"""Messages that all consumers together read, at least 100,000 each."""


def run(harness: Harness) -> None:
    harness.note(message_bytes=SIZE, partitions=1)
    with ours_and_kafka(harness, also=bare(harness)) as sides:
        for consumers in CONSUMERS[:2] if harness.options.smoke else CONSUMERS:
            count_each = harness.scaled(max(COUNT // consumers, 100_000))
            harness.run(
                f"{consumers} consumers", sides, lambda side: side.filled(count_each, SIZE),  # noqa: B023 - run at once
                lambda side, topic: together(side, topic, count_each, consumers),  # noqa: B023 - as above
                limit="loopback sendfile", bytes_each=SIZE,
            )  # fmt: skip


def together(side: KafkaSide, topic: str, count: int, consumers: int) -> Run:
    """``count`` messages read by each of so many consumers.

    Raises:
        Wrong: they do not get the same.
    """
    start, cpu = time.perf_counter(), 0.0
    running = [side.client.start("consume", side.broker.address, topic, 1, count, SIZE, {}) for _ in range(consumers)]
    done = [outcome(program, count) for program in running]
    seconds = time.perf_counter() - start if consumers > 1 else done[0].seconds
    cpu = sum(run.client_cpu_s for run in done)
    if len({run.check for run in done}) != 1:
        raise Wrong(f"{side.name}: consumers of one partition got different messages")
    return msgspec.structs.replace(done[0], count=count * consumers, seconds=seconds, client_cpu_s=cpu)
