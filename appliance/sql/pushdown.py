"""Finds what a filter leaves of a log: the offsets, the partitions and the times in which it may hold.

A filter is an Arrow expression, and Arrow itself says whether one may hold where another one does, as it leaves out
files of a data set.  So nothing here takes expressions apart: bounds are found by halving.  An expression that Arrow
cannot simplify may hold anywhere.  Pure: no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

PLACE: Final = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))]
)
"""The columns that the index of a log knows."""
TIME_MS_MAX: Final = 1 << 52
"""The latest time that is looked for in ms since 1970: more than a timestamp in microseconds holds has no use."""
_FORMAT = ds.ParquetFileFormat()
_FILES = fs.LocalFileSystem()


def may_hold(filter: pc.Expression, where: pc.Expression, schema: pa.Schema) -> bool:
    """Whether ``filter`` may hold for a row for which ``where`` does; True if that cannot be told."""
    never_opened = _FORMAT.make_fragment("-", filesystem=_FILES, partition_expression=where)
    data_set = ds.FileSystemDataset([never_opened], schema, _FORMAT, _FILES)
    return any(True for _ in data_set.get_fragments(filter=filter))


def offsets(filter: pc.Expression, schema: pa.Schema, partition: int, first: int, end: int) -> tuple[int, int]:
    """The part of the offsets from ``first`` to before ``end`` of a partition in which ``filter`` may hold.

    Both are the same where it cannot hold at all.
    """
    offset, here = ds.field("offset"), ds.field("partition") == pa.scalar(partition, pa.int32())

    def holds(low: int, high: int) -> bool:
        return low < high and may_hold(filter, here & (offset >= low) & (offset <= high - 1), schema)

    if not holds(first, end):
        return first, first
    low, high = first, end
    if not holds(first, first + 1):
        low += bisect_left(range(first + 1, end), True, key=lambda stop: holds(first, stop))
    if not holds(end - 1, end):
        high -= bisect_left(range(end - 1, low, -1), True, key=lambda start: holds(start, end))
    return low, high


def since_ms(filter: pc.Expression, schema: pa.Schema, column: str = "timestamp") -> int | None:
    """The time in ms since 1970 before which ``filter`` cannot hold; None if it may at any time, or without one.

    ``column``: the one with the timestamps of messages.
    """
    timestamp = ds.field(column)

    def before(ms: int) -> bool:
        return may_hold(filter, timestamp < pa.scalar(ms * 1000, PLACE.field("timestamp").type), schema)

    if before(1) or may_hold(filter, timestamp.is_null(), schema):
        return None
    return bisect_left(range(1, TIME_MS_MAX), True, key=before)


def columns(filter: pc.Expression, schema: pa.Schema) -> set[str]:
    """The columns of ``schema`` that ``filter`` compares: those without which it has no meaning."""
    compared = set()
    for index, name in enumerate(schema.names):
        empty: Any = iter(())
        try:
            ds.Scanner.from_batches(empty, schema=schema.remove(index), filter=filter)
        except pa.ArrowInvalid:
            compared.add(name)
    return compared
