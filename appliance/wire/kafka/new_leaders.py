"""Names the leaders of partitions that are stored elsewhere, in replies to Produce and Fetch (KIP-951).

A worker knows the partitions that are stored here; of any other it says that there is none.  A client whose metadata is
old would then ask for it again, a request and a pause later.  So a partition that another broker leads is refused as in
Kafka, with NOT_LEADER_OR_FOLLOWER, and versions from PRODUCE_FROM and FETCH_FROM on say in tagged fields who leads it::

    of a partition (tag 0 of Produce, 1 of Fetch)   i32 leader id, -1: none that lives   i32 leader epoch
    of the reply (tag 0)                            [broker { i32 id  host  i32 port  rack = null }]

All are flexible versions, of which each structure ends with its own count of tagged fields, 0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ...catalog import LEADER_EPOCH
from ...errors import NotLeader, UnknownPartition
from ...records.varints import unsigned
from .codes import Code
from .metadata_reply import Broker
from .reply import ReplyEncoder

PRODUCE_FROM: Final = 10
FETCH_FROM: Final = 16
_PRODUCE_TAG: Final = 0
_FETCH_TAG: Final = 1
_BROKERS_TAG: Final = 0
NO_TAGS: Final = b"\0"
_LEADER: Final = struct.Struct(">iix")
_I32: Final = struct.Struct(">i")
_FLEXIBLE: Final = ReplyEncoder(flexible=True)


class Leaders(NamedTuple):
    """Who leads what, by what a broker knows.

    ``leader_of``: the broker that leads a partition of a topic, NO_LEADER: it is not alive; None: there is no such
    partition.  ``brokers``: the live ones, with the addresses that the client of this connection gets.
    """

    broker_id: Callable[[], int]
    leader_of: Callable[[str, int], int | None]
    brokers: Callable[[], Iterable[Broker]]

    def refusal(self, error: int, topic: str, partition: int) -> int:
        """The error of a partition, by who leads it."""
        if error != UnknownPartition.code or self.leader_of(topic, partition) in (None, self.broker_id()):
            return error
        return NotLeader.code

    def of_produce(self, version: int, error: int, topic: str, partition: int) -> bytes:
        """The tagged fields of a partition in a reply to Produce."""
        if version < PRODUCE_FROM or error != NotLeader.code:
            return NO_TAGS
        return self._leader(_PRODUCE_TAG, topic, partition)

    def of_fetch(self, version: int, error: int, topic: str, partition: int) -> bytes:
        """The tagged fields of a partition in a reply to Fetch."""
        if version < FETCH_FROM or error not in (NotLeader.code, Code.FENCED_LEADER_EPOCH):
            return NO_TAGS
        return self._leader(_FETCH_TAG, topic, partition)

    def _leader(self, tag: int, topic: str, partition: int) -> bytes:
        leader = self.leader_of(topic, partition)
        named = (-1, -1) if leader is None else (leader, LEADER_EPOCH)
        return _tagged(tag, _LEADER.pack(*named))

    def of_reply(self, partitions: Sequence[tuple[str, int]]) -> bytes:
        """The tagged fields of a reply in which the leaders of these partitions are named."""
        leaders = {self.leader_of(*partition) for partition in partitions}
        rows = [
            b"".join((_I32.pack(number), _FLEXIBLE.string(host), _I32.pack(port), _FLEXIBLE.string(None), NO_TAGS))
            for number, host, port in self.brokers()
            if number in leaders
        ]
        return _tagged(_BROKERS_TAG, _FLEXIBLE.count(len(rows)) + b"".join(rows)) if rows else NO_TAGS


def _tagged(tag: int, value: bytes) -> bytes:
    """A section with one tagged field."""
    return b"\1" + unsigned(tag) + unsigned(len(value)) + value


NOT_KNOWN: Final = Leaders(lambda: -1, lambda topic, partition: None, tuple)
"""Of who knows only its own partitions."""
