"""Encodes Metadata replies by hand, since they may hold thousands of topics and are often repeated.

Encoding 5,000 topics takes 60 ms with kafka-python and a tenth of that here.  The topics of the last "all topics" reply
are kept, one per version, so it takes almost no time while no topic changes.  Layout of versions 0 to 12 (fields in
this order, "n+" from version n on; from version 9 on strings and arrays are compact, and an empty tag section T follows
each struct)::

    i32 correlation id   9+ T
    3+ i32 throttle ms
    [ i32 broker id   string host   i32 port   1+ nullable string rack   9+ T ]
    2+ nullable string cluster id   1+ i32 controller id
    [ i16 error   string topic (12+ nullable)   10+ uuid topic id   1+ bool internal
      [ i16 error   i32 partition   i32 leader   7+ i32 leader epoch
        [ i32 replica ]   [ i32 in-sync replica ]   5+ [ i32 offline replica ]   9+ T ]
      8+ i32 authorized operations   9+ T ]
    8 to 10: i32 authorized operations   9+ T

Topic ids are the ids of the catalog, so that a client notices a topic that was deleted and created again.  librdkafka
needs them, too: it reserves four times the size of a reply for its decoded form.  In version 9 that is too little for
some hundreds of topics with short names and one partition (2.16: "tmpabuf memory shortage").

All partitions have one leader epoch (``catalog.LEADER_EPOCH``, stored in every batch).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple
from uuid import UUID

from ...catalog import LEADER_EPOCH, Topic
from ...names import INTERNAL_TOPICS
from .apis import APIS, METADATA
from .codes import Code
from .reply import ReplyEncoder

NO_LEADER = -1
VERSION_MAX, FLEXIBLE_FROM = APIS[METADATA].version_max, APIS[METADATA].flexible_from
NO_ID = UUID(int=0)
NO_OPERATIONS = -(2**31)
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_PARTITION = struct.Struct(">hi")

MetadataRow = tuple[str | UUID | None, Topic | int]
"""The name or id in the request (kafka-python reads an id of zero as None), and the topic, or an error."""


class Broker(NamedTuple):
    """A live appliance, and the address of one of its listeners for the client."""

    id: int
    host: str
    port: int


_Places = dict[tuple[int, ...], tuple[int, bytes]]


Operations = Callable[[str], Set[int]]
"""The numbers of the operations that the client may do on a topic."""


def operation_bits(operations: Set[int]) -> int:
    """Numbers of Kafka's AclOperation as a bit field."""
    return sum(1 << operation for operation in operations)


def _bits(operations: Set[int] | None) -> bytes:
    return _I32.pack(NO_OPERATIONS if operations is None else operation_bits(operations))


def asked_id(id: UUID | None) -> UUID:
    """The topic id of a request as kafka-python decodes it: None where the client sent zeros."""
    return NO_ID if id is None else id


def topic_id(topic: Topic) -> UUID:
    """The id of a topic, as clients see it."""
    return UUID(topic.id)


class MetadataEncoder:
    """Encodes Metadata replies.  ``leader``: returns the broker that serves a partition, NO_LEADER without one."""

    def __init__(self, leader: Callable[[Topic, int], int]) -> None:
        self._leader = leader
        self._all: dict[tuple[int, bool], tuple[int, bytes]] = {}

    def frame(
        self,
        correlation_id: int,
        version: int,
        brokers: Sequence[Broker],
        cluster_id: str,
        controller_id: int,
        topics: bytes,
        cluster_operations: Set[int] | None = None,
    ) -> bytes:
        """Encode the reply frame, with its size.  ``topics`` comes from :meth:`topics` or :meth:`all_topics`."""
        assert 0 <= version <= VERSION_MAX
        p = ReplyEncoder(version >= FLEXIBLE_FROM)
        parts = [_I32.pack(0) if version >= 3 else b"", p.count(len(brokers))]
        for broker in brokers:
            parts += [_I32.pack(broker.id), p.string(broker.host), _I32.pack(broker.port)]
            parts += [p.string(None) if version >= 1 else b"", p.tags]
        if version >= 2:
            parts.append(p.string(cluster_id or None))
        if version >= 1:
            parts.append(_I32.pack(controller_id))
        parts.append(topics)
        if 8 <= version <= 10:
            parts.append(_bits(cluster_operations))
        if version >= 13:
            parts.append(_I16.pack(Code.NONE))
        parts.append(p.tags)
        return p.frame(correlation_id, parts)

    def topics(self, version: int, rows: Sequence[MetadataRow], operations: Operations | None = None) -> bytes:
        """Encode the array of topics of a reply."""
        p = ReplyEncoder(version >= FLEXIBLE_FROM)
        nameless = None if version >= 12 else ""
        places: _Places = {}
        parts = [p.count(len(rows))]
        for name, topic in rows:
            error, placed = (topic, {}) if isinstance(topic, int) else (0, topic.partitions)
            parts += [_I16.pack(error), p.string(name if isinstance(name, str) else nameless)]
            if version >= 10:
                unknown = name.bytes if isinstance(name, UUID) else NO_ID.bytes
                parts.append(unknown if isinstance(topic, int) else bytes.fromhex(topic.id))
            if version >= 1:
                parts.append(b"\1" if name in INTERNAL_TOPICS else b"\0")
            parts.append(p.count(len(placed)))
            for partition, brokers in placed.items():
                assert not isinstance(topic, int)
                place = (self._leader(topic, partition), *brokers)
                if place not in places:
                    places[place] = self._place(version, p, place)
                error, rest = places[place]
                parts += [_PARTITION.pack(error, partition), rest]
            if version >= 8:
                has_operations = operations is not None and not isinstance(topic, int)
                parts.append(_bits(operations(topic.name) if has_operations else None))  # type: ignore[union-attr, misc]
            parts.append(p.tags)
        return b"".join(parts)

    def all_topics(
        self,
        version: int,
        revision: int,
        list_topics: Callable[[], Sequence[Topic]],
        operations: Operations | None = None,
    ) -> bytes:
        """As :meth:`topics`, for all topics and a client that may do everything.

        Encodes them again only when ``revision`` has changed.
        """
        kept = self._all.get((version, operations is not None))
        if kept is None or kept[0] != revision:
            rows: list[MetadataRow] = [(topic.name, topic) for topic in list_topics()]
            kept = self._all[version, operations is not None] = revision, self.topics(version, rows, operations)
        return kept[1]

    @staticmethod
    def _place(version: int, p: ReplyEncoder, place: tuple[int, ...]) -> tuple[int, bytes]:
        """Error, and the fields after the number, of a partition with this leader and these brokers."""
        leader, *brokers = place
        alive = leader != NO_LEADER
        replicas = p.numbers(brokers)
        parts = [_I32.pack(leader), _I32.pack(LEADER_EPOCH) if version >= 7 else b"", replicas]
        parts.append(p.numbers([leader] if alive else []))
        if version >= 5:
            parts.append(p.numbers([]) if alive else replicas)
        parts.append(p.tags)
        return Code.NONE if alive else Code.LEADER_NOT_AVAILABLE, b"".join(parts)
