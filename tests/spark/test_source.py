"""The source, in Spark and against a real appliance: what was produced comes back, once, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from appliance.records.batch import CODECS, HEADER_BYTES
from appliance.records.encode import Fields, encode_batch, encode_values
from appliance.spark.options import source_options
from appliance.spark.source import BatchReader, StreamReader
from appliance.spark.stream_offsets import from_json

from ..support.ready import free_port
from ..support.server import Server, wait_for
from ..support.topics import Topics

small = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2)
fields = st.tuples(small, small, headers, st.integers(0, 1 << 41))
batch = st.tuples(st.lists(fields, min_size=1, max_size=20), st.sampled_from(CODECS))
batches = st.lists(batch, min_size=1, max_size=9)
HEALTHY = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
Replan = Callable[..., StreamReader]
TopicsOf = Callable[[Server], Topics]
Row = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...] | None]


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("appliance").options(**options).load()


def values(frame: DataFrame) -> list[bytes | None]:
    return [bytes(value) if value is not None else None for value in frame.toArrow().column("value").to_pylist()]


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def fill(topics: Topics, topic: str, first: int, count: int, each: int = 50, partition: int = 0) -> list[bytes]:
    """``count`` numbered values in batches of ``each``."""
    lines = numbered(first, count)
    topics.write(topic, [encode_values(lines[at : at + each], 1000 + at) for at in range(0, count, each)], partition)
    return lines


# ---- batch


@pytest.mark.parametrize("short_circuit", ["true", "false"])
@given(made=batches)
@settings(max_examples=4, deadline=None, suppress_health_check=HEALTHY, phases=[Phase.generate])
def test_everything_comes_back(
    spark: SparkSession,
    topics: Topics,
    names: Callable[[], str],
    short_circuit: str,
    made: list[tuple[list[Fields], str]],
) -> None:
    topic = topics.create(names(), partitions=3)
    expected: list[Row] = []
    for index, (records, codec) in enumerate(made):
        topics.write(topic, [encode_batch(records, codec=codec)], index % 3)
        expected += [(key, value, time * 1000, tuple(pairs) or None) for key, value, pairs, time in records]
    options = topics.options(topic, includeHeaders="true", shortCircuit=short_circuit)
    table = load(spark, options).selectExpr("*", "unix_micros(timestamp) AS micros").toArrow()
    found: list[Row] = [
        (
            row["key"],
            row["value"],
            row["micros"],
            None if row["headers"] is None else tuple((pair["key"], pair["value"]) for pair in row["headers"]),
        )
        for row in table.to_pylist()
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert set(table.column("topic").to_pylist()) == {topic}
    assert set(table.column("timestampType").to_pylist()) == {0}
    assert table.num_rows == len({(row["partition"], row["offset"]) for row in table.to_pylist()})


@pytest.fixture
def names(topic: str) -> Callable[[], str]:
    """New names for every example of hypothesis."""
    counter = iter(range(1000))
    return lambda: f"{topic}-{next(counter)}"


@pytest.mark.parametrize("short_circuit", ["true", "false"])
def test_cuts_anywhere_read_every_record_once(
    spark: SparkSession, topics: Topics, topic: str, short_circuit: str
) -> None:
    topics.create(topic)
    lines = fill(topics, topic, 0, 1000)
    options = topics.options(topic, minPartitions="13", fetchBytes="1000", shortCircuit=short_circuit)
    frame = load(spark, options)
    assert frame.rdd.getNumPartitions() == 13
    assert values(frame) == lines


def test_from_offset_to_offset_and_by_time(spark: SparkSession, topics: Topics, topic: str) -> None:
    topics.create(topic, partitions=2)
    lines = fill(topics, topic, 0, 200)
    rows = load(spark, topics.options(topic)).toArrow()
    offsets = rows.column("offset").to_pylist()
    spec = {"startingOffsets": {topic: {0: offsets[17], 1: -2}}, "endingOffsets": {topic: {0: offsets[171], 1: -1}}}
    bounded = {name: json.dumps(value) for name, value in spec.items()}
    assert values(load(spark, topics.options(topic, **bounded))) == lines[17:171]
    timed = topics.options(topic, startingTimestamp=1050, startingOffsetsByTimestampStrategy="latest")
    assert values(load(spark, timed)) == lines[50:]
    assert values(load(spark, topics.options(topic, endingTimestamp=1100))) == lines[:100]
    with pytest.raises(AnalysisException, match="no record at or after 1050 ms"):
        load(spark, topics.options(topic, startingTimestamp=1050)).count()


def test_patterns_and_assignments(spark: SparkSession, topics: Topics, topic: str) -> None:
    for name in ("x", "y"):
        topics.create(f"{topic}-{name}", partitions=2)
        fill(topics, f"{topic}-{name}", 0, 10, partition=1)
    options = {"bootstrap.servers": topics.server.native}
    assert load(spark, options | {"subscribePattern": f"{topic}-."}).count() == 20
    assert load(spark, options | {"assign": json.dumps({f"{topic}-x": [1], f"{topic}-y": [0]})}).count() == 10


def test_there_may_be_nothing_to_read(spark: SparkSession, topics: Topics, topic: str) -> None:
    topics.create(topic)
    assert load(spark, topics.options(topic)).count() == 0
    none = {"bootstrap.servers": topics.server.native, "subscribePattern": f"{topic}-none.*"}
    assert load(spark, none).count() == 0


def test_small_partitions_share_a_task_and_their_rows_come_in_even_batches(topics: Topics, topic: str) -> None:
    topics.create(topic, partitions=40)
    lines = [line for number in range(40) for line in fill(topics, topic, number * 10, 10, partition=number)]
    reader = BatchReader(source_options(topics.options(topic), streaming=False), cores=2)
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert batch.column("value").to_pylist() == lines


def test_a_job_of_the_kafka_connector_runs_when_format_and_address_are_changed(
    spark: SparkSession, topics: Topics, topic: str
) -> None:
    topics.create(topic)
    lines = fill(topics, topic, 0, 10)
    options = {"kafka.bootstrap.servers": topics.server.native, "subscribe": topic, "startingOffsets": "earliest"}
    assert values(load(spark, options)) == lines
    with pytest.raises(AnalysisException, match="is the Kafka listener"):
        load(spark, options | {"kafka.bootstrap.servers": topics.server.kafka}).count()


def test_filters_are_pushed_down_when_asked_for(spark: SparkSession, topics: Topics, topic: str) -> None:
    topics.create(topic, partitions=2)
    lines = fill(topics, topic, 0, 200) and fill(topics, topic, 200, 200, partition=1)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, topics.options(topic, pushFilters="true")).where("partition = 1")
        offset = sorted(frame.toArrow().column("offset").to_pylist())[150]
        late = frame.where(f"offset >= {offset}").where("timestamp >= timestamp_millis(1150)")
        assert values(late) == lines[150:]
        plan = late._jdf.queryExecution().executedPlan().toString()
        assert "offset" not in plan.split("Filter", 1)[-1].split("\n")[0]
        assert frame.where("partition = 7").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "no-such-topic"}, "no topic 'no-such-topic'"),
        ({"subscribbe": "x"}, "did you mean subscribe"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "every partition that is read"),
        ({"retryTimeoutMs": "10", "bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_errors_name_what_is_wrong(
    spark: SparkSession, topics: Topics, topic: str, options: dict[str, str], says: str
) -> None:
    topics.create(topic)
    with pytest.raises(PySparkException, match=says):
        load(spark, topics.options(topic) | options).count()


def test_a_wrong_option_of_a_stream_is_told_at_load(spark: SparkSession, topics: Topics, topic: str) -> None:
    for wrong, says in (
        ({"startingOffset": "earliest"}, "did you mean"),
        ({"startingOffsets": '{"t":'}, "startingOffsets"),
    ):
        with pytest.raises(PySparkException, match=says) as caught:
            spark.readStream.format("appliance").options(**topics.options(topic) | wrong).load()
        assert "UnboundLocalError" not in str(caught.value), "which Spark told instead when the query ran"


def test_a_write_says_append(spark: SparkSession, topics: Topics, topic: str) -> None:
    topics.create(topic)
    rows = spark.createDataFrame([("v",)], "value string")
    writer = rows.write.format("appliance").options(**{"bootstrap.servers": topics.server.native, "topic": topic})
    with pytest.raises(PySparkException, match=r"(?i)errorifexists"):
        writer.save()
    writer.mode("append").save()
    assert values(load(spark, topics.options(topic))) == [b"v"]


def test_another_schema_is_refused(spark: SparkSession, topics: Topics, topic: str) -> None:
    topics.create(topic)
    reader = spark.read.format("appliance").options(**topics.options(topic)).schema("value string")
    with pytest.raises(PySparkException, match="load without a schema"):
        reader.load().count()


def test_a_corrupt_batch_fails_or_is_skipped(
    spark: SparkSession, make_appliance: Callable[..., Server], topics_of: TopicsOf, topic: str
) -> None:
    """The file is altered behind the back of the appliance, as a bad disk would."""
    server = make_appliance()
    topics = topics_of(server)
    topics.create(topic)
    lines = fill(topics, topic, 0, 150)
    log = next((server.data_dir / f"{topic}-0").glob("*.log"))
    with log.open("r+b") as file:
        data = file.read()
        position = data.index(b"000075")
        file.seek(position)
        file.write(b"X")
    assert position > HEADER_BYTES
    for short_circuit in ("true", "false"):
        options = topics.options(topic, shortCircuit=short_circuit)
        with pytest.raises(PySparkException, match=rf"{topic}-0: batch at offset \d+: .*CRC32C"):
            load(spark, options).collect()
        skipping = load(spark, options | {"corruptBatch": "skip"})
        assert values(skipping) == lines[:50] + lines[100:]
        wait_for(lambda: f"{topic}-0" in server.state["damaged"], "it is named")  # so it is not served from now on


# ---- streams


def start(spark: SparkSession, options: dict[str, str], into: Path, **more: str) -> StreamingQuery:
    """Everything that is there now, to Parquet; ends by itself."""
    stream = spark.readStream.format("appliance").options(**({"startingOffsets": "earliest"} | options)).load()
    writer = stream.writeStream.format("parquet").option("path", str(into)).options(**more)
    return writer.option("checkpointLocation", f"{into}.checkpoint").trigger(availableNow=True).start()


def run(spark: SparkSession, options: dict[str, str], into: Path) -> list[int]:
    """Rows of each micro-batch."""
    query = start(spark, options, into)
    assert query.awaitTermination(60)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def stored(spark: SparkSession, path: Path) -> list[bytes | None]:
    return values(spark.read.parquet(str(path)).orderBy("partition", "offset"))


def test_available_now_again_and_again(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(topic)
    lines: list[bytes] = []
    for first in (0, 300, 600):
        lines += fill(topics, topic, first, 300)
        assert sum(run(spark, topics.options(topic), tmp_path / "out")) == 300
    assert run(spark, topics.options(topic), tmp_path / "out") == []
    assert stored(spark, tmp_path / "out") == lines


def test_bytes_per_trigger_are_kept(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(topic, partitions=2)
    lines = fill(topics, topic, 0, 500, each=10) + fill(topics, topic, 500, 500, each=10, partition=1)
    query = start(spark, topics.options(topic, maxBytesPerTrigger="4000"), tmp_path / "out")
    assert query.awaitTermination(60)
    assert stored(spark, tmp_path / "out") == lines
    for progress in query.recentProgress:
        first, end = ({} if not text else from_json(text)[0] for text in _ends(progress))
        assert sum(end[key] - first.get(key, 0) for key in end) <= 4000


def _ends(progress: Any) -> Sequence[Any]:
    source = json.loads(progress.json)["sources"][0]
    return source["startOffset"], source["endOffset"]


def test_two_queries_at_once(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(topic)
    lines = fill(topics, topic, 0, 500)
    queries = [start(spark, topics.options(topic), tmp_path / name) for name in ("one", "two")]
    assert all(query.awaitTermination(60) for query in queries)
    assert stored(spark, tmp_path / "one") == stored(spark, tmp_path / "two") == lines


def test_new_partitions_and_topics_join_a_stream(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.create(f"{topic}-a")
    lines = fill(topics, f"{topic}-a", 0, 100)
    options = {"bootstrap.servers": topics.server.native, "subscribePattern": f"{topic}-.*"}
    options["startingOffsets"] = "latest"
    assert run(spark, options, tmp_path / "out") == [], "nothing came after the start"
    topics.cluster.admin("alter_topic", {"name": f"{topic}-a", "partitions": 2})
    new = fill(topics, f"{topic}-a", 100, 100, partition=1)
    topics.create(f"{topic}-b")
    more = fill(topics, f"{topic}-b", 200, 50)
    assert sum(run(spark, options, tmp_path / "out")) == 150
    assert sorted(stored(spark, tmp_path / "out"), key=repr) == sorted(new + more, key=repr)
    assert lines[0] not in stored(spark, tmp_path / "out")


def test_a_restarted_appliance_is_waited_for(
    spark: SparkSession,
    make_appliance: Callable[..., Server],
    topics_of: TopicsOf,
    topic: str,
    tmp_path: Path,
) -> None:
    server = make_appliance(**{"native.listen": f"127.0.0.1:{free_port()}"})
    topics = topics_of(server)
    topics.create(topic)
    first = fill(topics, topic, 0, 200)
    options = topics.options(topic, shortCircuit="false") | {"startingOffsets": "earliest"}
    stream = spark.readStream.format("appliance").options(**options).load()
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(processingTime="100 milliseconds").start()
    try:
        wait_for(lambda: _rows(query) == 200, "the first rows")
        assert server.stop() == 0
        server.start()
        second = fill(topics, topic, 200, 200)
        wait_for(lambda: _rows(query) == 400, "the rows after the restart")
    finally:
        query.stop()
    assert stored(spark, tmp_path / "out") == first + second


def _rows(query: StreamingQuery) -> int:
    assert query.exception() is None
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def test_data_lost_to_retention_between_two_runs(
    spark: SparkSession, make_appliance: Callable[..., Server], topics_of: TopicsOf, topic: str, tmp_path: Path
) -> None:
    topics = topics_of(make_appliance(**{"disk.check_ms": 100}))
    topics.create(topic, segment_bytes=16384, retention_bytes=32768)
    assert sum(run(spark, topics.options(topic), tmp_path / "out")) == 0
    lines = fill(topics, topic, 0, 10_000, each=500)
    wait_for(lambda: _log_start(topics, topic) > 0, "retention")
    with pytest.raises(StreamingQueryException, match="failOnDataLoss=false"):
        run(spark, topics.options(topic), tmp_path / "out")
    assert sum(run(spark, topics.options(topic, failOnDataLoss="false"), tmp_path / "out")) > 0
    kept = stored(spark, tmp_path / "out")
    assert kept == lines[-len(kept) :] and len(kept) < len(lines)


def _log_start(topics: Topics, topic: str) -> int:
    (found,) = topics.cluster.admin("topics", {"names": [topic]})
    return int(found["partitions"][0]["start"])


# ---- the stream's reader alone, where Spark's own timing would be in the way


@pytest.fixture
def replan(topics: Topics, topic: str) -> Iterator[Callable[..., StreamReader]]:
    """Makes readers as new drivers do."""
    made: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        given = topics.options(topic, **({"startingOffsets": "latest"} | options))
        made.append(StreamReader(source_options(given, streaming=True), cores=2))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def read(reader: StreamReader, first: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    found: list[bytes] = []
    for part in reader.partitions(first, end):
        for batch in reader.read(part):
            found += batch.column("value").to_pylist()
    return found


def test_a_replay_of_the_first_micro_batch_starts_where_it_did(topics: Topics, topic: str, replan: Replan) -> None:
    """The driver dies after the end was stored; the new one's "latest" has moved on."""
    topics.create(topic)
    fill(topics, topic, 0, 100)
    one = replan()
    start = one.initialOffset()
    lines = fill(topics, topic, 100, 50)
    end = json.loads(json.dumps(one.latestOffset(start, ReadAllAvailable())))
    more = fill(topics, topic, 150, 50)
    two = replan()
    moved = two.initialOffset()
    assert read(two, moved, end) == lines
    assert read(two, end, two.latestOffset(end, ReadAllAvailable())) == more


