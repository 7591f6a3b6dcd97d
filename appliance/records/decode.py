"""Decodes RecordBatch v2 bytes to records.  The bytes may be forged.

A batch of plain values of one length is split by arithmetic and then encoded again for comparison.  That is faster than
reading its numbers one by one.  Other batches are read field by field.  Contradictions (lengths that leave the record,
wrong offset deltas, bytes left over) are a :class:`~appliance.errors.CorruptBatch`.

Bounds count what a batch becomes, not what it takes in the log: some kilobytes may unpack to gigabytes, and the records
of a few megabytes to millions of objects.  A batch that unpacks to more than ``bytes_max``, of which each record and
each header takes OBJECT_BYTES, is a :class:`~appliance.errors.MessageTooLarge`.

The offsets follow from the base offset that the broker stored, and in a compacted batch from the deltas of its records;
timestamps are milliseconds since 1970.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import CorruptBatch, MessageTooLarge
from .batch import (
    CODEC_MASK,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    check_stored,
    read_header,
)
from .compression import NONE, decompress
from .encode import DELTA_STEPS, LARGE_BYTES, join_plain, keep_heap, plain_spans, varint

BYTES_MAX = 64 * 1024 * 1024
OBJECT_BYTES = 128
"""About what Python needs for a record, or for a header of one, beside its bytes."""
HEADERS_MAX = 10_000
"""Headers of one record, where those of a batch are not added up."""
_HEADER_BYTES_MIN = 2
_VARINT_BYTES_MAX = 10
_NOWHERE = -1
"""The end of a record of a negative length."""
_PLAIN_MIN = 4
"""Fewest records for the fast decoding of plain values: fewer are read faster field by field."""


class DecodeMeter:
    """Adds up what batches unpack to, also those that are too large: each of them takes ``bytes_max``."""

    __slots__ = ("unpacked_bytes",)

    def __init__(self) -> None:
        self.unpacked_bytes = 0


def check_count(count: int, bytes_max: int) -> None:
    """Raises MessageTooLarge: so many records take more than ``bytes_max``."""
    if count * OBJECT_BYTES > bytes_max:
        raise MessageTooLarge(
            f"{count} records are more than {bytes_max // OBJECT_BYTES}, which {bytes_max} bytes hold"
        )


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _open(
    buffer: memoryview, start: int, check_crc: bool, bytes_max: int, meter: DecodeMeter | None
) -> tuple[int, BatchHeader, bytes]:
    """Base offset, header and unpacked records of the batch at ``start``."""
    stop = len(buffer)
    if check_crc:
        base = HEADER.unpack_from(buffer, start)[0] if stop - start >= HEADER_BYTES else 0
        header = check_stored(buffer, start, stop, bytes_max)
        if header.attributes & CONTROL:
            raise CorruptBatch("a control batch has no messages")
    else:
        base, header = _trust(buffer, start, stop)
    if header.size >= LARGE_BYTES:
        keep_heap()
    unpacked_bytes = bytes_max
    try:
        check_count(header.count, bytes_max)
        payload = bytes(buffer[start + HEADER_BYTES : start + header.size])
        codec = header.attributes & CODEC_MASK
        if codec != NONE:
            payload = decompress(codec, payload, bytes_max)
        unpacked_bytes = len(payload) + header.count * OBJECT_BYTES
    finally:
        if meter is not None:
            meter.unpacked_bytes += unpacked_bytes
    return base, header, payload


def _trust(buffer: memoryview, start: int, stop: int) -> tuple[int, BatchHeader]:
    """Read the header of a batch that was checked before.  Checks only the fields that could lead out of the buffer."""
    if stop - start < HEADER_BYTES:
        raise CorruptBatch(f"{stop - start} bytes are no record batch")
    header = read_header(buffer, start)
    if (
        buffer[start + MAGIC_AT] != MAGIC
        or not HEADER_BYTES <= header.size <= stop - start
        or not 1 <= header.count <= header.span
        or header.attributes & CONTROL
    ):
        raise CorruptBatch(f"no record batch of magic {MAGIC} at {start}")
    return HEADER.unpack_from(buffer, start)[0], header


def decode_batch(
    buffer: bytes | bytearray | memoryview,
    start: int = 0,
    *,
    check_crc: bool = True,
    bytes_max: int = BYTES_MAX,
    meter: DecodeMeter | None = None,
) -> list[Record]:
    """Every record of the batch at ``start``; ``bytes_max`` bounds the batch and its unpacked size."""
    base, header, data = _open(memoryview(buffer), start, check_crc, bytes_max, meter)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    headers_max = bytes_max // OBJECT_BYTES - header.count
    try:
        return _records(data, base, header, append_time, headers_max)
    except IndexError:
        raise CorruptBatch(f"the records of batch {base} leave its {len(data)} bytes") from None


def decode_values(
    buffer: bytes | bytearray | memoryview,
    start: int = 0,
    *,
    check_crc: bool = True,
    bytes_max: int = BYTES_MAX,
    meter: DecodeMeter | None = None,
) -> tuple[list[bytes | None], int]:
    """The values of the batch at ``start``, and the offset that follows its last record."""
    base, header, data = _open(memoryview(buffer), start, check_crc, bytes_max, meter)
    try:
        values: list[bytes | None] | None = None
        if header.max_timestamp == header.first_timestamp and header.count >= _PLAIN_MIN:
            values = _equal_values(data, header.count) or _plain_values(data, header.count)
        if values is None:
            values = _values(data, header.count, header.span)
    except IndexError:
        raise CorruptBatch(f"the records of batch {base} leave its {len(data)} bytes") from None
    return values, base + header.span


def _long_varint(data: bytes, position: int) -> tuple[int, int]:
    """The zigzag varint at ``position``, and the position after it."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7
        if shift == 7 * _VARINT_BYTES_MAX:
            raise CorruptBatch(f"a number of more than {_VARINT_BYTES_MAX} bytes")


