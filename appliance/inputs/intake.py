"""Takes messages of senders that are answered once their messages are flushed: what all listeners share.

A listener reads a request, or some lines of a connection, and calls :meth:`Intake.put`; when that returns, it answers.
Nothing is kept for a sender without an answer: it sends again.

A *lane* is what one source sends to one partition.  Messages that come while LANE_BLOCKS_MAX blocks of a lane are on
their way wait and become one block, so a block grows with the load, and little waits when there is little to do.

Back-pressure: :meth:`Intake.put` waits while the outlet has no room; a listener that awaits it before it reads on lets
TCP slow the sender down.  A listener that cannot wait (datagrams) asks :attr:`Intake.has_room` first.

Bounds: SOURCES_MAX sources; what others send counts as of the source ``others``.  ``topics_max`` topics of a template.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from ..client.open_batches import PLAIN_BYTES
from ..errors import ApplianceError, MessageTooLarge
from ..records.encode import put_header_first
from .machinery import Machinery
from .outlet import ORIGIN_BYTES, Placed
from .positions import ORIGIN, Origin, Source, Span

LANE_BLOCKS_MAX: Final = 4
SOURCES_MAX: Final = 10_000
OTHERS: Final = "others"
LEARN_S: Final = 30.0
"""How long what is known of a topic is used: its settings may change."""
DRAIN_POLL_S: Final = 0.01


class Message(NamedTuple):
    """``tail``: its headers, encoded; ``key``: None for the order of its source."""

    value: bytes
    tail: bytes
    key: bytes | None = None


class _Sender:
    """A source, and how many of its messages were taken."""

    def __init__(self, number: int, name: str, position: int) -> None:
        self.number, self.name, self.position = number, name, position


class _Put:
    """The messages of one call that go to one lane; ``done`` when all of them are flushed."""

    def __init__(self, messages: Sequence[Message], done: asyncio.Future[None]) -> None:
        self.messages, self.done = messages, done
        self.left = len(messages)


class _Lane:
    """See the module's docstring.  ``waiting``: puts, each with the index of its first message that was not sent."""

    def __init__(self, sender: _Sender, topic: str, partition: int, block_bytes_max: int) -> None:
        self.sender, self.topic, self.partition = sender, topic, partition
        self.block_bytes_max = block_bytes_max
        self.waiting: deque[tuple[_Put, int]] = deque()
        self.blocks = 0


