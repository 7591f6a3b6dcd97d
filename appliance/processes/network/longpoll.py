"""Long poll: requests that wait at their partitions for an END that has not come yet.

The lowest END that anybody parked at a partition needs is in this worker's wait cell of its table; its writer rings
the worker's doorbell when it publishes it.  ``shared.doorbell`` argues that no wake-up is lost: :meth:`LongPoll.park`
stores the cell, executes the fence, and looks again.

A fetch of one partition waits for ``bytes_enough``; a fetch of several waits for anything new in one of them, and
whoever is woken adds up whether it is enough.  A question about offsets waits for what is written to be shown.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ...shared.doorbell import fence
from ...shared.table import SegmentTable
from ...wire.requests import Fetch
from .connection import Connection, Pending

STALE_MAX = 1_000
"""Answered requests left among the deadlines; beyond that (and half of all) they are taken out."""


class Parked:
    """A request that waits until one of its places reaches its END, or until ``deadline_ms``."""

    __slots__ = ("deadline_ms", "pending", "places")

    def __init__(self, pending: Pending, deadline_ms: int) -> None:
        self.pending = pending
        self.deadline_ms = deadline_ms
        self.places: list[Place] = []


class Place:
    """Where requests about one partition are parked, each with the END it needs."""

    __slots__ = ("table", "wanted")

    def __init__(self, table: SegmentTable) -> None:
        self.table = table
        self.wanted: dict[Parked, int] = {}


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
        self._sequence = itertools.count()
        self._stale = 0

    def park(self, parked: Parked, wants: Sequence[Want]) -> bool:
        """Wait at every place; False when an END has moved meanwhile: look again instead."""
        for place, end in wants:
            parked.places.append(place)
            place.wanted[parked] = end
            place.table.set_wait(self._number, min(place.wanted.values()))
            self._places.add(place)
        fence()
        heapq.heappush(self._deadlines, (parked.deadline_ms, next(self._sequence), parked))
        if any(place.table.end >= place.wanted[parked] for place in parked.places):
            self.unpark(parked)
            return False
        return True

    def wants_of(self, parked: Parked) -> list[Want]:
        """What a parked request waits for."""
        return [(place, place.wanted[parked]) for place in parked.places]

    def unpark(self, parked: Parked) -> None:
        """Wait no more; the caller answers, or parks it again."""
        if not parked.places:
            return
        for place in parked.places:
            place.wanted.pop(parked, None)
            if place.wanted:
                place.table.set_wait(self._number, min(place.wanted.values()))
            else:
                place.table.set_wait(self._number, 0)
                self._places.discard(place)
        parked.places.clear()
        self._stale += 1
        if self._stale > max(STALE_MAX, len(self._deadlines) // 2):
            self._deadlines = [entry for entry in self._deadlines if entry[2].places]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def reached(self) -> list[Parked]:
        """The requests whose END has come: somebody has rung."""
        ready: dict[Parked, Any] = {}
        for place in self._places:
            end = place.table.end
            for parked, wanted in place.wanted.items():
                if wanted <= end:
                    ready[parked] = None
        return list(ready)

    def expired(self, now_ms: int) -> Iterator[Parked]:
        """The requests whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            parked = heapq.heappop(self._deadlines)[2]
            if parked.places:
                yield parked

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and not self._deadlines[0][2].places:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def everybody(self) -> list[Parked]:
        return list({parked: None for place in self._places for parked in place.wanted})

    def of(self, connection: Connection) -> list[Parked]:
        return [parked for parked in self.everybody() if parked.pending.connection is connection]
