"""What do Kafka's own tools measure: kafka-producer-perf-test, kafka-consumer-perf-test and the class EndToEndLatency?

One partition.  The producer has ``batch.size=200000``, ``linger.ms=5`` and acks=1; the consumer its defaults.  The
consumer's rate leaves the time out in which its group is formed.  *one at a time* is the delay of messages each of
which is sent (acks=1) when the one before has been read; the tool shows whole milliseconds.  Each tool is a JVM that
starts cold.  The appliance runs one node of ZooKeeper, for the consumer's group.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ..brokers import QUIET, kafka_jars
from ..compiling import Missing
from ..harness import Harness
from ..kafka_side import KafkaSide, ours_and_kafka
from ..stamps import Wrong

TITLE = "Kafka's Java tools as clients"
ROUND_S = 60
SIZE = 200
MESSAGES, ONE_BY_ONE = 2_000_000, 3_000
TOOL_S_MAX = 200
PRODUCER = ("acks=1", "batch.size=200000", "linger.ms=5")


class JavaTools:
    """A broker with the tools as its clients."""

    def __init__(self, side: KafkaSide, jars: Path) -> None:
        self.name, self._side, self._jars = side.name, side, jars
        self._address = side.broker.address

    def produce(self, count: int) -> dict[str, float]:
        """
        Raises:
            Wrong: the log does not have all messages.
        """
        topic, before = self._side.empty(), self._side.cpu_s()
        said = self._run(
            "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size", str(SIZE),
            "--throughput", "-1", "--producer-props", f"bootstrap.servers={self._address}", *PRODUCER,
        )  # fmt: skip
        cpu_s = self._side.cpu_s() - before
        self._side.wait_for(count, topic)
        return {"rate": producer_rate(said, count), "cpu": cpu_s / count * 1e6}

    def consume(self, count: int) -> dict[str, float]:
        topic, before = self._side.filled(count, SIZE), self._side.cpu_s()
        said = self._run(
            "ConsumerPerformance", "--bootstrap-server", self._address, "--topic", topic,
            "--messages", str(count), "--hide-header", "--timeout", "30000",
        )  # fmt: skip
        cpu_s = self._side.cpu_s() - before
        return {"rate": consumer_rate(said, count), "cpu": cpu_s / count * 1e6}

    def one_at_a_time(self, count: int) -> dict[str, float]:
        topic = self._side.topic()
        said = self._run("EndToEndLatency", self._address, topic, str(count), "1", str(SIZE))
        self._side.wait_for(count, topic)
        return delays(said)

    def _run(self, tool: str, *arguments: str) -> str:
        command = ["java", QUIET, "-cp", f"{self._jars}/*", f"org.apache.kafka.tools.{tool}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_S_MAX)
        if done.returncode:
            raise Wrong(f"{self.name}: {tool}: {(done.stderr or done.stdout).strip()[-600:]}")
        return done.stdout


def run(harness: Harness) -> None:
    if "kafka" not in harness.options.peers:
        raise Missing("Kafka's jars: they are used with --peer kafka")
    jars = kafka_jars()
    count, singly = harness.scaled(MESSAGES), harness.scaled(ONE_BY_ONE)
    harness.note(message_bytes=SIZE, partitions=1, one_at_a_time_messages=singly)
    with ours_and_kafka(harness, {"zookeeper.nodes": "1"}) as sides:
        tools = [JavaTools(side, jars) for side in sides]
        harness.figures("kafka-producer-perf-test", tools, lambda side: side.produce(count))
        harness.figures("kafka-consumer-perf-test", tools, lambda side: side.consume(count))
        harness.figures("one at a time", tools, lambda side: side.one_at_a_time(singly))


def producer_rate(said: str, count: int) -> float:
    """Messages per second, from the last line that ProducerPerformance prints.

    Raises:
        Wrong: it does not say that it sent ``count``.
    """
    rates = re.findall(rf"^{count} records sent, ([\d.]+) records/sec", said, re.MULTILINE)
    if not rates:
        raise Wrong(f"ProducerPerformance does not say that it sent {count} messages: {said.strip()[-400:]}")
    return float(rates[-1])


def consumer_rate(said: str, count: int) -> float:
    """Messages per second of fetching, from the line of numbers that ConsumerPerformance prints.

    Raises:
        Wrong: it read others than ``count`` messages.
    """
    fields = [field.strip() for field in (said.strip().splitlines() or [""])[-1].split(",")]
    if len(fields) != 10 or int(fields[4]) != count:
        raise Wrong(f"ConsumerPerformance does not say that it read {count} messages: {said.strip()[-400:]}")
    return count / (float(fields[7]) / 1000)


def delays(said: str) -> dict[str, float]:
    """The percentiles that EndToEndLatency prints.

    Raises:
        Wrong: it prints none.
    """
    percentiles = re.search(r"50th = (\d+), 99th = (\d+), 99.9th = (\d+)", said)
    if percentiles is None:
        raise Wrong(f"EndToEndLatency prints no percentiles: {said.strip()[-400:]}")
    return dict(zip(("p50_ms", "p99_ms", "p999_ms"), map(float, percentiles.groups()), strict=True))
