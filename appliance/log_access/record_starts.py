"""Finds where the records of a batch start.  The length of each one says where the next one is; pure.

Three ways, the fastest first:

- If the records have one shape (their lengths differ only by the width of the offset delta), the starts are computed
  from the first record.
- Records of text have zero bytes only around their starts, which are found by these.
- Otherwise a tight loop goes over the lengths.

The first two may be wrong, and wrong starts do not fit the lengths of their records.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..errors import CorruptBatch

Ints = np.ndarray[Any, np.dtype[np.int64]]

LENGTH_BYTES_MAX: Final = 3
"""Of records that are found by zeros: they are shorter than a megabyte."""
DELTA_STEPS: Final = ((0, 1 << 6), (1 << 6, 1 << 13), (1 << 13, 1 << 20), (1 << 20, 1 << 27))
"""Offset deltas by the width of their varints."""


def likely_starts(payload: bytes, count: int) -> Ints | None:
    """The starts of the records, if they look as most do; the caller checks them.  Else None."""
    equal = equal_starts(payload, count)
    return starts_at_zeros(payload, count) if equal is None else equal


def equal_starts(payload: bytes, count: int) -> Ints | None:
    """The starts if all records have the length of the first, except for the width of their offset delta; else None."""
    first = payload[0] if len(payload) else 0x80
    body = first >> 1
    if first >= 0x80:
        if len(payload) < 2 or payload[1] >= 0x80:
            return None
        body = (first & 0x7F | payload[1] << 7) >> 1
    widths: list[tuple[int, int]] = []
    total = 0
    for extra, (low, high) in enumerate(DELTA_STEPS):
        if low >= count:
            break
        width = body + extra + (1 if body + extra < 64 else 2 if body + extra < 8192 else 3)
        widths.append((width, min(high, count) - low))
        total += width * widths[-1][1]
    if total != len(payload):
        return None
    if len(widths) == 1:
        return np.arange(0, total, widths[0][0], dtype=np.int64)
    sizes = np.repeat([width for width, _ in widths], [number for _, number in widths])
    starts = np.cumsum(sizes)
    starts -= sizes
    return starts


def starts_at_zeros(payload: bytes, count: int) -> Ints | None:
    """The starts of records without headers, whose keys and values have no zero bytes; else, mostly, None.

    A record ends with its count of headers, 0.  The length of the next one follows, and then its attributes, 0.
    """
    zeros = np.flatnonzero(np.frombuffer(payload, np.uint8) == 0)
    between = zeros[1:] - zeros[:-1]
    ends = zeros[:-1][(between > 1) & (between <= 1 + LENGTH_BYTES_MAX)]
    return np.append(0, ends + 1) if len(ends) == count - 1 else None


def scan(payload: bytes, count: int) -> list[int]:
    """The starts, from one record to the next.  Raises CorruptBatch if the records do not fill the payload."""
    starts: list[int] = []
    append = starts.append
    position = 0
    try:
        for _ in range(count):
            append(position)
            length = payload[position]
            if length < 0x80:
                position += 1 + (length >> 1)
            elif (high := payload[position + 1]) < 0x80:
                position += 2 + ((length & 0x7F | high << 7) >> 1)
            else:
                length = length & 0x7F | (high & 0x7F) << 7
                shift, position = 14, position + 2
                while (high := payload[position]) >= 0x80 and shift < 28:
                    length |= (high & 0x7F) << shift
                    shift, position = shift + 7, position + 1
                position += 1 + ((length | high << shift) >> 1)
    except IndexError:
        raise CorruptBatch(f"{count} records do not fit their {len(payload)} bytes") from None
    if position != len(payload):
        raise CorruptBatch(f"{count} records end at {position} of {len(payload)} bytes")
    return starts
