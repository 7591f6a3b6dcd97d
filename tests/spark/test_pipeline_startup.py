"""What is found at the start of a run, and what a run, an acceptance and other readers make of it.  Without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from appliance.errors import BadValue
from appliance.spark.pipeline.batch_record import BatchRecord, load_plan, store_plan
from appliance.spark.pipeline.output_files import OutputFiles
from appliance.spark.pipeline.pipeline_sink import Committer
from appliance.spark.pipeline.resume import TopicLog, next_plan
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import Beginning, Finding, accept_from, begin_from, check_from
from appliance.spark.pipeline.tables import claim, open_store
from appliance.spark.pipeline.task_work import Job

from .pipelines import events
from .test_pipeline_pipeline_sink import records_at

Configure = Callable[..., Settings]


@pytest.fixture(params=["parquet", "delta"])
def configure(request: pytest.FixtureRequest, tmp_path: Path) -> Configure:
    def made(columns: dict[str, str] | None = None, **tables: Any) -> Settings:
        given = {
            "pipeline": {"name": "p"},
            "source": [{"topics": ["t"], "parsers": ["own"]}],
            "parser": {"own": {"kind": "logfmt", "columns": {"a": "int"} if columns is None else columns}},
            "output": {"path": "out", "format": request.param},
            "aggregate": [{"name": "hits", "kind": "count", "by": ["host"]}],
        }
        return parse(given | tables, tmp_path)

    return made


class Topic:
    """A topic with one partition, as the appliance would have it."""

    def __init__(self, id: str = "A") -> None:
        self.id = id
        self.values: list[tuple[int, bytes]] = []
        self.start = self.end = 0

    def add(self, *texts: str) -> None:
        for text in texts:
            self.values.append((self.end, text.encode()))
            self.end += len(text)

    @property
    def logs(self) -> dict[str, TopicLog]:
        return {"t": TopicLog(self.id, {0: (self.start, self.end)})}


def start(made: Settings, topic: Topic) -> Beginning:
    identity = claim(made)
    open_store(made, identity).prepare()
    return begin_from(made, identity, topic.logs)


def run(made: Settings, topic: Topic) -> BatchRecord | None:
    """Read what there is in one micro-batch.  Returns its record."""
    beginning = start(made, topic)
    plan = beginning.replay or next_plan(beginning.committed, {("t", 0): topic.end}, 0, beginning.run)
    if plan is not None:
        store_plan(OutputFiles(made.output), plan)
        Committer(made, beginning).commit([work(made, beginning, plan, topic)], plan.batch)
    return open_store(made).recorded()


def work(made: Settings, beginning: Beginning, plan: BatchRecord, topic: Topic) -> Any:
    first, end = plan.read["t"].ranges[0]
    values = [each for each in topic.values if first <= each[0] < end]
    return Job(made, beginning, plan.batch, 0).run(iter([records_at("t", 0, values)]))


def accept(made: Settings, topic: Topic) -> list[Finding]:
    identity = claim(made)
    open_store(made, identity).prepare()
    return accept_from(made, identity, topic.logs)


def column(made: Settings, name: str) -> list[Any]:
    table = events(made)
    return [row[name] for row in sorted(table.to_pylist(), key=lambda row: row["offset"])]


def test_each_commit_says_what_was_read(configure: Configure) -> None:
    made, topic = configure(), Topic()
    topic.add("a=1", "a=2")
    assert run(made, topic) is not None
    topic.add("a=3")
    record = run(made, topic)
    assert record is not None and record.batch == 1
    assert json.loads(record.encode())["read"] == {"t": {"id": "A", "ranges": {"0": [6, 9]}}}
    again = run(made, topic)
    assert again == record, "nothing new is no commit"
    if made.output.format == "delta":
        from deltalake import DeltaTable

        newest = DeltaTable(f"{made.output.path}/events").history(1)[0]
        assert json.loads(newest["appliance"])["read"] == {"t": {"id": "A", "ranges": {"0": [6, 9]}}}


def test_a_start_at_the_end_is_kept_before_anything_is_read(configure: Configure) -> None:
    """The pipeline is stopped before its first micro-batch: what comes then is not skipped by the next start."""
    made, topic = configure(input={"starting": "latest"}), Topic()
    topic.add("a=1")
    start(made, topic)
    topic.add("a=2")
    run(made, topic)
    assert column(made, "a") == [2]


def test_columns_come_and_go_and_every_reader_reads_all(configure: Configure) -> None:
    topic = Topic()
    for columns in ({"a": "int"}, {"b": "string", "a": "int"}, {"b": "string"}):
        topic.add(f"a={topic.end} b=x")
        made = configure(columns)
        run(made, topic)
    wanted = [(0, None), (7, "x"), (None, "x")]
    assert list(zip(column(made, "a"), column(made, "b"), strict=True)) == [(0, None), (7, "x"), (None, "x")]
    path = f"{made.output.path}/events"
    if made.output.format == "delta":
        from deltalake import DeltaTable

        operations = [entry["operation"] for entry in DeltaTable(path).history()]
        assert "ADD COLUMN" in operations, "by its own action of metadata"
        return
    columns_of_all = pq.read_schema(f"{path}/_common_metadata")
    read = ds.dataset(path, columns_of_all, format="parquet", partitioning="hive").to_table().sort_by("offset")
    assert list(zip(read.column("a").to_pylist(), read.column("b").to_pylist(), strict=True)) == wanted
    glob = f"read_parquet('{path}/**/*.parquet', hive_partitioning = true, union_by_name = true)"
    assert duckdb.sql(f'SELECT a, b FROM {glob} ORDER BY "offset"').fetchall() == wanted


@pytest.mark.parametrize(
    ("kinds", "values"),
    [(("int", "float"), [7.0, 8.5]), (("int", "string"), ["7", "8.5"]), (("float", "string"), ["7", "8.5"])],
)
def test_a_wider_type_is_written_everywhere_when_it_is_accepted(
    configure: Configure, kinds: tuple[str, str], values: list[Any]
) -> None:
    narrow, wide = kinds
    by_a = [{"name": "hits", "kind": "count", "by": ["a"]}]
    topic = Topic()
    topic.add("a=7")
    run(configure({"a": narrow}, aggregate=by_a), topic)
    topic.add("a=8.5")
    made = configure({"a": wide}, aggregate=by_a)
    with pytest.raises(BadValue, match=r"column 'a' is .* accepted, the table is rewritten: `appliance pipeline"):
        run(made, topic)
    assert {each.subject for each in accept(made, topic)} == {"events", "hits"}
    assert not accept(made, topic), "nothing is left"
    run(made, topic)
    if kinds == ("float", "string"):
        values = [str(pa.scalar(7.0).cast(pa.string())), "8.5"]
    assert column(made, "a") == values
    hits = open_store(made).read("hits")
    assert hits is not None and sorted(hits.column("a").to_pylist()) == sorted(values)
    run(configure({"a": narrow}, aggregate=by_a), topic)  # the table stays wide
    path = f"{made.output.path}/events"
    read = f"read_parquet('{path}/**/*.parquet', hive_partitioning = true)"
    if made.output.format == "parquet":
        assert duckdb.sql(f'SELECT a FROM {read} ORDER BY "offset"').fetchall() == [(value,) for value in values]


def test_what_cannot_be_converted_is_not_accepted_and_nothing_has_changed(configure: Configure) -> None:
    topic = Topic()
    topic.add(f"a={(1 << 53) + 1}")
    before = configure({"a": "int"})
    run(before, topic)
    with pytest.raises(BadValue, match="is as it was"):
        accept(configure({"a": "float"}), topic)
    assert column(before, "a") == [(1 << 53) + 1]
    topic.add("a=5")
    run(before, topic)
    assert column(before, "a") == [(1 << 53) + 1, 5]


def findings(made: Settings, topic: Topic, effect: str) -> list[str]:
    return [f"{each.subject}: {each.text}" for each in check_from(made, topic.logs).findings if each.effect == effect]


def test_a_check_says_what_a_first_run_would_read(configure: Configure) -> None:
    topic = Topic()
    assert findings(configure(), topic, "changes") == ["t: it is read from its end on"]
    topic.add("a=1 host=h")
    assert findings(configure(), topic, "changes") == ["t: it is read from its start on: 10 B in 1 partitions"]
    late = configure(input={"starting": "latest"})
    assert findings(late, topic, "changes") == ["t: it is read from its end on"]
    run(configure(), topic)
    assert findings(configure(), topic, "changes") == []


def test_a_check_says_that_other_parsers_change_nothing_that_was_read(configure: Configure) -> None:
    topic = Topic()
    topic.add("a=1 host=h")
    run(configure(), topic)
    other = configure(source=[{"topics": ["t"], "parsers": ["own", "plain"]}])
    (found,) = findings(other, topic, "changes")
    assert "its parsers have changed: lines that were read before stay as they are" in found
    topic.add("b=1")
    run(other, topic)
    assert findings(other, topic, "changes") == []


def test_other_types_partitions_and_aggregates_are_refused(configure: Configure) -> None:
    topic = Topic()
    topic.add("a=1 host=h")
    made = configure()
    run(made, topic)
    output = {"path": "out", "format": made.output.format}
    hits = {"name": "hits", "kind": "count", "by": ["host"]}
    cases: list[tuple[Settings, str]] = [
        (configure({"a": "bool"}), "column 'a' is int64 in the table and bool in the configuration: give it another"),
        (configure(output=output | {"partition_by": ["date"]}), "the table is partitioned by topic, date, output."),
        (configure(aggregate=[hits | {"by": ["service"]}]), "hits: by changed, and totals cannot be computed again"),
        (configure(aggregate=[hits | {"window_ms": "5m"}]), "hits: window_ms changed"),
    ]
    for changed, text in cases:
        assert text in "".join(findings(changed, topic, "refused"))
        with pytest.raises(BadValue, match=r"hits|events"):
            start(changed, topic)
        with pytest.raises(BadValue, match=r"hits|events"):
            accept(changed, topic)
    also = configure(aggregate=[hits | {"topic": "x"}, hits | {"name": "more"}])
    assert findings(also, topic, "changes") == ["more: a new table: lines that were read before are not in it"]
    assert not findings(also, topic, "refused")


def test_a_log_that_does_not_continue_the_tables_is_refused_until_accepted(configure: Configure) -> None:
    made, topic = configure(), Topic()
    topic.add("a=1", "a=2")
    run(made, topic)
    again = Topic("B")
    again.add("a=3")
    with pytest.raises(
        BadValue,
        match=r"t-0: the tables have it up to offset 6, its log has 0 to 3: the topic was created again "
        r"\(its id was A, now it is B\); accepted, it continues at 0: `appliance pipeline accept` does so",
    ):
        run(made, again)
    assert column(made, "a") == [1, 2]
    accept(made, again)
    record = run(made, again)
    assert sorted(column(made, "a")) == [1, 2, 3] and record is not None and record.read["t"].id == "B"
    again.start = again.end = 50
    tolerant = configure(input={"fail_on_data_loss": False})
    assert "retention has deleted 3 to 50; it continues at 50" in "".join(findings(tolerant, again, "changes"))
    again.add("a=4")
    run(tolerant, again)
    assert sorted(column(made, "a")) == [1, 2, 3, 4]


def test_an_interrupted_micro_batch_is_repeated_with_its_ranges(configure: Configure) -> None:
    """Delta: the driver is killed between the tables.  The plan is lost, too: it is in the totals."""
    made, topic = configure(), Topic()
    topic.add("a=1 host=h")
    run(made, topic)
    topic.add("a=2 host=h")
    beginning = start(made, topic)
    plan = next_plan(beginning.committed, {("t", 0): topic.end}, 0, beginning.run)
    assert plan is not None
    store_plan(OutputFiles(made.output), plan)
    done = work(made, beginning, plan, topic)
    if made.output.format == "delta":
        committer = Committer(made, beginning)
        committer._store.commit = lambda *_: None  # type: ignore[method-assign]
        committer.commit([done], plan.batch)
        (Path(made.output.path) / "_plan.json").unlink()
    topic.add("a=3 host=h")
    repeated = start(made, topic)
    assert repeated.replay is not None and repeated.run_of(1) == beginning.run != repeated.run
    assert dict(repeated.replay.ranges()) == dict(plan.ranges())
    assert "micro-batch 1, which was interrupted, is repeated" in "".join(findings(made, topic, "changes"))
    run(made, topic)
    run(made, topic)
    assert column(made, "a") == [1, 2, 3]
    hits = open_store(made).read("hits")
    assert hits is not None and sum(hits.column("count").to_pylist()) == 3
    assert load_plan(OutputFiles(made.output)) is not None


def test_tables_of_different_times_are_refused(configure: Configure) -> None:
    made, topic = configure(), Topic()
    out = Path(made.output.path)
    topic.add("a=1")
    run(made, topic)
    shutil.copytree(out, out.with_name("copy"))
    topic.add("a=2")
    run(made, topic)
    if made.output.format == "parquet":
        shutil.rmtree(out / "_commits")
        shutil.copytree(out.with_name("copy") / "_commits", out / "_commits")
        text = "is of micro-batch 1, and the manifests end at 0: the output was restored in parts"
    else:
        topic.add("a=3")
        run(made, topic)
        shutil.rmtree(out / "events")
        shutil.copytree(out.with_name("copy") / "events", out / "events")
        text = "holds micro-batch 2, and events only 0: restore all tables"
    with pytest.raises(BadValue, match=text):
        check_from(made, topic.logs)
    shutil.rmtree(out / "events")
    with pytest.raises(BadValue, match=r"is gone, and .* or delete the whole output"):
        check_from(made, topic.logs)
    shutil.rmtree(out)
    shutil.copytree(out.with_name("copy"), out)
    run(made, topic)
    assert sorted(column(made, "a")) == [1, 2] if made.output.format == "parquet" else [1, 2, 3]


@pytest.mark.parametrize("configure", ["delta"], indirect=True)
def test_tables_restored_by_delta_continue_from_their_version(configure: Configure) -> None:
    from deltalake import DeltaTable

    made, topic = configure(), Topic()
    versions: list[dict[str, int]] = []
    for number in range(3):
        topic.add(f"a={number} host=h")
        run(made, topic)
        tables = ("events", "hits", "ledger")
        versions.append({name: DeltaTable(f"{made.output.path}/{name}").version() for name in tables})
    DeltaTable(f"{made.output.path}/events").restore(versions[0]["events"])
    with pytest.raises(BadValue, match="restore all tables to versions of the same micro-batch"):
        check_from(made, topic.logs)
    for name in ("hits", "ledger"):
        DeltaTable(f"{made.output.path}/{name}").restore(versions[0][name])
    assert column(made, "a") == [0]
    record = run(made, topic)
    assert record is not None and record.batch == 3, "numbers that were used are not used again"
    assert column(made, "a") == [0, 1, 2]
    hits = open_store(made).read("hits")
    assert hits is not None and sum(hits.column("count").to_pylist()) == 3


@pytest.mark.parametrize("configure", ["parquet"], indirect=True)
def test_a_manifest_that_cannot_be_read_is_named(configure: Configure) -> None:
    made, topic = configure(), Topic()
    topic.add("a=1")
    run(made, topic)
    last = sorted((Path(made.output.path) / "_commits").glob("*.json"))[-1]
    last.write_text("{")
    with pytest.raises(BadValue, match=f"{last.name} is no manifest .* restore all of"):
        check_from(made, topic.logs)