class Intake:
    """See the module's docstring.  Make it in a running loop."""

    def __init__(self, machinery: Machinery) -> None:
        self._store, self._outlet, self._ledger = machinery.store, machinery.outlet, machinery.ledger
        self._senders = {row.name: _Sender(row.number, row.name, row.position) for row in self._store.sources()}
        self._lanes: dict[tuple[int, str, int], _Lane] = {}
        self._learned: dict[str, tuple[int, float]] = {}  # block_bytes_max of a topic, and when it was learned
        self._clock_s = asyncio.get_running_loop().time

    @property
    def has_room(self) -> bool:
        """Whether :meth:`put` would not wait for room."""
        return self._outlet.has_room

    async def put(self, source: str, topic: str, messages: Sequence[Message]) -> None:
        """Send messages of a source; return when all are flushed.  Their order is kept among those of one partition.

        Raises:
            MessageTooLarge: one of them is, for this topic; none was sent.
            ApplianceError: the topic does not take them now, or never.  Some may be in the log all the same.
        """
        if not messages:
            return
        block_bytes_max = await self._learn(topic)
        for message in messages:
            if _size(message) > block_bytes_max:
                raise MessageTooLarge(f"a message of {len(message.value)} bytes; {topic} takes {block_bytes_max}")
        sender = self._sender(source)
        puts: dict[int, list[Message]] = {}
        places: dict[bytes, int] = {}  # hashing a key takes longer than all else here
        own_key = sender.name.encode("utf-8", "surrogateescape")
        for message in messages:
            key = own_key if message.key is None else message.key
            partition = places.get(key)
            if partition is None:
                partition = places[key] = self._outlet.partition_of(topic, key)
            puts.setdefault(partition, []).append(message)
        for partition in puts:
            await self._ledger.begin_partition(topic, partition)
        await self._outlet.room()
        done: list[asyncio.Future[None]] = []
        for partition, some in puts.items():
            lane = self._lanes.get((sender.number, topic, partition))
            if lane is None:
                lane = self._lanes[sender.number, topic, partition] = _Lane(sender, topic, partition, block_bytes_max)
            done.append(asyncio.get_running_loop().create_future())
            lane.waiting.append((_Put(some, done[-1]), 0))
            self._send(lane)
        for result in await asyncio.gather(*done, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def drain(self) -> None:
        """Wait until all that was put is flushed, or has failed."""
        while self._lanes:
            await asyncio.sleep(DRAIN_POLL_S)

    async def _learn(self, topic: str) -> int:
        known = self._learned.get(topic)
        now = self._clock_s()
        if known is None or now - known[1] > LEARN_S:
            known = self._learned[topic] = (await self._outlet.learn(topic) - ORIGIN_BYTES, now)
        return known[0]

    def _sender(self, source: str) -> _Sender:
        sender = self._senders.get(source)
        if sender is None:
            if len(self._senders) >= SOURCES_MAX and source != OTHERS:
                return self._sender(OTHERS)
            (number,) = self._store.add_sources([(source, 0, 1, b"")])
            sender = self._senders[source] = _Sender(number, source, 0)
            self._ledger.note_sources(len(self._senders))
        return sender

    # ---- lanes

    def _send(self, lane: _Lane) -> None:
        """Send what waits, unless enough blocks are on their way."""
        while lane.waiting and lane.blocks < LANE_BLOCKS_MAX:
            messages, puts = self._block(lane)
            sender = lane.sender
            start, sender.position = sender.position, sender.position + len(messages)
            origin = Origin(self._store.id, sender.number, start, sender.position, start + 1, len(messages))
            tails = [message.tail for message in messages]
            tails[0] = put_header_first(tails[0], ORIGIN, origin.encode())
            keys = None if messages[0].key is None else [message.key or b"" for message in messages]
            try:
                values = [message.value for message in messages]
                future = self._outlet.send(lane.topic, lane.partition, values, tails, keys=keys)
            except ApplianceError as error:
                self._fail(puts, error)
                self._learned.pop(lane.topic, None)
                continue
            lane.blocks += 1
            future.add_done_callback(partial(self._settle, lane, puts, origin))
        if not lane.waiting and not lane.blocks:
            self._lanes.pop((lane.sender.number, lane.topic, lane.partition), None)

    def _block(self, lane: _Lane) -> tuple[list[Message], list[tuple[_Put, int]]]:
        """As many of the first messages that wait as one block takes; all with a key, or none."""
        messages: list[Message] = []
        puts: list[tuple[_Put, int]] = []
        left = lane.block_bytes_max
        while lane.waiting:
            put, at = lane.waiting[0]
            stop = at
            while stop < len(put.messages):
                message = put.messages[stop]
                size = _size(message)
                if size > left or (messages and (messages[0].key is None) != (message.key is None)):
                    break
                left -= size
                messages.append(message)
                stop += 1
            if stop > at:
                puts.append((put, stop - at))
            if stop < len(put.messages):
                lane.waiting[0] = (put, stop)
                break
            lane.waiting.popleft()
        return messages, puts

    def _settle(self, lane: _Lane, puts: list[tuple[_Put, int]], origin: Origin, done: asyncio.Future[Placed]) -> None:
        lane.blocks -= 1
        error = None if done.cancelled() else done.exception()
        if isinstance(error, ApplianceError):
            self._learned.pop(lane.topic, None)
            self._fail(puts, error)
        elif not done.cancelled():
            span = Span(lane.sender.number, *done.result(), *origin[2:], self._ledger.minute())
            self._ledger.note(span)
            self._store.note(
                Source(lane.sender.number, lane.sender.name, origin.stop, origin.stop + 1, b"", False), span
            )
            for put, count in puts:
                put.left -= count
                if not put.left and not put.done.done():
                    put.done.set_result(None)
        self._send(lane)

    def _fail(self, puts: list[tuple[_Put, int]], error: ApplianceError) -> None:
        for put, _ in puts:
            if not put.done.done():
                put.done.set_exception(error)


def _size(message: Message) -> int:
    return len(message.value) + len(message.tail) + len(message.key or b"") + PLAIN_BYTES
