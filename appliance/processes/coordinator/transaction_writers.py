"""Tells the writers of partitions which transactions are open there, and has them write markers.

Each step is a message with a token; the answer has the token, too (``processes/messages.py``).  A writer that dies
takes unanswered steps with it and forgets what it was told.  So when one has started it is sent everything again: the
transactions that are Ongoing in its partition, and the steps that are not answered, as they are by now: the writer that
died may have taken batches of transactions which have begun after the step.  All of these may be repeated.
Before it is known here what is open, a writer waits, and has its clients wait.

What is open is asked of all coordinators (``all_at``), which takes time, and is old when it comes: a transaction may
have ended meanwhile.  So steps that come for this partition wait, and are sent behind it: the marker of one that was
Ongoing when it was asked for comes after its opening.  One that came earlier came when the decision was stored, and
then nobody says any more that the transaction is Ongoing.

:class:`TransactionWriters` are those of this appliance, :class:`SpreadWriters` those of all appliances of the ensemble.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from ...catalog import Topic
from ...errors import (
    ApplianceError,
    NotCoordinator,
    RequestTimedOut,
    StaleProducerEpoch,
    Unavailable,
    UnknownPartition,
    WriterGone,
    named,
)
from ...names import TopicPartition
from ...transactions.store import NO_SLOT, Lead, OpenProducer
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
from .peer_transactions import PeerTransactions

STEP_MS_MAX: Final = 15_000
"""How long an answer is waited for; whoever asks for a marker asks again."""
RETRY_S: Final = 0.5

Step = OpenTransaction | WriteMarker | AbortHanging
Make = Callable[[int, Collection[int]], Step]
"""Makes a step of its token, and of the producers whose transactions in the partition somebody will end."""

log = logging.getLogger(__name__)


class TransactionWriters:
    """The writers of this appliance's partitions.

    Args:
        all_at: who is in transactions in some partitions; raises Unavailable while that is not known.
    """

    def __init__(
        self,
        send: Callable[[ToSupervisor], None],
        all_at: Callable[[Collection[TopicPartition]], Awaitable[list[OpenProducer]]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._send, self._all_at, self._spawn = send, all_at, spawn
        self._steps: dict[int, tuple[TopicPartition, Make, asyncio.Future[str]]] = {}
        """What is not answered yet, by token, in order: the step is made when it is sent."""
        self._waiting: dict[TopicPartition, int] = {}
        """Writers that have started and have not been told yet.  Negative: none has, steps only wait for what is open.

        Each such wait has a number of its own: what was asked for one that was given up is not told to the next.
        """
        self._waits = itertools.count(1)
        self._aborting: Counter[TopicPartition] = Counter()
        """How many wait for :meth:`abort_hanging`."""
        self._epochs: dict[int, int] = {}
        """By slot, the highest epoch of a coordinator that has taken a step."""
        self._telling = False
        self._ask_again = asyncio.Event()
        # Tokens differ between incarnations: an answer to a step of a killed coordinator is dropped.
        self._tokens = itertools.count(os.getpid() << 32)

    async def open(self, part: TransactionPart, producer: ProducerIdentity, lead: Lead) -> None:
        """Of a partition that there is, and that this appliance leads."""
        self._check(lead)
        try:
            await self._carry_out(part.key, lambda token, known_producers: OpenTransaction(part.key, token, *producer))
        except UnknownPartition:  # of a topic that another appliance has made just now
            raise WriterGone(f"{part.key} is not open yet") from None

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        lead: Lead,
        committed: bool,
        decided_ms: int,
        inherited: bool,
    ) -> None:
        def marker(token: int, known_producers: Collection[int]) -> WriteMarker:
            return WriteMarker(part.key, token, *producer, lead.epoch, committed, decided_ms, inherited)

        self._check(lead)
        try:
            await self._carry_out(part.key, marker)
        except StaleProducerEpoch:
            pass  # a newer epoch has been there, so this transaction has ended before

    async def abort_hanging(self, partition: TopicPartition) -> None:
        """End what is open in a partition's log but for the transactions that somebody will end.

        Raises:
            Unavailable: not known whether it has been done; it is safe to ask again.
            UnknownPartition: there is none.
        """
        self._waiting.setdefault(partition, -next(self._waits))
        self._aborting[partition] += 1
        aborting = self._carry_out(
            partition, lambda token, known_producers: AbortHanging(partition, token, sorted(known_producers))
        )
        self.tell_waiting()
        try:
            await aborting
        finally:
            self._aborting -= Counter([partition])
            if partition not in self._aborting and self._waiting.get(partition, 0) < 0:
                self._wait_no_more(partition)

    def _wait_no_more(self, partition: TopicPartition) -> None:
        """Whoever has asked for what is open there has given up: the steps that waited for it are sent."""
        del self._waiting[partition]
        self._send_steps(partition, ())

    def _check(self, lead: Lead) -> None:
        """Check that nobody has taken the slot over: its steps here may be those of a later transaction.

        Raises:
            NotCoordinator: who takes the step, here or elsewhere, does not know yet that it has lost its claim.
        """
        if lead.slot == NO_SLOT:
            return
        if lead.epoch < self._epochs.get(lead.slot, 0):
            raise NotCoordinator("another broker coordinates the transaction now")
        self._epochs[lead.slot] = lead.epoch

    def forget_epochs(self) -> None:
        """With a new session there may be another ZooKeeper, whose epochs begin anew.  What was ours is given up."""
        self._epochs.clear()

    async def _carry_out(self, partition: TopicPartition, make: Make) -> None:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        token = next(self._tokens)
        self._steps[token] = partition, make, answer
        try:
            if partition not in self._waiting:
                self._send(make(token, ()))
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
        """Tell the writers that have started what is open in their partitions, as soon as that is known."""
        self._ask_again.set()
        if self._waiting and not self._telling:
            self._telling = True
            self._spawn(self._tell())

    async def _tell(self) -> None:
        try:
            while self._waiting:
                self._ask_again.clear()
                asked = dict(self._waiting)
                try:
                    rows = await self._all_at(asked)
                except Unavailable as error:
                    log.info("writers wait: %s", error)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RETRY_S):
                            await self._ask_again.wait()
                    continue
                self._tell_these(asked, rows)
        finally:
            self._telling = False

    def _tell_these(self, asked: Mapping[TopicPartition, int], rows: Collection[OpenProducer]) -> None:
        by_partition: dict[TopicPartition, list[OpenProducer]] = defaultdict(list)
        for row in rows:
            by_partition[row.partition].append(row)
        for partition, writer in asked.items():
            if self._waiting.get(partition) != writer:
                continue  # another one has started since: what it needs is asked for again
            del self._waiting[partition]
            opened = by_partition[partition]
            for row in opened:
                if row.is_ongoing:
                    self._send(OpenTransaction(partition, next(self._tokens), *row.producer))
            self._send_steps(partition, {row.producer.id for row in opened})
            if writer > 0:
                self._send(TransactionsSent(partition, writer))

    def _send_steps(self, partition: TopicPartition, known_producers: Collection[int]) -> None:
        """Send the steps of a partition that are not answered, in order.

        A transaction that has begun since it was asked which are known is known by its opening.
        """
        known = set(known_producers)
        for token, (of, make, answer) in list(self._steps.items()):
            if of == partition and not answer.done():
                step = make(token, known)
                if isinstance(step, OpenTransaction):
                    known.add(step.producer_id)
                self._send(step)


class _Step(NamedTuple):
    """A step that goes to one appliance, of one transaction."""

    broker_id: int
    producer: ProducerIdentity
    lead: Lead
    marker: tuple[bool, int, bool] | None


class SpreadWriters:
    """The coordinator's ``transactions.store.MarkerWriters``: ``local`` ones, and those of others, through ``peers``.

    Steps of one transaction at one appliance that come in one turn of the loop go there together.
    """

    def __init__(
        self,
        broker_id: int,
        local: TransactionWriters,
        peers: PeerTransactions,
        topics: Callable[[], Mapping[str, Topic]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._broker_id, self._local, self._peers = broker_id, local, peers
        self._topics, self._spawn = topics, spawn
        self._steps: dict[_Step, list[tuple[TransactionPart, asyncio.Future[None]]]] = defaultdict(list)

    async def open(self, part: TransactionPart, producer: ProducerIdentity, lead: Lead) -> None:
        broker_id = self._leader(part)
        if broker_id == self._broker_id:
            await self._local.open(part, producer, lead)
        else:
            await self._elsewhere(_Step(broker_id, producer, lead, None), part)

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        lead: Lead,
        committed: bool,
        decided_ms: int,
        inherited: bool,
    ) -> None:
        broker_id = self._leader(part)
        if broker_id == self._broker_id:
            await self._local.mark(part, producer, lead, committed, decided_ms, inherited)
        else:
            step = _Step(broker_id, producer, lead, (committed, decided_ms, inherited))
            try:
                await self._elsewhere(step, part)
            except StaleProducerEpoch:
                pass  # as of a local one

    async def abort_hanging(self, partition: TopicPartition) -> None:
        await self._local.abort_hanging(partition)

    def _leader(self, part: TransactionPart) -> int:
        topic = self._topics().get(part.topic)
        if topic is None or topic.id != part.topic_id or part.partition not in topic.partitions:
            raise UnknownPartition(f"there is no partition {part.topic}-{part.partition}")
        return topic.leader(part.partition)

    async def _elsewhere(self, step: _Step, part: TransactionPart) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if step not in self._steps:
            self._spawn(self._send(step))
        self._steps[step].append((part, done))
        await done

    async def _send(self, step: _Step) -> None:
        await asyncio.sleep(0)  # the others of this turn
        taken = self._steps.pop(step)
        errors: list[ApplianceError | None]
        try:
            parts = [part for part, _ in taken]
            errors = await self._peers.step(step.broker_id, parts, step.producer, step.lead, step.marker)
        except ApplianceError as error:
            errors = [error] * len(taken)
        for (_, done), fault in zip(taken, errors, strict=True):
            if done.done():  # who waited was cancelled
                continue
            if fault is None:
                done.set_result(None)
            else:
                done.set_exception(fault)
