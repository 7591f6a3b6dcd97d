"""The next deadlines of many groups: a heap with one entry per group, plus one for each time that one came closer.

An entry that is out of date is dropped when its time comes.  All in ms of the caller's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Alarms:
    """Which name has to be looked at when."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._alarm_of: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of entries, which is bounded by that of the names."""
        return len(self._heap)

    def next_ms(self) -> int | None:
        """When to call :meth:`due` at the latest; calling it earlier does no harm."""
        return self._heap[0][0] if self._heap else None

    def set(self, name: str, deadline_ms: int) -> None:
        """Have ``name`` come at ``deadline_ms``, or before that, if it was set so."""
        if deadline_ms < self._alarm_of.get(name, deadline_ms + 1):
            self._alarm_of[name] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, name))
            if len(self._heap) > 2 * len(self._alarm_of) + 64:
                self._heap = [(when_ms, name) for name, when_ms in self._alarm_of.items()]
                heapq.heapify(self._heap)

    def get(self, name: str) -> int | None:
        """When ``name`` comes, if it was set."""
        return self._alarm_of.get(name)

    def drop(self, name: str) -> None:
        self._alarm_of.pop(name, None)

    def due(self, now_ms: int) -> Iterator[str]:
        """Names whose time has come, once each; to come again they have to be set again."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heapq.heappop(self._heap)
            if self._alarm_of.get(name) == deadline_ms:
                del self._alarm_of[name]
                yield name
