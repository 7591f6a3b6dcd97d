"""Plans the micro-batches of a pipeline and does their tasks: the source of its query.

It reads as the data source "appliance" does, but it continues from the tables and not from Spark's checkpoint.  Its
offset, as Spark has it, is the whole plan of a micro-batch (``batch_record``): the end of one is the start of the next.
Before the first task of a micro-batch starts, its plan is stored beside the tables.  The sink commits it with them.

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
from ...names import TopicPartition
from ..options import source_options
from ..source import HEADS_AGE_S_MAX, LogPartition, Planner, bytes_of
from ..stream_offsets import Positions, ranges, to_json
from .batch_record import BatchRecord, store_plan
from .output_files import OutputFiles
from .resume import TopicLog, decide, next_plan
from .settings import Settings, decode
from .startup import ACCEPT, Beginning, decode_beginning, read_logs
from .task_work import Job

SOURCE: Final = "appliance-pipeline-source"
RECORD: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
WORK: Final = StructType([StructField("work", BinaryType()), StructField("records", LongType())])
"""A task's work, pickled, and how many records it has read."""


@dataclass
class PlannedTask(InputPartition):
    """The task with this number of a micro-batch."""

    batch: int
    number: int
    part: LogPartition


class PipelineReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: Settings, beginning: Beginning, cores: int) -> None:
        self._settings = settings
        self._beginning = beginning
        self._cores = cores
        given = settings.input
        self._planner = Planner(
            source_options(
                {
                    "bootstrap.servers": settings.pipeline.bootstrap,
                    "subscribe": ",".join(settings.topics),
                    "splitPartitions": str(not any(source.multiline for source in settings.source)).lower(),
                    "failOnDataLoss": str(given.fail_on_data_loss).lower(),
                    "corruptBatch": given.corrupt_batch,
                    "retryTimeoutMs": str(given.retry_ms),
                },
                streaming=True,
            ),
            cores,
        )
        self._logs: tuple[float, dict[str, TopicLog]] = (0.0, {})
        self._target: Positions | None = None

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
        replay = self._beginning.replay
        if replay is not None and replay.batch == last.batch + 1:
            return _to_json(replay)
        present = self._present()
        logs = {topic: log for topic, log in present.items() if topic in self._settings.topics}
        heads = _heads(logs)
        if self._target is not None:
            heads = {key: min(head, self._target.get(key, 0)) for key, head in heads.items()}
        resumption = decide(last, None, None, logs, False)
        if resumption.conflicts and self._settings.input.fail_on_data_loss:
            raise OffsetOutOfRange(f"{resumption.conflicts[0]}. To continue in spite of it: `{ACCEPT}`, then run again")
        plan = next_plan(resumption.begun, heads, bytes_of(limit), self._beginning.run)
        if plan is None:
            return start
        letters, dead = self._beginning.letters, None
        if letters is not None and self._settings.dead_letters.topic in present:
            dead = letters.of_plan(last.ends, present[self._settings.dead_letters.topic])
        return _to_json(msgspec.structs.replace(plan, cores=self._cores, dead=dead))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._heads())

    def _heads(self) -> Positions:
        present = self._present()
        return _heads({topic: log for topic, log in present.items() if topic in self._settings.topics})

    def _present(self) -> dict[str, TopicLog]:
        """The topics of the sources, and that of dead letters."""
        seen_s, logs = self._logs
        if time.monotonic() - seen_s > HEADS_AGE_S_MAX:
            letters = self._settings.dead_letters.topic
            logs = read_logs(self._planner.access, [*self._settings.topics, *([letters] if letters else [])])
            self._logs = time.monotonic(), logs
        return logs

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[PlannedTask]:
        plan = _from_json(end)
        store_plan(OutputFiles(self._settings.output), plan)
        logs = self._present()
        wanted = {key: bounds for key, bounds in plan.ranges() if bounds[0] < bounds[1]}
        there = {key: logs[key[0]].bounds[key[1]] for key in wanted if key[0] in logs and key[1] in logs[key[0]].bounds}
        first, last = ({key: bounds[side] for key, bounds in wanted.items()} for side in (0, 1))
        earliest, latest = ({key: bounds[side] for key, bounds in there.items()} for side in (0, 1))
        # A repetition has the same tasks, also where the cluster has other cores now: dead letters are known by them.
        wanted_now = ranges(first, last, earliest, latest, self._settings.input.fail_on_data_loss)
        parts = self._planner.tasks(wanted_now, plan.cores)
        return [PlannedTask(plan.batch, number, part) for number, part in enumerate(parts)]

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the sink has committed the plan."""

    def stop(self) -> None:
        self._planner.access.close()

    # ---- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PlannedTask):
            return  # pyspark 4.3 makes one of its own where there is nothing to do
        job = Job(self._settings, self._beginning, partition.batch, partition.number)
        work = job.run(batch.select(RECORD) for batch in self._planner.read(partition.part))
        row = [pickle.dumps(work)], [work.records]
        yield pa.record_batch([pa.array(value) for value in row], WORK.fieldNames())


def _heads(logs: Mapping[str, TopicLog]) -> Positions:
    return {TopicPartition(topic, part): end for topic, log in logs.items() for part, (_, end) in log.bounds.items()}


def _to_json(record: BatchRecord) -> dict[str, Any]:
    """A record as Spark keeps it, without the tables."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.structs.replace(record, tables={}).encode())
    return found


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
