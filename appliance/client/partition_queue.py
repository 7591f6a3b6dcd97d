"""Orders the batches of one partition, from the time they are sealed until they are done: no sockets, no clock.

A :class:`PartitionQueue` returns the batch to send next (:meth:`~PartitionQueue.take_batch`), with its numbers.  Its
owner reports every reply (:meth:`~PartitionQueue.on_reply`) and every lost connection
(:meth:`~PartitionQueue.on_connection_lost`).  Time is an argument, in seconds::

    waiting ──take──▶ in_flight ──on_reply──▶ done
       ▲                  │
       └───── failed ◀────┘ retriable

Rules:

1. Batches are sent in the order in which they were sealed; many may be in flight.
2. When one of those in flight fails with a retriable error, nothing more is sent until all of them are answered or lost
   with their connection.  Then the failed ones are sent first, in their order, after a back-off.  The broker refuses
   the batches behind the failed one (OutOfOrderSequence, because a number is missing), so none overtakes it.
3. An idempotent queue numbers records consecutively for each producer id and epoch.  A batch keeps its numbers when it
   is sent again, so the broker recognises batches that it has written already, and nothing is duplicated.
4. The first batch of a producer id and epoch is in flight alone.  A log that does not know a producer takes any number
   from it, so a second batch could enter before a first one that fails.
5. When a numbered batch is given up, its numbers are missing for ever.  When the broker refuses the first batch in
   flight as out of order, it has lost our numbers.  In both cases the queue continues in the next epoch from number 0
   (as Kafka's producer does, KIP-360).  A batch that is refused this way after an earlier attempt may be in the log or
   not: it fails with OutOfOrderSequence, because a retry could double it.  A stale epoch, and a duplicate that was sent
   once, mean that somebody else writes under our producer id: the queue continues in the same way, under a new id.

6. In a transaction nothing is sent before the partition is added to it, and rule 5 does not hold: the batch that is
   given up, and those behind it that are refused, fail.  The transaction is aborted then, and the next one has another
   epoch.

Without idempotence rule 2 still holds, but batches behind a failed one may be written before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from ..errors import (
    ApplianceError,
    ClientFault,
    CorruptBatch,
    DuplicateSequence,
    OutOfOrderSequence,
    RequestTimedOut,
    StaleProducerEpoch,
    UnknownPartition,
)
from ..records.batch import SEQUENCE_MASK, TRANSACTIONAL
from .delivery import OFFSET_UNKNOWN, ProducerBatch

EPOCH_MAX: Final = 0x7FFF
BACKOFF_DOUBLINGS_MAX: Final = 10

RETRIABLE = (UnknownPartition, CorruptBatch)
"""Errors that pass: a topic is being created or moved, a batch was damaged in transit."""

OUT_OF_STEP = (OutOfOrderSequence, StaleProducerEpoch, DuplicateSequence)
TAKEN = (StaleProducerEpoch, DuplicateSequence)
"""Somebody else writes under our producer id."""

Done = tuple[ProducerBatch, ApplianceError | None, int]
"""A batch that is delivered or has failed: the batch, its error or None, the offset of its first record."""


class Numbering(Enum):
    """Whether a queue numbers its batches."""

    NONE = 0
    WANTED = 1
    KNOWN = 2


class PartitionQueue:
    """See the module's docstring.  ``jitter`` returns a factor for a back-off, around 1."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        idempotent: bool,
        transactional: bool,
        backoff_s: float,
        backoff_s_max: float,
        jitter: Callable[[], float],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: deque[ProducerBatch] = deque()
        self.resume_s = 0.0
        self.identity = Numbering.WANTED if idempotent else Numbering.NONE
        self.producer_id = -1
        self.epoch = -1
        self.sequence = -1
        self._renews = idempotent and not transactional
        """Whether it goes on in another epoch when its numbers are lost: in a transaction that is its end."""
        self._attributes = TRANSACTIONAL if transactional else 0
        self._failed: list[ProducerBatch] = []
        self._acknowledged = not idempotent
        """Whether the log knows the producer id and epoch: it has acknowledged a batch with them."""
        self._renew = False
        self._new_id = False
        self._failures = 0
        self._backoff_s = backoff_s
        self._backoff_s_max = backoff_s_max
        self._jitter = jitter

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}-{self.partition}>"

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.in_flight)

    @property
    def draining(self) -> bool:
        """Whether nothing more is sent until everything in flight is answered."""
        return bool(self._failed) or self._renew

    @property
    def waits_for_first(self) -> bool:
        """Whether nothing is sent before the one batch in flight is answered: rule 4."""
        return not self._acknowledged and bool(self.in_flight)

    def identify(self, producer_id: int, epoch: int) -> None:
        """Number from 0 under this producer id.  Batches with another id get new numbers when they are sent."""
        assert not self.in_flight and self.identity is not Numbering.NONE
        self.identity = Numbering.KNOWN
        self.producer_id, self.epoch, self.sequence = producer_id, epoch, 0
        self._acknowledged = False

    def suspend(self) -> None:
        """A transaction begins: send nothing before the partition is added to it (:meth:`join`)."""
        assert not self.busy, "the transaction before has ended"
        self.identity = Numbering.WANTED

    def join(self, producer_id: int, epoch: int) -> None:
        """Send in a transaction of this producer; one of the same epoch goes on with its numbers."""
        if (producer_id, epoch) == (self.producer_id, self.epoch):
            self.identity = Numbering.KNOWN
        else:
            self.identify(producer_id, epoch)

    def drop_waiting(self) -> list[ProducerBatch]:
        """Remove and return what is not in flight."""
        dropped = [*self._failed, *self.waiting]
        self._failed = []
        self.waiting.clear()
        return dropped

    def take_batch(self, now_s: float, codec: str) -> ProducerBatch | None:
        """The batch to send now, encoded and numbered; None if there is none.  From then on it is in flight."""
        if self.draining or not self.waiting or self.identity is Numbering.WANTED or now_s < self.resume_s:
            return None
        if self.waits_for_first:
            return None
        batch = self.waiting.popleft()
        if self.identity is Numbering.NONE:
            if batch.encoded is None:
                batch.encode(codec, -1, -1, -1)
        elif batch.encoded is None:
            batch.encode(codec, self.producer_id, self.epoch, self._next(batch), self._attributes)
        elif (batch.producer_id, batch.epoch) != (self.producer_id, self.epoch):
            batch.renumber(self.producer_id, self.epoch, self._next(batch))
        batch.sends += 1
        self.in_flight.append(batch)
        return batch

    def _next(self, batch: ProducerBatch) -> int:
        sequence = self.sequence
        self.sequence = (sequence + batch.count) & SEQUENCE_MASK
        return sequence

    def on_reply(self, error: ApplianceError | None, base: int, now_s: float) -> Done | None:
        """Process the reply to the oldest batch in flight.

        Returns:
            The batch if it is done, None if it is sent again.
        """
        batch = self.in_flight.popleft()
        done: Done | None = None
        if isinstance(error, DuplicateSequence) and batch.sends > 1:  # written at an earlier attempt
            error, base = None, OFFSET_UNKNOWN
        if error is None:
            self._failures = 0
            self._acknowledged = True
            done = batch, None, base
        elif isinstance(error, OUT_OF_STEP) and self.identity is Numbering.KNOWN:
            behind_failed = self.draining
            if self._renews and (not behind_failed or isinstance(error, TAKEN)):
                self._renew = True
                self._new_id = self._new_id or isinstance(error, TAKEN)
            if behind_failed or (self._renews and batch.sends == 1):
                self._failed.append(batch)
            else:
                done = batch, error, OFFSET_UNKNOWN
        elif error.retriable or isinstance(error, RETRIABLE) or not isinstance(error, ClientFault):
            self._failed.append(batch)
        else:
            self._renew = self._renews and self.identity is Numbering.KNOWN
            done = batch, error, OFFSET_UNKNOWN
        self._resume_after_last_reply(now_s)
        return done

    def withdraw(self, now_s: float) -> None:
        """Remove the batch taken last, which cannot be sent at all: its numbers will be missing."""
        self.in_flight.pop()
        self._renew = self._renews and self.identity is Numbering.KNOWN
        self._resume_after_last_reply(now_s)

    def on_connection_lost(self, now_s: float) -> None:
        """Treat everything in flight as failed: no reply to it will come."""
        if self.in_flight:
            self._failed += self.in_flight
            self.in_flight.clear()
            self._resume_after_last_reply(now_s)

    def expire(self, now_s: float, cause: ApplianceError | None = None) -> list[Done]:
        """Give up waiting batches whose deadline is over.  The request timeout ends those in flight.

        ``cause``: why they could not be delivered, as far as is known.
        """
        expired: list[Done] = []
        while self.waiting and self.waiting[0].deadline_s <= now_s:
            batch = self.waiting.popleft()
            if batch.sends and self._renews and self.identity is Numbering.KNOWN:
                self._renew = True
            why = f": {cause}" if cause is not None else ""
            text = f"{self.topic}-{self.partition}: not delivered in time after {batch.sends} attempts{why}"
            error = RequestTimedOut(text)
            error.__cause__ = cause
            expired.append((batch, error, OFFSET_UNKNOWN))
        self._resume_after_last_reply(now_s)
        return expired

    def abandon(self) -> list[ProducerBatch]:
        """Remove and return everything that is not done, in order."""
        batches = [*self.in_flight, *self._failed, *self.waiting]
        self.in_flight.clear()
        self.waiting.clear()
        self._failed = []
        return batches

    def _resume_after_last_reply(self, now_s: float) -> None:
        """When nothing is in flight any more, put the failed batches in front, and renumber if needed."""
        if self.in_flight or not self.draining:
            return
        if self._failed:
            self.waiting.extendleft(reversed(self._failed))
            self._failed = []
            doubled = min(self._failures, BACKOFF_DOUBLINGS_MAX)
            self._failures += 1
            self.resume_s = now_s + min(self._backoff_s * 2**doubled, self._backoff_s_max) * self._jitter()
        if self._renew:
            self._renew = False
            if self._new_id or self.epoch == EPOCH_MAX:
                self._new_id = False
                self.identity = Numbering.WANTED
            else:
                self.identify(self.producer_id, self.epoch + 1)
