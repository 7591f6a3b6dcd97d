"""appliance.processes.coordinator.committed_offsets: the newest commit wins, and nothing is written without a claim."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from itertools import count
from typing import Any, TypeVar

import pytest

from appliance.errors import (
    ApplianceError,
    InvalidRequest,
    NotCoordinator,
    OffsetsFull,
    OutOfResources,
    RequestTimedOut,
    ZooKeeperAway,
)
from appliance.names import TopicPartition
from appliance.processes.coordinator import committed_offsets
from appliance.processes.coordinator.committed_offsets import UNIT_BYTES, ClaimState, CommittedOffsets
from appliance.zookeeper import claims, deletion
from appliance.zookeeper.claims import Claimant, GroupInfo
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.operations import Operation, ask, create, delete
from appliance.zookeeper.paths import CommittedOffset, group, offset

from ...support.zookeeper_fixture import Tree

T = TypeVar("T")
PART, OTHER = TopicPartition("logs", 0), TopicPartition("logs", 1)


class SlowZooKeeper:
    """A session on a tree: every operation takes a turn of the loop, or as long as ``held_up``; ``away``: it fails;
    ``mute``: it is carried out up to its first write, whose answer never comes.
    """

    enabled = True

    def __init__(self, tree: Tree, session_id: int) -> None:
        self.tree, self.session_id = tree, session_id
        self.groups = GroupRegistry()
        self.leased, self.away, self.mute = True, False, False
        self.settled, self.revision = True, 0
        self.held_up: asyncio.Event | None = None
        self.running = self.running_max = self.writes = self.asked = 0

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T:
        self.running += 1
        self.asked += 1
        self.running_max = max(self.running, self.running_max)
        self.writes += operation.__name__ in ("write", "write_together")
        try:
            await asyncio.sleep(0)
            if self.held_up is not None:
                await self.held_up.wait()
            if self.away or session_id not in (None, self.session_id):
                operation.close()
                raise ZooKeeperAway("away")
            if self.mute:
                self._without_an_answer(operation)
                raise ZooKeeperAway("done, but the answer is lost")
            result: T = self.tree.run(operation, self.session_id)
            return result
        finally:
            self.running -= 1

    def _without_an_answer(self, operation: Operation[Any]) -> None:
        with contextlib.suppress(StopIteration):
            requests = next(operation)
            while True:
                replies = [self.tree.answer(request, self.session_id) for request in requests]
                if any(request.verb in ("multi", "create", "set", "delete") for request in requests):
                    break
                requests = operation.send(replies)
        operation.close()


class Broker:
    """One broker's offsets.  ``elsewhere``: groups that another is to coordinate; ``lost``: what it dissolved."""

    def __init__(self, tree: Tree, broker_id: int = 1, offsets_max: int = 1_000) -> None:
        self.zookeeper = SlowZooKeeper(tree, broker_id)
        self.elsewhere: set[str] = set()
        self.members: set[str] = set()
        self.lost: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        epochs = count(1)
        self.offsets = CommittedOffsets(
            self.zookeeper,
            Claimant(broker_id, str(broker_id)),
            self.spawn,
            offsets_max=offsets_max,
            coordinates=lambda group: group not in self.elsewhere,
            new_epoch=lambda: f"{broker_id}-{next(epochs)}",
            clock_ms=lambda: 1_000,
            members=self,
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def has_members(self, group: str) -> bool:
        return group in self.members

    def lose(self, group: str) -> None:
        self.members.discard(group)
        self.lost.append(group)

    async def commit(self, to: int | None, part: TopicPartition = PART, **more: Any) -> Mapping[Any, ApplianceError]:
        change = None if to is None else CommittedOffset(to)
        return await self.offsets.commit("g", {part: change}, **more)

    async def stored(self) -> dict[TopicPartition, int]:
        return {part: at.offset for part, at in (await self.offsets.read("g", None)).items()}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again at once; a commit has longer than the processor may be away for."""
    monkeypatch.setattr(committed_offsets, "COMMIT_MS_MAX", 20_000)
    monkeypatch.setattr(committed_offsets, "RETRY_S", 0.002)


@pytest.fixture
def given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "COMMIT_MS_MAX", 400)


def test_any_number_of_pipelined_commits_succeed_and_the_newest_is_stored() -> None:
    async def scenario() -> None:
        broker = Broker(Tree())
        assert await asyncio.gather(*(broker.commit(n) for n in range(1, 1_001))) == [{}] * 1_000
        assert await broker.stored() == {PART: 1_000}
        assert broker.zookeeper.running_max == 1, "one write at a time"
        assert broker.zookeeper.writes <= 3, "what has come meanwhile is one write"

    run(scenario())


def test_the_commits_of_many_groups_in_one_turn_are_one_write_and_a_busy_group_keeps_none_waiting() -> None:
    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree)
        names = [f"g{number}" for number in range(100)]

        async def commit(name: str, to: int) -> None:
            assert await broker.offsets.commit(name, {PART: CommittedOffset(to)}) == {}

        await asyncio.gather(*(commit(name, 1) for name in names))
        broker.zookeeper.writes = 0
        await asyncio.gather(*(commit(name, 2) for name in names))
        assert broker.zookeeper.writes == 1
        async with broker.offsets.claims.locked("g7"):  # as for its snapshot
            late = asyncio.ensure_future(commit("g7", 3))
            await asyncio.gather(*(commit(name, 3) for name in names if name != "g7"))
            assert not late.done() and tree.nodes[offset("g7", PART)].value == b"2"
        await late
        assert {tree.nodes[offset(name, PART)].value for name in names} == {b"3"}

    run(scenario())


def test_a_group_is_not_claimed_for_commits_that_were_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "COMMIT_MS_MAX", 20)

    async def scenario() -> None:
        broker = Broker(Tree())
        async with broker.offsets.claims.locked("g"):
            with pytest.raises(RequestTimedOut):
                await broker.commit(1)
        await asyncio.gather(*broker.tasks)
        assert broker.zookeeper.asked == 0 and broker.offsets.claims.get("g") is None

    run(scenario())


def test_each_partition_has_its_newest_and_a_deletion_is_a_commit_like_any_other() -> None:
    async def scenario() -> None:
        broker = Broker(Tree())
        await broker.commit(1, OTHER)
        broker.zookeeper.held_up = asyncio.Event()
        waiting = [asyncio.ensure_future(broker.commit(to, part)) for to, part in
                   [(5, PART), (6, OTHER), (None, PART), (7, PART), (8, OTHER), (None, OTHER)]]  # fmt: skip
        await asyncio.sleep(0.01)
        broker.zookeeper.held_up.set()
        assert await asyncio.gather(*waiting) == [{}] * 6
        assert await broker.stored() == {PART: 7}

    run(scenario())


@pytest.mark.usefixtures("given_up_soon")
def test_a_commit_waits_for_zookeeper_and_what_was_refused_is_never_stored_afterwards() -> None:
    async def scenario() -> None:
        broker = Broker(Tree())
        await broker.commit(1)
        broker.zookeeper.away = True
        with pytest.raises(RequestTimedOut):
            await broker.commit(2)
        late = asyncio.ensure_future(broker.commit(3))
        await asyncio.sleep(0.05)
        broker.zookeeper.away = False
        assert await late == {}
        await asyncio.sleep(0.05)
        assert await broker.stored() == {PART: 3}
        broker.zookeeper.away = True
        with pytest.raises(RequestTimedOut):
            await broker.commit(4)
        await asyncio.sleep(0.01)  # what was on its way at that moment would have landed
        broker.zookeeper.away = False
        await asyncio.sleep(0.05)
        assert await broker.stored() == {PART: 3}, "nobody was told that it is stored"

    run(scenario())


def test_a_reader_sees_what_was_committed_before_it_asked() -> None:
    async def scenario() -> None:
        broker = Broker(Tree())
        broker.zookeeper.away = True
        commit = asyncio.ensure_future(broker.commit(5))
        await asyncio.sleep(0)
        read = asyncio.ensure_future(broker.stored())
        await asyncio.sleep(0.01)
        broker.zookeeper.away = False
        assert await read == {PART: 5} and await commit == {}

    run(scenario())


def test_a_reader_sees_a_commit_whose_write_is_on_its_way() -> None:
    async def scenario() -> None:
        broker = Broker(Tree())
        await broker.commit(1)
        broker.members.add("g")
        assert await broker.stored() == {PART: 1}
        broker.zookeeper.held_up = asyncio.Event()
        commit = asyncio.ensure_future(broker.commit(2))
        await asyncio.sleep(0.01)
        read = asyncio.ensure_future(broker.stored())
        await asyncio.sleep(0.01)
        broker.zookeeper.held_up.set()
        assert await commit == {} and await read == {PART: 2}

    run(scenario())


def test_a_claimed_group_is_read_from_memory() -> None:
    """Goal: what a claim makes certain is asked once; what it does not is never answered from memory."""

    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree)
        await broker.commit(1)
        await broker.stored()  # the nodes above the offset are new since the claim was made
        asked = broker.zookeeper.asked
        assert await broker.stored() == {PART: 1} and broker.zookeeper.asked == asked
        await broker.commit(2)
        await broker.commit(3, OTHER)
        await broker.commit(None)
        assert await broker.stored() == {OTHER: 3} and broker.zookeeper.asked == asked + 3, "one for each write"
        assert await broker.offsets.read("g", [PART]) == {}
        for revision, questions in ((1, 5), (2, 6), (2, 6)):
            assert await broker.offsets.read("g", None, revision) == {OTHER: CommittedOffset(3)}
            assert broker.zookeeper.asked == asked + questions, "topics have changed: a look; then the commits' nodes"

    run(scenario())


def test_the_end_of_a_topic_and_its_return_change_what_is_in_memory() -> None:
    """Goal: positions that a deletion has taken away are gone, and those that came back with their topic are there."""

    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree)
        id = "b" * 32
        change = {PART: CommittedOffset(5, topic_id=id), TopicPartition("other", 0): CommittedOffset(6)}
        assert await broker.offsets.commit("g", change) == {}

        async def stored(revision: int, anew: bool = False) -> dict[str, int]:
            found = await broker.offsets.read("g", None, revision, anew=anew)
            return {part.topic: at.offset for part, at in found.items()}

        both = {"logs": 5, "other": 6}
        assert await stored(1) == both
        tree.run(deletion.retire_topic("logs", id, trash=True))
        assert await stored(1, anew=True) == await stored(2) == {"other": 6}
        tree.run(deletion.put_offsets_back(id, "logs"))
        assert await stored(3) == await stored(3) == both
        asked = broker.zookeeper.asked
        assert await stored(3) == both and broker.zookeeper.asked == asked

    run(scenario())


@pytest.mark.parametrize("how", ["read in between", "claim in between", "first attempt timed out", "late commit"])
def test_offsets_that_come_back_while_somebody_reads(how: str) -> None:
    """Goal: what a group has in memory is what is stored, however far the topic's return had come at the last look."""

    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree)
        id, parts = "b" * 32, [TopicPartition("logs", number) for number in range(4)]
        assert await broker.offsets.commit("g", {part: CommittedOffset(100, topic_id=id) for part in parts}) == {}
        assert await broker.offsets.commit("g", {TopicPartition("other", 0): CommittedOffset(6)}) == {}
        tree.run(deletion.retire_topic("logs", id, trash=True))
        if how == "late commit":  # accepted before the deletion
            assert await broker.offsets.commit("g", {parts[0]: CommittedOffset(200, topic_id=id)}) == {}
        assert len(await broker.offsets.read("g", None, 2)) == 1 + (how == "late commit")
        back = deletion.put_offsets_back(id, "logs")
        requests = next(back)
        while offset("g", parts[1]) not in tree.nodes:
            replies = []
            for request in requests:  # ZooKeeper answers reads between any two requests
                replies.append(tree.answer(request))
                if request.path == offset("g", parts[1]) and replies[-1] == 0:
                    if how == "claim in between":
                        broker.offsets.claims.unclaim(broker.offsets.claims.entry("g"))
                        await broker.offsets.claim("g")
                    await broker.offsets.read("g", None, 2)
            requests = back.send(replies)
        if how == "first attempt timed out":
            back.close()
            tree.run(deletion.put_offsets_back(id, "logs"))
        else:
            with contextlib.suppress(StopIteration):
                while True:
                    requests = back.send([tree.answer(request) for request in requests])
        stored = tree.run(claims.read("g", None))
        assert len(stored) == 5 and await broker.offsets.read("g", None, 3) == stored
        assert stored[parts[0]].offset == (200 if how == "late commit" else 100), "no position goes back"

    run(scenario())


