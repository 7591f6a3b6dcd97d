"""appliance.transactions.transaction_coordinator: what is stored and marked in which order, also by the next one."""

from __future__ import annotations

import asyncio

import pytest

from appliance.catalog import Topic
from appliance.errors import ZooKeeperAway
from appliance.names import TopicPartition
from appliance.transactions import transaction_coordinator
from appliance.transactions.store import OpenProducer
from appliance.transactions.transaction import (
    PendingOffset,
    ProducerIdentity,
    Transaction,
    TransactionPart,
    TransactionState,
)
from appliance.wire.kafka.codes import Code

from ..support.fake_transactions import MINUTE_MS, TOPIC_ID, FakeTransactions
from ..support.scenarios import scenarios

A, B = TransactionPart("a", TOPIC_ID, 0), TransactionPart("a", TOPIC_ID, 1)


scenario = scenarios(FakeTransactions)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "RETRY_S", 0.001)
    monkeypatch.setattr(transaction_coordinator, "END_WAIT_MS", 20_000)
    monkeypatch.setattr(transaction_coordinator, "LATE_S", 0.001)
    monkeypatch.setattr(transaction_coordinator, "COMPLETE_LATER_S", 0.02)


@scenario
async def test_prepare_is_stored_before_a_marker_and_complete_after_all(world: FakeTransactions) -> None:
    producer = await world.begin(A, B)
    assert world.done == [TransactionState.EMPTY, TransactionState.ONGOING, ("open", 0), ("open", 1)]
    world.done.clear()
    assert await world.coordinator.end("x", producer, True) is Code.NONE
    await world.settled()
    await world.ends_stored()
    assert world.done == [
        TransactionState.PREPARE_COMMIT,
        ("commit", 0),
        ("commit", 1),
        TransactionState.COMPLETE_COMMIT,
    ]
    assert await world.coordinator.end("x", producer, True) is Code.NONE, "again"
    assert await world.coordinator.end("x", producer, False) is Code.INVALID_TXN_STATE


@pytest.fixture
def answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "END_WAIT_MS", 20)


@pytest.mark.usefixtures("answered_soon")
@scenario
async def test_the_next_coordinator_writes_the_markers_again(world: FakeTransactions) -> None:
    producer = await world.begin(A, B)
    world.offline = {B}
    assert await world.coordinator.end("x", producer, True) is Code.NONE, "it is decided"
    assert world.state() is TransactionState.PREPARE_COMMIT
    assert await world.coordinator.add_partitions("x", producer, [A]) is Code.CONCURRENT_TRANSACTIONS
    world.kill()
    world.offline = set()
    world.done.clear()
    world.start()
    assert await world.coordinator.end("x", producer, True) in (Code.NONE, Code.CONCURRENT_TRANSACTIONS)
    await world.settled()
    await world.ends_stored()
    assert world.done == [("commit", 0), ("commit", 1), TransactionState.COMPLETE_COMMIT]


@scenario
async def test_a_producer_that_goes_on_saves_the_write_of_the_end(world: FakeTransactions) -> None:
    producer = await world.begin(A)
    world.done.clear()
    for part in (B, A):
        assert await world.coordinator.end("x", producer, True) is Code.NONE
        assert await world.coordinator.add_partitions("x", producer, [part]) is Code.NONE
    ends = [TransactionState.PREPARE_COMMIT, ("commit", 0), TransactionState.ONGOING, ("open", 1)]
    assert world.done == [*ends, TransactionState.PREPARE_COMMIT, ("commit", 1), TransactionState.ONGOING, ("open", 0)]
    while len(world.tasks) > sum(task.done() for task in world.tasks):
        await asyncio.sleep(0)
    assert world.state() is world.stored["x"].state is TransactionState.ONGOING, "nothing was stored over it"


@scenario
async def test_that_a_group_takes_part_is_stored_with_its_offsets(world: FakeTransactions) -> None:
    """And who coordinates next takes offsets of a group of which nothing was stored, once."""
    offset = PendingOffset("g", A, 7)
    producer = await world.begin(A)
    world.done.clear()
    assert await world.coordinator.add_group("x", producer, "g") is Code.NONE
    assert world.done == []
    assert await world.coordinator.add_offsets("x", producer, "g", [offset]) is Code.NONE
    assert world.done == [TransactionState.ONGOING] and world.stored["x"].groups == ("g",)
    other = await world.begin(A, name="other")
    assert await world.coordinator.add_group("other", other, "g") is Code.NONE
    world.kill()
    world.start()
    assert await world.coordinator.add_offsets("other", other, "g", [offset]) is Code.NONE
    assert await world.coordinator.end("other", other, True) is Code.NONE
    await world.settled()
    assert world.committed == [offset]
    assert await world.coordinator.add_partitions("other", other, [A]) is Code.NONE
    assert await world.coordinator.add_offsets("other", other, "g", [offset]) is Code.INVALID_TXN_STATE


