"""appliance.processes.coordinator.shared_writes: groups share transactions, and none suffers from another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from appliance.errors import ApplianceError, InvalidTopic, NotCoordinator, ZooKeeperAway
from appliance.names import TopicPartition
from appliance.processes.coordinator.shared_writes import IN_FLIGHT_MAX, SharedWrites
from appliance.zookeeper import claims
from appliance.zookeeper.claims import Claimant, GroupInfo, GroupWrite, Held
from appliance.zookeeper.operations import Operation, Request, ask, check_request, create, delete
from appliance.zookeeper.paths import offset

from ...support.zookeeper_fixture import Tree

T = TypeVar("T")
PART = TopicPartition("logs", 0)


class Ensemble:
    """A tree whose answers each take a turn of the loop; it notes what it was asked for."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.session_id, self.away = 1, False
        self.asked: list[Request] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.writes = SharedWrites(self, self.spawn)

    @property
    def multis(self) -> list[Request]:
        return [request for request in self.asked if request.verb == "multi"]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T:
        await asyncio.sleep(0)
        if self.away or session_id != self.session_id:
            operation.close()
            raise ZooKeeperAway("away")
        try:
            requests = next(operation)
            while True:
                for request in requests:
                    check_request(request)
                self.asked += requests
                requests = operation.send([self.tree.answer(request, self.session_id) for request in requests])
        except StopIteration as finished:
            result: T = finished.value
            return result

    async def store(self, write: GroupWrite, session_id: int) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: ApplianceError | None) -> None:
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        self.writes.store(write, session_id, done)
        asyncio.get_running_loop().call_soon(self.writes.start)  # with what others store in this turn
        await stored

    def take(self, name: str) -> Held:
        taken = self.tree.run(claims.claim_group(name, Claimant(1, "one"), "epoch", make=True))
        assert isinstance(taken, claims.Taken)
        return taken.held

    def value(self, name: str, part: TopicPartition = PART) -> bytes | None:
        node = self.tree.nodes.get(offset(name, part))
        return node.value if node is not None else None


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_what_has_come_meanwhile_is_one_transaction_within_its_bounds() -> None:
    async def scenario() -> None:
        ensemble = Ensemble()
        groups = {f"g{number}": ensemble.take(f"g{number}") for number in range(300)}
        first = [5 * 80, 5 * 80, 5 * 80, 5 * 60]  # with the two nodes above each offset
        for stored, parts in ((b"1", first), (b"2", [3 * 133, 3 * 133, 3 * 34])):
            ensemble.asked.clear()
            writes = [GroupWrite(name, held, {PART: stored}, GroupInfo("consumer")) for name, held in groups.items()]
            await asyncio.gather(*(ensemble.store(write, 1) for write in writes))
            assert {ensemble.value(name) for name in groups} == {stored}
            assert all(held.values == {PART: stored} for held in groups.values())
            assert [len(request.parts) for request in ensemble.asked] == parts

    run(scenario())


def test_full_transactions_go_at_the_same_time_and_none_of_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: many groups do not wait for a slow ZooKeeper one after the other; each group's writes stay in order."""

    async def scenario() -> None:
        ensemble = Ensemble()
        parts = [TopicPartition("logs", number) for number in range(50)]
        groups = {f"g{number}": ensemble.take(f"g{number}") for number in range(100)}
        ask, running, most, held_up = ensemble.ask, 0, 0, asyncio.Event()

        async def slow(operation: Operation[T], *, session_id: int | None = None) -> T:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await held_up.wait()
            running -= 1
            return await ask(operation, session_id=session_id)

        monkeypatch.setattr(ensemble, "ask", slow)

        def store(names: list[str], value: bytes) -> list[asyncio.Future[None]]:
            writes = [GroupWrite(name, groups[name], dict.fromkeys(parts, value)) for name in names]
            return [asyncio.ensure_future(ensemble.store(write, 1)) for write in writes]

        waiting = store(["g0"], b"1")
        await asyncio.sleep(0.01)
        waiting += store(["g1"], b"1")
        await asyncio.sleep(0.01)
        assert most == 1, "it waits for more"
        waiting += store([*groups], b"2")
        await asyncio.sleep(0.01)
        assert running == IN_FLIGHT_MAX
        held_up.set()
        await asyncio.gather(*waiting)
        assert most == IN_FLIGHT_MAX
        assert {ensemble.value(name, part) for name in groups for part in parts} == {b"2"}
        assert len(ensemble.multis) <= 2 + 100 // (400 // 52) + 2, "seven groups in each"

    run(scenario())


def test_short_offsets_of_many_partitions_are_one_transaction() -> None:
    async def scenario() -> None:
        ensemble = Ensemble()
        groups = {name: ensemble.take(name) for name in "ab"}
        parts = [TopicPartition("logs", number) for number in range(190)]
        writes = [GroupWrite(name, held, dict.fromkeys(parts, b"1")) for name, held in groups.items()]
        await asyncio.gather(*(ensemble.store(write, 1) for write in writes))
        assert len(ensemble.multis) == 1

    run(scenario())


