"""Commits micro-batches to the table of events with application transactions; ``tables`` explains how.

Each commit has the number of its micro-batch as an application transaction, and its
:class:`~.batch_record.BatchRecord` in ``commitInfo``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from ...errors import AlreadyRunning, ApplianceError, BadValue
from ...names import TopicPartition
from .batch_record import BEGINNING, COMMIT_KEY, BatchRecord, decode_record, load_copy, store_copy
from .output_files import LOG, OutputFiles
from .schema_changes import conform
from .settings import Output
from .table_files import EVENTS, NewFile

OF_EVENTS: Final = {"delta.checkpointInterval": "20", "delta.logRetentionDuration": "interval 7 days"}
"""Settings of the table: whoever opens it reads the log since the last checkpoint."""
HISTORY_STEPS: Final = (10, 1000, None)
"""How many commits are searched for a record; then more.  None: all."""


class Found(NamedTuple):
    """The record that a table's rows come from.  ``restored``: by ``RESTORE``, after later micro-batches."""

    record: BatchRecord
    restored: bool


class DeltaStore:
    """The table of events of one pipeline."""

    def __init__(self, settings: Output, identity: str, schema: pa.Schema | None) -> None:
        self._files = OutputFiles(settings)
        self._settings = settings
        self._opened: Any = None
        self._app = f"appliance-pipeline-{identity}"
        self._schema = schema

    def recorded(self) -> BatchRecord | None:
        """The record of the last commit; None before the first one.

        Raises:
            BadValue: the table has rows that are not of this pipeline, or its log does not say where they come from.
        """
        last = self._found()
        if last is None or not last.restored:
            return last.record if last is not None else None
        # Numbers that were used stay used: the table would take a new micro-batch of that number for a repetition.
        return msgspec.structs.replace(last.record, batch=self._transaction())

    def _found(self) -> Found | None:
        opened = self._open()
        if opened is None:
            return None
        for count in HISTORY_STEPS:
            history = opened.history(count)
            bound, restored = None, False
            for entry in history:
                if bound is not None and entry["version"] > bound:
                    continue
                if entry["operation"] == "RESTORE":
                    bound, restored = _restored_to(entry, self._files.uri(EVENTS)), True
                elif COMMIT_KEY in entry:
                    return Found(decode_record(entry[COMMIT_KEY], self._files.uri(EVENTS)), restored)
        batch, copy = self._transaction(), load_copy(self._files)  # the log was cleaned up
        if copy is not None and copy.batch == batch:
            return Found(copy, False)
        if batch == BEGINNING and not opened.file_uris():
            return None
        raise BadValue(
            f"the log of {self._files.uri(EVENTS)} does not say up to which offsets it was written "
            f"(micro-batch {batch}): restore the table from a copy, or delete the whole output {self._files.uri()}"
        )

    def _transaction(self) -> int:
        opened = self._open()
        version = None if opened is None else opened.transaction_version(self._app)
        return BEGINNING if version is None else int(version)

    def _open(self) -> Any:
        """The table with all commits until now; None if it does not exist.

        A table that is open reads only the new entries of its log.
        """
        if self._opened is not None:
            self._opened.update_incremental()
        elif self._files.exists(f"{EVENTS}/{LOG}"):
            self._opened = self._files.delta_table(EVENTS)
        return self._opened

    @property
    def stored_schema(self) -> pa.Schema | None:
        """The columns of the table; None before the first commit."""
        opened = self._open()
        return None if opened is None else pa.schema(opened.schema().to_arrow())

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        opened = self._open()
        return self._settings.partition_by if opened is None else tuple(opened.metadata().partition_columns)

    def extend(self, schema: pa.Schema) -> None:
        """Add the columns that the table lacks, by Delta's own change of metadata."""
        from deltalake import Schema

        opened, stored = self._open(), self.stored_schema
        if opened is None or stored is None:
            return
        fresh = [field for field in schema if field.name not in stored.names]
        if fresh:
            opened.alter.add_columns(list(Schema.from_arrow(pa.schema(fresh)).fields))

    def place(self, batch: int, task: int, number: int) -> str:
        """The path of a task's file.  It is in no log until it is committed; what stays there, ``VACUUM`` removes."""
        return f"{EVENTS}/{batch:09d}-{task:05d}-{number:04d}-{uuid.uuid4().hex}.parquet"

    def _properties(self, record: BatchRecord, transaction: bool = True) -> Any:
        from deltalake import CommitProperties, Transaction

        done = [Transaction(self._app, record.batch)] if transaction and record.batch > BEGINNING else None
        return CommitProperties(custom_metadata={COMMIT_KEY: record.encode()}, app_transactions=done)

    def commit(self, record: BatchRecord, files: Sequence[NewFile]) -> None:
        """Add the files of a micro-batch, unless it has been committed already.

        Raises:
            AlreadyRunning: another run has committed in the meantime.
            ApplianceError: the table was restored in the meantime: a new run reads the lines again that it lacks.
            BadValue: the table is gone.
        """
        from deltalake import DeltaTable

        last = self.recorded()
        if last is not None and last.batch >= record.batch:
            if last.run == record.run:
                return
            raise AlreadyRunning(
                f"another process writes {self._files.uri(EVENTS)}: micro-batch {record.batch} of this one is given "
                "up, and nothing of it is in the table"
            )
        if last is None and record.batch > BEGINNING:
            raise BadValue(f"{self._files.uri(EVENTS)} is gone: nothing was written. Put it back, or run again")
        if last is not None:
            self._check_continues(last, record)
        assert self._schema is not None, "events are committed with their schema"
        partition_by = list(self._settings.partition_by)
        table = self._open()
        if table is None:
            table = DeltaTable.create(
                self._files.uri(EVENTS),
                self._schema,
                partition_by=partition_by,
                configuration=OF_EVENTS,
                storage_options=self._files.options,
            )
        now_ms = int(time.time() * 1000)
        actions = [
            _added(Path(file.path).name, file.bytes, dict(file.partition), now_ms, file.statistics) for file in files
        ]
        table.create_write_transaction(
            actions, "append", self._schema, partition_by, commit_properties=self._properties(record)
        )
        store_copy(self._files, record)

    def _check_continues(self, last: BatchRecord, record: BatchRecord) -> None:
        """Numbers of micro-batches go on after a RESTORE, so it is the offsets that tell of it."""
        ends = last.ends
        for key, (first, _) in record.ranges():
            end = ends.get(key, first)
            if end != first:
                raise ApplianceError(
                    f"{self._files.uri(EVENTS)} has {key.topic}-{key.partition} up to offset {end}, and micro-batch "
                    f"{record.batch} begins at {first}: the table was restored while the pipeline ran. Nothing was "
                    "written; run again, which continues where the table ends"
                )
        beginnings = last.beginnings
        for topic, parts in record.back.items():
            for partition, (_, before) in parts.items():
                begun = beginnings.get(TopicPartition(topic, partition), before)
                if begun != before:
                    raise ApplianceError(
                        f"{self._files.uri(EVENTS)} has {topic}-{partition} from offset {begun} on, and micro-batch "
                        f"{record.batch} goes back from {before}: the table was restored meanwhile. Nothing was "
                        "written; run again, which goes back from where the table begins"
                    )

    def amend(self, record: BatchRecord, rewritten: pa.Schema | None = None) -> None:
        """Replace the record without a micro-batch, and rewrite all files to other types."""
        from deltalake import write_deltalake

        opened = self._open()
        assert opened is not None, "there is a table to amend"
        done, partition_by = self._properties(record, transaction=False), list(self.partitioned_by)
        if rewritten is None:
            opened.create_write_transaction([], "append", opened.schema(), partition_by, commit_properties=done)
            return
        for _ in _conformed(opened.to_pyarrow_dataset(), rewritten):
            pass  # all values can be converted, or nothing changes
        write_deltalake(
            opened,
            pa.RecordBatchReader.from_batches(rewritten, _conformed(opened.to_pyarrow_dataset(), rewritten)),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=partition_by,
            commit_properties=done,
        )

    def snapshot(self) -> tuple[BatchRecord | None, Any]:
        """The record of the last commit, and the rows of that commit as a data set of Arrow; None before the first."""
        last = self._found()
        return (None, None) if last is None else (last.record, self._opened.to_pyarrow_dataset())


def _added(path: str, size: int, partition: dict[str, str | None], now_ms: int, stats: str) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(path, size, partition, now_ms, True, stats)


def _restored_to(entry: Mapping[str, Any], path: str) -> int:
    try:
        return int(entry["operationParameters"]["version"])
    except (KeyError, ValueError):
        raise BadValue(
            f"{path} was restored to a time, which does not say to which micro-batch: restore it by version"
        ) from None


def _conformed(rows: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in rows.to_batches():
        yield from conform(pa.Table.from_batches([batch]), schema).to_batches()
