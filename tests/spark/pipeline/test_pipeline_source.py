"""The pipeline's source and sink with a real appliance, called as Spark calls them, without Spark between them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadMaxBytes

from appliance.client import Admin
from appliance.config_keys import MIB
from appliance.errors import BadValue, OffsetOutOfRange
from appliance.spark.pipeline.pipeline_sink import TablesWriter
from appliance.spark.pipeline.pipeline_source import PipelineReader
from appliance.spark.pipeline.pipeline_status import status
from appliance.spark.pipeline.settings import Settings
from appliance.spark.pipeline.startup import Beginning, accept, begin, check
from appliance.spark.pipeline.tables import open_store
from appliance.spark.pipeline.task_work import Work

from ...support.pipelines import access, events, fill, places, settings
from ...support.topics import Topics


def run(
    made: Settings, limit_bytes: int = 1 << 30, once: bool = True, beginning: Beginning | None = None
) -> Iterator[int]:
    """As Spark's AvailableNow: yields the number of each micro-batch that is committed."""
    beginning = beginning or begin(made)
    reader, writer, numbers = PipelineReader(made, beginning, 2), TablesWriter(made, beginning), count()
    try:
        if once:
            reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        assert reader.initialOffset() == start
        while (end := reader.latestOffset(start, ReadMaxBytes(limit_bytes))) != start:
            end = json.loads(json.dumps(end))
            works: list[WriterCommitMessage | None] = []
            for part in reader.partitions(start, end):
                works.append(writer.write(pickle.loads(pickle.dumps(reader)).read(part)))
            writer.commit(works, next(numbers))
            yield end["batch"]
            start = end
    finally:
        reader.stop()


def paths(made: Settings) -> list[str]:
    table: pa.Table = events(made)
    return sorted(table.column("path").to_pylist(), key=lambda path: int(path[1:]))


def wanted(count: int) -> list[str]:
    return [f"/{number}" for number in range(count)]


def test_a_task_without_a_row_has_done_nothing(topics: Topics, topic: str, tmp_path: Path) -> None:
    """Spark has one where a micro-batch has no partitions: the first one of a run with nothing new."""
    topics.create(topic)
    made = settings(tmp_path, topics, topic)
    assert TablesWriter(made, begin(made)).write(iter([])) == Work(None, 0, [])