def test_a_topic_of_many_partitions_comes_back_in_few_round_trips() -> None:
    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree, offsets_max=10_000)
        id, parts = "b" * 32, [TopicPartition("logs", number) for number in range(500)]
        for name in ("g", "h"):
            await broker.offsets.commit(name, {part: CommittedOffset(100, topic_id=id) for part in parts})
        tree.run(deletion.retire_topic("logs", id, trash=True))
        back, trips = deletion.put_offsets_back(id, "logs"), 0
        requests = next(back)
        try:
            while True:
                trips += 1
                requests = back.send([tree.answer(request) for request in requests])
        except StopIteration as finished:
            assert finished.value == {"g": 500, "h": 500}
        assert trips < 30

    run(scenario())


@pytest.mark.usefixtures("given_up_soon")
def test_what_may_have_been_stored_is_read_anew() -> None:
    async def scenario() -> None:
        broker = Broker(Tree())
        await broker.commit(1)
        broker.members.add("g")
        broker.zookeeper.mute = True
        with pytest.raises(RequestTimedOut):
            await broker.commit(2)
        broker.zookeeper.mute = False
        assert await broker.stored() == {PART: 2}

    run(scenario())


@pytest.mark.usefixtures("given_up_soon")
def test_the_states_of_a_claim() -> None:
    """Goal: every line of the table.  Method: two brokers on one tree, sessions and leases that end by hand."""

    async def scenario() -> None:
        tree = Tree()
        one, two = Broker(tree, 1), Broker(tree, 2)
        assert one.offsets.claims.state("g") is ClaimState.UNCLAIMED
        one.zookeeper.held_up = asyncio.Event()
        claiming = asyncio.ensure_future(one.offsets.claim("g"))
        await asyncio.sleep(0.01)
        assert one.offsets.claims.state("g") is ClaimState.CLAIMING
        one.zookeeper.held_up.set()
        await claiming
        one.members.add("g")
        assert one.offsets.claims.state("g") is ClaimState.HELD
        # CLAIMING -> UNCLAIMED: another has it
        with pytest.raises(ZooKeeperAway, match="broker 1 still"):
            await two.offsets.claim("g")
        assert two.offsets.claims.state("g") is ClaimState.UNCLAIMED
        # HELD -> HELD: the lease was over, but the session lives
        one.zookeeper.leased = False
        assert not one.offsets.claims.leads
        with pytest.raises(ZooKeeperAway):
            await one.offsets.claim("g")
        with pytest.raises(RequestTimedOut):
            await one.commit(1, protocol_type="consumer")
        one.zookeeper.leased = True
        await one.offsets.claim("g")
        assert await one.commit(2, protocol_type="consumer") == {} and not one.lost
        # HELD -> UNCLAIMED: cut off, deposed, and back with a new session
        one.zookeeper.leased = False
        tree.expire(1)
        await two.offsets.claim("g")
        assert await two.commit(1_000) == {}
        one.zookeeper.session_id, one.zookeeper.leased = 3, True
        one.offsets.claims.new_session()
        assert one.lost == ["g"] and one.offsets.claims.state("g") is ClaimState.UNCLAIMED
        with pytest.raises(RequestTimedOut):
            await one.commit(3, protocol_type="consumer")
        assert await two.stored() == {PART: 1_000}
        # HELD -> UNCLAIMED: another broker is to coordinate it
        two.elsewhere.add("g")
        await two.offsets.claims.review()
        assert two.lost == ["g"] and two.offsets.claims.state("g") is ClaimState.UNCLAIMED
        with pytest.raises(NotCoordinator):
            await two.commit(4)
        await one.offsets.claim("g")
        # HELD -> UNCLAIMED: idle
        one.members.clear()
        await one.offsets.claims.tidy()
        assert one.offsets.claims.state("g") is ClaimState.HELD
        one.offsets.claims._groups["g"].used -= committed_offsets.CLAIM_IDLE_S
        await one.offsets.claims.tidy()
        assert one.offsets.claims.state("g") is ClaimState.UNCLAIMED and not one.offsets.claims._groups
        # HELD -> UNCLAIMED: nobody in it, and no positions
        two.elsewhere.clear()
        await two.offsets.claim("g")
        await two.commit(None)
        await two.offsets.note_emptied("g")
        assert two.offsets.claims.state("g") is ClaimState.UNCLAIMED and group("g") not in tree.nodes

    run(scenario())


