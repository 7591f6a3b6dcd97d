"""Decodes and encodes Fetch (API 1), versions 4 to 18.

Request (``[…]`` arrays; from 12 on compact lengths, and tagged fields at each ``}`` and at the end)::

    i32 replica (-14)  i32 wait ms max  i32 bytes min  i32 bytes max  i8 isolation
    i32 session id (7+)  i32 session epoch (7+)
    [topic { name (-12) or id (13+)
             [partition { i32 index  i32 leader epoch (9+)  i64 offset  i32 last fetched epoch (12+)
                                i64 log start (5+)  i32 bytes max }] }]
    [topic { name (-12) or id (13+)  [i32 index] }] (7+): to be forgotten
    rack (11+): not read

Reply::

    i32 throttle ms = 0  i16 error (7+)  i32 session id (7+)
    [topic { name (-12) or id (13+)
             [partition { i32 index  i16 error  i64 end  i64 last stable offset
                                i64 log start (5+)  [aborted { i64 producer id  i64 first offset }]
                                i32 preferred replica = -1 (11+)  i32 size, record batches }] }]

The list of aborted transactions is null unless the request reads only committed records (isolation 1), as in Kafka.

Fetch sessions (KIP-227) are in ``processes.network.fetch_sessions``.  A reply with session id 0 refuses one, so each
fetch names all its partitions.  The Java client sends a fetch without partitions at its end, with epoch -1.  A topic
whose id (KIP-516) is not known gets UNKNOWN_TOPIC_ID.  A partition with another leader epoch than the request names
(-1: any) gets FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.  Where another broker leads, or the epoch is an old one,
the reply names the leader (16+, KIP-951, ``new_leaders.py``).  What only followers send is not read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final

from ...catalog import LEADER_EPOCH
from ...errors import ProtocolFault, UnknownTopicId, UnsupportedVersion
from ...records.varints import unsigned
from ..bounds import FETCH_BYTES_MAX
from ..requests import (
    NO_OFFSET,
    NO_SESSION,
    WITHOUT_SESSION,
    Fetch,
    FetchPart,
    FetchResult,
    FileRange,
    Local,
    SessionReply,
    SessionStep,
)
from .apis import APIS, FETCH
from .new_leaders import NO_TAGS, NOT_KNOWN, Leaders
from .primitives import (
    I16,
    I32,
    NO_EPOCH,
    NO_TOPIC,
    SIZE,
    TopicPrefix,
    epoch_refusal,
    read_count,
    read_rows,
    read_topic,
    read_topic_id,
    skip_tags,
)

VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM = APIS[FETCH][2:5]
ANY_EPOCH: Final = (NO_EPOCH, LEADER_EPOCH)

IDS_FROM: Final = 13
"""First version that names topics by their ids."""

_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple
_ERROR: Final = itemgetter(0)
_HEAD_V4 = struct.Struct(">4xiiib")
_HEAD_V7 = struct.Struct(">4xiiibii")
_HEAD_V15 = struct.Struct(">iiibii")
_ROW_V4 = struct.Struct(">iqi")
_ROW_V5 = struct.Struct(">iq8xi")
_ROW_V9 = struct.Struct(">iiq8xi")
_ROW_V12 = struct.Struct(">iiq4x8xix")
_ROWS: Final = [_ROW_V4] * 5 + [_ROW_V5] * 4 + [_ROW_V9] * 3 + [_ROW_V12] * 7
"""The row of a partition, by version: index, leader epoch (9+), offset and bytes max.

The last byte from version 12 on counts the tagged fields.
"""

_REPLY_HEAD_V4 = struct.Struct(">i4x")
_REPLY_HEAD_V7 = struct.Struct(">i4xhi")
_REPLY_HEAD_V12 = struct.Struct(">i5xhi")
_PART_V4 = struct.Struct(">ihqq")
_PART_V5 = struct.Struct(">ihqqq")
_ABORTED_V4 = struct.Struct(">qq")
_ABORTED_V12 = struct.Struct(">qqx")
_NO_REPLICA: Final = b"\xff\xff\xff\xff"
_NULL: Final = b"\xff\xff\xff\xff"


FetchContext = tuple[int, int, bytes, list[TopicPrefix]]
"""The values needed for the reply:

