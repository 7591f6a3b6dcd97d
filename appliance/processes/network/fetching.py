"""Answers Fetch requests from segment files, at once or when there is enough.

A fetch that finds too little becomes a :class:`DelayedRequest`, which watches its partitions (``wait_lists``) until a
writer has published more or its time is up.  It keeps what it knows of each part (``reading``), and looks only at what
has moved; with a session (``fetch_sessions``) from one request to the next.  Messages acknowledged with acks=1 may lie
above the high watermark, where they cannot be read yet; a fetch of them asks the writer for a flush.

Where batches begin and end is found in files.  What is not in memory of them is brought first (``cold_reads``), before
the fetch waits for anything else, and however long that takes.  Later, when news has come to a fetch that waits, or its
time is up, the parts for which the disk would be needed get nothing: the client's next fetch begins with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from ...errors import ClientFault
from ...wire.requests import Fetch
from .cold_reads import ColdReads
from .connection_state import Connection, Pending
from .connections import Connections
from .fetch_sessions import FetchSessions
from .known_partitions import KnownPartitions
from .reading import Reading
from .turn import Turn
from .wait_lists import DelayedRequest, WaitLists

WAIT_MS_MAX: Final = 300_000
FLUSH_WAIT_MS: Final = 2_000
"""How long ListOffsets, and Fetch with max_wait 0, wait for the flush of messages acknowledged with acks=1."""


class Fetching:
    """Starts fetches; owner of the delayed ones."""

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        partitions: KnownPartitions,
        wait_lists: WaitLists,
        sessions: FetchSessions,
        cold_reads: ColdReads,
    ) -> None:
        self._turn = turn
        self._connections = connections
        self._partitions = partitions
        self._wait_lists = wait_lists
        self._sessions = sessions
        self._cold_reads = cold_reads

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
        try:
            reading = self._sessions.reading(connection, request, partitions)
        except ClientFault as error:
            connection.counters.failed(Fetch.api)
            self._connections.answer(pending, [connection.codec.refuse_fetch(request, error.code)])
            return True
        deadline_ms = self._turn.now_ms + min(request.wait_ms_max, WAIT_MS_MAX)
        if reading.plan.cold:
            self._bring(pending, reading, deadline_ms)
        else:
            self._answer_or_wait(pending, reading, deadline_ms)
        return True

    def _bring(self, pending: Pending, reading: Reading, deadline_ms: int) -> None:
        """Bring what the parts need into memory, and look at them again."""
        then = partial(self._on_brought, pending, reading, reading.kept, deadline_ms)
        self._cold_reads.bring(pending, list(reading.plan.cold.values()), then)

    def _on_brought(self, pending: Pending, reading: Reading, kept: bool, deadline_ms: int) -> None:
        reading.look_at_cold(self._partitions)
        if reading.plan.cold:
            self._bring(pending, reading, deadline_ms)
        elif reading.kept != kept:  # another session took the place of this one, which watches nothing any more
            self._reply(pending, reading)
        else:
            self._answer_or_wait(pending, reading, deadline_ms)

    def forget(self, connection: Connection) -> None:
        """Forget the fetch of a closed connection that waits for the disk."""
        for pending in connection.requests:
            self._cold_reads.forget(pending)

    def _answer_or_wait(self, pending: Pending, reading: Reading, deadline_ms: int) -> None:
        now_ms, is_enough = self._turn.now_ms, reading.plan.is_enough
        if deadline_ms <= now_ms and not is_enough and (unflushed := reading.unflushed(range(len(reading.partitions)))):
            for partition in unflushed:
                partition.ask_for_flush(now=True)
            deadline_ms = now_ms + FLUSH_WAIT_MS
        if deadline_ms <= now_ms or is_enough or self._turn.stopping:
            self._reply(pending, reading)
            return
        reading.plan.let_go()
        delayed = DelayedRequest(pending, deadline_ms, self, reading)
        self._wait_lists.begin(delayed)
        self._wait(delayed, reading.to_await())

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
            if reading.plan.is_enough or reading.plan.cold:
                return looked + self._answer(delayed)
            reading.plan.let_go()

    def retry(self, delayed: DelayedRequest) -> int:
        """Answer, or wait on while the parts together do not have enough."""
        reading = _reading(delayed)
        moved = reading.take_moved(self._partitions)
        if reading.plan.is_enough or reading.plan.cold:
            return self._answer(delayed)
        reading.plan.let_go()
        return len(moved) + self._wait(delayed, moved)

    def answer(self, delayed: DelayedRequest) -> int:
        """Answer with the bytes that can be read now."""
        reading = _reading(delayed)
        reading.take_moved(self._partitions)
        reading.look_once_more()
        return self._answer(delayed)

    def _answer(self, delayed: DelayedRequest) -> int:
        reading = _reading(delayed)
        self._wait_lists.end(delayed)
        return self._reply(delayed.pending, reading)

    def _reply(self, pending: Pending, reading: Reading) -> int:
        """Answer; how many parts the reply names."""
        numbers, results, session = reading.reply()
        if reading.plan.size or reading.plan.failed:
            self._count(pending, reading, numbers)
        self._connections.answer(pending, pending.connection.codec.encode_fetch(reading.request, results, session))
        if reading.lists or reading.kept:
            reading.finish(self._wait_lists)
        return len(results)

    def _count(self, pending: Pending, reading: Reading, numbers: Iterable[int]) -> None:
        """Count what a reply has, by partition."""
        worker = self._partitions.number
        for index in numbers:
            result, partition = reading.plan.results[index], reading.partitions[index]
            if result.error:
                pending.connection.counters.failed(Fetch.api)
            elif result.size and partition is not None:
                partition.table.count_fetched(worker, result.size)


def _reading(delayed: DelayedRequest) -> Reading:
    assert isinstance(delayed.watch, Reading)
    return delayed.watch
