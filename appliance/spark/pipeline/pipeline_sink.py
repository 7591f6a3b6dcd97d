"""Commits the micro-batches of a pipeline: the sink of its query.

The rows that it gets are not lines but what the tasks of the source have done with them (``task_work``): files that are
not visible yet.  Each becomes a commit message of Spark.  When all tasks have ended, the driver commits everything
under the number of the micro-batch.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...errors import BadValue
from ..python_workers import spare_collector
from .pipeline_source import WORK
from .settings import Settings, decode
from .startup import Beginning, decode_beginning
from .tables import open_store
from .task_work import Work
from .unknown_fields import schema_of

FORMAT: Final = "appliance-pipeline"


def commit(settings: Settings, beginning: Beginning, works: Sequence[Work]) -> None:
    """Commit a micro-batch, on the driver.

    Spark has a first micro-batch in every run, also where nothing is new: then no task has a record.

    Raises:
        AlreadyRunning: another run has committed in the meantime.
    """
    record = next((work.record for work in works if work.record is not None), None)
    if record is not None:
        store = open_store(settings, beginning.identity, beginning.schema)
        if added := dict.fromkeys(name for work in works for name in work.added):
            store.extend(schema_of(added))
        record = msgspec.structs.replace(record, parsing=beginning.committed.parsing)
        store.commit(record, [file for work in works for file in work.files])


# ---- what Spark sees


class TablesWriter(DataSourceStreamArrowWriter):
    """Spark's numbers of micro-batches begin at 0 in every run; those of the pipeline are in its records."""

    def __init__(self, settings: Settings, beginning: Beginning) -> None:
        self._settings = settings
        self._beginning = beginning

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Work:
        """Takes what the task of the source has done: one row, and none where Spark has one task for no partitions."""
        spare_collector()
        works: list[Work] = [pickle.loads(cell.as_py()) for rows in iterator for cell in rows.column("work")]
        assert len(works) <= 1, "a task has one row"
        return works[0] if works else Work(None, 0, [])

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._settings, self._beginning, [message for message in messages if isinstance(message, Work)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: uncommitted files are invisible, and ``VACUUM`` removes them."""


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
