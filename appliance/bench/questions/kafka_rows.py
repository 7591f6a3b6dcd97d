"""Is the Kafka listener faster than Apache Kafka, with the same client?

One producer or consumer, one partition.  An appliance flushes before readers see messages and before acks=all is
answered.  Kafka's defaults do not flush, except in the workloads named durable (``flush.messages=1``).  klite, if it is
measured, flushes before any answer.  With the client in C there are two more measurements, because librdkafka spends
more on a message than the brokers do:

* "a bare broker" in C writes what is produced and sends it as it is, and does nothing else: the client's limit.
* "headers only" is a consumer in C that looks at nothing but the headers of batches: the brokers' limit.

A consumer has librdkafka's defaults, but makes no pause of a second when it is 100,000 messages ahead.  With "a long
queue" it fetches up to a million messages ahead, as a broker is ahead that is faster than the client.  That makes the
client slower: its two threads then contend for the memory that one allocates and the other frees.

So does every run in which the two have a processor each: the client's CPU per message is then a third more, whoever
sends, and less where the broker keeps one of two processors busy.  "One processor" is the same with the client on one,
where what it spends tells whether a broker makes receiving cheaper.
"""

from __future__ import annotations

from ..brokers import BARE, KAFKA_VERSIONS, KLITE, Klite, Launcher
from ..harness import Harness
from ..kafka_clients import FIFTY, LARGE, LONG_QUEUE, ONE, fetch_headers
from ..kafka_side import KafkaSide, bare, ours_and_kafka

TITLE = "Produce and consume through the Kafka listener"
ROUND_S = 60
SIZE = 200
COUNT_CONSUMED = 3_000_000
PYTHON_PART = 4
"""The client in Python gets so many times fewer messages where batches are large."""


def run(harness: Harness) -> None:
    klite = [Launcher(KLITE, Klite)] if KLITE in harness.options.peers else []
    with ours_and_kafka(harness, also=[*klite, *bare(harness)]) as sides:
        rows(harness, sides)
        if sides[0].client.name == "C":
            headers_only(harness, sides)


def rows(harness: Harness, sides: list[KafkaSide]) -> None:
    """All workloads of one producer or one consumer."""
    part = PYTHON_PART if harness.options.client == "python" else 1
    harness.note(message_bytes=SIZE, partitions=1)
    many = ONE | {"max.in.flight.requests.per.connection": "1000"}
    _produce(harness, sides, "produce large batches, acks=1", 2_000_000 // part, LARGE | {"acks": "1"})
    _produce(harness, sides, "produce 50 a batch, acks=1", 1_000_000 // part, FIFTY | {"acks": "1"})
    _produce(harness, sides, "produce 1 a batch, 5 in flight, acks=1", 30_000, ONE | {"acks": "1"})
    _produce(harness, sides, "produce 1 a batch, acks=0", 60_000, ONE | {"acks": "0"})
    _produce(harness, sides, "durable, 50 a batch", 200_000, FIFTY | {"acks": "all"}, durable=True)
    _produce(harness, sides, "durable, 1 a batch", 10_000, many | {"acks": "all"}, durable=True)
    count = harness.scaled(COUNT_CONSUMED // part)
    for workload, settings in (("consume", {}), ("consume, a long queue", LONG_QUEUE)):
        harness.run(
            workload, sides, lambda side: side.filled(count, SIZE),
            lambda side, topic: side.consume(topic, count, SIZE, settings=settings),  # noqa: B023 - called at once
            limit="loopback sendfile", bytes_each=SIZE,
        )  # fmt: skip
    harness.run(
        "consume, one processor", sides, lambda side: side.filled(count, SIZE),
        lambda side, topic: side.consume(topic, count, SIZE, one_processor=True),
        limit="loopback sendfile", bytes_each=SIZE,
    )  # fmt: skip


def headers_only(harness: Harness, sides: list[KafkaSide]) -> None:
    """Fetch as fast as the brokers send."""
    count = harness.scaled(COUNT_CONSUMED)
    harness.run(
        "fetch, headers only", sides, lambda side: side.filled(count, SIZE),
        lambda side, topic: fetch_headers(side.broker.address, topic, count),
        limit="loopback sendfile", bytes_each=SIZE,
    )  # fmt: skip


def _produce(
    harness: Harness, sides: list[KafkaSide], workload: str, count: int, settings: dict[str, str], *,
    durable: bool = False,
) -> None:  # fmt: skip
    scaled = harness.scaled(count)

    def prepare(side: KafkaSide) -> str:
        return side.empty(settings={"flush.messages": "1"} if durable and side.name in (*KAFKA_VERSIONS, BARE) else {})

    harness.run(
        workload, sides, prepare, lambda side, topic: side.produce(topic, scaled, SIZE, settings),
        limit="echo in C, 5 in flight" if "1 a batch, 5" in workload else "page cache write",
        bytes_each=1 if "1 a batch, 5" in workload else SIZE,
    )  # fmt: skip
