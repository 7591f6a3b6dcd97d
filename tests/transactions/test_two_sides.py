"""Every interleaving of the deaths of two appliances, with each message of a transaction that both take part in.

The coordinator of the id and the leader of partition A is one side; the leader of B and the coordinator of the group
the other.  A side dies before a message has an effect, or behind it, so that its answer is lost; it is back at once,
without what it had in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import combinations, product

import pytest

from appliance.errors import BrokerAway, Unavailable
from appliance.transactions import transaction_coordinator
from appliance.transactions.store import Lead
from appliance.transactions.transaction import (
    ENDING,
    PendingOffset,
    ProducerIdentity,
    Transaction,
    TransactionPart,
    TransactionState,
)
from appliance.wire.kafka.codes import Code

from ..support.fake_transactions import MINUTE_MS, TOPIC_ID, FakeTransactions

A, B = TransactionPart("a", TOPIC_ID, 0), TransactionPart("a", TOPIC_ID, 1)
COORDINATOR, PEER = "coordinator", "peer"
FATES = list(product((COORDINATOR, PEER), (False, True)))
"""Who dies at a message, and whether that has had its effect."""
DATA, COMMIT, ABORT = "data", "commit", "abort"
AGAIN = {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.CONCURRENT_TRANSACTIONS}
Plan = dict[int, tuple[str, bool]]


class Log:
    """A partition with its writer: ``rows`` outlive it, ``producers`` and ``told`` do not."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.forget()

    def forget(self) -> None:
        self.producers: set[ProducerIdentity] = set()
        self.told = False

    @property
    def is_open(self) -> bool:
        return bool(self.rows) and self.rows[-1] == DATA

    def mark(self, producer: ProducerIdentity, marker: str) -> None:
        self.producers.discard(producer)
        if self.is_open:
            self.rows.append(marker)


class TwoSides(FakeTransactions):
    """``plan``: who dies at which message."""

    def __init__(self, plan: Plan) -> None:
        self.logs = {A: Log(), B: Log()}
        self.plan, self.messages, self.handed_over = plan, 0, 0
        super().__init__()
        self.elsewhere = {"g"}

    async def message(self, effect: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(0)
        who, is_done = self.plan.get(self.messages, ("", True))
        self.messages += 1
        if is_done:
            await effect()
        if who:
            self.die(who)
            raise BrokerAway(f"the {who} is dead")

    def die(self, who: str) -> None:
        if who == PEER:
            self.logs[B].forget()
        else:
            self.logs[A].forget()
            self.kill()
            self.start()

    async def put(self, transactional_id: str, transaction: Transaction | None) -> None:
        async def effect() -> None:
            assert transaction is not None
            self.stored[transactional_id] = transaction

        await self.message(effect)

    async def complete(self, transactional_id: str, before: Transaction, after: Transaction) -> None:
        assert not before.offsets, "those of the group are taken before"
        await self.put(transactional_id, after)

    async def hand_over(self, transactional_id: str, transaction: Transaction, group: str) -> None:
        async def effect() -> None:
            before = self.stored[transactional_id]
            if before.offsets:
                assert before.state is TransactionState.PREPARE_COMMIT
                self.handed_over += 1
                self.stored[transactional_id] = before.without(group)

        await self.message(effect)

    async def open(self, part: TransactionPart, producer: ProducerIdentity, lead: Lead) -> None:
        async def effect() -> None:
            assert self.stored["x"].state is TransactionState.ONGOING, "it is stored before"
            self.logs[part].producers.add(producer)

        await self.message(effect)

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        lead: Lead,
        committed: bool,
        decided_ms: int,
        inherited: bool,
    ) -> None:
        async def effect() -> None:
            assert self.stored["x"].state in ENDING, "it is decided before"
            self.logs[part].mark(producer, COMMIT if committed else ABORT)

        await self.message(effect)

    # -- a client

    async def until_done(self, ask: Callable[[], Awaitable[Code]]) -> Code:
        while (code := await ask()) in AGAIN:
            await asyncio.sleep(0)
        return code

    async def begin_at_last(self) -> ProducerIdentity:
        while True:
            outcome = await self.coordinator.initialise("x", MINUTE_MS, None)
            if isinstance(outcome, Transaction):
                return outcome.producer
            assert outcome in AGAIN

    async def write(self, part: TransactionPart, producer: ProducerIdentity) -> bool:
        """Whether the batch is taken: a writer that does not know asks who is in a transaction."""
        log = self.logs[part]
        while not log.is_open and producer not in log.producers and not log.told:
            try:
                rows = await self.coordinator.all_at([part.key])
            except Unavailable:
                continue
            log.producers |= {row.producer for row in rows if row.is_ongoing}
            log.told = True
        taken = log.is_open or producer in log.producers
        if taken:
            log.rows.append(DATA)
        return taken

    async def transact(self, committed: bool) -> None:
        """One transaction in both partitions, with an offset; then its producer is late with a batch in each."""
        producer = await self.begin_at_last()
        assert await self.until_done(lambda: self.coordinator.add_partitions("x", producer, [A, B])) is Code.NONE
        assert all([await self.write(part, producer) for part in (A, B)])
        offset = PendingOffset("g", B, 7)
        assert await self.until_done(lambda: self.coordinator.add_group("x", producer, "g")) is Code.NONE
        assert await self.until_done(lambda: self.coordinator.add_offsets("x", producer, "g", [offset])) is Code.NONE
        assert await self.until_done(lambda: self.coordinator.end("x", producer, committed)) is Code.NONE
        while self.state() in ENDING:
            await asyncio.sleep(0)
        assert not any([await self.write(part, producer) for part in (A, B)]), "nothing comes behind a marker"
        assert await self.coordinator.all_pending("g") == set()


def plans(messages: int, deaths_max: int) -> Iterator[Plan]:
    for deaths in range(deaths_max + 1):
        for places in combinations(range(messages), deaths):
            for fates in product(FATES, repeat=deaths):
                yield dict(zip(places, fates, strict=True))


@pytest.mark.parametrize("committed", [True, False])
def test_every_interleaving_of_two_deaths(committed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one marker in each partition, as decided, offsets once or never, and nothing behind a marker."""
    for name in ("RETRY_S", "COMPLETE_LATER_S"):
        monkeypatch.setattr(transaction_coordinator, name, 0.0)

    async def run(plan: Plan) -> int:
        world = TwoSides(plan)
        async with asyncio.timeout(10):
            await world.transact(committed)
            await world.ends_stored()
        assert [log.rows for log in world.logs.values()] == [[DATA, COMMIT if committed else ABORT]] * 2, plan
        assert world.handed_over == committed, plan
        for task in world.tasks:
            task.cancel()
        return world.messages

    async def all_plans() -> None:
        messages = await run({})
        assert messages >= 8
        for plan in plans(messages + 1, 2):
            await run(plan)

    asyncio.run(all_plans())
