"""Does the work of one task of a micro-batch: reads nothing itself, commits nothing.

A task gets the records of some ranges of partitions.  It converts them to events, writes these to files that are not
visible yet, sends lines that no parser takes to the dead-letter topic, and computes partial totals.  The result
(:class:`Work`) names the files and has the partial totals; what commits it is in ``pipeline_sink``.

Spark repeats a task, or the whole micro-batch, after a failure.  Files of the first attempt never become visible.
Messages to topics are written as an idempotent producer whose id follows from pipeline, plan, task and micro-batch (see
``spark/sink.py``), so they are not duplicated either.  If the configuration has changed in between, the id is
another one; so it is if the tables were restored from a copy.  Dead letters that were sent before are left out then
(``earlier_letters``); messages of aggregates are sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta
from pyspark.sql.datasource import WriterCommitMessage

from ..options import SinkOptions
from ..sink import TaskWriter, identity
from .aggregates import build
from .batch_record import load_plan
from .earlier_letters import LetterTopic, Unsent
from .events import Outcome, Transform, by_topic
from .multiline import LINES, Joiner
from .output_files import OutputFiles
from .schema_changes import conform
from .settings import Settings
from .startup import Beginning
from .table_files import NewFile
from .tables import EventFiles, open_store
from .times import MICROS_MAX
from .totals import Sums, Total, micros_of

PARTIALS_MAX: Final = 64
TOGETHER_ROWS: Final = 32_768
"""So many events are aggregated together: an aggregate costs a millisecond, however few events there are."""
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class Work(WriterCommitMessage):
    """The result of a task; ``partials``: Arrow streams by the name of the table."""

    records: int
    """How many it has read."""
    files: list[NewFile]
    partials: dict[str, bytes]

    def totals(self) -> Iterator[tuple[str, pa.Table]]:
        """The partial totals, each with the name of its table."""
        for name, packed in self.partials.items():
            yield name, pa.ipc.open_stream(packed).read_all()


class Counts(msgspec.Struct):
    """A message of the audit topic, as ``appliance.client.audit`` writes it."""

    topic: Annotated[str, Meta(max_length=249)]
    window_start_ms: Annotated[int, Meta(ge=0, le=MICROS_MAX // 1000)]
    window_ms: Annotated[int, Meta(ge=1)]
    count: Annotated[int, Meta(ge=0, le=1 << 53)]
    server: str = ""


_counts = msgspec.json.Decoder(Counts).decode


class Job:
    """The work of one task."""

    def __init__(self, settings: Settings, beginning: Beginning, batch: int, task: int) -> None:
        self._settings = settings
        self._transform = Transform(settings)
        self._joiner = Joiner(settings)
        self._schema = beginning.schema
        self._files = EventFiles(open_store(settings, beginning.identity), settings.output, batch, task)
        self._totals = build(settings, self._schema)
        self._aggregates = [total for name, total in self._totals.items() if name not in ("ledger", "audit")]
        self._aggregated = _columns_of_aggregates(settings)
        self._waiting: list[pa.Table] = []
        self._partials: dict[str, list[pa.Table]] = {}
        self._records = 0
        self._plan = beginning.replay, batch
        self._unsent: Unsent | None = None
        self._who = identity(f"{number_space(settings, beginning, batch)}/dead", task, batch)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Work:
        dead = self._dead_letters(batches)
        topic = self._settings.dead_letters.topic
        if topic:
            TaskWriter(sink_options(self._settings, topic), self._who).write(dead)
        else:
            for _ in dead:
                pass
        self._files.flush()
        self._aggregate()
        return Work(self._records, self._files.files, {name: _packed(self._merged(name)) for name in self._partials})

    def _dead_letters(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process all records, and yield the dead letters."""
        for mixed in batches:
            self._records += mixed.num_rows
            for batch in by_topic(mixed):
                topic = batch.column("topic")[0].as_py()
                if topic == self._settings.audit.topic:
                    dead = self._counted(batch)
                    yield from self._letters(dead)
                else:
                    self._arrived(batch)
                    yield from self._events(self._joiner.add(batch))
        yield from self._events(self._joiner.rest())

    def _events(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            outcome = self._transform.run(batch)
            self._keep(batch, outcome)
            yield from self._letters(outcome.dead)

    def _letters(self, dead: pa.Table) -> Iterator[pa.RecordBatch]:
        """The dead letters that were not sent before."""
        if not len(dead) or not self._settings.dead_letters.topic:
            return
        if self._unsent is None:
            replay, batch = self._plan
            plan = replay if replay is not None and replay.batch == batch else None
            plan = plan or load_plan(OutputFiles(self._settings.output))
            self._unsent = Unsent(LetterTopic(self._settings), plan if plan and plan.batch == batch else None)
        yield from dead_letters(self._unsent.of(dead), self._settings.pipeline.name, self._unsent.ids)

    def _arrived(self, batch: pa.RecordBatch) -> None:
        """Add the messages to the audit."""
        if self._settings.audit.topic:
            micros = np.asarray(batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False))
            arrived = {"arrived": pa.array(np.ones(len(micros), np.int64))}
            self._sum("audit", micros, {"topic": batch.column("topic")}, arrived)

    def _keep(self, batch: pa.RecordBatch, outcome: Outcome) -> None:
        events, nulled = conform(outcome.events, self._schema), outcome.nulled
        self._files.add(events)
        self._waiting.append(events.select(self._aggregated))
        if sum(map(len, self._waiting)) >= TOGETHER_ROWS:
            self._aggregate()
        dead_bytes = self._reject(outcome.dead)
        if len(events):
            # Bytes are not counted per parser: the first row has those of all.
            size = np.zeros(len(events), np.int64)
            size[0] = (pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0) - dead_bytes
            whose = {"parser": events.column("parser"), "reason": pa.repeat("", len(events))}
            self._enter(outcome.events, events.column("received"), whose, pa.array(size))
        if len(nulled):
            whose = {"parser": nulled.column("parser"), "reason": nulled.column("reason")}
            self._enter(nulled, nulled.column("received"), whose, pa.array(np.zeros(len(nulled), np.int64)))

    def _aggregate(self) -> None:
        if self._waiting:
            events = pa.concat_tables(self._waiting)
            self._waiting = []
            for total in self._aggregates:
                self._add(total.name, total.partial(events))

    def _reject(self, dead: pa.Table) -> int:
        """Enter dead letters into the ledger.  Returns their size in bytes."""
        if not len(dead):
            return 0
        sizes = pc.fill_null(pc.binary_length(dead.column("value")), 0).cast(pa.int64())
        whose = {"parser": pa.repeat("", len(dead)), "reason": plain_reasons(dead.column("reason"))}
        self._enter(dead, dead.column("timestamp"), whose, sizes)
        return int(pc.sum(sizes).as_py())

    def _enter(self, table: pa.Table, stamps: pa.ChunkedArray, whose: dict[str, Any], sizes: pa.Array) -> None:
        """Add rows to the ledger, which counts lines, also where several are one event."""
        rows = pa.array(np.ones(len(stamps), np.int64)) if LINES not in table.column_names else table.column(LINES)
        columns = {"topic": table.column("topic"), **whose}
        self._sum("ledger", micros_of(stamps), columns, {"rows": rows.cast(pa.int64()), "bytes": sizes})

    def _sum(self, name: str, micros: np.ndarray, columns: dict[str, Any], measures: dict[str, Any]) -> None:
        total = self._totals[name]
        assert isinstance(total, Sums)
        self._add(name, total.sum(micros, columns, measures))

    def _counted(self, batch: pa.RecordBatch) -> pa.Table:
        """Add the counts of producers to the audit.  Returns the messages that are no counts."""
        window_ms = self._settings.audit.window_ms
        rows: list[tuple[int, str, int]] = []
        reasons: list[str | None] = []
        for value in batch.column("value").to_pylist():
            try:
                counts = _counts(value or b"")
            except msgspec.DecodeError as error:
                reasons.append(f"audit: {error}")
                continue
            fits = counts.window_ms <= window_ms and window_ms % counts.window_ms == 0
            reasons.append(None if fits else f"audit: windows of {counts.window_ms} ms do not fit {window_ms} ms")
            if fits:
                rows.append((counts.window_start_ms * 1000, counts.topic, counts.count))
        if rows:
            starts, topics, numbers = zip(*rows, strict=True)
            counted = {"counted": pa.array(numbers, pa.int64())}
            self._sum("audit", np.array(starts, np.int64), {"topic": pa.array(topics)}, counted)
        column = pa.array(reasons, pa.string())
        dead = pa.Table.from_batches([batch]).append_column("reason", column).filter(pc.is_valid(column))
        self._reject(dead)
        return dead

    def _add(self, name: str, partial: pa.Table) -> None:
        if not len(partial):
            return
        waiting = self._partials.setdefault(name, [])
        waiting.append(partial)
        if len(waiting) > PARTIALS_MAX:
            self._partials[name] = [self._merged(name)]

    def _merged(self, name: str) -> pa.Table:
        return merged(self._totals[name], self._partials[name])


