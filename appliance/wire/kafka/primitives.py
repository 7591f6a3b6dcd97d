"""What Kafka's request and response layouts share: varints, compact lengths, tagged fields, bounds.

Request header v1: ``i16 api key, i16 version, i32 correlation id, i16 client id size (-1 = null), client id``; v2
(flexible versions) adds tagged fields.  Response header v0: ``i32 correlation id``; v1 adds tagged fields.  Compact
lengths and counts are a varint of length + 1, 0 is null.  Tagged fields: varint count, then each varint tag, varint
size, bytes.  Everything is big-endian.

Reading beyond the frame ends in ``struct.error`` or ``IndexError``, which ``codec.py`` turns into a ProtocolFault: no
reader has to check twice what unpacking checks anyway.  Slices are not checked by Python, so lengths are checked here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from ...catalog import LEADER_EPOCH
from ...errors import ProtocolFault
from ...names import INTERNAL_TOPICS, is_topic
from ...records.varints import read_unsigned
from ..bounds import PARTS_MAX_MAX
from .codes import Code

TAGS_MAX: Final = 8
"""Tagged fields in one place.  Clients send none in these APIs, newer ones one or two."""
VARINT_BYTES_MAX: Final = 5
STRING_BYTES_MAX: Final = 32_767
"""Of any string, as in Kafka, also where a compact length could say more."""

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
"""In place of a leader epoch: not known."""


def epoch_refusal(epoch: int) -> int:
    """The error for a client that asks for the leader of another epoch; 0: of this one, or of any."""
    if epoch in (NO_EPOCH, LEADER_EPOCH):
        return 0
    return Code.FENCED_LEADER_EPOCH if epoch < LEADER_EPOCH else Code.UNKNOWN_LEADER_EPOCH


def skip_tags(frame: memoryview, position: int) -> int:
    """The position after the tagged fields at ``position``; they are ignored, as the protocol asks."""
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


Group = tuple[bytes, int]
"""A topic of a request: its prefix and how many partitions follow.  Requests and replies begin a topic alike:
the prefix (size, name and partition count, as they came) is also what the reply begins it with."""

NO_TOPIC: Final = ""
"""In place of a name that no topic may have: whoever looks it up finds nothing."""
TOPICS_KNOWN_MAX: Final = 4096
topics_known: dict[tuple[bytes, bool], tuple[str, Group]] = {}
"""By prefix and whether it is flexible.  The same few topics come again and again: looking one up takes a
third of the time of reading it.  Only names that a topic may have get in, so an entry takes less than 1 KiB; internal
topics do not, so that whoever finds a topic here need not ask whether it is one."""


def read_count(
    frame: memoryview, position: int, flexible: bool, element_bytes_min: int, count_max: int = PARTS_MAX_MAX
) -> tuple[int, int]:
    """An array's length and the position after it; no array that we read may be null.

    Refused, before anything is built, when it cannot be in the rest of the frame or is longer than we take.
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


def read_topic(frame: memoryview, position: int, flexible: bool, partition_bytes_min: int) -> tuple[str, Group, int]:
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
    known = topics_known.get((prefix, flexible))
    if known is None:
        count, _ = read_count(frame, stop, flexible, partition_bytes_min)
        name = frame[start:stop]
        if not is_topic(name):
            return NO_TOPIC, (prefix, count), after
        known = str(name, "ascii"), (prefix, count)
        if known[0] in INTERNAL_TOPICS:
            return *known, after
        if len(topics_known) >= TOPICS_KNOWN_MAX:
            topics_known.clear()
        topics_known[prefix, flexible] = known
    topic, group = known
    if group[1] * partition_bytes_min > len(frame) - after:
        raise ProtocolFault(f"{group[1]} partitions at byte {after} of a frame of {len(frame)}")
    return topic, group, after


def read_rows(
    frame: memoryview, position: int, count: int, row: struct.Struct, flexible: bool
) -> tuple[Iterable[tuple[int, ...]], int]:
    """``count`` partitions of fixed size.  In flexible versions the last byte of ``row`` (a pad byte there)
    is the count of tagged fields, nearly always 0."""
    stop = position + count * row.size
    if not flexible or not any(frame[position + row.size - 1 : stop : row.size]):
        return row.iter_unpack(frame[position:stop]), stop
    rows = []
    for _ in range(count):
        rows.append(row.unpack_from(frame, position))
        position = skip_tags(frame, position + row.size - 1)
    return rows, position
