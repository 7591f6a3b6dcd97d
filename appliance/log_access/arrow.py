"""Converts record batches to Arrow record batches with the columns of Spark's Kafka connector.

First the starts of records are found: many small batches are walked in step, the k-th record of all of them at once,
others batch by batch (``record_starts``).  Then all records of a few megabytes are decoded
together, with one numpy operation per field.  Varints are read at the positions of all records at once and checked
against each other (a record ends where the next one starts, offset deltas count up).  One Arrow ``take`` each copies
keys and values out of the bytes.

Columns and types, as the connector and Spark's Arrow reader need them::

    key, value     binary
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, UTC]
    timestampType  int32                        0: the producer's time, 1: the broker's
    headers        list<struct<key, value>>     optional

``first`` and ``end`` bound the offsets of the rows.  So a log can be split anywhere, even within a batch, and every
record is in exactly one part.  A compacted batch has gaps between its offsets, and the first of them may lie before it,
where compaction has emptied the log.  Timestamps in batches are ms since 1970.

A damaged batch raises :class:`~appliance.errors.CorruptBatch`, or is skipped and reported to ``on_corrupt``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from ..errors import ClientFault, CorruptBatch, MessageTooLarge
from ..records.batch import (
    CODEC_MASK,
    EMPTIED,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    check_stored,
    read_header,
)
from ..records.compression import decompress
from ..records.decode import BYTES_MAX, check_count, headers_at
from ..records.holes import check_hole
from ..records.markers import is_marker
from .record_starts import Ints, likely_starts, scan

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP = pa.timestamp("us", tz="UTC")
FIELDS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", TIMESTAMP),
    ("timestampType", pa.int32()),
]
SCHEMA = pa.schema(FIELDS)
SCHEMA_WITH_HEADERS = pa.schema([*FIELDS, ("headers", HEADERS)])

GROUP_BYTES = 8 * 1024 * 1024
"""Batches are decoded in groups of about this size, unpacked; one batch alone may be larger."""
_MS_MAX = (1 << 63) // 1000 - 1

OnCorrupt = Callable[[int, CorruptBatch], None]
"""Is given the offset of a damaged batch and what is wrong with it; the batch is skipped unless it raises."""


def raise_corrupt(_: int, error: CorruptBatch) -> NoReturn:
    raise error


_BASE = struct.Struct(">q")
_LENGTH = struct.Struct(">8xi")


@dataclass(slots=True)
class _Group:
    """Batches that are decoded together; the lists run in parallel, one entry for each batch."""

    bases: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    spans: list[int] = field(default_factory=list)
    first_timestamps: list[int] = field(default_factory=list)
    max_timestamps: list[int] = field(default_factory=list)
    append_times: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Positions at which the records of each batch start and (``stops``) stop, in the fetched bytes."""
    stops: list[int] = field(default_factory=list)
    unpacked: dict[int, bytes] = field(default_factory=dict)
    """By index in the lists: the records of a compressed batch."""
    bytes: int = 0

    def alone(self, index: int) -> _Group:
        """A group of one of these batches."""
        return _Group(
            [self.bases[index]],
            [self.counts[index]],
            [self.spans[index]],
            [self.first_timestamps[index]],
            [self.max_timestamps[index]],
            [self.append_times[index]],
            [self.starts[index]],
            [self.stops[index]],
            {0: self.unpacked[index]} if index in self.unpacked else {},
        )