def test_a_group_without_a_claim_is_still_known_to_have_offsets() -> None:
    """Goal: what is noted at a stop, whose session is over, has the groups that came since the last check of all."""

    async def scenario() -> None:
        broker = Broker(Tree())
        broker.offsets.counted({})
        assert await broker.commit(7) == {} and broker.offsets.topics() == {"g": {"logs"}}
        broker.offsets.claims.unclaim(broker.offsets.claims.entry("g"))
        assert broker.offsets.claims.held() == [] and broker.offsets.topics() == {"g": {"logs"}}
        assert await broker.commit(None) == {} and broker.offsets.topics() == {}
        broker.offsets.claims.unclaim(broker.offsets.claims.entry("g"))
        assert broker.offsets.topics() == {}

    run(scenario())


def test_a_pump_that_ends_late_forgets_no_claim_that_was_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "COMMIT_MS_MAX", 20)
    monkeypatch.setattr(committed_offsets, "RETRY_S", 0.05)

    async def scenario() -> None:
        broker = Broker(Tree())
        broker.zookeeper.held_up = asyncio.Event()
        with pytest.raises(RequestTimedOut):
            await broker.commit(1)  # its attempt is still under way
        broker.zookeeper.away = True
        broker.zookeeper.held_up.set()
        await asyncio.sleep(0.01)  # the attempt has failed; the pump pauses
        broker.zookeeper.away = False
        await broker.offsets.claim("g")
        await asyncio.gather(*broker.tasks)
        assert broker.offsets.claims.state("g") is ClaimState.HELD

    run(scenario())


