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
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from .compaction import EventFile, write_together
from .file_statistics import file_statistics
from .output_files import LOG, OutputFiles
from .settings import Output
from .table_files import EVENTS

HOUR_MS: Final = 3_600_000
TOTALS_KEPT_MS: Final = HOUR_MS


class DeltaEvents:
    errors: tuple[type[Exception], ...] = (DeltaError,)

    def __init__(self, settings: Output) -> None:
        self._files = OutputFiles(settings)
        self._settings = settings

    def event_files(self) -> list[EventFile]:
        return _files(self._open(EVENTS)) if self._files.exists(f"{EVENTS}/{LOG}") else []

    def _open(self, table: str) -> DeltaTable:
        return DeltaTable(self._files.uri(table), storage_options=self._files.options)

    def swap(self, sources: Sequence[EventFile]) -> int:
        table = self._open(EVENTS)
        there = {each.path for each in _files(table)}
        if not all(each.path in there for each in sources):
            raise DeltaError("other files than those that were listed")
        name = f"{uuid.uuid4().hex}.parquet"
        paths = [f"{EVENTS}/{each.path}" for each in sources]
        size, footer = write_together(self._files, paths, f"{EVENTS}/{name}", self._settings)
        now_ms = int(time.time() * 1000)
        partition: dict[str, str | None] = json.loads(sources[0].partition)
        actions: list[Any] = [
            RemoveAction(each.path, False, now_ms, each.bytes, partition_values=partition) for each in sources
        ]
        actions.append(AddAction(name, size, partition, now_ms, False, file_statistics(footer)))
        columns = list(table.metadata().partition_columns)
        # Without it the file is invisible, and goes with VACUUM.
        table.create_write_transaction(actions, "append", table.schema(), columns)
        return 1

    def vacuum(self) -> int:
        removed = 0
        for name in self._files.tables():
            kept_ms = self._settings.keep_ms if name == EVENTS else TOTALS_KEPT_MS
            removed += len(
                self._open(name).vacuum(kept_ms // HOUR_MS, False, enforce_retention_duration=False, full=True)
            )
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