@dataclass(frozen=True)
class Decoder:
    """Decodes fetched bytes of one partition.

    ``on_corrupt`` is called for every damaged batch; without it the first one raises.
    """

    topic: str
    partition: int
    first: int
    end: int
    headers: bool = False
    on_corrupt: OnCorrupt = raise_corrupt
    bytes_max: int = BYTES_MAX

    def decode(self, buffer: bytes | bytearray | memoryview, position: int) -> Iterator[pa.RecordBatch]:
        """The rows of the whole batches in ``buffer``, which starts with the batch at offset ``position``.

        A batch of S bytes and a span of N offsets at P has the base offset P + S - N.  Checking this detects a wrong
        base offset, which no checksum covers.  The rows do not refer to ``buffer``.
        """
        view = memoryview(buffer)
        group = _Group()
        start, stop = 0, len(view)
        while start < stop and not self._is_behind(view, start, position + start):
            size = _LENGTH.unpack_from(view, start)[0] + LENGTH_END if stop - start >= HEADER_BYTES else 0
            if not HEADER_BYTES <= size <= stop - start:
                # Without the length the next batch cannot be found: the rest of the buffer is lost too.
                self._corrupt(position + start, CorruptBatch("its length is wrong; check: appliance log verify"))
                break
            try:
                self._add(group, view, start, start + size, position + start)
            except ClientFault as error:
                if check_hole(view, start, start + size) is None:
                    self._corrupt(position + start, error)
            start += size
            if group.bytes >= GROUP_BYTES:
                yield from self._rows(group, view)
                group = _Group()
        if group.bases:
            yield from self._rows(group, view)

    def _is_behind(self, view: memoryview, start: int, position: int) -> bool:
        """Whether the batch at ``position``, and so all after it, has no offsets before ``end``."""
        if position < self.end or len(view) - start < HEADER_BYTES:
            return position >= self.end
        header = read_header(view, start)
        return header.attributes != EMPTIED and position + header.size - header.span >= self.end

    def _add(self, group: _Group, view: memoryview, start: int, stop: int, position: int) -> None:
        header = check_stored(view, start, stop, stop - start)
        if is_marker(header):
            return
        base = position + header.size - header.span
        if _BASE.unpack_from(view, start)[0] != base:
            raise CorruptBatch(f"the batch at {position} says that it is another one")
        check_count(header.count, self.bytes_max)
        start += HEADER_BYTES
        if codec := header.attributes & CODEC_MASK:
            unpacked = decompress(codec, bytes(view[start:stop]), self.bytes_max)
            group.unpacked[len(group.bases)] = unpacked
            group.bytes += len(unpacked)
        else:
            group.bytes += stop - start
        group.bases.append(base)
        group.counts.append(header.count)
        group.spans.append(header.span)
        group.first_timestamps.append(header.first_timestamp)
        group.max_timestamps.append(header.max_timestamp)
        group.append_times.append(header.attributes & LOG_APPEND_TIME > 0)
        group.starts.append(start)
        group.stops.append(stop)

    def _corrupt(self, offset: int, error: Exception) -> None:
        named = CorruptBatch(f"{self.topic}-{self.partition}: batch at offset {offset}: {error}")
        named.__cause__ = error
        self.on_corrupt(offset, named)

    def _rows(self, group: _Group, view: memoryview) -> Iterator[pa.RecordBatch]:
        """The rows of these batches.  After an error each batch is decoded alone, to find the bad one."""
        try:
            rows = _Records(group, view, guess=True).rows(self)
        except CorruptBatch:
            for index in range(len(group.bases)):
                yield from self._rows_of_one(group.alone(index), view)
        else:
            if rows is not None:
                yield rows

    def _rows_of_one(self, group: _Group, view: memoryview) -> Iterator[pa.RecordBatch]:
        try:
            # The guess of starts may be wrong: records of other lengths can have the same sum, and any bytes zeros.
            rows = _Records(group, view, guess=False).rows(self)
        except CorruptBatch as error:
            self._corrupt(group.bases[0], error)
        else:
            if rows is not None:
                yield rows


