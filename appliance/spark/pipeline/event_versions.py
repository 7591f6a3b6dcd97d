"""Reads versions of the table ``events``: which files have its rows, and which ones a commit has added or removed.

A version never changes, and its files stay for ``output.keep_ms``.  What changed between two versions is in the entries
of Delta's log between them (its protocol, "Actions"), which stay for seven days.  Compaction puts rows into other files
without changing them; its actions say so, and are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ...errors import BadValue
from .output_files import LOG, OutputFiles
from .settings import Output
from .table_files import EVENTS, file_of
from .times import MICROS_MAX


class RowFile(NamedTuple):
    """A file of rows.  ``first_us``, ``last_us``: bounds of its times; None where its entry has none.

    ``removed``: whether a commit in question has removed it.
    """

    path: str
    partition: tuple[tuple[str, str | None], ...]
    first_us: int | None
    last_us: int | None
    removed: bool = False

    def overlaps(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether it can have rows of one of these times, from the first to before the second one."""
        if self.first_us is None or self.last_us is None:
            return True
        return any(self.first_us < end and first <= self.last_us for first, end in ranges)


class EventVersions:
    """The versions of the events of a Delta output.

    Raises:
        BadValue: the output has no such table, or none that can be read here.
        StorageFault: its log is damaged.
    """

    def __init__(self, output: Output) -> None:
        self._files = OutputFiles(output)
        if not self._files.exists(f"{EVENTS}/{LOG}"):
            raise BadValue(f"{self._files.uri(EVENTS)} is no table yet: `appliance pipeline run CONFIG.toml` makes it")
        self._table = self._files.delta_table(EVENTS)
        self.partitioned_by = tuple(self._table.metadata().partition_columns)

    def update(self) -> None:
        """Read what has been committed since."""
        self._table.update_incremental()

    @property
    def latest(self) -> int:
        return int(self._table.version())

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    def entry(self, version: int) -> str | None:
        """A digest of the commit that made a version; None if it is in the log no more."""
        entry = self._files.read(self._name(version))
        return None if entry is None else hashlib.blake2b(entry, digest_size=8).hexdigest()

    def files(self) -> Iterator[RowFile]:
        """All files of the latest version.

        Raises:
            BadValue: rows of a file were deleted without writing the others again, which only some readers know.
        """
        actions = pa.table(self._table.get_add_actions(flatten=True))
        bounds = [
            actions.column(name).cast(pa.int64()).to_pylist() if name in actions.column_names else [None] * len(actions)
            for name in ("min.time", "max.time")
        ]
        partitions = [actions.column(f"partition.{name}").to_pylist() for name in self.partitioned_by]
        paths = actions.column("path").to_pylist()
        for place, (path, first, last) in enumerate(zip(paths, *bounds, strict=True)):
            values = (column[place] for column in partitions)
            yield RowFile(self._place(path), tuple(zip(self.partitioned_by, values, strict=True)), first, last)

    def end_us(self, window_us: int) -> int:
        """A time after all rows, at which a window ends."""
        return (MICROS_MAX // window_us + 1) * window_us

    def changed(self, since: int) -> list[RowFile] | None:
        """The files whose rows came or went after this version; None if that is not known any more."""
        files: dict[str, RowFile] = {}
        for version in range(since + 1, self.latest + 1):
            text = self._files.read(self._name(version))
            if text is None:
                return None
            entries = [json.loads(line) for line in text.decode().splitlines() if line]
            for file in self._of_entries(entries):
                earlier = files.get(file.path, file)
                files[file.path] = file._replace(removed=file.removed or earlier.removed)
        return None if any(not Path(path).exists() for path in files) else list(files.values())

    def _of_entries(self, entries: Iterable[dict[str, Any]]) -> Iterator[RowFile]:
        for entry in entries:
            action = entry.get("add") or entry.get("remove") or {}
            if action.get("dataChange"):
                partition = action.get("partitionValues") or {}
                values = tuple((name, partition.get(name)) for name in self.partitioned_by)
                yield RowFile(self._place(action["path"]), values, None, None, "remove" in entry)

    def _name(self, version: int) -> str:
        return f"{EVENTS}/{LOG}/{version:020d}.json"

    def _place(self, path: str) -> str:
        return self._files.uri(f"{EVENTS}/{file_of(path)}")
