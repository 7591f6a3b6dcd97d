"""The sink: rows arrive as they are, where they belong, and once, also when Spark repeats itself or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from appliance.errors import BadValue, MessageTooLarge, StaleProducerEpoch, UnknownPartition
from appliance.records.batch import CODECS, walk
from appliance.records.decode import Record, decode_batch
from appliance.records.encode import encode_values
from appliance.records.partitioner import partition_for
from appliance.spark.options import sink_options
from appliance.spark.sink import EPOCHS, TaskWriter, check_columns, producer_of_task

from ..support.server import Server, wait_for
from ..support.topics import Topics
from .conftest import ROOT

TopicsOf = Callable[[Server], Topics]


def stored(server: Server, topic: str, partition: int = 0) -> list[Record]:
    """What lies in the log, read from its files: no Spark, no client."""
    found: list[Record] = []
    for path in sorted((server.data_dir / f"{topic}-{partition}").glob("*.log")):
        data = memoryview(path.read_bytes())
        for start, *_ in walk(data, 0, len(data)):
            found += decode_batch(data, start)
    return found


def write(frame: DataFrame, topics: Topics, topic: str = "", **options: str) -> None:
    given = {"bootstrap.servers": topics.server.native} | ({"topic": topic} if topic else {}) | options
    frame.write.format("appliance").options(**given).mode("append").save()


# ---- batch


@pytest.mark.parametrize("codec", CODECS)
def test_rows_arrive_as_they_are(spark: SparkSession, topics: Topics, topic: str, codec: str) -> None:
    topics.create(topic)
    rows: list[Any] = [
        (b"k", b"v", [("h", b"x"), ("n", None)]),
        (None, b"", None),
        (b"", None, []),
        *[(None, b"line %d" % number, None) for number in range(50)],
    ]
    schema = "key binary, value binary, headers array<struct<key: string, value: binary>>"
    write(spark.createDataFrame(rows, schema).coalesce(1), topics, topic, compression=codec, batchBytes="500")
    found = [(record.key, record.value, list(record.headers)) for record in stored(topics.server, topic)]
    assert found == [(key, value, pairs or []) for key, value, pairs in rows]


def test_rows_go_where_they_belong(spark: SparkSession, topics: Topics, topic: str) -> None:
    """By the column partition, else by key as every client does; without both, to all in turn."""
    for name in ("keyed", "named", "free"):
        topics.create(f"{topic}-{name}", partitions=3)
    rows = [(f"{topic}-keyed", f"key {number}", f"{number}", None) for number in range(60)]
    rows += [(f"{topic}-named", "same key", f"{number}", number % 3) for number in range(60)]
    rows += [(f"{topic}-free", None, f"{number}", None) for number in range(600)]
    frame = spark.createDataFrame(rows, "topic string, key string, value string, partition int")
    write(frame.repartition(4), topics, batchBytes="300")
    for partition in range(3):
        for record in stored(topics.server, f"{topic}-keyed", partition):
            assert record.key is not None and partition_for(record.key, 3) == partition
        assert {int(r.value or b"") % 3 for r in stored(topics.server, f"{topic}-named", partition)} == {partition}
    free = [len(stored(topics.server, f"{topic}-free", partition)) for partition in range(3)]
    assert sum(free) == 600 and min(free) > 50


def test_the_topic_is_made_if_need_be(spark: SparkSession, topics: Topics, topic: str) -> None:
    write(spark.createDataFrame([("a",)], "value string"), topics, topic)
    assert [record.value for record in stored(topics.server, topic)] == [b"a"]


@pytest.mark.parametrize(
    ("columns", "topic", "says"),
    [
        ("key string", "t", "no column 'value'"),
        ("value string", "", "option topic"),
        ("value int", "t", "column 'value' is int, not string or binary"),
        ("value string, partition string", "t", "column 'partition' is string"),
        ("value string, headers string", "t", "array of key, value"),
        ("value string, extra int", "t", "'extra' cannot be written"),
    ],
)
def test_columns_that_cannot_be_written(spark: SparkSession, columns: str, topic: str, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        check_columns(StructType.fromDDL(columns), sink_options({"topic": topic}))


def test_a_partition_that_is_not_there(spark: SparkSession, topics: Topics, topic: str) -> None:
    topics.create(topic)
    with pytest.raises(PySparkException, match="there are 1 partitions"):
        write(spark.createDataFrame([("a", 7)], "value string, partition int"), topics, topic)


def test_a_log_is_not_overwritten(spark: SparkSession, topics: Topics, topic: str) -> None:
    frame = spark.createDataFrame([("a",)], "value string")
    with pytest.raises(PySparkException, match="only appended"):
        options = {"bootstrap.servers": topics.server.native, "topic": topic}
        frame.write.format("appliance").options(**options).mode("overwrite").save()


def test_sorted_rows_have_the_same_order_whatever_the_shuffle(spark: SparkSession, topics: Topics, topic: str) -> None:
    topics.create(topic)
    frame = spark.range(500).selectExpr("cast(id * 7919 % 500 as string) AS value").coalesce(1)
    write(frame, topics, topic, sortRows="true")
    found = [record.value or b"" for record in stored(topics.server, topic)]
    assert len(found) == 500 and found == sorted(found)


# ---- a task, run again


def rows(first: int, count: int, each: int = 10) -> Iterator[pa.RecordBatch]:
    for start in range(first, first + count, each):
        lines = [f"{number:06d}" for number in range(start, start + each)]
        yield pa.record_batch([pa.array(lines)], names=["value"])


def task(topics: Topics, topic: str, query: str, batch: int = 0, leaves_out: bool = False) -> TaskWriter:
    options = sink_options({"bootstrap.servers": topics.server.native, "topic": topic, "batchBytes": "400"})
    return TaskWriter(options, producer_of_task(query, 3, batch), leaves_out=leaves_out)


class Killed(Exception):
    pass


def dying(batches: Iterator[pa.RecordBatch], after: int) -> Iterator[pa.RecordBatch]:
    for _ in range(after):
        yield next(batches)
    raise Killed


@pytest.mark.parametrize("after", [1, 5, 29, 30])
def test_a_repeated_task_doubles_nothing(topics: Topics, topic: str, after: int) -> None:
    topics.create(topic, partitions=2)
    with pytest.raises(Killed):
        task(topics, topic, topic).write(dying(rows(0, 300), after))
    for _ in range(2):
        assert task(topics, topic, topic).write(rows(0, 300)).rows == 300
    task(topics, topic, topic, batch=1).write(rows(300, 50))
    found = [int(r.value or b"") for number in range(2) for r in stored(topics.server, topic, number)]
    assert sorted(found) == list(range(350))


def test_batches_of_arrow_do_not_matter(topics: Topics, topic: str) -> None:
    """Spark may hand over the same rows in other portions; what they become must not depend on that."""
    topics.create(topic)
    task(topics, topic, topic).write(rows(0, 200, each=10))
    task(topics, topic, topic).write(rows(0, 200, each=50))
    assert len(stored(topics.server, topic)) == 200


def test_a_task_that_outlived_its_micro_batch_is_refused(topics: Topics, topic: str) -> None:
    topics.create(topic)
    task(topics, topic, topic, batch=8).write(rows(0, 50))
    with pytest.raises(StaleProducerEpoch):
        task(topics, topic, topic, batch=7).write(rows(50, 50))
    assert len(stored(topics.server, topic)) == 50


def test_identities() -> None:
    known = {
        producer_of_task("q", 0, 0),
        producer_of_task("q", 1, 0),
        producer_of_task("r", 0, 0),
        producer_of_task("q", 0, 1),
        producer_of_task("q", 0, EPOCHS),
    }
    assert len(known) == 5 and producer_of_task("q", 1, 0) in known
    for who in known:
        assert 1 << 62 <= who.producer_id < 1 << 63 and 0 <= who.epoch < EPOCHS
    assert producer_of_task("q", 0, 5).producer_id == producer_of_task("q", 0, 6).producer_id


def test_killed_writers_and_workers_lose_and_double_nothing(
    make_appliance: Callable[..., Server], topics_of: TopicsOf, topic: str
) -> None:
    topics = topics_of(make_appliance())
    topics.create(topic)

    def killing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index, batch in enumerate(batches):
            if index % 40 == 20:
                role = "writer" if index % 80 == 20 else "network"
                for pid in topics.server.pids(role):
                    with suppress(ProcessLookupError):  # the last one is not missed yet
                        topics.server.kill(pid)
            yield batch

    task(topics, topic, topic).write(killing(rows(0, 2000)))
    assert [int(record.value or b"") for record in stored(topics.server, topic)] == list(range(2000))


def test_an_unknown_topic_where_none_may_be_made(
    make_appliance: Callable[..., Server], topics_of: TopicsOf, topic: str
) -> None:
    topics = topics_of(make_appliance(**{"topics.auto_create": "false"}))
    with pytest.raises(UnknownPartition):
        task(topics, topic, topic).write(rows(0, 10))


# ---- streams


def test_a_replayed_micro_batch_is_not_doubled(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    """The commit of a micro-batch is taken out of the checkpoint, as if the driver had died before it."""
    source, sink = topics.create(f"{topic}-from", partitions=2), topics.create(f"{topic}-to", partitions=2)
    for partition in range(2):
        topics.write(source, [encode_values([b"%d.%d" % (partition, n) for n in range(500)], 5)], partition)

    def run() -> None:
        reading = topics.options(source, startingOffsets="earliest", maxBytesPerTrigger="4000")
        frame = spark.readStream.format("appliance").options(**reading).load().select("value")
        writing = {"bootstrap.servers": topics.server.native, "topic": sink, "checkpointLocation": str(tmp_path)}
        query = frame.writeStream.format("appliance").options(**writing).trigger(availableNow=True).start()
        assert query.awaitTermination(60)

    run()
    last = max((path for path in (tmp_path / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    run()
    found = sorted(record.value or b"" for number in range(2) for record in stored(topics.server, sink, number))
    assert found == sorted(b"%d.%d" % (partition, n) for partition in range(2) for n in range(500))


def test_a_named_write_that_is_repeated_is_not_doubled(spark: SparkSession, topics: Topics, topic: str) -> None:
    topics.create(topic)
    frame = spark.createDataFrame([(f"{number}",) for number in range(100)], "value string").coalesce(1)
    for version in (0, 1, 1, 2):
        write(frame, topics, topic, txnAppId=f"{topic}-lines", txnVersion=str(version))
    write(frame, topics, topic, txnAppId=f"{topic}-others", txnVersion="2")
    assert len(stored(topics.server, topic)) == 400
    with pytest.raises(PySparkException, match="give both"):
        write(frame, topics, topic, txnAppId="lines")


def test_a_row_that_is_too_large_is_named(topics: Topics, topic: str) -> None:
    topics.create(topic, max_message_bytes=1000)
    large = pa.record_batch([pa.array([b"small", b"x" * 2000])], names=["value"])
    with pytest.raises(MessageTooLarge, match=rf"{topic}-0: .*max\.message\.bytes"):
        task(topics, topic, topic).write(iter([large]))


@pytest.mark.parametrize("limit", [1000, 100])
def test_rows_that_are_too_large_are_left_out_if_that_is_wanted(topics: Topics, topic: str, limit: int) -> None:
    """Also where those around them are too large together only, and are repeated."""
    topics.create(topic, max_message_bytes=limit)
    values = [b"first", os.urandom(2000), b"second", b"third", os.urandom(2000)]
    for _ in range(2):
        writer = task(topics, topic, topic, leaves_out=True)
        assert writer.write(iter([pa.record_batch([pa.array(values)], names=["value"])])).rows == 3
        assert writer.too_large == 2
    assert [each.value for each in stored(topics.server, topic)] == [b"first", b"second", b"third"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_killed_driver_writes_everything_once(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Killed three times in the middle of its micro-batches."""
    source, sink = topics.create(f"{topic}-from", partitions=2), topics.create(f"{topic}-to", partitions=2)
    count = 6000
    for partition in range(2):
        lines = [b"%d.%d" % (partition, number) for number in range(count)]
        topics.write(source, [encode_values(lines[at : at + 100], 5) for at in range(0, count, 100)], partition)

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.driver", topics.server.native, source, sink, str(tmp_path / "cp")]
        log = (tmp_path / "driver.log").open("ab")
        with log:
            return subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log)

    def written_bytes() -> int:
        return sum(path.stat().st_size for path in topics.server.data_dir.glob(f"{sink}-*/*.log"))

    for _ in range(3):
        driver, before = start(), written_bytes()

        def written(driver: subprocess.Popen[bytes] = driver, before: int = before) -> bool:
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
            return written_bytes() > before + 30_000

        wait_for(written, "some micro-batches", 90)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(60)
        assert len(stored(topics.server, sink)) < count, "killed in the middle"
    driver = start()
    assert driver.wait(120) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    found = sorted(record.value or b"" for number in range(2) for record in stored(topics.server, sink, number))
    assert found == sorted(b"%d.%d" % (partition, n) for partition in range(2) for n in range(count))


