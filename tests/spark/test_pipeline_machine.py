"""Runs, crashes, restored copies, changed columns and topics, in any order: the tables are right, or it is refused.

A machine of hypothesis drives the real stores, tasks and commits; the topics are a model, so that no step waits for
Spark or for a broker (``test_pipeline_run`` has both).  What must be in the tables is computed beside them, from what
was produced.  ``MACHINE_RUNS=200`` makes it larger, ``MACHINE_SHRINK=1`` shrinks a failure, which takes
minutes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
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

from appliance.errors import BadValue
from appliance.spark.pipeline import task_work
from appliance.spark.pipeline.batch_record import PLAN, BatchRecord, TopicRead, store_plan
from appliance.spark.pipeline.compaction import compact, compactable
from appliance.spark.pipeline.delta_store import DeltaStore
from appliance.spark.pipeline.earlier_letters import ORIGIN, Origin
from appliance.spark.pipeline.output_files import OutputFiles
from appliance.spark.pipeline.parquet_store import ParquetStore
from appliance.spark.pipeline.pipeline_sink import Committer
from appliance.spark.pipeline.resume import TopicLog, decide, next_plan
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import Beginning, accept_from, begin_from, check_from
from appliance.spark.pipeline.tables import claim, open_store
from appliance.spark.pipeline.task_work import Job
from appliance.spark.sink import Identity

from .pipelines import events
from .test_pipeline_pipeline_sink import records_at

RUNS = int(os.environ.get("MACHINE_RUNS", "8"))
ARROW = {"int": pa.int64(), "float": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
WIDTH = {"int": 0, "float": 1, "string": 2}
COLUMNS = ("a", "b", "c")
TOPICS = ("t", "u")
STOPS = ("planned", "letters", "tasks", "tables", "manifest")
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
        """Whether no parser takes it."""
        return self.number % 4 == 3

    @property
    def value(self) -> bytes:
        if self.dead:
            return b"no pairs %d" % self.number
        return f"time=2026-11-20T00:{self.number % 60:02d}:00Z a={self.number} b={self.number} c={self.number}".encode()


class Letters:
    """The topic of dead letters.  It leaves out what a producer has sent, and refuses an older epoch."""

    def __init__(self) -> None:
        self.id = "letters"
        self.sent: list[Origin] = []
        self._producers: dict[int, tuple[int, int]] = {}
        self.room = 1 << 30
        """How many more are taken before the driver is killed."""

    @property
    def log(self) -> TopicLog:
        return TopicLog(self.id, {0: (0, len(self.sent))})

    def origins(self, wanted: TopicRead) -> list[Origin]:
        return [each for first, end in wanted.ranges.values() for each in self.sent[first:end]]

    def write(self, who: Identity, batches: Iterable[pa.RecordBatch]) -> None:
        rows = [row for batch in batches for row in batch.to_pylist()]
        epoch, known = self._producers.get(who.producer_id, (who.epoch, 0))
        assert not rows or who.epoch >= epoch, "the appliance refuses an older epoch"
        known = known if who.epoch == epoch else 0
        for number, row in enumerate(rows):
            if number >= known:
                if not self.room:
                    raise Stopped
                self.room -= 1
                headers = {each["key"]: each["value"].decode() for each in row["headers"]}
                topic, topic_id, partition, offset = (headers[name] for name in ORIGIN)
                self.sent.append(Origin(topic, topic_id, int(partition), int(offset), row["value"]))
                self._producers[who.producer_id] = who.epoch, number + 1


class Machine(RuleBasedStateMachine):
    format = "parquet"

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="machine"))
        self.ids = (f"id{number}" for number in itertools.count())
        self.numbers = itertools.count()
        self.lines: dict[str, list[Line]] = {}
        self.bounds: dict[str, dict[int, list[int]]] = {}
        self.id_of: dict[str, str] = {}
        self.columns: dict[str, str] = {"a": "int"}
        self.forget()
        self.copies: list[Any] = []
        self.half = False

    def forget(self) -> None:
        """What the tables must have: nothing.  Of another output nothing was rejected."""
        self.letters = Letters()
        self.copies = []
        self.rejected: set[Origin] = set()
        self.rows: dict[Line, dict[str, Any]] = {}
        self.kinds: dict[str, str] = {}
        self.read: dict[tuple[str, int], tuple[str, int]] = {}
        self.half = False
        self.versions: list[Any] = []

    def teardown(self) -> None:
        shutil.rmtree(self.base)

    # ---- the model of topics

    @initialize()
    def topics_are_created(self) -> None:
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
            "source": [{"topics": list(TOPICS), "parsers": ["own"]}],
            "parser": {"own": {"kind": "logfmt", "columns": self.columns}},
            "output": {"path": "out", "format": self.format},
            "aggregate": [{"name": "hits", "kind": "count", "by": ["topic"]}],
            "dead_letters": {"topic": "letters"},
        }
        return parse(given, self.base)

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
        rows = {line: dict(row) for line, row in self.rows.items()}
        self.copies.append((copy, rows, dict(self.kinds), dict(self.read), self.half))

    @precondition(lambda self: self.copies)
    @rule(which=st.integers(0, 9))
    def a_copy_is_put_back(self, which: int) -> None:
        copy, rows, kinds, read, half = self.copies[which % len(self.copies)]
        shutil.rmtree(self.out)
        shutil.copytree(copy, self.out)
        self.rows = {line: dict(row) for line, row in rows.items()}
        self.kinds, self.read, self.half = dict(kinds), dict(read), half
        self.versions = []

    @precondition(lambda self: self.out.exists())
    @rule(plan=st.sampled_from(["", "none", "of another"]), which=st.integers(0, 9))
    def the_plan_is_lost(self, plan: str, which: int) -> None:
        if plan == "none":
            (self.out / PLAN).unlink(missing_ok=True)
        else:
            (self.out / PLAN).write_text(plan and BatchRecord(which, plan).encode())

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
        for name, table in tables.items():
            if versions[name] < table.version():
                table.restore(versions[name])
        self.rows = {line: dict(row) for line, row in rows.items()}
        self.kinds, self.read, self.half = dict(kinds), dict(read), False

    @precondition(lambda self: (self.out / "events").exists() and not self.half)
    @rule()
    def small_files_are_put_together(self) -> None:
        compact(compactable(self.settings.output), self.settings.output, settled=True, vacuum=False)

    # ---- the pipeline

    def moved(self) -> list[str]:
        """Why the logs do not continue what the tables have."""
        found = []
        for (topic, partition), (id, at) in self.read.items():
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
            identity = claim(self.settings)
            open_store(self.settings, identity).prepare()
            letters: Any = self.letters
            beginning = begin_from(self.settings, identity, self.logs, letters, self.letters.log)
        except BadValue as error:
            self.check_refusal(str(error))
            return
        assert not self.moved() and not self.wider(), "what does not fit is refused"
        self.adopt_columns()
        for topic, bounds in self.bounds.items():
            for partition, (start, _) in bounds.items():
                self.read.setdefault((topic, partition), (self.id_of[topic], start))
        try:
            self.micro_batches(beginning, stop)
        except Stopped:
            return
        self.half = False
        ends = {
            (topic, part): (self.id_of[topic], end) for topic in TOPICS for part, (_, end) in self.bounds[topic].items()
        }
        assert self.read == ends, "everything was read"
        assert set(self.letters.sent) >= self.rejected, "every line that was rejected is a dead letter"
        if self.format == "delta":
            versions = {name: table.version() for name, table in self.delta_tables().items()}
            rows = {line: dict(row) for line, row in self.rows.items()}
            self.versions.append((versions, rows, dict(self.kinds), dict(self.read)))

    def adopt_columns(self) -> None:
        for name, kind in self.columns.items():
            self.kinds.setdefault(name, kind)

    def check_refusal(self, text: str) -> None:
        assert "\n" not in text
        if "restore all tables" in text:
            assert self.half and self.format == "delta"
            shutil.rmtree(self.out)
            self.forget()
            return
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
        try:
            identity = claim(self.settings)
            open_store(self.settings, identity).prepare()
            accepted = accept_from(self.settings, identity, self.logs)
        except BadValue as error:
            assert self.half and "restore all tables" in str(error)
            return
        assert bool(accepted) == bool(moved or wider)
        for (topic, partition), (id, at) in self.read.items():
            start, end = self.bounds[topic][partition]
            again = id != self.id_of[topic]
            self.read[topic, partition] = (self.id_of[topic], start if again or at < start else min(at, end))
        if accepted:
            self.adopt_columns()
        for name in wider:
            self.kinds[name] = self.columns[name]
            for row in self.rows.values():
                if row.get(name) is not None:
                    row[name] = converted(row[name], self.kinds[name])
        assert not [each for each in check_from(self.settings, self.logs).findings if each.effect == "accept"]

    def micro_batches(self, beginning: Beginning, stop: str | None) -> None:
        last, replay = beginning.committed, beginning.replay
        heads = {(topic, part): end for topic, log in self.logs.items() for part, (_, end) in log.bounds.items()}
        while True:
            plan = replay or next_plan(
                decide(last, None, None, self.logs, False).begun, heads, BATCH_BYTES, beginning.run
            )
            replay = None
            if plan is None:
                return
            if plan.dead is None:
                assert beginning.letters is not None
                plan = msgspec.structs.replace(plan, dead=beginning.letters.of_plan(last.ends, self.letters.log))
            self.micro_batch(beginning, plan, stop)
            self.take(plan)
            last = plan

    def micro_batch(self, beginning: Beginning, plan: BatchRecord, stop: str | None) -> None:
        store_plan(OutputFiles(self.settings.output), plan)
        reach(stop, "planned")
        self.letters.room = 1 if stop == "letters" else 1 << 30
        works = []
        for task, ((topic, partition), (first, end)) in enumerate(
            (key, bounds) for key, bounds in plan.ranges() if bounds[0] < bounds[1]
        ):
            found = [each for each in self.lines[topic] if each.partition == partition and first <= each.offset < end]
            batch = records_at(topic, partition, [(each.offset, each.value) for each in found])
            with ExitStack() as stack:
                stack.enter_context(mock.patch.object(task_work, "LetterTopic", lambda _: self.letters))
                stack.enter_context(mock.patch.object(task_work, "TaskWriter", self.writer))
                works.append(Job(self.settings, beginning, plan.batch, task).run(iter([batch])))
        reach(stop, "tasks")
        with ExitStack() as stack:
            if stop == "tables" and self.format == "delta":
                stack.enter_context(mock.patch.object(DeltaStore, "commit", side_effect=Stopped))
                self.half = True
            elif stop == "tables":
                stack.enter_context(mock.patch.object(ParquetStore, "_store", side_effect=Stopped))
            elif stop == "manifest" and self.format == "parquet":
                stack.enter_context(mock.patch.object(ParquetStore, "_carry_out", side_effect=Stopped))
                self.take(plan)
            Committer(self.settings, beginning).commit(works, plan.batch)

    def writer(self, _: object, who: Identity) -> Any:
        return mock.Mock(write=lambda batches: self.letters.write(who, batches))

    def take(self, plan: BatchRecord) -> None:
        """The model's own commit."""
        for (topic, partition), (first, end) in plan.ranges():
            id, at = self.read[topic, partition]
            if first < end:
                assert (id, at) == (self.id_of[topic], first), "no line is skipped and none is read twice"
                self.read[topic, partition] = (id, end)
            for line in self.lines[topic]:
                if line.partition == partition and first <= line.offset < end and line.dead:
                    self.rejected.add(Origin(topic, line.id, partition, line.offset, line.value))
                elif line.partition == partition and first <= line.offset < end:
                    self.rows[line] = {
                        name: converted(converted(str(line.number), kind), self.kinds[name])
                        for name, kind in self.columns.items()
                    }

    @invariant()
    def no_dead_letter_is_sent_twice(self) -> None:
        assert len(set(self.letters.sent)) == len(self.letters.sent)

    @invariant()
    def the_tables_have_what_was_read(self) -> None:
        if self.half or not (self.out / "events").exists() or not self.kinds:
            return
        if self.format == "parquet":
            open_store(self.settings).prepare()
        table = events(self.settings)
        found = table.to_pylist()
        want = [
            {"topic": line.topic, "partition": line.partition, "offset": line.offset}
            | {name: row.get(name) for name in self.kinds}
            for line, row in self.rows.items()
        ]
        got = [{name: row.get(name) for name in ("topic", "partition", "offset", *self.kinds)} for row in found]
        assert sorted(got, key=repr) == sorted(want, key=repr)
        hits = open_store(self.settings).read("hits")
        counted: Counter[str] = Counter()
        for row in hits.to_pylist() if hits is not None else ():
            counted[row["topic"]] += row["count"]
        assert counted == Counter(line.topic for line in self.rows)


