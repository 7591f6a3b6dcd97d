"""The producer of an event loop.

Example::

    async with Producer("127.0.0.1:9091") as producer:
        await producer.send("logs", b"line")  # it is in a batch
        sent = await producer.send_and_wait("logs", b"line", key=b"host-1")  # it is delivered
        delivery = await producer.send("logs", b"line")
        ...
        sent = await delivery

``send`` puts the message into a batch, and waits only while the topic is not known yet or the buffer is full: a task
that is cancelled in this wait has not sent it.  One that is cancelled while it waits for the delivery has.

The batches are the blocking producer's, as are its options and its sending thread.  A batch that somebody waits for is
sent when all tasks that can run now have run, so that what they all send is one batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Any, ParamSpec

from ...records.encode import Headers
from .. import delivery as deliveries
from .. import producer, transactions
from ..arguments import seconds, topic_name
from ..delivery import ProducerBatch, Sent
from ..outgoing import PLAIN_BYTES, outgoing, plain_values
from ..troubles import Trouble
from .group import GroupConsumer
from .worker import Worker, made_as

P = ParamSpec("P")


class Delivery:
    """Reports what became of one message: ``await`` it.  Only the producer makes it.

    Raises, when it is awaited:
        ApplianceError: the message could not be delivered.
    """

    __slots__ = ("_core", "_ended")

    def __init__(self, core: deliveries.Delivery, ended: Callable[[deliveries.Delivery], asyncio.Future[None]]) -> None:
        self._core, self._ended = core, ended

    def __await__(self) -> Generator[Any, None, Sent]:
        if not self._core.done():
            yield from asyncio.shield(self._ended(self._core)).__await__()
        return self._core.result(0)

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def partition(self) -> int:
        return self._core.partition

    def done(self) -> bool:
        return self._core.done()


class Producer:
    """See the module's docstring.  For the tasks of one event loop."""

    @made_as(producer.Producer)
    def __init__(self, core: producer.Producer) -> None:
        self._core = core
        self._worker, self._learning, self._closing = (Worker("producer") for _ in range(3))
        """What waits for brokers; for a topic, which may not exist; for all the others to give up."""
        self._awaited: dict[ProducerBatch, asyncio.Future[None]] = {}
        self._hurried: list[ProducerBatch] = []

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *exit: Any) -> None:
        await self._finish(self._core.__exit__, *exit)

    # ---- sending

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Put one message into a batch.  ``timestamp``: ms since 1970; by default about now.

        Raises:
            MessageTooLarge, UnknownPartition: the topic does not take it.
            BufferFull: there was no room within ``block_ms_max``.
        """
        message = outgoing(topic, value, key, headers, timestamp, partition, None)
        deadline_s: float | None = None
        while (sent := self._core.offer(message)) is None:
            deadline_s = await self._make_way(topic, message.size, deadline_s)
        return Delivery(sent, self._ended)

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Sent:
        """As :meth:`send`, and wait until it is delivered.  Returns where it is stored."""
        return await (await self.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition))

    async def send_many(self, topic: str, values: Iterable[bytes]) -> list[Delivery]:
        """Send plain values.  Returns the delivery of the last value in each batch: wait for all of them.

        When this raises, or is cancelled, the values before the failing one have been sent.
        """
        topic_name(topic)
        checked = plain_values(values)
        sent: list[Delivery] = []
        start = 0
        deadline_s: float | None = None
        while start < len(checked):
            taken = self._core.offer_values(topic, checked, start)
            if taken is None:
                deadline_s = await self._make_way(topic, len(checked[start]) + PLAIN_BYTES, deadline_s)
            else:
                start, deadline_s = taken[0], None
                sent.append(Delivery(taken[1], self._ended))
        return sent

    async def _make_way(self, topic: str, size: int, deadline_s: float | None) -> float | None:
        worker = self._worker if self._core.knows(topic) else self._learning
        return await worker.call(self._core.make_way, topic, size, deadline_s)

    def _ended(self, delivery: deliveries.Delivery) -> asyncio.Future[None]:
        """The end of the message's batch, which is sent without lingering.  One future for all that wait for it."""
        batch, index = delivery
        ended = self._awaited.get(batch)
        if ended is None:
            loop = asyncio.get_running_loop()
            ended = loop.create_future()
            if not self._core.call_when_done(batch, index, lambda *_: _tell(loop, self._on_ended, batch)):
                ended.set_result(None)
                return ended
            self._awaited[batch] = ended
            if not self._hurried:
                loop.call_soon(self._hurry)
            self._hurried.append(batch)
        return ended

    def _hurry(self) -> None:
        batches, self._hurried = self._hurried, []
        self._core.hurry(batches)

    def _on_ended(self, batch: ProducerBatch) -> None:
        self._awaited.pop(batch).set_result(None)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything now; wait until all of it is delivered or has failed.

        Raises:
            RequestTimedOut: not within ``timeout`` seconds; the producer goes on trying.
        """
        await self._worker.call(self._core.flush, seconds(timeout))

    # ---- transactions

    def transaction(self, consumer: GroupConsumer | None = None) -> Transaction:
        """A transaction, as a context: see :mod:`appliance.client.transactions`.

        Args:
            consumer: a group consumer that commits nothing by itself; the transaction commits what it has handed out.
        """
        core = consumer.core if isinstance(consumer, GroupConsumer) else consumer
        return Transaction(self._core.transaction(core), self._worker)

    # ---- state, the end

    async def partitions(self, topic: str) -> range:
        """The partitions of the topic, from the last metadata; requests them if there are none."""
        return await self._learning.call(self._core.partitions, topic)

    def troubles(self) -> list[Trouble]:
        """What this producer waits for at the moment, the oldest first: brokers, partitions, metadata."""
        return self._core.troubles()

    @property
    def delivered(self) -> int:
        """How many messages have been delivered."""
        return self._core.delivered

    async def close(self, timeout: float | None = None) -> None:
        """Abort an open transaction and flush, for up to ``timeout`` seconds, then fail undelivered messages.

        Closing twice does nothing.

        Raises:
            ClientBroken: the producer broke.  Everything is closed nevertheless.
        """
        await self._finish(self._core.close, seconds(timeout))

    async def _finish(self, close: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await self._closing.finish(close, *args, **kwargs)
        finally:
            for worker in (self._worker, self._learning):
                worker.end()


class Transaction:
    """The context of ``producer.transaction()``.  Its end is waited for also by a task that is cancelled."""

    def __init__(self, core: transactions.Transaction, worker: Worker) -> None:
        self._core, self._worker = core, worker
        self._begun = False

    async def __aenter__(self) -> Transaction:
        begun = self._worker.begin(self._begin)
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            # Nobody enters the block, whose end would abort it.  That is called for before the first wait: whoever is
            # cancelled once more, as by a time-out and then by the end of a program, does not wait for it.
            undone = begun if self._worker.ended else self._worker.begin(self._undo)
            await asyncio.wait({undone})
            raise
        return self

    def _begin(self) -> None:
        self._core.__enter__()
        self._begun = True

    def _undo(self) -> None:
        if self._begun:
            self._core.__exit__(asyncio.CancelledError, None, None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = self._worker.begin(self._core.__exit__, kind, error, trace)
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            await asyncio.wait({ended})
            ended.result()  # what it says is more than that somebody did not want to wait
            raise


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[[ProducerBatch], object], batch: ProducerBatch) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(function, batch)
