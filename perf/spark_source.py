"""How fast does Spark read the log, and is it ahead of Spark's own Kafka connector reading the same topic?

    python perf/spark_source.py [--smoke] [--messages N] [--rounds N] [--partitions 1,4]

200-byte messages in batches of 1000; local[2]; one session, warmed up; every workload runs ours, ours through the door
only, connector, ours, ... and the medians are printed in rows per second with their spread.  Workloads: count, all
seven columns to uncompressed Parquet, and a stream with trigger AvailableNow to the sink noop.  Every run checks its
number of rows.

The connector needs its jars: those that SPARK_KAFKA_JARS names (separated by commas), or what Maven has brought::

    mvn dependency:get -Dtransitive=false -Dartifact=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0    and likewise
    org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0, org.apache.kafka:kafka-clients:3.9.1 and
    org.apache.commons:commons-pool2:2.12.0

Without them, ours is measured alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _bench import PAYLOAD_BYTES, Appliance, appliance, headline, row
from pyspark.sql import SparkSession

from appliance.client import Producer
from appliance.client.admin import Admin

ROOT = Path(__file__).parent.parent
REPOSITORY = Path.home() / ".m2/repository"
JARS = [
    "org/apache/spark/spark-sql-kafka-0-10_2.13/4.2.0/spark-sql-kafka-0-10_2.13-4.2.0.jar",
    "org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.0.0/spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
    "org/apache/kafka/kafka-clients/3.9.1/kafka-clients-3.9.1.jar",
    "org/apache/commons/commons-pool2/2.12.0/commons-pool2-2.12.0.jar",
]
BATCH = 1000
Options = tuple[str, dict[str, str]]


def connector_jars() -> str:
    given = os.environ.get("SPARK_KAFKA_JARS", "")
    found = [REPOSITORY / jar for jar in JARS]
    return given or (",".join(map(str, found)) if all(path.exists() for path in found) else "")


def session(jars: str) -> SparkSession:
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT), SPARK_LOCAL_IP="127.0.0.1")
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
    )
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    from appliance.spark import register

    return register(spark)


def fill(server: Appliance, topic: str, partitions: int, count: int) -> None:
    with Admin(server.native) as admin:
        admin.create_topic(topic, partitions)
    values = [bytes(PAYLOAD_BYTES)] * BATCH
    with Producer(server.native, batch_messages_max=BATCH, batch_bytes_max=1 << 20) as producer:
        for _ in range(count // BATCH):
            producer.send_many(topic, values)
        producer.flush()


def readers(server: Appliance, topic: str, connector: bool) -> dict[str, Options]:
    ours = {"bootstrap.servers": server.native, "subscribe": topic, "startingOffsets": "earliest"}
    found: dict[str, Options] = {
        "ours": ("appliance", ours),
        "ours, door only": ("appliance", ours | {"shortCircuit": "false"}),
    }
    if connector:
        theirs = {"kafka.bootstrap.servers": server.kafka, "subscribe": topic, "startingOffsets": "earliest"}
        found["Kafka connector"] = ("kafka", theirs)
    return found


def count(spark: SparkSession, reader: Options, directory: Path) -> int:
    return spark.read.format(reader[0]).options(**reader[1]).load().count()


def parquet(spark: SparkSession, reader: Options, directory: Path) -> int:
    frame = spark.read.format(reader[0]).options(**reader[1]).load()
    frame.write.option("compression", "none").parquet(str(directory / "parquet"))
    return -1


def available_now(spark: SparkSession, reader: Options, directory: Path) -> int:
    stream = spark.readStream.format(reader[0]).options(**reader[1]).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


WORKLOADS: dict[str, Callable[[SparkSession, Options, Path], int]] = {
    "count": count,
    "to Parquet": parquet,
    "AvailableNow": available_now,
}


def measure(spark: SparkSession, reader: Options, workload: str, messages: int) -> float:
    """Rows per second."""
    directory = Path(tempfile.mkdtemp(prefix="perf-spark-"))
    try:
        started = time.perf_counter()
        rows = WORKLOADS[workload](spark, reader, directory)
        elapsed = time.perf_counter() - started
        if workload == "to Parquet":
            rows = spark.read.parquet(str(directory / "parquet")).count()
    finally:
        shutil.rmtree(directory)
    assert rows == messages, f"{workload}: {rows} rows instead of {messages}"
    return messages / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", default="1,4")
    given = parser.parse_args()
    messages, rounds = (50_000, 1) if given.smoke else (given.messages, given.rounds)
    jars = connector_jars()
    headline(
        "Spark reading the log: rows per second",
        messages=messages,
        bytes=PAYLOAD_BYTES,
        batch=BATCH,
        rounds=rounds,
        master="local[2]",
        connector="yes" if jars else "no jars",
    )
    spark = session(jars)
    with appliance() as server:
        for partitions in map(int, given.partitions.split(",")):
            topic = f"bench-{partitions}"
            fill(server, topic, partitions, messages)
            ways = readers(server, topic, bool(jars))
            for way in ways.values():
                measure(spark, way, "count", messages)
            print(f" {partitions} partition{'s' if partitions > 1 else ''}", flush=True)
            for workload in WORKLOADS:
                rates: dict[str, list[float]] = {name: [] for name in ways}
                for _ in range(rounds):
                    for name, way in ways.items():
                        rates[name].append(measure(spark, way, workload, messages))
                best = statistics.median(rates["ours"])
                for name, found in rates.items():
                    middle = statistics.median(found)
                    spread = f"{min(found):,.0f}-{max(found):,.0f}"
                    row(f"{workload}, {name}", rows_per_s=middle, spread=spread, ours_is=f"{best / middle:.2f}x")
    spark.stop()


if __name__ == "__main__":
    main()