async def taken(broker: Broker) -> None:
    """The group's next coordinator has it, after some attempts."""
    while broker.offsets.claims.state("g") is not ClaimState.HELD:
        with contextlib.suppress(ZooKeeperAway):
            await broker.offsets.claim("g")
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("positions_stored", [False, True])
@pytest.mark.parametrize("trouble", ["away", "mute"])
def test_a_claim_that_cannot_be_given_back_at_once_is_given_back_later(trouble: str, positions_stored: bool) -> None:
    """The others of the same review are given back at once."""

    async def scenario() -> None:
        tree = Tree()
        one, two = Broker(tree, 1), Broker(tree, 2)
        await two.offsets.claim("g")
        if positions_stored:
            await two.commit(1)
        two.elsewhere.add("g")
        setattr(two.zookeeper, trouble, True)
        await two.offsets.claims.review()
        setattr(two.zookeeper, trouble, False)
        await taken(one)
        await asyncio.gather(*two.tasks)
        assert not two.offsets.claims._groups and not two.offsets.claims._withdrawing

    run(scenario())


def test_a_claim_that_nobody_knows_was_made_keeps_no_other_out() -> None:
    async def scenario() -> None:
        tree = Tree()
        one, two = Broker(tree, 1), Broker(tree, 2)
        two.zookeeper.mute = True
        with pytest.raises(ZooKeeperAway):
            await two.offsets.claim("g")
        two.zookeeper.mute = False
        await taken(one)
        await asyncio.gather(*two.tasks)
        assert not two.offsets.claims._groups and one.offsets.claims.state("g") is ClaimState.HELD

    run(scenario())