NEXT = ("nothing", "another transaction", "another producer")


@scenario
async def test_a_coordinator_that_dies_before_the_end_is_stored(world: FakeTransactions) -> None:
    """Its successor writes the markers again, unless something is stored that has come after them."""
    producers = {name: await world.begin(A, name=name) for name in NEXT}
    for name, producer in producers.items():
        assert await world.coordinator.end(name, producer, True) is Code.NONE
    while any(world.state(name) is not TransactionState.COMPLETE_COMMIT for name in NEXT):
        await asyncio.sleep(0)
    old = producers["another transaction"]
    assert await world.coordinator.add_partitions("another transaction", old, [B]) is Code.NONE
    assert (await world.begin(name="another producer")).epoch == producers["another producer"].epoch + 1
    assert world.stored["nothing"].state is TransactionState.PREPARE_COMMIT
    world.kill()
    world.done.clear()
    world.start()
    await world.settled()
    await world.ends_stored()
    assert world.done == [("commit", 0), TransactionState.COMPLETE_COMMIT]
    assert [world.state(name) for name in NEXT] == [
        TransactionState.COMPLETE_COMMIT,
        TransactionState.ONGOING,
        TransactionState.EMPTY,
    ]


@scenario
async def test_offsets_are_committed_with_the_end_and_only_once(world: FakeTransactions) -> None:
    producer = await world.begin()
    offset = PendingOffset("g", A, 7)
    assert await world.coordinator.add_offsets("x", producer, "g", [offset]) is Code.INVALID_TXN_STATE
    assert await world.coordinator.add_group("x", producer, "g") is Code.NONE
    assert await world.coordinator.add_offsets("x", producer, "g", [offset]) is Code.NONE
    assert list(world.coordinator.pending("g") or ()) == [TopicPartition("a", 0)]
    world.kill()
    assert await world.coordinator.all_pending("g") is None, "nobody knows"
    world.start()
    assert list(world.coordinator.pending("g") or ()) == [TopicPartition("a", 0)]
    world.away = world.mute = True
    await world.coordinator.end("x", producer, True)
    world.away = world.mute = False
    while world.state() is not TransactionState.COMPLETE_COMMIT:
        await world.coordinator.end("x", producer, True)
    assert world.committed == [offset] and not world.coordinator.pending("g")


@scenario
async def test_what_hangs_is_aborted_but_for_what_somebody_will_end(world: FakeTransactions) -> None:
    ongoing = await world.begin(A)
    ending = await world.begin(A, B, name="y")
    await world.begin(B, name="z")
    world.offline = {A}
    assert await world.coordinator.end("y", ending, True) is Code.NONE
    world.done.clear()
    await world.coordinator.abort_hanging(TopicPartition("a", 0))
    assert ("abort hanging", 0, sorted([ongoing.id, ending.id])) in world.done
    world.kill()
    with pytest.raises(ZooKeeperAway):
        await world.coordinator.abort_hanging(TopicPartition("a", 0))


@scenario
async def test_offsets_of_an_aborted_transaction_are_gone(world: FakeTransactions) -> None:
    producer = await world.begin()
    await world.coordinator.add_group("x", producer, "g")
    await world.coordinator.add_offsets("x", producer, "g", [PendingOffset("g", A, 7)])
    assert await world.coordinator.end("x", producer, False) is Code.NONE
    assert world.committed == [] and not world.coordinator.pending("g")


@scenario
async def test_a_new_producer_aborts_and_fences_the_old_one_in_one_request(world: FakeTransactions) -> None:
    old = await world.begin(A)
    new = await world.begin()
    assert new == (old.id, old.epoch + 2) and ("abort", 0) in world.done
    assert await world.coordinator.end("x", old, True) is Code.PRODUCER_FENCED
    assert await world.coordinator.add_partitions("x", old, [A]) is Code.PRODUCER_FENCED
    assert await world.coordinator.add_partitions("x", new, [A]) is Code.NONE


@scenario
async def test_a_transaction_whose_time_is_up_is_aborted(world: FakeTransactions) -> None:
    producer = await world.begin(A, timeout_ms=5)
    while world.state() is not TransactionState.COMPLETE_ABORT:
        await asyncio.sleep(0.001)
    assert await world.coordinator.end("x", producer, True) is Code.PRODUCER_FENCED


@scenario
async def test_the_time_goes_on_when_nothing_could_be_stored(world: FakeTransactions) -> None:
    await world.begin(A, timeout_ms=5)
    world.away = True
    await asyncio.sleep(0.03)
    assert world.state() is TransactionState.ONGOING
    world.away = False
    while world.state() is not TransactionState.COMPLETE_ABORT:
        await asyncio.sleep(0.001)


