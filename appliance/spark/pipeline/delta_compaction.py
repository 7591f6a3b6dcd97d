"""Compacts the events of a Delta output, and removes old files of all of its tables.

One transaction removes the sources and adds what was put together, marked as no change of data.  A reader of an older
version keeps its files for ``output.keep_ms``, then ``VACUUM`` removes them, with those that failed attempts have left.
Tables of totals are replaced by every micro-batch, so their old files are kept for :data:`TOTALS_KEPT_MS` only.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from .compaction import EventFile, write_together
from .file_statistics import file_statistics
from .settings import Output
from .table_files import EVENTS

HOUR_MS: Final = 3_600_000
TOTALS_KEPT_MS: Final = HOUR_MS


class DeltaEvents:
    errors: tuple[type[Exception], ...] = (DeltaError,)

    def __init__(self, root: Path, settings: Output) -> None:
        self._root = root
        self._settings = settings

    def event_files(self) -> list[EventFile]:
        path = str(self._root / EVENTS)
        if not DeltaTable.is_deltatable(path):
            return []
        return _files(DeltaTable(path))

    def swap(self, sources: Sequence[EventFile]) -> int:
        table = DeltaTable(str(self._root / EVENTS))
        there = {each.path for each in _files(table)}
        if not all(each.path in there for each in sources):
            raise DeltaError("other files than those that were listed")
        name = f"{uuid.uuid4().hex}.parquet"
        target = self._root / EVENTS / name
        write_together([self._root / EVENTS / each.path for each in sources], target, self._settings)
        self._commit(table, sources, target)  # a file that is not committed goes with VACUUM
        return 1

    def _commit(self, table: DeltaTable, sources: Sequence[EventFile], target: Path) -> None:
        now_ms = int(time.time() * 1000)
        partition: dict[str, str | None] = json.loads(sources[0].partition)
        actions: list[Any] = [
            RemoveAction(each.path, False, now_ms, each.bytes, partition_values=partition) for each in sources
        ]
        statistics = file_statistics(pq.read_metadata(target))
        actions.append(AddAction(target.name, target.stat().st_size, partition, now_ms, False, statistics))
        columns = list(table.metadata().partition_columns)
        table.create_write_transaction(actions, "append", table.schema(), columns)

    def vacuum(self) -> int:
        removed = 0
        for log in sorted(self._root.glob("*/_delta_log")):
            kept_ms = self._settings.keep_ms if log.parent.name == EVENTS else TOTALS_KEPT_MS
            table = DeltaTable(str(log.parent))
            removed += len(table.vacuum(kept_ms // HOUR_MS, False, enforce_retention_duration=False, full=True))
        return removed


def _files(table: DeltaTable) -> list[EventFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [name for name in actions.column_names if name.startswith("partition.")]
    rows = actions.select(["path", "size_bytes", "modification_time", *names]).to_pylist()
    return [
        EventFile(
            json.dumps({name.removeprefix("partition."): row[name] for name in names}),
            row["path"],
            row["size_bytes"],
            row["modification_time"],
        )
        for row in rows
    ]
