"""Makes and reads markers: the control batches that end a transaction of a producer (KIP-98).

A marker has one record::

    key     4 bytes: version 0, type ABORT or COMMIT
    value   6 bytes: version 0, the epoch of the coordinator that has had it written

Its batch has the producer's id and epoch, no sequence, and the attributes of a control batch and of a transactional
one.  Only writers make markers, so all of them have the same form and MARKER_BYTES.  A hole (:mod:`.holes`) is a
control batch, too, but has no producer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from ..errors import ClientFault, CorruptBatch, UnsupportedVersion
from .batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    MARKED,
    TRANSACTIONAL,
    BatchHeader,
    check_stored,
    read_header,
    walk,
)

ABORT: Final = 0
COMMIT: Final = 1
_RECORD = struct.Struct(">bbbbbhhbhib")
"""Length, attributes, timestamp delta, offset delta, key: length and two fields, value: likewise; number of headers."""
MARKER_BYTES: Final = HEADER_BYTES + _RECORD.size
_KEY_BYTES: Final = 4
_VALUE_BYTES: Final = 6


class Marker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def make_marker(producer_id: int, epoch: int, marker: Marker, timestamp_ms: int) -> tuple[bytearray, BatchHeader]:
    """A marker, to be placed, and its header."""
    times = timestamp_ms, timestamp_ms
    batch = bytearray(MARKER_BYTES)
    HEADER.pack_into(batch, 0, 0, MARKER_BYTES - LENGTH_END, 0, MAGIC, 0, MARKED, 0, *times, producer_id, epoch, -1, 1)
    kind = COMMIT if marker.committed else ABORT
    length = 2 * (_RECORD.size - 1)  # of a varint, zigzag
    _RECORD.pack_into(
        batch, HEADER_BYTES, length, 0, 0, 0, 2 * _KEY_BYTES, 0, kind, 2 * _VALUE_BYTES, 0, marker.coordinator_epoch, 0
    )
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return batch, read_header(memoryview(batch), 0)


def check_marker(buffer: memoryview, start: int, stop: int) -> bool:
    """Whether the first batch in ``buffer[start:stop]`` is a whole marker with a right checksum."""
    if stop - start < MARKER_BYTES or not is_marker(read_header(buffer, start)):
        return False
    try:
        check_stored(buffer, start, stop, MARKER_BYTES)
    except ClientFault:
        return False
    return True


def aborted_batches(data: memoryview, aborted: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Positions of the batches in ``data`` that are part of aborted transactions: they are not for readers.

    Args:
        data: whole batches, as a fetch of committed messages returns them.
        aborted: producer ids and first offsets, as it returns them.
    """
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    out: set[int] = set()
    with suppress(CorruptBatch, UnsupportedVersion):  # whoever reads the batches gets the error
        for start, _, stop in walk(data, 0, len(data)) if waiting else ():
            while waiting and waiting[-1][1] < stop:
                out.add(waiting.pop()[0])
            header = read_header(data, start)
            if is_marker(header):
                if not read_marker(data, start).committed:
                    out.discard(header.producer_id)
            elif header.attributes & TRANSACTIONAL and header.producer_id in out:
                aborting.add(start)
    return frozenset(aborting)


def is_marker(header: BatchHeader) -> bool:
    """Whether a batch of a sound log is a marker."""
    return header.attributes == MARKED


def read_marker(batch: bytes | bytearray | memoryview, start: int = 0) -> Marker:
    """What the marker at ``start`` says."""
    _, _, _, _, _, _, kind, _, _, coordinator_epoch, _ = _RECORD.unpack_from(batch, start + HEADER_BYTES)
    return Marker(kind == COMMIT, coordinator_epoch)
