"""appliance.processes.coordinator.stored_transactions: durable under the claim, together, and found by the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import count
from typing import Any

import pytest

from appliance.catalog import Topic
from appliance.errors import ApplianceError, BrokerAway, NotCoordinator, ZooKeeperAway
from appliance.names import TopicPartition
from appliance.processes.coordinator.peer_transactions import PendingAt
from appliance.processes.coordinator.stored_transactions import StoredTransactions
from appliance.transactions.store import OpenProducer
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


class Peers:
    """The other broker, asked in this process: see :class:`PeerTransactions`.  ``other`` None: it is away."""

    other: Coordinator | None = None

    def reach(self) -> Coordinator:
        if self.other is None:
            raise BrokerAway("away")
        return self.other

    async def open_at(self, partitions: Collection[TopicPartition]) -> tuple[set[int], list[OpenProducer]]:
        return (set(self.other.store.slots) if self.other else set()), []

    def __init__(self) -> None:
        self.asked: list[Collection[int] | None] = []
        self.there = {PART}

    async def pending(self, group: str, slots: Collection[int] | None) -> list[PendingAt]:
        self.asked.append(slots)
        return [PendingAt(set(self.other.store.slots), self.there)] if self.other and slots != set() else []

    async def announce_pending(self, group: str, transactional_id: str) -> None:
        self.reach().store.note_pending(group, transactional_id)

    async def take_offsets(self, transactional_id: str, group: str, gone: Collection[str]) -> int:
        return await self.reach().store.take_offsets(transactional_id, group, gone)


class Coordinator:
    """One broker with its groups and transactions, on a tree that outlives it.  ``elsewhere``: paths of other slots."""

    def __init__(self, tree: Tree, broker_id: int = 1) -> None:
        self.elsewhere: set[str] = set()
        self.peers = Peers()
        self.broker = Broker(tree, broker_id)
        self.zookeeper = self.broker.zookeeper
        self.lost: list[bool] = []
        self.topics = {"logs": Topic("logs", {0: [1]}, {}, TOPIC_ID)}
        self.store = StoredTransactions(
            *(self.zookeeper, Claimant(broker_id, str(broker_id)), self.broker.offsets, lambda: self.topics),
            self.peers,
            new_epoch=lambda: f"t{next(_epochs)}",
            coordinates=lambda name: name not in self.elsewhere | self.broker.elsewhere,
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
    assert second.store.lead("x").epoch > first.store.lead("x").epoch
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


def pair(tree: Tree) -> tuple[Coordinator, Coordinator]:
    """Two brokers: the first has the slot of "x", the second group "g", and the other slots."""
    one, two = Coordinator(tree, 1), Coordinator(tree, 2)
    own = one.store.owner_of("x")
    one.elsewhere = {nodes.slot_path(slot) for slot in range(nodes.SLOTS)} - {own}
    two.elsewhere = {own}
    one.broker.elsewhere = {"g"}
    one.peers.other, two.peers.other = two, one
    return one, two


@scenario
async def test_each_has_its_slots_and_gives_others_back(tree: Tree) -> None:
    alone = Coordinator(tree)
    await alone.store.load()
    assert set(alone.store.slots) == set(range(nodes.SLOTS)) and alone.store.coordinates("x")
    await alone.store.put("x", Transaction(7, 0))
    two = Coordinator(tree, 2)
    two.elsewhere = {nodes.slot_path(slot) for slot in range(nodes.SLOTS)} - {two.store.owner_of("x")}
    with pytest.raises(ZooKeeperAway, match="broker 1 still coordinates"):
        await two.store.load()
    assert not two.store.slots
    alone.elsewhere = {two.store.owner_of("x")}
    assert alone.store.stale and not alone.store.slots and not alone.store.coordinates("x")
    await alone.store.load()
    assert await two.store.load() == {"x": Transaction(7, 0)}
    assert len(alone.store.slots) == nodes.SLOTS - 1 and not alone.lost
    with pytest.raises(NotCoordinator):
        await alone.store.put("x", Transaction(7, 1))
    with pytest.raises(NotCoordinator):
        alone.store.lead("x")


@scenario
async def test_what_others_have_is_only_known_with_all_their_slots(tree: Tree) -> None:
    one, two = pair(tree)
    await one.store.load()
    assert await one.store.pending_elsewhere("g") == {PART}, "no slot has an id"
    await two.store.load()
    other = next(name for name in map(str, count()) if not one.store.coordinates(name))
    await two.store.put(other, Transaction(7, 0))
    assert await one.store.pending_elsewhere("g") == {PART}
    one.peers.other = None
    one.zookeeper.revision += 1
    assert await one.store.pending_elsewhere("") == (), "nobody is asked about the group without a name"
    for asking in (one.store.pending_elsewhere("g"), one.store.open_elsewhere([PART])):
        with pytest.raises(ZooKeeperAway):
            await asking
    one.peers.other = two
    one.zookeeper.leased = False
    await one.store.put("x", Transaction(8, 0))
    with pytest.raises(ZooKeeperAway):
        await one.store.pending_elsewhere("g")


@scenario
async def test_others_are_asked_for_a_group_once_and_then_only_who_may_have_its_offsets(tree: Tree) -> None:
    """Method: the group is the second's, which has no offsets of it; the slot of "x" is the first's."""
    one, two = pair(tree)
    await one.store.load()
    await two.store.load()
    two.peers.there = set()
    for _ in range(3):
        assert await two.store.pending_elsewhere("g") == set()
    assert two.peers.asked == [None, set(), set()], "all were asked once, then nobody"
    await one.store.announce_pending("g", "x")
    two.peers.there = {PART}
    assert await two.store.pending_elsewhere("g") == {PART}
    assert two.peers.asked.pop() == {nodes.slot_of("x")}
    two.zookeeper.revision += 1
    for _ in range(2):
        assert await two.store.pending_elsewhere("g") == {PART}
    assert two.peers.asked[-2:] == [None, {*one.store.slots}], "who had some is asked"
    two.zookeeper.settled = False
    for _ in range(2):
        await two.store.pending_elsewhere("g")
    assert two.peers.asked[-2:] == [None, None], "another may be the coordinator, as others see it"


@scenario
async def test_who_may_have_offsets_and_does_not_answer_keeps_them_from_being_stable(tree: Tree) -> None:
    one, two = pair(tree)
    await one.store.load()
    await two.store.load()
    await one.store.put("x", Transaction(7, 0))
    two.peers.there = set()
    await two.store.pending_elsewhere("g")
    await two.store.pending_elsewhere("h")
    await one.store.announce_pending("g", "x")
    two.peers.other = None
    with pytest.raises(ZooKeeperAway):
        await two.store.pending_elsewhere("g")
    assert await two.store.pending_elsewhere("h") == set(), "of which nobody has any"
    two.peers.other = one
    await two.store.pending_elsewhere("g")
    assert two.peers.asked[-1] is None
    other = next(name for name in map(str, count()) if not one.store.coordinates(name))
    await two.store.put(other, Transaction(8, 0))
    two.zookeeper.leased = False  # what it has itself is not certain any more
    with pytest.raises(ZooKeeperAway):
        await two.store.pending_elsewhere("h")


@scenario
async def test_offsets_of_a_group_of_another_are_stored_there_once(tree: Tree) -> None:
    one, two = pair(tree)
    await one.store.load()
    await two.store.load()
    before = prepared(5)
    await one.store.put("x", before)
    assert one.store.groups_elsewhere(before) == ["g"] and two.store.groups_elsewhere(before) == []
    for _ in range(2):
        await one.store.hand_over("x", prepared(5), "g")
        assert await two.broker.stored() == {PART: 5}
        assert tree.nodes[nodes.id_path("x")].value == encode(before.without("g"))
    await two.broker.commit(9)
    await one.store.hand_over("x", prepared(5), "g")
    rest = before.without("g")
    await one.store.complete("x", rest, rest.complete(4))
    assert await two.broker.stored() == {PART: 9}
    assert tree.nodes[nodes.id_path("x")].value == encode(before.complete(4))
    with pytest.raises(NotCoordinator):
        await one.store.take_offsets("x", "g", [])


@scenario
async def test_offsets_whose_answer_is_lost_do_not_undo_a_later_commit(tree: Tree) -> None:
    one, two = pair(tree)
    await one.store.load()
    await two.store.load()
    await one.store.put("x", prepared(5))
    await two.broker.commit(1)
    ask = two.zookeeper.ask

    async def lose_the_answer(operation: Any, *, session_id: int | None = None) -> Any:
        two.zookeeper.mute = operation.__name__ == "hand_over"
        return await ask(operation, session_id=session_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two.zookeeper, "ask", lose_the_answer)
        with pytest.raises(ZooKeeperAway):
            await one.store.hand_over("x", prepared(5), "g")
    two.zookeeper.mute = False
    assert tree.nodes[nodes.id_path("x")].value == encode(prepared(5).without("g")), "it was carried out"
    await one.store.hand_over("x", prepared(5), "g")
    assert await two.broker.stored() == {PART: 5}
    await two.broker.commit(9)
    await one.store.hand_over("x", prepared(5), "g")
    assert await two.broker.stored() == {PART: 9}


@scenario
async def test_offsets_wait_while_their_group_is_nobodys(tree: Tree) -> None:
    one, two = pair(tree)
    await one.store.load()
    await two.store.load()
    await one.store.put("x", prepared(5))
    one.peers.other = None
    with pytest.raises(BrokerAway):
        await one.store.hand_over("x", prepared(5), "g")
    one.peers.other = two
    two.broker.elsewhere = {"g"}
    with pytest.raises(NotCoordinator):
        await one.store.hand_over("x", prepared(5), "g")
    assert tree.nodes[nodes.id_path("x")].value == encode(prepared(5))
    assert await two.store.take_offsets("nobody", "h", []) == nodes.ABSENT


@scenario
async def test_offsets_of_a_topic_are_left_out_only_when_both_say_that_it_is_gone(tree: Tree) -> None:
    """Goal: a broker that does not know a new topic yet loses no offset of it."""
    one, two = pair(tree)
    await one.store.load()
    await two.store.load()
    before = prepared(5)
    await one.store.put("x", before)
    two.topics = {}
    with pytest.raises(ZooKeeperAway, match="not all topics"):
        await one.store.hand_over("x", before, "g")
    one.topics = {}
    await one.store.hand_over("x", before, "g")
    assert await two.broker.stored() == {}
    assert tree.nodes[nodes.id_path("x")].value == encode(before.without("g"))


@scenario
async def test_offsets_taken_by_another_are_not_committed_again_when_the_group_comes_here(tree: Tree) -> None:
    """Positions never go back.  Method: the answer of who took them is lost, and it dies behind a later commit."""
    one, two = pair(tree)
    await one.store.load()
    await two.store.load()
    before = prepared(5)
    await one.store.put("x", before)
    await two.store.take_offsets("x", "g", [])
    await two.broker.commit(9)
    tree.expire(2)
    one.broker.elsewhere = set()
    assert one.store.groups_elsewhere(before) == []
    await one.store.complete("x", before, before.complete(4))
    assert await one.broker.stored() == {PART: 9}
    assert tree.nodes[nodes.id_path("x")].value == encode(before.complete(4))
