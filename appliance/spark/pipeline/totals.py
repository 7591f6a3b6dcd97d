"""Computes aggregates as totals that only grow, in whatever order and however late lines arrive.

Each task adds up its records (a *partial*).  The driver merges the partials with the stored rows that they can change,
and replaces these with the result.  So no line is too late: a window has all lines that have arrived until now.  Only
with ``watermark_ms`` is it final at some time (``watermarks.py``).  The kinds of totals::

    kind         computed by                     error
    count        :class:`Sums`                   none
    errors       :class:`Sums`                   none
    sessions     ``sessions.py``                 none
    top          ``space_saving.py``             a bound in each row; nothing is lost while a window has few values
    distinct     ``sketches.py``                 bounds in each row, which hold with a probability of 95 %
    percentiles  ``sketches.py``                 likewise

``Sums`` also make two tables of the pipeline itself: ledger (parsed lines and dead letters) and audit (counted and
arrived messages).  Every table has the columns ``date`` (of the start, in UTC), ``start`` and ``end``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .columns import ERRORS
from .events import HOUR_US, dates
from .times import MICROS

COUNTED: Final = ("count", "errors")
PLACE: Final = {"date": pa.string(), "start": MICROS, "end": MICROS}


class Total(Protocol):
    """One table of totals.  ``by``: what rows are grouped by.  ``k``: how many rows of a window to publish, 0: all."""

    @property
    def name(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def k(self) -> int: ...

    @property
    def by(self) -> Mapping[str, pa.DataType]: ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of the stored table."""
        ...

    def partial(self, events: pa.Table) -> pa.Table:
        """The totals of these events."""
        ...

    def merge(self, partials: Sequence[pa.Table], stored: pa.Table | None = None) -> pa.Table:
        """Merge into one table, with a column ``changed``: more than 0 if a partial contributes to the row."""
        ...

    def finish(self, merged: pa.Table) -> pa.Table:
        """Convert the result of :meth:`merge` to the stored columns, in the same order of rows."""
        ...

    def reach(self, partial: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Intervals of time, in microseconds: stored rows that touch none of them stay as they are."""
        ...

    def earliest(self, lows: np.ndarray) -> np.ndarray:
        """The earliest start of rows that reach these times."""
        ...

    def affected(self, stored: pa.Table, partial: pa.Table) -> pa.Array:
        """For each stored row, whether merging the partial can change it."""
        ...

    def closes_us(self, rows: pa.Table) -> np.ndarray:
        """For each row of a partial, or merged or stored, from which time on no line can belong to it."""
        ...

    def ends_us(self, closes: np.ndarray) -> np.ndarray:
        """The column ``end`` of rows that close at these times."""
        ...


def floor(micros: np.ndarray, window_us: int) -> np.ndarray:
    return micros // window_us * window_us


def micros_of(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.cast(pa.int64()).to_numpy())


def times(micros: np.ndarray) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(MICROS)


def marked(table: pa.Table, changed: int) -> pa.Table:
    return table.append_column("changed", pa.array(np.full(len(table), changed, np.int64)))


def failed(events: pa.Table) -> pa.ChunkedArray:
    """1 for each event whose level is one of errors, else 0."""
    return pc.fill_null(pc.is_in(events.column("level"), ERRORS), False).cast(pa.int64())


def without_nulls(events: pa.Table, names: Sequence[str]) -> pa.Table:
    for name in names:
        if events.column(name).null_count:
            events = events.filter(pc.is_valid(events.column(name)))
    return events


def group_numbers(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    """A number for each row: the same number where these columns have the same values."""
    numbers = np.zeros(len(table), np.int64)
    for name in names:
        codes = pc.dictionary_encode(table.column(name).combine_chunks(), null_encoding="encode")
        numbers = numbers * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
        numbers = np.unique(numbers, return_inverse=True)[1]
    return numbers


def summed(rows: pa.Table, keys: Sequence[str], names: Sequence[str]) -> pa.Table:
    """One row for each combination of keys, with the sums of the other columns."""
    found = rows.group_by(list(keys), use_threads=False).aggregate([(name, "sum") for name in names])
    return found.rename_columns({f"{name}_sum": name for name in names}).select([*keys, *names])


class Windowed:
    """What totals of fixed windows share: rows are of one window, and only lines of this window change them."""

    window_us: int

    def reach(self, partial: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        starts = np.unique(micros_of(partial.column("start")))
        return starts, starts

    def earliest(self, lows: np.ndarray) -> np.ndarray:
        return lows

    def affected(self, stored: pa.Table, partial: pa.Table) -> pa.Array:
        return pc.is_in(stored.column("start"), pc.unique(partial.column("start")))

    def closes_us(self, rows: pa.Table) -> np.ndarray:
        return micros_of(rows.column("start")) + self.window_us

    def ends_us(self, closes: np.ndarray) -> np.ndarray:
        return closes

    def placed(self, merged: pa.Table) -> dict[str, Any]:
        """The columns that all totals have."""
        micros = micros_of(merged.column("start"))
        return {"date": dates(micros), "start": merged.column("start"), "end": times(micros + self.window_us)}


@dataclass
class Sums(Windowed):
    """Sums by window and columns.  ``rated``: with the rate of errors."""

    name: str
    window_us: int
    by: Mapping[str, pa.DataType]
    measures: tuple[str, ...] = COUNTED
    rated: bool = False
    topic: str = ""
    k: int = 0

    @property
    def schema(self) -> pa.Schema:
        columns = PLACE | dict(self.by) | dict.fromkeys(self.measures, pa.int64())
        if self.rated:
            columns["error_rate"] = pa.float64()
        return pa.schema(list(columns.items()))

    def partial(self, events: pa.Table) -> pa.Table:
        measures = {"count": pa.array(np.ones(len(events), np.int64)), "errors": failed(events)}
        columns = {name: events.column(name) for name in self.by}
        return self.sum(micros_of(events.column("time")), columns, {name: measures[name] for name in self.measures})

    def sum(self, micros: np.ndarray, columns: Mapping[str, Any], measures: Mapping[str, Any]) -> pa.Table:
        """Rows at these times, with the columns ``by`` and measures; a measure that is left out is 0."""
        nothing = pa.array(np.zeros(len(micros), np.int64))
        named = {name: measures.get(name, nothing) for name in self.measures}
        rows = pa.table({"start": times(floor(micros, self.window_us)), **columns, **named})
        return summed(rows, ["start", *self.by], self.measures)

    def merge(self, partials: Sequence[pa.Table], stored: pa.Table | None = None) -> pa.Table:
        columns = ["start", *self.by, *self.measures]
        parts = [marked(part.select(columns), 1) for part in partials]
        if stored is not None:
            parts.append(marked(stored.select(columns), 0))
        merged = summed(pa.concat_tables(parts), ["start", *self.by], [*self.measures, "changed"])
        return merged.sort_by([(name, "ascending") for name in ("start", *self.by)])

    def finish(self, merged: pa.Table) -> pa.Table:
        columns = {name: merged.column(name) for name in (*self.by, *self.measures)} | self.placed(merged)
        if self.rated:
            columns["error_rate"] = pc.divide(merged.column("errors").cast(pa.float64()), merged.column("count"))
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)


def own_totals(audit_window_ms: int) -> dict[str, Sums]:
    """The pipeline's own tables.

    ledger: the parsed lines and dead letters of each topic and hour; parser "" = not parsed, reason "" = parsed.
    """
    text = pa.string()
    lines = Sums("ledger", HOUR_US, {"topic": text, "parser": text, "reason": text}, ("rows", "bytes"))
    audit = Sums("audit", audit_window_ms * 1000, {"topic": text}, ("arrived", "counted"))
    return {"ledger": lines, "audit": audit}
