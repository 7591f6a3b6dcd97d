"""Joins the lines of events that have several, such as stack traces.

A pattern matches the first line of an event; the lines up to the next first line belong to it.  They are joined with
line breaks into one record, which has offset, time and key of the first one, in the column ``lines`` their number, and
in ``arrivals`` their times, if there are several.

Lines are joined within a partition and a task of a micro-batch, in the order of their offsets, whatever their keys.  A
task reads a partition as a whole, but an event does not continue in the next micro-batch: its remaining lines make an
event of their own there, which usually is a dead letter.  At most one event is kept in memory, within its bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from .columns import as_mask
from .settings import Multiline, Settings
from .value_patterns import matching

LINES = "lines"
ARRIVALS = "arrivals"


class Joiner:
    """Joins lines of the topics for which this is configured; all batches get the columns ``lines`` and ``arrivals``.

    Raises:
        BadValue: an invalid pattern.
    """

    def __init__(self, settings: Settings) -> None:
        self._rules = {topic: source.multiline for source in settings.source for topic in source.topics}
        self.active = any(self._rules.values())
        for rule in filter(None, self._rules.values()):
            try:
                matching(pa.array([b""]), rule.first_line)
            except pa.ArrowInvalid as error:
                raise BadValue(f"source.multiline: start = {rule.start!r}: {error}") from None
        self._open: pa.Table | None = None
        """The lines of the event at the end of the last batch, which the next batch may continue."""

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Whole events of this batch, which has one topic, and of the one before."""
        if not self.active:
            yield batch
            return
        for part in _by_partition(pa.Table.from_batches([batch])):
            rule = self._rules[part.column("topic")[0].as_py()]
            if self._open is not None and _place(self._open) != _place(part):
                yield from self.rest()
            if rule is None:
                yield joined(part, np.arange(len(part)), len(part))
            else:
                yield from self._join(part, rule)

    def _join(self, part: pa.Table, rule: Multiline) -> Iterator[pa.RecordBatch]:
        rows = part if self._open is None else pa.concat_tables([self._open, part])
        rows = rows.set_column(rows.column_names.index("value"), "value", without_breaks(rows.column("value")))
        starts = as_mask(matching(rows.column("value").combine_chunks(), rule.first_line))
        starts[0] = True
        firsts = _bounded(np.flatnonzero(starts), rows, rule)
        self._open = rows.slice(int(firsts[-1]))
        if len(firsts) > 1:
            yield joined(rows, firsts[:-1], int(firsts[-1]))

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The last event."""
        if self._open is not None:
            rows, self._open = self._open, None
            yield joined(rows, np.zeros(1, np.int64), len(rows))


def _place(rows: pa.Table) -> tuple[str, int]:
    return rows.column("topic")[0].as_py(), rows.column("partition")[0].as_py()


def _by_partition(rows: pa.Table) -> Iterator[pa.Table]:
    partitions = rows.column("partition").to_numpy()
    fresh = np.flatnonzero(np.append(True, partitions[1:] != partitions[:-1]))
    for first, end in zip(fresh, np.append(fresh[1:], len(rows)), strict=True):
        yield rows.slice(int(first), int(end - first))


def without_breaks(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Lines without the line ends that they may have."""
    if pc.any(pc.or_(pc.ends_with(values, b"\n"), pc.ends_with(values, b"\r"))).as_py():
        return pc.replace_substring_regex(values, r"[\r\n]+$", "")
    return values


def _bounded(firsts: np.ndarray, rows: pa.Table, rule: Multiline) -> np.ndarray:
    """The first lines of events, with those at which an event that is too long is broken off."""
    ends = np.append(firsts[1:], len(rows))
    sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0).to_numpy() + 1
    before = np.append(0, np.cumsum(sizes, dtype=np.int64))
    long = (ends - firsts > rule.lines_max) | (before[ends] - before[firsts] > rule.bytes_max)
    more: list[int] = []
    for first, end in zip(firsts[long].tolist(), ends[long].tolist(), strict=True):
        begun = first
        for row in range(first + 1, end):
            if row - begun >= rule.lines_max or before[row + 1] - before[begun] > rule.bytes_max:
                begun = row
                more.append(row)
    return np.union1d(firsts, np.array(more, np.int64)).astype(np.int64)


def joined(rows: pa.Table, firsts: np.ndarray, end: int) -> pa.RecordBatch:
    """One record for each event; ``firsts``: their first lines; ``end``: behind the last line of the last one.

    Lines are joined as they are, by a line feed.
    """
    bounds = np.append(firsts, end)
    counts = np.diff(bounds)
    chosen = rows.take(pa.array(firsts))
    if (counts > 1).any():
        values = pc.fill_null(rows.column("value").combine_chunks(), b"")
        whole = pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values), b"\n")
        first_values = chosen.column("value").combine_chunks()
        joined = pc.if_else(pa.array(counts > 1), whole, first_values)
        chosen = chosen.set_column(chosen.column_names.index("value"), "value", joined)
    times = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), rows.column("timestamp").combine_chunks())
    several = pc.if_else(pa.array(counts > 1), times, pa.scalar(None, times.type))
    chosen = chosen.append_column(LINES, pa.array(counts, pa.int32())).append_column(ARRIVALS, several)
    return chosen.combine_chunks().to_batches()[0]
