"""appliance.processes.coordinator.registered_transactions: what a session and the brokers that live have to do with."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.errors import NotCoordinator
from appliance.processes.coordinator.registered_transactions import RegisteredTransactions
from appliance.processes.messages import TransactionStep
from appliance.transactions.store import Lead
from appliance.transactions.transaction import ProducerIdentity, TransactionPart

from ...support.scenarios import scenarios
from ...support.zookeeper_fixture import Tree
from .test_committed_offsets import Broker

PART = TransactionPart("logs", "0" * 32, 0)
PRODUCER = ProducerIdentity(7, 0)


class Appliance:
    """The transactions of a broker; ``elsewhere``: names that others are to coordinate."""

    def __init__(self) -> None:
        self.elsewhere: set[str] = set()
        self.broker = Broker(Tree())
        self.zookeeper: Any = self.broker.zookeeper
        self.zookeeper.instance = "a"
        brokers: Any = SimpleNamespace(broker_id=1, coordinates=lambda name: name not in self.elsewhere)
        groups: Any = SimpleNamespace(offsets=self.broker.offsets, topics=dict)
        self.transactions = RegisteredTransactions(
            *(self.zookeeper, groups, brokers, 100, lambda: 1_000), send=self.answer, spawn=self.broker.spawn
        )

    def answer(self, step: Any) -> None:
        done = TransactionStep(step.partition, step.token, "")
        asyncio.get_running_loop().call_soon(self.transactions.writers.on_step, done)

    async def open(self, lead: Lead) -> None:
        await self.transactions.writers.open(PART, PRODUCER, lead)


scenario = scenarios(Appliance)


@scenario
async def test_epochs_are_forgotten_with_a_session_and_not_with_a_broker(appliance: Appliance) -> None:
    """Goal: who has lost its slot is refused also after others have come or gone, as it does then."""
    transactions = appliance.transactions
    transactions.review()
    await transactions.load()
    await appliance.open(Lead(0, 3))
    appliance.elsewhere = {transactions.store.owner_of("x")}  # another broker has come
    transactions.review()
    assert not transactions.coordinator.loaded
    with pytest.raises(NotCoordinator):
        await appliance.open(Lead(0, 2))
    appliance.zookeeper.session_id = 2  # perhaps of another ZooKeeper, whose epochs begin anew
    transactions.review()
    await appliance.open(Lead(0, 1))
