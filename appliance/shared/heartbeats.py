"""Heartbeats: how the supervisor sees that a child's loop turns.

One 8-byte cell per process, in memory that is shared by being inherited: the supervisor maps it before it forks, so it
needs no name and no room in /dev/shm, and is gone with the last process.  A child raises its cell whenever its loop
turns, and turns at least every :func:`beat_ms`; the supervisor only looks whether a cell has moved.

Each cell has one storing process: the child that the supervisor gave it to.  A cell is given to another child only
after the one before has been reaped.  What a cell holds means nothing, only that it changes does; so a stale load
makes the supervisor see a movement later, never one that has not been, and a half-finished store cannot be seen, since
whole aligned cells are stored.

A process that does long work in one piece (recovery of a log above all) turns no loop meanwhile.  It does it inside
:meth:`Heart.working`, where a thread beats instead.  That still shows a process that is stopped, or stuck with the
interpreter's lock held, but not one that works for ever: such work is bounded by what there is to do.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from typing import Any, Final

from ..errors import OutOfResources

BEATS_PER_TIMEOUT: Final = 4
CELL_BYTES: Final = 8


def beat_ms(timeout_ms: int) -> int:
    """How often a loop turns at least, so that it is not taken for one that hangs after ``timeout_ms``."""
    return timeout_ms // BEATS_PER_TIMEOUT


class Heart:
    """One cell, on the side of the process that it belongs to."""

    def __init__(self, cells: Any, index: int, timeout_ms: int) -> None:
        self._cells = cells
        self.index = index
        self.beat_ms = beat_ms(timeout_ms)

    def beat(self) -> None:
        self._cells[self.index] += 1

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Long work in one piece, in the block: a thread beats as long as it lasts."""
        done = threading.Event()

        def run() -> None:
            while not done.wait(self.beat_ms / 1000):
                self.beat()

        thread = threading.Thread(target=run, name="heart", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def alone() -> Heart:
    """A heart that nobody watches: of a process without a supervisor."""
    return Heart([0], 0, 60_000)


class Heartbeats:
    """All cells, on the supervisor's side."""

    def __init__(self, count: int, timeout_ms: int) -> None:
        """Raises OSError: no memory."""
        self._timeout_ms = timeout_ms
        self._cells: Any = memoryview(mmap.mmap(-1, count * CELL_BYTES)).cast("Q")
        self._taken = 0  # cells that ever were
        self._free: list[int] = []  # of these

    def take(self) -> Heart:
        """A cell for a new process.

        Raises:
            OutOfResources: all belong to others.
        """
        if self._free:
            return Heart(self._cells, self._free.pop(), self._timeout_ms)
        if self._taken == len(self._cells):
            raise OutOfResources(f"{self._taken} processes run already: that is the most there can be")
        self._taken += 1
        return Heart(self._cells, self._taken - 1, self._timeout_ms)

    def give_back(self, heart: Heart) -> None:
        """Its process has been reaped, or was never forked."""
        self._free.append(heart.index)

    def seen(self, heart: Heart) -> int:
        """What the cell holds."""
        return int(self._cells[heart.index])
