"""Commits micro-batches to Delta tables with application transactions; ``tables`` explains how."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from .settings import Output
from .table_files import EVENTS, Change, NewFile, Partition


class DeltaStore:
    """Tables in Delta's format.  ``deltalake`` is imported only here: Parquet does not need it."""

    def __init__(self, root: Path, settings: Output, identity: str, schema: pa.Schema | None) -> None:
        self._root = root
        self._settings = settings
        self._app = f"appliance-pipeline-{identity}"
        self._schema = schema

    def prepare(self) -> None:
        """Does nothing: files that are in no log are invisible, and ``VACUUM`` removes them."""

    def done(self, batch: int, table: str = EVENTS) -> bool:
        opened = self._open(table)
        version = None if opened is None else opened.transaction_version(self._app)
        return version is not None and int(version) >= batch

    def _open(self, table: str) -> Any:
        from deltalake import DeltaTable

        path = str(self._root / table)
        return DeltaTable(path) if DeltaTable.is_deltatable(path) else None

    def place(self, batch: int, task: int, attempt: int, number: int, partition: Partition) -> tuple[str, str]:
        name = f"{EVENTS}/{batch:09d}-{task:05d}-{number:04d}-{uuid.uuid4().hex}.parquet"
        return name, name

    def _properties(self, batch: int) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(app_transactions=[Transaction(self._app, batch)])

    def change(self, batch: int, table: str, change: Change) -> None:
        from deltalake import write_deltalake

        if self.done(batch, table):
            return
        path, properties = str(self._root / table), self._properties(batch)
        if self._open(table) is None:
            write_deltalake(path, change.rows, partition_by=["date"], commit_properties=properties)
            return
        days = ", ".join(f"'{day}'" for day in change.days)
        write_deltalake(
            path, change.rows, mode="overwrite", predicate=f"date IN ({days})", commit_properties=properties
        )

    def commit(self, batch: int, files: Sequence[NewFile]) -> None:
        from deltalake import DeltaTable
        from deltalake.transaction import AddAction

        if self.done(batch):
            return
        assert self._schema is not None, "events are committed with their schema"
        partition_by = list(self._settings.partition_by)
        path = str(self._root / EVENTS)
        table = self._open(EVENTS)
        if table is None:
            table = DeltaTable.create(path, self._schema, partition_by=partition_by)
        now_ms = int(time.time() * 1000)
        actions = [
            AddAction(
                path=Path(file.final).name,
                size=file.bytes,
                partition_values=dict(file.partition),
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        table.create_write_transaction(
            actions, "append", self._schema, partition_by, commit_properties=self._properties(batch)
        )

    def read(self, table: str, days: Sequence[str] | None = None) -> pa.Table | None:
        opened = self._open(table)
        if opened is None:
            return None
        wanted = [("date", "in", list(days))] if days is not None else None
        return opened.to_pyarrow_table(filters=wanted)
