"""Computes aggregates as totals that only grow: exact, in whatever order and however late lines arrive.

Each task adds up its records (a *partial*).  The driver merges the partials with the stored totals of the same dates,
and replaces these with the result.  So there is no watermark and no line is too late: a window has all lines that have
arrived until now.  The price: nothing signals that a window is final.

    Sums        counts by window and columns: aggregates of kinds count, errors and top, and two tables of the
                pipeline itself: ledger (parsed lines and dead letters) and audit (counted and arrived messages)
    Sessions    intervals of activity, joined while the silence between them is shorter than the gap

Every table has the columns ``date`` (of the start, in UTC; totals are replaced date by date), ``start`` and ``end``.

Sums of kind top keep the ``keep`` heaviest values of a window.  The others are dropped, so a value that comes back
later is counted too low.  A session ends at ``session_ms`` at the latest, so sessions that can join those of a date are
in the neighbouring dates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .events import DAY_US, dates
from .parsers import ERRORS
from .settings import Aggregate, Settings
from .times import MICROS

COUNTED: Final = ("count", "errors")
PLACE: Final = {"date": pa.string(), "start": MICROS, "end": MICROS}


class Total(Protocol):
    """One table of totals."""

    name: str

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

    def touched(self, partial: pa.Table) -> list[str]:
        """The dates whose totals must be merged with the partial."""
        ...


def floor(micros: np.ndarray, window_us: int) -> np.ndarray:
    return micros // window_us * window_us


def micros_of(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.cast(pa.int64()).to_numpy())


def times(micros: np.ndarray) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(MICROS)


@dataclass
class Sums:
    """Sums.  ``keep``: most rows of a window; ``rated``: with the rate of errors; ``k``: how many to publish."""

    name: str
    window_us: int
    by: Mapping[str, pa.DataType]
    measures: tuple[str, ...] = COUNTED
    keep: int = 0
    k: int = 0
    rated: bool = False
    topic: str = ""

    @property
    def schema(self) -> pa.Schema:
        columns = PLACE | dict(self.by) | dict.fromkeys(self.measures, pa.int64())
        if self.keep:
            columns["rank"] = pa.int64()
        if self.rated:
            columns["error_rate"] = pa.float64()
        return pa.schema(list(columns.items()))

    def partial(self, events: pa.Table) -> pa.Table:
        if self.keep:  # null is not a value
            for name in self.by:
                events = events.filter(pc.is_valid(events.column(name)))
        failed = pc.fill_null(pc.is_in(events.column("level"), ERRORS), False).cast(pa.int64())
        measures = {"count": pa.array(np.ones(len(events), np.int64)), "errors": failed}
        columns = {name: events.column(name) for name in self.by}
        return self.sum(micros_of(events.column("time")), columns, {name: measures[name] for name in self.measures})

    def sum(self, micros: np.ndarray, columns: Mapping[str, Any], measures: Mapping[str, Any]) -> pa.Table:
        """Rows at these times, with the columns ``by`` and measures; a measure that is left out is 0."""
        nothing = pa.array(np.zeros(len(micros), np.int64))
        named = {name: measures.get(name, nothing) for name in self.measures}
        return self._grouped(pa.table({"start": times(floor(micros, self.window_us)), **columns, **named}))

    def _grouped(self, rows: pa.Table, more: tuple[str, ...] = ()) -> pa.Table:
        keys, summed = ["start", *self.by], [*self.measures, *more]
        found = rows.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in summed])
        return found.rename_columns({f"{name}_sum": name for name in summed}).select([*keys, *summed])

    def touched(self, partial: pa.Table) -> list[str]:
        return sorted(set(dates(micros_of(partial.column("start"))).to_pylist()))

    def merge(self, partials: Sequence[pa.Table], stored: pa.Table | None = None) -> pa.Table:
        columns = ["start", *self.by, *self.measures]
        parts = [_marked(part.select(columns), 1) for part in partials]
        if stored is not None and len(stored):
            parts.append(_marked(stored.select(columns), 0))
        merged = self._grouped(pa.concat_tables(parts), ("changed",))
        order = [("start", "ascending")]
        if self.keep:
            order.append(("count", "descending"))
        merged = merged.sort_by([*order, *((name, "ascending") for name in self.by)])
        return merged.filter(pa.array(_ranks(merged) <= self.keep)) if self.keep else merged

    def finish(self, merged: pa.Table) -> pa.Table:
        micros = micros_of(merged.column("start"))
        columns = {name: merged.column(name) for name in ("start", *self.by, *self.measures)}
        columns |= {"date": dates(micros), "end": times(micros + self.window_us)}
        if self.keep:
            columns["rank"] = pa.array(_ranks(merged))
        if self.rated:
            columns["error_rate"] = pc.divide(merged.column("errors").cast(pa.float64()), merged.column("count"))
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)


def _marked(table: pa.Table, changed: int) -> pa.Table:
    return table.append_column("changed", pa.array(np.full(len(table), changed, np.int64)))


def _ranks(table: pa.Table) -> np.ndarray:
    """1, 2, 3 within each window of a sorted table."""
    starts = micros_of(table.column("start"))
    index = np.arange(len(starts))
    fresh = np.append(True, starts[1:] != starts[:-1]) if len(starts) else np.zeros(0, bool)
    return index - np.maximum.accumulate(np.where(fresh, index, 0)) + 1


@dataclass
class Sessions:
    """Sessions of each combination of values of ``by``.  Events with a null there belong to none."""

    name: str
    by: Mapping[str, pa.DataType]
    gap_us: int
    session_us: int
    topic: str = ""
    k: int = field(default=0, init=False)

    @property
    def schema(self) -> pa.Schema:
        columns = PLACE | dict(self.by) | dict.fromkeys(COUNTED, pa.int64())
        return pa.schema([*columns.items(), ("seconds", pa.float64())])

    def partial(self, events: pa.Table) -> pa.Table:
        for name in self.by:
            events = events.filter(pc.is_valid(events.column(name)))
        micros = micros_of(events.column("time"))
        whose = np.zeros(len(micros), np.int64)
        for name in self.by:
            codes = events.column(name).combine_chunks().dictionary_encode()
            whose = whose * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
        order = np.lexsort((micros, whose))
        micros, whose = micros[order], whose[order]
        fresh = np.ones(len(micros), bool)
        fresh[1:] = (whose[1:] != whose[:-1]) | (np.diff(micros) >= self.gap_us)
        if len(micros):
            begun = micros[fresh][np.cumsum(fresh) - 1]
            fresh[1:] |= np.diff((micros - begun) // self.session_us) != 0
        first = np.flatnonzero(fresh)
        last = np.append(first[1:], len(micros)) - 1 if len(first) else first
        failed = pc.fill_null(pc.is_in(events.column("level"), ERRORS), False).to_numpy()[order]
        rows = events.select(list(self.by)).take(pa.array(order[first]))
        errors = np.add.reduceat(failed.astype(np.int64), first) if len(first) else np.zeros(0, np.int64)
        columns = {"start": times(micros[first]), "end": times(micros[last])}
        counted = {"count": pa.array(last - first + 1), "errors": pa.array(errors)}
        return pa.table({**columns, **{name: rows.column(name) for name in self.by}, **counted})

    def touched(self, partial: pa.Table) -> list[str]:
        days = set(np.unique(micros_of(partial.column("start")) // DAY_US).tolist())
        near = {day + step for day in days for step in (-1, 0, 1)}
        return sorted(str(date(1970, 1, 1) + timedelta(days=day)) for day in near)

    def merge(self, partials: Sequence[pa.Table], stored: pa.Table | None = None) -> pa.Table:
        columns = ["start", "end", *self.by, *COUNTED]
        found: dict[tuple[Any, ...], list[list[int]]] = {}
        parts = [(part, 1) for part in partials] + ([(stored, 0)] if stored is not None else [])
        for part, changed in parts:
            starts, ends = (micros_of(part.column(name)).tolist() for name in ("start", "end"))
            whose = zip(*(part.column(name).to_pylist() for name in self.by), strict=True)
            counts, errors = (part.column(name).to_pylist() for name in COUNTED)
            for who, *numbers in zip(whose, starts, ends, counts, errors, strict=True):
                found.setdefault(who, []).append([*numbers, changed])
        rows = [(who, *row) for who, sessions in sorted(found.items()) for row in self._joined(sessions)]
        named: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * 6
        owners: list[Any] = list(zip(*named[0], strict=True)) if rows else [()] * len(self.by)
        table = {"start": times(np.array(named[1], np.int64)), "end": times(np.array(named[2], np.int64))}
        for (name, kind), values in zip(self.by.items(), owners, strict=True):
            table[name] = pa.array(values, kind)
        for name, values in zip((*COUNTED, "changed"), named[3:], strict=True):
            table[name] = pa.array(values, pa.int64())
        return pa.table(table).select([*columns, "changed"])

    def _joined(self, sessions: list[list[int]]) -> list[list[int]]:
        sessions.sort()
        joined = [sessions[0]]
        for start, end, count, errors, changed in sessions[1:]:
            last = joined[-1]
            if start - last[1] < self.gap_us and max(end, last[1]) - last[0] < self.session_us:
                last[1] = max(last[1], end)
                last[2] += count
                last[3] += errors
                last[4] |= changed
            else:
                joined.append([start, end, count, errors, changed])
        return joined

    def finish(self, merged: pa.Table) -> pa.Table:
        start, end = (micros_of(merged.column(name)) for name in ("start", "end"))
        columns = {name: merged.column(name) for name in ("start", "end", *self.by, *COUNTED)}
        columns |= {"date": dates(start), "seconds": pa.array((end - start) / 1e6)}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)


def build(settings: Settings, schema: pa.Schema) -> dict[str, Sums | Sessions]:
    """All totals of a pipeline whose events have this schema: its aggregates, ledger and audit.

    ledger: the parsed lines and dead letters of each topic; parser "" = not parsed, reason "" = parsed.
    """
    text = pa.string()
    lines = Sums("ledger", DAY_US, {"topic": text, "parser": text, "reason": text}, ("rows", "bytes"))
    audit = Sums("audit", settings.audit.window_ms * 1000, {"topic": text}, ("arrived", "counted"))
    wanted = {each.name: {name: schema.field(name).type for name in each.by} for each in settings.aggregate}
    aggregates = {each.name: _total(each, wanted[each.name]) for each in settings.aggregate}
    return {**aggregates, "ledger": lines, "audit": audit}


def _total(settings: Aggregate, by: Mapping[str, pa.DataType]) -> Sums | Sessions:
    if settings.kind == "sessions":
        return Sessions(settings.name, by, settings.gap_ms * 1000, settings.session_ms * 1000, settings.topic)
    top = settings.kind == "top"
    return Sums(
        settings.name,
        settings.window_ms * 1000,
        by,
        COUNTED if settings.kind != "count" else ("count",),
        keep=settings.keep if top else 0,
        k=settings.k if top else 0,
        rated=settings.kind == "errors",
        topic=settings.topic,
    )
