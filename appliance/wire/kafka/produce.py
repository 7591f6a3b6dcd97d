"""Decodes and encodes Produce (API 0), versions 0 to 13.

Request (``[…]`` arrays; from 9 on compact lengths, and tagged fields at each ``}`` and at the end)::

    transactional id (3+)  i16 acks  i32 timeout ms
    [topic { name (-12) or id (13+)  [partition { i32 index  i32 size, record batches }] }]

Reply::

    [topic { name (-12) or id (13+)
             [partition { i32 index  i16 error  i64 base offset  i64 append time (2+)
                                i64 log start (5+)  [record errors] = none (8+)  error message (8+) }] }]
    i32 throttle ms = 0 (1+)

The record batches of a part are not copied: ``frame[start:stop]``.  Versions 0 to 2 hold the old message sets, which
are not stored: each partition gets UNSUPPORTED_VERSION.  Versions 10 to 12 are as 9, but that a reply names the leaders
of partitions that another broker has (10, KIP-951, ``new_leaders.py``).  Version 12 adds partitions to a transaction
only where brokers have decided on ``transaction.version`` 2 (KIP-890), of which these say nothing.  A topic whose id
(13+, KIP-516) is not known gets UNKNOWN_TOPIC_ID.  With acks=0 there is no reply.  A refused request with acks=0 closes
the connection, so that the client notices, as in Kafka.

Only Kafka's own tools, with the client id ADMIN_CLIENT_ID, may produce to internal topics.  Other clients get
INVALID_TOPIC_EXCEPTION.  Such a part is decoded without its batches, so that a missing partition is still reported as
missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from itertools import islice
from operator import itemgetter
from typing import Final

from ...errors import (
    DuplicateSequence,
    InvalidRecord,
    InvalidTopic,
    NotLeader,
    OutOfOrderSequence,
    ProtocolFault,
    UnknownTopicId,
    UnsupportedVersion,
)
from ...names import INTERNAL_TOPICS
from ...records.varints import unsigned
from ..requests import Local, Produce, ProducePart, ProduceResult
from .apis import APIS, PRODUCE
from .new_leaders import NO_TAGS, NOT_KNOWN, PRODUCE_FROM, Leaders
from .primitives import (
    I16,
    I32,
    NO_NAMES,
    NO_TOPIC,
    SIZE,
    TOPIC_ID_BYTES,
    TopicPrefix,
    read_count,
    read_topic,
    read_topic_id,
    read_varint,
    skip_tags,
    topics_known,
)
from .reply import MESSAGE_CHARACTERS_MAX

VERSION_SERVED_MIN: Final = 3
VERSION_SERVED_MAX, FLEXIBLE_FROM = APIS[PRODUCE].version_max, APIS[PRODUCE].flexible_from
IDS_FROM: Final = 13
"""First version that names topics by their ids."""
INVALID_REQUIRED_ACKS: Final = 21
PARTITION_BYTES_MIN: Final = 6
HEAD_AT: Final = 8
"""The position after the correlation id.  The heads of similar requests differ only in that."""

CLIENT_ID_AT: Final = 8
ADMIN_CLIENT_ID: Final = b"__admin_client"
_NONE_INTERNAL: Final[frozenset[int]] = frozenset()

_ERROR: Final = itemgetter(0)
_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple
_BEGIN = struct.Struct(">ii")
"""Key and version as one number, which is the version since the key of Produce is 0, and the correlation id."""
assert PRODUCE == 0
_HEAD = struct.Struct(">hi")
_HEAD_ONE = struct.Struct(">hhiih")
_HEAD_ONE_FLEXIBLE = struct.Struct(">BhiBB")
_HEAD_ONE_BY_ID = struct.Struct(">BhiB")
_ONE_TOPIC: Final = b"\0\0\0\1"
_ONE_TOPIC_FLEXIBLE: Final = b"\2"
_PARTITION = struct.Struct(">ii")
_REPLY_HEAD = struct.Struct(">Ii")
_REPLY_HEAD_FLEXIBLE = struct.Struct(">Iix")


ProduceContext = tuple[list[int], int, bytes, list[TopicPrefix], bytes, frozenset[int]]
"""The values needed for the reply, and for :func:`join`:

