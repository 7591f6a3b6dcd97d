"""appliance.groups.group_api: members, positions and views, as clients see them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from appliance.groups.cluster import Broker, Commit, RegisteredGroup, RegisteredMember
from appliance.groups.codes import Code
from appliance.groups.group_api import coordinator_of
from appliance.names import TopicPartition
from appliance.wire.kafka.apis import APIS

from .groups_fixture import ASSIGNMENT, KEY, LISTENER, SUBSCRIPTION, Client, FakeCluster, run


class Nobody:
    members: tuple[()] = ()


Stable = tuple[FakeCluster, Client, str]


async def stable(version: int | None = None, **join: Any) -> Stable:
    """A group "g" of one member that owns t-0 and t-1."""
    cluster = FakeCluster()
    cluster.add("t", 2)
    client = Client(cluster)
    joined = await client.join(version=version, **join)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert [member.member_id for member in joined.members] == [joined.member_id]
    synced = await client.ask(
        "SyncGroup",
        min(version, 5) if version is not None else None,
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": ASSIGNMENT}],
    )
    assert (synced.error_code, bytes(synced.assignment)) == (0, ASSIGNMENT)
    return cluster, client, joined.member_id


def commit(member_id: str = "", generation: int = -1, *rows: tuple[str, int, int, str | None]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, partition, offset, note in rows or (("t", 0, 500, "note"),):
        each = {"partition_index": partition, "committed_offset": offset, "committed_metadata": note}
        topics.setdefault(topic, []).append(each)
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }


def codes(reply: Any) -> list[int]:
    return [each.error_code for topic in reply.topics for each in topic.partitions]


@pytest.mark.parametrize("version", range(APIS[KEY["JoinGroup"]].version_max + 1))
def test_join_and_sync_in_every_version(version: int) -> None:
    cluster, _, member_id = run(stable(version))
    shown = cluster.shown["g"]
    assert shown == [RegisteredMember(member_id, "me", "/10.0.0.7", ("t",), (("t", 0), ("t", 1)))]


def test_heartbeat_and_leave_in_every_version() -> None:
    async def scenario(version: int) -> None:
        cluster, client, member_id = await stable()
        beat: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": member_id}
        assert (await client.ask("Heartbeat", min(version, 4), **beat)).error_code == 0
        late = await client.ask("Heartbeat", min(version, 4), **(beat | {"generation_id": 0}))
        assert late.error_code == Code.ILLEGAL_GENERATION
        if version < 3:
            left = await client.ask("LeaveGroup", version, group_id="g", member_id=member_id)
            assert left.error_code == 0
        else:
            members = [{"member_id": member_id}, {"member_id": "stranger"}]
            left = await client.ask("LeaveGroup", version, group_id="g", members=members)
            assert [each.error_code for each in left.members] == [0, Code.UNKNOWN_MEMBER_ID]
        assert cluster.shown["g"] == []
        assert not client.door.groups()
        again = await client.ask("Heartbeat", **beat)
        assert again.error_code == Code.UNKNOWN_MEMBER_ID

    for version in range(APIS[KEY["LeaveGroup"]].version_max + 1):
        run(scenario(version))


def test_a_waiting_join_is_answered_when_its_time_has_come() -> None:
    async def scenario() -> None:
        client = Client(FakeCluster(), initial_delay_ms=50)
        first, second = await asyncio.gather(client.join(), client.join())
        assert first.generation_id == second.generation_id == 1
        assert sorted([len(first.members), len(second.members)]) == [0, 2]
        client.door.close()

    run(scenario())


def test_members_that_wait_leave_room_for_everybody_else() -> None:
    """Goal: whoever waits for other members takes only a part of the requests that may be unanswered."""

    async def scenario() -> None:
        client = Client(FakeCluster(), initial_delay_ms=60_000, waits_max=2)
        waiting = [asyncio.ensure_future(client.join(version=3)) for _ in range(2)]
        while len(client.door.groups().get("g", Nobody).members) < 2:
            await asyncio.sleep(0)
        assert (await client.join(version=3)).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        waiting = [asyncio.ensure_future(client.join(version=3, group_id="h"))]
        while "h" not in client.door.groups():
            await asyncio.sleep(0)
        waiting[0].cancel()
        client.door.close()

    run(scenario())


def test_a_silent_member_goes_by_the_clock() -> None:
    async def scenario() -> None:
        client = Client(FakeCluster(), session_ms_min=1)
        await client.join(session_timeout_ms=30)
        while client.door.groups():
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


def test_positions_may_be_kept_without_a_groups_name() -> None:
    """As in Kafka, whose old simple consumers commit so."""

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add("t", 2)
        client = Client(cluster)
        assert codes(await client.ask("OffsetCommit", **(commit() | {"group_id": ""}))) == [0]
        fetched = await client.ask("OffsetFetch", 7, group_id="", topics=None)
        assert fetched.error_code == 0 and fetched.topics[0].partitions[0].committed_offset == 500
        described = await client.ask("DescribeGroups", groups=[""])
        assert (described.groups[0].error_code, described.groups[0].group_state) == (0, "Empty")
        assert (await client.ask("DeleteGroups", groups_names=[""])).results[0].error_code == 0
        assert not cluster.positions

    run(scenario())


def test_a_group_of_another_broker_is_refused_and_dissolved() -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        other = next(n for n in range(2, 99) if coordinator_of("g", [cluster.live[0], Broker(n, "h", 1)]).id == n)
        cluster.live.append(Broker(other, "there", 9092))
        beat = await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member_id)
        assert beat.error_code == Code.NOT_COORDINATOR
        assert not client.door.groups() and cluster.shown["g"] == []
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


def test_members_of_both_doors_do_not_mix() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        native = RegisteredMember("n", "", "host", ("t",), (("t", 0),))
        cluster.native["g"] = RegisteredGroup("g", True, (native,))
        client = Client(cluster)
        assert (await client.join()).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        cluster.away = True
        assert (await client.join()).error_code == Code.COORDINATOR_NOT_AVAILABLE, "nobody knows"

    run(scenario())


# Positions


@pytest.mark.parametrize("version", range(2, APIS[KEY["OffsetCommit"]].version_max + 1))
def test_commit_in_every_version(version: int) -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        assert codes(await client.ask("OffsetCommit", version, **commit(member_id, 1))) == [0]
        assert cluster.positions["g"] == {("t", 0): Commit(500, "note")}
        stale = await client.ask("OffsetCommit", version, **commit(member_id, 2))
        assert codes(stale) == [Code.ILLEGAL_GENERATION]
        simple = await client.ask("OffsetCommit", version, **commit())
        assert codes(simple) == [Code.UNKNOWN_MEMBER_ID], "the group has members, and this is none of them"

    run(scenario())


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
        assert client.door.groups(), "nobody is put out while nobody could be answered"
        cluster.leased = True
        assert (await client.ask("Heartbeat", **who)).error_code == 0
        client.door.close()

    run(scenario())


def test_a_lost_group_is_dissolved_at_once() -> None:
    async def scenario() -> None:
        client = Client(FakeCluster(), initial_delay_ms=60_000)
        waiting = asyncio.ensure_future(client.join(version=3))
        while not client.door.groups():
            await asyncio.sleep(0)
        client.door.lose("g")
        assert (await waiting).error_code == Code.NOT_COORDINATOR
        assert not client.door.groups()

    run(scenario())


def test_an_empty_group_keeps_its_type_and_commits_their_leader_epoch() -> None:
    async def scenario() -> None:
        _, client, member_id = await stable()
        rows = commit(member_id, 1)
        rows["topics"][0]["partitions"][0]["committed_leader_epoch"] = 5
        assert codes(await client.ask("OffsetCommit", 8, **rows)) == [0]
        await client.ask("LeaveGroup", group_id="g", members=[{"member_id": member_id}])
        listed = (await client.ask("ListGroups")).groups[0]
        assert (listed.protocol_type, listed.group_state) == ("consumer", "Empty")
        described = (await client.ask("DescribeGroups", groups=["g"])).groups[0]
        assert (described.protocol_type, described.group_state) == ("consumer", "Empty")
        fetched = await client.ask("OffsetFetch", 7, group_id="g", topics=None)
        assert fetched.topics[0].partitions[0].committed_leader_epoch == 5

    run(scenario())


def test_each_partition_of_a_commit_is_judged_by_itself() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add("t", 2)
        cluster.positions["g"] = {("t", 1): Commit(7)}
        rows = [("t", 0, 5, None), ("t", 1, -1, ""), ("t", 2, 5, ""), ("none", 0, 5, "")]
        reply = await Client(cluster).ask("OffsetCommit", **commit("", -1, *rows))
        assert codes(reply) == [0, 0, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_OR_PARTITION]
        assert cluster.positions["g"] == {("t", 0): Commit(5)}, "a negative offset takes a position back"
        for note in ("n" * 4097, "\U0001f600" * 1025):
            long = await Client(cluster).ask("OffsetCommit", **commit("", -1, ("t", 0, 5, note)))
            assert codes(long) == [Code.OFFSET_METADATA_TOO_LARGE]

    run(scenario())


@pytest.mark.parametrize("version", range(1, APIS[KEY["OffsetFetch"]].version_max + 1))
def test_fetch_positions_in_every_version(version: int) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add("t", 2)
        cluster.positions["g"] = {("t", 0): Commit(500, "note"), ("t", 1): Commit(9)}
        client = Client(cluster)

        async def fetch(topics: Any) -> tuple[int, list[tuple[int, int, str, int]]]:
            if version >= 8:
                reply = (await client.ask("OffsetFetch", groups=[{"group_id": "g", "topics": topics}])).groups[0]
            else:
                reply = await client.ask("OffsetFetch", version, group_id="g", topics=topics)
            rows = [each for topic in reply.topics for each in topic.partitions]
            found = [(each.partition_index, each.committed_offset, each.metadata, each.error_code) for each in rows]
            return (reply.error_code if version >= 2 else 0), found

        some = [{"name": "t", "partition_indexes": [0, 5]}]
        assert await fetch(some) == (0, [(0, 500, "note", 0), (5, -1, "", 0)])
        if version >= 2:
            assert await fetch(None) == (0, [(0, 500, "note", 0), (1, 9, "", 0)])
        cluster.away = True
        error, rows = await fetch(some)
        assert error == Code.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else rows[0][3] == 14

    run(scenario())


def test_what_a_client_invents_is_not_looked_up() -> None:
    """No topic, no such partition, a path of ZooKeeper: answered "no position" without asking anybody."""

    asked: list[Any] = []

    class Asked(FakeCluster):
        async def committed(self, group: str, partitions: Any) -> Mapping[TopicPartition, Commit]:
            asked.append(partitions)
            return await super().committed(group, partitions)

    async def scenario() -> None:
        cluster = Asked()
        cluster.add("t", 1)
        invented = ["..", ".", "a/b", "", "none", "t"]
        topics = [{"name": name, "partition_indexes": [0, 1, -1, 2**31 - 1]} for name in invented]
        reply = (await Client(cluster).ask("OffsetFetch", groups=[{"group_id": "g", "topics": topics}])).groups[0]
        rows = [each for topic in reply.topics for each in topic.partitions]
        assert reply.error_code == 0 and [topic.name for topic in reply.topics] == invented
        assert {(row.committed_offset, row.error_code) for row in rows} == {(-1, 0)} and len(rows) == 24
        assert asked == [[("t", 0)]]

    run(scenario())


def test_without_zookeeper_positions_are_a_matter_of_trying_again() -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        cluster.away = True
        reply = await client.ask("OffsetCommit", **commit(member_id, 1))
        assert codes(reply) == [Code.REBALANCE_IN_PROGRESS], "which nobody sends again behind newer ones"
        beat = await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member_id)
        assert beat.error_code == 0, "the group itself goes on"

    run(scenario())


def test_positions_are_deleted_where_nobody_reads() -> None:
    async def scenario() -> None:
        cluster, client, _ = await stable()
        cluster.add("u")
        cluster.positions["g"] = {("t", 0): Commit(1), ("u", 0): Commit(1)}
        topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "u", "..")]
        reply = await client.ask("OffsetDelete", group_id="g", topics=topics)
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert (reply.error_code, codes(reply)) == (0, [Code.GROUP_SUBSCRIBED_TO_TOPIC, 0, unknown])
        assert cluster.positions["g"] == {("t", 0): Commit(1)}
        none = await client.ask("OffsetDelete", group_id="unknown", topics=topics)
        assert none.error_code == Code.GROUP_ID_NOT_FOUND

    run(scenario())


def test_positions_of_another_kind_of_group_stay_while_it_lives() -> None:
    async def scenario() -> None:
        client = Client(FakeCluster())
        await client.join(protocol_type="connect")
        reply = await client.ask("OffsetDelete", group_id="g", topics=[])
        assert reply.error_code == Code.NON_EMPTY_GROUP

    run(scenario())


# Views


@pytest.mark.parametrize("version", range(APIS[KEY["DescribeGroups"]].version_max + 1))
def test_describe_in_every_version(version: int) -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        cluster.positions["resting"] = {("t", 0): Commit(1)}
        native = RegisteredMember("n", "app", "host", ("t",), (("t", 0), ("t", 1)))
        cluster.native["paper"] = RegisteredGroup("paper", True, (native,))
        names = ["g", "resting", "paper", "nobody"]
        more = {"include_authorized_operations": True} if version >= 3 else {}
        groups = (await client.ask("DescribeGroups", version, groups=names, **more)).groups
        assert [group.group_state for group in groups] == ["Stable", "Empty", "Stable", "Dead"]
        assert [group.protocol_data for group in groups] == ["range", "", "range", ""]
        (member,) = groups[0].members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "me", "/10.0.0.7")
        assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (SUBSCRIPTION, ASSIGNMENT)
        (shown,) = groups[2].members
        assert (shown.member_id, shown.client_host) == ("n", "host")
        assert bytes(shown.member_assignment)[2:] == ASSIGNMENT[2:], "as Kafka's own consumers write it"

    run(scenario())


def test_list_in_every_version() -> None:
    async def scenario(version: int) -> None:
        cluster, client, _ = await stable()
        cluster.positions["resting"] = {}
        cluster.native["paper"] = RegisteredGroup("paper", True, (RegisteredMember("n", "", "", (), ()),))
        reply = await client.ask("ListGroups", version)
        assert [group.group_id for group in reply.groups] == ["g", "paper", "resting"]
        if version >= 4:
            some = await client.ask("ListGroups", version, states_filter=["stable"])
            assert [group.group_id for group in some.groups] == ["g", "paper"]
        if version >= 5:
            assert {group.group_type for group in reply.groups} == {"classic"}
            for types, count in ((["Classic", "share"], 3), (["consumer"], 0)):
                assert len((await client.ask("ListGroups", version, types_filter=types)).groups) == count
        cluster.away = True
        partly = await client.ask("ListGroups", version)
        assert partly.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        assert [group.group_id for group in partly.groups] == ["g"], "what we know, and that there may be more"

    for version in range(APIS[KEY["ListGroups"]].version_max + 1):
        run(scenario(version))


def test_delete_groups() -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        cluster.positions |= {"g": {}, "resting": {}}
        names = ["g", "resting", "nobody"]
        reply = await client.ask("DeleteGroups", groups_names=names)
        assert [each.error_code for each in reply.results] == [Code.NON_EMPTY_GROUP, 0, Code.GROUP_ID_NOT_FOUND]
        assert list(cluster.positions) == ["g"]
        await client.ask("LeaveGroup", group_id="g", members=[{"member_id": member_id}])
        cluster.away = True
        away = await client.ask("DeleteGroups", groups_names=["g"])
        assert away.results[0].error_code == Code.COORDINATOR_LOAD_IN_PROGRESS

    run(scenario())


def test_the_listener_decides_what_a_client_is_told() -> None:
    cluster = FakeCluster()
    found = run(Client(cluster).ask("FindCoordinator", 3, key_type=0, key="g"))
    assert (found.node_id, found.host, found.port) == (1, "here", 9092), f"asked through {LISTENER}"
