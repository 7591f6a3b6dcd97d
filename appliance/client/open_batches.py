"""Keeps the batches of a producer that take messages: at most one for each partition.

A batch is *sealed*, and handed to the sender, when it is full, has lingered, or a caller waits for it.  Plain values go
to the *sticky* batch of their topic until it is sealed: that of a partition chosen at random.

Everything here but :meth:`OpenBatches.make_room` is called with the sender's lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..errors import BufferFull
from .delivery import BatchOwner, ProducerBatch
from .known_topics import KnownTopic
from .outgoing import PLAIN_BYTES
from .producer_options import ProducerOptions
from .sender import Sender

BATCH_BYTES: Final = 1024
"""Bytes of the buffer that a batch takes besides its messages."""


class OpenBatches:
    """The open batches.  ``owner``: the producer, for its batches.  ``choice`` picks one of several partitions."""

    def __init__(
        self,
        owner: BatchOwner,
        sender: Sender,
        options: ProducerOptions,
        *,
        clock: Callable[[], float],
        clock_ms: Callable[[], int],
        choice: Callable[[Sequence[int]], int],
    ) -> None:
        self.sticky: dict[str, ProducerBatch] = {}
        """By topic: the batch that takes plain values."""
        self._owner = owner
        self._sender = sender
        self._options = options
        self._clock = clock
        self._clock_ms = clock_ms
        self._choice = choice
        self._limit = options.batch_messages_max - 1 if options.linger_s else 0
        self._open: dict[tuple[str, int], ProducerBatch] = {}  # in the order of creation

    def batch_with_room(
        self, topic: str, known_topic: KnownTopic, partition: int | None, size: int, *, plain: bool
    ) -> ProducerBatch | None:
        """An open batch with ``size`` bytes of room; None while the buffer is full.

        Raises:
            ClientBroken: the sender is broken, perhaps by a step that was interrupted just now.
        """
        self._check_whole()
        batch = self.sticky.get(topic) if partition is None else self._open.get((topic, partition))
        if batch is not None and batch.left_bytes < size:
            self.send_off(batch)
            batch = None
        batch = batch or self._open_batch(topic, known_topic, partition, size)
        if batch is not None and not plain and self.sticky.get(topic) is batch:
            del self.sticky[topic]  # it will not be uniform any more
        return batch

    def renew_sticky(self, topic: str, known_topic: KnownTopic, size: int) -> ProducerBatch | None:
        """Send the sticky batch and open another one; None while the buffer is full."""
        batch = self.sticky.get(topic)
        if batch is not None:
            self.send_off(batch)
        return self._open_batch(topic, known_topic, None, size)

    def add_values(self, batch: ProducerBatch, values: list[bytes], start: int) -> int:
        """Put as many of ``values[start:]`` into the batch as fit, at least one.  Returns how many."""
        chunk = values[start : start + self._options.batch_messages_max - len(batch.items)]
        size = sum(map(len, chunk)) + PLAIN_BYTES * len(chunk)
        while size > batch.left_bytes and len(chunk) > 1:
            fitting = max(1, min(len(chunk) - 1, len(chunk) * batch.left_bytes // size))
            chunk = chunk[:fitting]
            size = sum(map(len, chunk)) + PLAIN_BYTES * len(chunk)
        self._sender.torn = True
        batch.left_bytes -= size
        if batch.uniform:
            batch.items += chunk
        else:
            now_ms = self._clock_ms()
            batch.records().extend([(None, value, (), now_ms) for value in chunk])
        self._sender.torn = False
        return len(chunk)

    def send_off(self, batch: ProducerBatch) -> None:
        """Seal a batch that is full, and send what can be sent."""
        self._seal(batch)
        self._sender.pump(self._clock(), False)

    def seal_if_open(self, batch: ProducerBatch) -> None:
        if self._open.get((batch.topic, batch.partition)) is batch:
            self._seal(batch)

    def seal_all(self) -> None:
        for batch in list(self._open.values()):
            self._seal(batch)
        # A sealing that was interrupted may have left a done batch: it would take messages, or be due, for ever.
        self._open.clear()
        self.sticky.clear()

    def seal_due(self, now_s: float) -> float | None:
        """Seal the batches that have lingered.  Returns when the next one will have; None when no batch is open."""
        while self._open:
            batch = next(iter(self._open.values()))
            due_s = batch.created_s + self._options.linger_s
            if due_s > now_s:
                return due_s
            self._seal(batch)
        return None

    def make_room(self, size: int, deadline_s: float | None) -> float:
        """Wait, without the lock, until a batch may be opened.  Returns the deadline, for the next call.

        Raises:
            BufferFull: the deadline is over.
        """
        options, sender = self._options, self._sender
        outstanding = sender.outstanding
        if deadline_s is None:
            deadline_s = self._clock() + options.block_s_max
        buffered_max = max(0, options.buffer_bytes_max - max(options.batch_bytes_max, size))
        with sender.lock:
            self.seal_all()  # this frees what they have reserved and do not use
        timeout_s = max(0.0, deadline_s - self._clock())
        if not sender.drive(lambda: outstanding.buffered_bytes <= buffered_max, timeout_s):
            raise BufferFull(
                f"{outstanding.buffered_bytes} of {options.buffer_bytes_max} bytes are still on their way after "
                f"{options.block_s_max:g} s: send slower, raise buffer_bytes_max or block_ms_max"
                + "".join(f"; {trouble}" for trouble in sender.troubles.current())
            )
        return deadline_s

    def _open_batch(
        self, topic: str, known_topic: KnownTopic, partition: int | None, size: int
    ) -> ProducerBatch | None:
        """A new batch, or the one open for a partition chosen at random; None while the buffer is full."""
        self._check_whole()
        sticky = partition is None
        if partition is None:
            live = known_topic.live
            partition = live[0] if len(live) == 1 else self._choice(self._untroubled(topic, live))
            batch = self._open.get((topic, partition))
            if batch is not None and batch.left_bytes >= size:
                if batch.uniform:
                    self.sticky[topic] = batch
                return batch
            if batch is not None:
                self._seal(batch)
        outstanding, options = self._sender.outstanding, self._options
        bytes_max = known_topic.batch_bytes_max if known_topic.batch_bytes_max >= size else size
        if outstanding.buffered_bytes + bytes_max > options.buffer_bytes_max and outstanding.buffered_bytes:
            return None
        batch = self._register(topic, partition, bytes_max)
        if sticky:
            self.sticky[topic] = batch
        return batch

    def _register(self, topic: str, partition: int, bytes_max: int) -> ProducerBatch:
        """Open a batch, which takes its share of the buffer."""
        if self._sender.transactions is not None:
            self._sender.transactions.check_open()
        now_s, outstanding = self._clock(), self._sender.outstanding
        deadline_s = now_s + self._options.delivery_timeout_s
        self._sender.awaken()  # first: without its thread nothing would send the batch
        batch = ProducerBatch(
            self._owner, topic, partition, bytes_max, self._limit, self._clock_ms(), now_s, deadline_s
        )
        # One statement, which no interrupt divides: a batch that is open has its share of the buffer.
        self._open[topic, partition], outstanding.buffered_bytes = batch, outstanding.buffered_bytes + bytes_max
        return batch

    def open_block(self, topic: str, partition: int, size: int) -> ProducerBatch | None:
        """A batch of ``size`` bytes of its own, behind the open one of its partition; None while the buffer is full."""
        self._check_whole()
        batch = self._open.get((topic, partition))
        if batch is not None:
            self._seal(batch)
        outstanding, options = self._sender.outstanding, self._options
        bytes_max = size + BATCH_BYTES
        if outstanding.buffered_bytes + bytes_max > options.buffer_bytes_max and outstanding.buffered_bytes:
            return None
        return self._register(topic, partition, bytes_max)

    def _check_whole(self) -> None:
        if not self._sender.is_whole():
            self._sender.raise_error()

    def _untroubled(self, topic: str, live: Sequence[int]) -> Sequence[int]:
        """The partitions without a known trouble; all, if each has one."""
        troubles = self._sender.troubles
        if not troubles:
            return live
        return [partition for partition in live if (topic, partition) not in troubles] or live

    def _seal(self, batch: ProducerBatch) -> None:
        sender = self._sender
        if not sender.is_whole() and batch.done:
            return
        sender.torn = True
        topic = batch.topic
        if batch.items:
            sender.outstanding.batches[batch] = None  # first: every batch in there is completed in the end
        if self.sticky.get(topic) is batch:
            del self.sticky[topic]
        self._open.pop((topic, batch.partition), None)
        batch.count = len(batch.items)
        unused = batch.left_bytes - BATCH_BYTES if batch.count else batch.bytes
        outstanding = sender.outstanding  # one statement, as when it was opened
        batch.bytes, outstanding.buffered_bytes = batch.bytes - unused, outstanding.buffered_bytes - unused
        if batch.count:  # else an interrupt came before its first message
            sender.enqueue(batch)
        sender.torn = False
