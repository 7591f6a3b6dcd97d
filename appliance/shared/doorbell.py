"""Wakes network workers that wait for data, through an eventfd per worker, and tells them where it is.

The eventfds are made before forking.  A worker that delays a fetch stores the high watermark that it needs into its
wait cell of the partition's table, executes :func:`fence`, and loads the high watermark again.  Then it sleeps in
epoll, where the eventfd is registered.  A writer stores the high watermark, executes :func:`fence`, and loads the wait
cells.

Why a fence.  x86-64 may execute a load before an earlier store to another cell is visible.  Without fences both sides
could load before either store is visible.  Then the worker would sleep although the high watermark has been reached,
and the writer would ring no doorbell.  With a full barrier on both sides at least one sees the store of the other.  An
unnecessary ring is harmless: the worker finds nothing to do and sleeps again.

Marks.  A worker that watches thousands of partitions must not look at all of them for each message in one.  So the
writer marks its partition's slot before it rings.  The worker silences the eventfd, clears the marks that it finds,
executes :func:`fence`, and loads the high watermarks.  A mark that it clears was stored after a high watermark which it
therefore sees, or the ring that follows the mark wakes it again.

CPython has no barrier.  Taking and releasing a lock executes locked instructions, which are full barriers on x86-64,
and takes 40 ns.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from typing import Final

SLOTS: Final = 1 << 14
"""Marks of a doorbell: more than most hosts have partitions, so that few share one.  A look through them takes 1 µs."""

_barrier = threading.Lock()


def fence() -> None:
    """A full memory barrier."""
    # Python has no fence.  Its locks are taken and freed by locked instructions of x86-64, on which alone we start.
    _barrier.acquire()
    _barrier.release()


class Doorbell:
    """An eventfd.  Any process may call ``ring``; the one that waits on ``fd`` calls ``silence``."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd

    def ring(self) -> None:
        try:
            os.eventfd_write(self.fd, 1)
        except BlockingIOError:
            pass  # the counter is full, so ``fd`` is readable already

    def silence(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass  # silent already


class MarkedDoorbell(Doorbell):
    """The doorbell of a network worker, with a byte for each slot that is 1 when it was rung for it.

    It is made before the processes are forked that use it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._marks = memoryview(mmap.mmap(-1, SLOTS))

    def ring_for(self, slot: int) -> None:
        """Ring for the partitions of a slot."""
        self._marks[slot] = 1
        self.ring()

    def take_marked(self) -> list[int]:
        """Be silent; the slots that the doorbell was rung for since the last time."""
        self.silence()
        slots: list[int] = []
        marks = bytes(self._marks)
        slot = marks.find(1)
        while slot >= 0:
            slots.append(slot)
            self._marks[slot] = 0
            slot = marks.find(1, slot + 1)
        fence()
        return slots


def slot_of(topic: str, partition: int) -> int:
    """The slot of a partition's marks; several partitions may have the same."""
    return zlib.crc32(f"{topic}-{partition}".encode()) % SLOTS