@scenario
async def test_the_next_coordinator_gives_all_of_the_time_and_then_aborts(world: FakeTransactions) -> None:
    await world.begin(A, timeout_ms=5)
    world.coordinator.unload()
    world.start()
    while world.state() is not TransactionState.COMPLETE_ABORT:
        await asyncio.sleep(0.001)


@scenario
async def test_a_partition_that_is_not_there_any_more_needs_no_marker(world: FakeTransactions) -> None:
    producer = await world.begin(A, B)
    world.known = {"a": Topic("a", {0: [1], 1: [1]}, {}, "f" * 32)}
    world.done.clear()
    assert await world.coordinator.end("x", producer, True) is Code.NONE
    await world.settled()
    await world.ends_stored()
    assert world.done == [TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT]


@scenario
async def test_a_writer_that_cannot_be_told_is_told_when_the_client_asks_again(world: FakeTransactions) -> None:
    world.offline = {B}
    producer = await world.begin(A)
    assert await world.coordinator.add_partitions("x", producer, [B]) is Code.COORDINATOR_LOAD_IN_PROGRESS
    world.offline = set()
    world.done.clear()
    assert await world.coordinator.add_partitions("x", producer, [B]) is Code.NONE
    assert world.done == [("open", 1)], "it is stored already"
    assert world.coordinator.at([B.key]) == [OpenProducer(B.key, producer, True)]


@scenario
async def test_what_could_not_be_stored_has_not_happened(world: FakeTransactions) -> None:
    world.away = True
    assert await world.coordinator.initialise("x", MINUTE_MS, None) is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert not world.coordinator.all()
    world.away = False
    producer = await world.begin(A)
    assert producer.epoch == 0
    world.away = True
    assert await world.coordinator.initialise("x", MINUTE_MS, None) is Code.COORDINATOR_LOAD_IN_PROGRESS
    world.away = False
    assert await world.coordinator.end("x", producer, True) is Code.NONE, "it was not fenced"


@scenario
async def test_an_end_that_was_stored_unseen_is_decided_anew(world: FakeTransactions) -> None:
    producer = await world.begin(A)
    world.away = world.mute = True
    assert await world.coordinator.end("x", producer, True) is Code.COORDINATOR_LOAD_IN_PROGRESS
    world.away = world.mute = False
    assert world.stored["x"].state is TransactionState.PREPARE_COMMIT
    assert await world.coordinator.end("x", producer, True) is Code.NONE
    await world.settled()
    assert world.state() is TransactionState.COMPLETE_COMMIT


@scenario
async def test_requests_before_it_is_known_what_is_stored(world: FakeTransactions) -> None:
    producer = await world.begin(A)
    world.coordinator.unload()
    assert await world.coordinator.end("x", producer, True) is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert await world.coordinator.initialise("x", 1, None) is Code.COORDINATOR_LOAD_IN_PROGRESS
    world.leads = False
    assert await world.coordinator.end("x", producer, True) is Code.COORDINATOR_NOT_AVAILABLE
    world.serves = False
    assert world.coordinator.pending("g") == ()


@scenario
async def test_what_is_open_ends_also_when_another_appliance_has_joined(world: FakeTransactions) -> None:
    producer = await world.begin(A)
    world.serves = False
    assert await world.coordinator.end("x", producer, True) is Code.NONE
    await world.settled()
    assert world.state() is TransactionState.COMPLETE_COMMIT


@scenario
async def test_unknown_ids_and_too_many(world: FakeTransactions) -> None:
    assert await world.coordinator.end("y", ProducerIdentity(1, 0), True) is Code.INVALID_PRODUCER_ID_MAPPING
    assert await world.coordinator.abort("y") is Code.INVALID_PRODUCER_ID_MAPPING
    world.coordinator.ids_max = 1
    await world.begin()
    assert await world.coordinator.initialise("y", 1, None) is Code.POLICY_VIOLATION
    assert await world.coordinator.initialise("x", 1, None) is not Code.POLICY_VIOLATION
    world.now_ms += transaction_coordinator.FULL_IDLE_MS + 10  # a state is later than the one before it
    assert await world.coordinator.initialise("y", 1, None) is not Code.POLICY_VIOLATION
    assert set(world.coordinator.all()) == {"y"}, "the idle one has made room"


@scenario
async def test_an_abort_by_hand(world: FakeTransactions) -> None:
    producer = await world.begin(A)
    assert await world.coordinator.abort("x") is Code.NONE
    assert await world.coordinator.end("x", producer, True) is Code.PRODUCER_FENCED
    assert await world.coordinator.abort("x") in (Code.INVALID_TXN_STATE, Code.NONE)


