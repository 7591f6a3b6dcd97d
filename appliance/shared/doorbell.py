"""Doorbells: how a writer wakes the network workers that wait for data.

One eventfd per worker, made before forking.  A worker that has nothing to answer a fetch with stores the high watermark
that it needs into its wait cell of the partition's table, executes :func:`fence`, and loads the high watermark again;
only then does it sleep in epoll, where the eventfd is registered.  A writer stores the high watermark, executes
:func:`fence`, and loads the wait cells.

Why a fence.  x86-64 lets a load overtake an earlier store to another cell.  Without fences both sides could load
before either store is visible: the worker would sleep although the high watermark has come, and the writer would ring
nobody.  With a full barrier on both sides at least one sees the other's store.  A ring too many is harmless: the worker
looks, finds nothing and sleeps again.

CPython has no barrier of its own; taking and releasing a lock executes locked instructions, which on x86-64 are
full barriers, and costs 40 ns.
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
    """An eventfd; ``ring`` may be called by any process, ``silence`` by the one that waits on ``fd``."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd

    def ring(self) -> None:
        try:
            os.eventfd_write(self.fd, 1)
        except BlockingIOError:
            pass  # the counter is full: it rings already

    def silence(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass  # somebody has been here before
