"""Runs the delivery callbacks of finished batches: one after another, each once.

The thread that finishes a batch runs its callbacks, without the client's lock.  An exception in a callback does not end
the client:

- An exception is logged and kept.  The next ``flush`` or ``close`` raises it as a
  :class:`~appliance.errors.CallbackFailed`, when everything else is done.
- An interrupt (KeyboardInterrupt, SystemExit) in a thread of the application is raised to that thread's caller.  The
  next call runs the remaining callbacks.  In the client's own thread an interrupt is kept like an exception.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

from ..errors import CallbackFailed
from .delivery import ProducerBatch

logger = logging.getLogger(__name__)


class Callbacks:
    """Runs callbacks.

    ``called(batch)`` is called with the lock held when all callbacks of a batch have returned; after an interrupt
    perhaps twice.
    """

    def __init__(self, lock: threading.Lock, called: Callable[[ProducerBatch], None]) -> None:
        self.pending: deque[ProducerBatch] = deque()
        """Finished batches whose callbacks have not all returned.  Appended to with the lock held."""
        self.own_thread = 0
        """Identifier of the client's thread, in which interrupts are kept."""
        self._lock = lock
        self._called = called
        self._running_in = 0
        self._failed: CallbackFailed | None = None

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is inside a callback."""
        return self._running_in == threading.get_ident()

    def run(self) -> None:
        """Run the callbacks of all finished batches, unless another thread, or an outer call, is doing so."""
        guard = _Guard(self)
        while self.pending:
            here = 0
            try:
                with self._lock:
                    if self._running_in or not self.pending:
                        return
                    here = self._running_in = threading.get_ident()
                    batch = self.pending[0]
                while batch.called < len(batch.callbacks):
                    index, callback = batch.callbacks[batch.called]
                    with guard:
                        offset = batch.offset_of(index)
                        batch.called += 1  # before the call: an interrupted callback is not called again
                        callback(batch.error, batch.topic, batch.partition, offset)
                with self._lock:
                    self._called(batch)  # first: an interrupt here leaves it pending, and it is done again
                    if self.pending and self.pending[0] is batch:
                        self.pending.popleft()
            finally:
                if here:
                    self._running_in = 0

    def add_batch(self, batch: ProducerBatch) -> None:
        """Queue this batch's callbacks.  Call it with the lock held."""
        self.pending.append(batch)

    def raise_error(self) -> None:
        """Raise what a callback raised since the last check.

        Raises:
            CallbackFailed: its cause is the exception.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def keep_error(self, error: BaseException) -> bool:
        """Keep what a callback raised.  False if it is to be raised to the caller."""
        if not isinstance(error, Exception) and threading.get_ident() != self.own_thread:
            return False
        logger.error("a delivery callback failed", exc_info=error)
        if self._failed is None:
            self._failed = CallbackFailed(f"a delivery callback failed: {type(error).__name__}: {error}")
            self._failed.__cause__ = error
        return True


class _Guard:
    """Context of one callback: keeps what it raises."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return error is not None and self._callbacks.keep_error(error)
