"""Takes messages of senders that are answered once their messages are flushed: what all listeners share.

A listener reads a request, or some lines of a connection, and calls :meth:`Intake.put`; when that returns, it answers.
Nothing is kept for a sender without an answer: it sends again.

A *lane* is what one source sends to one partition.  Messages that come while LANE_BLOCKS_MAX blocks of a lane are on
their way wait and become one block, so a block grows with the load, and little waits when there is little to do.

Back-pressure: :meth:`Intake.put` waits while TAKEN_BYTES_MAX wait or are on their way; a listener that awaits it before
it reads on lets TCP slow the sender down.  One that cannot wait (datagrams) awaits :meth:`Intake.room` before it reads.

Bounds: SOURCES_MAX sources; what others send counts as of the source ``others``.  ``topics_max`` topics of a template.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from ..client.outgoing import PLAIN_BYTES
from ..errors import ApplianceError, MessageTooLarge, UnknownPartition
from ..records.encode import put_header_first
from .machinery import Machinery
from .outlet import ORIGIN_BYTES, Placed
from .positions import ORIGIN, BlockOrigin, Source, Span

LANE_BLOCKS_MAX: Final = 4
SOURCES_MAX: Final = 10_000
OTHERS: Final = "others"
TAKEN_BYTES_MAX: Final = 8 << 20
"""Bytes of messages that are not flushed, of all lanes together.  One call may go beyond it."""
LEARN_S: Final = 30.0
"""How long what is known of a topic is used: its settings may change."""
SLOW_S: Final = 2.0
"""After so long without an answer, look whether the topic is there, and what keeps it from taking anything."""
DRAIN_POLL_S: Final = 0.01


class InputMessage(NamedTuple):
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

    def __init__(self, messages: list[InputMessage], sizes: list[int], done: asyncio.Future[None]) -> None:
        self.messages, self.sizes, self.done = messages, sizes, done
        self.bytes = sum(sizes)
        self.unflushed_count = len(messages)
        keyed = sum([message.key is not None for message in messages])
        self.has_keys: bool | None = keyed > 0 if keyed in (0, len(messages)) else None
        """None: some have one."""


class _Lane:
    """What one source sends to one partition.

    ``waiting``: puts, each with the index of its first message that was not sent.
    """

    def __init__(self, sender: _Sender, topic: str, partition: int, block_bytes_max: int) -> None:
        self.sender, self.topic, self.partition = sender, topic, partition
        self.block_bytes_max = block_bytes_max
        self.waiting: deque[tuple[_Put, int]] = deque()
        self.blocks = 0


class Intake:
    """Collects messages of senders into blocks, and says when they are flushed.  Make it in a running loop."""

    def __init__(self, machinery: Machinery) -> None:
        self._store, self._outlet, self._ledger = machinery.store, machinery.outlet, machinery.ledger
        self._senders = {row.name: _Sender(row.number, row.name, row.position) for row in self._store.sources()}
        self._lanes: dict[tuple[int, str, int], _Lane] = {}
        self._learned: dict[str, tuple[int, float]] = {}  # block_bytes_max of a topic, and when it was learned
        self._asking: dict[str, asyncio.Task[int]] = {}
        self._clock_s = asyncio.get_running_loop().time
        self._taken_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def has_room(self) -> bool:
        """Whether :meth:`put` would not wait for room."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until :meth:`put` would not wait for room."""
        while not self._room.is_set():  # it is set for all that wait, and the first may take it
            await self._room.wait()

    def number_of(self, source: str) -> int:
        return self._sender(source).number

    async def put(self, source: str, topic: str, messages: Sequence[InputMessage]) -> None:
        """Send messages of a source; return when all are flushed.  Their order is kept among those of one partition.

        Raises:
            MessageTooLarge: one of them is, for this topic; none was sent.
            ApplianceError: the topic does not take them now, or never, or there is none any more.  Some may be in the
                log all the same.
        """
        self._check_trouble(topic)
        flushed = await self.begin(source, topic, messages)
        try:
            while not flushed.done():
                await asyncio.wait([flushed], timeout=SLOW_S)
                if not flushed.done():
                    await self._check_topic(topic)
        except ApplianceError:
            flushed.add_done_callback(asyncio.Future.exception)  # nobody waits for it any more
            raise
        await flushed

    async def _check_topic(self, topic: str) -> None:
        """Raises ApplianceError: there is none any more, or it has taken nothing for long, and the reason is known."""
        self._check_trouble(topic)
        try:
            await asyncio.shield(self._ask(topic))
        except UnknownPartition:
            raise
        except ApplianceError:  # such as a restart
            pass

    def _check_trouble(self, topic: str) -> None:
        error = self._outlet.lasting_trouble(topic, SLOW_S)
        if error is not None and not isinstance(error, UnknownPartition):  # that is asked: it may have been made again
            raise error.with_traceback(None)  # it is one object for all, and would keep the frames of each

    async def begin(self, source: str, topic: str, messages: Sequence[InputMessage]) -> asyncio.Future[None]:
        """As :meth:`put`, but return when the messages have their place in the order; the result comes when all are
        flushed.  So a source whose calls follow each other may have many on their way.
        """
        block_bytes_max = await self.block_bytes_max(topic)
        sizes = [
            len(value) + len(tail) + (PLAIN_BYTES if key is None else len(key) + PLAIN_BYTES)
            for value, tail, key in messages
        ]
        if sizes and max(sizes) > block_bytes_max:
            size = len(messages[sizes.index(max(sizes))].value)
            raise MessageTooLarge(f"a message of {size} bytes; {topic} takes {block_bytes_max}")
        sender = self._sender(source)
        puts = self._puts(topic, sender, messages, sizes)
        for partition in puts:
            await self._ledger.begin_partition(topic, partition)
        await self.room()
        for partition, put in puts.items():
            self._take(put)
            lane = self._lanes.get((sender.number, topic, partition))
            if lane is None:
                lane = self._lanes[sender.number, topic, partition] = _Lane(sender, topic, partition, block_bytes_max)
            lane.waiting.append((put, 0))
            self._send(lane)
        return _all_done([put.done for put in puts.values()])

    def _puts(self, topic: str, sender: _Sender, messages: Sequence[InputMessage], sizes: list[int]) -> dict[int, _Put]:
        """One put for each partition that the messages go to, by their keys or that of the source."""
        own_key = sender.name.encode("utf-8", "surrogateescape")
        keys = [message.key for message in messages]
        partitions = {
            key: self._outlet.partition_of(topic, own_key if key is None else key) for key in dict.fromkeys(keys)
        }
        create_future = asyncio.get_running_loop().create_future
        if len(set(partitions.values())) == 1:
            return {partition: _Put(list(messages), sizes, create_future()) for partition in partitions.values()}
        rows: dict[int, tuple[list[InputMessage], list[int]]] = {}
        for message, size, key in zip(messages, sizes, keys, strict=True):
            some = rows.setdefault(partitions[key], ([], []))
            some[0].append(message)
            some[1].append(size)
        return {partition: _Put(*some, create_future()) for partition, some in rows.items()}

    def _take(self, put: _Put) -> None:
        self._taken_bytes += put.bytes
        if self._taken_bytes >= TAKEN_BYTES_MAX:
            self._room.clear()
        put.done.add_done_callback(partial(self._give_back, put.bytes))

    def _give_back(self, size: int, _: asyncio.Future[None]) -> None:
        self._taken_bytes -= size
        if self._taken_bytes < TAKEN_BYTES_MAX:
            self._room.set()

    async def drain(self) -> None:
        """Wait until all that was put is flushed, or has failed."""
        while self._lanes:
            await asyncio.sleep(DRAIN_POLL_S)

    async def block_bytes_max(self, topic: str) -> int:
        """The largest block that a topic takes.  What is known is used while it is asked again, and if that fails.

        Raises:
            ApplianceError: nothing is known of it yet, and it cannot be asked now, or never.
        """
        learned = self._learned.get(topic)
        if learned is None:
            return await asyncio.shield(self._ask(topic))
        now = self._clock_s()
        if now - learned[1] > LEARN_S:
            self._learned[topic] = learned[0], now
            self._ask(topic)
        return learned[0]

    def _ask(self, topic: str) -> asyncio.Task[int]:
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.create_task(self._ask_outlet(topic))
            task.add_done_callback(partial(self._asked, topic))
        return task

    async def _ask_outlet(self, topic: str) -> int:
        block_bytes_max = await self._outlet.learn(topic) - ORIGIN_BYTES
        self._learned[topic] = block_bytes_max, self._clock_s()
        return block_bytes_max

    def _asked(self, topic: str, task: asyncio.Task[int]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # those who wait for it have it, too

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
            origin = BlockOrigin(self._store.id, sender.number, start, sender.position, start + 1, len(messages))
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
            future.add_done_callback(partial(self._settle, lane, puts, origin, sum(map(len, values))))
        if not lane.waiting and not lane.blocks:
            self._lanes.pop((lane.sender.number, lane.topic, lane.partition), None)

    def _block(self, lane: _Lane) -> tuple[list[InputMessage], list[tuple[_Put, int]]]:
        """As many of the first messages that wait as one block takes; all with a key, or none."""
        messages: list[InputMessage] = []
        puts: list[tuple[_Put, int]] = []
        has_keys = lane.waiting[0][0].messages[lane.waiting[0][1]].key is not None
        room = lane.block_bytes_max
        while lane.waiting:
            put, at = lane.waiting[0]
            if not at and put.bytes <= room and put.has_keys == has_keys:
                stop = len(put.messages)
                room -= put.bytes
            else:
                stop = at
                while stop < len(put.messages):
                    if put.sizes[stop] > room or (put.messages[stop].key is not None) != has_keys:
                        break
                    room -= put.sizes[stop]
                    stop += 1
            if stop > at:
                messages += put.messages[at:stop]
                puts.append((put, stop - at))
            if stop < len(put.messages):
                lane.waiting[0] = (put, stop)
                break
            lane.waiting.popleft()
        return messages, puts

    def _settle(
        self,
        lane: _Lane,
        puts: list[tuple[_Put, int]],
        origin: BlockOrigin,
        value_bytes: int,
        done: asyncio.Future[Placed],
    ) -> None:
        lane.blocks -= 1
        error = None if done.cancelled() else done.exception()
        if isinstance(error, ApplianceError):
            self._learned.pop(lane.topic, None)
            self._fail(puts, error)
        elif not done.cancelled():
            span = Span(lane.sender.number, *done.result(), *origin[2:6], value_bytes, self._ledger.minute())
            self._ledger.note(span)
            self._store.note(
                Source(lane.sender.number, lane.sender.name, origin.stop, origin.stop + 1, b"", False), span
            )
            for put, count in puts:
                put.unflushed_count -= count
                if not put.unflushed_count and not put.done.done():
                    put.done.set_result(None)
        self._send(lane)

    def _fail(self, puts: list[tuple[_Put, int]], error: ApplianceError) -> None:
        for put, _ in puts:
            if not put.done.done():
                put.done.set_exception(error)


def _all_done(futures: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    """Done when all are; with the error of the first that has one."""
    if len(futures) == 1:
        return futures[0]
    result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pending = len(futures)

    def settle(_: asyncio.Future[None]) -> None:
        nonlocal pending
        pending -= 1
        if pending or result.done():
            return
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            result.set_exception(errors[0])
        else:
            result.set_result(None)

    if not futures:
        result.set_result(None)
    for future in futures:
        future.add_done_callback(settle)
    return result