def _equal_values(data: bytes, count: int) -> list[bytes | None] | None:
    """The values of plain records of one length, split by arithmetic; None if the records are others."""
    # The first record gives the length, if it is plain: length, 0, 0, 0, null key, value length.
    _, position = _long_varint(data, 0)
    length, position = _long_varint(data, position + 4)
    if not 0 < length <= len(data):
        return None
    spans = plain_spans(length, count)
    if sum((width + length) * number for width, number in spans) != len(data):
        return None
    values: list[bytes | None] = []
    position = -1  # the bytes before a value begin with the last byte of the previous record
    for width, number in spans:
        end = position + number * (width + length)
        values += [data[at : at + length] for at in range(position + width, end, width + length)]
        position = end
    return values if join_plain(values) == data else None  # type: ignore[arg-type]  # no None among them


class _ValueSpans(dict[bytes, tuple[int, int]]):
    """Start and length of the value in a plain record, by the first two bytes of the record."""

    def __init__(self, delta_bytes: int) -> None:
        super().__init__()
        fixed_bytes = 4 + delta_bytes  # attributes, timestamp delta, null key, no headers
        for body_bytes in range(fixed_bytes + 1, _BODY_BYTES_END):
            length = body_bytes - fixed_bytes - 1
            length -= len(varint(length)) - 1
            if fixed_bytes + len(varint(length)) + length == body_bytes:
                head = varint(body_bytes)
                start = len(head) + 3 + delta_bytes + len(varint(length))
                self[(head + b"\0")[:2]] = start, length


_BODY_BYTES_END = 1 << 13
"""The length of a body takes three bytes from this size on.  The few records that large are read field by field."""
_value_spans: list[_ValueSpans] = []


def _plain_values(data: bytes, count: int) -> list[bytes | None] | None:
    """The values of plain records of any lengths, split by their first two bytes; None if the records are others."""
    if not _value_spans:
        _value_spans.extend(_ValueSpans(delta_bytes) for delta_bytes in range(1, 4))
    values: list[bytes | None] = []
    append = values.append
    position = done = 0
    for spans, stop in zip(_value_spans, DELTA_STEPS[1:], strict=False):
        try:
            for _ in range(done, min(stop, count)):
                skip, length = spans[data[position : position + 2]]
                position += skip
                append(data[position : position + length])
                position += length + 1
        except KeyError:
            return None
        done = stop
    return values if len(values) == count and join_plain(values) == data else None  # type: ignore[arg-type]  # no None among them