def test_update_mode_is_written_through_foreach_batch(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Spark itself refuses the mode for sinks in Python; the way that README.md shows writes each change once."""
    topics.create(f"{topic}-in")
    topics.create(topic)
    topics.write(f"{topic}-in", [encode_values([b"a", b"b", b"a"], 1000)])
    reading = {"bootstrap.servers": topics.server.native, "subscribe": f"{topic}-in", "startingOffsets": "earliest"}
    lines = spark.readStream.format("appliance").options(**reading).load()
    counts = lines.groupBy("value").count().selectExpr("value AS key", "cast(count as string) AS value")

    def write(rows: DataFrame, batch: int) -> None:
        once = {"txnAppId": "counts", "txnVersion": str(batch), "topic": topic, "sortRows": "true"}
        given = {"bootstrap.servers": topics.server.native} | once
        for _ in range(2):  # as when the micro-batch is repeated
            rows.write.format("appliance").mode("append").options(**given).save()

    stream = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "state"))
    stream.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    found = (
        spark.read.format("appliance")
        .options(**topics.options(topic))
        .load()
        .selectExpr("cast(key as string) AS key", "cast(value as string) AS value")
    )
    assert sorted((row["key"], row["value"]) for row in found.collect()) == [("a", "2"), ("b", "1")]
    refused = counts.writeStream.outputMode("update").format("appliance").option("topic", topic)
    with pytest.raises(PySparkException, match=r"(?i)update"):
        refused.option("checkpointLocation", str(tmp_path / "other")).start().awaitTermination()
