"""Deaths of the appliances that take part in a transaction, at each message: two of them in every order, and many.

The coordinator of the id and the leader of partition A is one side; the leader of B and the coordinator of the group
the other; a third one leads C.  A side dies before a message has an effect, or behind it, so that its answer is lost;
it is back at once, without what it had in memory.  Or it stands still: the message is given up, and has its effect
later, before or behind one of the next that come there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from itertools import combinations, product
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from appliance.catalog import Topic
from appliance.errors import BrokerAway, NotCoordinator, Unavailable
from appliance.processes.coordinator.peer_transactions import _Passing
from appliance.processes.coordinator.peer_transactions_api import PassedRequests
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
from ..support.long import chosen_size

A, B, C = (TransactionPart("a", TOPIC_ID, number) for number in range(3))
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

    async def transact(self, committed: bool, producer: ProducerIdentity | None = None) -> None:
        """One transaction in all partitions, with an offset; then its producer is late with a batch in each."""
        producer, parts = producer or await self.begin_at_last(), list(self.logs)
        assert await self.until_done(lambda: self.coordinator.add_partitions("x", producer, parts)) is Code.NONE
        assert all([await self.write(part, producer) for part in parts])
        offset = PendingOffset("g", B, 7)
        assert await self.until_done(lambda: self.coordinator.add_group("x", producer, "g")) is Code.NONE
        assert await self.until_done(lambda: self.coordinator.add_offsets("x", producer, "g", [offset])) is Code.NONE
        assert await self.until_done(lambda: self.coordinator.end("x", producer, committed)) is Code.NONE
        while self.state() in ENDING:
            await asyncio.sleep(0)
        assert not any([await self.write(part, producer) for part in parts]), "nothing comes behind a marker"
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
        async with asyncio.timeout(60):
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


class Other:
    """What is passed on to another side, and what lies there while it stands still."""

    def __init__(self) -> None:
        self.passing, self.passed = _Passing(), PassedRequests()
        self.messages = 0
        self.late: list[tuple[int, Callable[[], Awaitable[None]]]] = []
        """What is carried out at which message, counted in halves: before it, or behind it."""

    def die(self) -> None:
        self.passed = PassedRequests()
        self.late.clear()

    async def carry_out_late(self) -> None:
        self.messages += 1
        due = [effect for at, effect in self.late if at <= self.messages]
        self.late = [(at, effect) for at, effect in self.late if at > self.messages]
        for effect in due:
            with contextlib.suppress(NotCoordinator):
                await effect()


class Fault(NamedTuple):
    """``after``: messages since the last fault; ``late``: before or behind which of the next ones it is carried out."""

    after: int
    fate: tuple[str, bool] | None
    late: int


class ThreeSides(TwoSides):
    """``faults``: those to come; a fate of None: who gets the message stands still."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__({})
        self.logs[C] = Log()
        self.others = {B: Other(), C: Other()}
        self.known = {"a": Topic("a", {0: [1], 1: [2], 2: [3]}, {}, TOPIC_ID)}
        self.faults, self.since, self.struck = faults, 0, 0

    def die(self, who: str) -> None:
        super().die(who)
        if who == COORDINATOR:
            for other in self.others.values():
                other.passing = _Passing()
        else:
            self.logs[C].forget()
            for other in self.others.values():
                other.die()

    def next_fault(self) -> Fault | None:
        self.since += 1
        if not self.faults or self.since <= self.faults[0].after:
            return None
        self.since, self.struck = 0, self.struck + 1
        return self.faults.pop(0)

    async def message(self, effect: Callable[[], Awaitable[None]], to: Other | None = None) -> None:
        await asyncio.sleep(0)
        fault = self.next_fault()
        if fault is not None and fault.fate is None and to is not None:
            to.late.append((to.messages + fault.late, effect))
            raise BrokerAway("it stands still")
        who, is_done = (fault and fault.fate) or ("", True)
        if to is not None:
            await to.carry_out_late()
        try:
            if is_done:
                await effect()
        finally:
            if to is not None:
                await to.carry_out_late()
        if who:
            self.die(who)
            raise BrokerAway(f"the {who} is dead")

    async def pass_on(self, other: Other, effect: Callable[[], Awaitable[None]]) -> None:
        """As :class:`.PeerTransactions` and :class:`.PeerTransactionsApi` do."""
        passing = other.passing
        passing.session = passing.session or other.passed.begin("Broker:1")
        session = passing.session
        with passing.numbered() as (number, lowest):

            async def checked() -> None:
                other.passed.check("Broker:1", (session, number, lowest))
                await effect()

            try:
                await self.message(checked, other)
            except NotCoordinator:
                passing.session = ""
                raise

    async def open(self, part: TransactionPart, producer: ProducerIdentity, lead: Lead) -> None:
        async def effect() -> None:
            self.logs[part].producers.add(producer)

        await (self.pass_on(self.others[part], effect) if part in self.others else self.message(effect))

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
            self.logs[part].mark(producer, COMMIT if committed else ABORT)

        await (self.pass_on(self.others[part], effect) if part in self.others else self.message(effect))

    async def hand_over(self, transactional_id: str, transaction: Transaction, group: str) -> None:
        """By the state that is stored: so it is not passed with a number."""

        async def effect() -> None:
            before = self.stored[transactional_id]
            if before.offsets and before.state is TransactionState.PREPARE_COMMIT:
                self.handed_over += 1
                self.stored[transactional_id] = before.without(group)

        await self.message(effect, self.others[B])


FAULTS = chosen_size("TRANSACTION_FAULTS", 100, 500)


@settings(max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.builds(Fault, st.integers(0, 7), st.sampled_from([*FATES, None, None]), st.integers(1, 12)),
        min_size=FAULTS,
        max_size=FAULTS,
    ),
    st.randoms(use_true_random=False),
)
def test_transactions_of_three_sides_are_exact_whatever_dies_or_stands_still(
    faults: list[Fault], rng: random.Random
) -> None:
    """Goal: one producer, whose epoch stays, gets in each partition what it decided, transaction by transaction."""

    async def run() -> None:
        world, decided = ThreeSides(faults), list[str]()
        producer = await world.begin_at_last()
        while world.faults:
            committed = rng.random() < 0.6
            decided.append(COMMIT if committed else ABORT)
            await world.transact(committed, producer)
            await world.ends_stored()
            rows = [row for marker in decided for row in (DATA, marker)]
            assert {part: log.rows for part, log in world.logs.items()} == dict.fromkeys(world.logs, rows)
            assert world.handed_over == decided.count(COMMIT)
        assert world.struck == FAULTS
        for task in world.tasks:
            task.cancel()

    with pytest.MonkeyPatch.context() as patch:
        for name in ("RETRY_S", "COMPLETE_LATER_S", "END_WAIT_MS"):
            patch.setattr(transaction_coordinator, name, 0)
        asyncio.run(asyncio.wait_for(run(), 60))
