"""Long poll: requests that wait at their partitions for an END that has not come yet.

The lowest END that anybody parked at a partition needs is in this worker's wait cell of its table; its writer rings
the worker's doorbell when it publishes it.  ``shared.doorbell`` argues that no wake-up is lost: :meth:`LongPoll.park`
stores the cell, executes the fence, and looks again.

A fetch of one partition waits for ``bytes_enough``; a fetch of several waits for anything new in one of them, and
whoever is woken adds up whether it is enough.  A question about offsets waits for what is written to be shown.

Cost: parking and unparking take the logarithm of how many wait at the partition.  Bounds: a connection has one request
parked at most, since a request behind it does not start.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

from ...shared.doorbell import fence
from ...shared.table import SegmentTable
from ...wire.requests import Fetch, Offsets
from .connection import Pending

STALE_MAX = 1_000
"""Answered requests left among the deadlines, or at a place; beyond that (and half of all) they are taken out."""

_sequence = itertools.count()
"""Orders equal entries of a heap: requests themselves cannot be compared."""


class Parked:
    """A request that waits until one of its places reaches its END, or until ``deadline_ms``.

    ``timed``: it is among the deadlines already, where it stays while it is parked again.
    """

    __slots__ = ("deadline_ms", "pending", "places", "timed")

    def __init__(self, pending: Pending, deadline_ms: int) -> None:
        self.pending = pending
        self.deadline_ms = deadline_ms
        self.places: list[Place] = []
        self.timed = False

    @property
    def parts(self) -> int:
        """What looking at it again costs."""
        request = self.pending.request
        return len(request.parts) if isinstance(request, Fetch | Offsets) else 0


class Place:
    """Where requests about one partition are parked, each with the END it needs; the lowest is on top of a heap."""

    __slots__ = ("_heap", "_live", "table")

    def __init__(self, table: SegmentTable) -> None:
        self.table = table
        self._live: dict[Parked, tuple[int, int, Parked]] = {}
        self._heap: list[tuple[int, int, Parked]] = []

    def __len__(self) -> int:
        """How many requests are parked here."""
        return len(self._live)

    @property
    def parked(self) -> list[Parked]:
        return list(self._live)

    def add(self, parked: Parked, end: int) -> None:
        """Park a request that is not parked here."""
        entry = self._live[parked] = (end, next(_sequence), parked)
        heapq.heappush(self._heap, entry)

    def remove(self, parked: Parked) -> None:
        del self._live[parked]
        if len(self._heap) > STALE_MAX + 2 * len(self._live):
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)

    def end_for(self, parked: Parked) -> int:
        """The END that a request waits for here."""
        return self._live[parked][0]

    def lowest(self) -> int:
        """The lowest END that is waited for; 0: none."""
        heap = self._heap
        while heap and self._live.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else 0

    def reached(self, end: int) -> list[Parked]:
        """The requests whose END has come; they stay until they are removed."""
        live = []
        while self._heap and self._heap[0][0] <= end:
            entry = heapq.heappop(self._heap)
            if self._live.get(entry[2]) is entry:
                live.append(entry)
        for entry in live:
            heapq.heappush(self._heap, entry)
        return [parked for _, _, parked in live]


Want = tuple[Place, int]
"""A place, and the END that is waited for there."""


def wants_of_fetch(request: Fetch, places: Sequence[Place], ends: Sequence[int]) -> list[Want]:
    """What a fetch waits for that has found too little; ``ends`` are those it has seen, part by part."""
    if len(places) == 1:
        part = request.parts[0]
        return [(places[0], part.offset + max(1, min(request.bytes_enough, part.bytes_max)))]
    parts = zip(request.parts, places, ends, strict=True)
    return [(place, max(part.offset, end) + 1) for part, place, end in parts]


class LongPoll:
    """The parked requests of network worker ``number``."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._places: set[Place] = set()
        self._deadlines: list[tuple[int, int, Parked]] = []
        self._stale = 0

    def park(self, parked: Parked, wants: Sequence[Want]) -> bool:
        """Wait at every place; False when an END has moved meanwhile: look again instead.

        A place that is named several times is waited at once, for the lowest END.
        """
        lowest: dict[Place, int] = {}
        for place, end in wants:
            lowest[place] = min(end, lowest.get(place, end))
        for place, end in lowest.items():
            parked.places.append(place)
            place.add(parked, end)
            self._places.add(place)
            place.table.set_wait(self._number, place.lowest())
        fence()
        if not parked.timed:
            parked.timed = True
            heapq.heappush(self._deadlines, (parked.deadline_ms, next(_sequence), parked))
        if any(place.table.end >= end for place, end in lowest.items()):
            self.unpark(parked)
            return False
        return True

    def wants_of(self, parked: Parked) -> list[Want]:
        """What a parked request waits for."""
        return [(place, place.end_for(parked)) for place in parked.places]

    def unpark(self, parked: Parked) -> None:
        """Wait no more; the caller answers, or parks it again."""
        if not parked.places:
            return
        for place in parked.places:
            place.remove(parked)
            place.table.set_wait(self._number, place.lowest())
            if not place:
                self._places.discard(place)
        parked.places.clear()
        self._stale += 1
        if self._stale > max(STALE_MAX, len(self._deadlines) // 2):
            for entry in self._deadlines:
                entry[2].timed = bool(entry[2].places)
            self._deadlines = [entry for entry in self._deadlines if entry[2].timed]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def reached(self) -> list[Parked]:
        """The requests whose END has come: somebody has rung."""
        ready: dict[Parked, None] = {}
        for place in self._places:
            for parked in place.reached(place.table.end):
                ready[parked] = None
        return list(ready)

    def expired(self, now_ms: int) -> Iterator[Parked]:
        """The requests whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            parked = heapq.heappop(self._deadlines)[2]
            parked.timed = False
            if parked.places:
                yield parked

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and not self._deadlines[0][2].places:
            heapq.heappop(self._deadlines)[2].timed = False
        return self._deadlines[0][0] if self._deadlines else None

    def everybody(self) -> list[Parked]:
        return list({parked: None for place in self._places for parked in place.parked})
