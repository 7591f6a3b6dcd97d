"""Keeps every sealed batch of a producer until it is delivered or has failed and its callbacks have returned."""

from __future__ import annotations

import threading

from ..errors import ApplianceError
from .callbacks import Callbacks
from .delivery import OFFSET_UNKNOWN, ProducerBatch


class Outstanding:
    """The batches, the bytes that they take, and the threads that wait for them.  Change it with ``lock`` held."""

    def __init__(self, lock: threading.Lock) -> None:
        self.batches: dict[ProducerBatch, None] = {}  # an ordered set
        self.buffered_bytes = 0
        """Bytes of the producer's buffer in use, those of open batches included."""
        self.delivered = 0
        """Number of messages delivered."""
        self.failure: ProducerBatch | None = None
        """The first batch that was not delivered."""
        self.callbacks = Callbacks(lock, self._remove)
        self._changed = threading.Condition(lock)
        self._waiters = 0

    def complete(self, batch: ProducerBatch, error: ApplianceError | None, offset: int) -> None:
        """Note that the batch is delivered (no error) or has failed.  The next ``callbacks.run`` runs its callbacks."""
        if error is None:
            self.delivered += batch.count
        elif self.failure is None:
            self.failure = batch
        batch.complete(error, offset)
        if batch.callbacks:
            self.callbacks.add_batch(batch)
        else:
            self._remove(batch)

    def fail(self, batch: ProducerBatch, error: ApplianceError) -> None:
        self.complete(batch, error, OFFSET_UNKNOWN)

    def fail_all(self, error: ApplianceError) -> None:
        """Fail all batches that are not done.  Also works after a step was interrupted."""
        for batch in list(self.batches):
            if not batch.done:
                self.fail(batch, error)
            elif batch.callbacks:
                self.callbacks.add_batch(batch)  # perhaps again: no callback is called twice
            else:
                self._remove(batch)

    def wait(self, timeout_s: float) -> None:
        """Wait until a batch is removed, without holding the lock meanwhile."""
        self._waiters += 1
        self._changed.wait(timeout_s)
        self._waiters -= 1

    def _remove(self, batch: ProducerBatch) -> None:
        if batch in self.batches:  # perhaps again, after an interrupt between these two statements
            self.buffered_bytes, batch.bytes = self.buffered_bytes - batch.bytes, 0
            del self.batches[batch]
        if self._waiters:
            self._changed.notify_all()
