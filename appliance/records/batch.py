"""Checks and places record batches by their header.  Owns the layout of Kafka's RecordBatch v2::

    at  size  field                     at  size  field
     0   8    base offset               27   8    base timestamp (of the first record, ms)
     8   4    bytes after this field    35   8    largest timestamp (ms)
    12   4    partition leader epoch    43   8    producer id (-1: none)
    16   1    magic = 2                 51   2    producer epoch
    17   4    CRC32C of [21, size)      53   4    base sequence
    21   2    attributes                57   4    number of records
    23   4    last offset delta         61        records, compressed as one if the codec is not 0

All integers are big-endian.  Attributes: bits 0-2 codec, bit 3 LogAppendTime, bit 4 transactional, bit 5
control batch, bit 6 delete horizon; the others are unused.  The CRC does not cover the base offset and the partition
leader epoch, so :func:`place` can store them alone.  A batch of S bytes and N records at byte P of its log gets the
base offset P + S - N.  Its last record has the offset P + S - 1, and the next batch starts at P + S.  That needs
N <= S, which :func:`check_batch` requires.

Compaction (``log.compaction``) takes records out of a batch, and joins batches.  The others keep their offsets, so
the last offset delta of a *compacted* batch is larger than N - 1.  Its *span*, last offset delta + 1, takes the place
of N in the rule above, and may exceed S: then the first offsets lie before the batch, in the hole that stands there.

``buffer[start:stop]`` holds one batch after another; ``start`` is an index into the buffer, ``position`` one into the
log.  Errors are faults of the sender (:class:`~appliance.errors.ClientFault`).  An incomplete batch or a wrong checksum
is a :class:`~appliance.errors.CorruptBatch`: clients send the batch again.  A batch with a right checksum that breaks a
rule is refused with an error that clients do not retry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from ..catalog import LEADER_EPOCH
from ..errors import CorruptBatch, InvalidRecord, InvalidRequest, MessageTooLarge, UnsupportedVersion

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
assert HEADER.size == HEADER_BYTES

BASE_OFFSET_AT = 0
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
COUNT_AT = 57

LENGTH_END = 12
"""Bytes up to the end of the length field, which does not count them."""

MAGIC = 2
CODEC_MASK = 0x07
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names of the codecs, by their number in the attributes."""
SEQUENCE_MASK: Final = 0x7FFF_FFFF
"""A producer's sequence numbers wrap from 2**31 - 1 to 0."""
CODEC_MAX = 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
EMPTIED: Final = CONTROL | DELETE_HORIZON
"""The attributes of a hole that compaction has left (``records.holes``), whose base timestamp is its own offset."""
MARKED: Final = CONTROL | TRANSACTIONAL
"""The attributes of a marker (``records.markers``)."""
_REFUSED = CONTROL | DELETE_HORIZON
NOT_FOR_CLIENTS: Final = 0xFFFF & ~(CODEC_MASK | TRANSACTIONAL)
"""The bits that a client must not set; a log may have them."""


class BatchHeader(NamedTuple):
    """The fields of a batch that the broker uses: ``size`` in bytes, ``count`` of records, timestamps in ms."""

    size: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    max_timestamp: int
    first_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    span: int
    """Offsets from the base offset to the last one, that included; ``count`` unless it was compacted."""


_unpack_header = HEADER.unpack_from
_info = tuple.__new__  # twice as fast as the constructor of a NamedTuple


def check_batch(buffer: memoryview, start: int, stop: int, bytes_max: int) -> BatchHeader:
    """Check the first batch in ``buffer[start:stop]``.  The next batch starts ``size`` bytes later.

    Raises:
        CorruptBatch: not a whole batch, or its checksum does not match.
        MessageTooLarge: more than ``bytes_max`` bytes.
        UnsupportedVersion: not magic 2, or an unknown codec.
        InvalidRecord: its fields contradict each other.
        InvalidRequest: it is a control batch.
    """
    if stop - start < HEADER_BYTES:
        raise CorruptBatch(f"{stop - start} bytes are no record batch: its header alone has {HEADER_BYTES}")
    (
        _, length, _, magic, crc, attributes, last_delta, first_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    ) = _unpack_header(buffer, start)  # fmt: skip
    size = length + LENGTH_END
    # One condition for the common case; _refuse finds out which part of it failed.
    if (
        magic != MAGIC
        or not HEADER_BYTES <= size <= bytes_max
        or size > stop - start
        or attributes & _REFUSED
        or attributes & CODEC_MASK > CODEC_MAX
        or not 1 <= count <= size
        or last_delta != count - 1
        or crc32c(buffer[start + ATTRIBUTES_AT : start + size]) != crc
    ):
        raise _refuse(buffer, start, stop, bytes_max)
    return _info(  # twice as fast as the constructor of a NamedTuple
        BatchHeader,
        (
            size, count, max_timestamp, first_timestamp,
            producer_id, producer_epoch, base_sequence, attributes, count,
        ),
    )  # fmt: skip


