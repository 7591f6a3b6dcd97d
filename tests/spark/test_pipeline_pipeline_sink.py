"""A task and the driver's commit, without Spark between them: what they hand over, and what a repetition does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from appliance.errors import AlreadyRunning
from appliance.spark.pipeline.batch_record import BatchRecord, TopicRead, encode_schema, store_plan
from appliance.spark.pipeline.events import Transform
from appliance.spark.pipeline.output_files import OutputFiles
from appliance.spark.pipeline.pipeline_sink import Committer
from appliance.spark.pipeline.settings import Settings
from appliance.spark.pipeline.startup import Beginning, definitions
from appliance.spark.pipeline.tables import claim, open_store
from appliance.spark.pipeline.task_work import Job, number_space
from appliance.spark.pipeline.times import MICROS

from .conftest import Topics
from .pipelines import access, events, settings
from .test_sink import stored

STAMP = datetime(2026, 11, 20, tzinfo=UTC)


def records(values: Sequence[bytes], topic: str, first: int = 0, stamp: datetime = STAMP) -> pa.RecordBatch:
    return records_at(topic, 0, list(enumerate(values, first)), stamp)


def records_at(
    topic: str, partition: int, values: Sequence[tuple[int, bytes]], stamp: datetime = STAMP
) -> pa.RecordBatch:
    """Records with these offsets and values."""
    count = len(values)
    columns = {
        "key": pa.array([b"k"] * count, pa.binary()),
        "value": pa.array([value for _, value in values], pa.binary()),
        "topic": pa.array([topic] * count, pa.string()),
        "partition": pa.array([partition] * count, pa.int32()),
        "offset": pa.array([offset for offset, _ in values], pa.int64()),
        "timestamp": pa.array([stamp] * count, MICROS),
    }
    return pa.record_batch(columns)


def begun(made: Settings, run: str = "run") -> Beginning:
    """As of a pipeline that was started for the first time, without comparing anything."""
    identity, schema = claim(made), Transform(made).schema
    return Beginning(identity, BatchRecord(-1, tables=definitions(made, schema, {})), None, encode_schema(schema), run)


def micro_batch(
    made: Settings,
    batch: int,
    tasks: Sequence[Sequence[pa.RecordBatch]],
    read: Mapping[str, TopicRead] = {},
) -> None:
    beginning = begun(made)
    open_store(made).prepare()
    store_plan(OutputFiles(made.output), BatchRecord(batch, beginning.run, read=dict(read)))
    works = [Job(made, beginning, batch, number).run(iter(given)) for number, given in enumerate(tasks)]
    Committer(made, beginning).commit(works, batch)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_repeated_micro_batch_changes_nothing(topics: Topics, topic: str, tmp_path: Path, kind: str) -> None:
    """Also when the driver died between the tasks' work and the commit, and when tasks were repeated."""
    for name in (f"{topic}-dead", f"{topic}-changes"):
        topics.create(name)
    aggregate = {"name": "hits", "kind": "count", "by": ["client"], "topic": f"{topic}-changes"}
    made = settings(
        tmp_path,
        topics,
        topic,
        output={"path": "out", "format": kind},
        dead_letters={"topic": f"{topic}-dead"},
        aggregate=[aggregate],
    )
    first = [records([access(number) for number in range(100)] + [b"dead 1"], topic)]
    second = [records([b"dead 2"], topic, 500), records([access(number) for number in range(100, 150)], topic, 501)]
    for number, given in enumerate([first, second]):
        Job(made, begun(made), 0, number).run(iter(given))  # a driver that dies before its commit
    micro_batch(made, 0, [first, second])
    micro_batch(made, 0, [first, second])
    assert len(events(made)) == 150
    assert sorted(record.value or b"" for record in stored(topics.server, f"{topic}-dead")) == [b"dead 1", b"dead 2"]
    told = [json.loads(record.value or b"") for record in stored(topics.server, f"{topic}-changes")]
    assert sum(row["count"] for row in told) == 150 and {row["aggregate"] for row in told} == {"hits"}
    micro_batch(made, 1, [[records([access(7)], topic, 900)]])
    hits = open_store(made).read("hits")
    assert hits is not None and sum(hits.column("count").to_pylist()) == 151
    (last,) = stored(topics.server, f"{topic}-changes")[len(told) :]
    assert json.loads(last.key or b"")["client"] == "10.0.0.0" and json.loads(last.value or b"")["count"] > 1


