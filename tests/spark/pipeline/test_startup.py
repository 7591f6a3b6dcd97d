"""What is found at the start of a run, and what a run, an acceptance and other readers make of it.  Without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from appliance.errors import BadValue, BrokerAway
from appliance.spark.pipeline.batch_record import COPY, BatchRecord
from appliance.spark.pipeline.pipeline_sink import commit
from appliance.spark.pipeline.resume import TopicLog, next_batch
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import Beginning, Finding, accept_from, begin_from, check, check_from
from appliance.spark.pipeline.tables import claim, open_store
from appliance.spark.pipeline.task_work import Job

from ...support.pipelines import events
from .test_pipeline_sink import records_at

Configure = Callable[..., Settings]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    def made(columns: dict[str, str] | None = None, **tables: Any) -> Settings:
        given = {
            "pipeline": {"name": "p"},
            "source": [{"topics": ["t"], "parsers": ["own"]}],
            "parser": {"own": {"kind": "logfmt", "columns": {"a": "int"} if columns is None else columns}},
            "output": {"path": "out"},
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
    return begin_from(made, identity, topic.logs)


def run(made: Settings, topic: Topic) -> BatchRecord | None:
    """Read what there is in one micro-batch.  Returns its record."""
    beginning = start(made, topic)
    record = next_batch(beginning.committed, {("t", 0): topic.end}, 0, beginning.run)
    if record is not None:
        commit(made, beginning, [work(made, beginning, record, topic)])
    return open_store(made).recorded()


def work(made: Settings, beginning: Beginning, record: BatchRecord, topic: Topic) -> Any:
    first, end = record.read["t"].ranges[0]
    values = [each for each in topic.values if first <= each[0] < end]
    return Job(made, beginning, record.batch, 0).run(iter([records_at("t", 0, values)]), record)


def accept(made: Settings, topic: Topic) -> list[Finding]:
    identity = claim(made)
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
    assert list(zip(column(made, "a"), column(made, "b"), strict=True)) == wanted
    path = f"{made.output.path}/events"
    operations = [entry["operation"] for entry in DeltaTable(path).history()]
    assert "ADD COLUMN" in operations, "by its own action of metadata"
    stored = DeltaTable(path).to_pyarrow_dataset()  # DuckDB finds it by this name
    assert stored.schema and duckdb.sql('SELECT a, b FROM stored ORDER BY "offset"').fetchall() == wanted


@pytest.mark.parametrize(
    ("kinds", "values"),
    [(("int", "float"), [7.0, 8.5]), (("int", "string"), ["7", "8.5"]), (("float", "string"), ["7", "8.5"])],
)
def test_a_wider_type_is_written_everywhere_when_it_is_accepted(
    configure: Configure, kinds: tuple[str, str], values: list[Any]
) -> None:
    narrow, wide = kinds
    topic = Topic()
    topic.add("a=7")
    run(configure({"a": narrow}), topic)
    topic.add("a=8.5")
    made = configure({"a": wide})
    with pytest.raises(BadValue, match=r"column 'a' is .* accepted, the table is rewritten: `appliance pipeline"):
        run(made, topic)
    assert [each.subject for each in accept(made, topic)] == ["events"]
    assert not accept(made, topic), "nothing is left"
    run(made, topic)
    if kinds == ("float", "string"):
        values = [str(pa.scalar(7.0).cast(pa.string())), "8.5"]
    assert column(made, "a") == values
    run(configure({"a": narrow}), topic)  # the table stays wide


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
    assert "its parsers or rules have changed: lines that were read before stay as they are" in found
    topic.add("b=1")
    run(other, topic)
    assert findings(other, topic, "changes") == []


def test_other_types_and_partitions_are_refused(configure: Configure) -> None:
    topic = Topic()
    topic.add("a=1 host=h")
    made = configure()
    run(made, topic)
    output = {"path": "out"}
    cases: list[tuple[Settings, str]] = [
        (configure({"a": "bool"}), "column 'a' is int64 in the table and bool in the configuration: give it another"),
        (configure(output=output | {"partition_by": ["date"]}), "the table is partitioned by topic, date, output."),
    ]
    for changed, text in cases:
        assert text in "".join(findings(changed, topic, "refused"))
        with pytest.raises(BadValue, match=r"^events: "):
            start(changed, topic)
        with pytest.raises(BadValue, match=r"^events: "):
            accept(changed, topic)


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


def test_an_interrupted_micro_batch_has_left_nothing(configure: Configure) -> None:
    """The driver is killed before its commit: the next run reads the lines, with what has come since."""
    made, topic = configure(), Topic()
    topic.add("a=1 host=h")
    run(made, topic)
    topic.add("a=2 host=h")
    beginning = start(made, topic)
    record = next_batch(beginning.committed, {("t", 0): topic.end}, 0, beginning.run)
    assert record is not None
    work(made, beginning, record, topic)
    topic.add("a=3 host=h")
    run(made, topic)
    assert column(made, "a") == [1, 2, 3]


def clean_up(path: str) -> None:
    """Delta's log, as it is after days in which only other writers have committed."""
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(path).create_checkpoint()
    for entry in sorted(Path(path).glob("_delta_log/*.json"))[:-1]:
        entry.unlink()


def test_a_record_that_deltas_log_has_forgotten_is_beside_the_table(configure: Configure) -> None:
    made, topic = configure(), Topic()
    for number in range(3):
        topic.add(f"a={number}")
        run(made, topic)
    path = f"{made.output.path}/events"
    clean_up(path)
    topic.add("a=3")
    run(made, topic)
    assert column(made, "a") == [0, 1, 2, 3]
    clean_up(path)
    (Path(made.output.path) / COPY).write_text(BatchRecord(0).encode())
    with pytest.raises(BadValue, match="does not say up to which offsets it was written"):
        run(made, topic)


def test_a_table_that_delta_has_restored_continues_from_its_version(configure: Configure) -> None:
    made, topic = configure(), Topic()
    versions = []
    for number in range(3):
        topic.add(f"a={number} host=h")
        run(made, topic)
        versions.append(DeltaTable(f"{made.output.path}/events").version())
    DeltaTable(f"{made.output.path}/events").restore(versions[0])
    assert column(made, "a") == [0]
    record = run(made, topic)
    assert record is not None and record.batch == 3, "numbers that were used are not used again"
    assert column(made, "a") == [0, 1, 2]


def test_a_check_does_not_wait_as_long_as_a_run(configure: Configure) -> None:
    """A person waits, who may have written a wrong address."""
    with pytest.raises(BrokerAway, match=r"gave up after 5 s .* 127\.0\.0\.1:1"):
        check(configure(pipeline={"name": "p", "bootstrap": "127.0.0.1:1"}))
