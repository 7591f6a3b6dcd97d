"""Does the work of one task of a micro-batch: reads nothing itself, commits nothing.

A task gets the records of some ranges of partitions.  It converts them to rows of the table, and writes these to files
that are not visible yet.  The result (:class:`Work`) names the files; what commits it is in ``pipeline_sink``.  Spark
repeats a task, or the whole micro-batch, after a failure.  Files of the first attempt never become visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from . import audit_counts
from .batch_record import BatchRecord
from .events import Transform, by_topic
from .multiline import Joiner
from .schema_changes import conform
from .settings import Settings
from .startup import Beginning
from .table_files import NewFile
from .tables import EventFiles, open_store
from .unknown_fields import AddedColumns, adds_columns


@dataclass
class Work(WriterCommitMessage):
    """The result of a task.  ``record``: that of its micro-batch, which the first task of each hands on."""

    record: BatchRecord | None
    records: int
    """How many it has read."""
    files: list[NewFile]
    added: Sequence[str] = ()
    """The names of columns that its files have and the table has not: those of unknown fields."""


class Job:
    """The work of one task, the one with this number of a micro-batch."""

    def __init__(self, settings: Settings, beginning: Beginning, batch: int, task: int) -> None:
        self._settings = settings
        self._transform = Transform(settings)
        self._joiner = Joiner(settings)
        self._schema = beginning.schema
        self._files = EventFiles(open_store(settings, beginning.identity), settings.output, batch, task)
        self._records = 0
        self._added = AddedColumns(self._schema, self._transform.schema) if adds_columns(settings) else None

    def run(self, batches: Iterator[pa.RecordBatch], record: BatchRecord | None = None) -> Work:
        for mixed in batches:
            self._records += mixed.num_rows
            for batch in by_topic(mixed):
                if batch.column("topic")[0].as_py() == self._settings.audit.topic:
                    window_ms = self._settings.audit.window_ms
                    self._files.add(audit_counts.rows_of(batch, self._schema, window_ms))
                else:
                    self._keep(self._joiner.add(batch))
        self._keep(self._joiner.rest())
        self._files.flush()
        added = () if self._added is None else tuple(self._added.fresh)
        return Work(record, self._records, self._files.files, added)

    def _keep(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            outcome = self._transform.run(batch)
            if self._added is None or outcome.unknown is None:
                self._files.add(conform(outcome.rows, self._schema))
            else:
                self._files.add(self._added.spread(outcome.rows, outcome.unknown))
