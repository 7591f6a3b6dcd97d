"""How fast does a consumer catch up from cold files, beside a producer that goes on?

The consumer reads a log from its beginning, with the page cache dropped before (root only).  The producer writes large
batches to another topic meanwhile, acks=1, both to and from one partition.  Both rates are measured, and that of a
producer with nobody beside it.
"""

from __future__ import annotations

import os

from ..harness import Harness, drop_page_cache
from ..kafka_clients import LARGE, QUEUE, Run, outcome
from ..kafka_side import KafkaSide, ours_and_kafka
from ..stamps import Wrong

TITLE = "Catching up from cold files beside a producer"
ROUND_S = 45
SIZE = 200
COUNT = 3_000_000
"""Messages of each client: 600 MB."""
ALONE, PRODUCER, CONSUMER = "producer alone", "producer beside the consumer", "consumer of cold files"


def run(harness: Harness) -> None:
    cold = os.access("/proc/sys/vm/drop_caches", os.W_OK)
    if not cold:
        harness.notice("files that are cold: only root can drop the page cache, so they were warm")
    count = harness.scaled(COUNT)
    harness.note(message_bytes=SIZE, messages=count, partitions=1, acks=1, cold=cold)
    with ours_and_kafka(harness) as sides:
        harness.run(
            ALONE, sides, KafkaSide.empty,
            lambda side, topic: side.produce(topic, count, SIZE, LARGE | {"acks": "1"}),
            limit="page cache write", bytes_each=SIZE,
        )  # fmt: skip
        consumed: dict[str, list[Run]] = {side.name: [] for side in sides}

        def beside(side: KafkaSide, topics: str) -> Run:
            full, empty = topics.split(",")
            consumer, producer = both(side, full, empty, count)
            consumed[side.name].append(consumer)
            return producer

        harness.run(
            PRODUCER, sides, lambda side: prepared(side, count), beside, limit="page cache write", bytes_each=SIZE
        )
        for name, runs in consumed.items():
            if runs:
                rates = [run.rate for run in runs]
                harness.add(CONSUMER, name, "rate", rates, "loopback sendfile", SIZE, runs[0].check)
                harness.add(CONSUMER, name, "client", [run.client_cpu_s / run.seconds for run in runs])


def prepared(side: KafkaSide, count: int) -> str:
    """Two topics: one that is full and on the disk only, and one that is empty."""
    topics = side.filled(count, SIZE), side.topic()
    os.sync()
    drop_page_cache()
    return ",".join(topics)


def both(side: KafkaSide, full: str, empty: str, count: int) -> tuple[Run, Run]:
    """A consumer of one topic and a producer to another, started together.

    Raises:
        Wrong: a message is missing, or is another than was sent.
    """
    address = side.broker.address
    programs = (
        side.client.start("consume", address, full, 1, count, SIZE, {}),
        side.client.start("produce", address, empty, 1, count, SIZE, QUEUE | LARGE | {"acks": "1"}),
    )
    consumer, producer = (outcome(program, count) for program in programs)
    side.wait_for(count, empty)
    if consumer.check != producer.check:
        raise Wrong(f"{side.name}: what arrived is not what was sent")
    return consumer, producer
