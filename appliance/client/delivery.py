"""Defines the batch that carries messages, and the delivery, which reports what became of one of them.

The producer fills a :class:`ProducerBatch`, *seals* it (it takes no more messages), and sends it.  A batch becomes
*done* once: when it is delivered or has failed.  ``send`` returns a :class:`Delivery`, a pair (batch, index).  An
object with state of its own for every message would cost more than all other work for the message.

A delivery is like a :class:`concurrent.futures.Future` that cannot be cancelled: ``done``, ``result``, ``exception``,
``add_done_callback``.  Waiting for a result sends the message at once, without lingering.

Offsets are -1 where they are not known: with ``acks=0``, and for a repeated batch that the broker no longer remembers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from crc32c import crc32c

from ..errors import ApplianceError, RequestTimedOut
from ..records import batch as layout
from ..records.encode import Fields, encode_batch, encode_tailed, encode_values
from . import arguments
from .threads import fresh

OFFSET_UNKNOWN = -1

OnDelivery = Callable[[ApplianceError | None, str, int, int], object]
"""Called with (error or None, topic, partition, offset)."""

_IDENTITY = struct.Struct(">qhi")
_CRC = struct.Struct(">I")
assert layout.PRODUCER_ID_AT + _IDENTITY.size == layout.COUNT_AT


class Sent(NamedTuple):
    """Where a delivered message is stored.  ``timestamp``: ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchOwner(Protocol):
    """The producer that sends a batch."""

    def wait_for(self, batch: ProducerBatch, timeout: float | None) -> bool:
        """Send the batch at once and wait until it is done.  False if ``timeout`` seconds pass first."""
        ...

    def call_when_done(self, batch: ProducerBatch, index: int, callback: OnDelivery) -> bool:
        """Add a callback for the message at ``index``.  False if the batch is done already."""
        ...


class ProducerBatch:
    """Messages for one partition.  Changed under the producer's lock only.

    ``items`` holds values (bytes) while ``uniform``, else whole records (Fields).  ``tails`` and ``keys``: encoded
    headers and keys of the values, in a batch that :meth:`.Producer.send_block` has made.  ``bytes`` is the batch's
    share of the producer's buffer, ``left_bytes`` its free room.  Before the first sending, ``encoded`` (the record
    batch) replaces ``items``.  It is dropped when the batch is done.
    """

    # Defaults are on the class, to make a batch of one message cheap, too.
    uniform = True
    tails: Sequence[bytes] | None = None
    keys: Sequence[bytes] | None = None
    count = 0
    encoded: bytes | None = None
    sends = 0
    producer_id = -1
    epoch = -1
    sequence = -1
    done = False
    error: ApplianceError | None = None
    offset = OFFSET_UNKNOWN
    callbacks: Sequence[tuple[int, OnDelivery]] = ()
    called = 0  # how many callbacks have been called

    def __init__(
        self,
        owner: BatchOwner,
        topic: str,
        partition: int,
        bytes_max: int,
        limit: int,
        timestamp: int,
        created_s: float,
        deadline_s: float,
    ) -> None:
        self.owner = owner
        self.topic = topic
        self.partition = partition
        self.items: list[Any] = []
        self.bytes = self.left_bytes = bytes_max
        self.limit = limit  # index of the message that makes it full
        self.timestamp = timestamp
        self.created_s = created_s
        self.deadline_s = deadline_s

    def records(self) -> list[Fields]:
        """Convert the items to whole records for good, and return them."""
        if self.uniform:
            self.uniform = False
            self.items = [(None, value, (), self.timestamp) for value in self.items]
        return self.items

    def encode(self, codec: str, producer_id: int, epoch: int, sequence: int, attributes: int = 0) -> None:
        """Encode the items as a numbered record batch.  ``attributes``: more than that of the codec."""
        self.producer_id, self.epoch, self.sequence = producer_id, epoch, sequence
        if self.tails is not None:
            self.encoded = encode_tailed(
                self.items,
                self.tails,
                self.timestamp,
                keys=self.keys,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                attributes=attributes,
            )
            self.tails = self.keys = None
        elif self.uniform:
            self.encoded = encode_values(
                self.items,
                self.timestamp,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                attributes=attributes,
            )
        else:
            self.encoded = encode_batch(
                self.items,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                attributes=attributes,
            )
        self.items = []

    def renumber(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Replace the numbers in an encoded batch, and its checksum, which covers them."""
        assert self.encoded is not None
        self.producer_id, self.epoch, self.sequence = producer_id, epoch, sequence
        numbered = bytearray(self.encoded)
        numbered[layout.PRODUCER_ID_AT : layout.COUNT_AT] = _IDENTITY.pack(producer_id, epoch, sequence)
        checksum = crc32c(memoryview(numbered)[layout.ATTRIBUTES_AT :])
        numbered[layout.CRC_AT : layout.ATTRIBUTES_AT] = _CRC.pack(checksum)
        self.encoded = bytes(numbered)

    def add_callback(self, index: int, callback: OnDelivery) -> None:
        """Add a callback for the message at ``index``."""
        if isinstance(self.callbacks, list):
            self.callbacks.append((index, callback))
        else:
            self.callbacks = [(index, callback)]

    def complete(self, error: ApplianceError | None, offset: int) -> None:
        assert not self.done, "a batch is delivered or fails once"
        self.error = error
        self.offset = offset
        self.encoded = None
        self.items = []
        self.done = True  # last: other threads read it without the lock

    def offset_of(self, index: int) -> int:
        return self.offset + index if self.offset >= 0 else OFFSET_UNKNOWN


class Delivery(tuple[ProducerBatch, int]):
    """Reports what became of one message.  Only the producer makes it."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        return self[0].topic

    @property
    def partition(self) -> int:
        return self[0].partition

    def done(self) -> bool:
        return self[0].done

    def exception(self, timeout: float | None = None) -> ApplianceError | None:
        """Wait for the delivery.  Returns the error of a failed message, None for a delivered one.

        Raises:
            RequestTimedOut: neither within ``timeout`` seconds.  The producer goes on trying.
        """
        batch = self[0]
        arguments.seconds(timeout)
        if not batch.done and not batch.owner.wait_for(batch, timeout):
            raise RequestTimedOut(f"not delivered within {timeout} s; the producer goes on trying")
        return batch.error

    def result(self, timeout: float | None = None) -> Sent:
        """Wait for the delivery.  Returns where the message is stored.

        Raises:
            ApplianceError: it could not be delivered, or (RequestTimedOut) not within ``timeout`` seconds.
        """
        error = self.exception(timeout)
        if error is not None:
            raise fresh(error)
        batch, index = self
        return Sent(batch.topic, batch.partition, batch.offset_of(index), batch.timestamp)

    def add_done_callback(self, function: Callable[[Delivery], object]) -> None:
        """Call ``function(self)`` when the message is delivered or has failed; at once if it has."""
        batch, index = self
        arguments.function("function", function)
        if not batch.owner.call_when_done(batch, index, lambda *_: function(self)):
            function(self)
