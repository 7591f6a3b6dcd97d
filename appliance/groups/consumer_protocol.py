"""Decodes and encodes the opaque bytes of consumers in a group: subscriptions and assignments ("consumer" type).

The group coordinator passes these bytes on and never depends on them.  They are decoded only to register owned
partitions, and to find the topics of a group; they are encoded only to show native groups to Kafka's tools.  Layout,
big-endian (newer versions append fields)::

    subscription   i16 version   [ string topic ]   bytes user data …
    assignment     i16 version   [ string topic   [ i32 partition ] ]   bytes user data …

where ``[ ]`` is an i32 count and its elements, a string an i16 length and UTF-8.  Bytes of any other form, such as
those of other protocol types, decode to nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from ..names import TopicPartition

TYPE: Final = "consumer"
"""The protocol type of groups with these bytes."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
ELEMENTS_MAX = 100_000


def subscribed_topics(data: bytes) -> tuple[str, ...]:
    try:
        count, position = _count(data, _I16.size)
        topics = []
        for _ in range(count):
            topic, position = _string(data, position)
            topics.append(topic)
    except (struct.error, ValueError):
        return ()
    return tuple(topics)


def assigned_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    try:
        topics, position = _count(data, _I16.size)
        partitions = []
        for _ in range(topics):
            topic, position = _string(data, position)
            count, position = _count(data, position)
            numbers = struct.unpack_from(f">{count}i", data, position)
            position += 4 * count
            partitions += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, ValueError):
        return ()
    return tuple(partitions)


def encode_subscription(topics: Sequence[str]) -> bytes:
    names = b"".join(_encode_string(topic) for topic in topics)
    return b"\0\0" + _I32.pack(len(topics)) + names + _I32.pack(-1)


def encode_assignment(partitions: Iterable[tuple[str, int]]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [b"\0\0", _I32.pack(len(by_topic))]
    for topic, numbers in sorted(by_topic.items()):
        parts += [_encode_string(topic), _I32.pack(len(numbers)), struct.pack(f">{len(numbers)}i", *numbers)]
    return b"".join(parts) + _I32.pack(-1)


def _count(data: bytes, position: int) -> tuple[int, int]:
    (count,) = _I32.unpack_from(data, position)
    if not 0 <= count <= min(ELEMENTS_MAX, len(data)):
        raise ValueError(f"{count} elements in {len(data)} bytes")
    return count, position + _I32.size


def _string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = _I16.unpack_from(data, position)
    start = position + _I16.size
    if not 0 <= size <= len(data) - start:
        raise ValueError(f"string of {size} bytes, {len(data) - start} are left")
    return data[start : start + size].decode(), start + size


def _encode_string(text: str) -> bytes:
    encoded = text.encode()
    return _I16.pack(len(encoded)) + encoded
