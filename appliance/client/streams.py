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

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..errors import ApplianceError
from . import arguments
from .decoder import ChunkDecoder, Message, Values
from .fetcher import Chunk


class OwnedPartition:
    """One partition, from the time it is gained until it is given up.  Changed under the lock of all streams."""

    __slots__ = (
        *("begun", "committed", "fetching", "handed_out", "paused", "processed", "revoked", "stored", "stream"),
        *("successor", "topic_partition"),
    )

    def __init__(self, part: tuple[str, int], stream: MessageStream, stored: int | None = None) -> None:
        self.topic_partition = part
        self.stream = stream
        self.stored = stored
        """The committed offset from before."""
        self.handed_out = -1
        self.processed = -1
        self.committed = -1
        self.revoked = False
        self.begun = -1
        """Where it began to hand out, or has stepped over markers since with nothing to commit."""
        self.fetching = False
        """Whether what arrives of it is handed out."""
        self.paused = False
        self.successor: OwnedPartition | None = None
        """What it goes on as, after a pause."""

    @property
    def next_offset(self) -> int | None:
        """Where it goes on; None: where partitions without a committed offset begin."""
        return next((offset for offset in (self.handed_out, self.begun) if offset >= 0), self.stored)

    def done(self, offset: int) -> None:
        """Its reader has finished with all before ``offset``."""
        self.processed = offset
        if self.successor is not None and self.successor.processed < offset:
            self.successor.done(offset)


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
        self.lost: set[tuple[str, int]] = set()
        """Given up with messages that were handed out and not committed, until they are handed out again."""

    def add_partition(self, part: tuple[str, int], stream: MessageStream, stored: int | None = None) -> OwnedPartition:
        with self.changed:
            owned = self.partitions[part] = OwnedPartition(part, stream, stored)
            return owned

    def renew(self, part: tuple[str, int], offset: int | None = None) -> OwnedPartition:
        """Drop what has arrived of a partition, which is to go on where it was, or at ``offset``."""
        with self.changed:
            before = self.partitions[part]
            owned = self.add_partition(part, before.stream, before.stored)
            owned.paused = before.paused
            if offset is None:
                owned.handed_out, owned.processed = before.handed_out, before.processed
                owned.committed, owned.begun = before.committed, before.begun
                before.successor = owned
            else:  # to be committed, also if it is before what is
                owned.handed_out = owned.processed = owned.begun = offset
            before.revoked = True
            before.stream.queue = deque(entry for entry in before.stream.queue if entry[0] is not before)
            self.changed.notify_all()
            return owned

    def put_chunks(self, chunks: Iterable[Chunk]) -> None:
        """Queue fetched chunks; those of partitions that are revoked, or begin anew, are dropped."""
        with self.changed:
            for chunk in chunks:
                owned = self.partitions.get(chunk.fetched.topic_partition)
                if owned is None or not owned.fetching:
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
                if owned.handed_out > max(owned.committed, owned.begun):
                    self.lost.add(owned.topic_partition)
                stream = owned.stream
                stream.queue = deque(entry for entry in stream.queue if entry[0] is not owned)
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: all(owned.processed == owned.handed_out or not owned.stream.reading for owned in leaving),
                wait_s,
            )
            return {owned.topic_partition: owned.processed for owned in leaving if owned.processed >= 0}

    def uncommitted(self, *, in_hand: bool) -> dict[tuple[str, int], int]:
        """The offsets that have moved since the last commit.

        Args:
            in_hand: count also messages that readers still work on.
        """
        with self.changed:
            moved = {}
            for part, owned in self.partitions.items():
                offset = owned.handed_out if in_hand else owned.processed
                if offset > owned.committed:
                    moved[part] = offset
            return moved

    def on_committed(self, offsets: Mapping[tuple[str, int], int]) -> None:
        with self.changed:
            for part, offset in offsets.items():
                self.lost.discard(part)  # given up while the commit was under way
                if part in self.partitions:
                    self.partitions[part].committed = offset

    def finish(self, trouble: ApplianceError | None = None) -> None:
        """End all iterators, with an error if there is one."""
        with self.changed:
            self.closed = True
            self.trouble = self.trouble or trouble
            self.changed.notify_all()

    def disown(self, refusal: ApplianceError) -> None:
        """In a forked child: hand out nothing.  Another thread may have held the lock, so it is replaced."""
        self.changed = threading.Condition()
        for owned in self.partitions.values():
            owned.revoked = True
        self.finish(refusal)

    def mark_processed(self) -> None:
        """Count everything handed out as processed: the readers have finished."""
        with self.changed:
            for owned in self.partitions.values():
                owned.processed = owned.handed_out