@scenario
async def test_unused_ids_expire_and_open_ones_do_not(world: FakeTransactions) -> None:
    await world.begin(A, name="open")
    old = await world.begin(name="old")
    world.now_ms += 1_000
    await world.begin(name="young")
    await world.coordinator.expire(999)
    assert world.coordinator.all().keys() == world.stored.keys() == {"open", "young"}
    assert await world.coordinator.add_partitions("old", old, [A]) is Code.INVALID_PRODUCER_ID_MAPPING
    assert (await world.begin(name="old")).id != old.id


@scenario
async def test_many_producers_of_one_id_at_once(world: FakeTransactions) -> None:
    found = await asyncio.gather(*(world.coordinator.initialise("x", MINUTE_MS, None) for _ in range(20)))
    epochs = [one.epoch for one in found if isinstance(one, Transaction)]
    assert sorted(epochs) == list(range(20)), "each has its own"


@scenario
async def test_a_topic_that_was_made_again_is_not_in_the_transaction(world: FakeTransactions) -> None:
    """Its writer would take batches, and nobody would end them."""
    producer = await world.begin(A)
    assert world.coordinator.at([A.key, B.key]) == [OpenProducer(A.key, producer, True)]
    world.known = {"a": Topic("a", {0: [1], 1: [1]}, {}, "f" * 32)}
    assert world.coordinator.at([A.key, B.key]) == []
    assert await world.coordinator.end("x", producer, True) is Code.NONE
    await world.settled()
    assert world.state() is TransactionState.COMPLETE_COMMIT


@scenario
async def test_offsets_are_pending_while_they_are_stored(world: FakeTransactions) -> None:
    """KIP-447: who takes a partition over meanwhile must wait for the end."""
    producer = await world.begin()
    await world.coordinator.add_group("x", producer, "g")
    work = world.coordinator.add_offsets("x", producer, "g", [PendingOffset("g", A, 7)])
    storing = asyncio.get_running_loop().create_task(work)
    await asyncio.sleep(0)
    assert not storing.done() and list(world.coordinator.pending("g") or ()) == [A.key]
    assert await storing is Code.NONE and list(world.coordinator.pending("g") or ()) == [A.key]
    world.away = True
    refused = await world.coordinator.add_offsets("x", producer, "g", [PendingOffset("g", B, 7)])
    assert refused is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert list(world.coordinator.pending("g") or ()) == [A.key]


class Reloading(FakeTransactions):
    """What is stored is loaded again while the offsets of a group are handed over, once."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere = {"g"}
        self.reloads = 0

    async def hand_over(self, transactional_id: str, transaction: Transaction, group: str) -> None:
        await super().hand_over(transactional_id, transaction, group)
        if not self.reloads:
            self.reloads += 1
            self.coordinator.unload()
            self.coordinator.load(dict(self.stored))


@scenarios(Reloading)
async def test_who_was_at_the_end_when_all_was_loaded_again_stores_nothing_more(world: Reloading) -> None:
    """Goal: an end that comes late is not stored over the next transaction."""
    producer = await world.begin(A)
    offset = PendingOffset("g", A, 7)
    assert await world.coordinator.add_group("x", producer, "g") is Code.NONE
    assert await world.coordinator.add_offsets("x", producer, "g", [offset]) is Code.NONE
    assert await world.coordinator.end("x", producer, True) is Code.NONE
    await world.ends_stored()
    while pending := [task for task in world.tasks if not task.done()]:
        await asyncio.gather(*pending)
    assert world.committed == [offset] and world.reloads == 1
    assert world.done.count(TransactionState.COMPLETE_COMMIT) == 1


@scenario
async def test_what_another_coordinates_is_refused_and_what_it_has_is_asked_for(world: FakeTransactions) -> None:
    world.elsewhere = {"y"}
    assert await world.coordinator.initialise("y", MINUTE_MS, None) is Code.NOT_COORDINATOR
    assert await world.coordinator.end("y", ProducerIdentity(7, 0), True) is Code.NOT_COORDINATOR
    assert world.coordinator.unknown("y") is Code.NOT_COORDINATOR and not world.coordinator.unknown("x")
    producer = await world.begin(A)
    row = OpenProducer(A.key, ProducerIdentity(900, 0), True)
    world.opened_elsewhere, world.waiting_elsewhere = [row], {"g": {B.key}}
    assert await world.coordinator.known_at(A.key) == {900, producer.id}
    assert await world.coordinator.all_at([B.key]) == []
    assert await world.coordinator.all_pending("g") == {B.key}
    world.unreachable = True
    assert await world.coordinator.all_pending("g") is None
    with pytest.raises(ZooKeeperAway):
        await world.coordinator.all_at([A.key])
