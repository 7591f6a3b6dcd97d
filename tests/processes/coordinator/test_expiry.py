"""appliance.processes.coordinator.expiry: committed offsets expire as in Kafka, and never while in use."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from appliance.processes.coordinator.expiry import CHECK_MS, PAGE_GROUPS, Expiry
from appliance.processes.coordinator.trusted_clock import Now, TrustedClock
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.operations import Operation, ask, create
from appliance.zookeeper.paths import CommittedOffset, Subscription, group, offset

from ...support.zookeeper_fixture import Tree, register_member
from .test_committed_offsets import OTHER, PART, Broker

RETENTION_MS = 800_000
DAY_MS, HOLD_MS = 86_400_000, 86_400_000


class Bench(Broker):
    """A broker whose clock is ZooKeeper's, set by hand."""

    def __init__(self, tree: Tree, broker_id: int = 1) -> None:
        super().__init__(tree, broker_id)
        self.tree = tree
        self.offsets._clock_ms = lambda: tree.clock_ms
        coordinates = lambda group: group not in self.elsewhere  # noqa: E731
        clocks = lambda: Now(tree.clock_ms, tree.clock_ms, "b")  # noqa: E731
        self.clock = TrustedClock(Path("/nonexistent"), lambda report: None, clocks)
        self.clock.begin(0, HOLD_MS)
        self.loaded: list[str] = []
        self.expiry = Expiry(self.zookeeper, self.offsets, coordinates, self.clock, self.has_members, self.load)

    async def load(self, group: str) -> None:
        self.loaded.append(group)

    async def look(self) -> None:
        await self.expiry.expire_groups(RETENTION_MS)

    def later(self, ms: int) -> None:
        self.tree.clock_ms += ms

    async def groups(self) -> list[str]:
        found: list[str] = self.tree.run(GroupRegistry().groups())
        return found


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_members_that_a_coordinator_has_left_are_loaded_and_nothing_of_theirs_goes() -> None:
    async def scenario() -> None:
        bench = Bench(Tree())
        await bench.offsets.claim("g")
        await bench.offsets.save("g", b"members")
        bench.later(5 * RETENTION_MS)
        await bench.look()
        assert bench.loaded == ["g"] and await bench.groups() == ["g"]
        await bench.offsets.save("g", None)
        await bench.look()
        assert bench.loaded == ["g"] and await bench.groups() == []

    run(scenario())


def test_a_check_asks_for_some_groups_at_a_time() -> None:
    """Goal: 10,000 groups at rest are some hundred questions every ten minutes, not 50,000."""

    async def scenario() -> None:
        bench = Bench(Tree())
        count = 2 * PAGE_GROUPS + 1
        for number in range(count):
            await bench.offsets.commit(f"g{number}", {PART: CommittedOffset(number)})
        asked = bench.zookeeper.asked
        await bench.look()
        assert bench.zookeeper.asked - asked == 1 + 3
        assert bench.offsets.count.total == count and len(bench.offsets.topics()) == count

    run(scenario())


