"""Runs, crashes, restored copies, changed columns and topics, repairs, in any order: the tables are right, or refused.

A machine of hypothesis drives the real stores, tasks, commits, repairs and views; the topics are a model, so that no
step waits for a broker (``test_run`` has one).  What must be in the tables, and in a view, is computed beside
them, from what was produced.  ``MACHINE_RUNS=200`` makes it larger, ``MACHINE_SHRINK=1`` shrinks a failure, which takes
minutes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql import SparkSession

from appliance.errors import BadValue
from appliance.names import TopicPartition
from appliance.spark.pipeline import commit_follower
from appliance.spark.pipeline.batch_record import COPY, BatchRecord
from appliance.spark.pipeline.compaction import DeltaEvents, compact
from appliance.spark.pipeline.forget import expire_rows, remove_old_files, remove_rows
from appliance.spark.pipeline.letters import SENT, Letters
from appliance.spark.pipeline.pipeline_sink import commit
from appliance.spark.pipeline.pipeline_status import summary
from appliance.spark.pipeline.reparse import reparse
from appliance.spark.pipeline.resume import TopicLog, decide, lines_before, next_back, next_batch
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import Beginning, accept_from, begin_from, check_from
from appliance.spark.pipeline.tables import claim
from appliance.spark.pipeline.task_work import Job
from appliance.spark.pipeline.view_refresh import Refresher
from appliance.spark.pipeline.view_states import view_of
from appliance.spark.sink import TaskProducer

from ...support.long import chosen_size
from ...support.pipelines import events, rejections
from .test_pipeline_sink import STAMP, records_at

RUNS = chosen_size("MACHINE_RUNS", 4)
ARROW = {"int": pa.int64(), "float": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
WIDTH = {"int": 0, "float": 1, "string": 2}
COLUMNS = ("a", "b", "c")
TOPICS = ("t", "u")
STOPS = ("tasks", "committed", "letters", "sent")
BATCH_BYTES = 150


class Stopped(Exception):
    """The driver was killed here."""


class Line(NamedTuple):
    topic: str
    id: str
    partition: int
    offset: int
    number: int

    @property
    def dead(self) -> bool:
        """Whether no parser takes it but ``plain``, which takes any."""
        return self.number % 4 == 3

    @property
    def minute(self) -> int:
        """That of its time; of one without a time: when all of them arrive."""
        return 0 if self.dead else self.number % 60

    @property
    def value(self) -> bytes:
        if self.dead:
            return b"no pairs %d" % self.number
        return f"time=2026-11-20T00:{self.minute:02d}:00Z a={self.number} b={self.number} c={self.number}".encode()


COUNTS = """-- window: 10m
-- keys: topic
select start, topic, count(*) as lines, count_if(rejected is not null) as dead from events group by start, topic
"""
MERGED = """-- window: 10m
-- keys: topic
-- parts: counted, summed
with counted as (
    select start, topic, count(*) as n, count_if(rejected is not null) as bad from events group by start, topic
), summed as (
    select start, topic, sum(n) as n, sum(bad) as bad from counted group by start, topic
)
select start, topic, n as lines, bad as dead from summed
"""
Rows = dict[Line, dict[str, Any] | None]


def copied(rows: Rows) -> Rows:
    return {line: None if row is None else dict(row) for line, row in rows.items()}


class Origin(NamedTuple):
    """What a dead letter says of its line."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    value: bytes


class LetterTopic:
    """The topic of dead letters.  It leaves out what a producer has sent."""

    def __init__(self) -> None:
        self.sent: list[Origin] = []
        self._producers: Counter[int] = Counter()
        self.room = 1 << 30
        """How many more are taken before the driver is killed."""

    def writer(self, _: object, who: TaskProducer, *, leaves_out: bool) -> Any:
        assert leaves_out
        return mock.Mock(write=lambda batches: self.write(who, batches), too_large=0)

    def write(self, who: TaskProducer, batches: Iterable[pa.RecordBatch]) -> Any:
        rows = [row for batch in batches for row in batch.to_pylist()]
        for number, row in enumerate(rows):
            if number >= self._producers[who.producer_id]:
                if not self.room:
                    raise Stopped
                self.room -= 1
                headers = {each["key"]: each["value"].decode() for each in row["headers"]}
                assert row["key"] == b"k"
                place = headers["topic"], headers["topic_id"], int(headers["partition"]), int(headers["offset"])
                self.sent.append(Origin(*place, row["value"]))
                self._producers[who.producer_id] = number + 1
        return mock.Mock(rows=len(rows))


