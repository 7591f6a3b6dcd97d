"""Finds children that hang: their heartbeat has not moved for ``liveness.timeout_ms``.

Every quarter of the timeout :meth:`Liveness.overdue` compares each cell with what it held the time before.  A child is
charged for the time since then, but for no more than that quarter, however long the supervisor itself was stopped or
had to wait for a processor.  So a pause of the machine, or of the supervisor, costs a child one of the four quarters at
most, and the others give every child the time to move.

A child whose main thread waits in the kernel for a device (state D) is not counted as hanging: a disk may be slow, and
such a process could not be killed anyway.  Its time goes on counting when it has returned.
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
    """``state_of(pid)`` is the state of a process's main thread: a letter, as in /proc/<pid>/stat."""

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
        """From the fork on."""
        self._watched[child] = _Watched(heart, self._heartbeats.seen(heart))

    def forget(self, child: Child) -> None:
        """It has been reaped."""
        watched = self._watched.pop(child, None)
        if watched is not None:
            self._heartbeats.give_back(watched.heart)

    def overdue(self) -> Iterable[Child]:
        """The children that hang; each is named again at every check until it is gone."""
        now = self._clock_ms()
        charged_ms = min(now - self._checked_ms, self.check_ms)
        self._checked_ms = now
        hanging = []
        for child, watched in self._watched.items():
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
