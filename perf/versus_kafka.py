"""Is the Kafka listener faster than Apache Kafka 4.1 on the same machine, with the same client?

    python perf/versus_kafka.py [--smoke] [--rounds N] [--only WORD] [--tls]

Both brokers are started and warmed up.  Every workload runs A B A B ... on topics of its own, with 200-byte messages
and one partition.  Printed are the medians of the rate and of the broker's CPU seconds per million messages, and their
ratios (ours / Kafka's), of the medians and of each round.  Ours flushes before readers see messages and before acks=all
is answered.  Kafka's defaults do not flush, except in workloads named durable (``flush.messages=1``).  After each run
a consumer counts the messages.

Before each run all dirty pages are written to the disk.  Otherwise the kernel writes them 30 seconds later, and one of
our flushes in another workload waits for data that Kafka did not flush in this one.  Before producing, root also drops
the page cache, so that both write to pages that have been used before: on a virtual machine the first touch of a page
costs the writer several times as much as the copying, and who gets such pages is chance.  For the same reason each
consumer reads a topic that was filled for it: a log's place in memory changes a consumer's rate by 10 %.

With ``--tls`` both sides use TLS 1.3, the same cipher and certificate (``_tls.py``); Java's tools and latencies are
left out.

Needs confluent-kafka, Java and Kafka's jars (see ``_kafka.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _bench import PAYLOAD_BYTES, Appliance, headline, row
from _kafka import Kafka, find_jars
from _latency import at_rate
from _tls import Certificates
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

VALUE = bytes(PAYLOAD_BYTES)
LARGE = {
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 500_000,
}
FIFTY = {"linger.ms": 50, "batch.num.messages": 50, "queue.buffering.max.messages": 200_000}
ONE = {"linger.ms": 0, "batch.num.messages": 1, "max.in.flight.requests.per.connection": 5}
PERCENTILES = (50, 99, 99.9)

Broker = Appliance | Kafka


class Side:
    """One of the two brokers, by the address of its Kafka listener.  ``security``: settings of its clients."""

    def __init__(self, name: str, broker: Broker, address: str, security: dict[str, str]) -> None:
        self.name, self.broker, self.address = name, broker, address
        self._client = {"bootstrap.servers": address} | security
        self._admin = AdminClient(self._client)
        self._number = 0

    def topic(self, **settings: str) -> str:
        self._number += 1
        name = f"bench-{self._number}"
        topic = NewTopic(name, 1, 1, config={key.replace("_", "."): value for key, value in settings.items()})
        self._admin.create_topics([topic])[name].result(30)
        return name

    def produce(self, topic: str, count: int, **settings: Any) -> None:
        producer = Producer(self._client | settings)
        # No callback per message, which would measure Python: the count shows missing messages.
        produce, poll = producer.produce, producer.poll
        for number in range(count):
            while True:
                try:
                    produce(topic, VALUE, partition=0)
                    break
                except BufferError:
                    poll(0.01)
            if not number % 10_000:
                poll(0)
        assert producer.flush(120) == 0, "not everything was delivered"

    def count(self, topic: str, expected: int) -> int:
        """How many messages a consumer finds; waits for ``expected`` ones, up to 60 s."""
        consumer = Consumer(self._client | {
            "group.id": "count", "enable.auto.commit": False,
            "fetch.max.bytes": 50_000_000, "max.partition.fetch.bytes": 10_000_000,
            # By default it stops for a second whenever 64 MB wait, and the benchmark would measure that.
            "fetch.queue.backoff.ms": 1,
        })  # fmt: skip
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen, deadline = 0, time.perf_counter() + 60
        while seen < expected and time.perf_counter() < deadline:
            seen += [message.error() for message in consumer.consume(10_000, 1.0)].count(None)
        consumer.close()
        return seen


class Contest:
    """Runs workloads on both sides in turn and prints ratios."""

    def __init__(self, sides: list[Side], rounds: int, scale: int, only: str) -> None:
        self.sides, self.rounds, self.scale, self.only = sides, rounds, scale, only

    def wanted(self, name: str) -> bool:
        return self.only in name

    def turns(self) -> Iterator[Side]:
        """Yields each side in turn, round by round, after all dirty pages were written to the disk."""
        for _ in range(self.rounds):
            for side in self.sides:
                os.sync()
                yield side

    def run(self, name: str, count: int, prepare: Callable[[Side, int], str], once: Callable[..., float]) -> None:
        """``prepare`` makes a topic; ``once(side, topic, count)`` returns the seconds that ``count`` messages took."""
        if not self.wanted(name):
            return
        count = max(count // self.scale, 100)
        rates: dict[str, list[float]] = {side.name: [] for side in self.sides}
        cpus: dict[str, list[float]] = {side.name: [] for side in self.sides}
        for side in self.turns():
            topic = prepare(side, count)
            cpu = side.broker.cpu_s()
            seconds = once(side, topic, count)
            rates[side.name].append(count / seconds)
            cpus[side.name].append((side.broker.cpu_s() - cpu) / count * 1e6)
        self.report(name, "rate", rates)
        self.report(name, "cpu_s_per_million", cpus)

    def report(self, name: str, what: str, figures: dict[str, list[float]]) -> None:
        ours, theirs = (figures[side.name] for side in self.sides)
        ratios = [a / b if b else float("nan") for a, b in zip(ours, theirs, strict=True)]
        row(f"{name}: {what}", ours=statistics.median(ours), kafka=statistics.median(theirs),
            ratio=statistics.median(ratios), ratios=" ".join(f"{ratio:.2f}" for ratio in ratios))  # fmt: skip


def empty(side: Side, _: int, **settings: str) -> str:
    """A new topic, after the page cache was dropped."""
    with contextlib.suppress(OSError):  # not root
        Path("/proc/sys/vm/drop_caches").write_text("1")
    return side.topic(**settings)


def durable(side: Side, count: int) -> str:
    """As :func:`empty`; Kafka flushes each batch, too."""
    return empty(side, count, **({"flush_messages": "1"} if side.name == "kafka" else {}))


def filled(side: Side, count: int) -> str:
    """A topic with ``count`` messages in large batches, on the disk."""
    topic = empty(side, count)
    side.produce(topic, count, **LARGE, acks=1)
    os.sync()
    return topic


def producing(**settings: Any) -> Callable[[Side, str, int], float]:
    def once(side: Side, topic: str, count: int) -> float:
        start = time.perf_counter()
        side.produce(topic, count, **settings)
        if settings["acks"] == 0:
            assert side.count(topic, count) == count
            return time.perf_counter() - start
        seconds = time.perf_counter() - start
        assert side.count(topic, count) == count, f"{side.name}: messages are missing"
        return seconds

    return once


def consume(side: Side, topic: str, count: int) -> float:
    start = time.perf_counter()
    assert side.count(topic, count) == count
    return time.perf_counter() - start


def python_client(contest: Contest) -> None:
    contest.run("produce large, acks=1", 2_000_000, empty, producing(**LARGE, acks=1))
    contest.run("produce 50 a batch, acks=1", 1_000_000, empty, producing(**FIFTY, acks=1))
    contest.run("produce 1 a batch, acks=1, 5 in flight", 60_000, empty, producing(**ONE, acks=1))
    contest.run("produce 1 a batch, acks=0", 150_000, empty, producing(**ONE, acks=0))
    contest.run("durable 50 a batch", 300_000, durable, producing(**FIFTY, acks="all"))
    many = ONE | {"max.in.flight.requests.per.connection": 1000}
    contest.run("durable 1 a batch", 20_000, durable, producing(**many, acks="all"))
    contest.run("consume large fetches", 5_000_000, filled, consume)


def latency(contest: Contest) -> None:
    """End to end at a given rate, from the time at which each message was due (no coordinated omission)."""
    for rate in (1_000, 10_000):
        name = f"end to end at {rate}/s"
        if not contest.wanted(name):
            continue
        seconds = 1 if contest.scale > 1 else 8
        found: dict[str, list[list[float]]] = {side.name: [] for side in contest.sides}
        for side in contest.turns():
            found[side.name].append(at_rate(side.address, side.topic(), rate, seconds, PERCENTILES))
        for index, percentile in enumerate(PERCENTILES):
            figures = {side: [run[index] for run in runs] for side, runs in found.items()}
            contest.report(name, f"p{percentile}_ms", figures)


def java_tools(contest: Contest, kafka: Kafka) -> None:
    def run(*arguments: str) -> str:
        done = subprocess.run(kafka.java(*arguments), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def producer(side: Side, topic: str, count: int) -> float:
        tool = "org.apache.kafka.tools.ProducerPerformance"
        sizes = ["--num-records", str(count), "--record-size", str(PAYLOAD_BYTES), "--throughput", "-1"]
        properties = [f"bootstrap.servers={side.address}", "acks=1", "batch.size=200000", "linger.ms=5"]
        said = run(tool, "--topic", topic, *sizes, "--producer-props", *properties)
        rate = float(re.findall(r"([\d.]+) records/sec", said)[-1])
        assert side.count(topic, count) == count
        return count / rate

    def consumer(side: Side, topic: str, count: int) -> float:
        tool = "org.apache.kafka.tools.ConsumerPerformance"
        said = run(tool, "--bootstrap-server", side.address, "--topic", topic, "--messages", str(count))
        fields = said.strip().splitlines()[-1].split(",")
        assert int(fields[4]) >= count, said
        return count / float(fields[9])  # fetch.nMsg.sec: without the time to join the group

    contest.run("Java ProducerPerformance", 1_500_000, empty, producer)
    contest.run("Java ConsumerPerformance", 1_500_000, filled, consumer)
    one_at_a_time(contest, run)


def one_at_a_time(contest: Contest, run: Callable[..., str]) -> None:
    count = "200" if contest.scale > 1 else "5000"
    for name, settings in (("not durable", {"flush_messages": "0"}), ("ours durable", {})):
        if not contest.wanted(f"EndToEndLatency, {name}"):
            continue
        found: dict[str, dict[str, list[float]]] = {}
        for side in contest.turns():
            topic = side.topic(**(settings if side.name == "ours" else {}))
            tool = "org.apache.kafka.tools.EndToEndLatency"
            said = run(tool, side.address, topic, count, "1", str(PAYLOAD_BYTES))
            average = re.search(r"Avg latency: ([\d.]+)", said)
            tail = re.search(r"50th = ([\d.]+), 99th = ([\d.]+)", said)
            assert average and tail, said
            for what, value in (("avg_ms", average[1]), ("p50_ms", tail[1]), ("p99_ms", tail[2])):
                found.setdefault(what, {}).setdefault(side.name, []).append(float(value))
        for what, figures in found.items():
            contest.report(f"EndToEndLatency, {name}", what, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--settings", action="append", default=[], help="key=value for our side")
    parser.add_argument("--tls", action="store_true", help="over TLS on both sides")
    arguments = parser.parse_args()
    rounds, scale = (1, 200) if arguments.smoke else (arguments.rounds, 1)
    lib = find_jars(Path.home() / ".cache" / "appliance-perf")
    if lib is None:
        print("skipped: there is no Maven here; set KAFKA_LIB to a directory with Apache Kafka's jars")
        return
    headline("Kafka listener against Apache Kafka 4.1", message_bytes=PAYLOAD_BYTES, rounds=rounds, scale=f"1/{scale}")
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        tls = Certificates(Path(directory) / "certificates") if arguments.tls else None
        kafka = Kafka(lib, Path(directory) / "kafka", tls.kafka if tls else "")
        settings = {"zookeeper.nodes": 3} | dict(setting.split("=", 1) for setting in arguments.settings)
        settings |= tls.appliance if tls else {}
        try:
            with Appliance(Path(directory) / "data", **settings) as ours:
                addresses = (ours.kafka_tls, kafka.tls_address) if tls else (ours.kafka, kafka.address)
                security = tls.client if tls else {}
                sides = [
                    Side(name, broker, address, security)
                    for name, broker, address in zip(("ours", "kafka"), (ours, kafka), addresses, strict=True)
                ]
                contest = Contest(sides, rounds, scale, arguments.only)
                starts = {"ours": [ours.serving_s], "kafka": [kafka.serving_s]}
                contest.report("start until it serves", "seconds", starts)
                for side in sides:  # warm up: JIT on one side, page cache and connections on both
                    for _ in range(1 if scale > 1 else 3):
                        topic = side.topic()
                        side.produce(topic, 300_000 // scale, **FIFTY, acks=1)
                        side.count(topic, 300_000 // scale)
                python_client(contest)
                if not tls:
                    latency(contest)
                    java_tools(contest, kafka)
                memory = {side.name: [side.broker.pss_bytes() / 1e6] for side in sides}
                contest.report("memory under load, ZooKeeper included", "pss_mb", memory)
        finally:
            kafka.stop()


if __name__ == "__main__":
    main()
