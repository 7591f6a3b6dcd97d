"""appliance.processes.coordinator.transaction_writers: a writer that has started is told everything again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

import pytest

from appliance.errors import NotCoordinator, RequestTimedOut, StorageFault, WriterGone, ZooKeeperAway
from appliance.names import TopicPartition
from appliance.processes.coordinator import transaction_writers
from appliance.processes.coordinator.transaction_writers import TransactionWriters
from appliance.processes.messages import (
    AbortHanging,
    OpenTransaction,
    TransactionsSent,
    TransactionStep,
    WriteMarker,
    WriterStarted,
)
from appliance.transactions.store import NO_SLOT, Lead, OpenProducer
from appliance.transactions.transaction import ProducerIdentity, TransactionPart

from ...support.scenarios import scenarios

A, B = TransactionPart("a", "0" * 32, 0), TransactionPart("a", "0" * 32, 1)
P = ProducerIdentity(7, 1)
LEAD = Lead(0, 3)


class Supervisor:
    """Takes the messages; ``opened``: the transactions that coordinators know of; ``known``: set if they can say so."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.opened: list[OpenProducer] = []
        self.known = asyncio.Event()
        self.known.set()
        self.away = False
        self.writers = TransactionWriters(self.sent.append, self.all_at, self.spawn)
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def all_at(self, partitions: Collection[TopicPartition]) -> list[OpenProducer]:
        rows = [row for row in self.opened if row.partition in partitions]
        await self.known.wait()
        if self.away:
            raise ZooKeeperAway("a coordinator does not answer")
        return rows

    async def told(self) -> None:
        self.writers.tell_waiting()
        await asyncio.gather(*self.tasks)

    def answer(self, error: str = "") -> None:
        """Answer the last message."""
        self.writers.on_step(TransactionStep(self.sent[-1].partition, self.sent[-1].token, error))


async def started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    await asyncio.sleep(0)
    return task


scenario = scenarios(Supervisor)


@scenario
async def test_a_step_is_done_when_it_is_answered(supervisor: Supervisor) -> None:
    opening = await started(supervisor.writers.open(A, P, LEAD))
    message = supervisor.sent[-1]
    assert message == OpenTransaction(A.key, message.token, 7, 1)
    supervisor.writers.on_step(TransactionStep(A.key, message.token - 1, "StorageFault"))  # of an earlier coordinator
    assert not opening.done()
    supervisor.answer()
    await opening
    marking = await started(supervisor.writers.mark(A, P, LEAD, True, 1_000, inherited=False))
    assert supervisor.sent[-1] == WriteMarker(A.key, message.token + 1, 7, 1, 3, True, 1_000, False)
    supervisor.answer()
    await marking


@scenario
async def test_errors_have_the_name_of_their_class(supervisor: Supervisor) -> None:
    opening = await started(supervisor.writers.open(A, P, LEAD))
    supervisor.answer("StorageFault")
    with pytest.raises(StorageFault):
        await opening
    opening = await started(supervisor.writers.open(A, P, LEAD))
    supervisor.answer("UnknownPartition")
    with pytest.raises(WriterGone):
        await opening  # of a topic that was made elsewhere: the client asks again
    marking = await started(supervisor.writers.mark(A, P, LEAD, False, 1_000, inherited=False))
    supervisor.answer("StaleProducerEpoch")
    await marking  # a newer epoch was there: this transaction is over


@scenario
async def test_a_writer_that_starts_is_told_what_is_open_and_not_answered(supervisor: Supervisor) -> None:
    supervisor.opened = [
        OpenProducer(A.key, ProducerIdentity(8, 0), True),
        OpenProducer(A.key, ProducerIdentity(6, 0), False),
        OpenProducer(B.key, ProducerIdentity(9, 0), True),
    ]
    marking = await started(supervisor.writers.mark(A, P, LEAD, True, 1_000, inherited=False))
    other = await started(supervisor.writers.mark(B, P, LEAD, True, 1_000, inherited=False))
    marker = supervisor.sent[0]
    supervisor.sent.clear()
    supervisor.writers.on_writer_started(WriterStarted(A.key, 555))
    await supervisor.told()
    token = supervisor.sent[0].token
    assert supervisor.sent == [OpenTransaction(A.key, token, 8, 0), marker, TransactionsSent(A.key, 555)]
    supervisor.writers.on_step(TransactionStep(A.key, marker.token, ""))
    await marking
    assert not other.done()
    other.cancel()


