"""How long does a consumer group take until all its members have an assignment?

Groups of 1, 8 and 64 members of one topic with 64 partitions, confluent-kafka as the client, range assignment, eager
rebalances.  *all join* is for all but one that start together, *one joins* is for the last one, and *one leaves* for
the others when it leaves.  Members send heartbeats every 100 ms, from whose answers they learn of a rebalance.  Kafka
has ``group.initial.rebalance.delay.ms=0`` (its default is 3 s), an appliance waits 20 ms for more members of an empty
group, and 100 ms where a second one has come.  The appliance runs one node of ZooKeeper, in which it claims its groups.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from .. import brokers
from ..harness import Harness
from ..kafka_side import KafkaSide, ours_and_kafka
from ..stamps import Wrong

TITLE = "Rebalances of consumer groups"
ROUND_S = 40
PARTITIONS = 64
MEMBERS, SMOKE_MEMBERS = (1, 8, 64), (3,)
PROGRAM = [sys.executable, "-m", f"{brokers.__package__}.group_members"]
PROGRAM_S_MAX = 240


def run(harness: Harness) -> None:
    brokers.need_java()  # ZooKeeper
    harness.note(partitions=PARTITIONS, assignment="range", heartbeat_ms=100)
    with ours_and_kafka(harness, {"zookeeper.nodes": "1"}) as sides:
        for side in sides if not harness.options.smoke else ():
            once(side, 1)  # the first group ever lets a broker make the topic of offsets, and wait for it
        for members in SMOKE_MEMBERS if harness.options.smoke else MEMBERS:
            name = f"{members} members" if members > 1 else "1 member"
            harness.figures(name, sides, lambda side: once(side, members))  # noqa: B023 - run at once


def once(side: KafkaSide, members: int) -> dict[str, float]:
    """One group with a topic of its own.

    Raises:
        Wrong: its members do not get an assignment in time.
    """
    topic = side.topic(PARTITIONS)
    command = [*PROGRAM, side.broker.address, topic, str(PARTITIONS), str(members)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROGRAM_S_MAX)
    if done.returncode:
        raise Wrong(f"{side.name}: {done.stderr.strip()[-600:]}")
    side.delete(topic)
    return msgspec.json.decode(done.stdout, type=dict[str, float])
