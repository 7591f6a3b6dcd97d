"""The owned partitions of a group consumer and one of its streams, without a group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from appliance.client.cluster_client import Cluster
from appliance.client.damage_reports import DamageReports
from appliance.client.decoder import ChunkDecoder
from appliance.client.fetcher import Chunk, Fetched
from appliance.client.streams import MessageStream, OwnedPartitions
from appliance.records import batch as batches
from appliance.records.encode import encode_values
from appliance.records.markers import Marker, make_marker

from .client_peer import Partition

PART, OTHER = ("t", 0), ("t", 1)
REPORTS = DamageReports(Cluster("127.0.0.1:1"), time.monotonic)


class Room:
    """Owned partitions and one stream that reads two partitions, each with ten values in two batches."""

    def __init__(self) -> None:
        self.lease = True
        self.owned = OwnedPartitions(lambda: self.lease)
        self.stream = MessageStream(self.owned, ChunkDecoder(REPORTS, check_crc=True, on_corrupt="raise"), "t", 0)
        self.woken = 0
        self.fetched: list[Fetched] = []
        self.ends: dict[Any, int] = {}
        for part in (PART, OTHER):
            owned = self.owned.add_partition(part, self.stream)
            owned.begun, owned.fetching = 0, True

    def put(self, part: tuple[str, int], counts: Sequence[int] = (5, 5)) -> None:
        log = Partition()
        for i, count in enumerate(counts):
            log.append(encode_values([b"%d-%d-%d" % (part[1], i, j) for j in range(count)], 0))
        fetched = Fetched(part, 0, self.wake)
        fetched.received_bytes = len(log.data)
        self.fetched.append(fetched)
        self.ends[part] = len(log.data)
        self.owned.put_chunks([Chunk(fetched, memoryview(bytes(log.data)), 0, 0)])

    def put_marker(self, part: tuple[str, int], at: int) -> int:
        """The marker of a commit at an offset.  Returns the offset behind it."""
        data, info = make_marker(7, 0, Marker(committed=True, coordinator_epoch=0), 0)
        batches.place(memoryview(data), 0, at, info.size, info.count)
        fetched = Fetched(part, at, self.wake)
        fetched.received_bytes = len(data)
        self.owned.put_chunks([Chunk(fetched, memoryview(bytes(data)), at, at)])
        return at + len(data)

    def wake(self) -> None:
        self.woken += 1
