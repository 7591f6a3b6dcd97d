"""What a group consumer hands to its threads: streams of messages, and how far each partition has come.

A :class:`Holding` is one partition while this consumer owns it.  It knows two positions: ``handed``, after
the last message handed out, and ``done``, after the last message whose reader has come back for more.  What
is committed by itself is ``done``: a message is never committed before its reader is finished with it, so
deliveries are at least once.

A :class:`MessageStream` is one stream: chunks come in from the fetching thread, are decoded in the thread
that reads, and go out.  One lock for all streams of a consumer decides who is first when a partition is taken
away while it is being read: after :meth:`Shelf.withdraw` has returned, nothing of it is handed out any more.

Bounds: a stream holds at most what the fetcher may have in hand for its partitions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from ..errors import ApplianceError
from .consumer import Decoder, Message, Values
from .fetcher import Chunk, Place


class Holding:
    """One partition, from the time it is claimed until it is given up.  Changed under the shelf's lock."""

    __slots__ = ("committed", "done", "handed", "place", "revoked", "stream")

    def __init__(self, place: Place, stream: MessageStream) -> None:
        self.place = place
        self.stream = stream
        self.handed = -1
        self.done = -1
        self.committed = -1
        self.revoked = False


class Shelf:
    """The partitions that this consumer owns, and the one lock of its streams.

    ``alive`` tells whether the consumer may still deliver: its lease on ZooKeeper's session.
    """

    def __init__(self, alive: Callable[[], bool]) -> None:
        self.changed = threading.Condition()
        self.alive = alive
        self.closed = False
        self.trouble: ApplianceError | None = None
        self.holdings: dict[Place, Holding] = {}

    def hold(self, place: Place, stream: MessageStream) -> None:
        with self.changed:
            self.holdings[place] = Holding(place, stream)

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Queue what was fetched; what is no longer ours is dropped."""
        with self.changed:
            for chunk in chunks:
                holding = self.holdings.get(chunk.fetched.place)
                if holding is None:
                    chunk.release()
                else:
                    holding.stream.queue.append((holding, chunk))
            self.changed.notify_all()

    def withdraw(self, places: Iterable[Place], wait_s: float) -> dict[Place, int]:
        """Stop handing out these partitions; the position of each of which something was handed out.

        Messages that readers have in hand at the moment are waited for, up to ``wait_s``.
        """
        with self.changed:
            leaving = [self.holdings.pop(place) for place in places if place in self.holdings]
            for holding in leaving:
                holding.revoked = True
                stream = holding.stream
                stream.queue = deque(entry for entry in stream.queue if entry[0] is not holding)
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: all(holding.done == holding.handed or not holding.stream.reading for holding in leaving),
                wait_s,
            )
            return {holding.place: holding.done for holding in leaving if holding.done >= 0}

    def positions(self, *, in_hand: bool) -> dict[Place, int]:
        """What to commit: positions that have moved since the last commit.

        Args:
            in_hand: count messages that were handed out and whose readers have not come back.
        """
        with self.changed:
            found = {}
            for place, holding in self.holdings.items():
                position = holding.handed if in_hand else holding.done
                if position > holding.committed:
                    found[place] = position
            return found

    def committed(self, positions: Mapping[Place, int]) -> None:
        with self.changed:
            for place, position in positions.items():
                if place in self.holdings:
                    self.holdings[place].committed = position

    def finish(self, trouble: ApplianceError | None = None) -> None:
        """End all iterators, with an error if there is one."""
        with self.changed:
            self.closed = True
            self.trouble = self.trouble or trouble
            self.changed.notify_all()

    def settle_all(self) -> None:
        """Everything handed out is done: its readers have stopped in good order."""
        with self.changed:
            for holding in self.holdings.values():
                holding.done = holding.handed


class MessageStream:
    """Messages of the partitions that fall to this stream.  For one thread at a time.

    ``topic`` is the topic it was made for, or None for a stream over a pattern of topics.
    """

    def __init__(self, shelf: Shelf, decoder: Decoder, topic: str | None, number: int) -> None:
        self.topic = topic
        self.number = number
        self.queue: deque[tuple[Holding, Chunk]] = deque()
        self.reading = False  # a reader is inside of messages() or batches()
        self._shelf = shelf
        self._decoder = decoder
        self._ready: deque[Message] = deque()
        self._ready_of: Holding | None = None

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Message after message, for ever; ends when none has come for ``timeout`` seconds, or at close.

        A message counts as processed when the next one is asked for.

        Raises:
            CorruptBatch: see ``consumer.py``.
            ApplianceError: this consumer cannot be a member of its group.
        """
        lock = self._shelf.changed
        self.reading = True
        try:
            while self._fill(timeout):
                holding, ready = self._ready_of, self._ready
                assert holding is not None
                while ready:
                    message = ready.popleft()
                    with lock:
                        if holding.revoked:
                            ready.clear()
                            break
                        holding.handed = message.offset + 1
                    yield message
                    holding.done = message.offset + 1
                    if holding.revoked:
                        self._came_back()
        finally:
            self.reading = False
            self._came_back()

    def batches(self, timeout: float | None = None) -> Iterator[Values]:
        """As :meth:`messages`, the fast path: the values of one batch after another."""
        lock = self._shelf.changed
        self.reading = True
        try:
            while (found := self._next_values(timeout)) is not None:
                holding, values = found
                with lock:
                    if holding.revoked:
                        continue
                    holding.handed = values.next_offset
                yield values
                holding.done = values.next_offset
                if holding.revoked:
                    self._came_back()
        finally:
            self.reading = False
            self._came_back()

    def _came_back(self) -> None:
        """Somebody may wait in :meth:`Shelf.withdraw` for us."""
        with self._shelf.changed:
            self._shelf.changed.notify_all()

    def _fill(self, timeout: float | None) -> bool:
        """Decode until there is a message; False at the end."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            entry = self._head(deadline_s)
            if entry is None:
                return False
            holding, chunk = entry
            messages = self._decoder.messages(chunk)
            if messages is None:
                self._drop(chunk)
            else:
                self._ready_of = holding
                self._ready += messages
        return True

    def _next_values(self, timeout: float | None) -> tuple[Holding, Values] | None:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        if self._ready and self._ready_of is not None:  # decoded for messages() before
            values = [message.value for message in self._ready]
            last = self._ready[-1]
            self._ready.clear()
            return self._ready_of, Values(last.topic, last.partition, values, last.offset + 1)
        while (entry := self._head(deadline_s)) is not None:
            holding, chunk = entry
            values_or_end = self._decoder.values(chunk)
            if values_or_end is None:
                self._drop(chunk)
            elif values_or_end.values:
                return holding, values_or_end
        return None

    def _head(self, deadline_s: float | None) -> tuple[Holding, Chunk] | None:
        """The chunk to decode next, left in the queue; None when time is up or the consumer is closed."""
        shelf = self._shelf
        with shelf.changed:
            while True:
                if shelf.trouble is not None:
                    raise shelf.trouble
                if shelf.closed:
                    return None
                if self.queue and shelf.alive():
                    return self.queue[0]
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                shelf.changed.wait(left_s)

    def _drop(self, chunk: Chunk) -> None:
        with self._shelf.changed:
            if self.queue and self.queue[0][1] is chunk:
                self.queue.popleft()
                chunk.release()