class _Decoded(NamedTuple):
    """A batch that is not handed out yet."""

    partition: OwnedPartition
    values: Values
    put_back: Callable[[], object]
    """Have it handed out as messages."""


class MessageStream:
    """Messages of the partitions that are assigned to this stream.  For one thread at a time.

    ``topic`` is the topic it was made for, or None for a stream over a pattern of topics.
    """

    def __init__(self, owned: OwnedPartitions, decoder: ChunkDecoder, topic: str | None, number: int) -> None:
        self.topic = topic
        self.number = number
        self.queue: deque[tuple[OwnedPartition, Chunk]] = deque()
        self.reading = False  # a reader is inside of messages() or batches()
        self._owned = owned
        self._decoder = decoder
        self._ready: deque[Message] = deque()
        self._ready_of: OwnedPartition | None = None
        self._values: _Decoded | None = None

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Yields messages until the consumer is closed, or until none has come for ``timeout`` seconds.

        A message counts as processed when the next one is requested.

        Raises:
            CorruptBatch: see ``consumer.py``.
            ApplianceError: this consumer cannot be a member of its group.
        """
        return self._messages(arguments.seconds(timeout))

    def _messages(self, timeout: float | None) -> Iterator[Message]:
        self.reading = True
        try:
            while self.fill(timeout):
                yield from self.decoded()
        finally:
            self.end_reading()

    def batches(self, timeout: float | None = None) -> Iterator[Values]:
        """As :meth:`messages`, but faster: yields the values of one batch after another."""
        return self._batches(arguments.seconds(timeout))

    def _batches(self, timeout: float | None) -> Iterator[Values]:
        self.reading = True
        try:
            while self.fill_values(timeout):
                yield from self.decoded_values()
        finally:
            self.end_reading()

    # ---- in two steps, as ``aio`` takes them: one waits and hands out nothing, the other one hands out

    def fill(self, timeout: float | None) -> bool:
        """Decode until there is a message.  False if time is up or the consumer is closed."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        if self._values is not None:
            self._values.put_back()
            self._values = None
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

    def decoded(self) -> Iterator[Message]:
        """Hand out the messages that are decoded; each counts as processed when the next one is requested."""
        partition, ready = self._ready_of, self._ready
        while ready:
            assert partition is not None
            message = ready.popleft()
            with self._owned.changed:
                if partition.revoked:
                    ready.clear()
                    return
                partition.handed_out = message.offset + 1
            yield message
            partition.done(message.offset + 1)
            if partition.revoked:
                self._wake_revoke()

    def fill_values(self, timeout: float | None) -> bool:
        """As :meth:`fill`, for :meth:`decoded_values`."""
        if self._values is None:
            self._values = self._next_values(timeout)
        return self._values is not None

    def decoded_values(self) -> Iterator[Values]:
        """Hand out the batch that is decoded."""
        decoded, self._values = self._values, None
        if decoded is None:
            return
        partition, values, _ = decoded
        with self._owned.changed:
            if partition.revoked:
                return
            partition.handed_out = values.next_offset
        yield values
        partition.done(values.next_offset)
        if partition.revoked:
            self._wake_revoke()

    def end_reading(self) -> None:
        self.reading = False
        self._wake_revoke()

    def _wake_revoke(self) -> None:
        """Wake :meth:`OwnedPartitions.revoke` if it waits for this reader."""
        with self._owned.changed:
            self._owned.changed.notify_all()

    def _next_values(self, timeout: float | None) -> _Decoded | None:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        if self._ready and self._ready_of is not None:  # decoded for messages() before
            messages = list(self._ready)
            self._ready.clear()
            last = messages[-1]
            values = Values(last.topic, last.partition, [message.value for message in messages], last.offset + 1)
            return _Decoded(self._ready_of, values, lambda: self._ready.extend(messages))
        while (entry := self._head(deadline_s)) is not None:
            partition, chunk = entry
            decode_again = functools.partial(setattr, chunk, "at", chunk.at)
            values_or_end = self._decoder.values(chunk)
            if values_or_end is None:
                self._drop(partition, chunk)
            elif values_or_end.values:
                return _Decoded(partition, values_or_end, decode_again)
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
                if partition.handed_out <= max(partition.committed, partition.begun):
                    # Nothing waits for a commit: stepping over a marker does not make it so.
                    partition.begun = chunk.stop_offset
                partition.handed_out = partition.processed = chunk.stop_offset
                chunk.release()
