"""Wakes network workers that wait for data, through an eventfd per worker.

The eventfds are made before forking.  A worker that delays a fetch stores the high watermark that it needs into its
wait cell of the partition's table, executes :func:`fence`, and loads the high watermark again.  Then it sleeps in
epoll, where the eventfd is registered.  A writer stores the high watermark, executes :func:`fence`, and loads the wait
cells.

Why a fence.  x86-64 may execute a load before an earlier store to another cell is visible.  Without fences both sides
could load before either store is visible.  Then the worker would sleep although the high watermark has been reached,
and the writer would ring no doorbell.  With a full barrier on both sides at least one sees the store of the other.  An
unnecessary ring is harmless: the worker finds nothing to do and sleeps again.

CPython has no barrier.  Taking and releasing a lock executes locked instructions, which are full barriers on x86-64,
and takes 40 ns.
"""

from __future__ import annotations

import os
import threading

_barrier = threading.Lock()


def fence() -> None:
    """A full memory barrier."""
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
