"""Cuts texts out of an Arrow array of lines at positions that numpy has computed, for all lines at once.

RE2 extracts up to four groups in one pass.  With more it needs several times as long.  So the hot formats are first cut
at delimiters: a search for one byte in all lines costs a nanosecond for each byte.

Positions are those of bytes behind the start of the first line, in the data buffer that the lines share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Positions = np.ndarray[Any, np.dtype[np.int32]]


class Lines:
    """The bytes of an array of texts, and where each text begins and ends; null is as the empty text."""

    def __init__(self, texts: pa.Array) -> None:
        assert texts.type == pa.string() and len(texts)
        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        first, end = int(bounds[0]), int(bounds[-1])
        if first:
            bounds = bounds - np.int32(first)
        self.starts: Positions = bounds[:-1]
        self.stops: Positions = bounds[1:]
        self._data = pa.py_buffer(b"") if data is None else data.slice(first, end - first)
        self.bytes = np.frombuffer(self._data, np.uint8)

    def __len__(self) -> int:
        return len(self.starts)

    def find(self, byte: int) -> Positions:
        """All positions of a byte, in order."""
        return np.flatnonzero(self.bytes == byte).astype(np.int32)

    def first_at(self, positions: Positions) -> tuple[Positions, Positions]:
        """For each line the index of its first one of ``positions``, and how many it has."""
        first = np.searchsorted(positions, self.starts).astype(np.int32)
        return first, np.searchsorted(positions, self.stops).astype(np.int32) - first

    def cut(self, starts: Positions, stops: Positions) -> pa.Array:
        """The texts from ``starts`` to ``stops``, which must be in order and may not overlap."""
        count = len(starts)
        if not count:
            return pa.array([], pa.string())
        bounds = np.empty(2 * count, np.int32)
        bounds[::2], bounds[1::2] = starts, stops
        pieces = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(bounds), self._data)
        return pieces.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))
