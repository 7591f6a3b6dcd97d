"""Counts the heaviest values of each window with bounded memory and a stated error: Space-Saving.

At most ``keep`` values of a window have a row.  The state of a window is its rows and one number, ``omitted_max``::

    count         never less than the true count
    count_error   at most so much is ``count`` too high: count - count_error <= true count <= count
    omitted_max   no value without a row has a higher true count

``omitted_max`` is 0, and all counts are exact, until a window has had more than ``keep`` values.  It never exceeds the
lines of the window divided by ``keep``, however the lines are divided among tasks and micro-batches, and in whatever
order they come.  So every value with more lines than that is in the table.  ``errors`` (lines with an error level) are
counted only while a value has a row.

Merging adds up the counts of a value.  For a summary that has no row of the value, its ``omitted_max`` is added to both
count and error, since the value can have had as many lines there.  Then the ``keep`` highest counts stay, and
``omitted_max`` becomes the highest of what was dropped.

Sources: Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data streams" (2005);
the merge and its bound: Agarwal et al., "Mergeable summaries" (2012).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .totals import PLACE, Windowed, failed, floor, marked, micros_of, summed, times, without_nulls

STATE: Final = ("count", "errors", "count_error", "omitted_max")


@dataclass
class Heaviest(Windowed):
    """The heaviest combinations of values of ``by``; null is not a value.  ``k``: how many to publish."""

    name: str
    window_us: int
    by: Mapping[str, pa.DataType]
    keep: int
    k: int
    topic: str = ""

    @property
    def schema(self) -> pa.Schema:
        columns = PLACE | dict(self.by) | dict.fromkeys((*STATE, "rank"), pa.int64())
        return pa.schema(list(columns.items()))

    def partial(self, events: pa.Table) -> pa.Table:
        events = without_nulls(events, list(self.by))
        nothing = np.zeros(len(events), np.int64)
        columns: dict[str, Any] = {"start": times(floor(micros_of(events.column("time")), self.window_us))}
        columns |= {name: events.column(name) for name in self.by}
        columns |= {"count": pa.array(nothing + 1), "errors": failed(events)}
        exact = summed(pa.table(columns), ["start", *self.by], ["count", "errors"])
        for name in ("count_error", "omitted_max"):
            exact = exact.append_column(name, pa.array(nothing[: len(exact)]))
        return self._pruned(exact.append_column("changed", pa.array(nothing[: len(exact)]))).drop_columns(["changed"])

    def merge(self, partials: Sequence[pa.Table], stored: pa.Table | None = None) -> pa.Table:
        columns = ["start", *self.by, *STATE]
        parts = [marked(part.select(columns), 1) for part in partials]
        if stored is not None:
            parts.append(marked(stored.select(columns), 0))
        starts, floors = _floors(parts)
        rows = summed(pa.concat_tables(parts), ["start", *self.by], [*STATE, "changed"])
        floor_of_row = floors[np.searchsorted(starts, micros_of(rows.column("start")))]
        absent = floor_of_row - micros_of(rows.column("omitted_max"))  # of the summaries without a row of the value
        for name, numbers in (
            ("count", micros_of(rows.column("count")) + absent),
            ("count_error", micros_of(rows.column("count_error")) + absent),
            ("omitted_max", floor_of_row),
            ("changed", micros_of(rows.column("changed")) + (absent > 0)),
        ):
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(numbers))
        return self._pruned(rows)

    def _pruned(self, rows: pa.Table) -> pa.Table:
        """The ``keep`` highest counts of each window, in order."""
        order = [("start", "ascending"), ("count", "descending"), *((name, "ascending") for name in self.by)]
        rows = rows.sort_by(order)
        ranks = _ranks(rows)
        if not (ranks > self.keep).any():
            return rows
        starts, counts = micros_of(rows.column("start")), micros_of(rows.column("count"))
        dropped = ranks == self.keep + 1  # the highest that goes
        floors = micros_of(rows.column("omitted_max")).copy()
        place = np.searchsorted(starts[dropped], starts)
        found = np.append(starts[dropped], -1)[place] == starts
        floors[found] = np.maximum(floors[found], counts[dropped][place[found]])
        rows = rows.set_column(rows.schema.get_field_index("omitted_max"), "omitted_max", pa.array(floors))
        return rows.filter(pa.array(ranks <= self.keep))

    def finish(self, merged: pa.Table) -> pa.Table:
        columns = {name: merged.column(name) for name in (*self.by, *STATE)} | self.placed(merged)
        columns["rank"] = pa.array(_ranks(merged))
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)


def _floors(parts: Sequence[pa.Table]) -> tuple[np.ndarray, np.ndarray]:
    """The windows, in order, and for each the sum of ``omitted_max`` of the parts that have it."""
    each = [part.group_by("start", use_threads=False).aggregate([("omitted_max", "max")]) for part in parts]
    found = pa.concat_tables(each).group_by("start", use_threads=False).aggregate([("omitted_max_max", "sum")])
    found = found.sort_by("start")
    return micros_of(found.column("start")), micros_of(found.column("omitted_max_max_sum"))


def _ranks(table: pa.Table) -> np.ndarray:
    """1, 2, 3 within each window of a sorted table."""
    starts = micros_of(table.column("start"))
    index = np.arange(len(starts))
    fresh = np.append(True, starts[1:] != starts[:-1]) if len(starts) else np.zeros(0, bool)
    return index - np.maximum.accumulate(np.where(fresh, index, 0)) + 1


class Ranking(NamedTuple):
    """Rows, the heaviest first.  No value without a row has a count above ``omitted_max``."""

    rows: list[dict[str, Any]]
    omitted_max: int


def heaviest_of_all(table: pa.Table, by: Sequence[str], most: int) -> Ranking:
    """The heaviest values over all windows of a stored table.

    A value can have had ``omitted_max`` lines in each window in which it has no row.
    """
    _, floors = _floors([table])
    rows = summed(table, by, STATE)
    absent = floors.sum() - micros_of(rows.column("omitted_max"))
    for name in ("count", "count_error"):
        numbers = pa.array(micros_of(rows.column(name)) + absent)
        rows = rows.set_column(rows.schema.get_field_index(name), name, numbers)
    order = [("count", "descending"), *((name, "ascending") for name in by)]
    listed = rows.take(pc.select_k_unstable(rows, most, sort_keys=order))
    left = np.sort(micros_of(rows.column("count")))
    beyond = int(left[-most - 1]) if len(left) > most else 0
    return Ranking(listed.drop_columns(["omitted_max"]).to_pylist(), max(int(floors.sum()), beyond))