def test_one_group_without_its_claim_or_with_other_nodes_keeps_no_other_from_being_stored() -> None:
    async def scenario() -> None:
        ensemble = Ensemble()
        groups = {name: ensemble.take(name) for name in ("a", "deposed", "b", "changed", "gone", "c")}
        for name, held in groups.items():
            await ensemble.store(GroupWrite(name, held, {PART: b"1"}), 1)
        ensemble.tree.run(ask([delete(groups["deposed"].path), delete(offset("changed", PART))]))
        ensemble.tree.run(ask([create(offset("gone", TopicPartition("logs", 1)), b"by hand")]))
        changes: dict[str, dict[TopicPartition, bytes | None]] = {name: {PART: b"2"} for name in groups}
        changes["gone"] = {PART: None, TopicPartition("logs", 1): b"3"}
        writes = [GroupWrite(name, held, changes[name]) for name, held in groups.items()]
        outcomes = await asyncio.gather(*(ensemble.store(write, 1) for write in writes), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), NotCoordinator] + [type(None)] * 4
        values = {name: ensemble.value(name) for name in groups}
        assert values == {"a": b"2", "deposed": b"1", "b": b"2", "changed": b"2", "gone": None, "c": b"2"}
        assert ensemble.value("gone", TopicPartition("logs", 1)) == b"3"
        assert groups["gone"].values == {TopicPartition("logs", 1): b"3"}

    run(scenario())


def test_nodes_that_are_not_as_known_cost_a_few_round_trips_and_not_one_for_each_group() -> None:
    async def scenario() -> None:
        ensemble = Ensemble()
        groups = {f"g{number}": ensemble.take(f"g{number}") for number in range(60)}
        await asyncio.gather(
            *(ensemble.store(GroupWrite(name, held, {PART: b"1"}), 1) for name, held in groups.items())
        )
        other = TopicPartition("logs", 1)
        for name in ("g3", "g20", "g50"):  # by a write that was given up
            ensemble.tree.run(ask([create(offset(name, other), b"late")]))
        ensemble.asked.clear()
        writes = [GroupWrite(name, held, {PART: b"2", other: b"2"}) for name, held in groups.items()]
        await asyncio.gather(*(ensemble.store(write, 1) for write in writes))
        assert {ensemble.value(name, other) for name in groups} == {b"2"}
        assert len(ensemble.multis) == 2

    run(scenario())


def test_a_write_that_is_refused_whatever_is_done_is_the_error_of_its_group_alone() -> None:
    async def scenario() -> None:
        ensemble = Ensemble()
        groups = {f"g{number}": ensemble.take(f"g{number}") for number in range(60)}
        await asyncio.gather(
            *(ensemble.store(GroupWrite(name, held, {PART: b"1"}), 1) for name, held in groups.items())
        )
        ensemble.tree.run(ask([create(offset("g3", PART) + "/below")]))  # it cannot be deleted
        ensemble.asked.clear()
        writes = [GroupWrite(name, held, {PART: None}) for name, held in groups.items()]
        outcomes = await asyncio.gather(*(ensemble.store(write, 1) for write in writes), return_exceptions=True)
        assert [name for name, outcome in zip(groups, outcomes, strict=True) if outcome] == ["g3"]
        assert {name for name in groups if ensemble.value(name)} == {"g3"}
        assert len(ensemble.multis) < 15

    run(scenario())


def test_what_zookeeper_cannot_take_is_the_error_of_its_group_alone() -> None:
    async def scenario() -> None:
        ensemble = Ensemble()
        good, bad = ensemble.take("good"), ensemble.take("bad")
        unfit = TopicPartition("\0", 0)
        writes = [GroupWrite("bad", bad, {unfit: b"1"}), GroupWrite("good", good, {PART: b"1"})]
        first, second = await asyncio.gather(*(ensemble.store(write, 1) for write in writes), return_exceptions=True)
        assert isinstance(first, InvalidTopic) and second is None and ensemble.value("good") == b"1"

    run(scenario())


def test_writes_of_another_session_and_without_zookeeper_fail_and_the_next_succeed() -> None:
    async def scenario() -> None:
        ensemble = Ensemble()
        held = {name: ensemble.take(name) for name in "ab"}
        old = asyncio.ensure_future(ensemble.store(GroupWrite("a", held["a"], {PART: b"1"}), 7))
        await ensemble.store(GroupWrite("b", held["b"], {PART: b"1"}), 1)
        with pytest.raises(ZooKeeperAway):
            await old
        ensemble.away = True
        with pytest.raises(ZooKeeperAway):
            await ensemble.store(GroupWrite("a", held["a"], {PART: b"2"}), 1)
        ensemble.away = False
        await ensemble.store(GroupWrite("a", held["a"], {PART: b"3"}), 1)
        assert ensemble.value("a") == b"3"

    run(scenario())
