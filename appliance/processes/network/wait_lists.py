"""Keeps delayed requests: they wait until the high watermarks of their partitions reach an offset (long poll).

Every partition has a :class:`WaitList`: the watches that wait at it, each with the high watermark that it awaits.  The
worker stores the lowest of these in its wait cell of the partition's table; the writer rings the worker's doorbell when
the high watermark reaches it, and marks the partition.  ``shared.doorbell`` argues that no wake-up is lost:
:meth:`WaitLists.await_at` stores the cell, executes the fence, and reads the high watermark again.

A :class:`PartitionWatch` is what waits at several partitions for one reader.  Where a high watermark has come, it waits
no more: the partition is among those that have moved, until the reader has looked at it.  So a message costs nothing at
all the other partitions that are watched.

A fetch of one partition waits for ``bytes_enough``.  A fetch of several waits for anything new in one of them, and then
counts whether that is enough.  A request for offsets waits until the high watermark reaches the log end offset.

Cost: to begin and to end a wait takes O(log n) steps for n watches that wait at the partition.  Bounds: a connection
has at most one delayed request, because the request after it does not start.  A turn of the loop retries and answers
delayed requests, one at least, until it is over, and leaves the others to the next turn.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ...shared.doorbell import fence
from ...shared.table import SegmentTable

if TYPE_CHECKING:
    from .worker_connection import Pending

STALE_MAX: Final = 1_000
"""Answered requests left among the deadlines, or in a heap; beyond that (and half of all) they are removed."""

_sequence = itertools.count()
"""Orders equal entries of a heap: requests themselves cannot be compared."""


class Answerer(Protocol):
    """Delays requests, and answers them later."""

    def retry(self, delayed: DelayedRequest) -> None:
        """High watermarks have come (``delayed.watch.moved``): answer, or go on waiting."""

    def answer_now(self, delayed: DelayedRequest) -> None:
        """Answer with what there is: its time is over, a partition is gone, or the worker stops."""


class PartitionWatch:
    """The partitions that one reader watches.

    ``lists``: where it waits.  ``moved``: where it waits no more, because the high watermark has come or the partition
    is gone; whoever looks there clears it.  ``delayed``: the request that waits for that, if there is one.
    """

    __slots__ = ("delayed", "lists", "moved")

    def __init__(self) -> None:
        self.delayed: DelayedRequest | None = None
        self.lists: dict[WaitList, None] = {}
        self.moved: dict[WaitList, None] = {}


NOTHING: Final = PartitionWatch()
"""What a request watches that does not wait any more."""


class DelayedRequest:
    """A request that waits for what it watches, or until ``deadline_ms``."""

    __slots__ = ("deadline_ms", "owner", "pending", "watch")

    def __init__(self, pending: Pending, deadline_ms: int, owner: Answerer, watch: PartitionWatch) -> None:
        self.pending = pending
        self.deadline_ms = deadline_ms
        self.owner = owner
        self.watch = watch

    @property
    def waits(self) -> bool:
        """Whether it has not been answered."""
        return self.watch.delayed is self


class WaitList:
    """The watches that wait at one partition; the one that awaits the lowest high watermark is on top of a heap.

    ``slot``: the partition's, of the doorbell.  ``listed``: it can be found by that.
    """

    __slots__ = ("_entries", "_heap", "listed", "slot", "table")

    def __init__(self, table: SegmentTable, slot: int) -> None:
        self.table = table
        self.slot, self.listed = slot, False
        self._entries: dict[PartitionWatch, tuple[int, int, PartitionWatch]] = {}
        self._heap: list[tuple[int, int, PartitionWatch]] = []

    def __len__(self) -> int:
        """How many watches wait here."""
        return len(self._entries)

    def add_watch(self, watch: PartitionWatch, high_watermark: int) -> None:
        """Let a watch that does not wait here wait for this high watermark, or a higher one."""
        entry = self._entries[watch] = (high_watermark, next(_sequence), watch)
        heapq.heappush(self._heap, entry)

    def remove_watch(self, watch: PartitionWatch) -> None:
        del self._entries[watch]
        if len(self._heap) > STALE_MAX + 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def lowest(self) -> int:
        """The lowest high watermark that is awaited; 0: none."""
        heap = self._heap
        while heap and self._entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else 0

    def take_reached(self, high_watermark: int) -> list[PartitionWatch]:
        """Remove and return the watches that await this high watermark or a lower one."""
        taken = []
        while self._heap and self._heap[0][0] <= high_watermark:
            entry = heapq.heappop(self._heap)
            if self._entries.get(entry[2]) is entry:
                del self._entries[entry[2]]
                taken.append(entry[2])
        return taken

    def take_all(self) -> list[PartitionWatch]:
        """Remove and return all watches."""
        taken = list(self._entries)
        self._entries.clear()
        self._heap.clear()
        return taken


Awaited = tuple[WaitList, int]
"""A wait list, and the high watermark that is awaited there."""


class WaitLists:
    """The wait lists and the delayed requests of network worker ``number``.  ``is_over``: whether its turn is."""

    def __init__(self, number: int, is_over: Callable[[], bool]) -> None:
        self._number, self._is_over = number, is_over
        self._by_slot: dict[int, list[WaitList]] = {}
        """Those that anybody has waited at, until their partitions are gone."""
        self.waiting = 0
        """How many watches wait; one that waits at several partitions counts there."""
        self._deadlines: list[tuple[int, int, DelayedRequest]] = []
        self._stale = 0
        self._ready: dict[DelayedRequest, None] = {}

    # ---- what is watched

    def await_at(self, watch: PartitionWatch, awaited: Iterable[Awaited]) -> None:
        """Wait at these partitions, too.  Those where the high watermark has come meanwhile go to ``watch.moved``.

        At a partition that is named several times it waits for the lowest of its high watermarks.
        """
        lowest: dict[WaitList, int] = {}
        for wait_list, high_watermark in awaited:
            lowest[wait_list] = min(high_watermark, lowest.get(wait_list, high_watermark))
        for wait_list, high_watermark in lowest.items():
            assert wait_list not in watch.lists
            watch.lists[wait_list] = None
            if not wait_list.listed:
                wait_list.listed = True
                self._by_slot.setdefault(wait_list.slot, []).append(wait_list)
            wait_list.add_watch(watch, high_watermark)
            self.waiting += 1
            wait_list.table.set_wait(self._number, wait_list.lowest())
        fence()
        for wait_list, high_watermark in lowest.items():
            if wait_list.table.high_watermark >= high_watermark:
                self._remove(watch, wait_list)
                del watch.lists[wait_list]
                watch.moved[wait_list] = None

    def release(self, watch: PartitionWatch) -> None:
        """Wait nowhere any more."""
        for wait_list in watch.lists:
            self._remove(watch, wait_list)
        watch.lists.clear()
        watch.moved.clear()

    def leave(self, watch: PartitionWatch, wait_list: WaitList) -> None:
        """Wait at one partition no more, if it does."""
        watch.moved.pop(wait_list, None)
        if wait_list in watch.lists:
            del watch.lists[wait_list]
            self._remove(watch, wait_list)

    def drop(self, wait_list: WaitList) -> None:
        """Nobody waits any more at a partition that is gone; requests that did are answered."""
        if wait_list.listed:
            wait_list.listed = False
            self._by_slot[wait_list.slot].remove(wait_list)
        for watch in self._moved(wait_list, wait_list.take_all()):
            if watch.delayed is not None:
                watch.delayed.owner.answer_now(watch.delayed)

    def _moved(self, wait_list: WaitList, taken: list[PartitionWatch]) -> list[PartitionWatch]:
        for watch in taken:
            del watch.lists[wait_list]
            watch.moved[wait_list] = None
        self.waiting -= len(taken)
        wait_list.table.set_wait(self._number, wait_list.lowest())
        return taken

    def _remove(self, watch: PartitionWatch, wait_list: WaitList) -> None:
        self.waiting -= 1
        wait_list.remove_watch(watch)
        wait_list.table.set_wait(self._number, wait_list.lowest())

    # ---- requests that wait

    def begin_wait(self, delayed: DelayedRequest) -> None:
        """Let a request wait for what it watches."""
        delayed.watch.delayed = delayed
        delayed.pending.connection.own(delayed, partial(self._forget, delayed))
        heapq.heappush(self._deadlines, (delayed.deadline_ms, next(_sequence), delayed))

    def end_wait(self, delayed: DelayedRequest) -> None:
        """End a request's wait; the caller answers it, and releases what it watched."""
        delayed.watch.delayed = None
        delayed.watch = NOTHING  # among the deadlines it stays for a while, without what it has read
        delayed.pending.connection.disown(delayed)
        self._stale += 1
        if self._stale > max(STALE_MAX, len(self._deadlines) // 2):
            self._deadlines = [entry for entry in self._deadlines if entry[2].waits]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def _forget(self, delayed: DelayedRequest) -> None:
        """Forget the request of a closed connection."""
        watch = delayed.watch
        self.end_wait(delayed)
        self.release(watch)

    # ---- the end of a wait

    def retry_reached(self, slots: Iterable[int]) -> None:
        """Retry the requests whose high watermark has come in partitions of these slots, as many as fit into a turn."""
        for slot in slots:
            for wait_list in self._by_slot.get(slot, ()):
                for watch in self._moved(wait_list, wait_list.take_reached(wait_list.table.high_watermark)):
                    if watch.delayed is not None:
                        self._ready[watch.delayed] = None
        self.retry_ready()

    def retry_ready(self) -> None:
        """Retry the requests that earlier turns have left, too, as many as fit into a turn."""
        while self._ready:
            delayed = next(iter(self._ready))
            del self._ready[delayed]
            if delayed.waits:  # else it has been answered meanwhile
                delayed.owner.retry(delayed)
                if self._is_over():
                    return

    @property
    def unfinished(self) -> bool:
        """Whether the last turn has left requests whose high watermark has come."""
        return bool(self._ready)

    def answer_expired(self, now_ms: int) -> None:
        """Answer the requests whose time is up, as many as fit into a turn."""
        if not self._deadlines or self._deadlines[0][0] > now_ms:
            return
        for delayed in self.expired(now_ms):
            delayed.owner.answer_now(delayed)
            if self._is_over():
                return

    def answer_all(self) -> None:
        """Answer all requests: the worker stops."""
        for delayed in self.everything():
            delayed.owner.answer_now(delayed)

    def expired(self, now_ms: int) -> Iterator[DelayedRequest]:
        """The requests whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            delayed = heapq.heappop(self._deadlines)[2]
            if delayed.waits:
                yield delayed

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and not self._deadlines[0][2].waits:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def everything(self) -> list[DelayedRequest]:
        """All delayed requests."""
        return [delayed for _, _, delayed in self._deadlines if delayed.waits]
