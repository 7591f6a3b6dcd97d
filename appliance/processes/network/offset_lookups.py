"""Looks up offsets: the ends of partitions, offsets by time, records before an offset.

A request for the end of a log waits until the high watermark has reached the log end offset.  So it counts messages
acknowledged with acks=1.  Then the parts of the request are looked up in slices, alternating with other requests.

Bounds: in one turn of the loop, all requests together read ``network.look_bytes_max`` of logs, and no more than until
it is over (:meth:`.Turn.is_over`), plus at most one batch (16 MiB unpacked, 50,000 records).  The rest waits for the
next turn.  What is not in memory is brought by :mod:`.cold_reads`, while other requests are looked up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from ...broker import plan
from ...wire.requests import EARLIEST, Offsets
from .cold_reads import ColdReads
from .connections import Connections
from .fetches import FLUSH_WAIT_MS
from .known_partitions import KnownPartitions, WorkerPartition
from .turn import Turn
from .wait_lists import Awaited, DelayedRequest, PartitionWatch, WaitLists
from .worker_connection import Pending, WorkerConnection

SLICE_BYTES: Final = 64 * 1024
"""What is read for one request before the next has its turn: some 1 ms."""


class OffsetLookups:
    """Starts requests for offsets; owner of those that wait, for a flush or for their next slice."""

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        partitions: KnownPartitions,
        wait_lists: WaitLists,
        cold_reads: ColdReads,
        bytes_per_turn: int,
    ) -> None:
        self._turn = turn
        self._connections = connections
        self._partitions = partitions
        self._wait_lists = wait_lists
        self._cold_reads = cold_reads
        self._bytes_per_turn = self._bytes_left = bytes_per_turn
        self.unfinished: deque[tuple[Pending, plan.OffsetLookup]] = deque()
        """Requests that wait for their next slice."""
        self._cold: dict[Pending, plan.OffsetLookup] = {}
        """Those that wait for the disk."""

    def start(self, connection: WorkerConnection, request: Offsets, start: int, frame: memoryview) -> bool:
        """Wait for the flush of messages acknowledged with acks=1, then look up.

        Returns:
            False when the request has to start again in the next turn.
        """
        partitions = self._partitions.partitions_of(request)
        if self._connections.defer_for_announcement(connection, request, partitions):
            return False
        pending = Pending(connection, request)
        connection.begin_request(pending)
        awaited = _awaited_by(request, partitions)
        if awaited and not self._turn.stopping:
            for partition in partitions:
                if partition is not None:
                    partition.ask_for_flush(now=True)
            watch = PartitionWatch()
            self._wait_lists.await_at(watch, awaited)
            if watch.lists:
                delayed = DelayedRequest(pending, self._turn.now_ms + FLUSH_WAIT_MS, self, watch)
                self._wait_lists.begin_wait(delayed)
                return True
        self._enqueue(pending, request, partitions)
        return True

    def retry(self, delayed: DelayedRequest) -> None:
        """Look up, or go on waiting for the flush of other partitions."""
        delayed.watch.moved.clear()
        if not delayed.watch.lists:
            self.answer_now(delayed)

    def answer_now(self, delayed: DelayedRequest) -> None:
        """Look up now, without waiting for flushes."""
        request = delayed.pending.request
        assert isinstance(request, Offsets)
        watch = delayed.watch
        self._wait_lists.end_wait(delayed)
        self._wait_lists.release(watch)
        self._enqueue(delayed.pending, request, self._partitions.partitions_of(request))

    def _enqueue(self, pending: Pending, request: Offsets, partitions: Sequence[WorkerPartition | None]) -> None:
        self.unfinished.append((pending, plan.OffsetLookup(request, partitions)))
        self._look_up()

    def begin_turn(self) -> None:
        """Continue the look-ups that the last turn has left."""
        self._bytes_left = self._bytes_per_turn
        if self.unfinished:
            self._look_up()

    def _look_up(self) -> None:
        """Look up a slice of each request in turn, until this turn has read its bytes."""
        while self.unfinished and self._bytes_left > 0:
            pending, lookup = self.unfinished.popleft()
            connection = pending.connection
            if connection.closed:
                continue
            self._bytes_left -= lookup.answer_parts(min(self._bytes_left, SLICE_BYTES))
            if self._turn.is_over():
                self._bytes_left = 0
            if lookup.done:
                if errors := sum(bool(result.error) for result in lookup.results):
                    connection.counters.failed(Offsets.api, errors)
                self._connections.answer(pending, [connection.codec.encode_offsets(lookup.request, lookup.results)])
            elif lookup.cold is not None:
                self._cold[pending] = lookup
                connection.own(lookup, partial(self._cold.pop, pending))
                self._cold_reads.bring(pending, connection, [lookup.cold], partial(self._on_brought, pending))
            else:
                self.unfinished.append((pending, lookup))

    def _on_brought(self, pending: Pending) -> None:
        """Look on: what was not in memory is, or cannot be read."""
        lookup = self._cold.pop(pending)
        pending.connection.disown(lookup)
        self.unfinished.append((pending, lookup))
        self._look_up()

    def on_deleted(self, partition: WorkerPartition) -> None:
        """Answer parts that were not looked up yet in a deleted partition as unknown."""
        for lookup in (*(lookup for _, lookup in self.unfinished), *self._cold.values()):
            lookup.forget(partition)


def _awaited_by(request: Offsets, partitions: Sequence[WorkerPartition | None]) -> list[Awaited]:
    """The log end offset of each partition whose end the request asks for, where it is not readable yet."""
    return [
        (partition.wait_list, end)
        for part, partition in zip(request.parts, partitions, strict=True)
        if part.timestamp != EARLIEST and part.offset < 0 and partition is not None
        if (end := partition.table.log_end_offset) > partition.table.high_watermark
    ]
