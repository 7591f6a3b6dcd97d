"""Answers Fetch requests from segment files, at once or when there is enough.

A fetch that finds too little becomes a :class:`DelayedRequest`, which watches its partitions (``wait_lists``) until a
writer has published more or its time is up.  An :class:`.OpenFetch` keeps what it knows of each part, and looks only
at what has moved; with a session (``fetch_sessions``) from one request to the next.  Messages acknowledged with acks=1
may lie above the high watermark, where they cannot be read yet; a fetch of them asks the writer for a flush.

Where batches begin and end is found in files.  What is not in memory of them is brought first (``cold_reads``), before
the fetch waits for anything else, and however long that takes.  Later, when news has come to a fetch that waits, or its
time is up, the parts for which the disk would be needed get nothing: the client's next fetch begins with them.

A fetch that has more parts than a turn of the loop has time for looks at the others in the next ones
(``FetchPlan.unlooked``), in turn with other such fetches, and is answered then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from ...errors import ClientFault
from ...wire.requests import Fetch
from .cold_reads import ColdReads
from .connections import Connections
from .fetch_sessions import FetchSessions, OpenFetch
from .known_partitions import KnownPartitions
from .turn import Turn
from .wait_lists import DelayedRequest, WaitLists
from .worker_connection import Pending, WorkerConnection

WAIT_MS_MAX: Final = 300_000
FLUSH_WAIT_MS: Final = 2_000
"""How long ListOffsets, and Fetch with max_wait 0, wait for the flush of messages acknowledged with acks=1."""


class Fetches:
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
        self._unfinished: deque[Callable[[], None]] = deque()

    def start(self, connection: WorkerConnection, request: Fetch, start: int, frame: memoryview) -> bool:
        """Answer, or wait for enough bytes as long as the client allows, and for the flush of written messages.

        Returns:
            False when the request has to start again in the next turn.
        """
        partitions = self._partitions.partitions_of(request)
        if self._connections.defer_for_announcement(connection, request, partitions):
            return False
        pending = Pending(connection, request)
        connection.begin_request(pending)
        try:
            fetch = self._sessions.open_fetch(connection, request, partitions)
        except ClientFault as error:
            connection.counters.failed(Fetch.api)
            self._connections.answer(pending, [connection.codec.refuse_fetch(request, error.code)])
            return True
        deadline_ms = self._turn.now_ms + min(request.wait_ms_max, WAIT_MS_MAX)
        self._proceed(pending, fetch, fetch.kept, deadline_ms)
        return True

    def _proceed(self, pending: Pending, fetch: OpenFetch, kept: bool, deadline_ms: int) -> None:
        """Answer, or wait, as soon as it has looked at all parts, and what they need is in memory."""
        then = partial(self._look_on, pending, fetch, kept, deadline_ms)
        if fetch.plan.unlooked:
            self._unfinished.append(then)
        elif fetch.plan.cold:
            self._cold_reads.bring(pending, pending.connection, list(fetch.plan.cold.values()), then)
        elif fetch.kept != kept:  # another session took the place of this one, which watches nothing any more
            self._reply(pending, fetch)
        else:
            self._answer_or_wait(pending, fetch, deadline_ms)

    def _look_on(self, pending: Pending, fetch: OpenFetch, kept: bool, deadline_ms: int) -> None:
        if not pending.connection.closed:
            fetch.look_on(self._partitions)
            self._proceed(pending, fetch, kept, deadline_ms)

    @property
    def unfinished(self) -> bool:
        """Whether the last turn has left parts of fetches to look at."""
        return bool(self._unfinished)

    def go_on(self) -> None:
        """Look at what earlier turns have left, some parts of each fetch in turn, until this one is over."""
        for _ in range(len(self._unfinished)):
            self._unfinished.popleft()()
            if self._turn.is_over():
                return

    def _answer_or_wait(self, pending: Pending, fetch: OpenFetch, deadline_ms: int) -> None:
        now_ms, is_enough = self._turn.now_ms, fetch.plan.is_enough
        if deadline_ms <= now_ms and not is_enough and (unflushed := fetch.unflushed(range(len(fetch.partitions)))):
            for partition in unflushed:
                partition.ask_for_flush(now=True)
            deadline_ms = now_ms + FLUSH_WAIT_MS
        if deadline_ms <= now_ms or is_enough or self._turn.stopping:
            self._reply(pending, fetch)
            return
        fetch.plan.let_go()
        delayed = DelayedRequest(pending, deadline_ms, self, fetch)
        self._wait_lists.begin_wait(delayed)
        self._wait(delayed, fetch.parts_to_await())

    def _wait(self, delayed: DelayedRequest, parts: Iterable[int]) -> None:
        """Wait for news of these parts, at which the fetch has looked; answer if meanwhile there is enough."""
        fetch = _open_fetch(delayed)
        while True:
            self._wait_lists.await_at(fetch, fetch.awaited_by(parts))
            # After the fence of the wait: what the writer has written since, it flushes soon, having seen the wait.
            for partition in fetch.unflushed(parts):
                partition.ask_for_flush(now=False)
            if not fetch.moved:
                return
            parts = fetch.take_moved(self._partitions)
            if self._answers_or_defers(delayed, parts):
                return

    def retry(self, delayed: DelayedRequest) -> None:
        """Answer, or wait on while the parts together do not have enough."""
        self._take(delayed, _open_fetch(delayed).take_moved(self._partitions))

    def _take(self, delayed: DelayedRequest, moved: list[int]) -> None:
        """Go on after a look at the parts that have moved."""
        if not self._answers_or_defers(delayed, moved):
            self._wait(delayed, moved)

    def _answers_or_defers(self, delayed: DelayedRequest, moved: list[int]) -> bool:
        """Answer a fetch that has waited for these parts, or leave it to the next turn; False: it has to wait on."""
        plan = _open_fetch(delayed).plan
        if plan.unlooked:
            self._go_on_later(delayed, lambda: self._take(delayed, moved))
        elif plan.is_enough or plan.cold:
            self._answer(delayed)
        else:
            plan.let_go()
            return False
        return True

    def answer_now(self, delayed: DelayedRequest) -> None:
        """Answer with the bytes that can be read now."""
        fetch = _open_fetch(delayed)
        fetch.take_moved(self._partitions)
        fetch.look_once_more()
        self._answer(delayed)

    def _answer(self, delayed: DelayedRequest) -> None:
        fetch = _open_fetch(delayed)
        fetch.plan.take_back()
        if fetch.plan.unlooked:
            self._go_on_later(delayed, lambda: self._answer(delayed))
            return
        self._wait_lists.end_wait(delayed)
        self._reply(delayed.pending, fetch)

    def _go_on_later(self, delayed: DelayedRequest, then: Callable[[], None]) -> None:
        """Look at the parts that are left in the next turn, if nobody has answered the fetch before."""

        def look_on() -> None:
            if delayed.waits:
                _open_fetch(delayed).look_on(self._partitions)
                then()

        self._unfinished.append(look_on)

    def _reply(self, pending: Pending, fetch: OpenFetch) -> None:
        numbers, results, session = fetch.reply()
        if fetch.plan.size or fetch.plan.failed:
            self._count(pending, fetch, numbers)
        self._connections.answer(pending, pending.connection.codec.encode_fetch(fetch.request, results, session))
        if fetch.lists or fetch.kept:
            fetch.finish(self._wait_lists)

    def _count(self, pending: Pending, fetch: OpenFetch, numbers: Iterable[int]) -> None:
        """Count what a reply has, by partition."""
        worker = self._partitions.number
        for index in numbers:
            result, partition = fetch.plan.results[index], fetch.partitions[index]
            if result.error:
                pending.connection.counters.failed(Fetch.api)
            elif result.size and partition is not None:
                partition.table.count_fetched(worker, result.size)


def _open_fetch(delayed: DelayedRequest) -> OpenFetch:
    assert isinstance(delayed.watch, OpenFetch)
    return delayed.watch
