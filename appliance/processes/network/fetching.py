"""Answers Fetch requests from segment files, at once or when there is enough.

A fetch that finds too little becomes a :class:`DelayedRequest` in the wait lists of its partitions (``wait_lists``)
until a writer has published more or its time is up.  Messages acknowledged with acks=1 may lie above the high
watermark, where they cannot be read yet; a fetch of them asks the writer for a flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...broker import plan
from ...wire.requests import Fetch, FetchResult
from .connection_state import Connection, Pending
from .connections import Connections
from .known_partitions import KnownPartitions, Partition
from .turn import Turn
from .wait_lists import Awaited, DelayedRequest, WaitList, WaitLists

WAIT_MS_MAX: Final = 300_000
FLUSH_WAIT_MS: Final = 2_000
"""How long ListOffsets, and Fetch with max_wait 0, wait for the flush of messages acknowledged with acks=1."""


class Fetching:
    """Starts fetches; owner of the delayed ones."""

    def __init__(
        self, turn: Turn, connections: Connections, partitions: KnownPartitions, wait_lists: WaitLists
    ) -> None:
        self._turn = turn
        self._connections = connections
        self._partitions = partitions
        self._wait_lists = wait_lists

    def start(self, connection: Connection, request: Fetch, start: int, frame: memoryview) -> bool:
        """Answer, or wait for enough bytes as long as the client allows, and for the flush of written messages.

        Returns:
            False when the request has to start again in the next turn.
        """
        partitions = self._partitions.of(request)
        if self._connections.awaits_announcement(connection, partitions):
            return False
        pending = Pending(connection, request)
        connection.begin(pending)
        results, size = plan.fetch(request, partitions)
        wait_ms = min(request.wait_ms_max, WAIT_MS_MAX)
        if size == 0 and wait_ms <= 0 and (unflushed := _unflushed(request, partitions)):
            for partition in unflushed:
                partition.ask_for_flush(now=True)
            wait_ms = FLUSH_WAIT_MS
        if 0 <= size < request.bytes_enough and wait_ms > 0 and not self._turn.stopping:
            delayed = DelayedRequest(pending, self._turn.now_ms + wait_ms, self)
            if self._delay(delayed, request, partitions, results):
                return True
            results, size = plan.fetch(request, partitions)
        self._reply(pending, request, partitions, results, size)
        return True

    def _delay(
        self,
        delayed: DelayedRequest,
        request: Fetch,
        partitions: Sequence[Partition | None],
        results: list[FetchResult],
    ) -> bool:
        """Delay a fetch of known partitions; False when an awaited high watermark has come meanwhile."""
        wait_lists = [partition.wait_list for partition in partitions if partition is not None]
        high_watermarks = [result.high_watermark for result in results]
        if not self._wait_lists.delay(delayed, awaited_by(request, wait_lists, high_watermarks)):
            return False
        # After the fence of the wait: what the writer has written since, it flushes soon, since it has seen the wait.
        for partition in _unflushed(request, partitions):
            partition.ask_for_flush(now=False)
        return True

    def _reply(
        self,
        pending: Pending,
        request: Fetch,
        partitions: Sequence[Partition | None],
        results: list[FetchResult],
        size: int,
    ) -> None:
        """Answer; ``size``: bytes of the results together, -1 when one of them is an error."""
        if size:
            self._count(pending, partitions, results)
        self._connections.answer(pending, pending.connection.codec.encode_fetch(request, results))

    def retry(self, delayed: DelayedRequest) -> None:
        """Answer, or delay again while several partitions together do not have enough."""
        request = delayed.pending.request
        assert isinstance(request, Fetch)
        self._wait_lists.remove(delayed)
        partitions = self._partitions.of(request)
        results, size = plan.fetch(request, partitions)
        if len(partitions) > 1 and 0 <= size < request.bytes_enough:
            if self._delay(delayed, request, partitions, results):
                return
            results, size = plan.fetch(request, partitions)
        self._reply(delayed.pending, request, partitions, results, size)

    def answer(self, delayed: DelayedRequest) -> None:
        """Answer with the bytes that can be read now."""
        request = delayed.pending.request
        assert isinstance(request, Fetch)
        self._wait_lists.remove(delayed)
        partitions = self._partitions.of(request)
        self._reply(delayed.pending, request, partitions, *plan.fetch(request, partitions))

    def _count(self, pending: Pending, partitions: Sequence[Partition | None], results: Sequence[FetchResult]) -> None:
        """Count what a reply has, by partition."""
        number = self._partitions.number
        for partition, result in zip(partitions, results, strict=True):
            if result.error:
                pending.connection.counters.failed(Fetch.api)
            elif result.size and partition is not None:
                partition.table.count_fetched(number, result.size)


def awaited_by(request: Fetch, wait_lists: Sequence[WaitList], high_watermarks: Sequence[int]) -> list[Awaited]:
    """The high watermarks that a fetch with too few bytes awaits.

    ``high_watermarks``: those of its parts when it was planned.
    """
    if len(wait_lists) == 1:
        part = request.parts[0]
        return [(wait_lists[0], part.offset + max(1, min(request.bytes_enough, part.bytes_max)))]
    parts = zip(request.parts, wait_lists, high_watermarks, strict=True)
    return [(wait_list, max(part.offset, seen) + 1) for part, wait_list, seen in parts]


def _unflushed(request: Fetch, partitions: Sequence[Partition | None]) -> list[Partition]:
    """The partitions whose log end offset is above the fetched offset."""
    parts = zip(request.parts, partitions, strict=True)
    return [held for part, held in parts if held is not None and part.offset < held.table.log_end_offset]
