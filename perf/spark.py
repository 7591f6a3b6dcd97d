"""How fast does Spark read the log?  200-byte messages, counted and to Parquet, beside Spark's own Kafka connector.

    python perf/spark.py [--smoke] [--rounds N] [--messages N] [--only WORD]

One session in local[2], reader and appliance on the same machine. ``batch`` is ``spark.read``, ``stream`` is
``readStream`` with AvailableNow into Spark's noop and Parquet sinks; each on a topic with one partition and on one
with four. A stream's rate is measured from its start to its end. Spark needs about a second of that to begin a query
with a Python source, so ``ours_within_batches`` shows the rate of its micro-batches alone. The connector reads the same
topics through the Kafka listener, in turn in the same run; compare by the ratio. CPU is that of Spark (JVM and Python
workers) and the appliance together, in seconds per million rows. On a busy machine it is more reliable than the rate.

Maven fetches the connector's jars, which are not part of pyspark, and they are kept in ~/.cache/appliance-perf. Without
Maven, or in a smoke run without jars, the connector is left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _bench import PAYLOAD_BYTES, headline, row

from appliance.bench.accounts import cpu_s, tree
from appliance.bench.local_appliance import LocalAppliance
from appliance.client import Admin, Producer
from appliance.spark.spark_session import build_session

JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
VALUE = bytes(range(32, 127)) * 2 + bytes(10)
PARTITIONS = (1, 4)
assert len(VALUE) == PAYLOAD_BYTES


def connector(cache: Path, may_fetch: bool) -> list[Path]:
    """The connector's jars; an empty list if they cannot be found or fetched."""
    jars = []
    for artifact in JARS:
        group, name, version = artifact.split(":")
        jar = cache / f"{name}-{version}.jar"
        if not jar.exists():
            stored = Path.home() / ".m2/repository" / group.replace(".", "/") / name / version / jar.name
            if not stored.exists() and may_fetch and shutil.which("mvn"):
                command = ["mvn", "-q", "dependency:get", "-Dtransitive=false", f"-Dartifact={artifact}"]
                subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
            if not stored.exists():
                return []
            cache.mkdir(parents=True, exist_ok=True)
            shutil.copy(stored, jar)
        jars.append(jar)
    return jars


def cpu_of_all_s() -> float:
    """CPU of this process and its descendants: Spark and the appliance."""
    return sum(cpu_s(pid) for pid in tree(os.getpid()))