def test_a_groups_time_counts_from_when_it_became_empty() -> None:
    async def scenario() -> None:
        bench = Bench(Tree())
        await bench.commit(1, protocol_type="consumer")
        bench.members.add("g")
        bench.later(5 * RETENTION_MS)
        await bench.look()
        assert await bench.stored() == {PART: 1}, "it has members"
        bench.later(RETENTION_MS // 2)
        bench.members.clear()
        await bench.offsets.note_emptied("g")
        bench.later(RETENTION_MS - 100)
        await bench.look()
        assert await bench.stored() == {PART: 1}
        bench.later(200)
        await bench.look()
        assert await bench.groups() == [], "and nothing stays of it"

    run(scenario())


@pytest.mark.parametrize("days", [-10, 10])
def test_a_jump_of_the_clock_expires_nothing(days: int) -> None:
    """Neither what was committed before it, nor what is committed while the clock is wrong."""

    async def scenario() -> None:
        bench = Bench(Tree())
        skew_ms = [0]
        bench.clock._clocks = lambda: Now(bench.tree.clock_ms, bench.tree.clock_ms - skew_ms[0], "b")
        bench.clock.begin(0, HOLD_MS)
        await bench.commit(1, PART)
        skew_ms[0] = days * DAY_MS
        bench.later(days * DAY_MS)
        bench.clock.look_again(HOLD_MS)
        await bench.commit(2, OTHER)
        await bench.look()
        assert await bench.stored() == {PART: 1, OTHER: 2}
        skew_ms[0] = 0
        bench.later(-days * DAY_MS)
        bench.clock.look_again(HOLD_MS)
        await bench.look()
        assert await bench.stored() == {PART: 1, OTHER: 2}
        bench.later(RETENTION_MS + 1_000)
        bench.clock.look_again(HOLD_MS)
        await bench.look()
        assert OTHER not in await bench.stored() or days > 0, "one with a time in the future is kept longer"
        assert PART not in await bench.stored()

    run(scenario())


def test_who_commits_without_joining_has_each_positions_own_time() -> None:
    async def scenario() -> None:
        bench = Bench(Tree())
        await bench.commit(1, PART)
        bench.later(RETENTION_MS // 2)
        await bench.commit(2, OTHER)
        bench.later(RETENTION_MS // 2 + 1_000)
        await bench.look()
        assert await bench.stored() == {OTHER: 2}
        bench.later(RETENTION_MS)
        await bench.look()
        assert await bench.groups() == []

    run(scenario())


def test_members_of_the_native_listener_keep_their_groups_positions() -> None:
    """Also after they have vanished without a word: they were seen not long ago."""

    async def scenario() -> None:
        bench = Bench(Tree())
        await bench.commit(1)
        bench.tree.run(register_member("g", "c-1", Subscription({"logs": 1})), 9)
        for _ in range(30):
            bench.later(RETENTION_MS // 10)
            await bench.look()
        bench.tree.expire(9)
        bench.later(RETENTION_MS * 3 // 4)
        await bench.look()
        assert await bench.stored() == {PART: 1}
        bench.later(RETENTION_MS // 2)
        await bench.look()
        assert await bench.groups() == []

    run(scenario())


def test_what_crashes_and_hands_have_left_is_removed_and_anothers_group_is_not_touched() -> None:
    async def scenario() -> None:
        bench = Bench(Tree())

        def leave(name: str) -> Operation[None]:
            yield from ask([create(f"{group(name)}/{below}") for below in ("ids", "owners/logs", "offsets/logs")])

        def foreign(name: str) -> Operation[None]:
            yield from ask(
                [create(offset(name, PART), b"1"), create(f"{group(name)}/claim-x", b"junk", ephemeral=True)]
            )

        for name in ("ghost", "theirs"):
            bench.tree.run(leave(name), 9)
        bench.tree.run(foreign("broken"), 9)
        bench.elsewhere.add("theirs")
        await bench.offsets.commit("old", {PART: CommittedOffset(1)})
        bench.later(2 * RETENTION_MS)
        await bench.look()
        assert await bench.groups() == ["broken", "theirs"], "one that cannot be seen to does not keep the others"

    run(scenario())


def test_all_groups_are_counted_and_looked_at_from_time_to_time() -> None:
    async def scenario() -> None:
        tree = Tree()
        bench, other = Bench(tree, 1), Bench(tree, 2)
        await other.offsets.commit("theirs", {PART: CommittedOffset(1, "x" * 600), OTHER: CommittedOffset(1)})
        bench.elsewhere.add("theirs")
        assert bench.offsets.count.total == 0
        await bench.expiry.run(RETENTION_MS, 1)
        assert bench.offsets.count.total == 3, "a long note counts twice"
        await other.offsets.commit("theirs", {PART: None})
        await bench.expiry.run(RETENTION_MS, CHECK_MS)
        assert bench.offsets.count.total == 3, "not due"
        await bench.expiry.run(RETENTION_MS, CHECK_MS + 1)
        assert bench.offsets.count.total == 1

    run(scenario())
