"""Decodes Metadata, FindCoordinator and InitProducerId, which network workers answer themselves.

Metadata (API 3), versions 0 to 13 (``n+`` from version n on; from 9 on compact lengths, and tagged fields T)::

    [topic { uuid id (10+)  name (10+: nullable)  T }]       null (0: empty) for all topics
    bool may create (4+)   bool cluster operations (8 to 10)   bool topic operations (8+)   T

FindCoordinator (API 10), versions 0 to 6 (from 3 on compact, and T)::

    request    string key (up to 3)   i8 key type (1+)   [string key] (4+)   T
    reply      i32 throttle ms = 0 (1+)
               up to 3: i16 error   nullable string message (1+)   i32 broker   string host   i32 port   T
               4+: [string key   i32 broker   string host   i32 port   i16 error   nullable string message   T]   T

InitProducerId (API 22), versions 0 to 5 (from 2 on compact, and T)::

    request    nullable string transactional id   i32 timeout ms   [i64 producer id   i16 epoch] (3+)   T
    reply      i32 throttle ms = 0   i16 error   i64 producer id   i16 epoch   T

Requests that a worker cannot answer are decoded to None.  They are forwarded to the coordinator.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from uuid import UUID

from ...errors import ProtocolFault
from ...names import GROUP_CHARACTERS_MAX
from ...records.varints import unsigned
from .apis import APIS, FIND_COORDINATOR, INIT_PRODUCER_ID, METADATA
from .primitives import I16, I32, SIZE, read_count, read_varint, skip_tags

GROUP_KEY: Final = 0
KEYS_MAX: Final = 100
_HEADER = struct.Struct(">hhih")
_PLACE_BYTES_MIN: Final = 2
_ID_BYTES: Final = 16
_TIMEOUT_BYTES: Final = 4
_PRODUCER_BYTES: Final = 10
_PRODUCER = struct.Struct(">ihqh")
"""The reply to InitProducerId: throttle, error, id, epoch."""


class MetadataQuestion(NamedTuple):
    """A Metadata request.  ``topics``: by name or by id, None for all."""

    version: int
    correlation_id: int
    topics: list[str | UUID] | None
    may_create: bool
    cluster_operations: bool
    topic_operations: bool


class CoordinatorQuestion(NamedTuple):
    version: int
    correlation_id: int
    groups: list[str]


class ProducerQuestion(NamedTuple):
    """A request for a producer id, without a transactional id."""

    version: int
    correlation_id: int


Question = MetadataQuestion | CoordinatorQuestion | ProducerQuestion


def decode(frame: memoryview, topics_max: int) -> Question | None:
    """Decode one of these requests; None for any other, or for one that a worker cannot answer."""
    try:
        key, version, correlation_id, client_id_size = _HEADER.unpack_from(frame)
        if key not in (METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID):
            return None
        api = APIS[key]
        if not api.version_min <= version <= api.version_max:
            return None
        flexible = version >= api.flexible_from
        position = _HEADER.size + max(client_id_size, 0)
        if flexible:
            position = skip_tags(frame, position)
        if key == METADATA:
            return _metadata(frame, position, version, correlation_id, flexible, topics_max)
        if key == FIND_COORDINATOR:
            return _find_coordinator(frame, position, version, correlation_id, flexible)
        return _init_producer(frame, position, version, correlation_id, flexible)
    except (struct.error, IndexError, UnicodeDecodeError, ProtocolFault):
        return None


def _metadata(
    frame: memoryview, position: int, version: int, correlation_id: int, flexible: bool, topics_max: int
) -> MetadataQuestion:
    topics: list[str | UUID] | None
    if _is_null(frame, position, flexible):
        topics, position = None, position + (1 if flexible else 4)
    else:
        count, position = read_count(frame, position, flexible, _PLACE_BYTES_MIN, topics_max)
        requested = []
        for _ in range(count):
            topic, position = _topic(frame, position, version, flexible)
            requested.append(topic)
        topics = requested
        if version == 0 and not topics:
            topics = None
    flags = [True, False, False]
    for index, present in enumerate((version >= 4, 8 <= version <= 10, version >= 8)):
        if present:
            flags[index], position = frame[position] != 0, position + 1
    _end(frame, position, flexible)
    return MetadataQuestion(version, correlation_id, topics, *flags)


def _topic(frame: memoryview, position: int, version: int, flexible: bool) -> tuple[str | UUID, int]:
    topic_id = None
    if version >= 10:
        topic_id = bytes(frame[position : position + _ID_BYTES])
        position += _ID_BYTES
    topic: str | UUID
    if topic_id is not None and _is_null(frame, position, flexible):
        topic, position = UUID(bytes=topic_id), position + 1
    else:
        topic, position = _string(frame, position, flexible)
    return topic, skip_tags(frame, position) if flexible else position


def _find_coordinator(
    frame: memoryview, position: int, version: int, correlation_id: int, flexible: bool
) -> CoordinatorQuestion | None:
    groups = []
    if version < 4:
        group, position = _string(frame, position, flexible)
        groups = [group]
    key_type = GROUP_KEY
    if version >= 1:
        key_type, position = frame[position], position + 1
    if version >= 4:
        count, position = read_count(frame, position, flexible, 1, KEYS_MAX)
        for _ in range(count):
            group, position = _string(frame, position, flexible)
            groups.append(group)
    _end(frame, position, flexible)
    answerable = key_type == GROUP_KEY and all(0 < len(group) <= GROUP_CHARACTERS_MAX for group in groups)
    return CoordinatorQuestion(version, correlation_id, groups) if answerable else None


def _init_producer(
    frame: memoryview, position: int, version: int, correlation_id: int, flexible: bool
) -> ProducerQuestion | None:
    is_null = frame[position] == 0 if flexible else I16.unpack_from(frame, position)[0] == -1
    if not is_null:
        return None
    fields_bytes = _TIMEOUT_BYTES + (_PRODUCER_BYTES if version >= 3 else 0)
    _end(frame, position + (1 if flexible else 2) + fields_bytes, flexible)
    return ProducerQuestion(version, correlation_id)


def encode_producer(question: ProducerQuestion, producer_id: int) -> bytes:
    """Encode the reply frame, with its size: a new producer id."""
    flexible = question.version >= APIS[INIT_PRODUCER_ID].flexible_from
    tags = b"\0" if flexible else b""
    reply = I32.pack(question.correlation_id) + tags + _PRODUCER.pack(0, 0, producer_id, 0) + tags
    return SIZE.pack(len(reply)) + reply


def encode_coordinator(question: CoordinatorQuestion, broker: int, host: str, port: int) -> bytes:
    """Encode the reply frame, with its size: this broker coordinates all groups of the request."""
    version = question.version
    flexible = version >= APIS[FIND_COORDINATOR].flexible_from
    tags = b"\0" if flexible else b""
    place = I32.pack(broker) + _text(host, flexible) + I32.pack(port)
    error, message = b"\0\0", (b"\0" if flexible else b"\xff\xff") if version >= 1 else b""
    body = [I32.pack(question.correlation_id), tags, I32.pack(0) if version >= 1 else b""]
    if version < 4:
        body += [error, message, place, tags]
    else:
        body.append(unsigned(len(question.groups) + 1))
        for group in question.groups:
            body += [_text(group, flexible), place, error, message, tags]
        body.append(tags)
    reply = b"".join(body)
    return SIZE.pack(len(reply)) + reply


def _is_null(frame: memoryview, position: int, flexible: bool) -> bool:
    return frame[position] == 0 if flexible else I32.unpack_from(frame, position)[0] == -1


def _string(frame: memoryview, position: int, flexible: bool) -> tuple[str, int]:
    if flexible:
        size, position = read_varint(frame, position)
        size -= 1
    else:
        (size,) = I16.unpack_from(frame, position)
        position += 2
    if not 0 <= size <= len(frame) - position:
        raise ProtocolFault(f"string of {size} bytes at byte {position} of a frame of {len(frame)}")
    return str(frame[position : position + size], "utf-8"), position + size


def _text(text: str, flexible: bool) -> bytes:
    encoded = text.encode()
    return (unsigned(len(encoded) + 1) if flexible else I16.pack(len(encoded))) + encoded


def _end(frame: memoryview, position: int, flexible: bool) -> None:
    """Raises ProtocolFault when the request is longer than its frame."""
    if flexible:
        position = skip_tags(frame, position)
    if position > len(frame):
        raise ProtocolFault(f"request needs {position} bytes, its frame has {len(frame)}")
