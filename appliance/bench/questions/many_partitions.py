"""What do many partitions cost: the start, memory, and the rate of a producer?

One topic that gets more and more partitions.  In each round the broker is stopped and started again with them, so
*start* is after a clean stop, until the listener answers, and *memory* that of all processes of the broker then.
*rate to one of them* is that of a producer with large batches, acks=1, to one partition beside them.  Then all
partitions get messages: *first message* is the time until each of them has one (an appliance starts a process for
each), *rate* that of one producer over all of them, *memory after load* is measured after it, and *memory of each* is
what a partition adds to that.

With ``--large`` there are 10,000 partitions, of which 1,000 get messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..brokers import MeasuredBroker
from ..harness import Harness
from ..kafka_clients import LARGE, QUEUE, KafkaClient, outcome
from ..kafka_side import KafkaSide, launchers, warm_up
from ..measures import ratios

TITLE = "Many partitions"
ROUND_S = 100
SIZE = 200
COUNTS, LARGE_COUNTS, SMOKE_COUNTS = (1, 10, 100, 1_000), (10_000,), (1, 3)
MESSAGES = 1_000_000
SPREAD_MAX = 1_000
"""A producer sends to so many partitions at most."""
ROOM = {"topics.partitions_max": "10_002"}
"""Two topics of one partition beside them, for the warm-up and for the producer to one of them."""
PRODUCER = QUEUE | LARGE | {"acks": "1"}


class Growing:
    """A broker and its topic, which gets more and more partitions."""

    def __init__(self, broker: MeasuredBroker, client: KafkaClient) -> None:
        self.name, self._broker, self._side = broker.name, broker, KafkaSide(broker, client)
        self._topic, self._partitions, self._messages = self._side.topic(), 1, 0

    def once(self, harness: Harness, partitions: int) -> dict[str, float]:
        if partitions > self._partitions:
            self._side.grow(self._topic, self._partitions, partitions)
            self._partitions = partitions
        self._broker.stop()
        self._broker.start()
        memory = self._broker.pss_bytes()
        warm_up(harness, [self._side])
        count, spread = harness.scaled(MESSAGES), min(partitions, SPREAD_MAX)
        lone = self._side.empty()
        lone_rate = self._side.produce(lone, count, SIZE, PRODUCER).rate
        self._side.delete(lone)
        first_s = self._produce(spread, spread)
        before = self._broker.cpu_s()
        seconds = self._produce(count, spread)
        cpu_s = self._broker.cpu_s() - before
        return {
            "start_s": self._broker.start_s, "memory_bytes": memory, "lone_rate": lone_rate, "first_s": first_s,
            "rate": count / seconds, "cpu": cpu_s / count * 1e6, "loaded_bytes": self._broker.pss_bytes(),
        }  # fmt: skip

    def _produce(self, count: int, spread: int) -> float:
        """Seconds until ``count`` messages, to ``spread`` partitions, are acknowledged; they are in the log then."""
        program = self._side.client.start("produce", self._broker.address, self._topic, spread, count, SIZE, PRODUCER)
        run = outcome(program, count)
        self._messages += count
        self._side.wait_for(self._messages, self._topic, self._partitions)
        return run.seconds


def run(harness: Harness) -> None:
    client = harness.kafka_client()
    harness.note(message_bytes=SIZE, client=client.name, batches="large", acks=1)
    counts = SMOKE_COUNTS if harness.options.smoke else COUNTS + LARGE_COUNTS * harness.options.large
    with harness.started(launchers(harness, ROOM)) as brokers:
        sides = [Growing(broker, client) for broker in brokers]
        for count in counts:
            harness.figures(workload(count), sides, lambda side: side.once(harness, count))  # noqa: B023 - run at once
    for side in harness.result.sides:
        _relate(harness, side, [count for count in counts if count > 1])


def workload(partitions: int) -> str:
    return f"{partitions:,} partitions" if partitions > 1 else "1 partition"


def _relate(harness: Harness, side: str, counts: Sequence[int]) -> None:
    """Add what follows from a comparison with one partition."""
    lone, loaded = (harness.result.find_measure(workload(1), side, what) for what in ("lone_rate", "loaded_bytes"))
    for count in counts:
        lones, loads = (
            harness.result.find_measure(workload(count), side, what) for what in ("lone_rate", "loaded_bytes")
        )
        if lone and loaded and lones and loads:
            harness.add(workload(count), side, "relative", ratios(lones, lone))
            added = [more - alone for more, alone in zip(loads.values, loaded.values, strict=True)]
            spread = min(count, SPREAD_MAX)
            harness.add(
                workload(count), side, "each_bytes", [max(added_bytes, 0) / (spread - 1) for added_bytes in added]
            )
