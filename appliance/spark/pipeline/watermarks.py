"""Says when a window is final: an aggregate with ``watermark_ms``.

The *watermark* of an aggregate is the newest time of any line so far, less ``watermark_ms``.  A line from the future
does not count for more than the time at which it arrived.  A window is final when the watermark of a micro-batch has
reached its end, a session when it has reached its end and the gap.  Then the row gets ``final`` = true, is published
once more, and does not change any more: lines that come later are left out of the aggregate, and counted as *late*.
They are in the events all the same::

    stored          newest time N0        lines are late if their window ends at or before N0 - watermark_ms
    micro-batch     newest time N1 >= N0  rows are final if they end at or before N1 - watermark_ms

``newest`` is a table of the pipeline, with one row for each such aggregate: ``end`` is N, ``late`` the number of late
lines.  It is changed after the aggregates, so a micro-batch that is repeated finds the same N0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .table_files import Part
from .totals import PLACE, Total, marked, micros_of, times

NEWEST: Final = "newest"
DAY: Final = "1970-01-01"
"""The date of all rows of ``newest``, so that they are in one file."""


@dataclass(frozen=True)
class Watermarked:
    """A total with the column ``final``; ``before_us``, ``after_us``: the watermarks of this micro-batch."""

    total: Total
    delay_us: int
    before_us: int = 0
    after_us: int = 0

    @property
    def name(self) -> str:
        return self.total.name

    @property
    def topic(self) -> str:
        return self.total.topic

    @property
    def k(self) -> int:
        return self.total.k

    @property
    def by(self) -> Mapping[str, pa.DataType]:
        return self.total.by

    @property
    def schema(self) -> pa.Schema:
        return self.total.schema.append(pa.field("final", pa.bool_()))

    def at(self, before_us: int, newest_us: int) -> Watermarked:
        """As it is in a micro-batch: the newest times before it, and with it."""
        return replace(self, before_us=before_us - self.delay_us, after_us=newest_us - self.delay_us)

    def on_time(self, partial: pa.Table) -> pa.Table:
        """The rows whose windows are not final."""
        return partial.filter(pa.array(self.total.closes_us(partial) > self.before_us))

    def partial(self, events: pa.Table) -> pa.Table:
        return self.total.partial(events)

    def merge(self, partials: Sequence[pa.Table], stored: pa.Table | None = None) -> pa.Table:
        merged = self.total.merge(partials, stored)
        closes = self.total.closes_us(merged)
        changed = micros_of(merged.column("changed")) + ((closes > self.before_us) & (closes <= self.after_us))
        return merged.set_column(merged.schema.get_field_index("changed"), "changed", pa.array(changed))

    def finish(self, merged: pa.Table) -> pa.Table:
        final = pa.array(self.total.closes_us(merged) <= self.after_us)
        return self.total.finish(merged).append_column("final", final)

    def reach(self, partial: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Also what becomes final: what closes between the two watermarks."""
        lows, highs = self.total.reach(partial)
        if self.after_us <= self.before_us:
            return lows, highs
        closing = self.total.ends_us(np.array([self.before_us, self.after_us]))
        return np.append(lows, closing[0]), np.append(highs, closing[1])

    def earliest(self, lows: np.ndarray) -> np.ndarray:
        return self.total.earliest(lows)

    def affected(self, stored: pa.Table, partial: pa.Table) -> pa.Array:
        closes = self.total.closes_us(stored)
        closing = pa.array((closes > self.before_us) & (closes <= self.after_us))
        open_still = pa.array(closes > self.before_us)
        return pc.or_(closing, pc.and_(self.total.affected(stored, partial), open_still))

    def closes_us(self, rows: pa.Table) -> np.ndarray:
        return self.total.closes_us(rows)

    def ends_us(self, closes: np.ndarray) -> np.ndarray:
        return self.total.ends_us(closes)


