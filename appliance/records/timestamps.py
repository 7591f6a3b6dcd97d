"""Reads the times of the records in a batch, for offsets by time.  The broker reads no other field of records.

The bytes come from clients and may be forged.  So there are bounds: a batch that unpacks to more than ``bytes_max``, or
has more than ``records_max`` records, is refused.
"""

from __future__ import annotations

from array import array
from typing import Final

from ..errors import CorruptBatch, MessageTooLarge
from .batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, check
from .compression import decompress
from .varints import read_unsigned

_VARINT_BYTES_MAX: Final = 10
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1


def largest_times(batch: bytes, *, bytes_max: int, records_max: int, skipped: int = 0) -> tuple[array[int], int]:
    """For each record of a batch, the largest timestamp (ms) up to it.  And the number of bytes unpacked.

    The first ``skipped`` records do not count, and have no entry.  The times never fall, so bisection finds the first
    record with at least a given time.  A batch that the broker stamped has one time for all its records, and one entry.

    Raises:
        ClientFault: the batch cannot be read, or is larger than allowed.
    """
    data = memoryview(batch)
    info = check(data, 0, len(data), bytes_max)
    if info.attributes & LOG_APPEND_TIME:
        return array("q", (info.max_timestamp,)), 0
    if info.count > records_max:
        raise MessageTooLarge(f"a batch of {info.count} records: at most {records_max} are looked into")
    payload = decompress(info.attributes & CODEC_MASK, batch[HEADER_BYTES : info.size], bytes_max)
    try:
        return _scan(payload, info.count, info.first_timestamp, skipped), len(payload)
    except IndexError:
        raise CorruptBatch(f"the records of a batch leave its {len(payload)} bytes") from None


def _scan(payload: bytes, count: int, first_timestamp: int, skipped: int) -> array[int]:
    """Raises IndexError where a record leaves the payload."""
    times = array("q")
    append = times.append
    largest = _I64_MIN
    position = 0
    for index in range(count):
        length = payload[position]
        if length < 0x80:
            position += 1
        else:
            length, position = read_unsigned(payload, position, _VARINT_BYTES_MAX, CorruptBatch)
        if length & 1:
            raise CorruptBatch("a record of a negative length")
        delta = payload[position + 1]  # attributes come first
        if delta >= 0x80:
            delta, _ = read_unsigned(payload, position + 1, _VARINT_BYTES_MAX, CorruptBatch)
        time = first_timestamp + ((delta >> 1) ^ -(delta & 1))
        if index >= skipped:
            if time > largest:
                largest = time if time < _I64_MAX else _I64_MAX
            append(largest)
        position += length >> 1
    return times