class Contest:
    """Runs each workload on all sides in turn."""

    def __init__(self, spark: Any, broker: LocalAppliance, directory: Path, arguments: Any, sides: list[str]) -> None:
        self.spark, self.broker, self.directory = spark, broker, directory
        self.messages, self.rounds, self.only = arguments.messages, arguments.rounds, arguments.only
        self.sides = sides
        self._number = 0
        self.pause_s = self.batches_s = 0.0

    def options(self, side: str, topic: str) -> dict[str, str]:
        if side == "ours":
            return {"bootstrap.servers": self.broker.native, "subscribe": topic}
        return {"kafka.bootstrap.servers": self.broker.kafka, "subscribe": topic}

    def source(self, side: str, topic: str, reader: Any) -> Any:
        reader_options = self.options(side, topic) | {"startingOffsets": "earliest"}
        return reader.format("appliance" if side == "ours" else "kafka").options(**reader_options).load()

    def fresh(self) -> str:
        self._number += 1
        return str(self.directory / f"out-{self._number}")

    def batch_count(self, side: str, topic: str) -> int:
        return int(self.source(side, topic, self.spark.read).count())

    def batch_parquet(self, side: str, topic: str) -> int:
        into = self.fresh()
        self.source(side, topic, self.spark.read).write.option("compression", "none").parquet(into)
        return self.stored(into)

    def stream(self, side: str, topic: str, into: str) -> int:
        writer = self.source(side, topic, self.spark.readStream).writeStream.option("checkpointLocation", self.fresh())
        if into:
            writer = writer.format("parquet").option("path", into).option("compression", "none")
        else:
            writer = writer.format("noop")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        self.batches_s = sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1000
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    def stream_count(self, side: str, topic: str) -> int:
        return self.stream(side, topic, "")

    def stream_parquet(self, side: str, topic: str) -> int:
        into = self.fresh()
        self.stream(side, topic, into)
        return self.stored(into)

    def stored(self, into: str) -> int:
        """Number of rows of Parquet files, from their footers.  Deletes the files.  ``pause_s`` excludes its time."""
        import pyarrow.dataset

        self.pause_s = time.perf_counter()
        count = int(pyarrow.dataset.dataset(into, format="parquet", exclude_invalid_files=False).count_rows())
        shutil.rmtree(into)
        self.pause_s = time.perf_counter() - self.pause_s
        return count

    def compare(self, name: str, topic: str, once: Callable[[str, str], int]) -> None:
        if self.only not in name:
            return
        rates: dict[str, list[float]] = {side: [] for side in self.sides}
        within: list[float] = []
        cpus: dict[str, list[float]] = {side: [] for side in self.sides}
        for _ in range(self.rounds):
            for side in self.sides:
                self.pause_s = self.batches_s = 0.0
                cpu = cpu_of_all_s()
                start = time.perf_counter()
                count = once(side, topic)
                seconds = time.perf_counter() - start - self.pause_s
                assert count == self.messages, f"{side}: {count} of {self.messages} messages arrived"
                rates[side].append(count / seconds)
                cpus[side].append((cpu_of_all_s() - cpu) / count * 1e6)
                if side == "ours" and self.batches_s:
                    within.append(count / self.batches_s)
        figures: dict[str, Any] = {f"{side}_rows_per_s": statistics.median(rates[side]) for side in self.sides}
        figures["best"] = max(rates["ours"])
        if within:
            figures["ours_within_batches"] = statistics.median(within)
        figures |= {f"{side}_cpu": statistics.median(cpus[side]) for side in self.sides}
        if "connector" in rates:
            pairs = [ours / theirs for ours, theirs in zip(rates["ours"], rates["connector"], strict=True)]
            figures["ratio"] = statistics.median(pairs)
            figures["ratios"] = " ".join(f"{ratio:.2f}" for ratio in pairs)
        row(name, **figures)


def fill(broker: LocalAppliance, topic: str, partitions: int, messages: int) -> None:
    with Admin(broker.native) as admin:
        admin.create_topic(topic, partitions=partitions, settings={"flush.messages": 0})
    with Producer(broker.native, acks=1, batch_messages_max=1000, batch_bytes_max=1 << 20) as producer:
        values = [VALUE] * 1000
        for _ in range(messages // 1000):
            producer.send_many(topic, values)
        producer.flush()


def warm_up(contest: Contest, messages: int) -> None:
    """Run every workload once on every side, small, to warm up JIT, Python workers and connections."""
    fill(contest.broker, "warm", 2, messages)
    for side in contest.sides:
        for once in (contest.batch_count, contest.stream_count, contest.batch_parquet, contest.stream_parquet):
            once(side, "warm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.rounds, arguments.messages = 1, 20_000
    jars = connector(Path.home() / ".cache/appliance-perf/spark-kafka", may_fetch=not arguments.smoke)
    headline("Spark reading the log", messages=arguments.messages, message_bytes=PAYLOAD_BYTES, rounds=arguments.rounds)
    if not jars:
        print("without Spark's Kafka connector: its jars are not here", file=sys.stderr)
    settings = {"spark.master": "local[2]", "spark.driver.memory": "4g"}
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    with tempfile.TemporaryDirectory(prefix="perf-") as base, LocalAppliance(Path(base) / "data") as broker:
        spark = build_session("perf", settings, scratch=Path(base) / "spark")
        contest = Contest(spark, broker, Path(base), arguments, ["ours", "connector"] if jars else ["ours"])
        try:
            warm_up(contest, max(arguments.messages // 5, 1000))
            for partitions in PARTITIONS:
                topic = f"bench-{partitions}"
                fill(broker, topic, partitions, arguments.messages)
                label = f"{partitions} partition{'s' if partitions > 1 else ''}"
                contest.compare(f"count, batch, {label}", topic, contest.batch_count)
                contest.compare(f"count, stream, {label}", topic, contest.stream_count)
                contest.compare(f"parquet, batch, {label}", topic, contest.batch_parquet)
                contest.compare(f"parquet, stream, {label}", topic, contest.stream_parquet)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
