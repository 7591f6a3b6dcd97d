"""Finds children that hang: their heartbeat has not moved for ``liveness.timeout_ms``.

Every quarter of the timeout :meth:`Liveness.overdue` compares each cell with its last value.  If it is the same, the
time since then counts, but at most that quarter, however long the supervisor itself was stopped or waited for a
processor.  So a pause of the machine, or of the supervisor, costs a child at most one of the four quarters.

A child whose main thread waits in the kernel for a device (state D) does not count as hanging: a disk may be slow, and
such a process cannot be killed anyway.  Its silent time counts again when it has returned.  The silent time of a writer
counts from when its pid is known: before that the nursery has to move (:mod:`.nursery`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ...shared.heartbeats import Heart, Heartbeats, beat_ms
from .fork import Child

WAITS_FOR_DEVICE: Final = "D"


class _Watched:
    __slots__ = ("heart", "held", "silent_ms")

    def __init__(self, heart: Heart, held: int) -> None:
        self.heart, self.held = heart, held
        self.silent_ms = 0


class Liveness:
    """Counts silent time.  ``state_of(pid)``: the state of a process's main thread, as in /proc/<pid>/stat."""

    def __init__(
        self, heartbeats: Heartbeats, timeout_ms: int, clock_ms: Callable[[], int], state_of: Callable[[int], str]
    ) -> None:
        self._heartbeats = heartbeats
        self._timeout_ms = timeout_ms
        self.check_ms = beat_ms(timeout_ms)
        """How often to call :meth:`overdue`."""
        self._clock_ms = clock_ms
        self._state_of = state_of
        self._watched: dict[Child, _Watched] = {}
        self._checked_ms = clock_ms()

    def watch(self, child: Child, heart: Heart) -> None:
        """Count the silent time of a child, from its fork on."""
        self._watched[child] = _Watched(heart, self._heartbeats.seen(heart))

    def forget(self, child: Child) -> None:
        """Forget a child that was reaped."""
        watched = self._watched.pop(child, None)
        if watched is not None:
            self._heartbeats.give_back(watched.heart)

    def heart_of(self, child: Child) -> int:
        """The index of the cell of a child that is watched; -1: it is not."""
        watched = self._watched.get(child)
        return -1 if watched is None else watched.heart.index

    def overdue(self) -> Iterable[Child]:
        """The children that hang; each is returned at every check until it is gone."""
        now = self._clock_ms()
        charged_ms = min(now - self._checked_ms, self.check_ms)
        self._checked_ms = now
        hanging = []
        for child, watched in self._watched.items():
            if not child.pid:
                continue
            held = self._heartbeats.seen(watched.heart)
            if held != watched.held:
                watched.held, watched.silent_ms = held, 0
                continue
            watched.silent_ms += charged_ms
            if watched.silent_ms >= self._timeout_ms and self._state_of(child.pid) != WAITS_FOR_DEVICE:
                hanging.append(child)
        return hanging


def state_of(pid: int) -> str:
    """The state of a process's main thread; "" when it cannot be read."""
    try:
        return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
