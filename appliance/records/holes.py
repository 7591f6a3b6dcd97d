"""Makes and recognises holes: batches without messages that take the place of bytes which were damaged.

Offsets are byte positions, so what stands behind damaged bytes keeps its offsets only if something of the same length
stands in their place.  A hole is a control batch, which clients of Kafka have to step over: one record that is for no
application, with a type of ours::

    key     4 bytes: version 0, type HOLE_TYPE.  Clients ignore types of control records that they do not know
    value   a text that says why the bytes are missing, filled up with zeros; cut where there is no room for all of it

Less than HOLE_BYTES_MIN bytes have no room for such a record.  There the hole is a batch of 0 records, as Kafka's
compaction leaves behind.  Its payload is skipped by clients that count records, and librdkafka, which reads as many
records as there are bytes, drops it, because its offset is before the batch.  Other holes have another form, since some
clients (sarama) refuse bytes behind the last record.

A hole of S bytes at P has the base offset ``P + S - count``, as any batch.  It has no producer and no time, so it is
found neither by time nor by the sequence of a producer.

Compaction (``log.compaction``) leaves holes of another kind, *emptied* bytes.  A client goes on reading behind the
last offset of each batch that it gets, and the compacted batch behind these bytes has offsets that lie in them.  So all
holes of one gap have the offset of its first byte.  What tells the place of such a hole is its base timestamp: the
offset of its own first byte.  Bit 6 of the attributes (delete horizon) tells it from others.  Damage in such a gap is
filled in the same way (``log.repair``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from ..errors import CorruptBatch
from .batch import (
    ATTRIBUTES_AT,
    CONTROL,
    CRC_AT,
    EMPTIED,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    place,
    read_header,
)
from .encode import varint
from .varints import read_unsigned

HOLE_TYPE: Final = 0x484F
"""The type of the control record: "HO".  Kafka's own types are small numbers."""
HOLE_BYTES_MIN: Final = 72
HOLE_BYTES_MAX: Final = 64 * 1024
"""Largest hole that is made: more missing bytes become several, so that no client needs a large buffer for nothing."""
EMPTIED_BYTES_MAX: Final = 1 << 20
"""Larger than other holes: readers leave them out, where that is worth the while."""
NO_TIME: Final = -1
_KEY: Final = struct.pack(">hh", 0, HOLE_TYPE)


def holes(offset: int, size: int, reason: str) -> Iterator[bytes]:
    """Yields the batches that fill ``size`` bytes at ``offset``; ``size`` is at least that of a batch's header."""
    for at, part in _parts(offset, size, HOLE_BYTES_MAX):
        yield hole(at, part, reason)


def emptied(offset: int, size: int, gap: int | None = None, reason: str = "compacted") -> Iterator[bytes]:
    """Yields the batches that fill ``size`` emptied bytes at ``offset``: one gap, or a part of the one at ``gap``."""
    for at, part in _parts(offset, size, EMPTIED_BYTES_MAX):
        yield _batch(at, part, reason, EMPTIED, offset if gap is None else gap, at)


def _parts(offset: int, size: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yields offset and size of holes of at most ``bytes_max``."""
    assert size >= HEADER_BYTES
    stop = offset + size
    while offset < stop:
        bytes_left = stop - offset
        if bytes_left > bytes_max:  # the last one has room for a record, too
            bytes_left = min(bytes_max, bytes_left - HOLE_BYTES_MIN)
        yield offset, bytes_left
        offset += bytes_left


def hole(offset: int, size: int, reason: str) -> bytes:
    """One batch of ``size`` bytes at ``offset`` that says why it has no messages."""
    return _batch(offset, size, reason, CONTROL, offset + size - (size >= HOLE_BYTES_MIN), NO_TIME)


def _batch(offset: int, size: int, reason: str, attributes: int, base_offset: int, base_timestamp: int) -> bytes:
    count = 1 if size >= HOLE_BYTES_MIN else 0
    last_delta = 0 if attributes == EMPTIED else count - 1
    payload = _record(size - HEADER_BYTES, reason.encode()) if count else _before(size - HEADER_BYTES)
    batch = bytearray(HEADER_BYTES) + payload
    times = base_timestamp, NO_TIME
    HEADER.pack_into(batch, 0, 0, 0, 0, MAGIC, 0, attributes, last_delta, *times, -1, -1, -1, count)
    span = offset + size - base_offset
    place(memoryview(batch), 0, offset, size, span)
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    assert len(batch) == size
    return bytes(batch)


def _record(size: int, text: bytes) -> bytes:
    """The control record, ``size`` bytes long."""
    fixed = b"\0\0\0" + varint(len(_KEY)) + _KEY  # attributes, timestamp delta, offset delta, key
    value_bytes, padding = next(
        (value_bytes, size - _record_bytes(len(fixed), value_bytes))
        for value_bytes in range(size, -1, -1)
        if _record_bytes(len(fixed), value_bytes) <= size
    )
    body = len(fixed) + len(varint(value_bytes)) + value_bytes + 1
    value = text[:value_bytes].ljust(value_bytes, b"\0")
    return b"".join((padded(varint(body), padding), fixed, varint(value_bytes), value, b"\0"))


def _record_bytes(fixed_bytes: int, value_bytes: int) -> int:
    body = fixed_bytes + len(varint(value_bytes)) + value_bytes + 1
    return len(varint(body)) + body


def padded(number: bytes, padding: int) -> bytes:
    """A varint with more bytes than it needs: where lengths grow by a byte, one size of record is left out."""
    if not padding:
        return number
    return number[:-1] + bytes([number[-1] | 0x80]) + b"\x80" * (padding - 1) + b"\0"


def _before(size: int) -> bytes:
    """The payload of a batch of 0 records: to a client that reads it, one record with an offset before the batch."""
    front = b"\0\0" + varint(-2 * HOLE_BYTES_MIN)
    return (varint(size - 1) + front).ljust(size, b"\0")[:size]


def check_hole(buffer: memoryview, start: int, stop: int) -> BatchHeader | None:
    """The header of the hole that is the first batch in ``buffer[start:stop]``; None if that is anything else."""
    if stop - start < HEADER_BYTES:
        return None
    header = read_header(buffer, start)
    if (
        buffer[start + MAGIC_AT] != MAGIC
        or header.attributes not in (CONTROL, EMPTIED)
        or not HEADER_BYTES <= header.size <= stop - start
        or header.count not in (0, 1)
        or header.span != (1 if header.attributes == EMPTIED else header.count)
        or header.producer_id != -1
        or crc32c(buffer[start + ATTRIBUTES_AT : start + header.size])
        != int.from_bytes(buffer[start + CRC_AT : start + ATTRIBUTES_AT], "big")
    ):
        return None
    return header


def is_hole(header: BatchHeader) -> bool:
    """Whether a batch of a sound log is a hole."""
    return bool(header.attributes & CONTROL) and header.producer_id < 0


def reason_of(batch: memoryview) -> str:
    """The text in a hole, as much of it as there was room for; "" in one that has none."""
    payload = bytes(batch[HEADER_BYTES:])
    at = payload.find(_KEY)
    if at < 0:
        return ""
    try:
        length, at = read_unsigned(payload, at + len(_KEY), 5, CorruptBatch)
    except IndexError:
        return ""
    return payload[at : at + length // 2].rstrip(b"\0").decode(errors="ignore")  # the last character may be cut
