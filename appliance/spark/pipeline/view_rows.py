"""Checks the rows that a view's query gives before they are put into its table.

Arrow does it, over the files that Spark has written: to Spark it is one query more, which costs as much as that for a
few thousand rows itself.  The rows of some days are looked at together, so memory is bounded by those of a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from .view_definitions import View
from .view_table import Ranges

ROWS_TOGETHER: Final = 1_000_000


def check_rows(view: View, answer: Any, ranges: Ranges | None) -> None:
    """Raises BadValue if a row is of no window of these, or if keys are not those of one row.

    ``answer``: a data set of Arrow with the day of each row as ``date``; ``ranges``: None for all times.
    """
    for days in _days(answer):
        keys = answer.to_table(columns=["start", *view.keys], filter=pc.field("date").isin(days))
        _check_windows(view, keys.column("start"), ranges)
        _check_keys(view, keys)
    if answer.count_rows(filter=pc.field("start").is_null()):
        raise BadValue(f"view {view.name}: a row has no start: leave start as events have it")


def _days(answer: Any) -> Iterator[list[str]]:
    """The days of all rows, with so many together that their rows can be looked at at once."""
    rows: dict[str, int] = {}
    for batch in answer.to_batches(columns=["date"]):
        for counted in pc.value_counts(batch.column(0)).to_pylist():
            rows[counted["values"]] = rows.get(counted["values"], 0) + counted["counts"]
    rows.pop(None, None)  # type: ignore[call-overload]
    together: list[str] = []
    count = 0
    for day, of_day in sorted(rows.items()):
        if together and count + of_day > ROWS_TOGETHER:
            yield together
            together, count = [], 0
        together.append(day)
        count += of_day
    if together:
        yield together


def _check_windows(view: View, start: pa.ChunkedArray, ranges: Ranges | None) -> None:
    micros = start.cast(pa.int64()).to_numpy()
    outside = micros % view.window_us != 0
    if ranges is not None:
        firsts, ends = (np.array(bounds, np.int64) for bounds in zip(*ranges, strict=True))
        place = np.searchsorted(firsts, micros, "right") - 1
        outside |= (place < 0) | (micros >= ends[place])
    if outside.any():
        at = _text_of(start[int(outside.argmax())].as_py())
        raise BadValue(f"view {view.name}: a row has the start {at}: leave start as events have it")


def _check_keys(view: View, keys: pa.Table) -> None:
    columns = ["start", *view.keys]
    try:
        counted = keys.group_by(columns).aggregate([([], "count_all")])
    except pa.ArrowNotImplementedError:
        kinds = ", ".join(f"{name} {keys.schema.field(name).type}" for name in view.keys)
        raise BadValue(f"view {view.name}: keys: texts, numbers and times tell rows apart, not {kinds}") from None
    twice = counted.filter(pc.greater(counted.column("count_all"), 1)).slice(0, 1).to_pylist()
    if twice:
        row = twice[0]
        of = ", ".join([f"start = {_text_of(row['start'])}", *(f"{key} = {row[key]!r}" for key in view.keys)])
        raise BadValue(f"view {view.name}: keys: {row['count_all']} rows have {of}: name all columns of `group by`")


def _text_of(start: Any) -> str:
    return str(start.replace(tzinfo=None))