class _Records:
    """All records of a group, with the positions of their fields in ``data``."""

    def __init__(self, group: _Group, view: memoryview, guess: bool) -> None:
        self.data: memoryview | bytes = view
        starts, stops = np.array(group.starts, np.int64), np.array(group.stops, np.int64)
        if group.unpacked:
            pairs = zip(group.starts, group.stops, strict=True)
            pieces = [group.unpacked.get(index, view[a:b]) for index, (a, b) in enumerate(pairs)]
            self.data = b"".join(pieces)
            sizes = np.array([len(piece) for piece in pieces], np.int64)
            stops = np.cumsum(sizes)
            starts = stops - sizes
        self.bytes: Bytes = np.frombuffer(self.data, np.uint8)
        counts: Ints = np.array(group.counts, np.int64)
        if (counts > stops - starts).any():
            raise CorruptBatch("more records than bytes")
        self._group = group
        self._counts = counts
        self._firsts: Ints = np.cumsum(counts) - counts
        self.starts = self._find_starts(starts, stops, guess)
        # A record ends where the next one starts, the last one of a batch where its batch ends.
        self.ends: Ints = np.empty_like(self.starts)
        self.ends[:-1] = self.starts[1:]
        self.ends[self._firsts + counts - 1] = stops

    def _find_starts(self, starts: Ints, stops: Ints, guess: bool) -> Ints:
        """The position of each record.  :meth:`rows` checks them against the lengths of all records."""
        positions: Ints = np.empty(int(self._counts.sum()), np.int64)
        if len(starts) >= _IN_STEP_MIN:
            self._walk_in_step(starts, stops, positions)
            return positions
        rest = zip(self._firsts.tolist(), self._counts.tolist(), starts.tolist(), stops.tolist(), strict=True)
        for first, count, start, stop in rest:
            payload = bytes(self.data[start:stop])
            likely = likely_starts(payload, count) if guess else None
            positions[first : first + count] = scan(payload, count) if likely is None else likely
            positions[first : first + count] += start
        return positions

    def _walk_in_step(self, starts: Ints, stops: Ints, record_starts: Ints) -> None:
        """Step to the next record of all batches at once, until only a few batches have one."""
        longest_first = np.argsort(-self._counts, kind="stable")
        counts, places = self._counts[longest_first], self._firsts[longest_first]
        positions = starts[longest_first]
        step = 0
        active = np.count_nonzero(counts)
        while active >= _IN_STEP_MIN:
            record_starts[places[:active] + step] = positions[:active]
            lengths, after = self._varints(positions[:active])
            if lengths.min() < 0 or lengths.max() > len(self.bytes):
                raise CorruptBatch("a record leaves its batch")
            positions[:active] = after + lengths
            step += 1
            active = np.count_nonzero(counts > step)
        for index in range(active):
            place, rest_count = places[index] + step, int(counts[index]) - step
            rest = bytes(self.data[positions[index] : stops[longest_first[index]]])
            record_starts[place : place + rest_count] = scan(rest, rest_count)
            record_starts[place : place + rest_count] += positions[index]

    def per_record(self, values: list[int] | list[bool]) -> Ints:
        """Repeat the value of each batch for each of its records."""
        return np.repeat(np.array(values, np.int64), self._counts)

    def _varints(self, positions: Ints) -> tuple[Ints, Ints]:
        """The zigzag varints at ``positions``, and the positions behind them."""
        if positions.max() >= len(self.bytes):
            raise CorruptBatch("a record leaves its batch")
        low = self.bytes.take(positions)
        after = positions + 1
        more = low >= 0x80
        unsigned = low.astype(np.int64)
        if more.any():
            high = self.bytes.take(after, mode="clip")
            if (more & (high >= 0x80)).any():
                return self._long_varints(positions)
            unsigned += more * ((high.astype(np.int64) << 7) - 0x80)
            after += more
        return (unsigned >> 1) ^ -(unsigned & 1), after

    def _long_varints(self, positions: Ints) -> tuple[Ints, Ints]:
        unsigned = np.zeros(len(positions), np.uint64)
        after = positions.copy()
        active = np.arange(len(positions))
        for shift in range(0, 70, 7):
            at = after[active]
            if at.max() >= len(self.bytes):
                raise CorruptBatch("a number leaves its batch")
            byte = self.bytes[at]
            unsigned[active] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            after[active] += 1
            active = active[byte >= 0x80]
            if not len(active):
                return (unsigned >> np.uint64(1)).view(np.int64) ^ -(unsigned & np.uint64(1)).view(np.int64), after
        raise CorruptBatch("a number of more than ten bytes")

    def _spans(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """Nullable bytes: their lengths (-1: null), starts and ends."""
        lengths, starts = self._varints(positions)
        sizes = lengths
        if lengths.min() < 0:
            if lengths.min() < -1:
                raise CorruptBatch("bytes of a negative length")
            sizes = np.maximum(lengths, 0)
        if lengths.max() > len(self.bytes):
            raise CorruptBatch("a key or value is longer than its batch")
        ends = starts + sizes
        if (ends > self.ends).any():
            raise CorruptBatch("a key or value leaves its record")
        return lengths, starts, ends

    def rows(self, decoder: Decoder) -> pa.RecordBatch | None:
        """The rows with offsets from ``wanted.first`` to ``wanted.end``; None if there are none.

        Raises:
            CorruptBatch: the records are inconsistent.
        """
        lengths, position = self._varints(self.starts)
        if (position + lengths != self.ends).any():
            raise CorruptBatch("a record has another length than it says")
        timestamps, position = self._varints(position + 1)  # behind the attributes, which are unused
        deltas, position = self._varints(position)
        self._check_deltas(deltas)
        keys = self._spans(position)
        values = self._spans(keys[2])
        header_counts, position = self._varints(values[2])
        if header_counts.any():
            bare = header_counts == 0
            wrong = header_counts.min() < 0 or (position > self.ends).any()
            wrong = wrong or (position[bare] != self.ends[bare]).any()
        else:
            wrong = (position != self.ends).any()
        if wrong:
            raise CorruptBatch("headers do not fill the rest of their record")

        offsets = deltas + self.per_record(self._group.bases)
        rows = slice(0, len(offsets))
        if offsets[0] < decoder.first or offsets[-1] >= decoder.end:
            rows = slice(*np.searchsorted(offsets, [decoder.first, decoder.end]).tolist())
            offsets = offsets[rows]
        count = len(offsets)
        if not count:
            return None
        columns = [
            self._binary(keys[0][rows], keys[1][rows], keys[2][rows]),
            self._binary(values[0][rows], values[1][rows], values[2][rows]),
            pa.repeat(pa.scalar(decoder.topic), count),
            pa.repeat(pa.scalar(decoder.partition, pa.int32()), count),
            pa.array(offsets),
            *self._times(timestamps, rows),
        ]
        if decoder.headers:
            columns.append(self._headers(header_counts[rows], values[2][rows], self.ends[rows]))
        return pa.record_batch(columns, SCHEMA_WITH_HEADERS if decoder.headers else SCHEMA)

    def _check_deltas(self, deltas: Ints) -> None:
        """Check that the offset deltas of each batch ascend, and count up if it was not compacted."""
        in_step = np.arange(len(deltas), dtype=np.int64) - self.per_record(self._firsts.tolist())
        if (deltas == in_step).all():
            return
        steps = np.diff(deltas)
        steps[self._firsts[1:] - 1] = 1  # from one batch to the next
        lasts = deltas[self._firsts + self._counts - 1]
        if steps.min(initial=1) < 1 or deltas[self._firsts].min() < 0 or (lasts >= self._group.spans).any():
            raise CorruptBatch("offset deltas are out of step")

    def _times(self, deltas: Ints, rows: slice) -> tuple[pa.Array, pa.Array]:
        """The columns timestamp and timestampType."""
        timestamps = (deltas + self.per_record(self._group.first_timestamps))[rows]
        if any(self._group.append_times):
            types = self.per_record(self._group.append_times)[rows]
            timestamps = np.where(types, self.per_record(self._group.max_timestamps)[rows], timestamps)
            kinds = pa.array(types.astype(np.int32))
        else:
            kinds = pa.repeat(pa.scalar(0, pa.int32()), len(timestamps))
        microseconds = np.clip(timestamps, -_MS_MAX, _MS_MAX) * 1000
        return pa.Array.from_buffers(TIMESTAMP, len(timestamps), [None, pa.py_buffer(microseconds)]), kinds

    def _binary(self, lengths: Ints, starts: Ints, ends: Ints) -> pa.Array:
        """The bytes between ``starts`` and ``ends``: the even elements of an array with the offsets start, end, ..."""
        count = len(starts)
        null = lengths < 0
        nulls = bool(null.any())
        if nulls and null.all():
            return pa.nulls(count, pa.binary())
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2] = starts
        bounds[1::2] = ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        spans = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        even = np.arange(0, 2 * count, 2, dtype=np.int32)
        return spans.take(pa.array(even, mask=null if nulls else None))

    def _headers(self, counts: Ints, starts: Ints, ends: Ints) -> pa.Array:
        """One list for each record that has headers, null for the others.  Loops over records with headers."""
        lists: list[list[tuple[str, bytes | None]] | None] = [None] * len(counts)
        for row in np.flatnonzero(counts).tolist():
            data = bytes(self.data[starts[row] : ends[row]])
            try:
                headers, stop = headers_at(data, 0)
            except IndexError:
                stop = -1
            except MessageTooLarge as error:
                raise CorruptBatch(str(error)) from None
            if stop != len(data):
                raise CorruptBatch("headers do not fill the rest of their record")
            lists[row] = list(headers)
        return pa.array(lists, HEADERS)


_IN_STEP_MIN = 96
"""From this many batches on, reading one record of each with numpy is cheaper than a loop over all records."""
