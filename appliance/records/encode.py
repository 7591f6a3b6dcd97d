"""Encodes records to RecordBatch v2 bytes: one core of Python encodes a gigabit of log lines a second.

A record is a varint of its length, then: attributes (0), timestamp delta, offset delta, key length, key,
value length, value, number of headers, headers; all numbers are zigzag varints, -1 stands for "null".  In a
plain record (no key, no header, the time of its batch) the bytes before the value depend only on the value's length and
its index in the batch.  So they come from a cache, and the batch is one ``join``.  The last byte of a record (no
headers) is kept at the front of the next prefix.

The caches are bounded: a full one is emptied.  Threads may share them: an entry appears whole or not at all.
Timestamps are milliseconds since 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from operator import add

from crc32c import crc32c

from ..catalog import LEADER_EPOCH
from ..errors import InvalidRequest
from .batch import HEADER_BYTES, LENGTH_END, MAGIC
from .compression import NONE, codec_number, compress
from .varints import unsigned

Headers = Sequence[tuple[str, bytes | None]]
Fields = tuple[bytes | None, bytes | None, Headers, int]
"""One record to be encoded: key, value, headers, timestamp in ms."""

_VARINTS_CACHED = 1 << 14
_PREFIXES_MAX = 100_000
_LENGTHS_MAX = 10_000

LARGE_BYTES = 48 * 1024
"""From this size on, batches need :func:`keep_heap`."""
_HEAP_BLOCK_BYTES = 16 * 1024 * 1024

_FRONT = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")
assert _FRONT.size + _COVERED.size == HEADER_BYTES


class _Varints(dict[int, bytes]):
    """Unsigned varints below _VARINTS_CACHED, each made at its first use: making all would delay every start."""

    def __missing__(self, number: int) -> bytes:
        made = self[number] = unsigned(number)
        return made


_CACHED = _Varints()


def varint(number: int) -> bytes:
    """``number`` as a zigzag varint."""
    number = number << 1 if number >= 0 else (-number << 1) - 1
    return _CACHED[number] if number < _VARINTS_CACHED else unsigned(number)


DELTA_STEPS = (0, 1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 31)
"""Offset deltas from DELTA_STEPS[k-1] on take k bytes."""


class _Heads(dict[int, bytes]):
    """The bytes before an offset delta of ``delta_bytes`` in a plain record, by the length of the value."""

    def __init__(self, delta_bytes: int) -> None:
        super().__init__()
        self._fixed_bytes = 4 + delta_bytes  # attributes, timestamp delta, null key, no headers

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _LENGTHS_MAX:
            self.clear()
        body_bytes = self._fixed_bytes + len(varint(length)) + length
        head = self[length] = b"\0" + varint(body_bytes) + b"\0\0"
        return head


class _Tails(dict[int, bytes]):
    """The bytes between offset delta and value in a plain record, by the length of the value."""

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _LENGTHS_MAX:
            self.clear()
        tail = self[length] = b"\1" + varint(length)
        return tail


class _Lone(dict[int, bytes]):
    """The bytes before the value of a plain record that is alone in its batch, by the length of the value."""

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _LENGTHS_MAX:
            self.clear()
        prefix = self[length] = (_heads[0][length] + varint(0) + _tails[length])[1:]
        return prefix


class _Fronts(dict[int, bytes]):
    """The bytes before an offset delta of ``delta_bytes``, by the bytes of the record after that delta."""

    def __init__(self, delta_bytes: int) -> None:
        super().__init__()
        self._fixed_bytes = 2 + delta_bytes  # attributes, timestamp delta

    def __missing__(self, size: int) -> bytes:
        if len(self) >= _LENGTHS_MAX:
            self.clear()
        front = self[size] = varint(self._fixed_bytes + size) + b"\0\0"
        return front


_heads = tuple(_Heads(delta_bytes) for delta_bytes in range(1, len(DELTA_STEPS)))
_STEPS = tuple(zip(_heads, DELTA_STEPS[:-1], DELTA_STEPS[1:], strict=True))
_FRONT_STEPS = tuple((_Fronts(number), *step) for number, step in enumerate(pairwise(DELTA_STEPS), 1))
_tails = _Tails()
_lone = _Lone()
_prefixes: dict[int, list[bytes]] = {}
_deltas: list[bytes] = []


def plain_spans(length: int, count: int) -> list[tuple[int, int]]:
    """The layout of ``count`` plain values of ``length`` bytes.

    For each size of offset delta in turn: the number of bytes before a value, and the number of values.
    """
    tail_bytes = len(_tails[length])
    return [
        (len(heads[length]) + delta_bytes + tail_bytes, min(stop, count) - first)
        for delta_bytes, (heads, first, stop) in enumerate(_STEPS, 1)
        if first < count
    ]


def equal_prefixes(length: int, count: int) -> list[bytes] | None:
    """The bytes before each of ``count`` plain values of ``length`` bytes; None if that is too much to cache.

    The list may be longer than ``count``.
    """
    prefixes = _prefixes.get(length)
    if prefixes is None or len(prefixes) < count:
        if count > _PREFIXES_MAX:
            return None
        if sum(map(len, list(_prefixes.values()))) + count > _PREFIXES_MAX:
            _prefixes.clear()
        tail = _tails[length]
        prefixes = _prefixes[length] = [
            heads[length] + varint(delta) + tail
            for heads, first, stop in _STEPS
            for delta in range(first, min(stop, count))
        ]
    return prefixes


def join_plain(values: Sequence[bytes]) -> bytes:
    """Encode plain records: without keys and headers, and with the timestamp of their batch."""
    count = len(values)
    if count == 1:
        return b"".join((_lone[len(values[0])], values[0], b"\0"))
    lengths = list(map(len, values))
    prefixes = equal_prefixes(lengths[0], count) if lengths.count(lengths[0]) == count else None
    if prefixes is not None:
        parts: list[bytes] = [b""] * (2 * count + 1)
        parts[0:-1:2] = prefixes[:count]
        parts[1::2] = values
    else:
        parts = [b""] * (4 * count + 1)
        heads: list[bytes] = []
        for step, first, stop in _STEPS:
            heads += map(step.__getitem__, lengths[first:stop])
        parts[0:-1:4] = heads
        parts[1::4] = _delta_varints(count)
        parts[2::4] = map(_tails.__getitem__, lengths)
        parts[3::4] = values
    parts[0] = parts[0][1:]
    parts[-1] = b"\0"
    return b"".join(parts)


def join_tailed(values: Sequence[bytes], tails: Sequence[bytes], keys: Sequence[bytes] | None = None) -> bytes:
    """Encode records with the timestamp of their batch, and with encoded headers (:func:`encode_headers`) for each."""
    count = len(values)
    lengths = list(map(len, values))
    if keys is None:
        middles = list(map(_tails.__getitem__, lengths))
    else:
        middles = [varint(len(key)) + key + varint(length) for key, length in zip(keys, lengths, strict=True)]
    sizes = list(map(add, map(add, lengths, map(len, middles)), map(len, tails)))
    fronts: list[bytes] = []
    for step, first, stop in _FRONT_STEPS:
        fronts += map(step.__getitem__, sizes[first:stop])
    parts = [b""] * (5 * count)
    parts[0::5] = fronts
    parts[1::5] = _delta_varints(count)
    parts[2::5] = middles
    parts[3::5] = values
    parts[4::5] = tails
    return b"".join(parts)


def _delta_varints(count: int) -> list[bytes]:
    if count > _PREFIXES_MAX:
        return [varint(delta) for delta in range(count)]
    global _deltas
    deltas = _deltas
    if count > len(deltas):
        _deltas = deltas = [varint(delta) for delta in range(count)]
    return deltas[:count]


def encode_values(
    values: Sequence[bytes],
    timestamp_ms: int,
    *,
    codec: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """Encode one batch of records without keys and headers, all of one time.  The broker places it."""
    if not values:
        raise InvalidRequest("a record batch holds at least one record")
    producer = (producer_id, producer_epoch, base_sequence)
    return _seal(join_plain(values), len(values), timestamp_ms, timestamp_ms, codec, producer, attributes)


def encode_tailed(
    values: Sequence[bytes],
    tails: Sequence[bytes],
    timestamp_ms: int,
    *,
    keys: Sequence[bytes] | None = None,
    codec: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """Encode one batch of records, all of one time, whose headers are encoded already (:func:`encode_headers`)."""
    producer = (producer_id, producer_epoch, base_sequence)
    payload = join_tailed(values, tails, keys)
    return _seal(payload, len(values), timestamp_ms, timestamp_ms, codec, producer, attributes)


def encode_batch(
    records: Sequence[Fields],
    *,
    codec: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """Encode one batch of ``records``: (key, value, headers, timestamp in ms).  The broker places it."""
    if not records:
        raise InvalidRequest("a record batch holds at least one record")
    first_timestamp = records[0][3]
    max_timestamp = max([record[3] for record in records])
    parts: list[bytes] = []
    for delta, (key, value, headers, timestamp) in enumerate(records):
        front = b"\0" + varint(timestamp - first_timestamp) + varint(delta)
        front += b"\1" if key is None else varint(len(key)) + key
        front += b"\1" if value is None else varint(len(value))
        tail = encode_headers(headers) if headers else b"\0"
        body_bytes = len(front) + len(tail)
        if value is None:
            parts += (varint(body_bytes), front, tail)
        else:
            parts += (varint(body_bytes + len(value)), front, value, tail)
    producer = (producer_id, producer_epoch, base_sequence)
    return _seal(b"".join(parts), len(records), first_timestamp, max_timestamp, codec, producer, attributes)


def encode_headers(headers: Headers) -> bytes:
    """The end of a record: the number of its headers, and the headers."""
    parts = [varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded)
        parts += (b"\1",) if value is None else (varint(len(value)), value)
    return b"".join(parts)


def put_header_first(tail: bytes, name: str, value: bytes) -> bytes:
    """The end of a record with one header more, before those that it has: at most 62 (:func:`encode_headers`)."""
    encoded = name.encode()
    return b"".join((varint((tail[0] >> 1) + 1), varint(len(encoded)), encoded, varint(len(value)), value, tail[1:]))


@cache
def keep_heap() -> None:
    """Make glibc keep freed memory for the next batch instead of returning its pages to the kernel.

    The limits of glibc follow the largest block that was ever freed.  Without this, the page faults of a 200 KB batch
    take five times as long as encoding it.
    """
    bytes(_HEAP_BLOCK_BYTES)  # never touched, so the kernel allocates no pages


def _seal(
    payload: bytes,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    codec: str,
    producer: tuple[int, int, int],
    attributes: int,
) -> bytes:
    if len(payload) >= LARGE_BYTES:
        keep_heap()
    number = codec_number(codec)
    if number != NONE:
        packed = compress(number, payload)
        # Offsets are bytes, so a batch needs a byte for each record.  Data that does not shrink stays uncompressed.
        if len(packed) >= len(payload) or HEADER_BYTES + len(packed) < count:
            number = NONE
        else:
            payload = packed
    covered = _COVERED.pack(number | attributes, count - 1, first_timestamp, max_timestamp, *producer, count)
    length = HEADER_BYTES - LENGTH_END + len(payload)
    front = _FRONT.pack(0, length, LEADER_EPOCH, MAGIC, crc32c(payload, crc32c(covered)))
    return b"".join((front, covered, payload))
