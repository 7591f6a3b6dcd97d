"""The thread of a writer process that flushes what is written.

The writer's loop goes on taking, checking and writing while the last group is on its way to the disk.  When it is
there, this thread itself publishes the high watermark, rings doorbells and answers acks=all (one wake-up less); the
next flush covers all that was written meanwhile.  The slower the disk, the larger the groups.  fdatasync releases the
GIL.

``lock`` guards what both threads touch: the hand-over below and the channels to the workers.  A flush that fails is
never tried again, since the kernel may have dropped the pages: ``failed`` is called, once, and nothing after it is
acknowledged.  Any other exception is a bug, and ends the process the same way: nobody waits for a thread that is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol


class Ticket(Protocol):
    """What to sync: see ``appliance.log``."""

    def sync(self) -> None: ...


class Flusher:
    """Call :meth:`hand_over` after writing; ``flushed(ticket, waiting)`` runs in the thread, holding ``lock``.

    What ``flushed`` returns, if anything, is called in the thread without the lock: what nobody waits for.
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
        self._stopping = self._ended = False
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hand_over(self, ticket: Ticket, waiting: list[Any]) -> None:
        """Flush what the ticket covers; ``waiting`` are answered then.  Call with ``lock`` held."""
        self._ticket = ticket
        self._waiting += waiting
        if self._idle:
            self._idle = False
            self._gate.release()

    def drain(self) -> None:
        """Wait until what was handed over is flushed, or has failed.  The loop hands over nothing meanwhile."""
        with self.lock:
            self._resting.wait_for(lambda: self._idle or self._ended)

    def stop(self) -> None:
        """Finish what was handed over, then end the thread."""
        with self.lock:
            self._stopping = True
            if self._idle:
                self._idle = False
                self._gate.release()
        self._thread.join()

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
