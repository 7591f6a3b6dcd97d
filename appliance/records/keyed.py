"""Takes batches apart into records that stay as they are, and joins records to batches, for compaction.

Of a record only the key, the time and the offset are read; what follows the offset delta is copied.  A joined batch has
no producer: the state of producers is kept elsewhere (``processes/writer/producers``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from ..errors import CorruptBatch, InvalidRecord, InvalidTimestamp
from .batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    place,
)
from .compression import NONE, compress, decompress
from .encode import varint
from .holes import padded
from .varints import read_unsigned

_VARINT_BYTES_MAX: Final = 10
_TIME_BYTES_MAX: Final = 10
_TIME_MAX: Final = 1 << 61
"""Larger times, and differences of them, might not fit into a batch of other records any more."""
_LENGTH_BYTES_MAX: Final = 5


class KeyedRecord(NamedTuple):
    """A record: offset in the log, time in ms, and its bytes from the key on."""

    offset: int
    timestamp: int
    rest: bytes


class KeyedBatch:
    """The records of a batch by their numbers, of all of which compaction asks offset and key."""

    def __init__(self, data: bytes, header: BatchHeader, base_offset: int) -> None:
        """Raises IndexError where a record leaves ``data``; the other errors are those of :func:`keyed_batch`."""
        self._data = data
        self._first_timestamp = header.first_timestamp
        self._append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
        self.offsets: list[int] = []
        self.keys: list[bytes] = []
        """Also of records without one: empty."""
        self.keyless: set[int] = set()
        """The numbers of records without a key."""
        self.valueless: set[int] = set()
        """The numbers of records without a value."""
        self._times: list[int] = []
        self._rests: list[int] = []
        self._ends: list[int] = []
        if abs(header.first_timestamp) > _TIME_MAX:
            raise InvalidTimestamp(f"batch {base_offset} begins at {header.first_timestamp} ms")
        end = self._split(header, base_offset)
        if end != len(data):
            raise CorruptBatch(f"{len(data) - end} bytes follow the last record of batch {base_offset}")

    def _split(self, header: BatchHeader, base_offset: int) -> int:
        """Find all records; return where the last one ends.  Almost every number has one byte or two, read here."""
        data, span, size = self._data, header.span, len(self._data)
        add_offset, add_key, add_time = self.offsets.append, self.keys.append, self._times.append
        add_rest, add_end = self._rests.append, self._ends.append
        position, last = 0, -1
        for number in range(header.count):
            length = data[position]
            if length < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                length, position = length & 0x7F | high << 7, position + 2
            else:
                length, position = read_unsigned(data, position, _VARINT_BYTES_MAX, CorruptBatch)
            end = position + (length >> 1)
            if length & 1 or end > size:
                raise IndexError
            time, position = data[position + 1], position + 2  # attributes come first
            if time >= 0x80:
                time, position = self._long_time(position - 1, base_offset)
            delta = data[position]
            if delta < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                delta, position = delta & 0x7F | high << 7, position + 2
            else:
                delta, position = read_unsigned(data, position, _VARINT_BYTES_MAX, CorruptBatch)
            delta = delta >> 1 if not delta & 1 else -1
            if not last < delta < span:
                raise CorruptBatch(f"a record of batch {base_offset} has another offset delta")
            last = delta
            add_rest(position)
            length = data[position]
            if length < 0x80:
                position += 1
            else:
                length, position = read_unsigned(data, position, _VARINT_BYTES_MAX, CorruptBatch)
            if length & 1:
                self.keyless.add(number)
                add_key(b"")
            else:
                add_key(data[position : position + (length >> 1)])
                position += length >> 1
            length = data[position]
            if length < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                length, position = length & 0x7F | high << 7, position + 2
            else:
                length, position = read_unsigned(data, position, _VARINT_BYTES_MAX, CorruptBatch)
            if length & 1:
                self.valueless.add(number)
            if position + (length >> 1) > end:
                raise IndexError
            add_offset(base_offset + delta)
            add_time(time)
            add_end(end)
            position = end
        return position

    def _long_time(self, position: int, base_offset: int) -> tuple[int, int]:
        """The time at ``position`` against that of the batch, zigzag, and the position behind it."""
        time, position = read_unsigned(self._data, position, _VARINT_BYTES_MAX, CorruptBatch)
        if time > 2 * _TIME_MAX:
            raise InvalidTimestamp(f"a record of batch {base_offset} is {time // 2} ms from its first")
        return time, position

    def __len__(self) -> int:
        return len(self.offsets)

    def records(self, numbers: Iterable[int]) -> list[KeyedRecord]:
        """Those with these numbers, which are copied."""
        data, rests, ends, times, first = self._data, self._rests, self._ends, self._times, self._first_timestamp
        append_time = self._append_time
        return [
            KeyedRecord(
                self.offsets[number],
                first + ((times[number] >> 1) ^ -(times[number] & 1)) if append_time is None else append_time,
                data[rests[number] : ends[number]],
            )
            for number in numbers
        ]


def keyed_batch(batch: memoryview, header: BatchHeader, base_offset: int, bytes_max: int) -> KeyedBatch:
    """The records of a sound batch from a log.

    A batch that the broker stamped has one time for all its records.

    Raises:
        CorruptBatch: they cannot be read.
        InvalidTimestamp: they have times of which no batch can be made.
        MessageTooLarge: they unpack to more than ``bytes_max``.
    """
    data = bytes(batch[HEADER_BYTES : header.size])
    if codec := header.attributes & CODEC_MASK:
        data = decompress(codec, data, bytes_max)
    try:
        return KeyedBatch(data, header, base_offset)
    except IndexError:
        raise CorruptBatch(f"the records of batch {base_offset} leave its {len(data)} bytes") from None


class BatchPlace(NamedTuple):
    """What a batch of records counts from, and the offset before which it ends."""

    base_offset: int
    base_timestamp: int
    end: int


def join(records: Sequence[KeyedRecord], codec: int, place_: BatchPlace, padding: int = 0) -> bytes:
    """One batch of these records, which are in the order of their offsets.

    ``padding``: how many bytes longer it is to be before it is compressed: numbers get more bytes than they need, which
    every client reads.  The batch is as long as they allow.
    """
    parts: list[bytes] = []
    for offset, timestamp, rest in records:
        time, delta = varint(timestamp - place_.base_timestamp), varint(offset - place_.base_offset)
        length = varint(1 + len(time) + len(delta) + len(rest))
        if padding:
            longest = min(padding, _LENGTH_BYTES_MAX - len(delta))
            longer = min(padding - longest, _TIME_BYTES_MAX - len(time))
            if len(varint(1 + len(time) + longer + len(delta) + longest + len(rest))) == len(length):
                time, delta = padded(time, longer), padded(delta, longest)
                padding -= longer + longest
                length = varint(1 + len(time) + len(delta) + len(rest))
            longest = min(padding, _LENGTH_BYTES_MAX - len(length))
            length = padded(length, longest)
            padding -= longest
        parts += (length, b"\0", time, delta, rest)
    payload = b"".join(parts)
    if codec != NONE:
        payload = compress(codec, payload)
    batch = bytearray(HEADER_BYTES) + payload
    span = place_.end - place_.base_offset
    latest = max(record.timestamp for record in records)
    fields = (0, 0, 0, MAGIC, 0, codec, span - 1, place_.base_timestamp, latest, -1, -1, -1, len(records))
    HEADER.pack_into(batch, 0, *fields)
    view = memoryview(batch)
    place(view, 0, place_.end - len(batch), len(batch), span)
    view[CRC_AT:ATTRIBUTES_AT] = crc32c(view[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(batch)


def check_keys(batch: memoryview, header: BatchHeader, bytes_max: int) -> None:
    """Check that all records of a batch have keys: compaction keeps the last one of each.

    Raises:
        InvalidRecord: one has none.
        CorruptBatch, InvalidTimestamp, MessageTooLarge: see :func:`keyed_batch`.
    """
    if keyless := keyed_batch(batch, header, 0, bytes_max).keyless:
        raise InvalidRecord(f"record {min(keyless)} has no key, which a compacted topic needs (cleanup.policy)")
