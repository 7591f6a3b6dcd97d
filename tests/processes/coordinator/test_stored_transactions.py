"""appliance.processes.coordinator.stored_transactions: durable under the claim, together, and found by the next one."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from appliance.catalog import Topic
from appliance.errors import ApplianceError, ZooKeeperAway
from appliance.names import TopicPartition
from appliance.processes.coordinator.stored_transactions import StoredTransactions
from appliance.transactions.transaction import (
    PendingOffset,
    ProducerIdentity,
    Transaction,
    TransactionPart,
    TransactionState,
    encode,
)
from appliance.zookeeper import transaction_nodes as nodes
from appliance.zookeeper.claims import Claimant

from ...support.scenarios import scenarios
from ...support.zookeeper_fixture import Tree
from .test_committed_offsets import Broker

TOPIC_ID = "0" * 32
PART = TopicPartition("logs", 0)
_epochs = count(1)


class Coordinator:
    """One broker with its groups and transactions, on a tree that outlives it."""

    def __init__(self, tree: Tree, broker_id: int = 1) -> None:
        self.broker = Broker(tree, broker_id)
        self.zookeeper = self.broker.zookeeper
        self.lost: list[bool] = []
        self.topics = {"logs": Topic("logs", {0: [1]}, {}, TOPIC_ID)}
        self.store = StoredTransactions(
            *(self.zookeeper, Claimant(broker_id, str(broker_id)), self.broker.offsets, lambda: self.topics),
            new_epoch=lambda: f"t{next(_epochs)}",
            alone=lambda: True,
            spawn=self.broker.spawn,
            on_lost=lambda: self.lost.append(True),
        )


scenario = scenarios(Tree)


@scenario
async def test_the_next_one_reads_what_was_stored(tree: Tree) -> None:
    first = Coordinator(tree)
    assert first.store.stale and await first.store.load() == {} and not first.store.stale
    await first.store.put("x", Transaction(7, 0))
    await first.store.put("x", Transaction(7, 1))
    await first.store.put("y", Transaction(8, 0))
    await first.store.put("y", None)
    with pytest.raises(ZooKeeperAway):
        await Coordinator(tree, 2).store.load()
    tree.expire(1)
    second = Coordinator(tree, 2)
    assert await second.store.load() == {"x": Transaction(7, 1)}
    assert second.store.epoch("x") > first.store.epoch("x")
    with pytest.raises(ApplianceError):
        await first.store.put("x", Transaction(9, 9))
    assert first.store.stale, "it has to load again"
    tree.expire(2)
    assert await Coordinator(tree, 3).store.load() == {"x": Transaction(7, 1)}


@scenario
async def test_what_comes_at_the_same_time_goes_together(tree: Tree) -> None:
    one = Coordinator(tree)
    await one.store.load()
    await asyncio.gather(*(one.store.put(f"id-{number}", Transaction(number, 0)) for number in range(200)))
    assert one.zookeeper.writes <= 3 * nodes.SLOTS
    tree.expire(1)
    assert len(await Coordinator(tree, 2).store.load()) == 200


@scenario
async def test_a_write_whose_answer_is_lost_does_not_stop_the_next(tree: Tree) -> None:
    one = Coordinator(tree)
    await one.store.load()
    await one.store.put("x", Transaction(7, 0))
    one.zookeeper.mute = True
    with pytest.raises(ZooKeeperAway):
        await one.store.put("x", Transaction(7, 1))
    one.zookeeper.mute = False
    await one.store.put("x", Transaction(7, 2))
    assert tree.nodes[nodes.id_path("x")].value == encode(Transaction(7, 2))


def prepared(offset: int, topic_id: str = TOPIC_ID) -> Transaction:
    one = Transaction(7, 0, state=TransactionState.ONGOING, groups=("g",), changed_ms=1)
    pending = PendingOffset("g", TransactionPart("logs", topic_id, 0), offset, "note")
    added = one.add_offsets(ProducerIdentity(7, 0), "g", [pending], 2)
    assert isinstance(added, Transaction)
    ended = added.end(ProducerIdentity(7, 0), True, 3)
    assert isinstance(ended, Transaction)
    return ended


@scenario
async def test_the_end_and_the_offsets_are_one_step(tree: Tree) -> None:
    one = Coordinator(tree)
    await one.store.load()
    before = prepared(5)
    await one.store.put("x", before)
    assert await one.broker.stored() == {}
    await one.store.complete("x", before, before.complete(4))
    assert await one.broker.stored() == {PART: 5}
    assert tree.nodes[nodes.id_path("x")].value == encode(before.complete(4))
    assert one.broker.offsets.count.total == 1
    await one.store.put("x", Transaction(7, 1))


@scenario
async def test_an_end_whose_answer_is_lost_does_not_undo_a_later_commit(tree: Tree) -> None:
    one = Coordinator(tree)
    await one.store.load()
    before = prepared(5)
    await one.store.put("x", before)
    await one.broker.commit(1)  # the claim on the group is there
    one.zookeeper.mute = True
    with pytest.raises(ZooKeeperAway):
        await one.store.complete("x", before, before.complete(4))
    one.zookeeper.mute = False
    assert await one.broker.stored() == {PART: 5}
    await one.broker.commit(9)
    await one.store.complete("x", before, before.complete(4))
    assert await one.broker.stored() == {PART: 9}


@scenario
async def test_a_group_with_members_reads_the_offsets_of_an_end_whose_answer_is_lost(tree: Tree) -> None:
    one = Coordinator(tree)
    await one.store.load()
    before = prepared(5)
    await one.store.put("x", before)
    await one.broker.commit(1)
    one.broker.members.add("g")
    assert await one.broker.stored() == {PART: 1}
    one.zookeeper.mute = True
    with pytest.raises(ZooKeeperAway):
        await one.store.complete("x", before, before.complete(4))
    one.zookeeper.mute = False
    assert await one.broker.stored() == {PART: 5}


@scenario
async def test_offsets_of_a_topic_that_was_made_again_are_left_out(tree: Tree) -> None:
    one = Coordinator(tree)
    await one.store.load()
    before = prepared(5, "f" * 32)
    await one.store.put("x", before)
    await one.store.complete("x", before, before.complete(4))
    assert await one.broker.stored() == {}


@scenario
async def test_a_node_that_cannot_be_read_is_left_out(tree: Tree) -> None:
    one = Coordinator(tree)
    await one.store.load()
    await one.store.put("x", Transaction(7, 0))
    path = nodes.id_path("x")
    tree.nodes[path] = tree.nodes[path]._replace(value=b"{")
    tree.expire(1)
    again = Coordinator(tree, 2)
    assert await again.store.load() == {}
    await again.store.put("x", Transaction(8, 0))
    assert tree.nodes[path].value == encode(Transaction(8, 0))
