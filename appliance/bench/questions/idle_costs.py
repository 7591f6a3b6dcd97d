"""What does a broker cost that has little to do?

*start* is from the start of the process until the listener answers; *ready* until an appliance says that it serves,
with ZooKeeper where it runs one (its groups need it; by default it runs one node).  *memory* is that of all
processes (PSS) with 20 partitions that have got some messages, *idle CPU* is of one processor while nobody asks
anything, and *memory after load* is measured when a million messages have been produced.  *memory of each* is the
private memory of one writer process.
"""

from __future__ import annotations

import shutil
import statistics
import time

from ..accounts import private_bytes
from ..brokers import APPLIANCE, Launcher, OurBroker
from ..harness import Harness
from ..kafka_clients import FIFTY, KafkaClient
from ..kafka_side import KafkaSide, launchers

TITLE = "What an idle broker costs"
ROUND_S = 75
SIZE = 200
PARTITIONS = 20
MESSAGES, LOAD = 1_000, 1_000_000
IDLE_S, SETTLE_S = 10, 2
ZOOKEEPER_NODES = (1, 3)


def run(harness: Harness) -> None:
    client = harness.kafka_client()
    idle_s = 1 if harness.options.smoke else IDLE_S
    harness.note(partitions=PARTITIONS, idle_s=idle_s, client=client.name, load_messages=harness.scaled(LOAD))
    sides = launchers(harness)
    sides[1:1] = zookeeper_launchers(harness)
    harness.figures("little to do", sides, lambda launcher: once(harness, launcher, client, idle_s))


def zookeeper_launchers(harness: Harness) -> list[Launcher]:
    """Appliances that run ZooKeeper, too; none at the smallest size, as it takes seconds to start."""
    if harness.options.smoke:
        return []
    if shutil.which("java") is None:
        harness.notice("an appliance with ZooKeeper is skipped, missing: Java")
        return []

    def launcher(nodes: int) -> Launcher:
        settings = {"zookeeper.nodes": str(nodes)} | harness.options.settings
        return Launcher(f"{APPLIANCE}, ZooKeeper x {nodes}", lambda directory: OurBroker(directory, settings))

    return [launcher(nodes) for nodes in ZOOKEEPER_NODES]


def once(harness: Harness, launcher: Launcher, client: KafkaClient, idle_s: float) -> dict[str, float]:
    costs: dict[str, float] = {}
    with harness.started([launcher]) as running:
        for broker in running:
            side = KafkaSide(broker, client)
            topic = side.topic(PARTITIONS)
            side.produce(topic, MESSAGES, SIZE, FIFTY | {"acks": "1"}, PARTITIONS)
            time.sleep(0 if harness.options.smoke else SETTLE_S)
            before = broker.cpu_s()
            time.sleep(idle_s)
            costs = {"start_s": broker.start_s, "idle": (broker.cpu_s() - before) / idle_s,
                     "memory_bytes": broker.pss_bytes()}  # fmt: skip
            if isinstance(broker, OurBroker):
                writers = [private_bytes(pid) for pid in broker.server.pids("writer")]
                costs |= {"ready_s": broker.ready_s, "each_bytes": statistics.median(writers)}
            side.produce(side.topic(), harness.scaled(LOAD), SIZE, FIFTY | {"acks": "1"})
            costs["loaded_bytes"] = broker.pss_bytes()
    return costs
