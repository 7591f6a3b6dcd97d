"""Writes the table of a view, with what its rows come from in each commit; ``views`` explains how that is used."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from ...errors import FileNotPermitted, StorageFault
from ...table_faults import told_of
from .event_questions import Questions, micros
from .output_files import LOG, OutputFiles
from .settings import Output, is_url
from .table_files import file_of
from .times import EPOCH

VIEWS: Final = "views"
"""The directory of the tables of views, in that of the output."""
VIEW: Final = "view"
"""The name of the table in questions to it."""
PARTS: Final = "_parts"
"""The directory of the table of a view's parts, in that of the view's own table, whose vacuum leaves it alone."""
BASIS_KEY: Final = "appliance.view"
ROWS_STAY: Final = ("VACUUM START", "VACUUM END", "OPTIMIZE", "SET TBLPROPERTIES")
"""Operations of Delta that change no row."""
HISTORY_MAX: Final = 1000
VACUUM_EVERY: Final = 20
"""After so many versions of a view, small files are put together, and files of before the last hour removed."""
CONFIGURATION: Final = {
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
Ranges = Sequence[tuple[int, int]]
"""Of time, in microseconds since 1970: from the first to before the second one."""


class Basis(msgspec.Struct, frozen=True):
    """What the rows of a view come from: a version of events, a digest of its commit, and one of the definition.

    ``ranges``: the times whose rows this commit has replaced; None: all.
    """

    version: int
    entry: str
    meaning: str
    ranges: list[tuple[int, int]] | None = None


class ViewTable:
    """Writes the rows of one view, and reads what its last commit comes from."""

    def __init__(self, output: Output, name: str) -> None:
        """``name``: that of the view, with :data:`PARTS` behind it for its parts.

        Raises:
            StorageFault: its log is damaged.
        """
        files, place = OutputFiles(output), f"{VIEWS}/{name}"
        self.uri = files.uri(place)
        self._app = f"appliance-view-{name}"
        self._damaged = f"`appliance pipeline rebuild CONFIG.toml {name.partition('/')[0]}` makes it anew"
        self._table: Any = files.delta_table(place, damaged=self._damaged) if files.exists(f"{place}/{LOG}") else None

    @property
    def exists(self) -> bool:
        return self._table is not None

    def basis(self) -> Basis | None:
        """What its rows come from; None if its log does not say so."""
        for entry in self._table.history(HISTORY_MAX) if self.exists else ():
            if BASIS_KEY in entry:
                return msgspec.json.decode(entry[BASIS_KEY], type=Basis)
            if entry["operation"] not in ROWS_STAY:
                return None
        return None

    def fits(self, schema: pa.Schema) -> bool:
        """Whether its columns are these."""
        return self.exists and bool(pa.schema(self._table.schema().to_arrow()).equals(schema))

    def newest(self, most: int) -> list[dict[str, Any]]:
        """So many of the newest rows, in order of time."""
        return self.rows("true", most)[::-1]

    def rows(self, where: str, most: int) -> list[dict[str, Any]]:
        """So many of the newest rows that meet a condition in SQL, the newest first.

        Raises:
            BadValue: the condition is wrong.
        """
        answer = self._questions().ask(f"select * from {VIEW} where {where} order by start desc limit {most}")
        rows: list[dict[str, Any]] = answer.drop_columns(["date"]).to_pylist()
        return rows

    def starts(self, where: str, most: int) -> list[int]:
        """So many of the newest windows with rows that meet a condition, in microseconds since 1970, the newest first.

        Raises:
            BadValue: the condition is wrong.
        """
        start = micros("start")
        sql = f"select distinct {start} as start from {VIEW} where {where} order by 1 desc limit {most}"
        return [row["start"] for row in self._questions().rows(sql)]

    def _questions(self) -> Questions:
        return Questions(self._table, VIEW)

    @property
    def schema(self) -> pa.Schema:
        """The columns of its files: without ``date``, which is in their paths."""
        schema = pa.schema(self._table.schema().to_arrow())
        return schema.remove(schema.get_field_index("date"))

    def files(self, ranges: Ranges | None) -> list[str]:
        """The paths of the files that can have rows of these times; None: of all."""
        wanted = None if ranges is None else [_days(bounds) for bounds in ranges]
        return [
            path
            for path, day, _ in self.listed()
            if wanted is None or any(first <= str(day) <= last for first, last in wanted)
        ]

    def listed(self) -> list[tuple[str, str | None, int]]:
        """Path, day and number of rows of each file of the latest version."""
        if not self.exists or not self._table.file_uris():
            return []  # without files there are no columns
        actions = pa.table(self._table.get_add_actions(flatten=True))
        columns = (actions.column(name).to_pylist() for name in ("path", "partition.date", "num_records"))
        return [(f"{self.uri}/{file_of(path)}", day, count) for path, day, count in zip(*columns, strict=True)]

    @property
    def version(self) -> int:
        """The latest version; -1 before the first one."""
        return int(self._table.version()) if self.exists else -1

    def opened(self) -> Any:
        """The table as delta-rs has it."""
        return self._table

    def faults(self) -> AbstractContextManager[None]:
        """Where its files are read or written: what is wrong with them is raised with what to do."""
        return told_of(self.uri, self._damaged)

    def _done(self, basis: Basis) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={BASIS_KEY: msgspec.json.encode(basis).decode()},
            app_transactions=[Transaction(self._app, basis.version)],
        )

    def replace(self, rows: pa.RecordBatchReader, ranges: Ranges | None, basis: Basis) -> None:
        """Replace the rows of these times, or all rows and columns, in one transaction.

        Raises:
            StorageFault: a file of it is damaged or missing.
            Unavailable: somebody else has written it meanwhile, or there is no room.
        """
        with self.faults():
            self._replace(rows, ranges, basis)

    def _replace(self, rows: pa.RecordBatchReader, ranges: Ranges | None, basis: Basis) -> None:
        from deltalake import write_deltalake

        done = self._done(msgspec.structs.replace(basis, ranges=ranges and list(ranges)))
        if not self.exists:
            write_deltalake(
                self.uri,
                rows,
                partition_by=["date"],
                configuration=dict(CONFIGURATION),
                commit_properties=done,
                mode="error",
            )
        elif ranges is None:
            write_deltalake(self._table, rows, mode="overwrite", schema_mode="overwrite", commit_properties=done)
        elif ranges:
            where = " or ".join(map(_predicate, ranges))
            write_deltalake(self._table, rows, mode="overwrite", predicate=where, commit_properties=done)
        else:
            self._table.create_write_transaction([], "append", self._table.schema(), ["date"], commit_properties=done)

    def tidy(self) -> None:
        """Put small files together, and remove old ones, now and then."""
        if self.exists and self._table.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            with self.faults():
                self._table.update_incremental()
                self._table.optimize.compact()
                self._table.vacuum(1, dry_run=False, enforce_retention_duration=False)


def stored_views(output: Output) -> dict[str, Any]:
    """The tables of views by name, as data sets of Arrow; none in an object store."""
    logs = sorted((Path(output.path) / VIEWS).glob(f"*/{LOG}")) if not is_url(output.path) else []
    return {log.parent.name: ViewTable(output, log.parent.name).opened().to_pyarrow_dataset() for log in logs}


def remove_unreadable(output: Output, name: str) -> None:
    """Remove the table of a view, and that of its parts, whose log cannot be read: nothing can be committed to it."""
    for place in (f"{name}/{PARTS}", name):
        try:
            ViewTable(output, place)
        except FileNotPermitted:
            raise
        except StorageFault:
            shutil.rmtree(OutputFiles(output).uri(f"{VIEWS}/{place}"))


def _days(bounds: tuple[int, int]) -> tuple[str, str]:
    """The first and the last day with times between these."""
    first, last = (EPOCH + timedelta(microseconds=time_us) for time_us in (bounds[0], bounds[1] - 1))
    return f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"


def _predicate(bounds: tuple[int, int]) -> str:
    first, end = (EPOCH + timedelta(microseconds=time_us) for time_us in bounds)
    first_day, last_day = _days(bounds)
    return (
        f"(date >= '{first_day}' and date <= '{last_day}' and "
        f"start >= '{first:%Y-%m-%dT%H:%M:%S.%fZ}' and start < '{end:%Y-%m-%dT%H:%M:%S.%fZ}')"
    )