@scenario
async def test_who_has_lost_its_slot_takes_no_more_steps(supervisor: Supervisor) -> None:
    """Goal: a marker of before does not end a later transaction, also where there was nothing for the one between."""
    later = Lead(LEAD.slot, LEAD.epoch + 1)
    for lead in (LEAD, later, later._replace(slot=1, epoch=1), Lead(NO_SLOT, 0)):
        opening = await started(supervisor.writers.open(A, P, lead))
        supervisor.answer()
        await opening
    for refused in (
        supervisor.writers.open(A, P, LEAD),
        supervisor.writers.mark(A, P, LEAD, True, 1_000, inherited=False),
    ):
        with pytest.raises(NotCoordinator):
            await refused
    supervisor.writers.forget_epochs()
    opening = await started(supervisor.writers.open(A, P, LEAD))
    supervisor.answer()
    await opening


@scenario
async def test_what_has_begun_meanwhile_is_not_aborted_by_a_step_that_is_sent_again(supervisor: Supervisor) -> None:
    """The writer may have carried out the first one, and taken batches of another transaction, before it died."""
    supervisor.opened = [OpenProducer(A.key, P, False)]
    aborting = await started(supervisor.writers.abort_hanging(A.key))
    await supervisor.told()
    first = supervisor.sent[-1]
    assert first == AbortHanging(A.key, first.token, [7])
    supervisor.opened.append(OpenProducer(A.key, ProducerIdentity(8, 0), True))
    supervisor.writers.on_writer_started(WriterStarted(A.key, 555))
    await supervisor.told()
    assert supervisor.sent[-2:] == [AbortHanging(A.key, first.token, [7, 8]), TransactionsSent(A.key, 555)]
    supervisor.writers.on_step(TransactionStep(A.key, first.token, ""))
    await aborting


@scenario
async def test_what_has_begun_since_it_was_asked_what_is_known_is_not_aborted(supervisor: Supervisor) -> None:
    supervisor.known.clear()
    first = await started(supervisor.writers.abort_hanging(A.key))
    await asyncio.sleep(0)  # it is asked now
    opening = await started(supervisor.writers.open(A, P, LEAD))
    second = await started(supervisor.writers.abort_hanging(A.key))
    supervisor.known.set()
    await supervisor.told()
    before, opened, after = supervisor.sent
    assert (before.known_producers, after.known_producers) == ([], [P.id])
    assert isinstance(opened, OpenTransaction)
    for message in supervisor.sent:
        supervisor.writers.on_step(TransactionStep(A.key, message.token, ""))
    await asyncio.gather(first, opening, second)


@pytest.mark.parametrize("ending", ["cancelled", "timed out"])
def test_an_abort_that_is_given_up_keeps_no_other_step_waiting(ending: str) -> None:
    """Goal: while it is not known what is open, only who needs that waits for it."""

    async def work() -> None:
        supervisor = Supervisor()
        supervisor.away = True
        if ending == "timed out":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(transaction_writers, "STEP_MS_MAX", 1)
                with pytest.raises(RequestTimedOut):
                    await supervisor.writers.abort_hanging(A.key)
        first = await started(supervisor.writers.abort_hanging(A.key))
        second = await started(supervisor.writers.abort_hanging(A.key))
        opening = await started(supervisor.writers.open(A, P, LEAD))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert supervisor.sent == [], "another one waits still"
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        (message,) = supervisor.sent
        assert message == OpenTransaction(A.key, message.token, *P)
        supervisor.answer()
        await opening
        marking = await started(supervisor.writers.mark(A, P, LEAD, True, 1_000, inherited=False))
        assert isinstance(supervisor.sent[-1], WriteMarker), "what comes later does not wait either"
        supervisor.answer()
        await marking
        await supervisor.told()  # nothing is asked any more, though nothing is known

    asyncio.run(asyncio.wait_for(work(), 60))


