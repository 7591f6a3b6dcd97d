"""What do several producers and consumers reach together, on several partitions?

LinkedIn's list of 2014 (100 bytes, 6 partitions, 1 and 3 producers, 1 and 3 consumers, both at once), and 8 producers
and 8 consumers on 8 partitions with 200 bytes.  Each client is a process of its own, so on a small machine clients are
the limit: a bare broker in C, which only writes and sends, shows it.  The rate is that of all of them, by wall time.
"""

from __future__ import annotations

import subprocess
import time
from typing import NamedTuple

from ..harness import Harness, drop_page_cache
from ..kafka_clients import LARGE, QUEUE, Run, outcome
from ..kafka_side import KafkaSide, bare, ours_and_kafka
from ..stamps import Wrong

TITLE = "Several producers and consumers, several partitions"
ROUND_S = 75
COUNT = 6_000_000
"""Messages of all producers together."""


class ClientCrowd(NamedTuple):
    """So many clients; each producer writes to a topic of its own, which a consumer reads."""

    name: str
    producers: int
    consumers: int
    partitions: int
    size: int


CROWDS = (
    ClientCrowd("1 producer", 1, 0, 6, 100),
    ClientCrowd("3 producers", 3, 0, 6, 100),
    ClientCrowd("1 consumer", 0, 1, 6, 100),
    ClientCrowd("3 consumers", 0, 3, 6, 100),
    ClientCrowd("1 producer and 1 consumer", 1, 1, 6, 100),
    ClientCrowd("8 producers and 8 consumers", 8, 8, 1, 200),
)


def run(harness: Harness) -> None:
    harness.note(acks=1, batches="large")
    with ours_and_kafka(harness, also=bare(harness)) as sides:
        for crowd in CROWDS[-2:] if harness.options.smoke else CROWDS:
            count = harness.scaled(COUNT // max(crowd.producers, crowd.consumers))
            harness.run(
                crowd.name, sides, lambda side: prepared(side, crowd, count),  # noqa: B023 - run at once
                lambda side, topics: together(side, topics.split(","), crowd, count),  # noqa: B023 - as above
                limit="page cache write" if crowd.producers else "loopback sendfile", bytes_each=crowd.size,
                after=delete,
            )  # fmt: skip


def prepared(side: KafkaSide, crowd: ClientCrowd, count: int) -> str:
    """The topics of all pairs, filled if nobody is to produce, after the page cache was dropped."""
    drop_page_cache()
    topics = [side.topic(crowd.partitions) for _ in range(max(crowd.producers, crowd.consumers))]
    for topic in topics if not crowd.producers else ():
        side.fill(topic, count, crowd.size, crowd.partitions)
    return ",".join(topics)


def together(side: KafkaSide, topics: list[str], crowd: ClientCrowd, count: int) -> Run:
    """Start all clients and wait for all.  The rate counts what was produced, or consumed where nobody produces."""
    address, start = side.broker.address, time.perf_counter()
    programs: list[subprocess.Popen[str]] = []
    for number, topic in enumerate(topics):
        if number < crowd.consumers:
            programs.append(side.client.start("consume", address, topic, crowd.partitions, count, crowd.size, {}))
        if number < crowd.producers:
            settings = QUEUE | LARGE | {"acks": "1"}
            programs.append(side.client.start("produce", address, topic, crowd.partitions, count, crowd.size, settings))
    done = [outcome(program, count) for program in programs]
    seconds = time.perf_counter() - start
    if len({run.check for run in done}) != 1:
        raise Wrong(f"{side.name}: what arrived is not what was sent")
    cpu = sum(run.client_cpu_s for run in done)
    return Run(count * len(topics), seconds, cpu, done[0].check)


def delete(side: KafkaSide, topics: str) -> None:
    """Free the memory: what the machine has not used for a while is slower than all that is measured."""
    for topic in topics.split(","):
        side.delete(topic)