def _columns_of_aggregates(settings: Settings) -> list[str]:
    wanted = {"time", "received", "level"}
    for each in settings.aggregate:
        wanted |= {*each.by, *filter(None, [each.of])}
    return sorted(wanted)


def merged(total: Total, partials: Sequence[pa.Table]) -> pa.Table:
    """Merges partials into one."""
    return total.merge(partials).drop_columns(["changed"]) if len(partials) > 1 else partials[0]


def number_space(settings: Settings, beginning: Beginning, batch: int) -> str:
    """The text from which, with task and micro-batch, ids of idempotent producers are computed.

    It has the run that planned the micro-batch: after tables were restored, another micro-batch has the same number.
    """
    digest = hashlib.blake2b(settings.encode().encode(), digest_size=8).hexdigest()
    return f"{beginning.identity}/{beginning.run_of(batch)}/{digest}"


def sink_options(settings: Settings, topic: str) -> SinkOptions:
    return SinkOptions(settings.pipeline.bootstrap, topic=topic, retry_timeout_ms=settings.input.retry_ms)


def plain_reasons(reasons: pa.ChunkedArray) -> pa.ChunkedArray:
    """The reasons without positions in lines, so that there are few different ones."""
    return pc.replace_substring_regex(reasons, r" \(byte \d+\)", "")


def dead_letters(dead: pa.Table, pipeline: str, ids: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Messages with unchanged key and value, and headers with their origin and the reason; ``ids``: of the topics."""
    origin = [dead.column(name).to_pylist() for name in ("topic", "partition", "offset", "timestamp", "reason")]
    headers = [
        [
            {"key": "reason", "value": reason.encode()},
            {"key": "topic", "value": topic.encode()},
            {"key": "topic_id", "value": ids.get(topic, "").encode()},
            {"key": "partition", "value": b"%d" % partition},
            {"key": "offset", "value": b"%d" % offset},
            {"key": "timestamp", "value": stamp.isoformat().encode()},
            {"key": "pipeline", "value": pipeline.encode()},
        ]
        for topic, partition, offset, stamp, reason in zip(*origin, strict=True)
    ]
    messages = pa.table(
        {"key": dead.column("key"), "value": dead.column("value"), "headers": pa.array(headers, HEADERS)}
    )
    yield from messages.to_batches()


def _packed(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue().to_pybytes()  # type: ignore[no-any-return]
