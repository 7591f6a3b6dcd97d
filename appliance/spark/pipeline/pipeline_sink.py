"""Commits the micro-batches of a pipeline: the sink of its query.

The rows that it gets are not lines but what the tasks of the source have done with them (``task_work``): files that are
not visible yet, and partial totals.  Each becomes a commit message of Spark.  When all tasks have ended, the driver
merges the totals, publishes the changed ones, and commits everything under the number of the micro-batch.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...errors import AlreadyRunning, BadValue, StaleProducerEpoch
from ..python_workers import spare_collector
from ..sink import TaskWriter, identity
from .aggregates import build
from .batch_record import BatchRecord, load_plan
from .output_files import OutputFiles
from .pipeline_source import WORK
from .settings import Settings, decode
from .startup import Beginning, decode_beginning
from .tables import open_store
from .task_work import Work, merged, number_space, sink_options
from .total_parts import change, touched_days
from .totals import Total
from .watermarks import Watermarks

FORMAT: Final = "appliance-pipeline"


class Committer:
    """Commits a micro-batch, on the driver."""

    def __init__(self, settings: Settings, beginning: Beginning) -> None:
        self._settings = settings
        self._beginning = beginning
        self._store = open_store(settings, beginning.identity, beginning.schema)
        self._totals = build(settings, beginning.schema)
        self._watermarks = Watermarks(self._totals, beginning.schema)

    def commit(self, works: Sequence[Work], batch: int) -> None:
        """Commit the plan of this micro-batch together with its rows.

        Raises:
            AlreadyRunning: another process has planned or committed in the meantime.
        """
        plan = load_plan(OutputFiles(self._settings.output))
        if plan is None or (plan.batch, plan.run) != (batch, self._beginning.run_of(batch)):
            raise AlreadyRunning(
                f"another process plans micro-batches of {self._settings.output.path}: "
                f"micro-batch {batch} of this one is given up, and nothing of it is in the tables"
            )
        record = msgspec.structs.replace(plan, tables=self._beginning.committed.tables)
        partials: dict[str, list[pa.Table]] = {}
        for work in works:
            for name, partial in work.totals():
                partials.setdefault(name, []).append(partial)
        summed = {name: merged(self._totals[name], found) for name, found in partials.items()}
        changes = self._watermarks.applied(summed, self._store) if not self._store.done(batch) else []
        for number, (total, partial) in enumerate(changes):
            if not self._store.done(batch, total.name):
                self._change(record, number, total, partial)
        self._store.commit(record, [file for work in works for file in work.files])

    def _change(self, record: BatchRecord, number: int, total: Total, partial: pa.Table) -> None:
        parts = self._store.parts(total.name, touched_days(total, partial))
        found, changed = change(total, partial, parts, lambda each: self._store.read(total.name, each))
        if total.topic:
            if total.k:
                changed = changed.filter(pc.less_equal(changed.column("rank"), total.k))
            self._publish(record, number, total, changed)
        self._store.change(record, total.name, found)

    def _publish(self, record: BatchRecord, number: int, total: Total, rows: pa.Table) -> None:
        """Send rows to the topic of the total.

        A plan that is repeated may come from an older copy of the output, and the appliance refuses its producers where
        they have sent rows of later micro-batches.  Then the rows are sent as those of this run: the newest row under a
        key is right.
        """
        for beginning in (self._beginning, msgspec.structs.replace(self._beginning, replay=None)):
            space = number_space(self._settings, beginning, record.batch)
            who = identity(f"{space}/{total.name}", number, record.batch)
            try:
                TaskWriter(sink_options(self._settings, total.topic), who).write(messages(total, rows))
                return
            except StaleProducerEpoch:
                if beginning.replay is None:
                    raise


def messages(total: Total, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Each row as JSON.  All versions of a row have the same key; the newest one is valid."""
    names = ["start", *total.by]
    keys, values = [], []
    hidden = [name for name in ("date", "sketch") if name in rows.column_names]
    for row in rows.drop_columns(hidden).to_pylist():
        plain = {name: each.isoformat() if isinstance(each, datetime) else each for name, each in row.items()}
        keys.append(json.dumps({name: plain[name] for name in names}).encode())
        values.append(json.dumps({"aggregate": total.name} | plain, ensure_ascii=False).encode())
    yield pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


# ---- what Spark sees


class TablesWriter(DataSourceStreamArrowWriter):
    """Spark's numbers of micro-batches begin at 0 in every run; those of the pipeline continue."""

    def __init__(self, settings: Settings, beginning: Beginning) -> None:
        self._settings = settings
        self._beginning = beginning

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Work:
        """Takes what the task of the source has done: one row, and none where Spark has one task for no partitions."""
        spare_collector()
        works: list[Work] = [pickle.loads(each.as_py()) for rows in iterator for each in rows.column("work")]
        assert len(works) <= 1, "a task has one row"
        return works[0] if works else Work(0, [], {})

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        works = [each for each in messages if isinstance(each, Work)]
        number = self._beginning.committed.batch + 1 + batchId
        Committer(self._settings, self._beginning).commit(works, number)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: uncommitted files are invisible, and removed at the next start."""


class PipelineSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        if schema.fieldNames() != WORK.fieldNames() or overwrite:
            raise BadValue("the pipeline takes what its own source has done, to append")
        spare_collector()
        options: Any = self.options
        return TablesWriter(decode(options["settings"]), decode_beginning(options["beginning"]))