def check_stored(buffer: memoryview, start: int, stop: int, bytes_max: int) -> BatchHeader:
    """As :func:`check_batch`, for a batch from a log: it may be a compacted one, or a marker, too."""
    try:
        return check_batch(buffer, start, stop, bytes_max)
    except InvalidRequest:  # so its checksum is right
        header = read_header(buffer, start)
        if header.attributes != MARKED or header.producer_id < 0 or not header.count == header.span == 1:
            raise
        return header
    except InvalidRecord:  # so its checksum and attributes are right
        header = read_header(buffer, start)
        if not 1 <= header.count <= min(header.size, header.span) or header.producer_id >= 0:
            raise
        return header


def read_header(buffer: memoryview | bytes, start: int) -> BatchHeader:
    """The fields of the batch at ``start``, whose whole header is there; nothing is checked."""
    (
        _, length, _, _, _, attributes, last_delta, first_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    ) = _unpack_header(buffer, start)  # fmt: skip
    return BatchHeader(
        length + LENGTH_END, count, max_timestamp, first_timestamp,
        producer_id, producer_epoch, base_sequence, attributes, last_delta + 1,
    )  # fmt: skip


def has_producer(buffer: memoryview, start: int) -> bool:
    """Whether the unchecked batch at ``start`` has the id of an idempotent producer, which is not negative."""
    return start + HEADER_BYTES <= len(buffer) and buffer[start + PRODUCER_ID_AT] < 0x80


def _refuse(
    buffer: memoryview, start: int, stop: int, bytes_max: int
) -> CorruptBatch | MessageTooLarge | UnsupportedVersion | InvalidRecord | InvalidRequest:
    """The error for a batch that :func:`check_batch` refuses."""
    _, length, _, magic, crc, attributes, last_delta, *_, count = _unpack_header(buffer, start)
    size = length + LENGTH_END
    if magic != MAGIC:
        return UnsupportedVersion(f"record batch of magic {magic}: only magic 2 (Kafka 0.11+) is stored")
    if size < HEADER_BYTES:
        return CorruptBatch(f"a record batch of {size} bytes is shorter than its header")
    if size > bytes_max:
        return MessageTooLarge(
            f"record batch of {size} bytes, limit {bytes_max}: send smaller ones or raise max.message.bytes"
        )
    if size > stop - start:
        return CorruptBatch(f"record batch of {size} bytes, only {stop - start} are there")
    if crc32c(buffer[start + ATTRIBUTES_AT : start + size]) != crc:
        return CorruptBatch(f"record batch of {size} bytes fails its CRC32C")
    if attributes & CONTROL:
        return InvalidRequest("control batches are written by brokers only")
    if attributes & DELETE_HORIZON:
        return InvalidRequest("a delete horizon is set by brokers only")
    if attributes & CODEC_MASK > CODEC_MAX:
        return UnsupportedVersion(f"codec {attributes & CODEC_MASK} is none of none, gzip, snappy, lz4, zstd")
    if count < 1:
        return InvalidRecord(f"a record batch of {count} records")
    if count > size:
        return InvalidRecord(f"{count} records in a batch of {size} bytes: offsets are bytes, so send it uncompressed")
    return InvalidRecord(f"last offset delta {last_delta} in a batch of {count} records")


_pack_place = struct.Struct(">qii").pack
assert struct.calcsize(">qii") == MAGIC_AT


def place(
    buffer: memoryview, start: int, position: int, size: int, span: int, leader_epoch: int = LEADER_EPOCH
) -> None:
    """Store base offset and leader epoch of the batch at ``start``, which will be at ``position`` of its log."""
    buffer[start : start + MAGIC_AT] = _pack_place(position + size - span, size - LENGTH_END, leader_epoch)


_ATTRIBUTES = struct.Struct(">H")
_TIMESTAMP = struct.Struct(">q")
_CRC = struct.Struct(">I")


def restamp(buffer: memoryview, start: int, header: BatchHeader, timestamp_ms: int, attributes: int) -> BatchHeader:
    """Store another largest timestamp and other attributes in a checked batch; return what its header says then."""
    size = header.size
    _ATTRIBUTES.pack_into(buffer, start + ATTRIBUTES_AT, attributes)
    _TIMESTAMP.pack_into(buffer, start + MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(buffer, start + CRC_AT, crc32c(buffer[start + ATTRIBUTES_AT : start + size]))
    return header._replace(max_timestamp=timestamp_ms, attributes=attributes)


_LENGTH = struct.Struct(">i")


def end_offset(buffer: memoryview | bytes, start: int) -> int:
    """The offset of the log at which the batch at ``start`` ends, from its header; nothing is checked."""
    base, length, _, _, _, attributes, last_delta, first_timestamp, *_ = _unpack_header(buffer, start)
    stop: int = first_timestamp + length + LENGTH_END if attributes == EMPTIED else base + last_delta + 1
    return stop


def walk(buffer: memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields (start, size, offset behind it) of every whole batch.

    Stops before a partial batch at the end.  Reads only headers; checks no checksum.

    Raises:
        CorruptBatch: the size of a batch is less than that of its header.
        UnsupportedVersion: not magic 2.
    """
    while stop - start >= HEADER_BYTES:
        size = _LENGTH.unpack_from(buffer, start + LENGTH_AT)[0] + LENGTH_END
        if buffer[start + MAGIC_AT] != MAGIC or size < HEADER_BYTES:
            raise _refuse(buffer, start, stop, size)
        if size > stop - start:
            return
        yield start, size, end_offset(buffer, start)
        start += size