class Machine(RuleBasedStateMachine):
    spark: SparkSession

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="machine"))
        self.ids = (f"id{number}" for number in itertools.count())
        self.numbers = itertools.count()
        self.lines: dict[str, list[Line]] = {}
        self.bounds: dict[str, dict[int, list[int]]] = {}
        self.id_of: dict[str, str] = {}
        self.columns: dict[str, str] = {"a": "int"}
        self.lenient = False
        """Whether the parsers take lines that were dead."""
        self.latest = False
        """Whether a pipeline begins at the ends of its logs."""
        (self.base / "views").mkdir()
        (self.base / "views" / "counts.sql").write_text(COUNTS)
        (self.base / "views" / "merged.sql").write_text(MERGED)
        self.forget()
        self.copies: list[Any] = []

    def forget(self) -> None:
        """What the tables must have: nothing.  Of another output nothing was rejected."""
        self.letters = LetterTopic()
        self.copies = []
        self.turned_back = False
        self.rejected: set[Origin] = set()
        self.rows: Rows = {}
        """What the table has, of each line; of one that was rejected: None."""
        self.kinds: dict[str, str] = {}
        self.read: dict[tuple[str, int], tuple[str, int, int]] = {}
        """Of each partition the id of its topic, and the offsets from which on and up to which it was read."""
        self.removed: set[Line] = set()
        """What has expired or was forgotten."""
        self.versions: list[Any] = []

    def teardown(self) -> None:
        shutil.rmtree(self.base)

    # ---- the model of topics

    @initialize(latest=st.booleans())
    def topics_are_created(self, latest: bool = False) -> None:
        self.latest = latest
        for topic in TOPICS:
            self.create(topic)

    def create(self, topic: str) -> None:
        self.id_of[topic] = next(self.ids)
        self.lines[topic] = []
        self.bounds[topic] = {0: [0, 0], 1: [0, 0]}

    def produce(self, topic: str, partition: int, count: int) -> None:
        bounds = self.bounds[topic][partition]
        for _ in range(count):
            line = Line(topic, self.id_of[topic], partition, bounds[1], next(self.numbers))
            self.lines[topic].append(line)
            bounds[1] += len(line.value)

    @rule(
        how=st.sampled_from(["create again", "retention", "shorter"]),
        topic=st.sampled_from(TOPICS),
        partition=st.integers(0, 1),
    )
    def disturb(self, how: str, topic: str, partition: int) -> None:
        """Delete a topic and create it again; or delete all lines of a log but the last, or only the last."""
        here = [line for line in self.lines[topic] if line.partition == partition]
        if how == "create again":
            self.create(topic)
        elif here and how == "retention":
            self.bounds[topic][partition][0] = here[-1].offset
            self.lines[topic] = [each for each in self.lines[topic] if each not in here[:-1]]
        elif here:
            self.bounds[topic][partition][1] = here[-1].offset
            self.lines[topic].remove(here[-1])

    @property
    def logs(self) -> dict[str, TopicLog]:
        return {
            topic: TopicLog(self.id_of[topic], {part: (start, end) for part, (start, end) in bounds.items()})
            for topic, bounds in self.bounds.items()
        }

    # ---- the configuration

    @property
    def settings(self) -> Settings:
        given: dict[str, Any] = {
            "pipeline": {"name": "m"},
            "source": [{"topics": list(TOPICS), "parsers": ["own", "plain"] if self.lenient else ["own"]}],
            "parser": {"own": {"kind": "logfmt", "columns": self.columns}},
            "output": {"path": "out"},
            "input": {"starting": "latest" if self.latest else "earliest"},
            "dead_letters": {"topic": "letters"},
            "views": {"path": "views"},
        }
        return parse(given, self.base)

    @rule(lenient=st.booleans())
    def configure_the_parsers(self, lenient: bool) -> None:
        self.lenient = lenient

    @rule(name=st.sampled_from(COLUMNS), kind=st.sampled_from(["int", "float", "string", "none"]))
    def configure_a_column(self, name: str, kind: str) -> None:
        """Add, drop, widen or narrow it."""
        others = {each: of for each, of in self.columns.items() if each != name}
        if kind != "none":
            self.columns = {**others, name: kind}
        elif others:
            self.columns = others

    # ---- files

    @property
    def out(self) -> Path:
        return self.base / "out"

    @precondition(lambda self: self.out.exists())
    @rule()
    def a_copy_is_kept(self) -> None:
        copy = self.base / f"copy{len(self.copies)}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.out, copy)
        rows = copied(self.rows)
        self.copies.append((copy, rows, dict(self.kinds), dict(self.read)))

    @precondition(lambda self: self.copies)
    @rule(which=st.integers(0, 9))
    def a_copy_is_put_back(self, which: int) -> None:
        copy, rows, kinds, read = self.copies[which % len(self.copies)]
        shutil.rmtree(self.out)
        shutil.copytree(copy, self.out)
        self.rows = copied(rows)
        self.kinds, self.read = dict(kinds), dict(read)
        self.versions = []
        self.turned_back = True

    @precondition(lambda self: self.out.exists())
    @rule(copy=st.sampled_from(["", "none", "of another"]), which=st.integers(0, 9))
    def the_copy_of_the_record_is_lost(self, copy: str, which: int) -> None:
        if copy == "none":
            (self.out / COPY).unlink(missing_ok=True)
        else:
            (self.out / COPY).write_text(copy and BatchRecord(which, copy).encode())

    def delta_tables(self) -> dict[str, DeltaTable]:
        return {each.parent.name: DeltaTable(str(each.parent)) for each in self.out.glob("*/_delta_log")}

    @precondition(lambda self: self.versions)
    @rule(which=st.integers(0, 9))
    def delta_restores(self, which: int) -> None:
        """Put all tables back to a version of theirs, as Delta's own RESTORE does it.  All must have been there."""
        tables = self.delta_tables()
        whole = [each for each in self.versions if each[0].keys() == tables.keys()]
        if not whole:
            return
        versions, rows, kinds, read = whole[which % len(whole)]
        self.turned_back = True
        for name, table in tables.items():
            if versions[name] < table.version():
                table.restore(versions[name])
        self.rows = copied(rows)
        self.kinds, self.read = dict(kinds), dict(read)

    @precondition(lambda self: (self.out / "events").exists())
    @rule()
    def small_files_are_put_together(self) -> None:
        compact(DeltaEvents(self.settings.output), self.settings.output, settled=True, vacuum=False)

    # ---- repairs

    @precondition(lambda self: (self.out / "events").exists())
    @rule()
    def lines_are_parsed_again(self) -> None:
        try:
            found = reparse(self.settings)
        except BadValue as error:
            assert self.wider() and "`appliance pipeline check CONFIG.toml` says what to do" in str(error)
            return
        assert not self.wider()
        self.adopt_columns()
        dead = [line for line, row in self.rows.items() if row is None]
        assert (found.lines, found.taken) == (len(dead), len(dead) if self.lenient else 0)
        if self.lenient:
            self.rows |= {line: {} for line in dead}

    @precondition(lambda self: (self.out / "events").exists())
    @rule(minute=st.integers(0, 59))
    def old_rows_expire(self, minute: int) -> None:
        removed = expire_rows(self.settings, int(STAMP.timestamp() + 60 * minute) * 1_000_000)
        self.remove(removed, lambda line: line.minute < minute)

    @precondition(lambda self: (self.out / "events").exists())
    @rule(topic=st.sampled_from(TOPICS), third=st.integers(0, 2))
    def somebody_is_forgotten(self, topic: str, third: int) -> None:
        """With the files of earlier versions; dead letters that wait are sent before."""
        self.send(None)
        where = f"topic = '{topic}' and \"offset\" % 3 = {third}"
        removed = remove_rows(self.settings, where)
        remove_old_files(self.settings)
        self.versions = []
        self.remove(removed, lambda line: line.topic == topic and line.offset % 3 == third)

    def remove(self, removed: int, gone: Callable[[Line], bool]) -> None:
        left = {line: row for line, row in self.rows.items() if not gone(line)}
        assert removed == len(self.rows) - len(left)
        self.removed |= self.rows.keys() - left.keys()
        self.rows = left

    # ---- a view

    @precondition(lambda self: (self.out / "events").exists())
    @rule(
        name=st.sampled_from(["counts", "merged"]),
        how=st.sampled_from(["refresh", "refresh", "rebuild", "since"]),
        minute=st.integers(0, 59),
    )
    def the_view_is_made_current(self, name: str, how: str, minute: int) -> None:
        """By a refresh, a rebuild, or a rebuild of the windows from a time on."""
        view = view_of(self.settings, name)
        refresher = Refresher(self.spark, self.settings)
        if how == "refresh":
            refresher.refresh(view)
        else:
            since_us = int(STAMP.timestamp() + 60 * minute) * 1_000_000
            refresher.rebuild(view, since_us if how == "since" else None)
        found = DeltaTable(f"{self.out}/views/{name}").to_pyarrow_table().to_pylist()
        got = {(row["start"].minute, row["topic"]): (row["lines"], row["dead"]) for row in found}
        lines, dead = Counter[Any](), Counter[Any]()
        for line, row in self.rows.items():
            window = line.minute // 10 * 10, line.topic
            lines[window] += 1
            dead[window] += row is None
        assert got == {window: (count, dead[window]) for window, count in lines.items()} and len(got) == len(found)

    # ---- the pipeline

    def moved(self) -> list[str]:
        """Why the logs do not continue what the tables have."""
        found = []
        for (topic, partition), (id, _, at) in self.read.items():
            start, end = self.bounds[topic][partition]
            if id != self.id_of[topic] or at < start or end < at:
                found.append(f"{topic}-{partition}: the tables have it up to offset {at}, its log has {start} to {end}")
        return found

    def wider(self) -> list[str]:
        return [name for name, kind in self.columns.items() if WIDTH[kind] > WIDTH[self.kinds.get(name, kind)]]

    @rule(stop=st.sampled_from(STOPS))
    def is_killed(self, stop: str) -> None:
        self.start(stop)

    @rule(topic=st.sampled_from(TOPICS), partition=st.integers(0, 1), count=st.integers(0, 5))
    def runs(self, topic: str, partition: int, count: int) -> None:
        self.produce(topic, partition, count)
        self.start(None)

    def start(self, stop: str | None) -> None:
        try:
            beginning = begin_from(self.settings, claim(self.settings), self.logs)
        except BadValue as error:
            self.check_refusal(str(error))
            return
        assert not self.moved() and not self.wider(), "what does not fit is refused"
        self.adopt_columns()
        self.begins()
        try:
            self.micro_batches(beginning, stop)
            self.send(stop)
        except Stopped:
            return
        ends = {
            (topic, part): (self.id_of[topic], end) for topic in TOPICS for part, (_, end) in self.bounds[topic].items()
        }
        assert {key: (id, at) for key, (id, _, at) in self.read.items()} == ends, "everything was read"
        self.check_lines()
        assert set(self.letters.sent) >= self.rejected, "every line that was rejected is a dead letter"
        versions = {name: table.version() for name, table in self.delta_tables().items()}
        rows = copied(self.rows)
        self.versions.append((versions, rows, dict(self.kinds), dict(self.read)))

    def begins(self) -> None:
        for topic, bounds in self.bounds.items():
            for partition, (start, end) in bounds.items():
                at = end if self.latest else start
                self.read.setdefault((topic, partition), (self.id_of[topic], at, at))

    @precondition(lambda self: (self.out / "events").exists())
    @rule(stop=st.sampled_from([*STOPS, None, None]))
    def older_lines_are_brought_in(self, stop: str | None) -> None:
        """What the logs have from before the table began: all of it, where nobody is killed."""
        try:
            beginning = begin_from(self.settings, claim(self.settings), self.logs)
        except BadValue as error:
            self.check_refusal(str(error))
            return
        self.adopt_columns()
        self.begins()
        last = beginning.committed
        try:
            while True:
                begun = decide(last, self.logs, False).begun
                floors = {key: first for key, (first, _) in lines_before(begun, self.logs).items()}
                record = next_back(begun, floors, BATCH_BYTES, beginning.run, "")
                if record is None:
                    break
                self.micro_batch(beginning, record, stop)
                self.take(record)
                last = record
            self.send(stop)
        except Stopped:
            return
        for (topic, partition), (_, begun_at, _) in self.read.items():
            assert begun_at <= self.bounds[topic][partition][0], "nothing is older"
        self.check_lines()

    def check_lines(self) -> None:
        """Each line of the logs from where the table begins to where it ends is a row, unless somebody removed it."""
        for topic, lines in self.lines.items():
            for line in lines:
                _, begun, at = self.read[topic, line.partition]
                assert not begun <= line.offset < at or line in self.rows or line in self.removed

    def adopt_columns(self) -> None:
        for name, kind in self.columns.items():
            self.kinds.setdefault(name, kind)

    def check_refusal(self, text: str) -> None:
        assert "\n" not in text
        moved, wider = self.moved(), self.wider()
        assert moved or wider, text
        assert "`appliance pipeline accept`" in text
        assert any(each in text for each in moved) or any(repr(name) in text for name in wider)

    @precondition(lambda self: self.out.exists())
    @rule()
    def accepted_it_runs(self) -> None:
        self.accept()
        self.start(None)

    def accept(self) -> None:
        moved, wider = self.moved(), self.wider()
        accepted = accept_from(self.settings, claim(self.settings), self.logs)
        assert bool(accepted) == bool(moved or wider)
        for (topic, partition), (id, begun, at) in self.read.items():
            start, end = self.bounds[topic][partition]
            again = id != self.id_of[topic]
            resumed = start if again or at < start else min(at, end)
            self.read[topic, partition] = (self.id_of[topic], resumed if again else min(begun, resumed), resumed)
        if accepted:
            self.adopt_columns()
        for name in wider:
            self.kinds[name] = self.columns[name]
            for row in self.rows.values():
                if row and row.get(name) is not None:
                    row[name] = converted(row[name], self.kinds[name])
        assert not [each for each in check_from(self.settings, self.logs).findings if each.effect == "accept"]

    def micro_batches(self, beginning: Beginning, stop: str | None) -> None:
        last = beginning.committed
        heads = {
            TopicPartition(topic, part): end
            for topic, log in self.logs.items()
            for part, (_, end) in log.bounds.items()
        }
        while True:
            record = next_batch(decide(last, self.logs, False).begun, heads, BATCH_BYTES, beginning.run)
            if record is None:
                return
            self.micro_batch(beginning, record, stop)
            self.take(record)
            last = record

    def micro_batch(self, beginning: Beginning, record: BatchRecord, stop: str | None) -> None:
        works = [Job(self.settings, beginning, record.batch, 0).run(iter([]), record)]
        for task, ((topic, partition), (first, end)) in enumerate(record.spans().items()):
            found = [each for each in self.lines[topic] if each.partition == partition and first <= each.offset < end]
            batch = records_at(topic, partition, [(each.offset, each.value) for each in found])
            works.append(Job(self.settings, beginning, record.batch, task + 1).run(iter([batch])))
        reach(stop, "tasks")
        commit(self.settings, beginning, works)
        if stop == "committed":
            self.take(record)
            raise Stopped
        if record.batch % 2:
            self.send(None)

    def send(self, stop: str | None) -> None:
        """Send dead letters: each commit once, whichever step it is killed at."""
        self.letters.room = 1 if stop == "letters" else 1 << 30
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(commit_follower, "TaskWriter", self.letters.writer))
            if stop == "sent":
                stack.enter_context(mock.patch.object(Letters, "_store", side_effect=Stopped))
            Letters(self.settings).send()

    def take(self, record: BatchRecord) -> None:
        """The model's own commit."""
        for (topic, partition), (first, end) in record.spans().items():
            id, begun, at = self.read[topic, partition]
            assert id == self.id_of[topic] and (first == at or end == begun), "no line is skipped, none is read twice"
            self.read[topic, partition] = (id, begun, end) if first == at else (id, first, at)
            for line in self.lines[topic]:
                if line.partition != partition or not first <= line.offset < end:
                    continue
                if line.dead and not self.lenient:
                    self.rejected.add(Origin(topic, line.id, partition, line.offset, line.value))
                    self.rows[line] = None
                elif line.dead:
                    self.rows[line] = {}
                else:
                    self.rows[line] = {
                        name: converted(converted(str(line.number), kind), self.kinds[name])
                        for name, kind in self.columns.items()
                    }

    @invariant()
    def no_dead_letter_is_sent_twice(self) -> None:
        """Unless the table has been turned back: then lines are read again."""
        assert self.turned_back or len(set(self.letters.sent)) == len(self.letters.sent)

    @invariant()
    def the_tables_have_what_was_read(self) -> None:
        if not (self.out / "events").exists() or not self.kinds:
            return
        table = events(self.settings)
        found = table.to_pylist()
        want = [
            {"topic": line.topic, "partition": line.partition, "offset": line.offset}
            | {name: row.get(name) for name in self.kinds}
            for line, row in self.rows.items()
            if row is not None
        ]
        got = [{name: row.get(name) for name in ("topic", "partition", "offset", *self.kinds)} for row in found]
        assert sorted(got, key=repr) == sorted(want, key=repr)
        told = [(row["topic"], row["partition"], row["offset"], row["raw"]) for row in rejections(self.settings)]
        dead = [(line.topic, line.partition, line.offset, line.value) for line, row in self.rows.items() if row is None]
        assert sorted(told) == sorted(dead), "a rejected line is a row, too"
        assert sum(summary(self.settings).parsed.values()) == len(want)