- correlation id and version,
- the count of topics as received, and the topics: the reply has the same ones, unless it names those of a session."""


def decode(
    frame: memoryview,
    position: int,
    correlation_id: int,
    version: int,
    parts_max: int,
    topic_names: Mapping[bytes, str],
) -> Fetch | Local:
    if version > VERSION_MAX:
        return Local(_refuse(correlation_id, VERSION_MAX, UnsupportedVersion.code))
    if version < VERSION_MIN:
        raise ProtocolFault(f"Fetch version {version} is not served: see ApiVersions")
    session_id, session_epoch = 0, NO_SESSION
    if version >= 7:
        head = _HEAD_V7 if version < 15 else _HEAD_V15
        wait_ms, bytes_min, bytes_max, isolation, session_id, session_epoch = head.unpack_from(frame, position)
        position += head.size
    else:
        wait_ms, bytes_min, bytes_max, isolation = _HEAD_V4.unpack_from(frame, position)
        position += _HEAD_V4.size
    parts, topics, groups, refused, position = _read_parts(frame, position, version, parts_max, topic_names)
    by_id = version >= IDS_FROM
    session = WITHOUT_SESSION
    if by_id or session_id or session_epoch != NO_SESSION:
        forgotten = _read_forgotten(frame, position, version, parts_max)
        session = SessionStep(session_id, session_epoch, forgotten, by_id)
    context: FetchContext = (correlation_id, version, topics, groups)
    return Fetch(
        context,
        wait_ms if wait_ms > 0 else 0,
        bytes_min if bytes_min > 0 else 0,
        min(bytes_max, FETCH_BYTES_MAX) if bytes_max > 0 else 0,
        parts,
        refused=refused,
        session=session,
        committed=isolation == 1,
    )


def _read_parts(
    frame: memoryview, position: int, version: int, parts_max: int, topic_names: Mapping[bytes, str]
) -> tuple[list[FetchPart], bytes, list[TopicPrefix], dict[int, int], int]:
    flexible = version >= FLEXIBLE_FROM
    row = _ROWS[version]
    count, start = read_count(frame, position, flexible, 3, parts_max)
    topics = bytes(frame[position:start])
    parts: list[FetchPart] = []
    groups: list[TopicPrefix] = []
    refused: dict[int, int] = {}
    position = start
    for _ in range(count):
        topic_id = b""
        if version >= IDS_FROM:
            topic_id, group, position = read_topic_id(frame, position, row.size)
            topic = topic_names.get(topic_id, NO_TOPIC)
        else:
            topic, group, position = read_topic(frame, position, flexible, row.size)
        rows, position = read_rows(frame, position, group[1], row, flexible)
        if version >= 9:
            for index, epoch, offset, limit in rows:
                if epoch not in ANY_EPOCH:
                    refused[len(parts)], offset = epoch_refusal(epoch), NO_OFFSET
                parts.append(_new(FetchPart, (topic, index, offset, limit, topic_id)))
        else:
            parts += [_new(FetchPart, (topic, index, offset, limit, b"")) for index, offset, limit in rows]
        groups.append(group)
        if flexible:
            position = skip_tags(frame, position)
        if len(parts) > parts_max:
            raise ProtocolFault(f"more than {parts_max} partitions in one fetch")
    return parts, topics, groups, refused, position


def _read_forgotten(frame: memoryview, position: int, version: int, parts_max: int) -> list[tuple[str | bytes, int]]:
    flexible = version >= FLEXIBLE_FROM
    count, position = read_count(frame, position, flexible, 3, parts_max)
    forgotten: list[tuple[str | bytes, int]] = []
    topic: str | bytes
    for _ in range(count):
        if version >= IDS_FROM:
            topic, (_, partitions), position = read_topic_id(frame, position, I32.size)
        else:
            topic, (_, partitions), position = read_topic(frame, position, flexible, I32.size)
        stop = position + partitions * I32.size
        forgotten += [(topic, index) for (index,) in I32.iter_unpack(frame[position:stop])]
        position = skip_tags(frame, stop) if flexible else stop
        if len(forgotten) > parts_max:
            raise ProtocolFault(f"more than {parts_max} partitions to forget in one fetch")
    return forgotten


def refuse(request: Fetch, code: int) -> bytes:
    """The reply to a fetch that has an error as a whole."""
    context: FetchContext = request.context
    return _refuse(*context[:2], code)


def _refuse(correlation_id: int, version: int, code: int) -> bytes:
    """An answer for the whole request, which versions from 7 on have."""
    if version >= FLEXIBLE_FROM:
        body = _REPLY_HEAD_V12.pack(correlation_id, code, 0) + b"\1\0"
    else:
        body = _REPLY_HEAD_V7.pack(correlation_id, code, 0) + b"\0\0\0\0"
    return SIZE.pack(len(body)) + body


def _grouped(
    parts: list[FetchPart], results: list[FetchResult], flexible: bool
) -> tuple[list[FetchPart], list[FetchResult], bytes, list[TopicPrefix]]:
    """Parts and results by topic, with the count and the prefixes of the topics."""
    topics: dict[str | bytes, list[tuple[FetchPart, FetchResult]]] = {}
    for part, result in zip(parts, results, strict=True):
        topics.setdefault(part.topic_id or part.topic, []).append((part, result))
    rows = [row for of_topic in topics.values() for row in of_topic]
    groups = [(_prefix(name, len(of_topic), flexible), len(of_topic)) for name, of_topic in topics.items()]
    count = unsigned(len(groups) + 1) if flexible else I32.pack(len(groups))
    return [part for part, _ in rows], [result for _, result in rows], count, groups


def _prefix(topic: str | bytes, count: int, flexible: bool) -> bytes:
    if isinstance(topic, bytes):
        return topic + unsigned(count + 1)
    name = topic.encode()
    if flexible:
        return unsigned(len(name) + 1) + name + unsigned(count + 1)
    return I16.pack(len(name)) + name + I32.pack(count)


def _tail(version: int, aborted: Sequence[tuple[int, int]] | None, size: int) -> bytes:
    """The fields of a partition behind the offsets, up to its record batches; None: a list that is null."""
    if version >= FLEXIBLE_FROM:
        if aborted:
            rows = b"".join([_ABORTED_V12.pack(*transaction) for transaction in aborted])
            return unsigned(len(aborted) + 1) + rows + _NO_REPLICA + unsigned(size + 1)
        return (b"\0" if aborted is None else b"\1") + _NO_REPLICA + (unsigned(size + 1) if size else b"\1")
    listed = _NULL if aborted is None else I32.pack(len(aborted))
    listed += b"".join([_ABORTED_V4.pack(*transaction) for transaction in aborted or ()])
    return listed + (_NO_REPLICA if version == 11 else b"") + I32.pack(size)


def _by_leader(
    parts: Sequence[FetchPart], results: list[FetchResult], version: int, leaders: Leaders
) -> tuple[list[FetchResult], list[tuple[str, int]]]:
    """The results, with the error for what another broker leads; the partitions whose leader the reply names."""
    by_leader, named = [], []
    for part, result in zip(parts, results, strict=True):
        error = result.error and leaders.refusal(result.error, part.topic, part.partition)
        by_leader.append(result if error == result.error else result._replace(error=error))
        if error and leaders.of_fetch(version, error, part.topic, part.partition) != NO_TAGS:
            named.append((part.topic, part.partition))
    return by_leader, named


def encode(
    request: Fetch, results: list[FetchResult], session: SessionReply | None, leaders: Leaders = NOT_KNOWN
) -> list[bytes | FileRange]:
    """The reply frame in pieces, size prefix first."""
    context: FetchContext = request.context
    correlation_id, version, topics, groups = context
    flexible = version >= FLEXIBLE_FROM
    parts, session_id = request.parts, 0
    if session is not None:
        session_id = session.id
        if session.parts is not None:
            parts, results, topics, groups = _grouped(session.parts, results, flexible)
    assert len(results) == len(parts)
    if version >= IDS_FROM and any(part.topic == NO_TOPIC for part in parts):
        unknown = FetchResult(UnknownTopicId.code, -1, -1, 0, ())
        results = [result if part.topic else unknown for part, result in zip(parts, results, strict=True)]
    named: list[tuple[str, int]] = []
    if any(map(_ERROR, results)):
        results, named = _by_leader(parts, results, version, leaders)
    if flexible:
        chunk = [_REPLY_HEAD_V12.pack(correlation_id, 0, session_id), topics]
    elif version >= 7:
        chunk = [_REPLY_HEAD_V7.pack(correlation_id, 0, session_id), topics]
    else:
        chunk = [_REPLY_HEAD_V4.pack(correlation_id), topics]
    pieces: list[bytes | FileRange] = []
    head_bytes = body_bytes = 0
    rows = zip(parts, results, strict=True)
    for prefix, count in groups:
        chunk.append(prefix)
        for part, (error, log_start, end, size, part_pieces, stable, aborted) in islice(rows, count):
            if version >= 5:
                chunk.append(_PART_V5.pack(part[1], error, end, stable, log_start))
            else:
                chunk.append(_PART_V4.pack(part[1], error, end, stable))
            chunk.append(_tail(version, aborted if request.committed else None, size))
            if size:
                head = b"".join(chunk)
                head_bytes += len(head)
                body_bytes += size
                pieces.append(head)
                pieces += part_pieces
                chunk.clear()
            if flexible:
                chunk.append(leaders.of_fetch(version, error, part[0], part[1]) if error else NO_TAGS)
        if flexible:
            chunk.append(NO_TAGS)
    if flexible:
        chunk.append(leaders.of_reply(named) if named else NO_TAGS)
    if chunk:
        head = b"".join(chunk)
        head_bytes += len(head)
        pieces.append(head)
    first = pieces[0]
    assert isinstance(first, bytes)
    pieces[0] = SIZE.pack(head_bytes + body_bytes) + first
    return pieces