def test_rows_of_aggregates_are_sent_after_an_older_output_was_restored_with_its_plan(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """The copy was made during micro-batch 1, and its producers have sent rows of micro-batch 2 since."""
    topics.create(f"{topic}-changes")
    aggregate = {"name": "hits", "kind": "count", "topic": f"{topic}-changes"}
    made = settings(tmp_path, topics, topic, aggregate=[aggregate])
    out, copy = Path(made.output.path), tmp_path / "copy"
    lines = [[records([access(number)], topic, number)] for number in range(3)]
    micro_batch(made, 0, [lines[0]])
    shutil.copytree(out, copy)
    micro_batch(made, 1, [lines[1]])
    micro_batch(made, 2, [lines[2]])
    shutil.rmtree(out)
    shutil.copytree(copy, out)
    plan = BatchRecord(1, "run")
    store_plan(OutputFiles(made.output), plan)
    again = msgspec.structs.replace(begun(made, "another"), replay=plan)
    Committer(made, again).commit([Job(made, again, 1, 0).run(iter(lines[1]))], 1)
    sent = [json.loads(record.value or b"")["count"] for record in stored(topics.server, f"{topic}-changes")]
    assert sent == [1, 2, 3, 2]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_windows_become_final_in_the_tables(topics: Topics, topic: str, tmp_path: Path, kind: str) -> None:
    """A window is final when a line 30 minutes newer than its end has come; an earlier line is late then."""
    aggregate = {"name": "hits", "kind": "count", "window_ms": "10m", "watermark_ms": "30m"}
    made = settings(tmp_path, topics, topic, output={"path": "out", "format": kind}, aggregate=[aggregate])

    later = STAMP + timedelta(days=1)

    def hits() -> dict[int, tuple[int, bool]]:
        table = open_store(made).read("hits")
        assert table is not None
        return {row["start"].minute: (row["count"], row["final"]) for row in table.to_pylist()}

    micro_batch(made, 0, [[records([access(0), access(100)], topic, 0, later)]])  # a minute every 100 lines
    assert hits() == {0: (2, False)}
    micro_batch(made, 1, [[records([access(4000)], topic, 2, later)]])
    assert hits() == {0: (2, True), 40: (1, False)}
    for _ in range(2):
        micro_batch(made, 2, [[records([access(200), access(4100)], topic, 3, later)]])
    assert hits() == {0: (2, True), 40: (2, False)}
    newest = open_store(made).read("newest")
    assert newest is not None and newest.column("late").to_pylist() == [1]
    assert len(events(made)) == 5


def test_dead_letters_carry_their_origin(topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(f"{topic}-dead")
    made = settings(tmp_path, topics, topic, dead_letters={"topic": f"{topic}-dead"})
    micro_batch(made, 0, [[records([b"x"], topic, 77)]], read={topic: TopicRead("of-topic", {0: (77, 80)})})
    (record,) = stored(topics.server, f"{topic}-dead")
    assert (record.key, record.value) == (b"k", b"x")
    assert dict(record.headers) == {
        "reason": b"not a line of access",
        "topic": topic.encode(),
        "topic_id": b"of-topic",
        "partition": b"0",
        "offset": b"77",
        "timestamp": b"2026-11-20T00:00:00+00:00",
        "pipeline": topic.encode(),
    }


@pytest.mark.parametrize(
    ("message", "counted", "reason"),
    [
        ({"topic": "t", "window_start_ms": 0, "window_ms": 60_000, "count": 5}, 5, None),
        ({"topic": "t", "window_start_ms": 30_000, "window_ms": 30_000, "count": 5, "server": "a"}, 5, None),
        ({"topic": "t", "window_start_ms": 0, "window_ms": 90_000, "count": 5}, 0, "windows of 90000 ms do not fit"),
        ({"topic": "t", "count": 5}, 0, "missing required field"),
        ({"topic": "t", "window_start_ms": 0, "window_ms": 0, "count": 5}, 0, ">= 1"),
        ({"topic": "t", "window_start_ms": 1 << 62, "window_ms": 1, "count": 5}, 0, "<="),
        ({"topic": "t", "window_start_ms": 0, "window_ms": 1, "count": -5}, 0, ">= 0"),
    ],
)
def test_counts_of_producers(
    topics: Topics, topic: str, tmp_path: Path, message: dict[str, Any], counted: int, reason: str | None
) -> None:
    made = settings(tmp_path, topics, topic, audit={"topic": "counts"})
    micro_batch(made, 0, [[records([json.dumps(message).encode()], "counts")]])
    audit, ledger = (open_store(made).read(name) for name in ("audit", "ledger"))
    assert (0 if audit is None else sum(audit.column("counted").to_pylist())) == counted
    if reason is None:
        assert ledger is None
    else:
        assert ledger is not None and reason in ledger.column("reason").to_pylist()[0]


def test_another_configuration_or_plan_writes_under_other_numbers(topics: Topics, topic: str, tmp_path: Path) -> None:
    made = settings(tmp_path, topics, topic)
    other = msgspec.structs.replace(made, output=msgspec.structs.replace(made.output, raw=True))
    one, two = begun(made, "one"), begun(made, "two")
    assert number_space(made, one, 5) == number_space(made, begun(made, "one"), 5)
    assert len({number_space(made, one, 5), number_space(other, one, 5), number_space(made, two, 5)}) == 3
    repeating = msgspec.structs.replace(two, replay=BatchRecord(5, "one"))
    assert number_space(made, repeating, 5) == number_space(made, one, 5), "a repetition has the numbers of its plan"
    assert number_space(made, repeating, 6) == number_space(made, two, 6)


def test_a_micro_batch_that_another_process_has_planned_is_given_up(topics: Topics, topic: str, tmp_path: Path) -> None:
    made = settings(tmp_path, topics, topic)
    work = Job(made, begun(made), 0, 0).run(iter([records([access(1)], topic)]))
    store_plan(OutputFiles(made.output), BatchRecord(0, "of another"))
    with pytest.raises(AlreadyRunning, match="nothing of it is in the tables"):
        Committer(made, begun(made)).commit([work], 0)
    assert not (Path(made.output.path) / "events").exists()
