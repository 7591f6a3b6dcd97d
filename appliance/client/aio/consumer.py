"""The consumer for explicit partitions, of an event loop.

Example::

    async with Consumer("127.0.0.1:9091") as consumer:
        await consumer.assign({("logs", 0): EARLIEST})
        async for message in consumer.messages(timeout=1.0):  # never ends without a timeout
            ...

A thread of the consumer fetches and decodes, one batch ahead of the tasks that read; so what waits for them is bounded
as in the blocking consumer.  Messages are handed out in the event loop, where the position moves.  So a task that is
cancelled while it waits for messages loses none, and moves no position.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...names import OFFSET_MAX
from .. import arguments, consumer
from ..decoder import Message, Values
from ..troubles import Trouble
from .worker import Worker, asked, made_as

P = ParamSpec("P")
T = TypeVar("T")


class Consumer:
    """As :class:`appliance.client.Consumer`.  For the tasks of one event loop, of which one at a time reads."""

    @made_as(consumer.Consumer)
    def __init__(self, core: consumer.Consumer) -> None:
        self._core = core
        self._worker = Worker("consumer")
        self._preparing: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Abort what is under way, and close.  Closing twice does nothing."""
        self._core.abort()
        await self._worker.finish(self._core.close)

    async def ask(self, method: Callable[Concatenate[consumer.Consumer, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._worker.last is not None:
            self._core.interrupt()
        return await self._worker.call(method, self._core, *args, **kwargs)

    # ---- where to read

    assign = asked(consumer.Consumer.assign)
    assign_topic = asked(consumer.Consumer.assign_topic)
    seek = asked(consumer.Consumer.seek)
    seek_to_beginning = asked(consumer.Consumer.seek_to_beginning)
    seek_to_end = asked(consumer.Consumer.seek_to_end)
    seek_to_time = asked(consumer.Consumer.seek_to_time)
    rewind = asked(consumer.Consumer.rewind)
    pause = asked(consumer.Consumer.pause)
    resume = asked(consumer.Consumer.resume)
    paused = asked(consumer.Consumer.paused)
    offsets_at = asked(consumer.Consumer.offsets_at)
    ends = asked(consumer.Consumer.ends)

    def positions(self) -> dict[tuple[str, int], int]:
        """The offset of the next message of every assigned partition whose start offset is known."""
        return self._core.positions()

    def position(self, topic: str, partition: int) -> int:
        return self._core.position(topic, partition)

    def troubles(self) -> list[Trouble]:
        """What this consumer waits for at the moment, the oldest first: brokers, partitions, metadata."""
        return self._core.troubles()

    @property
    def corrupt_batches(self) -> int:
        """Damaged batches that were skipped, and ranges of them that the appliance does not serve."""
        return self._core.corrupt_batches

    @property
    def large_batches(self) -> int:
        """Batches that were skipped since they unpack to more than ``unpacked_bytes_max``."""
        return self._core.large_batches

    # ---- reading

    async def poll(self, timeout: float | None = None, messages_max: int = 500) -> list[Message]:
        """Up to ``messages_max`` messages; waits up to ``timeout`` seconds for the first one."""
        timeout = arguments.seconds(timeout)
        arguments.whole("messages_max", messages_max, 1, OFFSET_MAX)
        if not await self._wait_for(self._core.prepare, lambda: self._core.messages_ready, timeout):
            return []
        return self._core.take_messages(messages_max)

    def messages(self, timeout: float | None = None) -> AsyncGenerator[Message, None]:
        """Yields messages for ever, or until nothing has come for ``timeout`` seconds."""
        return self._messages(arguments.seconds(timeout))

    async def _messages(self, timeout: float | None) -> AsyncGenerator[Message, None]:
        while await self._wait_for(self._core.prepare, lambda: self._core.messages_ready, timeout):
            while self._worker.last is None and (taken := self._core.take_messages(1)):
                yield taken[0]

    def __aiter__(self) -> AsyncGenerator[Message, None]:
        return self.messages()

    async def fetch_batches(self, timeout: float | None = None) -> list[Values]:
        """The batches that have arrived; waits up to ``timeout`` seconds for the first one (None: for ever).

        Each :class:`Values` is one batch as it was produced, without headers and keys.
        """
        timeout = arguments.seconds(timeout)
        if not await self._wait_for(self._core.prepare_batches, lambda: self._core.batches_ready, timeout):
            return []
        return self._core.take_batches()

    async def _wait_for(self, prepare: Callable[[], None], ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until something can be taken, and no call is under way that changes what.  False when time is up."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout is None else loop.time() + timeout
        while (last := self._worker.last) is not None or not ready():
            if last is None:
                last = self._preparing = self._worker.begin(prepare)
            left_s = None if deadline_s is None else max(0.0, deadline_s - loop.time())
            await asyncio.wait({last}, timeout=left_s)
            preparing = self._preparing
            if preparing is not None and preparing.done():
                self._preparing = None
                preparing.result()
            if not last.done():
                return False
        return True