def reach(stop: str | None, point: str) -> None:
    if stop == point:
        raise Stopped


def converted(value: Any, kind: str) -> Any:
    if isinstance(value, str) and kind != "string":
        return {"int": int, "float": float}[kind](value)
    return pa.array([value]).cast(ARROW[kind])[0].as_py()


@pytest.mark.timeout(600)
def test_any_order_of_runs_crashes_copies_changes_and_repairs(spark: SparkSession) -> None:
    Machine.spark = spark
    sizes = settings(
        max_examples=RUNS,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize="MACHINE_RUNS" not in os.environ,
        phases=[Phase.generate, *([Phase.shrink] if "MACHINE_SHRINK" in os.environ else [])],
    )
    run_state_machine_as_test(Machine, settings=sizes)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    made.topics_are_created()
    yield made
    made.teardown()


@pytest.mark.parametrize("stop", STOPS)
def test_a_kill_at_any_step_sends_each_dead_letter_once(machine: Machine, stop: str) -> None:
    machine.numbers = itertools.count(3)
    machine.produce("t", 0, 9)
    for _ in range(3):
        machine.start(stop)
        machine.no_dead_letter_is_sent_twice()
    machine.runs("t", 0, 4)
    machine.the_tables_have_what_was_read()
    assert [each.value for each in machine.letters.sent] == [b"no pairs %d" % number for number in (3, 7, 11, 15)]


