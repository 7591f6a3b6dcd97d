"""Answers Fetch requests from segment files, at once or when there is enough.

A fetch that finds too little becomes a :class:`DelayedRequest`, which watches its partitions (``wait_lists``) until a
writer has published more or its time is up.  It keeps what it knows of each part, and looks only at what has moved.
Messages acknowledged with acks=1 may lie above the high watermark, where they cannot be read yet; a fetch of them asks
the writer for a flush.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...broker.plan import FetchPlan
from ...wire.requests import Fetch, FetchResult
from .connection_state import Connection, Pending
from .connections import Connections
from .known_partitions import KnownPartitions, Partition
from .turn import Turn
from .wait_lists import Awaited, DelayedRequest, WaitList, WaitLists, Watch

WAIT_MS_MAX: Final = 300_000
FLUSH_WAIT_MS: Final = 2_000
"""How long ListOffsets, and Fetch with max_wait 0, wait for the flush of messages acknowledged with acks=1."""


class Reading(Watch):
    """A fetch: its partitions, what each part gets, and where it waits for more."""

    __slots__ = ("_numbers", "partitions", "plan", "request")

    def __init__(self, request: Fetch, partitions: list[Partition | None]) -> None:
        super().__init__()
        self.request, self.partitions = request, partitions
        self.plan = FetchPlan(request, partitions)
        self._numbers: dict[WaitList, dict[int, None]] = {}
        """The numbers of the parts that read a partition."""

    def awaited_by(self, parts: Iterable[int]) -> list[Awaited]:
        """The high watermarks that the fetch awaits for these parts, at which it has looked."""
        awaited: list[Awaited] = []
        for index in parts:
            if (partition := self.partitions[index]) is None:
                continue
            part = self.request.parts[index]
            if len(self.partitions) == 1:
                end = part.offset + max(1, min(self.request.bytes_enough, part.bytes_max))
            else:
                end = max(part.offset, self.plan.results[index].high_watermark) + 1
            self._numbers.setdefault(partition.wait_list, {})[index] = None
            awaited.append((partition.wait_list, end))
        return awaited

    def take_moved(self, partitions: KnownPartitions) -> list[int]:
        """Look again at the parts whose partition has moved, or is another one now; their numbers."""
        moved = [index for wait_list in self.moved for index in self._numbers.pop(wait_list)]
        self.moved.clear()
        for index in moved:
            part = self.request.parts[index]
            self.partitions[index] = partitions.get((part.topic, part.partition))
        self.plan.look(moved)
        return moved

    def unflushed(self, parts: Iterable[int]) -> list[Partition]:
        """The partitions, of these parts, whose log end offset is above the fetched offset."""
        return [
            partition
            for index in parts
            if (partition := self.partitions[index]) is not None
            and self.request.parts[index].offset < partition.table.log_end_offset
        ]


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
        reading = Reading(request, partitions)
        wait_ms = min(request.wait_ms_max, WAIT_MS_MAX)
        parts = range(len(partitions))
        is_enough = reading.plan.is_enough
        if wait_ms <= 0 and not is_enough and (unflushed := reading.unflushed(parts)):
            for partition in unflushed:
                partition.ask_for_flush(now=True)
            wait_ms = FLUSH_WAIT_MS
        if wait_ms <= 0 or is_enough or self._turn.stopping:
            self._reply(pending, reading)
            return True
        reading.plan.let_go()
        delayed = DelayedRequest(pending, self._turn.now_ms + wait_ms, self, reading)
        self._wait_lists.begin(delayed)
        self._wait(delayed, parts)
        return True

    def _wait(self, delayed: DelayedRequest, parts: Iterable[int]) -> int:
        """Wait for news of these parts, at which the fetch has looked; answer if meanwhile there is enough.

        Returns:
            How many parts have been looked at again, or answered.
        """
        reading = _reading(delayed)
        looked = 0
        while True:
            self._wait_lists.await_at(reading, reading.awaited_by(parts))
            # After the fence of the wait: what the writer has written since, it flushes soon, having seen the wait.
            for partition in reading.unflushed(parts):
                partition.ask_for_flush(now=False)
            if not reading.moved:
                return looked
            parts = reading.take_moved(self._partitions)
            looked += len(parts)
            if reading.plan.is_enough:
                return looked + self.answer(delayed)
            reading.plan.let_go()

    def retry(self, delayed: DelayedRequest) -> int:
        """Answer, or wait on while the parts together do not have enough."""
        reading = _reading(delayed)
        moved = reading.take_moved(self._partitions)
        if reading.plan.is_enough:
            return self.answer(delayed)
        reading.plan.let_go()
        return len(moved) + self._wait(delayed, moved)

    def answer(self, delayed: DelayedRequest) -> int:
        """Answer with the bytes that can be read now."""
        reading = _reading(delayed)
        self._wait_lists.end(delayed)
        reading.take_moved(self._partitions)
        self._wait_lists.release(reading)
        self._reply(delayed.pending, reading)
        return len(reading.partitions)

    def _reply(self, pending: Pending, reading: Reading) -> None:
        results = reading.plan.find()
        if reading.plan.size or reading.plan.failed:
            self._count(pending, reading.partitions, results)
        self._connections.answer(pending, pending.connection.codec.encode_fetch(reading.request, results))

    def _count(self, pending: Pending, partitions: list[Partition | None], results: list[FetchResult]) -> None:
        """Count what a reply has, by partition."""
        number = self._partitions.number
        for partition, result in zip(partitions, results, strict=True):
            if result.error:
                pending.connection.counters.failed(Fetch.api)
            elif result.size and partition is not None:
                partition.table.count_fetched(number, result.size)


def _reading(delayed: DelayedRequest) -> Reading:
    assert isinstance(delayed.watch, Reading)
    return delayed.watch
