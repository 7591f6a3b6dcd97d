"""Fetch sessions (KIP-227): a client names only what is new, and is told only what has changed.

A fetch of thousands of partitions names all of them, each time, and so does its reply.  A session keeps them here: the
requests that continue it name the parts that are new, have another offset or are to be forgotten, and the replies those
with data, with an error, or with another high watermark or log start offset than the client was told.

A session of more than FEW parts goes on watching them between its fetches (``wait_lists``): then a fetch looks only at
those that have moved, and at those that had something the last time.  All parts are looked at again after SWEEP_MS,
since retention and faults ring no doorbell.  A session of few parts looks at all of them each time, which costs less.

As in Kafka: a client gets no session (id 0) where the worker has SESSIONS_MAX, unless the one that was not used for
longest has not been used for KEPT_MS, or a smaller one is older than that: then it takes its place.  The number of
parts is bounded in the same way.  Unlike Kafka's, a session belongs to its connection and ends with it.  All
known clients begin another one after they have reconnected.  It also ends when the rights of its client change, which
only a fetch that names its parts asks about.

A fetch without a session, and each step of one, is an :class:`OpenFetch` until it is answered.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from ...broker.plan import NOT_LOOKED_AT, FetchPlan
from ...errors import InvalidSessionEpoch, MixedTopicIds, UnknownFetchSession
from ...security.acls import Access
from ...wire.requests import NEW_SESSION, WITHOUT_SESSION, Fetch, FetchPart, FetchResult, SessionReply
from .known_partitions import KnownPartitions, WorkerPartition
from .turn import Turn
from .wait_lists import Awaited, PartitionWatch, WaitList, WaitLists
from .worker_connection import WorkerConnection

SESSIONS_MAX: Final = 1_000
SESSION_PARTS_MAX: Final = 100_000
"""Sessions of one worker, and parts of all of them: some 1 KiB each."""
KEPT_MS: Final = 120_000
SWEEP_MS: Final = 5_000
FEW: Final = 16
EPOCH_MAX: Final = (1 << 31) - 1
NO_PART: Final = FetchPart("", -1, -1, 0)
"""In the place of a forgotten part, until another one takes it."""

PartKey = tuple[str | bytes, int]


def key_of(part: FetchPart) -> PartKey:
    """What a part of a session is known by."""
    return part.topic_id or part.topic, part.partition


SessionResults = tuple[Iterable[int], list[FetchResult], SessionReply | None]
"""The numbers of the parts that a reply names, their results, and its session."""


class OpenFetch(PartitionWatch):
    """A fetch, what each of its parts gets, and where it waits for more.

    ``kept``: it belongs to a session, and watches on when it is answered.
    """

    __slots__ = ("_changes", "_numbers", "kept", "partitions", "plan", "request")

    def __init__(
        self, request: Fetch, partitions: list[WorkerPartition | None], is_over: Callable[[], bool], changes: int
    ) -> None:
        """``changes``: of :class:`.KnownPartitions`, when it looked for the ``partitions``."""
        super().__init__()
        self.request, self.partitions, self.kept = request, partitions, False
        self._changes = changes
        self.plan = FetchPlan(request, partitions, is_over)
        self._numbers: dict[WaitList, dict[int, None]] = {}
        """The numbers of the parts that read a partition."""

    def parts_to_await(self) -> Iterable[int]:
        """The parts, at which it has looked, for which it does not wait yet."""
        return range(len(self.partitions))

    def awaited_by(self, parts: Iterable[int]) -> list[Awaited]:
        """The high watermarks that it awaits for these parts, at which it has looked."""
        awaited: list[Awaited] = []
        for index in parts:
            if (partition := self.partitions[index]) is None:
                continue
            part = self.request.parts[index]
            if len(self.partitions) == 1:
                end = part.offset + max(1, min(self.request.bytes_enough, part.bytes_max))
            if len(self.partitions) > 1 or self.request.committed:  # the last stable offset grows with it
                end = max(part.offset, self.plan.results[index].high_watermark) + 1
            self._numbers.setdefault(partition.wait_list, {})[index] = None
            awaited.append((partition.wait_list, end))
        return awaited

    def take_moved(self, partitions: KnownPartitions) -> list[int]:
        """Look again at the parts whose partition has moved, or is another one now; their numbers."""
        moved = [index for wait_list in self.moved for index in self._numbers.pop(wait_list)]
        self.moved.clear()
        for index in moved:
            self.partitions[index] = partitions.partition_of(self.request.parts[index])
        self.plan.plan_parts(moved)
        return moved

    def look_on(self, partitions: KnownPartitions) -> list[int]:
        """Look at the parts that the turn before has left; or else at those for which something was brought.

        Meanwhile topics may have been deleted, or made again: what was found of their partitions is looked up anew.

        Returns:
            The numbers of all these parts.
        """
        parts = dict.fromkeys(self.plan.unlooked or sorted(self.plan.cold))
        if self._changes != partitions.changes:
            self._changes = partitions.changes
            for index, seen in enumerate(self.partitions):
                if seen is not None and (partition := partitions.partition_of(self.request.parts[index])) is not seen:
                    self.partitions[index] = partition
                    parts[index] = None
        self.plan.plan_parts(parts)
        return list(parts)

    def look_once_more(self) -> None:
        """Look at what has come without being awaited, since it is less than enough."""
        if len(self.partitions) == 1:
            self.plan.plan_parts((0,))

    def unflushed(self, parts: Iterable[int]) -> list[WorkerPartition]:
        """The partitions, of these parts, that have something above the fetched offset that is not readable yet."""
        return [
            partition
            for index in parts
            if (partition := self.partitions[index]) is not None
            and max(self.request.parts[index].offset, partition.table.high_watermark) < partition.table.log_end_offset
        ]

    def reply(self) -> SessionResults:
        """What the parts get, all of which it has looked at."""
        return range(len(self.partitions)), self.plan.results, None

    def finish(self, wait_lists: WaitLists) -> None:
        """Release the wait lists: the fetch is answered."""
        wait_lists.release(self)


class FetchSession(OpenFetch):
    """One session.  ``epoch``: of the request that continues it; ``access``: what its client might do at the begin."""

    __slots__ = (
        *("_by_key", "_dirty", "_first", "_free", "_fresh", "_swept_ms", "_told"),
        *("access", "connection", "created_ms", "epoch", "id", "used_ms"),
    )

    def __init__(
        self,
        session_id: int,
        connection: WorkerConnection,
        access: Access,
        request: Fetch,
        partitions: list[WorkerPartition | None],
        is_over: Callable[[], bool],
        changes: int,
        now_ms: int,
    ) -> None:
        super().__init__(request, partitions, is_over, changes)
        self.id, self.connection, self.access = session_id, connection, access
        self.kept, self.epoch = True, 1
        self.created_ms = self.used_ms = self._swept_ms = now_ms
        self._by_key = {key_of(part): index for index, part in enumerate(request.parts)}
        self._free: list[int] = []
        self._told: list[tuple[int, int, int] | None] = [None] * len(partitions)
        """High watermark, last stable and log start offset that the client was told of each part."""
        self._dirty: dict[int, None] = dict.fromkeys(range(len(partitions)))
        """The parts to look at again.  Of the others is known that nothing has come, since their partitions would have
        moved.
        """
        self._fresh = self._dirty.copy()
        """The parts at which it has looked since the last reply."""
        self._first = True

    @property
    def by_id(self) -> bool:
        """Whether its requests name topics by their ids."""
        return self.request.session.by_id

    @property
    def size(self) -> int:
        """The number of parts."""
        return len(self._by_key)

    # ---- a request that continues it

    def go_on(self, request: Fetch, partitions: KnownPartitions, lists: WaitLists) -> None:
        """Take the changes of a request."""
        mine = self.request
        mine.context, mine.wait_ms_max = request.context, request.wait_ms_max
        mine.bytes_min, mine.bytes_max = request.bytes_min, request.bytes_max
        if mine.committed != request.committed:
            mine.committed = request.committed
            self._dirty.update(dict.fromkeys(self._by_key.values()))
        for wait_list in self.moved:
            self._dirty.update(self._numbers.pop(wait_list))
        self.moved.clear()
        numbers = {self._put(part): number for number, part in enumerate(request.parts)}
        if request.denied or request.refused or mine.denied or mine.refused:
            mine.denied = (mine.denied - numbers.keys()) | {i for i, n in numbers.items() if n in request.denied}
            kept = {index: error for index, error in mine.refused.items() if index not in numbers}
            mine.refused = kept | {i: request.refused[n] for i, n in numbers.items() if n in request.refused}
        for key in request.session.forgotten:
            if (index := self._by_key.pop(key, -1)) >= 0:
                self._forget(index, lists)
        self._changes = partitions.changes
        for index in self._dirty:
            self.partitions[index] = None if index in mine.denied else partitions.partition_of(mine.parts[index])

    def plan_changed(self, now_ms: int) -> None:
        """Look at the parts of which more may be known."""
        self.used_ms = now_ms
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            self._dirty.update(dict.fromkeys(self._by_key.values()))
        for index in self._dirty:
            self.plan.forget(index)
        self.plan.plan_parts(self._dirty)
        self._fresh.update(self._dirty)

    def _put(self, part: FetchPart) -> int:
        """Add or replace a part; its number."""
        parts, key = self.request.parts, key_of(part)
        index = self._by_key.get(key, -1)
        if index < 0:
            if not self._free:
                self._free.append(len(parts))
                parts.append(NO_PART)
                self.partitions.append(None)
                self.plan.results.append(NOT_LOOKED_AT)
                self._told.append(None)
            index = self._by_key[key] = self._free.pop()
            self._told[index] = None
        self.plan.replace(index, part)
        self._dirty[index] = None
        return index

    def _forget(self, index: int, lists: WaitLists) -> None:
        self.plan.replace(index, NO_PART)
        self._dirty.pop(index, None)
        partition, self.partitions[index] = self.partitions[index], None
        if partition is not None and partition.wait_list in self._numbers:
            del self._numbers[partition.wait_list]
            lists.leave(self, partition.wait_list)
        self._free.append(index)

    # ---- waiting

    def parts_to_await(self) -> list[int]:
        return list(self._dirty)

    def awaited_by(self, parts: Iterable[int]) -> list[Awaited]:
        awaited: list[Awaited] = []
        for index in parts:
            if (partition := self.partitions[index]) is None:
                continue
            part, plan = self.request.parts[index], self.plan
            if partition.wait_list not in self.lists:
                self._numbers[partition.wait_list] = {index: None}
                end = max(part.offset, plan.results[index].high_watermark) + 1
                if self.size == 1:
                    end = max(end, part.offset + min(self.request.bytes_enough, part.bytes_max))
                awaited.append((partition.wait_list, end))
            if self._has_nothing(index):
                self._dirty.pop(index, None)
        return awaited

    def take_moved(self, partitions: KnownPartitions) -> list[int]:
        moved = super().take_moved(partitions)
        self._dirty.update(dict.fromkeys(moved))
        self._fresh.update(dict.fromkeys(moved))
        return moved

    def look_on(self, partitions: KnownPartitions) -> list[int]:
        parts = super().look_on(partitions)
        self._dirty.update(dict.fromkeys(parts))
        self._fresh.update(dict.fromkeys(parts))
        return parts

    def look_once_more(self) -> None:
        if self.size == 1:
            only = list(self._by_key.values())
            self.plan.plan_parts(only)
            self._fresh.update(dict.fromkeys(only))

    def _has_nothing(self, index: int) -> bool:
        """Whether all of a part has been read."""
        result = self.plan.results[index]
        return not result.error and not result.size and self.request.parts[index].offset >= self.plan.readable(index)

    # ---- the reply

    def reply(self) -> SessionResults:
        results, numbers = self.plan.results, list(self._fresh)
        named = None
        if not self._first:
            numbers = [index for index in numbers if self._is_news(index)]
            named = [self.request.parts[index] for index in numbers]
        for index in numbers:
            result = results[index]
            self._told[index] = None if result.error else _told(result)
            if result.size:  # as in Kafka, the others come first the next time
                self._dirty.pop(index, None)
                self._dirty[index] = None
        self._first = False
        self._fresh.clear()
        return numbers, [results[index] for index in numbers], SessionReply(self.id, named)

    def _is_news(self, index: int) -> bool:
        result = self.plan.results[index]
        return bool(result.size or result.error or self._told[index] != _told(result))

    def finish(self, wait_lists: WaitLists) -> None:
        self.plan.let_go()
        if self.kept and self.size > FEW:
            wait_lists.await_at(self, self.awaited_by([index for index in self._dirty if self._has_nothing(index)]))
            return
        super().finish(wait_lists)
        self._numbers.clear()
        self._dirty.update(dict.fromkeys(self._by_key.values()))


def _told(result: FetchResult) -> tuple[int, int, int]:
    return result.high_watermark, result.stable, result.log_start


class FetchSessions:
    """The sessions of one worker."""

    def __init__(
        self,
        turn: Turn,
        partitions: KnownPartitions,
        wait_lists: WaitLists,
        access: Callable[[WorkerConnection], Access],
        sessions_max: int = SESSIONS_MAX,
        parts_max: int = SESSION_PARTS_MAX,
    ) -> None:
        self._turn, self._partitions, self._wait_lists, self._access = turn, partitions, wait_lists, access
        self._sessions_max, self._parts_max = sessions_max, parts_max
        self._by_id: dict[int, FetchSession] = {}
        """The one that was used last comes last."""
        self.parts = 0
        """Those of all sessions."""

    def __len__(self) -> int:
        return len(self._by_id)

    def open_fetch(
        self, connection: WorkerConnection, request: Fetch, partitions: list[WorkerPartition | None]
    ) -> OpenFetch:
        """Begin what a fetch asks for: a session, the next step of one, or a fetch without one.

        Raises:
            UnknownFetchSession, InvalidSessionEpoch, MixedTopicIds: the client has to name its parts again.
        """
        step = request.session
        if step is WITHOUT_SESSION:
            return self._alone(request, partitions)
        mine = self._by_id.get(step.id) if step.id else None
        if mine is not None and mine.connection is not connection:
            mine = None
        if not step.is_full:
            return self._continued(mine, request, partitions)
        if mine is not None:
            self._end(mine)
        names_all = step.epoch == NEW_SESSION and request.parts and all(part.topic for part in request.parts)
        if names_all and len(set(map(key_of, request.parts))) == len(request.parts) and self._has_room(request):
            return self._begun(connection, request, partitions)
        return self._alone(request, partitions)

    def _alone(self, request: Fetch, partitions: list[WorkerPartition | None]) -> OpenFetch:
        """A fetch without a session."""
        return OpenFetch(request, partitions, self._turn.is_over, self._partitions.changes)

    def _begun(
        self, connection: WorkerConnection, request: Fetch, partitions: list[WorkerPartition | None]
    ) -> FetchSession:
        session_id = 0
        while not session_id or session_id in self._by_id:
            session_id = secrets.randbelow(EPOCH_MAX) + 1
        turn, access = self._turn, self._access(connection)
        changes = self._partitions.changes
        session = FetchSession(session_id, connection, access, request, partitions, turn.is_over, changes, turn.now_ms)
        self._by_id[session_id] = session
        connection.own(session, partial(self._end, session))
        self.parts += session.size
        return session

    def _continued(
        self, session: FetchSession | None, request: Fetch, partitions: list[WorkerPartition | None]
    ) -> OpenFetch:
        if session is None:
            raise UnknownFetchSession("the fetch session has ended, or is of another connection")
        if session.access is not self._access(session.connection) or not all(part.topic for part in request.parts):
            self._end(session)
            raise UnknownFetchSession("the fetch session has ended: the rights of its client, or topics, have changed")
        if session.epoch != request.session.epoch:
            raise InvalidSessionEpoch(f"epoch {session.epoch} of the fetch session is expected")
        if session.by_id != request.session.by_id:
            raise MixedTopicIds("a fetch session names topics either by their ids or by their names")
        self.parts -= session.size
        session.go_on(request, self._partitions, self._wait_lists)
        self.parts += session.size
        if not session.size:
            self._end(session)
            return self._alone(request, partitions)
        if self.parts > self._parts_max:
            self._end(session)
            raise UnknownFetchSession(f"more than {self._parts_max} parts of fetch sessions")
        session.epoch = session.epoch % EPOCH_MAX + 1
        self._by_id[session.id] = self._by_id.pop(session.id)
        session.plan_changed(self._turn.now_ms)
        return session

    def _has_room(self, request: Fetch) -> bool:
        """Whether there is room for a session of a request, which may take that of others."""
        size = len(request.parts)
        while len(self._by_id) >= self._sessions_max or self.parts + size > self._parts_max:
            if (victim := self._victim(size)) is None:
                return False
            self._end(victim)
        return True

    def _victim(self, size: int) -> FetchSession | None:
        now_ms = self._turn.now_ms
        oldest = next(iter(self._by_id.values()), None)
        if oldest is None or now_ms - oldest.used_ms > KEPT_MS:
            return oldest
        smaller = (
            session for session in self._by_id.values() if session.size < size and now_ms - session.created_ms > KEPT_MS
        )
        return min(smaller, key=lambda session: (session.size, session.id), default=None)

    def _end(self, session: FetchSession) -> None:
        """End a session.  A fetch of it that waits is answered as its last step; the next gets UnknownFetchSession."""
        del self._by_id[session.id]
        session.connection.disown(session)
        self.parts -= session.size
        session.kept = False
        if session.delayed is None:
            self._wait_lists.release(session)