def test_a_small_micro_batch_keeps_many_cores_busy(topics: Topics, topic: str, tmp_path: Path) -> None:
    """Reading so little would be one task, but parsing takes longer; and of one line there is one."""
    topics.create(topic)
    made = settings(tmp_path, topics, topic)
    line = access(1) + b" " * 8000
    for count_of_lines, tasks in ((1, 1), (6 * MIB // len(line), 3), (64 * MIB // len(line), 8)):
        beginning = begin(made)
        reader, writer = PipelineReader(made, beginning, 8), TablesWriter(made, beginning)
        fill(topics, topic, [line] * count_of_lines, each=25)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxBytes(1 << 30))
        parts = reader.partitions(start, end)
        works = [writer.write(reader.read(part)) for part in parts]
        assert (len(parts), sum(work.records for work in works)) == (tasks, count_of_lines)
        writer.commit(works, 0)
        reader.stop()


def test_a_run_begins_with_nothing_new(topics: Topics, topic: str, tmp_path: Path) -> None:
    """Spark makes a first micro-batch all the same, with its number 0, and numbers what comes then from 1 on."""
    topics.create(topic)
    made = settings(tmp_path, topics, topic)
    for sent in (0, 10, 20):
        beginning = begin(made)
        reader, writer = PipelineReader(made, beginning, 2), TablesWriter(made, beginning)
        start = reader.initialOffset()
        assert list(reader.partitions(start, start)) == []
        writer.commit([writer.write(iter([]))], 0)
        assert len(events(made)) == sent
        fill(topics, topic, [access(number) for number in range(sent, sent + 10)])
        end = reader.latestOffset(start, ReadMaxBytes(1 << 30))
        works = [writer.write(reader.read(part)) for part in reader.partitions(start, end)]
        writer.commit(works, 1)
        writer.commit(works, 1)
        reader.stop()
        assert paths(made) == wanted(sent + 10)


def test_runs_continue_from_the_tables_in_steps_of_a_limit(topics: Topics, topic: str, tmp_path: Path) -> None:
    """A run is given up after some micro-batches; then the state directory is missing."""
    topics.create(topic, partitions=2)
    lines = [access(number) for number in range(600)]
    fill(topics, topic, lines[:300], each=50)
    fill(topics, topic, lines[300:500], partition=1, each=50)
    made = settings(tmp_path, topics, topic)
    first = run(made, 12_000)
    assert [next(first), next(first)] == [0, 1]
    first.close()
    assert 0 < len(events(made)) < 500
    following = run(made, 12_000)
    assert next(following) == 2 and list(following) != []
    assert paths(made) == wanted(500)
    topics.cluster.admin("alter_topic", {"name": topic, "settings": {}, "partitions": 3})
    fill(topics, topic, lines[500:], partition=2)
    assert len(list(run(made))) == 1 and list(run(made)) == []
    assert paths(made) == wanted(600) and len(set(places(events(made)))) == 600
    found = status(made)
    assert (found.state, found.as_json()["lag_bytes"]) == ("stopped", 0)
    record = open_store(made).recorded()
    assert record is not None and len(record.read[topic].id) == 32, "the id of the topic is known"


@pytest.mark.parametrize("how", ["created again", "retention"])
def test_a_run_that_may_lose_lines_goes_on_with_those_that_there_are(
    topics: Topics, topic: str, tmp_path: Path, how: str
) -> None:
    topics.create(topic)
    fill(topics, topic, [access(number) for number in range(100)], each=10)
    made = settings(tmp_path, topics, topic, input={"fail_on_data_loss": False})
    running = run(made, 2000, once=False)
    next(running)
    before = len(events(made))
    if how == "retention":
        with Admin(topics.server.native) as admin:
            ((_, end),) = [bounds for _, bounds in open_store(made).recorded().ranges()]  # type: ignore[union-attr]
            admin.delete_records(topic, 0, end + 4000)
    else:
        topics.cluster.admin("delete_topic", {"name": topic})
        topics.create(topic)
        fill(topics, topic, [access(number) for number in range(100, 150)])
    assert list(running) != []
    found = paths(made)
    assert len(set(found)) == len(found) > before and list(run(made)) == []
    assert len(found) < 100 if how == "retention" else found[before:] == wanted(150)[100:]


def test_a_topic_that_is_created_again_is_noticed_at_the_start_and_in_between(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.create(topic)
    fill(topics, topic, [access(number) for number in range(10)])
    made = settings(tmp_path, topics, topic)
    assert list(run(made)) == [0]
    running = run(made, once=False)
    topics.cluster.admin("delete_topic", {"name": topic})
    assert "the tables have it up to offset" in check(made).with_effect("accept")[0].text
    with pytest.raises(BadValue, match=r"there is no such partition any more; .*`appliance pipeline accept` does so"):
        next(running)
    topics.create(topic)
    fill(topics, topic, [access(number) for number in range(10, 40)])
    with pytest.raises(BadValue, match=r"the topic was created again \(its id was [0-9a-f]{32}, now it is"):
        next(run(made))
    refused = status(made)
    assert refused.state == "refused" and "created again" in refused.remarks[0]
    assert [each.subject for each in accept(made)] == [f"{topic}-0"]
    following = run(made, 2000, once=False)
    next(following)
    topics.cluster.admin("delete_topic", {"name": topic})
    topics.create(topic)
    fill(topics, topic, [access(number) for number in range(40, 50)])
    with pytest.raises(
        OffsetOutOfRange, match=r"created again .* `appliance pipeline accept( CONFIG)?`, then run again"
    ):
        list(following)
    accept(made)
    list(run(made))
    found = paths(made)
    assert len(found) == len(set(found)) and set(wanted(10)) < set(found) and set(found[-10:]) <= set(wanted(50)[40:])
