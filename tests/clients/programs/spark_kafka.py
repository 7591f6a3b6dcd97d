"""Spark's own Kafka connector: bootstrap, topic, its jars, a directory.  Prints one number a line, see the test."""

import json
import os
import sys

from pyspark.sql import SparkSession

bootstrap, topic, jars, place = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
listener = {"kafka.bootstrap.servers": bootstrap} | json.loads(os.environ.get("KAFKA_OPTIONS", "{}"))


def write(first: int, stop: int) -> None:
    rows = spark.range(first, stop).selectExpr("cast(id as string) as key", "concat('v-', id) as value")
    rows.write.format("kafka").options(topic=topic, **listener).save()


def follow() -> None:
    """All that is there and has not been read, in small micro-batches."""
    stream = spark.readStream.format("kafka").options(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="4000", **listener
    )
    rows = stream.load().selectExpr("cast(key as string) as key", "cast(value as string) as value", "offset")
    query = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", f"{place}/checkpoint")
    query.format("parquet").option("path", f"{place}/rows").start().awaitTermination()


write(0, 1_000)
batch = spark.read.format("kafka").options(subscribe=topic, startingOffsets="earliest", **listener).load()
print(batch.count(), batch.selectExpr("cast(value as string)").distinct().count())
for stop in (1_000, 1_500):
    if stop > 1_000:
        write(1_000, stop)
    follow()
    rows = spark.read.parquet(f"{place}/rows")
    print(rows.count(), rows.where("value = concat('v-', key)").select("key").distinct().count())
spark.stop()
