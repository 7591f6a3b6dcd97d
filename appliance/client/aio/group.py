"""The consumer of a group, of an event loop.

Example::

    async with GroupConsumer("127.0.0.1:9091", "reports") as consumer:
        (stream,) = (await consumer.create_message_streams({"logs": 1}))["logs"]
        async for message in stream:  # never ends
            ...

A message counts as processed when its task requests the next one, as in the blocking consumer; what is not processed
when a partition changes its owner, or the task ends by an exception, is delivered again.  A task that is cancelled
while it waits for a message loses none.

Each stream has a thread that waits for messages and decodes a batch; the streams of several tasks share partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from .. import arguments, group, streams
from ..decoder import Message, Values
from ..group import CLOSE_S_MAX, Blacklist, Whitelist
from ..troubles import Trouble
from .worker import Worker, asked, made_as

P = ParamSpec("P")
T = TypeVar("T")


class MessageStream:
    """Messages of the partitions that are assigned to this stream.  For one task at a time."""

    def __init__(self, core: streams.MessageStream) -> None:
        self.topic, self.number = core.topic, core.number
        self._core = core
        self._worker = Worker("group consumer")

    def __aiter__(self) -> AsyncGenerator[Message, None]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> AsyncGenerator[Message, None]:
        """Yields messages until the consumer is closed, or until none has come for ``timeout`` seconds.

        Raises:
            CorruptBatch: see ``consumer.py``.
            ApplianceError: this consumer cannot be a member of its group.
        """
        return self._messages(arguments.seconds(timeout))

    async def _messages(self, timeout: float | None) -> AsyncGenerator[Message, None]:
        core = self._core
        core.reading = True
        try:
            while await self._fill(core.fill, timeout):
                for message in core.decoded():
                    yield message
        finally:
            core.end_reading()

    def batches(self, timeout: float | None = None) -> AsyncGenerator[Values, None]:
        """As :meth:`messages`, but faster: yields the values of one batch after another."""
        return self._batches(arguments.seconds(timeout))

    async def _batches(self, timeout: float | None) -> AsyncGenerator[Values, None]:
        core = self._core
        core.reading = True
        try:
            while await self._fill(core.fill_values, timeout):
                for values in core.decoded_values():
                    yield values
        finally:
            core.end_reading()

    async def _fill(self, fill: Callable[[float | None], bool], timeout: float | None) -> bool:
        """Have the thread decode; its wait may have begun for somebody who was cancelled."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout is None else loop.time() + timeout
        while True:
            begun = self._worker.last
            if begun is None and self._worker.ended:
                return False
            filling = begun or self._worker.begin(fill, None)
            left_s = None if deadline_s is None else max(0.0, deadline_s - loop.time())
            await asyncio.wait({filling}, timeout=left_s)
            if not filling.done():
                return False
            if begun is None:
                return bool(filling.result())

    def end(self) -> None:
        """The consumer is closed."""
        self._worker.end()


class GroupConsumer:
    """As :class:`appliance.client.GroupConsumer`.  For the tasks of one event loop."""

    @made_as(group.GroupConsumer)
    def __init__(self, core: group.GroupConsumer) -> None:
        self.core = core
        self._worker = Worker("group consumer")
        self._streams: list[MessageStream] = []

    async def __aenter__(self) -> GroupConsumer:
        return self

    async def __aexit__(self, *exit: Any) -> None:
        await self._finish(self.core.__exit__, *exit)

    async def ask(
        self, method: Callable[Concatenate[group.GroupConsumer, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._worker.call(method, self.core, *args, **kwargs)

    async def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Join the group.  Returns for each topic the given number of streams, which share its partitions.

        Returns at once; messages come after the rebalance.  Call it once for each consumer.
        """
        made = await self._worker.call(self.core.create_message_streams, topics)
        return {topic: self._around(of_topic) for topic, of_topic in made.items()}

    async def create_message_streams_by_filter(
        self, topic_filter: Whitelist | Blacklist | str, streams: int = 1
    ) -> list[MessageStream]:
        """Join the group for all topics, present and future, that a pattern admits.  A text is a whitelist."""
        return self._around(await self._worker.call(self.core.create_message_streams_by_filter, topic_filter, streams))

    def _around(self, cores: list[streams.MessageStream]) -> list[MessageStream]:
        made = [MessageStream(core) for core in cores]
        self._streams += made
        return made

    commit = asked(group.GroupConsumer.commit)
    committed = asked(group.GroupConsumer.committed)
    offsets_at = asked(group.GroupConsumer.offsets_at)
    pause = asked(group.GroupConsumer.pause)
    resume = asked(group.GroupConsumer.resume)
    seek = asked(group.GroupConsumer.seek)

    def paused(self) -> set[tuple[str, int]]:
        """The owned partitions that are paused."""
        return self.core.paused()

    async def close(self, *, processed: bool = True, timeout: float = CLOSE_S_MAX) -> None:
        """Stop, commit and leave the group: the others take over at once.  Closing twice does nothing.

        Args:
            processed: whether all messages that were handed out count as processed.  Stop reading first.
            timeout: seconds for each of the two threads to end.  Their requests to brokers are aborted.
        """
        arguments.seconds(timeout)
        arguments.truth("processed", processed)
        await self._finish(self.core.close, processed=processed, timeout=timeout)

    async def _finish(self, close: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await self._worker.finish(close, *args, **kwargs)
        finally:
            for stream in self._streams:
                stream.end()

    @property
    def group(self) -> str:
        return self.core.group

    @property
    def consumer_id(self) -> str:
        return self.core.consumer_id

    @property
    def owned(self) -> dict[tuple[str, int], int]:
        """The owned partitions, each with the number of the stream that reads it."""
        return self.core.owned

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """The offset after the last message handed out, of each owned partition."""
        return self.core.positions

    def troubles(self) -> list[Trouble]:
        """What this consumer waits for at the moment, the oldest first: brokers, partitions, ZooKeeper."""
        return self.core.troubles()

    @property
    def corrupt_batches(self) -> int:
        return self.core.corrupt_batches

    @property
    def large_batches(self) -> int:
        return self.core.large_batches
