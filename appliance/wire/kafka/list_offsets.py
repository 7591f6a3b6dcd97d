"""Decodes and encodes ListOffsets (API 2), versions 1 to 11.

Request (``[…]`` arrays; from 6 on compact lengths, and tagged fields at each ``}`` and at the end)::

    i32 replica  i8 isolation (2+)
    [topic { name  [partition { i32 index  i32 leader epoch (4+)  i64 timestamp }] }]
    i32 timeout ms (10+): not read

Reply::

    i32 throttle ms = 0 (2+)
    [topic { name  [partition { i32 index  i16 error  i64 timestamp  i64 offset
                                i32 leader epoch (4+) }] }]

Timestamps are ms or one of::

    -1          the latest offset; with isolation 1 the last stable one
    -2          the earliest offset
    -3 (7+)     the offset of the largest timestamp
    -4 (8+)     the earliest offset stored locally: the earliest
    -5 (9+)     the latest offset in remote storage: none
    -6 (11+)    the earliest offset that is not in remote storage yet: none

Other values below 0 get UNSUPPORTED_VERSION.  An answer without an offset has the leader epoch -1.  A partition with
another leader epoch than the request names (-1: any) gets FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import Final

from ...catalog import LEADER_EPOCH
from ...errors import ProtocolFault, UnsupportedVersion
from ..requests import EARLIEST, LATEST, MAX_TIMESTAMP, Local, Offsets, OffsetsPart, OffsetsResult
from .apis import APIS, LIST_OFFSETS
from .primitives import NO_EPOCH, SIZE, TopicPrefix, epoch_refusal, read_count, read_rows, read_topic, skip_tags

VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM = APIS[LIST_OFFSETS][2:5]
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_NOT_TIERED: Final = -6
_KNOWN_FROM: Final = {EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_NOT_TIERED: 11}
"""Special timestamps, and the first version that has them."""

_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple
_ROW_V1 = struct.Struct(">iq")
_ROW_V4 = struct.Struct(">iiq")
_ROW_V6 = struct.Struct(">iiqx")
_PART_V1 = struct.Struct(">ihqq")
_PART_V4 = struct.Struct(">ihqqi")
_PART_V6 = struct.Struct(">ihqqix")
_REPLY_HEAD_V1 = struct.Struct(">Ii")
_REPLY_HEAD_V2 = struct.Struct(">Ii4x")
_REPLY_HEAD_V6 = struct.Struct(">Ii5x")
_REFUSED: Final = OffsetsResult(UnsupportedVersion.code, -1, -1, 0)
_NONE: Final = OffsetsResult(0, -1, -1, 0)


OffsetsContext = tuple[int, int, dict[int, OffsetsResult], bytes, list[TopicPrefix]]
"""The values needed for the reply:

- correlation id and version,
- the answers known already, by part.  Such a part has EARLIEST; its answer applies if the partition can be read,
- the count of topics as received, and the topics: the reply has the same ones."""


def decode(frame: memoryview, position: int, correlation_id: int, version: int, parts_max: int) -> Offsets | Local:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ProtocolFault(f"ListOffsets version {version} is not served: see ApiVersions")
    flexible = version >= FLEXIBLE_FROM
    row = _ROW_V6 if flexible else _ROW_V4 if version >= 4 else _ROW_V1
    committed = version > 1 and frame[position + 4] == 1
    position += 4 if version == 1 else 5
    count, start = read_count(frame, position, flexible, 3, parts_max)
    topics = bytes(frame[position:start])
    parts: list[OffsetsPart] = []
    groups: list[TopicPrefix] = []
    answers: dict[int, OffsetsResult] = {}
    position = start
    for _ in range(count):
        topic, group, position = read_topic(frame, position, flexible, row.size)
        rows, position = read_rows(frame, position, group[1], row, flexible)
        if version >= 4:
            for index, epoch, timestamp in rows:
                if refusal := epoch_refusal(epoch):
                    answers[len(parts)] = OffsetsResult(refusal, -1, -1, 0)
                    timestamp = EARLIEST
                parts.append(_new(OffsetsPart, (topic, index, timestamp, -1)))
        else:
            parts += [_new(OffsetsPart, (topic, index, timestamp, -1)) for index, timestamp in rows]
        groups.append(group)
        if flexible:
            position = skip_tags(frame, position)
        if len(parts) > parts_max:
            raise ProtocolFault(f"more than {parts_max} partitions in one request")
    for i, part in enumerate(parts):
        if part.timestamp < EARLIEST:
            asked, answer = _special(part.timestamp, version)
            parts[i] = part._replace(timestamp=asked)
            if answer is not None:
                answers[i] = answer
    request = Offsets((correlation_id, version, answers, topics, groups), parts, counted=False, committed=committed)
    if not parts:
        return Local(encode(request, []))
    return request


def _special(timestamp: int, version: int) -> tuple[int, OffsetsResult | None]:
    """The timestamp to look up for one below EARLIEST, and the answer if it is known.  All of a log is local."""
    if version < _KNOWN_FROM.get(timestamp, VERSION_MAX + 1):
        return EARLIEST, _REFUSED
    if timestamp == MAX_TIMESTAMP:
        return MAX_TIMESTAMP, None
    return EARLIEST, None if timestamp == EARLIEST_LOCAL else _NONE


def encode(request: Offsets, results: list[OffsetsResult]) -> bytes:
    """Encode the reply frame, with its size prefix."""
    assert len(results) == len(request.parts)
    context: OffsetsContext = request.context
    correlation_id, version, answers, topics, groups = context
    if answers:
        results = [result if result.error else answers.get(i, result) for i, result in enumerate(results)]
    flexible = version >= FLEXIBLE_FROM
    body = [topics]
    rows = zip(request.parts, results, strict=True)
    for prefix, count in groups:
        body.append(prefix)
        for (_, index, asked, _), (error, offset, timestamp, _) in islice(rows, count):
            if asked in (LATEST, EARLIEST):
                timestamp = -1  # as in Kafka: such an offset belongs to no record
            epoch = LEADER_EPOCH if offset >= 0 else NO_EPOCH
            if flexible:
                body.append(_PART_V6.pack(index, error, timestamp, offset, epoch))
            elif version >= 4:
                body.append(_PART_V4.pack(index, error, timestamp, offset, epoch))
            else:
                body.append(_PART_V1.pack(index, error, timestamp, offset))
        if flexible:
            body.append(b"\0")
    if flexible:
        body.append(b"\0")
    reply = b"".join(body)
    head = _REPLY_HEAD_V6 if flexible else _REPLY_HEAD_V2 if version >= 2 else _REPLY_HEAD_V1
    return head.pack(len(reply) + head.size - SIZE.size, correlation_id) + reply
