"""Hands out messages as streams of a group consumer, and keeps the offsets of its owned partitions.

An :class:`OwnedPartition` is one partition while this consumer owns it.  It has two offsets: ``handed_out``, after the
last message handed out, and ``processed``, after the last message whose reader has requested the next one.  Automatic
commits store ``processed``: a message is never committed before its reader is finished with it, so deliveries are at
least once.

A :class:`MessageStream` takes chunks from the fetching thread, decodes them in the reading thread, and hands out their
messages.  All streams of a consumer have one lock, so that after :meth:`OwnedPartitions.revoke` nothing of a revoked
partition is handed out any more.

Bound: the fetcher limits the data that wait in a stream.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from ..errors import ApplianceError
from .decoder import Decoder, Message, Values
from .fetcher import Chunk


class OwnedPartition:
    """One partition, from the time it is gained until it is given up.  Changed under the lock of all streams."""

    __slots__ = ("committed", "handed_out", "processed", "revoked", "stream", "topic_partition")

    def __init__(self, part: tuple[str, int], stream: MessageStream) -> None:
        self.topic_partition = part
        self.stream = stream
        self.handed_out = -1
        self.processed = -1
        self.committed = -1
        self.revoked = False


class OwnedPartitions:
    """The owned partitions of a consumer, and the one lock of its streams.

    ``alive`` returns whether the consumer may hand out messages: whether the lease of its ZooKeeper session lasts.
    """

    def __init__(self, alive: Callable[[], bool]) -> None:
        self.changed = threading.Condition()
        self.alive = alive
        self.closed = False
        self.trouble: ApplianceError | None = None
        self.partitions: dict[tuple[str, int], OwnedPartition] = {}

    def add(self, part: tuple[str, int], stream: MessageStream) -> OwnedPartition:
        with self.changed:
            owned = self.partitions[part] = OwnedPartition(part, stream)
            return owned

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Queue fetched chunks; those of revoked partitions are dropped."""
        with self.changed:
            for chunk in chunks:
                owned = self.partitions.get(chunk.fetched.topic_partition)
                if owned is None:
                    chunk.release()
                else:
                    owned.stream.queue.append((owned, chunk))
            self.changed.notify_all()

    def revoke(self, parts: Iterable[tuple[str, int]], wait_s: float) -> dict[tuple[str, int], int]:
        """Stop handing out these partitions.  Returns the processed offset of each that has one.

        Waits up to ``wait_s`` for readers that work on a message.
        """
        with self.changed:
            leaving = [self.partitions.pop(part) for part in parts if part in self.partitions]
            for owned in leaving:
                owned.revoked = True
                stream = owned.stream
                stream.queue = deque(entry for entry in stream.queue if entry[0] is not owned)
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: all(owned.processed == owned.handed_out or not owned.stream.reading for owned in leaving),
                wait_s,
            )
            return {owned.topic_partition: owned.processed for owned in leaving if owned.processed >= 0}

    def to_commit(self, *, in_hand: bool) -> dict[tuple[str, int], int]:
        """The offsets that have moved since the last commit.

        Args:
            in_hand: count also messages that readers still work on.
        """
        with self.changed:
            found = {}
            for part, owned in self.partitions.items():
                offset = owned.handed_out if in_hand else owned.processed
                if offset > owned.committed:
                    found[part] = offset
            return found

    def on_committed(self, offsets: Mapping[tuple[str, int], int]) -> None:
        with self.changed:
            for part, offset in offsets.items():
                if part in self.partitions:
                    self.partitions[part].committed = offset

    def finish(self, trouble: ApplianceError | None = None) -> None:
        """End all iterators, with an error if there is one."""
        with self.changed:
            self.closed = True
            self.trouble = self.trouble or trouble
            self.changed.notify_all()

    def mark_processed(self) -> None:
        """Count everything handed out as processed: the readers have finished."""
        with self.changed:
            for owned in self.partitions.values():
                owned.processed = owned.handed_out


