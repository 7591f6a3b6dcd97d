"""Tells the writers of partitions which transactions are open there, and has them write markers.

Each step is a message with a token; the answer has the token, too (``processes/messages.py``).  A writer that dies
takes unanswered steps with it and forgets what it was told.  So when one has started it is sent everything again: the
transactions that are Ongoing in its partition, and the steps that are not answered, as they are by now: the writer that
died may have taken batches of transactions which have begun after the step.  All of these may be repeated.
Before it is known here what is open, a writer waits, and has its clients wait.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ...errors import ApplianceError, RequestTimedOut, StaleProducerEpoch, named
from ...names import TopicPartition
from ...transactions.transaction import ProducerIdentity, TransactionPart
from ..messages import (
    AbortHanging,
    OpenTransaction,
    ToSupervisor,
    TransactionsSent,
    TransactionStep,
    WriteMarker,
    WriterStarted,
)

STEP_MS_MAX: Final = 15_000
"""How long an answer is waited for; whoever asks for a marker asks again."""

Step = OpenTransaction | WriteMarker | AbortHanging


class TransactionWriters:
    """The coordinator's ``transactions.store.MarkerWriters``.

    Args:
        ongoing: who is in a transaction in each partition.
        is_loaded: whether ``ongoing`` can be asked.
    """

    def __init__(
        self,
        send: Callable[[ToSupervisor], None],
        ongoing: Callable[[], Mapping[TopicPartition, Sequence[ProducerIdentity]]],
        is_loaded: Callable[[], bool],
    ) -> None:
        self._send, self._ongoing, self._is_loaded = send, ongoing, is_loaded
        self._steps: dict[int, tuple[TopicPartition, Callable[[], Step], asyncio.Future[str]]] = {}
        """What is not answered yet, by token, in order: the step is made when it is sent."""
        self._waiting: dict[TopicPartition, int] = {}
        """Writers that have started and have not been told yet."""
        # Tokens differ between incarnations: an answer to a step of a killed coordinator is dropped.
        self._tokens = itertools.count(os.getpid() << 32)

    async def open(self, part: TransactionPart, producer: ProducerIdentity) -> None:
        await self._carry_out(part.key, lambda token: OpenTransaction(part.key, token, *producer))

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        coordinator_epoch: int,
        committed: bool,
        decided_ms: int,
        inherited: bool,
    ) -> None:
        def marker(token: int) -> WriteMarker:
            return WriteMarker(part.key, token, *producer, coordinator_epoch, committed, decided_ms, inherited)

        try:
            await self._carry_out(part.key, marker)
        except StaleProducerEpoch:
            pass  # a newer epoch has been there, so this transaction has ended before

    async def abort_hanging(self, partition: TopicPartition, known_producers: Callable[[], Collection[int]]) -> None:
        """End what is open in a partition's log but for the transactions of ``known_producers`` at that time.

        ``known_producers`` may raise an ApplianceError: then nothing is aborted.

        Raises:
            Unavailable: not known whether it has been done; it is safe to ask again.
            UnknownPartition: there is none.
        """
        await self._carry_out(partition, lambda token: AbortHanging(partition, token, sorted(known_producers())))

    async def _carry_out(self, partition: TopicPartition, make: Callable[[int], Step]) -> None:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        token = next(self._tokens)
        self._steps[token] = partition, lambda: make(token), answer
        try:
            self._send(make(token))
            async with asyncio.timeout(STEP_MS_MAX / 1000):
                error = await answer
        except TimeoutError:
            raise RequestTimedOut(f"the writer of {partition} has not answered for {STEP_MS_MAX} ms") from None
        finally:
            del self._steps[token]
        if error:
            raise named(error, f"{partition} takes no part in a transaction now")

    # ---- messages of the supervisor

    def on_step(self, message: TransactionStep) -> None:
        *_, answer = self._steps.get(message.token, (None,))
        if answer is not None and not answer.done():
            answer.set_result(message.error)

    def on_writer_started(self, message: WriterStarted) -> None:
        """Note it; :meth:`tell_waiting` tells it, once for all that have started."""
        self._waiting[message.partition] = message.writer

    def tell_waiting(self) -> None:
        """Tell the writers that have started what is open in their partitions, if that is known by now."""
        if not self._waiting or not self._is_loaded():
            return
        ongoing = self._ongoing()
        for partition, writer in self._waiting.items():
            for producer in ongoing.get(partition, ()):
                self._send(OpenTransaction(partition, next(self._tokens), *producer))
            for of, make, answer in list(self._steps.values()):
                if of == partition and not answer.done():
                    try:
                        self._send(make())
                    except ApplianceError as error:  # of ``known``
                        answer.set_exception(error)
            self._send(TransactionsSent(partition, writer))
        self._waiting.clear()
