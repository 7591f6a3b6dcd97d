"""appliance.processes.coordinator.transaction_writers: a writer that has started is told everything again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from appliance.errors import RequestTimedOut, UnknownPartition
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
from appliance.transactions.transaction import ProducerIdentity, TransactionPart

from ...support.scenarios import scenarios

A, B = TransactionPart("a", "0" * 32, 0), TransactionPart("a", "0" * 32, 1)
P = ProducerIdentity(7, 1)


class Supervisor:
    """Takes the messages; ``ongoing``: the transactions that the coordinator knows of; ``known``: whether it does."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ongoing: list[tuple[TransactionPart, ProducerIdentity]] = []
        self.known = True
        self.writers = TransactionWriters(self.sent.append, self.by_partition, lambda: self.known)

    def by_partition(self) -> dict[TopicPartition, list[ProducerIdentity]]:
        return {part.key: [one for other, one in self.ongoing if other is part] for part, _ in self.ongoing}

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
    opening = await started(supervisor.writers.open(A, P))
    message = supervisor.sent[-1]
    assert message == OpenTransaction(A.key, message.token, 7, 1)
    supervisor.writers.on_step(TransactionStep(A.key, message.token - 1, "StorageFault"))  # of an earlier coordinator
    assert not opening.done()
    supervisor.answer()
    await opening
    marking = await started(supervisor.writers.mark(A, P, 3, True, 1_000, inherited=False))
    assert supervisor.sent[-1] == WriteMarker(A.key, message.token + 1, 7, 1, 3, True, 1_000, False)
    supervisor.answer()
    await marking


@scenario
async def test_errors_have_the_name_of_their_class(supervisor: Supervisor) -> None:
    opening = await started(supervisor.writers.open(A, P))
    supervisor.answer("UnknownPartition")
    with pytest.raises(UnknownPartition):
        await opening
    marking = await started(supervisor.writers.mark(A, P, 3, False, 1_000, inherited=False))
    supervisor.answer("StaleProducerEpoch")
    await marking  # a newer epoch was there: this transaction is over


@scenario
async def test_a_writer_that_starts_is_told_what_is_open_and_not_answered(supervisor: Supervisor) -> None:
    supervisor.ongoing = [(A, ProducerIdentity(8, 0)), (B, ProducerIdentity(9, 0))]
    marking = await started(supervisor.writers.mark(A, P, 3, True, 1_000, inherited=False))
    other = await started(supervisor.writers.mark(B, P, 3, True, 1_000, inherited=False))
    marker = supervisor.sent[0]
    supervisor.sent.clear()
    supervisor.writers.on_writer_started(WriterStarted(A.key, 555))
    supervisor.writers.tell_waiting()
    token = supervisor.sent[0].token
    assert supervisor.sent == [OpenTransaction(A.key, token, 8, 0), marker, TransactionsSent(A.key, 555)]
    supervisor.writers.on_step(TransactionStep(A.key, marker.token, ""))
    await marking
    assert not other.done()
    other.cancel()


@scenario
async def test_what_has_begun_meanwhile_is_not_aborted_by_a_step_that_is_sent_again(supervisor: Supervisor) -> None:
    """The writer may have carried out the first one, and taken batches of another transaction, before it died."""
    known = {7}
    aborting = await started(supervisor.writers.abort_hanging(A.key, lambda: known))
    first = supervisor.sent[-1]
    assert first == AbortHanging(A.key, first.token, [7])
    known.add(8)
    supervisor.writers.on_writer_started(WriterStarted(A.key, 555))
    supervisor.writers.tell_waiting()
    assert supervisor.sent[-2] == AbortHanging(A.key, first.token, [7, 8])
    supervisor.writers.on_step(TransactionStep(A.key, first.token, ""))
    await aborting


@scenario
async def test_a_writer_waits_until_it_is_known_what_is_open(supervisor: Supervisor) -> None:
    supervisor.known = False
    supervisor.writers.on_writer_started(WriterStarted(A.key, 1))
    supervisor.writers.on_writer_started(WriterStarted(A.key, 2))
    supervisor.writers.tell_waiting()
    assert supervisor.sent == []
    supervisor.known = True
    supervisor.writers.tell_waiting()
    supervisor.writers.tell_waiting()
    assert supervisor.sent == [TransactionsSent(TopicPartition("a", 0), 2)], "only the last one lives"


@scenario
async def test_a_writer_that_never_answers(supervisor: Supervisor) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_writers, "STEP_MS_MAX", 1)
        with pytest.raises(RequestTimedOut):
            await supervisor.writers.open(A, P)
    supervisor.answer()  # too late: nobody waits
