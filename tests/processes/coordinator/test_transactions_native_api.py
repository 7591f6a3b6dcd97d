"""appliance.processes.coordinator.transactions_native_api: the verbs of a transactional producer, and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from appliance.errors import (
    ApplianceError,
    GroupNotPermitted,
    IllegalGeneration,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    UnknownPartition,
    UnknownTransactionalId,
    ZooKeeperAway,
)
from appliance.names import TopicPartition, member_suffix
from appliance.processes.coordinator.transactions_native_api import ProducersNativeApi
from appliance.security.acls import UNRESTRICTED
from appliance.transactions.transaction import TransactionState
from appliance.wire.native_admin import AddOffsets, AddPartitions, EndTransaction, InitTransactions

from ...support.fake_transactions import MINUTE_MS, FakeTransactions

MEMBER = ("g", f"g_host{member_suffix('secret')}", "secret")
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Rig:
    """The verbs over a coordinator in memory.  ``owned``: what the member of the group has."""

    def __init__(self) -> None:
        self.fake = FakeTransactions()
        self.owned = {A0}
        self.seen: list[Any] = []
        self.api = ProducersNativeApi(self.fake.coordinator, lambda: MINUTE_MS, self._owned)

    async def _owned(self, group: str, member: str) -> set[TopicPartition]:
        self.seen.append((group, member, set(self.fake.coordinator.pending(group) or ())))
        return self.owned

    async def ask(self, wanted: Any) -> Any:
        verbs = {
            InitTransactions: self.api.init_transactions,
            AddPartitions: self.api.add_partitions,
            AddOffsets: self.api.add_offsets,
            EndTransaction: self.api.end_transaction,
        }
        return await verbs[type(wanted)](wanted, UNRESTRICTED)

    async def begin(self) -> tuple[str, int, int]:
        found = await self.ask(InitTransactions("x", 1_000))
        return "x", found["producer_id"], found["epoch"]


def run(scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Rig())

    asyncio.run(main())


def test_a_transaction_with_offsets_is_committed() -> None:
    async def scenario(rig: Rig) -> None:
        who = await rig.begin()
        await rig.ask(AddPartitions(*who, [("a", 1)]))
        await rig.ask(AddOffsets(*who, *MEMBER, [("a", 0, 5)]))
        assert rig.fake.coordinator.pending("g") == {A0: 1}
        await rig.ask(EndTransaction(*who, True))
        await asyncio.gather(*rig.fake.tasks)
        assert [(each.group, each.part.key, each.offset) for each in rig.fake.committed] == [("g", A0, 5)]
        assert rig.fake.stored["x"].state is TransactionState.COMPLETE_COMMIT

    run(scenario)


def test_offsets_are_pending_before_it_is_looked_at_who_owns_their_partitions() -> None:
    async def scenario(rig: Rig) -> None:
        who = await rig.begin()
        rig.owned = {A1}
        with pytest.raises(IllegalGeneration, match="another member"):
            await rig.ask(AddOffsets(*who, *MEMBER, [("a", 0, 5)]))
        assert rig.seen == [(*MEMBER[:2], {A0})] and rig.fake.announced == [("g", "x")]
        assert not rig.fake.coordinator.pending("g"), "they were refused"
        await rig.ask(EndTransaction(*who, True))
        await asyncio.gather(*rig.fake.tasks)
        assert not rig.fake.committed

    run(scenario)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (lambda who: AddOffsets(*who, *MEMBER[:2], "another", [("a", 0, 5)]), GroupNotPermitted),
        (lambda who: AddOffsets(*who, "h", *MEMBER[1:], [("a", 0, 5)]), GroupNotPermitted),
        (lambda who: AddPartitions("y", *who[1:], [("a", 0)]), UnknownTransactionalId),
        (lambda who: AddPartitions(who[0], who[1], who[2] + 1, [("a", 0)]), ProducerFenced),
        (lambda who: AddPartitions(*who, [("a", 7)]), UnknownPartition),
        (lambda who: AddPartitions(*who, [("b", 0)]), UnknownPartition),
        (lambda who: AddOffsets(*who, *MEMBER, [("a", 0, -1)]), InvalidRequest),
        (lambda who: EndTransaction(*who, True), InvalidTransactionState),
        (lambda who: InitTransactions("x", 0), InvalidRequest),
        (lambda who: InitTransactions("x", MINUTE_MS + 1), InvalidRequest),
        (lambda who: InitTransactions("x", 1_000, 5), InvalidRequest),
        (lambda who: InitTransactions("x", 1_000, who[1], who[2] + 1), ProducerFenced),
    ],
)
def test_what_is_wrong_has_an_error_of_its_own(wanted: Any, error: type[ApplianceError]) -> None:
    async def scenario(rig: Rig) -> None:
        who = await rig.begin()
        with pytest.raises(error):
            await rig.ask(wanted(who))

    run(scenario)


def test_a_store_that_is_away_can_be_asked_again() -> None:
    async def scenario(rig: Rig) -> None:
        who = await rig.begin()
        rig.fake.away = True
        with pytest.raises(ZooKeeperAway):
            await rig.ask(AddPartitions(*who, [("a", 0)]))
        rig.fake.away = False
        await rig.ask(AddPartitions(*who, [("a", 0)]))

    run(scenario)
