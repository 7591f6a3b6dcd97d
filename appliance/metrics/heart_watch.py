"""Measures how long ago each process has beaten last: :mod:`appliance.shared.heartbeats`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


class HeartWatch:
    """Compares the cells of the processes with what they were, in every turn of its caller's loop.

    ``seen`` returns the value of a cell.  The rows are those of ``processes`` in state.json; ZooKeeper has no heart.
    """

    def __init__(self, seen: Callable[[int], int]) -> None:
        self._seen = seen
        self._changed: dict[tuple[int, int], tuple[int, int]] = {}  # (pid, heart) -> value, when it changed

    def note_beats(self, rows: Iterable[Mapping[str, Any]], now_ms: int) -> None:
        """Note which cells have changed since the last look; forget processes that are gone."""
        changed = {}
        for row in rows:
            if "heart" in row:
                key, value = (row["pid"], row["heart"]), self._seen(row["heart"])
                before = self._changed.get(key)
                changed[key] = before if before is not None and before[0] == value else (value, now_ms)
        self._changed = changed

    def ages_s(self, rows: Iterable[Mapping[str, Any]], now_ms: int) -> dict[str, float]:
        """The longest time since a beat, in seconds, of each role."""
        ages: dict[str, float] = {}
        for row in rows:
            beat = self._changed.get((row["pid"], row.get("heart", -1)))
            if beat is not None:
                ages[row["role"]] = max(ages.get(row["role"], 0.0), (now_ms - beat[1]) / 1000)
        return ages
