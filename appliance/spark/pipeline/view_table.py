"""Writes the table of a view, with what its rows come from in each commit; ``views`` explains how that is used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

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
        from deltalake import DeltaTable

        self.uri = OutputFiles(output).uri(f"{VIEWS}/{name}")
        self._app = f"appliance-view-{name}"
        self._table: Any = DeltaTable(self.uri) if (Path(self.uri) / LOG).exists() else None

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
        actions = pa.table(self._table.get_add_actions(flatten=True))
        days = actions.column("partition.date").to_pylist() if len(actions) else []
        paths = zip(actions.column("path").to_pylist(), days, strict=True) if len(actions) else ()
        wanted = None if ranges is None else [_days(bounds) for bounds in ranges]
        return [
            f"{self.uri}/{file_of(path)}"
            for path, day in paths
            if wanted is None or any(first <= str(day) <= last for first, last in wanted)
        ]

    @property
    def version(self) -> int:
        """The latest version; -1 before the first one."""
        return int(self._table.version()) if self.exists else -1

    def _done(self, basis: Basis) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={BASIS_KEY: msgspec.json.encode(basis).decode()},
            app_transactions=[Transaction(self._app, basis.version)],
        )

    def replace(self, rows: pa.RecordBatchReader, ranges: Ranges | None, basis: Basis) -> None:
        """Replace the rows of these times, or all rows and columns, in one transaction."""
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
            self._table.update_incremental()
            self._table.optimize.compact()
            self._table.vacuum(1, dry_run=False, enforce_retention_duration=False)


def stored_views(output: Output) -> dict[str, Any]:
    """The tables of views by name, as data sets of Arrow; none in an object store."""
    from deltalake import DeltaTable

    logs = sorted((Path(output.path) / VIEWS).glob(f"*/{LOG}")) if not is_url(output.path) else []
    return {log.parent.name: DeltaTable(str(log.parent)).to_pyarrow_dataset() for log in logs}


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
