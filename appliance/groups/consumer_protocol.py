"""Decodes and encodes the opaque bytes of consumers in a group: subscriptions and assignments ("consumer" type).

In a group of the classic protocol the coordinator passes these bytes on and never depends on them.  They are decoded to
register owned partitions, to find the topics of a group, and where members of both protocols share a group
(:mod:`.classic_members`, :mod:`.migration`); they are encoded for the latter, and to show native groups to Kafka's
tools.  Layout, big-endian (newer versions append fields)::

    subscription   i16 version   [ string topic ]   bytes user data
                   1 on:   [ string topic   [ i32 partition ] ] owned     2 on:   i32 generation     3 on:   string rack
    assignment     i16 version   [ string topic   [ i32 partition ] ]   bytes user data

where ``[ ]`` is an i32 count and its elements, a string an i16 length and UTF-8, bytes an i32 length and bytes; the
length of null is -1.  Bytes of any other form, such as those of other protocol types, decode to nothing where they
are only shown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..errors import BadValue
from ..names import TopicPartition

TYPE: Final = "consumer"
"""The protocol type of groups with these bytes."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
ELEMENTS_MAX = 100_000
RACK_FROM: Final = 3
"""The first version of a subscription that has the rack."""


class OfferedSubscription(NamedTuple):
    """``owned``: what the member still reads while it joins; clients that give everything up first say nothing."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...]
    rack: str | None
    user_data: bytes = b""


def decode_subscription(data: bytes) -> OfferedSubscription:
    """Raises BadValue: it is none."""
    try:
        (version,) = _I16.unpack_from(data)
        topics, position = _topics(data, _I16.size)
        owned: tuple[TopicPartition, ...] = ()
        rack = None
        user_data, position = _user_data(data, position)
        if version >= 1:
            owned, position = _partitions(data, position)
        if version >= RACK_FROM and data[position + _I32.size :][:2] != b"\xff\xff":
            rack, _ = _string(data, position + _I32.size)
    except (struct.error, ValueError) as error:
        raise BadValue(f"no subscription of a consumer: {error}") from None
    return OfferedSubscription(topics, owned, rack, user_data)


def decode_assignment(data: bytes, said: bytes = b"") -> tuple[TopicPartition, ...]:
    """The partitions; none for b"".

    ``said``: the user data of the member's own subscription, which leaders with librdkafka send back to it.

    Raises:
        BadValue: it is no assignment, or an assignor of its own has put more into it than partitions.
    """
    if not data:
        return ()
    try:
        partitions, position = _partitions(data, _I16.size)
        more, _ = _user_data(data, position)
    except (struct.error, ValueError) as error:
        raise BadValue(f"no assignment of a consumer: {error}") from None
    if more not in (b"", said):
        raise BadValue("the assignor of its members tells them more than their partitions")
    return partitions


def subscribed_topics(data: bytes) -> tuple[str, ...]:
    try:
        return _topics(data, _I16.size)[0]
    except (struct.error, ValueError):
        return ()


def assigned_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    try:
        return _partitions(data, _I16.size)[0]
    except (struct.error, ValueError):
        return ()


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


def _topics(data: bytes, position: int) -> tuple[tuple[str, ...], int]:
    count, position = _count(data, position)
    topics = []
    for _ in range(count):
        topic, position = _string(data, position)
        topics.append(topic)
    return tuple(topics), position


def _partitions(data: bytes, position: int) -> tuple[tuple[TopicPartition, ...], int]:
    topics, position = _count(data, position)
    partitions: list[TopicPartition] = []
    for _ in range(topics):
        topic, position = _string(data, position)
        count, position = _count(data, position)
        numbers = struct.unpack_from(f">{count}i", data, position)
        position += 4 * count
        partitions += [TopicPartition(topic, number) for number in numbers]
    return tuple(partitions), position


def _user_data(data: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _I32.unpack_from(data, position)
    start = position + _I32.size
    if not -1 <= size <= len(data) - start:
        raise ValueError(f"{size} bytes, {len(data) - start} are left")
    return data[start : start + max(size, 0)], start + max(size, 0)


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