def test_the_first_end_is_stored_although_nothing_came(topics: Topics, topic: str, replan: Replan) -> None:
    topics.create(topic)
    fill(topics, topic, 0, 100)
    one = replan()
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    assert end != start and read(one, start, end) == []
    assert one.latestOffset(end, ReadAllAvailable()) == end, "and only the first"


def test_a_partition_that_is_new_starts_where_it_did_also_in_a_replay(
    topics: Topics, topic: str, replan: Replan
) -> None:
    topics.create(topic)
    one = replan()
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    topics.cluster.admin("alter_topic", {"name": topic, "partitions": 2})
    lines = fill(topics, topic, 0, 100, partition=1)
    wait_for(lambda: one.latestOffset(end, ReadAllAvailable()) != end, "the new partition")
    then = one.latestOffset(end, ReadMaxBytes(500))
    assert from_json(then)[1] == {(topic, 1): 0}
    fill(topics, topic, 100, 50, partition=1)
    two = replan()
    two.initialOffset()
    found = read(two, end, then)
    last = two.latestOffset(then, ReadAllAvailable())
    assert (found + read(two, then, last))[:100] == lines


def test_available_now_does_not_chase_the_head(topics: Topics, topic: str, replan: Replan) -> None:
    topics.create(topic)
    lines = fill(topics, topic, 0, 100)
    reader = replan(startingOffsets="earliest", maxBytesPerTrigger="300")
    reader.prepareForTriggerAvailableNow()
    fill(topics, topic, 100, 100)
    position = reader.initialOffset()
    found: list[bytes] = []
    while (end := reader.latestOffset(position, reader.getDefaultReadLimit())) != position:
        found += read(reader, position, end)
        position = end
    assert found == lines
    reported = reader.reportLatestOffset()
    assert reported is not None and from_json(reported)[0][topic, 0] > from_json(position)[0][topic, 0]
    reader.commit(position)


def test_the_partition_that_spark_puts_in_the_place_of_none_has_no_rows(appliance: Server) -> None:
    """pyspark 4.3 reads one without a value where ``partitions()`` was empty, as for a topic without messages."""
    reader = BatchReader(source_options({"bootstrap.servers": appliance.native, "subscribe": "t"}, streaming=False), 1)
    assert list(reader.read(InputPartition(None))) == []


def test_functions_of_users_run_over_rows(spark: SparkSession, topics: Topics, topic: str) -> None:
    """pyspark asks for pandas even where a function takes Arrow."""
    pytest.importorskip("pandas", reason="pip install '.[spark]'")
    topics.create(topic)
    topics.write(topic, [encode_values([b"a", b"bb", b"ccc"], 0)])
    rows = spark.read.format("appliance").options(**topics.options(topic)).load()

    def lengths(batches: Any) -> Any:
        for batch in batches:
            found = [len(each) for each in batch.column("value").to_pylist()]
            yield pa.record_batch({"n": pa.array(found, pa.int64())})

    assert [row.n for row in rows.mapInArrow(lengths, "n long").collect()] == [1, 2, 3]
    assert [bytes(each) for each in rows.select("value").toPandas()["value"]] == [b"a", b"bb", b"ccc"]
