"""A task and the driver's commit, without Spark between them: what they hand over, and what a repetition does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from appliance.errors import AlreadyRunning, ApplianceError, BadValue
from appliance.spark.pipeline.audit_counts import read_windows
from appliance.spark.pipeline.batch_record import BatchRecord, TopicRead, encode_schema
from appliance.spark.pipeline.event_questions import questions
from appliance.spark.pipeline.events import Transform
from appliance.spark.pipeline.letters import Letters
from appliance.spark.pipeline.pipeline_sink import commit
from appliance.spark.pipeline.pipeline_status import summary
from appliance.spark.pipeline.reparse import reparse
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import Beginning
from appliance.spark.pipeline.tables import claim, open_store
from appliance.spark.pipeline.task_work import Job
from appliance.spark.pipeline.times import MICROS

from ...support.pipelines import access, events, places, rows, settings
from ...support.topics import Topics
from ..test_sink import stored

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
    """As of a pipeline that was started, without comparing anything."""
    identity, schema = claim(made), Transform(made).schema
    store = open_store(made, identity, schema)
    store.extend(schema)
    Letters(made).begin()
    if (last := store.recorded()) is None:
        last = BatchRecord(-1)
        store.commit(last, [])
    return Beginning(identity, last, encode_schema(schema), run)


def micro_batch(
    made: Settings,
    batch: int,
    tasks: Sequence[Sequence[pa.RecordBatch]],
    read: Mapping[str, TopicRead] = {},
) -> None:
    beginning = begun(made)
    since = {topic: dict.fromkeys(found.ranges, 0) for topic, found in read.items()}
    record = BatchRecord(batch, beginning.run, read=dict(read), since=since)
    works = [Job(made, beginning, batch, number).run(iter(given), record) for number, given in enumerate(tasks)]
    commit(made, beginning, works)


def test_a_repeated_micro_batch_changes_nothing(topics: Topics, topic: str, tmp_path: Path) -> None:
    """Also when the driver died between the tasks' work and the commit, and when tasks were repeated."""
    topics.create(f"{topic}-dead")
    made = settings(tmp_path, topics, topic, dead_letters={"topic": f"{topic}-dead"})
    first = [records([access(number) for number in range(100)] + [b"dead 1"], topic)]
    second = [records([b"dead 2"], topic, 500), records([access(number) for number in range(100, 150)], topic, 501)]
    for number, given in enumerate([first, second]):
        Job(made, begun(made), 0, number).run(iter(given))  # a driver that dies before its commit
    micro_batch(made, 0, [first, second])
    micro_batch(made, 0, [first, second])
    assert len(events(made)) == 150 and not stored(topics.server, f"{topic}-dead"), "nothing is sent before a commit"
    assert (Letters(made).send(), Letters(made).send()) == (2, 0)
    assert sorted(record.value or b"" for record in stored(topics.server, f"{topic}-dead")) == [b"dead 1", b"dead 2"]
    micro_batch(made, 1, [[records([access(7)], topic, 900)]])
    assert len(events(made)) == 151 and summary(made).dead == {"not a line of access": 2}