def _values(data: bytes, count: int, span: int) -> list[bytes | None]:
    """Read only the values, field by field.  Raises IndexError where a record leaves ``data``."""
    position, last = 0, -1 if span > count else None
    values: list[bytes | None] = []
    append = values.append
    for index in range(count):
        # Almost every number has one byte, so that case is tried first.
        length = data[position]
        if length < 0x80:
            end = position + 1 + (length >> 1) if not length & 1 else _NOWHERE
            position += 2
        elif (high := data[position + 1]) < 0x80:
            end = position + 2 + ((length & 0x7F | high << 7) >> 1) if not length & 1 else _NOWHERE
            position += 3
        else:
            length, position = _long_varint(data, position)
            end = position + length
            position += 1
        while data[position] >= 0x80:  # timestamp delta
            position += 1
        position += 1
        delta = data[position]
        if delta < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            delta = delta & 0x7F | high << 7
            position += 2
        else:
            delta, position = _long_varint(data, position)
            delta <<= 1
        if last is not None or delta != index << 1:
            last = _later(delta, last, span, index)
        if data[position] == 1:  # null key
            position += 1
        else:
            position = _bytes(data, position)[1]
        length = data[position]
        if length < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            length = length & 0x7F | high << 7
            position += 2
        else:
            length, position = _long_varint(data, position)
            length = length << 1 if length >= 0 else 1
        if length & 1:
            append(None)
        else:
            start = position
            position += length >> 1
            append(data[start:position])
        if data[position]:
            position = headers_at(data, position, len(data) // OBJECT_BYTES + HEADERS_MAX)[1]
        else:
            position += 1
        if position != end:
            raise CorruptBatch(f"record {index} of its batch has another length than declared")
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the last record")
    return values


def _records(data: bytes, base: int, header: BatchHeader, append_time: int | None, headers_max: int) -> list[Record]:
    """Read whole records, field by field.  Raises IndexError where one leaves ``data``."""
    count, first_timestamp, span = header.count, header.first_timestamp, header.span
    last = -1 if span > count else None
    records: list[Record] = []
    new = tuple.__new__  # twice as fast as the constructor of a NamedTuple
    position = 0
    for index in range(count):
        length = data[position]
        if length < 0x80:
            end = position + 1 + (length >> 1) if not length & 1 else _NOWHERE
            position += 2
        elif (high := data[position + 1]) < 0x80:
            end = position + 2 + ((length & 0x7F | high << 7) >> 1) if not length & 1 else _NOWHERE
            position += 3
        else:
            length, position = _long_varint(data, position)
            end = position + length
            position += 1
        timestamp = data[position]
        if timestamp < 0x80:
            timestamp = (timestamp >> 1) ^ -(timestamp & 1)
            position += 1
        else:
            timestamp, position = _long_varint(data, position)
        delta = data[position]
        if delta < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            delta = delta & 0x7F | high << 7
            position += 2
        else:
            delta, position = _long_varint(data, position)
            delta <<= 1
        if last is not None or delta != index << 1:
            last = _later(delta, last, span, index)
        key: bytes | None = None
        if data[position] == 1:
            position += 1
        else:
            key, position = _bytes(data, position)
        value, position = _bytes(data, position)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if data[position]:
            headers, position = headers_at(data, position, headers_max)
            headers_max -= len(headers)
        else:
            position += 1
        if position != end:
            raise CorruptBatch(f"record {index} of its batch has another length than declared")
        timestamp = first_timestamp + timestamp if append_time is None else append_time
        records.append(new(Record, (base + (delta >> 1), timestamp, key, value, headers)))
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the last record")
    return records


def _later(delta: int, last: int | None, span: int, index: int) -> int:
    """The offset delta of a record of a compacted batch, from its zigzag form: after ``last``, before ``span``.

    In other batches, where ``last`` is None, it is another one than it has to be.
    """
    offset = delta >> 1
    if last is None or delta & 1 or not last < offset < span:
        raise CorruptBatch(f"record {index} of its batch has another offset delta")
    return offset


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    """The nullable bytes at ``position``, and the position after them."""
    length = data[position]
    if length < 0x80:
        position += 1
    elif (high := data[position + 1]) < 0x80:
        length = length & 0x7F | high << 7
        position += 2
    else:
        length, position = _long_varint(data, position)
        length = length << 1 if length >= 0 else 1
    if length & 1:
        return None, position
    length >>= 1
    end = position + length
    if end > len(data):
        raise IndexError
    return data[position:end], end


def headers_at(
    data: bytes, position: int, count_max: int = HEADERS_MAX
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """The headers of a record, and the position after them.

    Raises:
        IndexError: they leave ``data``.
        MessageTooLarge: they are more than ``count_max``.
    """
    count, position = _long_varint(data, position)
    if count < 0:
        raise CorruptBatch(f"a record with {count} headers")
    if count > (len(data) - position) // _HEADER_BYTES_MIN:
        raise IndexError
    if count > count_max:
        raise MessageTooLarge(f"a record with {count} headers, where {count_max} have room")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _bytes(data, position)
        if name is None:
            raise CorruptBatch("a header without a name")
        value, position = _bytes(data, position)
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), position
