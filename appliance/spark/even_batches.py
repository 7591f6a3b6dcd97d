"""Makes Arrow batches even in rows: small ones are put together, large ones are sliced.

A batch costs the same on its way to the JVM whether it has one row or a thousand.  A task that reads many small
partitions would send as many small batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import pyarrow as pa

ROWS_MIN: Final = 4096
ROWS_MAX: Final = 16 * ROWS_MIN
BYTES_MAX: Final = 8 * 1024 * 1024
"""Batches that are put together have no more bytes; a single row may."""


def even(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of ROWS_MIN to ROWS_MAX rows; the last may have fewer."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows >= ROWS_MIN or size + batch.nbytes > BYTES_MAX:
            yield from _whole(held)
            held, rows, size = [], 0, 0
        if batch.num_rows >= ROWS_MIN:
            yield from _slices(batch)
            continue
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_MIN:
            yield from _whole(held)
            held, rows, size = [], 0, 0
    yield from _whole(held)


def _whole(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
    elif batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = -(-batch.num_rows // ROWS_MAX)
    bounds = [batch.num_rows * number // count for number in range(count + 1)]
    for first, end in pairwise(bounds):
        yield batch.slice(first, end - first)