class MessageStream:
    """Messages of the partitions that are assigned to this stream.  For one thread at a time.

    ``topic`` is the topic it was made for, or None for a stream over a pattern of topics.
    """

    def __init__(self, owned: OwnedPartitions, decoder: Decoder, topic: str | None, number: int) -> None:
        self.topic = topic
        self.number = number
        self.queue: deque[tuple[OwnedPartition, Chunk]] = deque()
        self.reading = False  # a reader is inside of messages() or batches()
        self._owned = owned
        self._decoder = decoder
        self._ready: deque[Message] = deque()
        self._ready_of: OwnedPartition | None = None

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Yields messages until the consumer is closed, or until none has come for ``timeout`` seconds.

        A message counts as processed when the next one is requested.

        Raises:
            CorruptBatch: see ``consumer.py``.
            ApplianceError: this consumer cannot be a member of its group.
        """
        lock = self._owned.changed
        self.reading = True
        try:
            while self._fill(timeout):
                partition, ready = self._ready_of, self._ready
                assert partition is not None
                while ready:
                    message = ready.popleft()
                    with lock:
                        if partition.revoked:
                            ready.clear()
                            break
                        partition.handed_out = message.offset + 1
                    yield message
                    partition.processed = message.offset + 1
                    if partition.revoked:
                        self._wake_revoke()
        finally:
            self.reading = False
            self._wake_revoke()

    def batches(self, timeout: float | None = None) -> Iterator[Values]:
        """As :meth:`messages`, but faster: yields the values of one batch after another."""
        lock = self._owned.changed
        self.reading = True
        try:
            while (found := self._next_values(timeout)) is not None:
                partition, values = found
                with lock:
                    if partition.revoked:
                        continue
                    partition.handed_out = values.next_offset
                yield values
                partition.processed = values.next_offset
                if partition.revoked:
                    self._wake_revoke()
        finally:
            self.reading = False
            self._wake_revoke()

    def _wake_revoke(self) -> None:
        """Wake :meth:`OwnedPartitions.revoke` if it waits for this reader."""
        with self._owned.changed:
            self._owned.changed.notify_all()

    def _fill(self, timeout: float | None) -> bool:
        """Decode until there is a message.  False if time is up or the consumer is closed."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            entry = self._head(deadline_s)
            if entry is None:
                return False
            partition, chunk = entry
            messages = self._decoder.messages(chunk)
            if messages is None:
                self._drop(partition, chunk)
            else:
                self._ready_of = partition
                self._ready += messages
        return True

    def _next_values(self, timeout: float | None) -> tuple[OwnedPartition, Values] | None:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        if self._ready and self._ready_of is not None:  # decoded for messages() before
            values = [message.value for message in self._ready]
            last = self._ready[-1]
            self._ready.clear()
            return self._ready_of, Values(last.topic, last.partition, values, last.offset + 1)
        while (entry := self._head(deadline_s)) is not None:
            partition, chunk = entry
            values_or_end = self._decoder.values(chunk)
            if values_or_end is None:
                self._drop(partition, chunk)
            elif values_or_end.values:
                return partition, values_or_end
        return None

    def _head(self, deadline_s: float | None) -> tuple[OwnedPartition, Chunk] | None:
        """The chunk to decode next, left in the queue; None when time is up or the consumer is closed."""
        owned = self._owned
        with owned.changed:
            while True:
                if owned.trouble is not None:
                    raise owned.trouble
                if owned.closed:
                    return None
                if self.queue and owned.alive():
                    return self.queue[0]
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                owned.changed.wait(left_s)

    def _drop(self, partition: OwnedPartition, chunk: Chunk) -> None:
        """Drop a decoded chunk, which may end with batches that have no messages: these count as processed."""
        with self._owned.changed:
            if self.queue and self.queue[0][1] is chunk:
                self.queue.popleft()
                partition.handed_out = partition.processed = chunk.stop_offset
                chunk.release()