def reach(stop: str | None, point: str) -> None:
    if stop == point:
        raise Stopped


def converted(value: Any, kind: str) -> Any:
    if isinstance(value, str) and kind != "string":
        return {"int": int, "float": float}[kind](value)
    return pa.array([value]).cast(ARROW[kind])[0].as_py()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=pytest.mark.long), "delta"])
def test_any_order_of_runs_crashes_copies_and_changes(kind: str) -> None:
    machine = type("Of", (Machine,), {"format": kind})
    sizes = settings(
        max_examples=RUNS if kind == "parquet" else max(1, RUNS // 2),
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize="MACHINE_RUNS" not in os.environ,
        phases=[Phase.generate, *([Phase.shrink] if "MACHINE_SHRINK" in os.environ else [])],
    )
    run_state_machine_as_test(machine, settings=sizes)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    made.topics_are_created()
    yield made
    made.no_dead_letter_is_sent_twice()
    made.teardown()


def test_a_plan_that_comes_back_with_a_copy_sends_no_dead_letter_again(machine: Machine) -> None:
    """The copy was made during a micro-batch.  Later ones have used its producers, which the appliance then refuses."""
    writer = machine.writer

    def copying(options: object, who: Identity) -> Any:
        if not machine.copies:
            machine.a_copy_is_kept()
        return writer(options, who)

    machine.numbers = itertools.count(3)
    with mock.patch.object(machine, "writer", copying):
        machine.runs("t", 0, 9)
    assert machine.bounds["t"][0][1] > BATCH_BYTES, "it took several micro-batches"
    machine.a_copy_is_put_back(0)
    machine.runs("t", 0, 4)
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
