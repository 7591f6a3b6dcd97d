"""Shows the supervisor that the loops of its children run: a child adds 1 to its cell in each turn.

Beside it is a second one, in which a writer stores when it has served somebody last: the supervisor ends the one that
is idle longest when there are too many.

The cells have 8 bytes each.  The supervisor maps them before it forks, so they need no name and no room in /dev/shm,
and are freed with the last process.  The loop of a child turns at least every :func:`beat_ms`.  The supervisor checks
that the cell changes.

Each cell has one storing process: its child.  Another child gets the cell only after that one has been reaped; between
the two the supervisor clears the second one.  The value of the first has no meaning; only its change has.  So with a
stale load the supervisor sees a change later, and never one that did not happen.  A stale time of the second makes it
choose another writer than the idlest, which costs that one a start.  Whole aligned cells are stored, so no
half-finished store is visible.

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
BEAT, SERVED = 0, 1
CELLS: Final = 2
"""Of each process: its beat, and when it has served last."""


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
        self._cells[CELLS * self.index + BEAT] += 1

    async def beat_in_loop(self) -> None:
        """Beat as long as the asyncio loop runs that this is a task of."""
        import asyncio  # 25 MB of memory for the supervisor and the writers, which have no such loop

        while True:
            self.beat()
            await asyncio.sleep(self.beat_ms / 1000)

    def note_service(self, now_ms: int) -> None:
        """Note that the process serves somebody now; ``now_ms`` is of the monotonic clock."""
        self._cells[CELLS * self.index + SERVED] = now_ms

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
    return Heart([0] * CELLS, 0, 60_000)


class Heartbeats:
    """All cells, on the side of the supervisor."""

    def __init__(self, count: int, timeout_ms: int) -> None:
        """Raises OSError: no memory."""
        self._timeout_ms = timeout_ms
        self._count = count
        self._cells: Any = memoryview(mmap.mmap(-1, count * CELLS * CELL_BYTES)).cast("Q")
        self._taken = 0  # cells used so far
        self._free: list[int] = []  # of these

    def take_cell(self) -> Heart:
        """Take a cell for a new process.

        Raises:
            OutOfResources: all cells are in use.
        """
        if not self._free:
            if self._taken == self._count:
                raise OutOfResources(f"{self._taken} processes run already, which is the maximum")
            self._free.append(self._taken)
            self._taken += 1
        heart = self.heart_at(self._free.pop())
        heart.note_service(0)
        return heart

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
        return int(self._cells[CELLS * index + BEAT])

    def served_ms(self, index: int) -> int:
        """When the process with this index has served last; 0: never."""
        return int(self._cells[CELLS * index + SERVED])
