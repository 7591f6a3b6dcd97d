"""Plans the micro-batches of a pipeline and does their tasks: the source of its query.

It reads as the data source "appliance" does, but it continues from the table and not from Spark's checkpoint.  Its
offset, as Spark has it, is the record of a micro-batch (``batch_record``): the end of one is the start of the next.
The first task of a micro-batch hands its record on to the sink, which commits it with the rows.

A task reads its ranges and does all of the work on them (``task_work``) in the same process.  Its only row is the
result, so no line goes through the JVM.  As rows, lines went from a Python process to the JVM and from there to another
one, and were converted at each step: that took as much CPU as parsing them.

At each planning the topics are compared as at the start of a run (``resume``): a topic that is deleted and created
again, or a log that has become shorter, is noticed while the query runs.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from ...errors import OffsetOutOfRange
from ...log_access.ranges import Positions
from ...names import TopicPartition
from ..options import source_options
from ..source import HEADS_AGE_S_MAX, LogPartition, Planner, bytes_of
from ..stream_offsets import ranges, to_json
from .batch_record import BatchRecord, encode_schema
from .resume import TopicLog, decide, floors_now, lines_before, next_back, next_batch
from .settings import Settings, decode
from .startup import ACCEPT, Beginning, decode_beginning
from .tables import open_store
from .task_work import Job
from .topic_logs import read_logs
from .unknown_fields import adds_columns

SOURCE: Final = "appliance-pipeline-source"
RECORD: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
TASK_BYTES_MIN: Final = 2 * 1024 * 1024
"""Smallest task of a micro-batch, while there are cores for more.  A task costs Spark some 40 ms of CPU, and parsing so
much 30 to 60 ms, or some times that where batches are compressed: offsets count compressed bytes.  So a task of
``SPLIT_BYTES_MIN`` would make a small micro-batch wait for one core while others are idle."""
WORK: Final = StructType([StructField("work", BinaryType()), StructField("records", LongType())])
"""A task's work, pickled, and how many records it has read."""


@dataclass
class PlannedTask(InputPartition):
    """The task with this number of a micro-batch.

    ``part``: what it reads, None where the lines are gone; ``columns``: those of the table, as in :class:`Beginning`.
    """

    record: BatchRecord
    number: int
    part: LogPartition | None
    columns: str


class PipelineReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: Settings, beginning: Beginning, cores: int) -> None:
        self._settings = settings
        self._beginning = beginning
        settings_input = settings.input
        # What retention removes before it is brought in is as what it removed before that.
        self._fails_on_loss = settings_input.fail_on_data_loss and beginning.floors is None
        self._planner = Planner(
            source_options(
                {
                    "bootstrap.servers": settings.pipeline.bootstrap,
                    "subscribe": ",".join(settings.topics),
                    "splitPartitions": str(not any(source.multiline for source in settings.source)).lower(),
                    "failOnDataLoss": str(self._fails_on_loss).lower(),
                    "corruptBatch": settings_input.corrupt_batch,
                    "retryTimeoutMs": str(settings_input.retry_ms),
                },
                streaming=True,
            ),
            cores,
        )
        self._logs: tuple[float, dict[str, TopicLog]] = (0.0, {})
        self._target: Positions | None = None
        self._accepted: BatchRecord | None = None
        """What was recorded last: without new lines the next trigger begins where this one did."""

    # ---- planning, in one long-lived process of the driver

    def initialOffset(self) -> dict[str, Any]:
        return _to_json(self._beginning.committed)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._settings.input.trigger_bytes
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._heads()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        last = _from_json(start)
        logs = self._present()
        resumption = decide(last, logs, False)
        if resumption.conflicts:
            if self._settings.input.fail_on_data_loss:
                reason = f"{resumption.conflicts[0]}. To continue in spite of it: `{ACCEPT}`, then run again"
                raise OffsetOutOfRange(reason)
            self._accept(resumption.begun)
        record = self._next(resumption.begun, logs, bytes_of(limit))
        return start if record is None else _to_json(record)

    def _accept(self, begun: BatchRecord) -> None:
        """Record where the table continues, as the beginning of a run does: what comes next must begin there."""
        if begun == self._accepted:
            return
        self._accepted = begun
        parsing = self._beginning.committed.parsing
        store = open_store(self._settings, self._beginning.identity)
        store.amend(msgspec.structs.replace(begun, parsing=parsing))

    def _next(self, begun: BatchRecord, logs: Mapping[str, TopicLog], bytes_max: int) -> BatchRecord | None:
        run = self._beginning.run
        if self._beginning.floors is not None:
            floors = floors_now(self._beginning.floors, lines_before(begun, logs))
            return next_back(begun, floors, bytes_max, run, self._settings.audit.topic)
        heads = _heads(logs)
        if self._target is not None:
            heads = {key: min(head, self._target.get(key, 0)) for key, head in heads.items()}
        return next_batch(begun, heads, bytes_max, run)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._heads())

    def _heads(self) -> Positions:
        return _heads(self._present())

    def _present(self) -> dict[str, TopicLog]:
        """The topics of the sources."""
        seen_s, logs = self._logs
        if time.monotonic() - seen_s > HEADS_AGE_S_MAX:
            logs = read_logs(self._planner.access, self._settings.topics)
            self._logs = time.monotonic(), logs
        return logs

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[PlannedTask]:
        record = _from_json(end)
        if record.batch == _from_json(start).batch:
            return []  # Spark has a first micro-batch in every run, also where nothing is new
        logs = self._present()
        unread = record.spans()
        there = {key: logs[key[0]].bounds[key[1]] for key in unread if key[0] in logs and key[1] in logs[key[0]].bounds}
        first, last = ({key: bounds[side] for key, bounds in unread.items()} for side in (0, 1))
        earliest, latest = ({key: bounds[side] for key, bounds in there.items()} for side in (0, 1))
        there_now = ranges(first, last, earliest, latest, self._fails_on_loss)
        parts = self._planner.tasks(there_now, TASK_BYTES_MIN)
        columns = self._columns()
        return [PlannedTask(record, number, part, columns) for number, part in enumerate([*parts] or [None])]

    def _columns(self) -> str:
        """The columns of the table: earlier micro-batches of this run may have added some."""
        if not adds_columns(self._settings):
            return self._beginning.columns
        stored = open_store(self._settings, self._beginning.identity).stored_schema
        return self._beginning.columns if stored is None else encode_schema(stored)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the sink has committed the record."""

    def stop(self) -> None:
        self._planner.access.close()

    # ---- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PlannedTask):
            return  # pyspark 4.3 makes one of its own where there is nothing to do
        beginning = msgspec.structs.replace(self._beginning, columns=partition.columns)
        job = Job(self._settings, beginning, partition.record.batch, partition.number)
        read = () if partition.part is None else self._planner.read(partition.part)
        record = partition.record if partition.number == 0 else None
        work = job.run((batch.select(RECORD) for batch in read), record)
        row = [pickle.dumps(work)], [work.records]
        yield pa.record_batch([pa.array(value) for value in row], WORK.fieldNames())


def _heads(logs: Mapping[str, TopicLog]) -> Positions:
    return {TopicPartition(topic, part): end for topic, log in logs.items() for part, (_, end) in log.bounds.items()}


def _to_json(record: BatchRecord) -> dict[str, Any]:
    """A record as Spark keeps it."""
    fields: dict[str, Any] = msgspec.json.decode(record.encode())
    return fields


def _from_json(offset: Mapping[str, Any]) -> BatchRecord:
    return msgspec.json.decode(msgspec.json.encode(offset), type=BatchRecord)


class PipelineSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> StructType:
        return WORK

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options: Any = self.options
        cores = int(options["cores"])
        return PipelineReader(decode(options["settings"]), decode_beginning(options["beginning"]), cores)
