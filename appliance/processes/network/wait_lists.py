"""Keeps delayed requests: they wait until the high watermarks of their partitions reach an offset (long poll).

Every partition has a :class:`WaitList`: the requests that wait at it, each with the high watermark that it awaits.  The
worker stores the lowest of these in its wait cell of the partition's table; the writer rings the worker's doorbell when
the high watermark reaches it.  ``shared.doorbell`` argues that no wake-up is lost: :meth:`WaitLists.delay` stores the
cell, executes the fence, and reads the high watermark again.

A fetch of one partition waits for ``bytes_enough``.  A fetch of several waits for anything new in one of them, and then
counts whether that is enough.  A request for offsets waits until the high watermark reaches the log end offset.

Cost: to begin and to end a wait takes O(log n) steps for n requests that wait at the partition.  Bounds: a connection
has at most one delayed request, because the request after it does not start.  A turn of the loop retries PARTS_PER_TURN
parts of delayed requests, and leaves the others to the next turn.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ...shared.doorbell import fence
from ...shared.table import SegmentTable
from ...wire.requests import Fetch, Offsets

if TYPE_CHECKING:
    from .connection_state import Connection, Pending

PARTS_PER_TURN: Final = 5_000
STALE_MAX: Final = 1_000
"""Answered requests left among the deadlines, or in a heap; beyond that (and half of all) they are removed."""

_sequence = itertools.count()
"""Orders equal entries of a heap: requests themselves cannot be compared."""


class Owner(Protocol):
    """Delays requests, and answers them later.  Both methods remove the request from its wait lists."""

    def retry(self, delayed: DelayedRequest) -> None:
        """A high watermark has come: answer, or delay it again."""

    def answer(self, delayed: DelayedRequest) -> None:
        """Answer now."""


class DelayedRequest:
    """A request that waits until a partition reaches the high watermark that it awaits, or until ``deadline_ms``.

    ``wait_lists``: where it waits now.  ``timed``: it is among the deadlines; it stays there while it is delayed again.
    """

    __slots__ = ("deadline_ms", "owner", "pending", "timed", "wait_lists")

    def __init__(self, pending: Pending, deadline_ms: int, owner: Owner) -> None:
        self.pending = pending
        self.deadline_ms = deadline_ms
        self.owner = owner
        self.wait_lists: list[WaitList] = []
        self.timed = False

    @property
    def parts(self) -> int:
        """The cost of a retry: the number of its parts."""
        request = self.pending.request
        return len(request.parts) if isinstance(request, Fetch | Offsets) else 0


class WaitList:
    """The requests that wait at one partition; the one that awaits the lowest high watermark is on top of a heap."""

    __slots__ = ("_entries", "_heap", "table")

    def __init__(self, table: SegmentTable) -> None:
        self.table = table
        self._entries: dict[DelayedRequest, tuple[int, int, DelayedRequest]] = {}
        self._heap: list[tuple[int, int, DelayedRequest]] = []

    def __len__(self) -> int:
        """How many requests wait here."""
        return len(self._entries)

    def __iter__(self) -> Iterator[DelayedRequest]:
        return iter(list(self._entries))

    def add(self, delayed: DelayedRequest, high_watermark: int) -> None:
        """Add a request that is not in this list."""
        entry = self._entries[delayed] = (high_watermark, next(_sequence), delayed)
        heapq.heappush(self._heap, entry)

    def remove(self, delayed: DelayedRequest) -> None:
        del self._entries[delayed]
        if len(self._heap) > STALE_MAX + 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def awaited_by(self, delayed: DelayedRequest) -> int:
        """The high watermark that a request awaits here."""
        return self._entries[delayed][0]

    def lowest(self) -> int:
        """The lowest high watermark that is awaited; 0: none."""
        heap = self._heap
        while heap and self._entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else 0

    def reached(self, high_watermark: int) -> list[DelayedRequest]:
        """The requests that await this high watermark or a lower one; they stay until they are removed."""
        live = []
        while self._heap and self._heap[0][0] <= high_watermark:
            entry = heapq.heappop(self._heap)
            if self._entries.get(entry[2]) is entry:
                live.append(entry)
        for entry in live:
            heapq.heappush(self._heap, entry)
        return [delayed for _, _, delayed in live]


Awaited = tuple[WaitList, int]
"""A wait list, and the high watermark that is awaited there."""


class WaitLists:
    """The delayed requests of network worker ``number``."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lists: set[WaitList] = set()
        self._deadlines: list[tuple[int, int, DelayedRequest]] = []
        self._stale = 0
        self.unfinished = False
        """The last turn has left requests whose high watermark has come."""

    @property
    def waiting(self) -> int:
        """How many requests wait; one that waits at several partitions counts there."""
        return sum(map(len, self._lists))

    def delay(self, delayed: DelayedRequest, awaited: Sequence[Awaited]) -> bool:
        """Let a request wait at all these partitions; False when a high watermark has come meanwhile.

        At a partition that is named several times it waits for the lowest of its high watermarks.
        """
        lowest: dict[WaitList, int] = {}
        for wait_list, high_watermark in awaited:
            lowest[wait_list] = min(high_watermark, lowest.get(wait_list, high_watermark))
        for wait_list, high_watermark in lowest.items():
            delayed.wait_lists.append(wait_list)
            wait_list.add(delayed, high_watermark)
            self._lists.add(wait_list)
            wait_list.table.set_wait(self._number, wait_list.lowest())
        fence()
        delayed.pending.connection.delayed = delayed
        if not delayed.timed:
            delayed.timed = True
            heapq.heappush(self._deadlines, (delayed.deadline_ms, next(_sequence), delayed))
        if any(wait_list.table.high_watermark >= high_watermark for wait_list, high_watermark in lowest.items()):
            self.remove(delayed)
            return False
        return True

    def awaited_by(self, delayed: DelayedRequest) -> list[Awaited]:
        """The wait lists of a delayed request, with the high watermarks that it awaits."""
        return [(wait_list, wait_list.awaited_by(delayed)) for wait_list in delayed.wait_lists]

    def remove(self, delayed: DelayedRequest) -> None:
        """End a request's wait; the caller answers it, or delays it again."""
        if not delayed.wait_lists:
            return
        for wait_list in delayed.wait_lists:
            wait_list.remove(delayed)
            wait_list.table.set_wait(self._number, wait_list.lowest())
            if not wait_list:
                self._lists.discard(wait_list)
        delayed.wait_lists.clear()
        delayed.pending.connection.delayed = None
        self._stale += 1
        if self._stale > max(STALE_MAX, len(self._deadlines) // 2):
            for entry in self._deadlines:
                entry[2].timed = bool(entry[2].wait_lists)
            self._deadlines = [entry for entry in self._deadlines if entry[2].timed]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def forget(self, connection: Connection) -> None:
        """Remove the delayed request of a closed connection."""
        if connection.delayed is not None:
            self.remove(connection.delayed)

    # ---- the end of a wait

    def retry_reached(self) -> None:
        """Retry the requests whose high watermark has come, as many as fit into a turn."""
        parts = 0
        self.unfinished = False
        for delayed in self.reached():
            self.unfinished = parts >= PARTS_PER_TURN
            if self.unfinished:
                return
            parts += delayed.parts
            if delayed.wait_lists:  # else it has been answered meanwhile
                delayed.owner.retry(delayed)

    def answer_expired(self, now_ms: int) -> None:
        """Answer the requests whose time is up, as many as fit into a turn."""
        if not self._deadlines or self._deadlines[0][0] > now_ms:
            return
        parts = 0
        for delayed in self.expired(now_ms):
            delayed.owner.answer(delayed)
            parts += delayed.parts
            if parts >= PARTS_PER_TURN:
                return

    def answer_all(self) -> None:
        """Answer all requests: the worker stops."""
        for delayed in self.everything():
            delayed.owner.answer(delayed)

    def reached(self) -> list[DelayedRequest]:
        """The requests whose high watermark has come."""
        ready: dict[DelayedRequest, None] = {}
        for wait_list in self._lists:
            for delayed in wait_list.reached(wait_list.table.high_watermark):
                ready[delayed] = None
        return list(ready)

    def expired(self, now_ms: int) -> Iterator[DelayedRequest]:
        """The requests whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            delayed = heapq.heappop(self._deadlines)[2]
            delayed.timed = False
            if delayed.wait_lists:
                yield delayed

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and not self._deadlines[0][2].wait_lists:
            heapq.heappop(self._deadlines)[2].timed = False
        return self._deadlines[0][0] if self._deadlines else None

    def everything(self) -> list[DelayedRequest]:
        """All delayed requests."""
        return list({delayed: None for wait_list in self._lists for delayed in wait_list})