@scenario
async def test_what_was_asked_for_an_abort_that_was_given_up_is_not_told_to_the_next(supervisor: Supervisor) -> None:
    """Goal: a transaction that was opened in between is not ended."""
    supervisor.known.clear()
    first = await started(supervisor.writers.abort_hanging(A.key))
    await asyncio.sleep(0)  # it is being asked what is open: nothing is
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    opening = await started(supervisor.writers.open(A, P, LEAD))
    supervisor.answer()
    await opening
    supervisor.opened = [OpenProducer(A.key, P, True)]
    second = await started(supervisor.writers.abort_hanging(A.key))
    supervisor.known.set()
    await supervisor.told()
    assert supervisor.sent[-1] == AbortHanging(A.key, supervisor.sent[-1].token, [P.id])
    supervisor.answer()
    await second


@scenario
async def test_what_comes_while_it_is_asked_what_is_open_comes_behind_that(supervisor: Supervisor) -> None:
    """The answer is old: the transaction has ended since, and its marker must not come before its opening."""
    supervisor.opened = [OpenProducer(A.key, P, True)]
    supervisor.known.clear()
    supervisor.writers.on_writer_started(WriterStarted(A.key, 555))
    supervisor.writers.tell_waiting()
    await asyncio.sleep(0)
    marking = await started(supervisor.writers.mark(A, P, LEAD, True, 1_000, inherited=False))
    other = await started(supervisor.writers.open(B, P, LEAD))
    assert [message.partition for message in supervisor.sent] == [B.key], "nothing keeps another partition waiting"
    supervisor.known.set()
    await supervisor.told()
    kinds = [type(message) for message in supervisor.sent]
    assert kinds == [OpenTransaction, OpenTransaction, WriteMarker, TransactionsSent]
    supervisor.writers.on_step(TransactionStep(A.key, supervisor.sent[2].token, ""))
    await marking
    other.cancel()


@scenario
async def test_a_writer_that_starts_while_the_one_before_is_told_is_asked_for_again(supervisor: Supervisor) -> None:
    supervisor.known.clear()
    supervisor.writers.on_writer_started(WriterStarted(A.key, 1))
    supervisor.writers.tell_waiting()
    await asyncio.sleep(0)
    supervisor.opened = [OpenProducer(A.key, P, True)]  # begun behind the first question
    supervisor.writers.on_writer_started(WriterStarted(A.key, 2))
    supervisor.known.set()
    await supervisor.told()
    token = supervisor.sent[0].token
    assert supervisor.sent == [OpenTransaction(A.key, token, *P), TransactionsSent(A.key, 2)]


@scenario
async def test_a_writer_waits_until_it_is_known_what_is_open(supervisor: Supervisor) -> None:
    supervisor.away = True
    supervisor.writers.on_writer_started(WriterStarted(A.key, 1))
    supervisor.writers.on_writer_started(WriterStarted(A.key, 2))
    supervisor.writers.tell_waiting()
    await asyncio.sleep(0.01)
    assert supervisor.sent == []
    supervisor.away = False
    await supervisor.told()
    await supervisor.told()
    assert supervisor.sent == [TransactionsSent(TopicPartition("a", 0), 2)], "only the last one lives"


@scenario
async def test_a_writer_that_never_answers(supervisor: Supervisor) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_writers, "STEP_MS_MAX", 1)
        with pytest.raises(RequestTimedOut):
            await supervisor.writers.open(A, P, LEAD)
    supervisor.answer()  # too late: nobody waits
