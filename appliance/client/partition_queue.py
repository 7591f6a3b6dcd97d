"""What happens to one partition's batches between being sealed and being settled: pure, no sockets, no clock.

A :class:`Lane` keeps the order.  It hands out the batch to send next (:meth:`~Lane.take`), numbers it, and is
told what became of it (:meth:`~Lane.answered`, :meth:`~Lane.lost`, :meth:`~Lane.expire`); time is an argument
in seconds.

    queue ──take──▶ in_flight ──answered──▶ settled
      ▲                 │
      └──── failed ◀────┘ retriable

Rules:

1. Batches are sent in the order in which they were sealed, many in flight.
2. When one of those in flight fails retriably nothing more is sent until all of them have been answered (or
   are lost
   with their connection).  Then those that failed go first, in their order, after a back-off.  The broker
   refuses whatever was behind the failed one (OutOfOrderSequence, because a number is missing), so nothing
   overtakes.
3. An idempotent lane numbers records consecutively per (producer id, epoch).  A batch keeps its numbers when
   it is
   sent again, so the broker recognises what it has already written and nothing is doubled.
4. When a numbered batch is given up, its numbers are missing for ever.  When the broker refuses the first one
   in
   flight as out of order, it has lost our numbers.  Either way the lane goes on in the next epoch from number
   0 (Kafka's producer does the same, KIP-360).  A batch refused that way which had been sent before might be
   in the log, nobody can tell: it fails with OutOfOrderSequence rather than be doubled.  A stale epoch means
   that somebody else writes under our producer id: the same, but under a new id.

Without idempotence rule 2 still holds, but batches behind a failed one may have been written before it.
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
    OutOfOrderSequence,
    RequestTimedOut,
    StaleProducerEpoch,
    UnknownPartition,
)
from .delivery import OFFSET_UNKNOWN, Batch

SEQUENCE_MASK: Final = 0x7FFF_FFFF
EPOCH_MAX: Final = 0x7FFF
BACKOFF_DOUBLINGS_MAX: Final = 10

RETRIABLE = (UnknownPartition, CorruptBatch)
"""Faults that pass: a topic being made or moved, a batch damaged on its way."""

OUT_OF_STEP = (OutOfOrderSequence, StaleProducerEpoch)

Settled = tuple[Batch, ApplianceError | None, int]
"""A batch, its error or None, the offset of its first record."""


class Identity(Enum):
    """Whether a lane numbers its batches."""

    NONE = 0
    WANTED = 1
    KNOWN = 2


class Lane:
    """``jitter`` returns a factor for a back-off, around 1."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        idempotent: bool,
        backoff_s: float,
        backoff_s_max: float,
        jitter: Callable[[], float],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.queue: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self.resume_s = 0.0
        self.identity = Identity.WANTED if idempotent else Identity.NONE
        self.producer_id = -1
        self.epoch = -1
        self.sequence = -1
        self._failed: list[Batch] = []
        self._renew = False
        self._new_id = False
        self._failures = 0
        self._backoff_s = backoff_s
        self._backoff_s_max = backoff_s_max
        self._jitter = jitter

    def __repr__(self) -> str:
        return f"<Lane {self.topic}-{self.partition}>"

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.in_flight)

    @property
    def draining(self) -> bool:
        """Nothing more is sent until everything in flight is answered."""
        return bool(self._failed) or self._renew

    def identify(self, producer_id: int, epoch: int) -> None:
        """Number from 0 under this producer id; batches that carry another one are numbered anew when sent."""
        assert not self.in_flight and self.identity is not Identity.NONE
        self.identity = Identity.KNOWN
        self.producer_id, self.epoch, self.sequence = producer_id, epoch, 0

    def take(self, now_s: float, codec: str) -> Batch | None:
        """The batch to send now, encoded and numbered; it is in flight then."""
        if self.draining or not self.queue or self.identity is Identity.WANTED or now_s < self.resume_s:
            return None
        batch = self.queue.popleft()
        if self.identity is Identity.NONE:
            if batch.encoded is None:
                batch.encode(codec, -1, -1, -1)
        elif batch.encoded is None:
            batch.encode(codec, self.producer_id, self.epoch, self._next(batch))
        elif (batch.producer_id, batch.epoch) != (self.producer_id, self.epoch):
            batch.renumber(self.producer_id, self.epoch, self._next(batch))
        batch.sends += 1
        self.in_flight.append(batch)
        return batch

    def _next(self, batch: Batch) -> int:
        sequence = self.sequence
        self.sequence = (sequence + batch.count) & SEQUENCE_MASK
        return sequence

    def answered(self, error: ApplianceError | None, base: int, now_s: float) -> Settled | None:
        """The oldest batch in flight was answered.

        Returns:
            The batch when that settled it, None when it is sent again.
        """
        batch = self.in_flight.popleft()
        settled: Settled | None = None
        if error is None:
            self._failures = 0
            settled = batch, None, base
        elif isinstance(error, OUT_OF_STEP) and self.identity is Identity.KNOWN:
            behind_failed = self.draining
            if not behind_failed or isinstance(error, StaleProducerEpoch):
                self._renew = True
                self._new_id = self._new_id or isinstance(error, StaleProducerEpoch)
            if behind_failed or batch.sends == 1:
                self._failed.append(batch)
            else:
                settled = batch, error, OFFSET_UNKNOWN
        elif error.retriable or isinstance(error, RETRIABLE) or not isinstance(error, ClientFault):
            self._failed.append(batch)
        else:
            self._renew = self.identity is Identity.KNOWN
            settled = batch, error, OFFSET_UNKNOWN
        self._drained(now_s)
        return settled

    def withdraw(self, now_s: float) -> None:
        """The batch taken last cannot be sent at all: its numbers will be missing."""
        self.in_flight.pop()
        self._renew = self.identity is Identity.KNOWN
        self._drained(now_s)

    def lost(self, now_s: float) -> None:
        """The connection is gone, and with it all answers that were to come."""
        if self.in_flight:
            self._failed += self.in_flight
            self.in_flight.clear()
            self._drained(now_s)

    def expire(self, now_s: float, cause: ApplianceError | None = None) -> list[Settled]:
        """Give up what waits beyond its deadline; what is in flight is left to the request timeout.

        ``cause`` is why it could not be delivered, as far as is known.
        """
        expired: list[Settled] = []
        while self.queue and self.queue[0].deadline_s <= now_s:
            batch = self.queue.popleft()
            if batch.sends and self.identity is Identity.KNOWN:
                self._renew = True
            why = f": {cause}" if cause is not None else ""
            text = f"{self.topic}-{self.partition}: not delivered in time after {batch.sends} attempts{why}"
            error = RequestTimedOut(text)
            error.__cause__ = cause
            expired.append((batch, error, OFFSET_UNKNOWN))
        self._drained(now_s)
        return expired

    def abandon(self) -> list[Batch]:
        """Everything that is not settled, in order; the lane is empty then."""
        batches = [*self.in_flight, *self._failed, *self.queue]
        self.in_flight.clear()
        self.queue.clear()
        self._failed = []
        return batches

    def _drained(self, now_s: float) -> None:
        """When nothing is in flight any more: put what failed in front, change the numbers if need be."""
        if self.in_flight or not self.draining:
            return
        if self._failed:
            self.queue.extendleft(reversed(self._failed))
            self._failed = []
            doubled = min(self._failures, BACKOFF_DOUBLINGS_MAX)
            self._failures += 1
            self.resume_s = now_s + min(self._backoff_s * 2**doubled, self._backoff_s_max) * self._jitter()
        if self._renew:
            self._renew = False
            if self._new_id or self.epoch == EPOCH_MAX:
                self._new_id = False
                self.identity = Identity.WANTED
            else:
                self.identify(self.producer_id, self.epoch + 1)
