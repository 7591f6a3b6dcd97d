"""Reads the common parts of Kafka's requests: varints, compact lengths, tagged fields.  Checks their bounds.

Request header v1: ``i16 api key, i16 version, i32 correlation id, i16 client id size (-1 = null), client id``; v2
(flexible versions) adds tagged fields.  Response header v0: ``i32 correlation id``; v1 adds tagged fields.  Compact
lengths and counts are a varint of length + 1, 0 is null.  Tagged fields: varint count, then each varint tag, varint
size, bytes.  Everything is big-endian.

Reading beyond the frame raises ``struct.error`` or ``IndexError``, which ``codec.py`` turns into a ProtocolFault.
Python does not check the bounds of slices, so lengths are checked here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from ...catalog import LEADER_EPOCH
from ...errors import ProtocolFault
from ...names import INTERNAL_TOPICS, is_topic
from ...records.varints import read_unsigned
from ..bounds import PARTS_MAX_MAX
from .codes import Code

TAGS_MAX: Final = 8
"""Largest number of tagged fields in one struct.  Clients send none in these APIs, newer ones one or two."""
VARINT_BYTES_MAX: Final = 5
STRING_BYTES_MAX: Final = 32_767
"""Largest size of a string, as in Kafka, also where a compact length allows more."""

I16: Final = struct.Struct(">h")
I32: Final = struct.Struct(">i")
SIZE: Final = struct.Struct(">I")


def read_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """The unsigned varint at ``position`` and the position after it."""
    byte = frame[position]
    if byte < 0x80:
        return byte, position + 1
    return read_unsigned(frame, position, VARINT_BYTES_MAX, ProtocolFault)


NO_EPOCH: Final = -1
"""The value of an unknown leader epoch."""


def epoch_refusal(epoch: int) -> int:
    """The error for a request that names leader epoch ``epoch``; 0 for the current one, or any."""
    if epoch in (NO_EPOCH, LEADER_EPOCH):
        return 0
    return Code.FENCED_LEADER_EPOCH if epoch < LEADER_EPOCH else Code.UNKNOWN_LEADER_EPOCH


def skip_tags(frame: memoryview, position: int) -> int:
    """The position after the tagged fields at ``position``.  They are ignored, as the protocol requires."""
    count = frame[position]
    if count == 0:
        return position + 1
    count, position = read_varint(frame, position)
    if count > TAGS_MAX:
        raise ProtocolFault(f"{count} tagged fields, limit {TAGS_MAX}")
    for _ in range(count):
        _, position = read_varint(frame, position)
        size, position = read_varint(frame, position)
        position += size
    if position > len(frame):
        raise ProtocolFault(f"tagged fields end at byte {position} of a frame of {len(frame)}")
    return position


TopicPrefix = tuple[bytes, int]
"""A topic of a request: its prefix (size, name and partition count, as received) and the number of its partitions.

The topic in the reply begins with the same prefix."""

TOPIC_ID_BYTES: Final = 16
NO_NAMES: Final[Mapping[bytes, str]] = MappingProxyType({})
"""Names by topic id, where none is known."""
NO_TOPIC: Final = ""
"""Replaces an illegal name.  No topic has this name."""
TOPICS_KNOWN_MAX: Final = 4096
topics_known: dict[tuple[bytes, bool], tuple[str, TopicPrefix]] = {}
"""Topics of earlier requests, by prefix and by whether it is flexible.  A look-up takes a third of the time of reading.

Only legal names are kept, so an entry takes less than 1 KiB.  Internal topics are not kept, so a topic found here is
not internal."""


def read_count(
    frame: memoryview, position: int, flexible: bool, element_bytes_min: int, count_max: int = PARTS_MAX_MAX
) -> tuple[int, int]:
    """An array's length and the position after it.  Null is refused.

    Raises ProtocolFault when the array is longer than ``count_max``, or than fits in the rest of the frame.
    """
    if flexible:
        count, position = read_varint(frame, position)
        count -= 1
    else:
        (count,) = I32.unpack_from(frame, position)
        position += 4
    if not 0 <= count <= count_max or count * element_bytes_min > len(frame) - position:
        raise ProtocolFault(
            f"array of {count} elements at byte {position} of a frame of {len(frame)}, limit {count_max}"
        )
    return count, position


def read_topic(
    frame: memoryview, position: int, flexible: bool, partition_bytes_min: int
) -> tuple[str, TopicPrefix, int]:
    """Name (or NO_TOPIC) and group of the topic at ``position``, and the position of its first partition."""
    if flexible:
        size, start = read_varint(frame, position)
        size -= 1
    else:
        (size,) = I16.unpack_from(frame, position)
        start = position + 2
    stop = start + size
    if not 0 <= size <= STRING_BYTES_MAX or stop >= len(frame):
        raise ProtocolFault(f"topic name of {size} bytes at byte {position} of a frame of {len(frame)}")
    after = stop + 4
    if flexible:
        after = stop + 1 if frame[stop] < 0x80 else read_varint(frame, stop)[1]
    prefix = bytes(frame[position:after])
    cached = topics_known.get((prefix, flexible))
    if cached is None:
        count, _ = read_count(frame, stop, flexible, partition_bytes_min)
        name = frame[start:stop]
        if not is_topic(name):
            return NO_TOPIC, (prefix, count), after
        cached = str(name, "ascii"), (prefix, count)
        if cached[0] in INTERNAL_TOPICS:
            return *cached, after
        if len(topics_known) >= TOPICS_KNOWN_MAX:
            topics_known.clear()
        topics_known[prefix, flexible] = cached
    topic, group = cached
    if group[1] * partition_bytes_min > len(frame) - after:
        raise ProtocolFault(f"{group[1]} partitions at byte {after} of a frame of {len(frame)}")
    return topic, group, after


def read_topic_id(frame: memoryview, position: int, partition_bytes_min: int) -> tuple[bytes, TopicPrefix, int]:
    """Id and group of the topic at ``position`` in a flexible version, and the position of its first partition."""
    stop = position + TOPIC_ID_BYTES
    count, after = read_count(frame, stop, True, partition_bytes_min)
    return bytes(frame[position:stop]), (bytes(frame[position:after]), count), after


def read_rows(
    frame: memoryview, position: int, count: int, row: struct.Struct, flexible: bool
) -> tuple[Iterable[tuple[int, ...]], int]:
    """Read ``count`` rows of fixed size.  In flexible versions the last byte of ``row`` counts the tagged fields.

    That count is nearly always 0, and a pad byte in ``row``.
    """
    stop = position + count * row.size
    if not flexible or not any(frame[position + row.size - 1 : stop : row.size]):
        return row.iter_unpack(frame[position:stop]), stop
    rows = []
    for _ in range(count):
        rows.append(row.unpack_from(frame, position))
        position = skip_tags(frame, position + row.size - 1)
    return rows, position
