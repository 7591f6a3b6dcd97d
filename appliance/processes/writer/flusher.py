"""The thread of a writer process that takes what is written to the disk.

The writer's loop goes on taking, checking and writing while the last group is on its way; when it is there, END is
published, doorbells rung and acks=all answered by this thread itself (one wake-up less), and the next flush covers all
that was written meanwhile.  The slower the disk, the larger the groups.  fdatasync releases the GIL.

``lock`` guards what both threads touch: the hand-over below and the channels to the workers.  A flush that fails is
never tried again, since the kernel may have dropped the pages: ``failed`` is called, once, and nothing after it is
acknowledged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from ...errors import StorageFault


class Ticket(Protocol):
    """What to sync: see ``appliance.log``."""

    def sync(self) -> None: ...


class Flusher:
    """Call :meth:`hand_over` after writing; ``flushed(ticket, waiting)`` runs in the thread, holding ``lock``."""

    def __init__(
        self,
        flushed: Callable[[Any, list[Any]], None],
        failed: Callable[[StorageFault], None],
    ) -> None:
        self.lock = threading.Lock()
        self._flushed, self._failed = flushed, failed
        self._ticket: Ticket | None = None
        self._waiting: list[Any] = []
        self._gate = threading.Lock()
        self._gate.acquire()
        self._idle = True
        self._stopping = False
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

    def stop(self) -> None:
        """Finish what was handed over, then end the thread."""
        with self.lock:
            self._stopping = True
            if self._idle:
                self._idle = False
                self._gate.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._gate.acquire()
            while True:
                with self.lock:
                    ticket, waiting = self._ticket, self._waiting
                    if ticket is None:
                        if self._stopping:
                            return
                        self._idle = True
                        break
                    self._ticket, self._waiting = None, []
                try:
                    ticket.sync()
                except StorageFault as error:
                    self._failed(error)
                    return
                with self.lock:
                    self._flushed(ticket, waiting)
