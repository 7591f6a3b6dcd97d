"""How long after it was due does a consumer have a message, at a fixed rate?

The producer sends at times that are fixed before, so a stall counts for every message that it delays (no coordinated
omission).  Producer and consumer are processes of their own; both read CLOCK_MONOTONIC.  acks=1, 200 bytes, one
partition.  An appliance shows no message before it is on the disk; "not flushed" has ``flush.messages=0``, which is
what Kafka does.  A bare broker in C, which only writes, flushes and sends, shows what client and kernel leave to win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..brokers import APPLIANCE, BARE
from ..harness import Harness
from ..kafka_clients import AT_ONCE, Run, outcome
from ..kafka_side import KafkaSide, bare, ours_and_kafka
from ..stamps import Wrong

TITLE = "End to end, from the time at which a message is due"
ROUND_S = 55
SIZE = 200
RATES = (1_000, 10_000, 100_000)
SECONDS, WARM_UP_S = 5, 1
PRODUCER = {"acks": "1", "linger.ms": "0", "queue.buffering.max.messages": "1000000"}


class Way(NamedTuple):
    """A broker with the settings of its topics."""

    name: str
    side: KafkaSide
    settings: Mapping[str, str]


def run(harness: Harness) -> None:
    seconds, rates = (1, RATES[:1]) if harness.options.smoke else (SECONDS, RATES)
    harness.note(message_bytes=SIZE, seconds=seconds, acks=1)
    with ours_and_kafka(harness, also=bare(harness)) as sides:
        ways = [Way(side.name, side, {"flush.messages": "1"} if side.name == BARE else {}) for side in sides]
        for side, name in ((sides[0], APPLIANCE), (sides[-1], BARE)):
            if side.name == name:
                ways.append(Way(f"{name}, not flushed", side, {"flush.messages": "0"}))
        for rate in rates:
            workload = f"{rate:,} messages/s"
            _measure_rate(harness, workload, ways, rate, seconds)


def _measure_rate(harness: Harness, workload: str, ways: Sequence[Way], rate: int, seconds: int) -> None:
    def figures(way: Way) -> dict[str, float]:
        return once(way.side, way.side.topic(settings=way.settings), rate, seconds).delays

    harness.figures(workload, ways, figures)


def once(side: KafkaSide, topic: str, rate: int, seconds: int) -> Run:
    """The delays of ``rate`` messages a second, of which the first second is not counted.

    Raises:
        Wrong: messages are missing, or others than those that were sent.
    """
    count, address = rate * (seconds + WARM_UP_S), side.broker.address
    reader = side.client.start("delays", address, topic, rate * WARM_UP_S, count, SIZE, AT_ONCE)
    assert reader.stdout is not None
    if reader.stdout.readline().strip() != "ready":
        outcome(reader, count)
        raise Wrong("the consumer does not begin")
    sent = outcome(side.client.start("timed", address, topic, rate, count, SIZE, PRODUCER), count)
    delays = outcome(reader, count)
    if delays.check != sent.check:
        raise Wrong(f"{side.name}: what arrived is not what was sent")
    return delays
