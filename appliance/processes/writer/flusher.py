"""The thread of a writer process that flushes the log.

The writer's loop goes on taking, checking and writing during a flush.  After the flush this thread itself publishes the
high watermark, rings doorbells and answers acks=all (one wake-up less).  The next flush covers everything written
meanwhile: the slower the disk, the larger the groups.  fdatasync releases the GIL.

``lock`` guards the data of both threads: the ticket and the channels to the workers.  A failed flush is never retried,
since the kernel may have dropped the pages: ``failed`` is called, once, and nothing after it is acknowledged.  Any
other exception is a bug, and ends the process in the same way: no one waits for a thread that is gone.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, Protocol


class Ticket(Protocol):
    """A flush of the log up to an offset: see ``appliance.log``."""

    def sync(self) -> None: ...


class Flusher:
    """Flushes tickets.  ``flushed(ticket, waiting)`` runs in the thread after each flush, with ``lock`` held.

    ``flushed`` may return a function for work that no one waits for; the thread calls it without the lock.
    """

    def __init__(
        self,
        flushed: Callable[[Any, list[Any]], Callable[[], None] | None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.lock = threading.Lock()
        self._flushed, self._failed = flushed, failed
        self._ticket: Ticket | None = None
        self._waiting: list[Any] = []
        self._gate = threading.Lock()
        self._gate.acquire()
        self._idle = True
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
            self._gate.acquire()
            while True:
                with self.lock:
                    ticket, waiting = self._ticket, self._waiting
                    if ticket is None:
                        if self._stopping:
                            return
                        self._idle = True
                        self._resting.notify_all()
                        break
                    self._ticket, self._waiting = None, []
                ticket.sync()
                with self.lock:
                    afterwards = self._flushed(ticket, waiting)
                if afterwards is not None:
                    afterwards()
