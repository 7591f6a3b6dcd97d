"""appliance.groups.group_coordinator: whose groups are whose, who waits, and whose time is over, as clients see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from appliance.groups.group_coordinator import coordinator_of
from appliance.wire.kafka.codes import Code
from appliance.wire.kafka.metadata_reply import Broker

from ..support.kafka_apis_fixture import Client, FakeCluster, run
from ..support.kafka_group import codes, commit, stable


class Nobody:
    members: tuple[()] = ()


def test_a_waiting_join_is_answered_when_its_time_has_come() -> None:
    async def scenario() -> None:
        client = Client(FakeCluster(), initial_delay_ms=50)
        first, second = await asyncio.gather(client.join(), client.join())
        assert first.generation_id == second.generation_id == 1
        assert sorted([len(first.members), len(second.members)]) == [0, 2]
        client.coordinator.close()

    run(scenario())


def test_members_that_wait_leave_room_for_everybody_else() -> None:
    """Goal: whoever waits for other members takes only a part of the requests that may be unanswered."""

    async def scenario() -> None:
        client = Client(FakeCluster(), initial_delay_ms=60_000, waits_max=2)
        waiting = [asyncio.ensure_future(client.join(version=3)) for _ in range(2)]
        while len(client.coordinator.groups().get("g", Nobody).members) < 2:
            await asyncio.sleep(0)
        assert (await client.join(version=3)).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        waiting = [asyncio.ensure_future(client.join(version=3, group_id="h"))]
        while "h" not in client.coordinator.groups():
            await asyncio.sleep(0)
        waiting[0].cancel()
        client.coordinator.close()

    run(scenario())


def test_a_silent_member_goes_by_the_clock() -> None:
    async def scenario() -> None:
        client = Client(FakeCluster(), session_ms_min=1)
        await client.join(session_timeout_ms=30)
        while client.coordinator.groups():
            await asyncio.sleep(0.005)

    run(scenario())


@pytest.mark.parametrize(
    "request_name, more",
    [("JoinGroup", {}), ("SyncGroup", {}), ("Heartbeat", {}), ("LeaveGroup", {}), ("OffsetDelete", {})],
)
@pytest.mark.parametrize("group_id", ["", "g" * 256])
def test_group_ids_are_checked(request_name: str, more: dict[str, Any], group_id: str) -> None:
    reply = run(Client(FakeCluster()).ask(request_name, group_id=group_id, **more))
    assert reply.error_code == Code.INVALID_GROUP_ID


def test_a_group_of_another_broker_is_refused_and_dissolved() -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        other = next(n for n in range(2, 99) if coordinator_of("g", [cluster.live[0], Broker(n, "h", 1)]).id == n)
        cluster.live.append(Broker(other, "there", 9092))
        beat = await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member_id)
        assert beat.error_code == Code.NOT_COORDINATOR
        assert not client.coordinator.groups() and cluster.shown["g"] == []
        assert (await client.join()).error_code == Code.NOT_COORDINATOR
        assert codes(await client.ask("OffsetCommit", **commit())) == [Code.NOT_COORDINATOR]
        fetched = await client.ask("OffsetFetch", 7, group_id="g", topics=None)
        assert fetched.error_code == Code.NOT_COORDINATOR
        assert (await client.ask("DescribeGroups", groups=["g"])).groups[0].error_code == Code.NOT_COORDINATOR
        assert (await client.ask("DeleteGroups", groups_names=["g"])).results[0].error_code == Code.NOT_COORDINATOR
        found = await client.ask("FindCoordinator", key_type=0, coordinator_keys=["g"])
        assert found.coordinators[0].node_id == other

    run(scenario())


def test_groups_move_little_when_a_broker_goes() -> None:
    brokers = [Broker(n, "h", 1) for n in range(5)]
    names = [f"group-{n}" for n in range(500)]
    before = {name: coordinator_of(name, brokers).id for name in names}
    after = {name: coordinator_of(name, brokers[:4]).id for name in names}
    assert all(before[name] == after[name] for name in names if before[name] != 4)
    assert all(50 < sum(at == n for at in before.values()) < 150 for n in range(5)), "and they are spread"


def test_a_coordinator_without_its_lease_coordinates_nothing_and_costs_nobody_his_place() -> None:
    """Goal: every API of members is refused in a way that is tried again; the time that passed counts for nobody."""

    async def scenario() -> None:
        cluster, client, member_id = await stable(session_timeout_ms=1_000)
        who = {"group_id": "g", "generation_id": 1, "member_id": member_id}
        cluster.leased = False
        assert (await client.join()).error_code == Code.COORDINATOR_NOT_AVAILABLE
        for name in ("Heartbeat", "SyncGroup"):
            assert (await client.ask(name, **who)).error_code == Code.COORDINATOR_NOT_AVAILABLE
        left = await client.ask("LeaveGroup", group_id="g", members=[{"member_id": member_id}])
        assert left.error_code == Code.COORDINATOR_NOT_AVAILABLE
        found = await client.ask("FindCoordinator", key_type=0, coordinator_keys=["g"])
        assert found.coordinators[0].error_code == Code.COORDINATOR_NOT_AVAILABLE
        fetched = await client.ask("OffsetFetch", 7, group_id="g", topics=None)
        assert fetched.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        assert codes(await client.ask("OffsetCommit", **commit(member_id, 1))) == [0], "it waits for ZooKeeper instead"
        await asyncio.sleep(1.2)
        assert client.coordinator.groups(), "nobody is put out while nobody could be answered"
        cluster.leased = True
        assert (await client.ask("Heartbeat", **who)).error_code == 0
        client.coordinator.close()

    run(scenario())


def test_a_lost_group_is_dissolved_at_once() -> None:
    async def scenario() -> None:
        client = Client(FakeCluster(), initial_delay_ms=60_000)
        waiting = asyncio.ensure_future(client.join(version=3))
        while not client.coordinator.groups():
            await asyncio.sleep(0)
        client.coordinator.lose("g")
        assert (await waiting).error_code == Code.NOT_COORDINATOR
        assert not client.coordinator.groups()

    run(scenario())