def test_dead_letters_carry_their_origin(topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(f"{topic}-dead")
    made = settings(tmp_path, topics, topic, dead_letters={"topic": f"{topic}-dead"})
    micro_batch(made, 0, [[records([b"x"], topic, 77)]], read={topic: TopicRead("of-topic", {0: (77, 80)})})
    assert Letters(made).send() == 1
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
    assert sum(read_windows(questions(made), made.audit).column("counted").to_pylist()) == counted
    found = summary(made)
    assert found.parsed == {} and len(found.dead) == (reason is not None)
    assert all(reason and reason in each for each in found.dead)
    (row,) = rows(made).to_pylist()
    assert (row["topic"], row["offset"], row["rejected"] is None) == ("counts", 0, reason is None)


def test_a_micro_batch_is_given_up_where_the_table_was_restored_in_the_meantime(tmp_path: Path) -> None:
    """Its number is the next one all the same; a new run begins where the table ends."""
    given = {"pipeline": {"name": "p"}, "source": [{"topics": ["t"], "parsers": ["access"]}]}
    made = parse(given | {"output": {"path": "out"}}, tmp_path)
    for number in range(3):
        read = {"t": TopicRead("id", {0: (number, number + 1)})}
        micro_batch(made, number, [[records([access(number)], "t", number)]], read)
    table = DeltaTable(str(tmp_path / "out/events"))
    table.restore(table.version() - 1)
    with pytest.raises(ApplianceError, match="up to offset 2, and micro-batch 3 begins at 3: the table was restored"):
        micro_batch(made, 3, [[records([access(3)], "t", 3)]], {"t": TopicRead("id", {0: (3, 4)})})
    last = begun(made).committed
    assert last.ends == {("t", 0): 2} and last.batch == 2
    micro_batch(made, 3, [[records([access(2), access(3)], "t", 2)]], {"t": TopicRead("id", {0: (2, 4), 1: (9, 9)})})
    assert places(events(made)) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_micro_batch_is_given_up_where_another_run_has_committed(topics: Topics, topic: str, tmp_path: Path) -> None:
    made = settings(tmp_path, topics, topic)
    late = begun(made, "late")
    micro_batch(made, 0, [[records([access(1)], topic)]])
    work = Job(made, late, 0, 0).run(iter([records([access(1)], topic)]), BatchRecord(0, late.run))
    with pytest.raises(AlreadyRunning, match="nothing of it is in the table"):
        commit(made, late, [work])
    assert len(events(made)) == 1
    shutil.rmtree(tmp_path / "out/events")
    with pytest.raises(BadValue, match="events is gone: nothing was written"):
        commit(made, late, [work])
    assert not (tmp_path / "out/events").exists() or not list((tmp_path / "out/events").glob("_delta_log"))


def test_values_that_would_be_too_long_for_the_name_of_a_directory(topics: Topics, topic: str, tmp_path: Path) -> None:
    output = {"path": "out", "partition_by": ["host"]}
    source = [{"topics": [topic], "parsers": ["logfmt"]}]
    made = settings(tmp_path, topics, topic, source=source, output=output)
    hosts = ["web-1", "x" * 300, "a/b %41"]
    micro_batch(made, 0, [[records([f'host="{host}" message=m'.encode() for host in hosts], topic)]])
    assert sorted(events(made).column("host").to_pylist()) == sorted(hosts)


def test_lines_of_one_event_are_audited_in_the_window_of_each(tmp_path: Path) -> None:
    """A stack trace around the end of a minute is no lost and no doubled line."""
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["plain"], "multiline": {"start": "^at"}}],
        "output": {"path": "out", "raw": True},
        "audit": {"topic": "counts"},
    }
    made = parse(given, tmp_path)
    minute = timedelta(minutes=1)
    lines = records([b"at first", b" more", b" and more", b"at another"], "t")
    stamps = [STAMP + minute - timedelta(seconds=1), STAMP + minute, STAMP + minute, STAMP + 3 * minute]
    lines = lines.set_column(5, "timestamp", pa.array(stamps, MICROS))
    sent = [
        json.dumps({"topic": "t", "window_start_ms": start_ms, "window_ms": 60_000, "count": count}).encode()
        for start_ms, count in zip(
            (int((STAMP + place * minute).timestamp() * 1000) for place in (0, 1, 3)), (1, 2, 1), strict=True
        )
    ]
    micro_batch(made, 0, [[lines], [records(sent, "counts")]])
    read = read_windows(questions(made), made.audit)
    assert read.column("counted").to_pylist() == read.column("arrived").to_pylist() == [1, 2, 1]
    assert summary(made).parsed == {"plain": 4}, "lines, of two events"
    again = reparse(made, every=True)
    assert (again.lines, again.files) == (2, 0), "a reparse knows of all lines of an event"
