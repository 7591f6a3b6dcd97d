"""Divides a table of totals into *parts*, so that a micro-batch rewrites a few of them and not the table.

A part is a file.  It has rows of one date, whose ``start`` lies in a range: from its own lowest one to that of the
next part of the date.  It has at most :data:`PART_ROWS_MAX` rows; what does not fit goes to new parts.  A table with
few rows has one part for each date, and a large one is changed in time that does not depend on its size: a micro-batch
with lines of the last minutes reads and writes the parts of the last minutes.

:func:`change` reads the parts that can hold rows which the partial changes: their times touch those of the partial
(:meth:`~.totals.Total.reach`).  It merges these rows, puts each result into the part of its ``start``, and replaces the
parts whose rows are not the same any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .events import DAY_US
from .table_files import Change, Part
from .totals import Total, micros_of

PART_ROWS_MAX: Final = 50_000
Read = Callable[[Sequence[Part]], pa.Table | None]


def change(total: Total, partial: pa.Table, parts: Sequence[Part], read: Read) -> tuple[Change, pa.Table]:
    """The change of the table, and the rows that differ from before.

    Args:
        parts: of the dates that the partial touches.
        read: reads parts; None if they have no rows.
    """
    lows, highs = total.reach(partial)
    near = [part for part in parts if part.rows and bool(((lows <= part.last) & (highs >= part.first)).any())]
    contents = {part: read([part]) for part in near}
    affected, kept = [], {}
    for part, rows in contents.items():
        if rows is not None and len(rows):
            mask = total.affected(rows, partial)
            affected.append(rows.filter(mask))
            kept[part] = rows.filter(pc.invert(mask))
    stored = [rows for rows in affected if len(rows)]
    whole = total.merge([partial], pa.concat_tables(stored) if stored else None)
    rows = total.finish(whole)
    dirty = {part for part, left in kept.items() if len(left) < part.rows}
    contents_of: list[tuple[Part | None, pa.Table]] = []
    for owner, fresh in _assigned(rows, parts):
        if owner is not None:
            dirty.discard(owner)
            if owner not in kept:
                left = read([owner]) if owner.rows else None
                kept[owner] = left if left is not None else fresh.slice(0, 0)
            fresh = pa.concat_tables([kept[owner].select(fresh.column_names), fresh])
        pieces = list(_pieces(fresh))
        contents_of += zip([owner, *[None] * (len(pieces) - 1)], pieces, strict=True)
    contents_of += ((part, kept[part].select(rows.column_names)) for part in dirty)
    return Change(tuple(contents_of), total.schema), rows.filter(pc.greater(whole.column("changed"), 0))


def touched_days(total: Total, partial: pa.Table) -> list[str]:
    """The dates whose parts :func:`change` needs."""
    lows, highs = total.reach(partial)
    earliest, latest = total.earliest(lows) // DAY_US, highs // DAY_US
    pairs = np.unique(np.stack([earliest, latest]), axis=1).T.tolist()
    days = {day for first, last in pairs for day in range(first, last + 1)}
    return [str(np.datetime64(day, "D")) for day in sorted(days)]


def _assigned(rows: pa.Table, parts: Sequence[Part]) -> Iterator[tuple[Part | None, pa.Table]]:
    """The rows of each part, or with None those of a date that has no part."""
    for date in pc.unique(rows.column("date")).to_pylist():
        own = rows.filter(pc.equal(rows.column("date"), date))
        there = sorted((part for part in parts if part.date == date), key=lambda part: part.first)
        if not there:
            yield None, own
            continue
        firsts = np.array([part.first for part in there])
        place = np.maximum(np.searchsorted(firsts, micros_of(own.column("start")), side="right") - 1, 0)
        for index in np.unique(place).tolist():
            yield there[index], own.filter(pa.array(place == index))


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in order of time, in pieces of at most :data:`PART_ROWS_MAX`."""
    order = pc.sort_indices(rows, sort_keys=[("start", "ascending")])  # stable: ranks stay in order
    rows = rows.take(order)
    for first in range(0, len(rows), PART_ROWS_MAX):
        yield rows.slice(first, PART_ROWS_MAX)
