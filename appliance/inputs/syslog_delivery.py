"""Sends messages of syslog until they are flushed, or refused for good; of one connection some at a time, in order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from ..errors import ApplianceError, BadValue, ClientBroken, InvalidTopic, MessageTooLarge, NotPermitted, StorageFault
from .intake import InputMessage, Intake
from .ledger import Ledger
from .syslog_format import Frames, SyslogParser, with_part

MESSAGE_BYTES: Final = 200
"""Bytes that a message takes beside its value."""
RETRY_S: Final = 1.0


class SyslogMessages:
    """The messages of one connection; the parts of a long one have the headers of its first part."""

    def __init__(self, parser: SyslogParser, host: str) -> None:
        self._parser, self._host = parser, host
        self._first: tuple[str, InputMessage] | None = None

    def split_by_topic(self, frames: Frames) -> dict[str, list[InputMessage]]:
        """By topic; those under "" belong to one topic too many."""
        if not frames.part:
            return self._parser.parse(frames.values, self._host)
        (value,) = frames.values
        if frames.part == 1 or self._first is None:
            ((topic, (message,)),) = self._parser.parse([value], self._host).items()
            self._first = topic, message
        topic, message = self._first
        return {topic: [with_part(message._replace(value=value), frames.part)]}


SyslogRefusals = dict[int, str]
"""Why messages were refused, by their index."""


class SyslogDelivery:
    """Sends messages until they are flushed, or refused for good."""

    def __init__(self, intake: Intake, ledger: Ledger) -> None:
        self._intake, self._ledger = intake, ledger
        self._tasks: set[asyncio.Task[SyslogRefusals]] = set()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the error after which this process can send nothing."""

    async def begin(self, source: str, topic: str, messages: list[InputMessage]) -> asyncio.Task[SyslogRefusals]:
        """Send messages; return when they have their place in the order.  The result comes when they are flushed."""
        begun = await self._begin(source, topic, messages)
        task = asyncio.create_task(self._see_through(source, topic, messages, begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def room(self) -> None:
        await self._intake.room()

    @property
    def is_waiting(self) -> bool:
        """Whether something is neither flushed nor refused."""
        return bool(self._tasks)

    async def drain(self) -> None:
        """Wait until everything that was begun is flushed or refused."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _begin(
        self, source: str, topic: str, messages: list[InputMessage]
    ) -> asyncio.Future[None] | ApplianceError:
        if not topic:
            return BadValue("one more topic than topics_max")
        try:
            return await self._intake.begin(source, topic, messages)
        except ApplianceError as error:
            return error

    async def _see_through(
        self, source: str, topic: str, messages: list[InputMessage], begun: asyncio.Future[None] | ApplianceError
    ) -> SyslogRefusals:
        while True:
            try:
                if isinstance(begun, ApplianceError):
                    raise begun
                await begun
                return {}
            except MessageTooLarge as error:
                if len(messages) > 1:
                    return await self._one_by_one(source, topic, messages)
                return self._refuse(source, messages, "larger than the topic takes", error)
            except (BadValue, InvalidTopic, NotPermitted) as error:
                return self._refuse(source, messages, "the topic is refused", error)
            except ClientBroken as error:
                if not self.broken.done():
                    self.broken.set_exception(error)
                raise
            except ApplianceError as error:
                self._ledger.note_trouble(self._number_of(source), source, str(error))
            await asyncio.sleep(RETRY_S)
            begun = await self._begin(source, topic, messages)

    async def _one_by_one(self, source: str, topic: str, messages: list[InputMessage]) -> SyslogRefusals:
        refusals: SyslogRefusals = {}
        for index, message in enumerate(messages):
            begun = await self._begin(source, topic, [message])
            for reason in (await self._see_through(source, topic, [message], begun)).values():
                refusals[index] = reason
        return refusals

    def refuse(self, name: str, host: str, reason: str, count: int, told: str = "") -> None:
        """Count what is refused under ``name``: a listener, of which there are few, or a source."""
        self._ledger.note_refused(self._number_of(name), name, reason, count, sender=host, told=told)

    def _number_of(self, source: str) -> int:
        try:
            return self._intake.number_of(source)
        except StorageFault:  # it is new, and cannot be stored: whatever it sends waits
            return 0

    def _refuse(self, source: str, messages: list[InputMessage], reason: str, error: ApplianceError) -> SyslogRefusals:
        self.refuse(source, source, reason, len(messages), str(error))
        return dict.fromkeys(range(len(messages)), reason)


class Flow:
    """What one connection has on its way: up to ``bytes_max`` and what was read at a time."""

    def __init__(self, delivery: SyslogDelivery, bytes_max: int) -> None:
        self._delivery, self._bytes_max = delivery, bytes_max
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def room(self) -> None:
        """Wait until something may be sent.  Then make messages of what was read, and send them."""
        await self._has_room.wait()
        await self._delivery.room()

    async def send(self, source: str, messages: dict[str, list[InputMessage]]) -> None:
        for topic, some in messages.items():
            await self.send_topic(source, topic, some)

    async def send_topic(self, source: str, topic: str, messages: list[InputMessage]) -> asyncio.Task[SyslogRefusals]:
        size = sum([len(message.value) for message in messages]) + MESSAGE_BYTES * len(messages)
        self._bytes += size
        if self._bytes >= self._bytes_max:
            self._has_room.clear()
        task = await self._delivery.begin(source, topic, messages)
        task.add_done_callback(partial(self._give_back, size))
        return task

    def _give_back(self, size: int, _: asyncio.Task[SyslogRefusals]) -> None:
        self._bytes -= size
        if self._bytes < self._bytes_max:
            self._has_room.set()
