"""Shows the supervisor that the loops of its children run: a child adds 1 to its cell in each turn.

The cells have 8 bytes each.  The supervisor maps them before it forks, so they need no name and no room in /dev/shm,
and are freed with the last process.  The loop of a child turns at least every :func:`beat_ms`.  The supervisor checks
that the cell changes.

Each cell has one storing process: its child.  Another child gets the cell only after that one has been reaped.  The
value of a cell has no meaning; only its change has.  So with a stale load the supervisor sees a change later, and never
one that did not happen.  Whole aligned cells are stored, so no half-finished store is visible.

Long work in one piece, such as the recovery of a log, stops the loop.  It runs inside :meth:`Heart.working`, where a
thread beats instead.  The supervisor still notices a process that is stopped, or stuck with the interpreter's lock.  It
does not notice endless work; such work is bounded by its input.
"""

from __future__ import annotations

import _thread
import contextlib
import mmap
from collections.abc import Iterator
from typing import Any, Final

from ..errors import OutOfResources

BEATS_PER_TIMEOUT: Final = 4
CELL_BYTES: Final = 8


def beat_ms(timeout_ms: int) -> int:
    """Longest time between two beats, so that a loop does not seem to hang for ``timeout_ms``."""
    return timeout_ms // BEATS_PER_TIMEOUT


class Heart:
    """The cell of a process, on the side of that process."""

    def __init__(self, cells: Any, index: int, timeout_ms: int) -> None:
        self._cells = cells
        self.index = index
        self.beat_ms = beat_ms(timeout_ms)

    def beat(self) -> None:
        self._cells[self.index] += 1

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Beat in a thread while the block runs.

        Every writer starts with one, so it is a bare thread: a ``threading.Thread`` writes to ten times as many pages.
        """
        working = _thread.allocate_lock()
        working.acquire()
        _thread.start_new_thread(self._beat_until_free, (working,))
        try:
            yield
        finally:
            working.release()

    def _beat_until_free(self, lock: _thread.LockType) -> None:
        while not lock.acquire(timeout=self.beat_ms / 1000):
            self.beat()


def alone() -> Heart:
    """Make a heart that is not watched, for a process without a supervisor."""
    return Heart([0], 0, 60_000)


class Heartbeats:
    """All cells, on the side of the supervisor."""

    def __init__(self, count: int, timeout_ms: int) -> None:
        """Raises OSError: no memory."""
        self._timeout_ms = timeout_ms
        self._cells: Any = memoryview(mmap.mmap(-1, count * CELL_BYTES)).cast("Q")
        self._taken = 0  # cells used so far
        self._free: list[int] = []  # of these

    def take(self) -> Heart:
        """Take a cell for a new process.

        Raises:
            OutOfResources: all cells are in use.
        """
        if self._free:
            return Heart(self._cells, self._free.pop(), self._timeout_ms)
        if self._taken == len(self._cells):
            raise OutOfResources(f"{self._taken} processes run already, which is the maximum")
        self._taken += 1
        return Heart(self._cells, self._taken - 1, self._timeout_ms)

    def heart_at(self, index: int) -> Heart:
        """The heart with this index, which has been taken, also in a child that was forked before."""
        return Heart(self._cells, index, self._timeout_ms)

    def give_back(self, heart: Heart) -> None:
        """Free the cell of a process that has been reaped, or was never forked."""
        self._free.append(heart.index)

    def seen(self, heart: Heart) -> int:
        """The value of the cell."""
        return self.seen_at(heart.index)

    def seen_at(self, index: int) -> int:
        """The value of the cell with this index, also in a child that was forked meanwhile."""
        return int(self._cells[index])
