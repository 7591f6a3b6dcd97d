"""Reads the times of the records in a batch, for offsets by time.  The broker reads no other field of records.

The bytes come from clients and may be forged.  So there are bounds: a batch that unpacks to more than ``bytes_max``, or
has more than ``records_max`` records, is refused.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from ..errors import CorruptBatch, MessageTooLarge
from .batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, check_stored
from .compression import decompress
from .varints import read_unsigned

_VARINT_BYTES_MAX: Final = 10
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1


class BatchTimes(NamedTuple):
    """For each record of a batch that counts, the largest timestamp (ms) up to it.

    The times never fall, so bisection finds the first record with at least a given time.  A batch that the broker
    stamped has one time for all its records, and one entry.
    """

    times: array[int]
    first: int
    """The number of records before those."""
    deltas: array[int]
    """Their offsets, less that of the batch, if it was compacted; else they count up from ``first``."""

    def delta(self, number: int) -> int:
        """The offset of an entry, less that of the batch."""
        return self.deltas[number] if self.deltas else self.first + number


def largest_times(batch: bytes, *, bytes_max: int, records_max: int, skipped: int = 0) -> tuple[BatchTimes, int]:
    """The times of the records of a batch, and the number of bytes unpacked.

    Records at the first ``skipped`` offsets do not count.

    Raises:
        ClientFault: the batch cannot be read, or is larger than allowed.
    """
    data = memoryview(batch)
    header = check_stored(data, 0, len(data), bytes_max)
    if header.attributes & LOG_APPEND_TIME:
        return BatchTimes(array("q", (header.max_timestamp,)), skipped, array("q")), 0
    if header.count > records_max:
        raise MessageTooLarge(f"a batch of {header.count} records: at most {records_max} are looked into")
    payload = decompress(header.attributes & CODEC_MASK, batch[HEADER_BYTES : header.size], bytes_max)
    try:
        return _scan(payload, header, skipped), len(payload)
    except IndexError:
        raise CorruptBatch(f"the records of a batch leave its {len(payload)} bytes") from None


def _scan(payload: bytes, header: BatchHeader, skipped: int) -> BatchTimes:
    """Raises IndexError where a record leaves the payload."""
    times, deltas, first = array("q"), array("q"), 0
    first_timestamp, is_compacted = header.first_timestamp, header.span > header.count
    append = times.append
    largest = _I64_MIN
    position = 0
    for index in range(header.count):
        length = payload[position]
        if length < 0x80:
            position += 1
        else:
            length, position = read_unsigned(payload, position, _VARINT_BYTES_MAX, CorruptBatch)
        if length & 1:
            raise CorruptBatch("a record of a negative length")
        delta, after = payload[position + 1], position + 2  # attributes come first
        if delta >= 0x80:
            delta, after = read_unsigned(payload, position + 1, _VARINT_BYTES_MAX, CorruptBatch)
        time = first_timestamp + ((delta >> 1) ^ -(delta & 1))
        offset = read_unsigned(payload, after, _VARINT_BYTES_MAX, CorruptBatch)[0] >> 1 if is_compacted else index
        if offset < skipped:
            first += 1
        else:
            if is_compacted:
                deltas.append(offset)
            if time > largest:
                largest = time if time < _I64_MAX else _I64_MAX
            append(largest)
        position += length >> 1
    return BatchTimes(times, first, deltas)