@dataclass(frozen=True)
class Newest:
    """The newest time of all lines, for each aggregate that needs it."""

    aggregates: tuple[str, ...]
    name: str = NEWEST
    topic: str = ""
    k: int = 0

    @property
    def by(self) -> Mapping[str, pa.DataType]:
        return {"aggregate": pa.string()}

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*(PLACE | dict(self.by)).items(), ("late", pa.int64())])

    def partial(self, events: pa.Table) -> pa.Table:
        if not len(events):
            return self._rows(np.zeros(0, np.int64))
        seen = np.minimum(micros_of(events.column("time")), micros_of(events.column("received")))
        return self._rows(np.full(len(self.aggregates), seen.max()))

    def _rows(self, newest: np.ndarray) -> pa.Table:
        count = len(newest)
        names = pa.array(self.aggregates[:count], pa.string())
        return pa.table(
            {"end": times(newest), "aggregate": names, "late": pa.array(np.zeros(count, np.int64), pa.int64())}
        )

    def with_late(self, partial: pa.Table, late: Mapping[str, int]) -> pa.Table:
        counts = pa.array([late.get(name, 0) for name in partial.column("aggregate").to_pylist()], pa.int64())
        return partial.set_column(partial.schema.get_field_index("late"), "late", counts)

    def merge(self, partials: Sequence[pa.Table], stored: pa.Table | None = None) -> pa.Table:
        columns = ["end", "aggregate", "late"]
        parts = [marked(part.select(columns), 1) for part in partials]
        if stored is not None:
            parts.append(marked(stored.select(columns), 0))
        merged = pa.concat_tables(parts).group_by("aggregate", use_threads=False)
        found = merged.aggregate([("end", "max"), ("late", "sum"), ("changed", "sum")])
        names = {"end_max": "end", "late_sum": "late", "changed_sum": "changed"}
        return found.rename_columns([names.get(name, name) for name in found.column_names])

    def finish(self, merged: pa.Table) -> pa.Table:
        count = len(merged)
        columns: dict[str, Any] = {name: merged.column(name) for name in ("end", "aggregate", "late")}
        columns |= {"date": pa.array([DAY] * count, pa.string()), "start": times(np.zeros(count, np.int64))}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def reach(self, partial: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)

    def earliest(self, lows: np.ndarray) -> np.ndarray:
        return lows

    def affected(self, stored: pa.Table, partial: pa.Table) -> pa.Array:
        return pa.array(np.ones(len(stored), bool))

    def closes_us(self, rows: pa.Table) -> np.ndarray:
        return micros_of(rows.column("end"))

    def ends_us(self, closes: np.ndarray) -> np.ndarray:
        return closes


class Watermarks:
    """Applies the watermarks of all aggregates to the partials of a micro-batch."""

    def __init__(self, totals: Mapping[str, Total], events: pa.Schema) -> None:
        self._totals = totals
        self._nothing = events.empty_table()

    def applied(self, partials: Mapping[str, pa.Table], store: Store) -> list[tuple[Total, pa.Table]]:
        """Totals with what is to be merged into them: without late lines, and ``newest`` last."""
        newest = partials.get(NEWEST)
        if newest is None:
            return [(self._totals[name], partials[name]) for name in sorted(partials)]
        before = max((part.last for part in store.parts(NEWEST, [DAY]) if part.rows), default=0)
        after = max(before, int(micros_of(newest.column("end")).max()))
        late: dict[str, int] = {}
        found: list[tuple[Total, pa.Table]] = []
        for name in sorted(self._totals):
            total: Total = self._totals[name]
            partial = partials.get(name)
            if isinstance(total, Watermarked):
                # Also without lines of its own: time goes on, and what is open may become final.
                partial = total.partial(self._nothing) if partial is None else partial
                total = total.at(before, after)
                kept = total.on_time(partial)
                late[name] = pc.sum(partial.column("count")).as_py() or 0
                late[name] -= pc.sum(kept.column("count")).as_py() or 0
                partial = kept
            if partial is not None and not isinstance(total, Newest):
                found.append((total, partial))
        last = self._totals[NEWEST]
        assert isinstance(last, Newest), "it has this name"
        return [*found, (last, last.with_late(newest, late))]


class Store(Protocol):
    """What is needed of it."""

    def parts(self, table: str, days: Sequence[str] | None = None) -> list[Part]: ...
