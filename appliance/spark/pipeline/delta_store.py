"""Commits micro-batches to Delta tables with application transactions; ``tables`` explains how."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .file_statistics import file_statistics
from .settings import Output
from .table_files import EVENTS, Change, NewFile, Part, Partition, write_file


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
        from deltalake import DeltaTable
        from deltalake.transaction import RemoveAction

        if self.done(batch, table):
            return
        opened = self._open(table)
        if opened is None:
            opened = DeltaTable.create(str(self._root / table), change.schema, partition_by=["date"])
        now_ms = int(time.time() * 1000)
        actions: list[Any] = []
        for part, rows in change.contents:
            if part is not None:
                actions.append(RemoveAction(part.path, True, now_ms, partition_values={"date": part.date}))
            if len(rows):
                date = rows.column("date")[0].as_py()
                path = self._root / table / f"{uuid.uuid4().hex}.parquet"
                write_file(path, rows.drop_columns(["date"]), self._settings.compression)
                stats = file_statistics(pq.read_metadata(path))
                actions.append(_added(path.name, path.stat().st_size, {"date": date}, now_ms, stats))
        properties = self._properties(batch)
        opened.create_write_transaction(actions, "append", change.schema, ["date"], commit_properties=properties)

    def commit(self, batch: int, files: Sequence[NewFile]) -> None:
        from deltalake import DeltaTable

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
            _added(Path(file.final).name, file.bytes, dict(file.partition), now_ms, file.statistics) for file in files
        ]
        table.create_write_transaction(
            actions, "append", self._schema, partition_by, commit_properties=self._properties(batch)
        )

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
            rows = pq.ParquetFile(self._root / table / part.path).read()
            found.append(rows.append_column("date", pa.array([part.date] * len(rows), pa.string())))
        return pa.concat_tables(found, promote_options="default") if found else None


def _added(path: str, size: int, partition: dict[str, str | None], now_ms: int, stats: str) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(path, size, partition, now_ms, True, stats)