def test_a_claim_is_given_back_although_a_write_was_put_back_and_somebody_has_come() -> None:
    """Method: the group is given up while a write is under way that ZooKeeper does not answer."""

    async def scenario() -> None:
        tree = Tree()
        one, two = Broker(tree, 1), Broker(tree, 2)
        await two.commit(1, protocol_type="consumer")
        two.zookeeper.held_up = asyncio.Event()
        writing = asyncio.create_task(two.commit(2))
        await asyncio.sleep(0.005)
        two.elsewhere.add("g")
        review = asyncio.create_task(two.offsets.claims.review())
        await asyncio.sleep(0.005)
        two.members.add("g")
        late = asyncio.create_task(two.commit(3))
        two.zookeeper.away = True
        two.zookeeper.held_up.set()
        await asyncio.sleep(0.005)
        two.zookeeper.away = False
        await review
        for refused in (writing, late):
            with pytest.raises(NotCoordinator):
                await refused
        assert not two.members
        await taken(one)
        assert await one.stored() == {PART: 1}

    run(scenario())


def test_withdrawing_ends_with_the_session() -> None:
    async def scenario() -> None:
        two = Broker(Tree(), 2)
        two.zookeeper.away = True
        with pytest.raises(ZooKeeperAway):
            await two.offsets.claim("g")
        await asyncio.sleep(0.005)
        assert two.offsets.claims._withdrawing
        two.zookeeper.session_id = 3
        await asyncio.gather(*two.tasks)
        assert not two.offsets.claims._groups and not two.offsets.claims._withdrawing

    run(scenario())


