"""Flushes the log of a writer process, in a thread or in the writer's loop.

While the thread flushes, the loop goes on taking, checking and writing.  After the flush the thread itself publishes
the high watermark, rings doorbells and answers acks=all (one wake-up less).  The next flush covers everything written
meanwhile: the slower the disk, the larger the groups.  fdatasync releases the GIL.

A flush of little takes less time than two threads need to pass work and the GIL to and fro, so the loop may do it
(:meth:`Flusher.flush_here`).  A disk can still stop for seconds.  Meanwhile the thread beats instead of the loop, as in
:meth:`appliance.shared.heartbeats.Heart.working`, and without a wake-up for each flush: it is a guard for a while after
each flush, and only then may the loop flush.

========  =====================  =====================================================================================
thread    the loop may           leaves this state
========  =====================  =====================================================================================
asleep    hand over              *flushing*, when the loop hands over
flushing  hand over, for later   *guarding*, when nothing is left to flush
guarding  hand over, flush here  *flushing*, when the loop hands over; *asleep*, after a beat's time in which the loop
                                 flushed nothing; it beats and stays when the loop waits for the disk at that time
ended     nothing                after *flushing* that has failed, and from any state at :meth:`Flusher.stop`, when
                                 nothing is left to flush
========  =====================  =====================================================================================

``lock`` guards the data of both threads: the ticket and the channels to the workers.  The loop holds it while it
flushes, so a guard only tries to take it.  A failed flush is never retried, since the kernel may have dropped the
pages: ``failed`` is called, once, and nothing after it is acknowledged.  Any other exception is a bug, and ends the
process in the same way: no one waits for a thread that is gone.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ...shared.heartbeats import Heart


class Ticket(Protocol):
    """A flush of the log up to an offset: see ``appliance.log``."""

    def sync(self) -> None: ...


class Flusher:
    """Flushes tickets.  ``flushed(ticket, waiting)`` runs after each flush, in the thread that flushed, with ``lock``.

    ``flushed`` may return a function for work that no one waits for; the thread calls it without the lock.
    """

    def __init__(
        self,
        flushed: Callable[[Any, list[Any]], Callable[[], None] | None],
        failed: Callable[[Exception], None],
        heart: Heart,
    ) -> None:
        self.lock = threading.Lock()
        self._flushed, self._failed, self._heart = flushed, failed, heart
        self._ticket: Ticket | None = None
        self._waiting: list[Any] = []
        self._gate = threading.Lock()
        self._gate.acquire()
        self._idle = True
        self._guarding = self._waiting_here = self._flushed_here = False
        self._resting = threading.Condition(self.lock)
        self._stopping, self._ended = False, True

    def start(self) -> None:
        """Start the thread, a bare one: see :meth:`appliance.shared.heartbeats.Heart.working`."""
        self._ended = False
        _thread.start_new_thread(self._run, ())

    def hand_over(self, ticket: Ticket, waiting: list[Any]) -> None:
        """Flush a ticket, then answer ``waiting``.  Call with ``lock`` held."""
        self._ticket = ticket
        self._waiting += waiting
        if self._idle:
            self._idle = False
            self._gate.release()

    @property
    def may_flush_here(self) -> bool:
        """Whether the thread has nothing to do but to guard.  Ask with ``lock`` held."""
        return self._guarding and self._idle

    def flush_here(self, ticket: Ticket, waiting: list[Any]) -> None:
        """Flush a ticket in the loop's thread, then answer ``waiting``.

        Call with ``lock`` held, where :attr:`may_flush_here` and the answer of ``flushed`` is sure to be None.  Raises
        what the flush raises, and does not call ``failed``.
        """
        self._flushed_here = True
        self.wait_here(ticket.sync)
        afterwards = self._flushed(ticket, waiting)
        assert afterwards is None

    def wait_here(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something that may wait for the disk in the loop's thread, as part of a flush that the loop makes.

        Call with ``lock`` held, where :attr:`may_flush_here`.
        """
        self._waiting_here = True
        try:
            work(*arguments)
        finally:
            self._waiting_here = False

    def drain(self) -> None:
        """Wait until all tickets are flushed, or one has failed.  The loop hands over none meanwhile."""
        with self.lock:
            self._resting.wait_for(lambda: self._idle or self._ended)

    def stop(self) -> None:
        """Flush the last ticket, then end the thread."""
        with self.lock:
            self._stopping = True
            if self._idle:
                self._idle = False
                self._gate.release()
            self._resting.wait_for(lambda: self._ended)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self._failed(error)
        finally:
            with self.lock:
                self._ended = True
                self._resting.notify_all()

    def _serve(self) -> None:
        while True:
            self._wait()
            while True:
                with self.lock:
                    ticket, waiting = self._ticket, self._waiting
                    if ticket is None:
                        if self._stopping:
                            return
                        self._idle = self._guarding = True
                        self._resting.notify_all()
                        break
                    self._ticket, self._waiting = None, []
                ticket.sync()
                with self.lock:
                    afterwards = self._flushed(ticket, waiting)
                if afterwards is not None:
                    afterwards()

    def _wait(self) -> None:
        """Wait for a ticket; guard the loop meanwhile, and fall asleep when it has flushed nothing for long."""
        while not self._gate.acquire(timeout=self._heart.beat_ms / 1000 if self._guarding else -1):
            if self._waiting_here:
                self._heart.beat()
            elif self.lock.acquire(blocking=False):
                self._guarding, self._flushed_here = self._flushed_here, False
                self.lock.release()
