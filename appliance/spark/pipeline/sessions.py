"""Computes sessions: intervals of activity of one owner, with less than a gap between neighbouring lines.

A session ends where its owner is silent for ``gap``, and at each multiple of ``session`` since 1970-01-01 UTC (with the
default of seven days: midnight before each Thursday).  So it is at most ``session`` long.  These ends depend only on
the lines, and not on the order in which they come or on micro-batches.  A limit counted from the first line of a
session would depend on it: an earlier line that comes late would move all ends behind it, and the stored sums cannot be
divided again.

Two sessions are joined if they are in the same multiple of ``session`` and less than ``gap`` apart.  Lines of a session
are nowhere further apart than that, so joining gives the sessions that all lines at once would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .events import dates
from .totals import COUNTED, PLACE, failed, floor, group_numbers, marked, micros_of, times, without_nulls


@dataclass
class Sessions:
    """Sessions of each combination of values of ``by``.  Events with a null there belong to none."""

    name: str
    by: Mapping[str, pa.DataType]
    gap_us: int
    session_us: int
    topic: str = ""
    k: int = 0

    @property
    def schema(self) -> pa.Schema:
        columns = PLACE | dict(self.by) | dict.fromkeys(COUNTED, pa.int64())
        return pa.schema([*columns.items(), ("seconds", pa.float64())])

    def partial(self, events: pa.Table) -> pa.Table:
        events = without_nulls(events, list(self.by))
        columns: dict[str, Any] = {"start": events.column("time"), "end": events.column("time")}
        columns |= {name: events.column(name) for name in self.by}
        columns |= {"count": pa.array(np.ones(len(events), np.int64)), "errors": failed(events)}
        return self._joined(marked(pa.table(columns), 1)).drop_columns(["changed"])

    def merge(self, partials: Sequence[pa.Table], stored: pa.Table | None = None) -> pa.Table:
        columns = ["start", "end", *self.by, *COUNTED]
        parts = [marked(part.select(columns), 1) for part in partials]
        if stored is not None:
            parts.append(marked(stored.select(columns), 0))
        return self._joined(pa.concat_tables(parts))

    def _joined(self, rows: pa.Table) -> pa.Table:
        """Join what belongs together; the result is in order of time."""
        if not len(rows):
            return rows
        owners = group_numbers(rows, list(self.by))
        starts, ends = micros_of(rows.column("start")), micros_of(rows.column("end"))
        order = np.lexsort((starts, owners))
        owners, starts, ends = owners[order], starts[order], ends[order]
        cells = starts // self.session_us
        fresh = np.ones(len(rows), bool)
        fresh[1:] = (owners[1:] != owners[:-1]) | (cells[1:] != cells[:-1])
        reached = _highest_so_far(ends, np.cumsum(fresh) - 1)
        fresh[1:] |= starts[1:] - reached[:-1] >= self.gap_us
        first = np.flatnonzero(fresh)
        last = np.append(first[1:], len(rows)) - 1
        joined = {"start": times(starts[first]), "end": times(reached[last])}
        taken = rows.select(list(self.by)).take(pa.array(order[first]))
        joined |= {name: taken.column(name) for name in self.by}
        for name in (*COUNTED, "changed"):
            joined[name] = pa.array(np.add.reduceat(micros_of(rows.column(name))[order], first))
        return pa.table(joined).sort_by([(name, "ascending") for name in ("start", *self.by)])

    def finish(self, merged: pa.Table) -> pa.Table:
        start, end = (micros_of(merged.column(name)) for name in ("start", "end"))
        columns = {name: merged.column(name) for name in ("start", "end", *self.by, *COUNTED)}
        columns |= {"date": dates(start), "seconds": pa.array((end - start) / 1e6)}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def reach(self, partial: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        starts, ends = (micros_of(partial.column(name)) for name in ("start", "end"))
        return np.maximum(starts - self.gap_us, floor(starts, self.session_us)), ends + self.gap_us

    def earliest(self, lows: np.ndarray) -> np.ndarray:
        return floor(lows, self.session_us)

    def closes_us(self, rows: pa.Table) -> np.ndarray:
        return micros_of(rows.column("end")) + self.gap_us

    def ends_us(self, closes: np.ndarray) -> np.ndarray:
        return closes - self.gap_us

    def affected(self, stored: pa.Table, partial: pa.Table) -> pa.Array:
        """Those of the same owners: few enough to look at each."""
        if len(self.by) == 1:
            (name,) = self.by
            return pc.is_in(stored.column(name), pc.unique(partial.column(name)))
        names = list(self.by)
        owners = group_numbers(pa.concat_tables([stored.select(names), partial.select(names)]), names)
        return pa.array(np.isin(owners[: len(stored)], owners[len(stored) :]))


def _highest_so_far(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The running maximum within each group; ``groups`` are numbered in order.

    Ranks stand in for the values, so that group and value fit into one integer.
    """
    distinct, ranks = np.unique(values, return_inverse=True)
    highest = np.maximum.accumulate(groups * len(distinct) + ranks)
    return np.asarray(distinct[highest - groups * len(distinct)])