def test_another_line_at_the_offset_of_a_dead_letter_is_one_too(machine: Machine) -> None:
    machine.start(None)
    machine.a_copy_is_kept()
    machine.runs("t", 0, 4)
    machine.disturb("shorter", "t", 0)
    machine.numbers = itertools.count(7)
    machine.a_copy_is_put_back(0)
    machine.runs("t", 0, 1)
    assert [(each.offset, each.value) for each in machine.letters.sent] == [(111, b"no pairs 3"), (111, b"no pairs 7")]


def test_what_writes_rows_again_sends_nothing(machine: Machine) -> None:
    """Compaction, reparse and deletions.  A topic of dead letters that comes later begins behind the table."""
    machine.numbers = itertools.count(2)
    machine.runs("t", 0, 3)
    sent = list(machine.letters.sent)
    assert len(sent) == 1
    machine.small_files_are_put_together()
    assert reparse(machine.settings).lines == 1
    DeltaTable(f"{machine.out}/events").delete("a = 2")
    machine.send(None)
    assert machine.letters.sent == sent
    (machine.out / SENT).unlink()
    machine.start(None)
    assert machine.letters.sent == sent
    machine.numbers = itertools.count(7)
    machine.runs("t", 0, 1)
    assert [each.value for each in machine.letters.sent] == [b"no pairs 3", b"no pairs 7"]