def test_a_deposed_coordinator_dissolves_its_group_at_the_first_write_and_stores_nothing() -> None:
    async def scenario() -> None:
        tree = Tree()
        one, two = Broker(tree, 1), Broker(tree, 2)
        await one.commit(1, protocol_type="consumer")
        one.members.add("g")
        tree.expire(1)  # and it does not know yet
        await two.commit(1_000)
        with pytest.raises(NotCoordinator):
            await one.commit(2, protocol_type="consumer")
        assert one.lost == ["g"] and await two.stored() == {PART: 1_000}
        tree.expire(2)
        assert await one.commit(3) == {}, "who is no member commits with the next claim"

    run(scenario())


def test_a_commit_of_a_dissolved_group_is_not_stored_under_the_next_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what another broker has stored meanwhile stays.

    Method: the commit waits behind other transactions when the session ends; then the group comes back to its broker.
    """
    monkeypatch.setattr(committed_offsets, "COMMIT_MS_MAX", 5_000)
    monkeypatch.setattr(claims, "PARTS_MAX", 3)  # one group in a transaction: as many with 100 offsets each

    async def scenario() -> None:
        one, two = Broker(tree := Tree(), 1), Broker(tree, 2)
        groups = [*(f"busy-{number}" for number in range(20)), "g"]

        async def commit(broker: Broker, name: str, to: int) -> Mapping[Any, ApplianceError]:
            return await broker.offsets.commit(name, {PART: CommittedOffset(to)}, "consumer")

        for name in groups:
            assert await commit(one, name, 100) == {}
        one.members.add("g")
        one.zookeeper.held_up = asyncio.Event()
        waiting = [asyncio.ensure_future(commit(one, name, 200)) for name in groups]
        await asyncio.sleep(0.01)
        tree.expire(1)
        assert await commit(two, "g", 300) == {}
        one.zookeeper.session_id = 3
        one.zookeeper.held_up.set()
        for _ in range(6):
            await asyncio.sleep(0)
        one.offsets.claims.new_session()
        assert "g" in one.lost
        two.elsewhere.add("g")
        await two.offsets.claims.review()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[-1], NotCoordinator) and await one.stored() == {PART: 300}

    run(scenario())


def test_a_commit_that_was_refused_with_its_group_is_not_stored_with_the_next_one() -> None:
    async def scenario() -> None:
        broker = Broker(tree := Tree())
        for part in (PART, OTHER):
            await broker.commit(1, part, protocol_type="consumer")
        broker.members.add("g")
        held = broker.offsets.claims.entry("g").held
        assert held is not None
        tree.run(ask([delete(held.path)]))
        broker.zookeeper.held_up = asyncio.Event()
        refused = asyncio.ensure_future(broker.commit(100, protocol_type="consumer"))
        await asyncio.sleep(0.01)
        saving = asyncio.ensure_future(broker.offsets.save("g", b"members"))  # it keeps what is known of the group
        await asyncio.sleep(0.01)
        broker.zookeeper.held_up.set()
        with pytest.raises(NotCoordinator):
            await refused
        await saving
        await broker.commit(7, OTHER, protocol_type="consumer")
        assert await broker.stored() == {PART: 1, OTHER: 7}

    run(scenario())


def test_nothing_stays_of_groups_that_were_only_asked_for_or_left_without_a_commit() -> None:
    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree)
        for n in range(100):
            assert not await broker.offsets.read(f"typo-{n}", [PART])
            assert not await broker.offsets.remove(f"typo-{n}")
            await broker.offsets.note_active(f"typo-{n}")
            await broker.offsets.claim(f"joined-{n}")
            await broker.offsets.note_emptied(f"joined-{n}")
        assert not broker.offsets.claims._groups and not broker.offsets.count.total
        assert not any(path.startswith("/consumers/") for path in tree.nodes)

    run(scenario())


def test_a_group_that_somebody_joins_while_it_is_cleaned_up_stays() -> None:
    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree)
        for _ in range(20):
            await broker.offsets.claim("g")

            async def join() -> None:
                await broker.offsets.claim("g")
                broker.members.add("g")  # as a join does: nothing is awaited in between

            await asyncio.gather(broker.offsets.note_emptied("g"), join(), broker.offsets.note_emptied("g"))
            assert await broker.commit(1, protocol_type="consumer") == {} and not broker.lost
            await broker.commit(None)
            broker.members.clear()

    run(scenario())


def test_positions_have_a_maximum_with_a_name() -> None:
    async def scenario() -> None:
        broker = Broker(Tree(), offsets_max=4)
        parts = [TopicPartition("logs", n) for n in range(6)]
        refused = await broker.offsets.commit("g", {part: CommittedOffset(1) for part in parts})
        assert {part: type(error) for part, error in refused.items()} == dict.fromkeys(parts[4:], OffsetsFull)
        assert await broker.commit(2, parts[0]) == {}, "those that exist may change"
        long = CommittedOffset(1, "x" * UNIT_BYTES)
        assert PART in await broker.offsets.commit("g", {PART: long}), "a long note counts as more"
        assert await broker.commit(None, parts[3]) == {}
        assert isinstance((await broker.offsets.commit("h", {PART: long}))[PART], OffsetsFull)
        assert await broker.offsets.commit("h", {PART: CommittedOffset(1)}) == {}
        assert await broker.offsets.remove("g") and await broker.offsets.commit("h", {PART: long}) == {}

    run(scenario())


def test_the_journal_says_once_that_there_is_no_room(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = Broker(Tree(), offsets_max=2)
        parts = [TopicPartition("t", number) for number in range(4)]
        for part in parts[:2]:
            await broker.commit(1, part)
        for part in (parts[2], parts[0], parts[3], parts[2]):
            await broker.commit(2, part)
        await broker.commit(None, parts[0])
        for _ in range(2):  # one fits, the other does not
            await broker.offsets.commit("g", {part: CommittedOffset(1) for part in parts[2:]})
        await broker.commit(1, parts[3])
        broker.offsets.count.offsets_max = 3
        await broker.commit(1, parts[3])
        await broker.commit(1, parts[0])

    run(scenario())
    assert ["new offsets are refused" in line for line in caplog.messages] == [True, True, True]


def test_what_others_have_is_counted_too() -> None:
    async def scenario() -> None:
        broker = Broker(Tree(), offsets_max=3)
        broker.offsets.counted({"theirs": {PART: 10, OTHER: 10 + UNIT_BYTES}})
        assert isinstance((await broker.commit(1))[PART], OffsetsFull)
        broker.offsets.counted({"theirs": {PART: 10}})
        assert await broker.commit(1) == {}

    run(scenario())


def test_claims_are_bounded_and_idle_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "CLAIMS_MAX", 3)

    async def scenario() -> None:
        broker = Broker(Tree())
        for n in range(10):
            await broker.offsets.claim(f"g{n}")
        assert sum(entry.held is not None for entry in broker.offsets.claims._groups.values()) <= 3
        for n in range(3):
            broker.members.add(f"h{n}")
            await broker.offsets.claim(f"h{n}")
        with pytest.raises(ZooKeeperAway, match="3 groups already"):
            await broker.offsets.claim("one more")

    run(scenario())


def test_a_change_by_hand_in_zookeeper_is_overwritten_and_a_foreign_claim_is_named() -> None:
    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree)
        await broker.commit(1)

        def meddle() -> Operation[None]:
            yield from ask([delete(offset("g", PART)), create(offset("g", OTHER), b"9")])

        tree.run(meddle())
        assert await broker.offsets.commit("g", {PART: CommittedOffset(2), OTHER: CommittedOffset(3)}) == {}
        assert await broker.stored() == {PART: 2, OTHER: 3}

        def junk() -> Operation[None]:
            yield from ask([create(f"{group('h')}/{claims.CLAIM}x", b"junk", ephemeral=True)])

        tree.run(junk(), 9)
        with pytest.raises(ApplianceError, match="is no claim of a coordinator"):
            await broker.offsets.commit("h", {PART: CommittedOffset(1)})

    run(scenario())


def test_positions_expire_unless_they_change_or_somebody_is_there() -> None:
    async def scenario() -> None:
        tree = Tree()
        broker = Broker(tree)
        await broker.offsets.commit("g", {PART: CommittedOffset(1), OTHER: CommittedOffset(1)}, "consumer")
        assert claims.decode_info(tree.nodes[group("g")].value) == GroupInfo("consumer", 1_000)
        seen = tree.run(claims.read_groups(["g"]))["g"]
        await broker.commit(2)
        broker.members.add("g")
        assert await broker.offsets.expire("g", seen.nodes) == 0
        broker.members.clear()
        assert await broker.offsets.expire("g", seen.nodes) == 1
        assert await broker.stored() == {PART: 2}
        seen = tree.run(claims.read_groups(["g"]))["g"]
        assert await broker.offsets.expire("g", seen.nodes) == 1
        assert not any(path.startswith("/consumers/") for path in tree.nodes)

    run(scenario())


def test_what_is_stored_of_members_goes_with_the_group_to_its_next_coordinator() -> None:
    """Whatever the one that had it does afterwards; and it is given once under each claim."""

    async def scenario() -> None:
        tree = Tree()
        first, second = Broker(tree), Broker(tree, 2)
        assert await first.offsets.claim("g") == b""
        await first.offsets.save("g", b"one")
        await first.offsets.save("g", b"two")
        first.elsewhere.add("g")
        await first.offsets.claims.review()
        assert await second.offsets.claim("g") == b"two"
        assert await second.offsets.claim("g") == b""
        await second.offsets.save("g", b"three")
        await first.offsets.note_emptied("g")
        second.elsewhere.add("g")
        await second.offsets.claims.review()
        first.elsewhere.clear()
        assert await first.offsets.claim("g", make=False) == b"three"
        await first.offsets.save("g", None)
        await first.offsets.note_emptied("g")
        assert await second.zookeeper.ask(GroupRegistry().groups()) == []

    run(scenario())


def test_a_group_whose_members_have_not_been_asked_for_is_not_empty() -> None:
    async def scenario() -> None:
        tree = Tree()
        first, second = Broker(tree), Broker(tree, 2)
        await first.offsets.claim("g")
        await first.offsets.save("g", b"members")
        first.elsewhere.add("g")
        await first.offsets.claims.review()
        await second.commit(1)
        with pytest.raises(InvalidRequest, match="may have live members"):
            await second.offsets.remove("g")
        await second.offsets.note_emptied("g")
        assert await second.offsets.claim("g") == b"members"

    run(scenario())


def test_members_that_come_while_their_group_is_removed_are_told() -> None:
    async def scenario() -> None:
        broker = Broker(Tree())
        await broker.commit(1)
        removing = asyncio.ensure_future(broker.offsets.remove("g"))
        await asyncio.sleep(0)
        broker.members.add("g")
        assert await removing
        assert broker.lost == ["g"]

    run(scenario())


def test_what_is_too_large_is_not_stored_and_nothing_old_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        broker = Broker(Tree())
        own = broker.offsets.claims
        await broker.offsets.claim("g")
        await broker.offsets.save("g", b"old")
        with pytest.raises(InvalidRequest, match="more members than ZooKeeper takes"):
            await broker.offsets.save("g", bytes(claims.SNAPSHOT_BYTES_MAX + 1))
        assert own.snapshot_bytes == 0
        monkeypatch.setattr(committed_offsets, "SNAPSHOTS_BYTES_MAX", 10)
        await broker.offsets.claim("h")
        await broker.offsets.save("g", b"12345")
        with pytest.raises(OutOfResources):
            await broker.offsets.save("h", b"123456")
        await broker.offsets.save("h", b"12345")
        assert own.snapshot_bytes == 10
        broker.elsewhere |= {"g", "h"}
        await own.review()
        assert own.snapshot_bytes == 0

    run(scenario())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_snapshot_is_one_request_whatever_is_known_of_the_last_one(is_there: bool) -> None:
    """A second request could come behind that of a later call, when this one was given up."""
    tree = Tree()
    held = tree.run(claims.claim_group("g", Claimant(1, "1"), "1", make=True)).held
    for known in (is_there, not is_there):
        step = claims.save("g", held, b"new", is_there=known)
        requests = next(step)
        assert len(requests) == 1
    assert tree.run(claims.save("g", held, b"one", is_there=is_there)) is not is_there
    tree.run(claims.save("g", held, b"one", is_there=False))
    assert tree.run(claims.save("g", held, b"two", is_there=True))
    assert tree.run(claims.save("g", held, None, is_there=is_there))
    assert tree.run(claims.save("g", held, None, is_there=is_there))