- correlation ids (one, unless requests have been joined) and version,
- the count of topics as received, and the topics: the reply has the same ones,
- the part of the head, from HEAD_AT on, that similar requests share (empty: not known),
- the numbers of refused parts, which are of internal topics."""


def decode(
    frame: memoryview,
    position: int,
    correlation_id: int,
    version: int,
    parts_max: int,
    topic_names: Mapping[bytes, str] = NO_NAMES,
) -> Produce | Local:
    """``topic_names``: by topic id, for the versions that have ids."""
    if version > VERSION_SERVED_MAX:
        raise ProtocolFault(f"Produce version {version} is not served: see ApiVersions")
    flexible = version >= FLEXIBLE_FROM
    transactional_id, position = _read_transactional_id(frame, position, version)
    acks, timeout_ms = _HEAD.unpack_from(frame, position)
    position += 6
    count, start = read_count(frame, position, flexible, 3, parts_max)
    topics = bytes(frame[position:start])
    parts: list[ProducePart] = []
    groups: list[TopicPrefix] = []
    internal: set[int] = set()
    position = start
    topic_ids: dict[str, bytes] | None = {} if version >= IDS_FROM else None
    for _ in range(count):
        if topic_ids is None:
            topic, group, position = read_topic(frame, position, flexible, PARTITION_BYTES_MIN)
        else:
            topic_id, group, position = read_topic_id(frame, position, PARTITION_BYTES_MIN)
            topic = topic_names.get(topic_id, NO_TOPIC)
            topic_ids[topic] = topic_id
        groups.append(group)
        if topic in INTERNAL_TOPICS and not _is_admin(frame):
            internal.update(range(len(parts), len(parts) + group[1]))
        if flexible:
            position = _read_parts_flexible(frame, position, topic, group[1], parts)
        else:
            position = _read_parts(frame, position, topic, group[1], parts)
        if len(parts) > parts_max:
            raise ProtocolFault(f"more than {parts_max} partitions in one request")
    for index in internal:
        parts[index] = parts[index]._replace(stop=parts[index].start)
    context: ProduceContext = ([correlation_id], version, topics, groups, b"", frozenset(internal))
    request = Produce(context, acks, timeout_ms, parts, transactional_id=transactional_id, topic_ids=topic_ids)
    if not -1 <= acks <= 1 or version < VERSION_SERVED_MIN:
        return _refuse(request)
    return request


def decode_one(frame: memoryview, position: int, correlation_id: int, version: int, parts_max: int) -> Produce | Local:
    """As :func:`decode` for versions 3 to 8, but faster for the usual request: one topic with one partition."""
    if len(frame) < position + _HEAD_ONE.size:
        return decode(frame, position, correlation_id, version, parts_max)
    transactional_id_size, acks, timeout_ms, count, size = _HEAD_ONE.unpack_from(frame, position)
    if transactional_id_size != -1 or count != 1 or size < 0 or not -1 <= acks <= 1:
        return decode(frame, position, correlation_id, version, parts_max)
    after = position + 18 + size
    prefix = bytes(frame[position + 12 : after])
    cached = topics_known.get((prefix, False))
    if cached is None or cached[1][1] != 1:
        return decode(frame, position, correlation_id, version, parts_max)
    topic, group = cached
    (index,) = I32.unpack_from(frame, after)
    head = after + I32.size
    start, stop = _records(frame, head)
    if stop < 0:
        return decode(frame, position, correlation_id, version, parts_max)
    part: ProducePart = _new(ProducePart, (topic, index, start, stop))
    shared = bytes(frame[HEAD_AT:head])
    return Produce(([correlation_id], version, _ONE_TOPIC, [group], shared, _NONE_INTERNAL), acks, timeout_ms, [part])


def decode_one_flexible(
    frame: memoryview, position: int, correlation_id: int, version: int, parts_max: int
) -> Produce | Local:
    """:func:`decode_one` for version 9 and later ones."""
    if len(frame) < position + _HEAD_ONE_FLEXIBLE.size:
        return decode(frame, position, correlation_id, version, parts_max)
    no_transaction, acks, timeout_ms, count, size = _HEAD_ONE_FLEXIBLE.unpack_from(frame, position)
    after = position + _HEAD_ONE_FLEXIBLE.size + size
    cached = topics_known.get((bytes(frame[position + 8 : after]), True))
    if no_transaction != 0 or count != 2 or not -1 <= acks <= 1 or cached is None or cached[1][1] != 1:
        return decode(frame, position, correlation_id, version, parts_max)
    topic, group = cached
    (index,) = I32.unpack_from(frame, after)
    head = after + I32.size
    start, stop = _records_flexible(frame, head)
    if stop < 0:
        return decode(frame, position, correlation_id, version, parts_max)
    part: ProducePart = _new(ProducePart, (topic, index, start, stop))
    shared = bytes(frame[HEAD_AT:head])
    return Produce(
        ([correlation_id], version, _ONE_TOPIC_FLEXIBLE, [group], shared, _NONE_INTERNAL), acks, timeout_ms, [part]
    )


def decode_one_by_id(
    frame: memoryview,
    position: int,
    correlation_id: int,
    version: int,
    parts_max: int,
    topic_names: Mapping[bytes, str],
) -> Produce | Local:
    """:func:`decode_one` for version 13."""
    named = position + _HEAD_ONE_BY_ID.size
    after = named + TOPIC_ID_BYTES
    if len(frame) <= after:
        return decode(frame, position, correlation_id, version, parts_max, topic_names)
    no_transaction, acks, timeout_ms, count = _HEAD_ONE_BY_ID.unpack_from(frame, position)
    topic_id = bytes(frame[named:after])
    topic = topic_names.get(topic_id)
    usual = no_transaction == 0 and count == 2 and frame[after] == 2 and -1 <= acks <= 1
    if not usual or topic is None or topic in INTERNAL_TOPICS:
        return decode(frame, position, correlation_id, version, parts_max, topic_names)
    (index,) = I32.unpack_from(frame, after + 1)
    head = after + 1 + I32.size
    start, stop = _records_flexible(frame, head)
    if stop < 0:
        return decode(frame, position, correlation_id, version, parts_max, topic_names)
    part: ProducePart = _new(ProducePart, (topic, index, start, stop))
    context: ProduceContext = (
        [correlation_id],
        version,
        _ONE_TOPIC_FLEXIBLE,
        [(topic_id + b"\2", 1)],
        bytes(frame[HEAD_AT:head]),
        _NONE_INTERNAL,
    )
    return Produce(context, acks, timeout_ms, [part], topic_ids={topic: topic_id})


def join(request: Produce, frame: memoryview, shift: int) -> bool:
    """See :meth:`appliance.wire.requests.Codec.join`.  Joins requests that the fast decoders can decode."""
    context: ProduceContext = request.context
    correlations, version, _, _, shared, _ = context
    head = HEAD_AT + len(shared)
    if not shared or len(frame) < head + I32.size:
        return False
    key_and_version, correlation_id = _BEGIN.unpack_from(frame)
    if key_and_version != version or bytes(frame[HEAD_AT:head]) != shared:
        return False
    start, stop = _records_flexible(frame, head) if version >= FLEXIBLE_FROM else _records(frame, head)
    if stop < 0:
        return False
    correlations.append(correlation_id)
    topic, index, _, _ = request.parts[0]
    request.parts.append(_new(ProducePart, (topic, index, shift + start, shift + stop)))
    request.count += 1
    return True


def _records(frame: memoryview, head: int) -> tuple[int, int]:
    """Start and stop of the record batches whose size is at ``head``; stop -1: the request is unusual."""
    (size,) = I32.unpack_from(frame, head)
    start = head + I32.size
    stop = start + size
    return start, stop if size >= 0 and stop <= len(frame) else -1


def _records_flexible(frame: memoryview, head: int) -> tuple[int, int]:
    """As :func:`_records`, for flexible versions; tagged fields are unusual."""
    size, start = read_varint(frame, head)
    stop = start + size - 1
    usual = size > 0 and stop + 2 <= len(frame) and not frame[stop] and not frame[stop + 1]
    return start, stop if usual else -1


def _read_parts(frame: memoryview, position: int, topic: str, count: int, parts: list[ProducePart]) -> int:
    for _ in range(count):
        index, size = _PARTITION.unpack_from(frame, position)
        start = position + 8
        position = start + size if size > 0 else start
        if position > len(frame):
            raise ProtocolFault(f"{size} bytes of records at byte {start} of a frame of {len(frame)}")
        parts.append(_new(ProducePart, (topic, index, start, position)))
    return position


def _read_parts_flexible(frame: memoryview, position: int, topic: str, count: int, parts: list[ProducePart]) -> int:
    """As :func:`_read_parts`, for flexible versions: tagged fields follow each partition and the topic."""
    for _ in range(count):
        (index,) = I32.unpack_from(frame, position)
        size, start = read_varint(frame, position + 4)
        stop = start + size - 1 if size else start
        position = skip_tags(frame, stop)
        parts.append(_new(ProducePart, (topic, index, start, stop)))
    return skip_tags(frame, position)


def _read_transactional_id(frame: memoryview, position: int, version: int) -> tuple[str | None, int]:
    """The transactional id, and the position after it."""
    if version < VERSION_SERVED_MIN:
        return None, position
    if version >= FLEXIBLE_FROM:
        size, position = read_varint(frame, position)
        size -= 1
    else:
        (size,) = I16.unpack_from(frame, position)
        position += 2
    if size < 0:
        return None, position
    if size > len(frame) - position:
        raise ProtocolFault("malformed Produce request: its transactional id is longer than the frame")
    return str(frame[position : position + size], "utf-8", "replace"), position + size


def _refuse(request: Produce) -> Local:
    if request.acks == 0:
        return Local(b"", close=True)
    if not -1 <= request.acks <= 1:
        code, why = INVALID_REQUIRED_ACKS, f"acks={request.acks}: only -1 (all), 0 and 1 have a meaning"
    else:
        code, why = (
            UnsupportedVersion.code,
            f"Produce versions {VERSION_SERVED_MIN} to {VERSION_SERVED_MAX} are served, see ApiVersions",
        )
    return Local(encode(request, [ProduceResult(code, -1, -1, -1, why)] * len(request.parts)))


def _is_admin(frame: memoryview) -> bool:
    (size,) = I16.unpack_from(frame, CLIENT_ID_AT)
    start = CLIENT_ID_AT + I16.size
    return bytes(frame[start : start + max(size, 0)]) == ADMIN_CLIENT_ID


def _as_kafka(result: ProduceResult) -> ProduceResult:
    """The error that Kafka's brokers answer.

    They do not know repeats beyond the last five batches.  DUPLICATE_SEQUENCE_NUMBER would be wrong: clients take it
    for delivered, also a client whose producer id another one has.
    """
    return result._replace(error=OutOfOrderSequence.code) if result.error == DuplicateSequence.code else result


def _refuse_internal(result: ProduceResult) -> ProduceResult:
    """Replace the error for missing batches by the one for internal topics: the batches were removed."""
    if result.error != InvalidRecord.code:
        return result
    return ProduceResult(InvalidTopic.code, -1, -1, -1, "internal topics take no messages of clients")


_UNKNOWN_ID: Final = ProduceResult(UnknownTopicId.code, -1, -1, -1, "no topic has this id: ask for metadata")


def _by_leader(request: Produce, results: list[ProduceResult], leaders: Leaders) -> list[ProduceResult]:
    """The results, with the error for what another broker leads."""
    named = []
    for (topic, partition, *_), result in zip(request.parts, results, strict=True):
        if leaders.refusal(result.error, topic, partition) != result.error:
            text = f"another broker leads {topic}-{partition}: ask for metadata"
            result = ProduceResult(NotLeader.code, -1, -1, -1, text)
        named.append(result)
    return named


def _encode_failed(part: ProducePart, result: ProduceResult, version: int, leaders: Leaders) -> bytes:
    """Encode a partition that is refused; its tagged fields are the end."""
    row = _ENCODERS[min(version, FLEXIBLE_FROM)](part.partition, _as_kafka(result))
    tags = leaders.of_produce(version, result.error, part.topic, part.partition)
    return row if tags == NO_TAGS else row[: -len(NO_TAGS)] + tags


def encode(request: Produce, results: list[ProduceResult], leaders: Leaders = NOT_KNOWN) -> bytes:
    """Encode the reply frames, one for each request, with their size prefixes; nothing for acks=0."""
    if request.acks == 0:
        return b""
    assert len(results) == len(request.parts)
    context: ProduceContext = request.context
    correlations, version, topics, groups, _, internal = context
    if internal:
        results = [_refuse_internal(result) if i in internal else result for i, result in enumerate(results)]
    if request.topic_ids is not None and NO_TOPIC in request.topic_ids:
        results = [result if part.topic else _UNKNOWN_ID for part, result in zip(request.parts, results, strict=True)]
    tags = b""
    if any(map(_ERROR, results)):
        results = _by_leader(request, results, leaders)
        tags = _tags_of_reply(request, results, version, leaders)
    flexible = version >= FLEXIBLE_FROM
    encode_part = _ENCODERS[min(version, FLEXIBLE_FROM)]
    head = _REPLY_HEAD_FLEXIBLE if flexible else _REPLY_HEAD
    topic_end = b"\0" if flexible else b""
    end = (b"\0\0\0\0" if version else b"") + (tags or topic_end)
    if len(groups) == 1 and len(results) == len(correlations):  # one partition, the same in each request
        front, end, index = topics + groups[0][0], topic_end + end, request.parts[0][1]
        rest = head.size - SIZE.size + len(front) + len(end)
        pack = head.pack
        reply: list[bytes] = []
        for correlation_id, result in zip(correlations, results, strict=True):
            part = request.parts[0]
            row = _encode_failed(part, result, version, leaders) if result[0] else encode_part(index, result)
            reply += (pack(rest + len(row), correlation_id), front, row, end)
        return b"".join(reply)
    rows = zip(request.parts, results, strict=True)
    body = [topics]
    for prefix, count in groups:
        body.append(prefix)
        body += [
            _encode_failed(part, result, version, leaders) if result[0] else encode_part(part[1], result)
            for part, result in islice(rows, count)
        ]
        body.append(topic_end)
    body.append(end)
    size = sum(map(len, body))
    return head.pack(head.size - SIZE.size + size, correlations[0]) + b"".join(body)


def _tags_of_reply(request: Produce, results: list[ProduceResult], version: int, leaders: Leaders) -> bytes:
    """The addresses of leaders that are named; b"": none is."""
    if version < PRODUCE_FROM:
        return b""
    elsewhere = [
        (part.topic, part.partition)
        for part, result in zip(request.parts, results, strict=True)
        if result.error == NotLeader.code
    ]
    return leaders.of_reply(elsewhere) if elsewhere else b""


_PART_V0 = struct.Struct(">ihq")
_PART_V2 = struct.Struct(">ihqq")
_PART_V5 = struct.Struct(">ihqqq")
_PART_V8 = struct.Struct(">ihqqqih")
_PART_V9 = struct.Struct(">ihqqqBBx")


def _encode_v0(index: int, result: ProduceResult) -> bytes:
    return _PART_V0.pack(index, result[0], result[1])


def _encode_v2(index: int, result: ProduceResult) -> bytes:
    return _PART_V2.pack(index, result[0], result[1], result[5])


def _encode_v5(index: int, result: ProduceResult) -> bytes:
    return _PART_V5.pack(index, result[0], result[1], result[5], result[3])


def _encode_v8(index: int, result: ProduceResult) -> bytes:
    error, base, _, log_start, message, append_ms = result
    if not message:
        return _PART_V8.pack(index, error, base, append_ms, log_start, 0, -1)
    text = message[:MESSAGE_CHARACTERS_MAX].encode()
    return _PART_V8.pack(index, error, base, append_ms, log_start, 0, len(text)) + text


def _encode_v9(index: int, result: ProduceResult) -> bytes:
    error, base, _, log_start, message, append_ms = result
    if not message:
        return _PART_V9.pack(index, error, base, append_ms, log_start, 1, 0)
    text = message[:MESSAGE_CHARACTERS_MAX].encode()
    return b"".join(
        (_PART_V5.pack(index, error, base, append_ms, log_start), b"\1", unsigned(len(text) + 1), text, b"\0")
    )


_ENCODERS: Final[list[Callable[[int, ProduceResult], bytes]]] = [
    _encode_v0,
    _encode_v0,
    *[_encode_v2] * 3,
    *[_encode_v5] * 3,
    _encode_v8,
    _encode_v9,
]
"""The encoder of a partition, by version."""
