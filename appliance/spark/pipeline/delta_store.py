"""Commits micro-batches to Delta tables with application transactions; ``tables`` explains how.

Each commit has the number of its micro-batch as an application transaction, and its
:class:`~.batch_record.BatchRecord` in ``commitInfo``.  ``deltalake`` is imported only here: Parquet does not need it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from .batch_record import BEGINNING, COMMIT_KEY, BatchRecord, decode_record, load_plan
from .file_statistics import file_statistics
from .output_files import LOG, OutputFiles
from .schema_changes import conform
from .settings import Output
from .table_files import EVENTS, Change, NewFile, Part, Partition

OF_EVENTS: Final = {"delta.checkpointInterval": "20", "delta.logRetentionDuration": "interval 7 days"}
"""Settings of the table: whoever opens it reads the log since the last checkpoint."""
OF_TOTALS: Final = {
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
HISTORY_STEPS: Final = (10, 1000, None)
"""How many commits are searched for a record; then more.  None: all."""


class Found(NamedTuple):
    """The record that a table's rows come from.  ``restored``: by ``RESTORE``, after later micro-batches."""

    record: BatchRecord
    restored: bool


class DeltaStore:
    """Keeps the tables of a pipeline in Delta Lake: ``tables.Store``."""

    def __init__(self, settings: Output, identity: str, schema: pa.Schema | None) -> None:
        self._files = OutputFiles(settings)
        self._settings = settings
        self._opened: dict[str, Any] = {}
        self._app = f"appliance-pipeline-{identity}"
        self._schema = schema

    def prepare(self) -> None:
        """Does nothing: files that are in no log are invisible, and ``VACUUM`` removes them."""

    def _tables(self) -> list[str]:
        return self._files.tables()

    def check(self) -> None:
        totals = self._totals()
        found = self._found(EVENTS)
        if found is None and totals:
            raise BadValue(
                f"{self._files.uri(EVENTS)} is gone, and {', '.join(totals)} have micro-batches: put it back, "
                f"or delete the whole output {self._files.uri()} to begin again"
            )
        restored = any(each.restored for each in [*totals.values(), *([found] if found else [])])
        for table, each in totals.items():
            if found is not None and each.record.batch > found.record.batch + (not restored):
                raise BadValue(
                    f"{self._files.uri(table)} holds micro-batch {each.record.batch}, and {EVENTS} only "
                    f"{found.record.batch}: restore all tables to versions of the same micro-batch"
                )

    def _totals(self) -> dict[str, Found]:
        return {table: found for table in self._tables() if table != EVENTS and (found := self._found(table))}

    def recorded(self) -> BatchRecord | None:
        found = self._found(EVENTS)
        if found is None or not found.restored:
            return found.record if found is not None else None
        # Numbers that were used stay used: a table would take a new micro-batch of that number for a repetition.
        return msgspec.structs.replace(found.record, batch=max(map(self._transaction, self._tables())))

    def unfinished(self) -> BatchRecord | None:
        found = self._found(EVENTS)
        if found is None or found.restored:
            return None
        ahead = (each.record for each in self._totals().values() if each.record.batch > found.record.batch)
        return next(ahead, None)

    def _found(self, table: str) -> Found | None:
        """The record of a table; None if it does not exist or has no commit.

        Raises:
            BadValue: it has rows that are not of this pipeline, or its log does not say where they come from.
        """
        opened = self._open(table)
        if opened is None:
            return None
        for count in HISTORY_STEPS:
            history = opened.history(count)
            bound, restored = None, False
            for entry in history:
                if bound is not None and entry["version"] > bound:
                    continue
                if entry["operation"] == "RESTORE":
                    bound, restored = _restored_to(entry, self._files.uri(table)), True
                elif COMMIT_KEY in entry:
                    return Found(decode_record(entry[COMMIT_KEY]), restored)
        # The log was cleaned up.  Of totals the number is enough; the last plan is that of the last micro-batch.
        batch, plan = self._transaction(table), load_plan(self._files)
        if table != EVENTS:
            return Found(BatchRecord(batch), False)
        if plan is not None and plan.batch == batch:
            return Found(plan, False)
        if batch == BEGINNING and not opened.file_uris():
            return None
        raise BadValue(
            f"the log of {self._files.uri(table)} does not say up to which offsets it was written "
            f"(micro-batch {batch}): restore the table from a copy, or delete the whole output {self._files.uri()}"
        )

    def _transaction(self, table: str) -> int:
        opened = self._open(table)
        version = None if opened is None else opened.transaction_version(self._app)
        return BEGINNING if version is None else int(version)

    def done(self, batch: int, table: str = EVENTS) -> bool:
        return self._transaction(table) >= batch

    def _open(self, table: str) -> Any:
        """The table with all commits until now; None if it does not exist.

        A table that is open reads only the new entries of its log.
        """
        from deltalake import DeltaTable

        if table in self._opened:
            self._opened[table].update_incremental()
        elif self._files.exists(f"{table}/{LOG}"):
            self._opened[table] = DeltaTable(self._files.uri(table), storage_options=self._files.options)
        return self._opened.get(table)

    def _create(self, table: str, schema: pa.Schema, partition_by: Sequence[str], configuration: dict[str, str]) -> Any:
        from deltalake import DeltaTable

        return DeltaTable.create(
            self._files.uri(table),
            schema,
            partition_by=list(partition_by),
            configuration=configuration,
            storage_options=self._files.options,
        )

    def exists(self, table: str) -> bool:
        return self._open(table) is not None

    def schema(self, table: str) -> pa.Schema | None:
        opened = self._open(table)
        return None if opened is None else pa.schema(opened.schema().to_arrow())

    def extend(self, table: str, schema: pa.Schema) -> None:
        """Add the columns that the table lacks, by Delta's own change of metadata."""
        from deltalake import Schema

        opened, stored = self._open(table), self.schema(table)
        if opened is None or stored is None:
            return
        fresh = [field for field in schema if field.name not in stored.names]
        if fresh:
            opened.alter.add_columns(list(Schema.from_arrow(pa.schema(fresh)).fields))

    def place(self, batch: int, task: int, number: int, partition: Partition) -> tuple[str, str]:
        name = f"{EVENTS}/{batch:09d}-{task:05d}-{number:04d}-{uuid.uuid4().hex}.parquet"
        return name, name

    def _properties(self, record: BatchRecord, transaction: bool = True) -> Any:
        from deltalake import CommitProperties, Transaction

        done = [Transaction(self._app, record.batch)] if transaction and record.batch > BEGINNING else None
        return CommitProperties(custom_metadata={COMMIT_KEY: record.encode()}, app_transactions=done)

    def change(self, record: BatchRecord, table: str, change: Change) -> None:
        from deltalake.transaction import RemoveAction

        if self.done(record.batch, table):
            return
        opened = self._open(table)
        if opened is None:
            opened = self._create(table, change.schema, ["date"], OF_TOTALS)
        now_ms = int(time.time() * 1000)
        actions: list[Any] = []
        for part, rows in change.contents:
            if part is not None:
                actions.append(RemoveAction(part.path, True, now_ms, partition_values={"date": part.date}))
            if len(rows):
                date = rows.column("date")[0].as_py()
                name = f"{uuid.uuid4().hex}.parquet"
                size, footer = self._files.write_table(f"{table}/{name}", rows.drop_columns(["date"]))
                actions.append(_added(name, size, {"date": date}, now_ms, file_statistics(footer)))
        properties = self._properties(record)
        opened.create_write_transaction(actions, "append", change.schema, ["date"], commit_properties=properties)

    def commit(self, record: BatchRecord, files: Sequence[NewFile]) -> None:
        if record.batch > BEGINNING and self.done(record.batch):
            return
        assert self._schema is not None, "events are committed with their schema"
        partition_by = list(self._settings.partition_by)
        table = self._open(EVENTS)
        if table is None:
            table = self._create(EVENTS, self._schema, partition_by, OF_EVENTS)
        now_ms = int(time.time() * 1000)
        actions = [
            _added(Path(file.final).name, file.bytes, dict(file.partition), now_ms, file.statistics) for file in files
        ]
        table.create_write_transaction(
            actions, "append", self._schema, partition_by, commit_properties=self._properties(record)
        )

    def amend(self, record: BatchRecord, rewritten: Mapping[str, pa.Schema]) -> None:
        """Rewrites totals first and ``events`` last, each in one commit.  A repetition finds what is left."""
        from deltalake import write_deltalake

        for table, schema in rewritten.items():
            for _ in _conformed(self._open(table).to_pyarrow_dataset(), schema):
                pass  # all values can be converted, or nothing changes
        for table in sorted(rewritten, key=lambda name: name == EVENTS):
            opened, schema = self._open(table), rewritten[table]
            write_deltalake(
                opened,
                pa.RecordBatchReader.from_batches(schema, _conformed(opened.to_pyarrow_dataset(), schema)),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=list(opened.metadata().partition_columns),
                commit_properties=self._properties(self._of_its_own(table, record), transaction=False),
            )
        opened = self._open(EVENTS)
        assert opened is not None, "there is a table to amend"
        opened.create_write_transaction(
            [],
            "append",
            opened.schema(),
            list(self._settings.partition_by),
            commit_properties=self._properties(record, transaction=False),
        )

    def _of_its_own(self, table: str, record: BatchRecord) -> BatchRecord:
        """A table of totals keeps the number of its own last micro-batch, which may be unfinished."""
        found = self._found(table) if table != EVENTS else None
        return found.record if found is not None else record

    def parts(self, table: str, days: Sequence[str] | None = None) -> list[Part]:
        opened = self._open(table)
        if opened is None:
            return []
        found = pa.table(opened.get_add_actions(flatten=True))
        dates = found.column("partition.date")
        if days is not None:
            found = found.filter(pc.is_in(dates, pa.array(days, pa.string())))
        names = ("partition.date", "path", "num_records", "min.start", "max.end")
        columns = [found.column(name) for name in names[:3]]
        columns += [found.column(name).cast(pa.int64()) for name in names[3:]]
        return [Part(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]

    def read(self, table: str, parts: Sequence[Part] | None = None) -> pa.Table | None:
        if parts is None:
            opened = self._open(table)
            return None if opened is None else opened.to_pyarrow_table()
        found = []
        for part in parts:
            rows = self._files.open_table(f"{table}/{part.path}").read()
            found.append(rows.append_column("date", pa.array([part.date] * len(rows), pa.string())))
        return pa.concat_tables(found, promote_options="default") if found else None

    def snapshot(self) -> tuple[BatchRecord | None, dict[str, Any]]:
        found = self._found(EVENTS)
        if found is None:
            return None, {}
        opened = {EVENTS: self._opened[EVENTS]}  # as the record was found in it: a commit may have come since
        opened |= {table: self._open(table) for table in self._tables() if table != EVENTS}
        return found.record, {table: each.to_pyarrow_dataset() for table, each in opened.items()}


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
