"""Tells the writers of partitions which transactions are open there, and has them write markers.

Each step is a message with a token; the answer has the token, too (``processes/messages.py``).  A writer that dies
takes unanswered steps with it and forgets what it was told.  So when one has started it is sent everything again: the
transactions that are Ongoing in its partition, and the steps that are not answered.  All of these may be repeated.
Before it is known here what is open, a writer waits, and has its clients wait.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ...errors import RequestTimedOut, StaleProducerEpoch, named
from ...names import TopicPartition
from ...transactions.transaction import Part, Producer
from ..messages import OpenTransaction, ToSupervisor, TransactionsSent, TransactionStep, WriteMarker, WriterStarted

STEP_MS_MAX: Final = 15_000
"""How long an answer is waited for; whoever asks for a marker asks again."""

Step = OpenTransaction | WriteMarker


class TransactionWriters:
    """The coordinator's ``transactions.store.Writers``.

    Args:
        ongoing: who is in a transaction in each partition.
        known: whether ``ongoing`` can be asked.
    """

    def __init__(
        self,
        send: Callable[[ToSupervisor], None],
        ongoing: Callable[[], Mapping[TopicPartition, Sequence[Producer]]],
        known: Callable[[], bool],
    ) -> None:
        self._send, self._ongoing, self._known = send, ongoing, known
        self._steps: dict[int, tuple[Step, asyncio.Future[str]]] = {}
        """What is not answered yet, by token, in order."""
        self._waiting: dict[TopicPartition, int] = {}
        """Writers that have started and have not been told yet."""
        # Tokens differ between incarnations: an answer to a step of a killed coordinator is dropped.
        self._tokens = itertools.count(os.getpid() << 32)

    async def open(self, part: Part, producer: Producer) -> None:
        await self._carry_out(OpenTransaction(part.key, next(self._tokens), *producer))

    async def mark(self, part: Part, producer: Producer, coordinator_epoch: int, committed: bool) -> None:
        try:
            await self._carry_out(WriteMarker(part.key, next(self._tokens), *producer, coordinator_epoch, committed))
        except StaleProducerEpoch:
            pass  # a newer epoch has been there, so this transaction has ended before

    async def _carry_out(self, step: Step) -> None:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._steps[step.token] = step, answer
        self._send(step)
        try:
            async with asyncio.timeout(STEP_MS_MAX / 1000):
                error = await answer
        except TimeoutError:
            raise RequestTimedOut(f"the writer of {step.partition} has not answered for {STEP_MS_MAX} ms") from None
        finally:
            del self._steps[step.token]
        if error:
            raise named(error, f"{step.partition} takes no part in a transaction now")

    # ---- messages of the supervisor

    def on_step(self, message: TransactionStep) -> None:
        _, answer = self._steps.get(message.token, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(message.error)

    def on_writer_started(self, message: WriterStarted) -> None:
        """Note it; :meth:`tell_waiting` tells it, once for all that have started."""
        self._waiting[message.partition] = message.writer

    def tell_waiting(self) -> None:
        """Tell the writers that have started what is open in their partitions, if that is known by now."""
        if not self._waiting or not self._known():
            return
        ongoing = self._ongoing()
        for partition, writer in self._waiting.items():
            for producer in ongoing.get(partition, ()):
                self._send(OpenTransaction(partition, next(self._tokens), *producer))
            for step, answer in list(self._steps.values()):
                if step.partition == partition and not answer.done():
                    self._send(step)
            self._send(TransactionsSent(partition, writer))
        self._waiting.clear()
