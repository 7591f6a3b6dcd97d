"""appliance.groups.consumer_group_api: members of the consumer protocol, and what others see of them, over frames."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from appliance.groups.consumer_group import LEAVE
from appliance.groups.consumer_protocol import assigned_partitions
from appliance.groups.group_coordinator import coordinator_of
from appliance.groups.group_settings import HEARTBEAT
from appliance.groups.store import Commit, RegisteredGroup, RegisteredMember
from appliance.groups.topic_patterns import PATTERN_BYTES_MAX
from appliance.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from appliance.security.principals import ANONYMOUS
from appliance.security.security_state import SecurityState
from appliance.wire.kafka.codes import Code
from appliance.wire.kafka.metadata_reply import Broker

from ..support.kafka_apis_fixture import SUBSCRIPTION, Client, FakeCluster, run
from ..support.kafka_group import codes, commit, stable

ID = "an-id-of-the-client-00"


def two_topics(**limits: int) -> tuple[FakeCluster, Client]:
    cluster = FakeCluster()
    cluster.add("t", 2)
    cluster.add("logs-web", 1)
    return cluster, Client(cluster, **limits)


def joining(**more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"group_id": "g", "member_id": ID, "member_epoch": 0, "rebalance_timeout_ms": 10_000}
    return given | {"subscribed_topic_names": ["t"], "topic_partitions": []} | more


async def beat(client: Client, epoch: int, version: int = 1, **more: Any) -> Any:
    given: dict[str, Any] = {"group_id": "g", "member_id": ID, "member_epoch": epoch}
    return await client.ask("ConsumerGroupHeartbeat", version, **(given | more))


async def join(client: Client, version: int = 1, **more: Any) -> Any:
    return await client.ask("ConsumerGroupHeartbeat", version, **joining(**more))


def assigned(cluster: FakeCluster, reply: Any) -> list[tuple[str, int]]:
    names = {UUID(topic.id): name for name, topic in cluster.all.items()}
    found = reply.assignment.topic_partitions
    return sorted((names[topic.topic_id], number) for topic in found for number in topic.partitions)


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_beats_and_leaves_in_every_version(version: int) -> None:
    async def scenario() -> None:
        cluster, client = two_topics()
        joined = await join(client, version, member_id="" if version == 0 else ID)
        assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval_ms) == (0, 1, 5_000)
        assert joined.member_id == ("1" if version == 0 else ID), "before version 1 the coordinator makes the id"
        assert assigned(cluster, joined) == [("t", 0), ("t", 1)]
        (shown,) = cluster.shown["g"]
        assert (shown.id, shown.topics, shown.partitions) == (joined.member_id, ("t",), (("t", 0), ("t", 1)))
        cluster.add("u")
        again = await beat(client, 1, version, member_id=joined.member_id)
        assert (again.error_code, again.member_epoch, again.assignment) == (0, 1, None)
        left = await beat(client, LEAVE, version, member_id=joined.member_id)
        assert (left.error_code, left.member_epoch) == (0, LEAVE)
        assert cluster.shown["g"] == [] and not client.coordinator.has_members("g")

    run(scenario())


@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"member_id": ""}, Code.INVALID_REQUEST),
        ({"member_epoch": -3}, Code.INVALID_REQUEST),
        ({"member_epoch": -2}, Code.INVALID_REQUEST),
        ({"instance_id": ""}, Code.INVALID_REQUEST),
        ({"rack_id": ""}, Code.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, Code.INVALID_REQUEST),
        ({"topic_partitions": None}, Code.INVALID_REQUEST),
        ({"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, Code.INVALID_REQUEST),
        ({"server_assignor": "mine"}, Code.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, Code.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "a" * (PATTERN_BYTES_MAX + 1)}, Code.INVALID_REGULAR_EXPRESSION),
        ({"group_id": ""}, Code.INVALID_GROUP_ID),
        ({"member_epoch": 1}, Code.UNKNOWN_MEMBER_ID),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(wrong: dict[str, Any], error: Code) -> None:
    _, client = two_topics()
    reply = run(join(client, **wrong))
    assert reply.error_code == error
    assert reply.error_message or error is Code.INVALID_GROUP_ID


def test_a_topic_that_grows_or_is_made_is_assigned_with_the_next_heartbeat() -> None:
    async def scenario() -> None:
        cluster, client = two_topics()
        joined = await join(client, subscribed_topic_names=["logs-mail"], subscribed_topic_regex="logs-.*")
        assert assigned(cluster, joined) == [("logs-web", 0)]
        cluster.add("logs-mail", 2)
        more = await beat(client, 1)
        assert more.member_epoch == 2
        assert assigned(cluster, more) == [("logs-mail", 0), ("logs-mail", 1), ("logs-web", 0)]
        assert (await beat(client, 2)).assignment is None
        without = await beat(client, 2, subscribed_topic_regex="")
        assert without.member_epoch == 2, "it has to give something up first"
        assert assigned(cluster, without) == [("logs-mail", 0), ("logs-mail", 1)]

    run(scenario())


def test_a_regular_expression_matches_what_the_member_may_describe() -> None:
    """A name that it may not describe is refused, as Kafka does."""

    def acl(name: str, resource: ResourceType, operation: Operation) -> Acl:
        return Acl(resource, name, PatternType.LITERAL, ANONYMOUS, "*", operation, Permission.ALLOW)

    async def scenario() -> None:
        cluster, _ = two_topics()
        cluster.authorizes = True
        client = Client(cluster)
        both = {acl("g", ResourceType.GROUP, Operation.READ), acl("t", ResourceType.TOPIC, Operation.DESCRIBE)}
        cluster.security.state = SecurityState(acls=tuple(both))
        joined = await join(client, subscribed_topic_names=None, subscribed_topic_regex=".*")
        assert (joined.error_code, assigned(cluster, joined)) == (0, [("t", 0), ("t", 1)])
        described = await client.ask("ConsumerGroupDescribe", group_ids=["g"])
        assert described.groups[0].error_code == 0
        both.add(acl("logs-web", ResourceType.TOPIC, Operation.DESCRIBE))
        cluster.security.state = SecurityState(acls=tuple(both))
        assert len(assigned(cluster, await beat(client, 1))) == 3, "the right was given meanwhile"
        cluster.security.state = SecurityState(acls=tuple(both - {acl("t", ResourceType.TOPIC, Operation.DESCRIBE)}))
        refused = await join(client, member_id="another", subscribed_topic_names=["logs-web", "t"])
        assert refused.error_code == Code.TOPIC_AUTHORIZATION_FAILED and "'t'" in refused.error_message
        (group,) = (await client.ask("ConsumerGroupDescribe", group_ids=["g"])).groups
        assert (group.error_code, group.members) == (Code.TOPIC_AUTHORIZATION_FAILED, [])

    run(scenario())


@pytest.mark.parametrize("version", [0, 1])
def test_a_group_is_described_in_every_version(version: int) -> None:
    async def scenario() -> None:
        _, client = two_topics()
        await join(client, instance_id="one", rack_id="r", server_assignor="range", subscribed_topic_regex="logs.*")
        await join(client, member_id="other")
        reply = await client.ask("ConsumerGroupDescribe", version, group_ids=["g", "none"])
        group, none = reply.groups
        assert (none.error_code, none.members) == (Code.GROUP_ID_NOT_FOUND, [])
        assert (group.error_code, group.group_state, group.assignor_name) == (0, "Reconciling", "range")
        assert (group.group_epoch, group.assignment_epoch) == (2, 2)
        one, other = group.members
        assert (one.member_id, one.instance_id, one.rack_id, one.member_epoch) == (ID, "one", "r", 1)
        assert (one.client_id, one.client_host, one.subscribed_topic_regex) == ("me", "/10.0.0.7", "logs.*")
        owned = {part.topic_name: part.partitions for part in one.assignment.topic_partitions}
        assert owned == {"t": [0, 1], "logs-web": [0]}
        assert (other.member_epoch, other.assignment.topic_partitions) == (2, [])
        (aim,) = other.target_assignment.topic_partitions
        assert (aim.topic_name, len(aim.partitions)) == ("t", 1)
        assert other.member_type == (1 if version else -1)

    run(scenario())


def test_lists_and_old_descriptions_show_the_group() -> None:
    async def scenario() -> None:
        cluster, client, _ = await stable()
        await join(client, group_id="new")
        groups = (await client.ask("ListGroups", states_filter=[], types_filter=[])).groups
        rows = [(group.group_id, group.group_type, group.protocol_type, group.group_state) for group in groups]
        assert rows == [("g", "classic", "consumer", "Stable"), ("new", "consumer", "consumer", "Stable")]
        only = (await client.ask("ListGroups", states_filter=[], types_filter=["Consumer"])).groups
        assert [group.group_id for group in only] == ["new"]
        (shown,) = (await client.ask("DescribeGroups", groups=["new"])).groups
        assert (shown.group_state, [member.member_id for member in shown.members]) == ("Stable", [ID])
        assert (await client.ask("DeleteGroups", groups_names=["new"])).results[0].error_code == Code.NON_EMPTY_GROUP
        await beat(client, LEAVE, group_id="new")
        (empty,) = (await client.ask("ListGroups", states_filter=["empty"], types_filter=[])).groups
        assert (empty.group_id, empty.protocol_type, empty.group_state) == ("new", "consumer", "Empty")
        assert (await client.ask("DeleteGroups", groups_names=["new"])).results[0].error_code == 0
        assert cluster.shown["new"] == []

    run(scenario())


def test_a_group_changes_its_protocol_while_its_members_go_on() -> None:
    """To the consumer protocol with the first such member, back with the last; what is stored changes with it."""

    async def scenario() -> None:
        cluster, client, classic = await stable()
        joined = await join(client)
        assert (joined.error_code, joined.member_epoch, joined.assignment.topic_partitions) == (0, 2, [])
        (described,) = (await client.ask("ConsumerGroupDescribe", group_ids=["g"])).groups
        assert [(member.member_id, member.member_type) for member in described.members] == [(classic, 0), (ID, 1)]
        cluster.die()
        client = Client(cluster)
        as_member = {"group_id": "g", "generation_id": 1, "member_id": classic}
        assert (await client.ask("Heartbeat", **as_member)).error_code == Code.REBALANCE_IN_PROGRESS
        assert codes(await client.ask("OffsetCommit", 8, **commit(classic, 1))) == [0], "it reads until it joins"
        again = await client.join(classic)
        assert (again.error_code, again.generation_id, again.leader) == (0, 2, "")
        as_member["generation_id"] = 2
        synced = await client.ask("SyncGroup", **as_member)
        assert len(assigned_partitions(bytes(synced.assignment))) == 1
        assert len(assigned(cluster, await beat(client, 2))) == 1
        assert (await client.ask("Heartbeat", **as_member)).error_code == 0
        gone = [part for part in range(2) if ("t", part) not in assigned_partitions(bytes(synced.assignment))]
        late = commit(classic, 1, *(("t", part, 500, "") for part in range(2)))
        assert [
            each.partition_index
            for each in (await client.ask("OffsetCommit", 8, **late)).topics[0].partitions
            if each.error_code == Code.ILLEGAL_GENERATION
        ] == gone, "what another has now"
        assert (await client.ask("ListGroups")).groups[0].group_type == "consumer"
        await beat(client, LEAVE)
        assert (await client.ask("ListGroups")).groups[0].group_type == "classic"
        assert (await beat(client, 2)).error_code == Code.UNKNOWN_MEMBER_ID, "it may join again"
        cluster.die()
        client = Client(cluster)
        assert (await client.ask("Heartbeat", **as_member)).error_code == 0, "a new coordinator has the same generation"
        left = await client.ask("LeaveGroup", group_id="g", members=[{"member_id": classic}])
        assert left.error_code == 0 and not client.coordinator.has_members("g")

    run(scenario())


def test_a_classic_member_of_a_consumer_group_is_checked() -> None:
    async def scenario() -> None:
        _, client = two_topics()
        assert (await join(client)).error_code == 0
        assert (await client.join(protocol_type="connect")).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        broken = [{"name": "range", "metadata": b"\0\1\0"}]
        assert (await client.join(protocols=broken)).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert (await client.join("who")).error_code == Code.UNKNOWN_MEMBER_ID
        assert (await client.join(ID)).error_code == Code.UNKNOWN_MEMBER_ID, "a member of the other protocol"
        assert (await client.join(session_timeout_ms=1)).error_code == Code.INVALID_SESSION_TIMEOUT
        static = await client.join(group_instance_id="one")
        assert static.error_code == 0
        other = [{"name": "sticky", "metadata": SUBSCRIPTION}]
        assert (await client.join(protocols=other)).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        asked = {"group_id": "g", "generation_id": static.generation_id, "member_id": static.member_id}
        wrong = await client.ask("SyncGroup", protocol_name="sticky", **asked)
        assert wrong.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert (await client.ask("SyncGroup", **asked)).error_code == 0
        assert (await client.ask("Heartbeat", **(asked | {"generation_id": 9}))).error_code == Code.ILLEGAL_GENERATION
        back = await client.join(group_instance_id="one")
        assert (back.error_code, back.generation_id) == (0, static.generation_id), "nobody else is disturbed"
        for name in ("Heartbeat", "SyncGroup"):
            fenced = await client.ask(name, group_instance_id="one", **asked)
            assert fenced.error_code == Code.FENCED_INSTANCE_ID
        taken = await join(client, member_id="another", instance_id="one")
        assert taken.error_code == 0, "a classic member does not say that it goes"
        leaving = [{"member_id": back.member_id}, {"member_id": "", "group_instance_id": "one"}, {"member_id": ID}]
        left = await client.ask("LeaveGroup", group_id="g", members=leaving)
        assert [row.error_code for row in left.members] == [Code.UNKNOWN_MEMBER_ID, 0, Code.UNKNOWN_MEMBER_ID]

    run(scenario())


def test_a_group_that_may_not_or_cannot_change_refuses_the_other_protocol() -> None:
    """An empty one does not: whoever comes first chooses."""

    async def scenario() -> None:
        cluster, client, member_id = await stable(upgrades=False)
        refused = await join(client)
        assert refused.error_code == Code.GROUP_ID_NOT_FOUND and "groups.migration" in refused.error_message
        (described,) = (await client.ask("ConsumerGroupDescribe", group_ids=["g"])).groups
        assert described.error_code == Code.GROUP_ID_NOT_FOUND, "so that clients ask DescribeGroups"
        await client.ask("LeaveGroup", group_id="g", members=[{"member_id": member_id}])
        assert (await join(client)).error_code == 0
        for name in ("Heartbeat", "SyncGroup"):
            reply = await client.ask(name, group_id="g", generation_id=1, member_id=member_id)
            assert reply.error_code == Code.UNKNOWN_MEMBER_ID
        await beat(client, LEAVE)
        protocols = [{"name": "range", "metadata": SUBSCRIPTION}]
        assert (await client.join(protocols=protocols)).error_code == 0
        cluster.native["paper"] = RegisteredGroup("paper", True, (RegisteredMember("n", "app", "h", ("t",), ()),))
        assert (await join(client, group_id="paper")).error_code == Code.GROUP_ID_NOT_FOUND
        _, client, _ = await stable(protocol_type="connect")
        refused = await join(client)
        assert refused.error_code == Code.GROUP_ID_NOT_FOUND and "'connect'" in refused.error_message

    run(scenario())


def test_a_group_in_a_rebalance_changes_afterwards() -> None:
    async def scenario() -> None:
        _, client, member_id = await stable()
        joining = asyncio.create_task(client.join())
        while (await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member_id)).error_code == 0:
            await asyncio.sleep(0)
        assert (await join(client)).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        joining.cancel()

    run(scenario())


def test_positions_are_those_of_members_and_survive_them() -> None:
    async def scenario() -> None:
        cluster, client = two_topics()
        await join(client)
        assert codes(await client.ask("OffsetCommit", 9, **commit(ID, 1))) == [0]
        assert cluster.types["g"] == "consumer"
        assert codes(await client.ask("OffsetCommit", 8, **commit(ID, 1))) == [Code.UNSUPPORTED_VERSION]
        assert codes(await client.ask("OffsetCommit", 9, **commit(ID, 2))) == [Code.STALE_MEMBER_EPOCH]
        assert codes(await client.ask("OffsetCommit", 9, **commit("other", 1))) == [Code.UNKNOWN_MEMBER_ID]
        assert codes(await client.ask("OffsetCommit", 9, **commit())) == [Code.UNKNOWN_MEMBER_ID]

        async def fetched(member_id: str | None, epoch: int) -> tuple[int, list[int]]:
            topics = [{"name": "t", "partition_indexes": [0]}]
            asked = {"group_id": "g", "member_id": member_id, "member_epoch": epoch, "topics": topics}
            (group,) = (await client.ask("OffsetFetch", 9, groups=[asked])).groups
            found = [part.committed_offset for topic in group.topics for part in topic.partitions]
            return group.error_code, found

        assert await fetched(ID, 1) == await fetched(None, -1) == (0, [500])
        assert await fetched(ID, 2) == (Code.STALE_MEMBER_EPOCH, []), "and no offset that is not true"
        assert await fetched("other", 1) == (Code.UNKNOWN_MEMBER_ID, [])
        delete = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        kept = await client.ask("OffsetDelete", group_id="g", topics=delete)
        assert codes(kept) == [Code.GROUP_SUBSCRIBED_TO_TOPIC]
        await beat(client, LEAVE)
        assert cluster.positions["g"] == {("t", 0): Commit(500, "note")}
        assert await fetched(ID, 1) == (Code.UNKNOWN_MEMBER_ID, []), "it joins again, and asks then"
        assert codes(await client.ask("OffsetCommit", 9, **commit(ID, 1))) == [Code.UNKNOWN_MEMBER_ID]
        assert codes(await client.ask("OffsetCommit", 9, **commit())) == [0], "anybody, while there is no member"

    run(scenario())


def test_an_older_epoch_is_good_for_what_was_the_members_all_the_time() -> None:
    """A position is neither refused nor taken for none because the group has changed meanwhile."""

    async def scenario() -> None:
        cluster, client = two_topics()
        await join(client)
        cluster.add("u")
        await beat(client, 1, subscribed_topic_names=["t", "u"])
        assert codes(await client.ask("OffsetCommit", 9, **commit(ID, 1))) == [0]
        assert codes(await client.ask("OffsetCommit", 9, **commit(ID, 1, ("u", 0, 5, "")))) == [Code.STALE_MEMBER_EPOCH]
        for topic, wanted in (("t", 0), ("u", Code.STALE_MEMBER_EPOCH)):
            topics = [{"name": topic, "partition_indexes": [0]}]
            asked = {"group_id": "g", "member_id": ID, "member_epoch": 1, "topics": topics}
            assert (await client.ask("OffsetFetch", 9, groups=[asked])).groups[0].error_code == wanted

    run(scenario())


def test_an_administrator_removes_static_members() -> None:
    async def scenario() -> None:
        _, client = two_topics()
        await join(client, instance_id="one")
        leaving = [{"member_id": "", "group_instance_id": name} for name in ("one", "two")]
        leaving.append({"member_id": ID, "group_instance_id": None})
        left = await client.ask("LeaveGroup", group_id="g", members=leaving)
        assert [row.error_code for row in left.members] == [0, Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID]
        assert (await beat(client, 1)).error_code == Code.UNKNOWN_MEMBER_ID

    run(scenario())


def test_members_of_a_coordinator_that_has_died_join_again() -> None:
    async def scenario() -> None:
        cluster, client = two_topics()
        await join(client)
        await client.ask("OffsetCommit", 9, **commit(ID, 1))
        after = Client(cluster)
        assert (await beat(after, 1)).error_code == Code.UNKNOWN_MEMBER_ID
        assert assigned(cluster, await join(after)) == [("t", 0), ("t", 1)]
        assert cluster.positions["g"] == {("t", 0): Commit(500, "note")}

    run(scenario())


def test_a_group_of_another_broker_is_refused_and_dissolved() -> None:
    async def scenario() -> None:
        cluster, client = two_topics()
        await join(client)
        other = next(n for n in range(2, 99) if coordinator_of("g", [cluster.live[0], Broker(n, "h", 1)]).id == n)
        cluster.live.append(Broker(other, "there", 9092))
        assert (await beat(client, 1)).error_code == Code.NOT_COORDINATOR
        assert not client.coordinator.has_members("g") and cluster.shown["g"] == []
        (described,) = (await client.ask("ConsumerGroupDescribe", group_ids=["g"])).groups
        assert described.error_code == Code.NOT_COORDINATOR
        cluster.live.pop()
        assert (await beat(client, 1)).error_code == Code.UNKNOWN_MEMBER_ID

    run(scenario())


def test_a_member_is_told_the_heartbeat_that_its_group_sets() -> None:
    async def scenario() -> None:
        _, client = two_topics()
        await join(client)
        client.coordinator.set_own({"g": {HEARTBEAT: 700}})
        assert (await beat(client, 1)).heartbeat_interval_ms == 700
        client.coordinator.set_own({})
        assert (await beat(client, 1)).heartbeat_interval_ms == 5_000

    run(scenario())


def test_a_silent_member_goes_by_the_clock() -> None:
    async def scenario() -> None:
        _, client = two_topics(consumer_session_ms=30)
        await join(client)
        while client.coordinator.has_members("g"):
            await asyncio.sleep(0.005)

    run(scenario())


def test_without_a_lease_nobody_loses_a_place() -> None:
    async def scenario() -> None:
        cluster, client = two_topics()
        await join(client)
        cluster.leased = False
        assert (await beat(client, 1)).error_code == Code.COORDINATOR_NOT_AVAILABLE
        cluster.leased = True
        assert (await beat(client, 1)).error_code == 0

    run(scenario())


@pytest.mark.parametrize("id", [UUID(int=0), UUID(int=1)])
def test_a_member_that_says_it_has_a_topic_that_there_is_not_goes_on(id: UUID) -> None:
    """kafka-python, which decodes requests, makes None of an id of zeros."""

    async def scenario() -> None:
        _, client = two_topics()
        epoch = (await join(client)).member_epoch
        reply = await beat(client, epoch, topic_partitions=[{"topic_id": id, "partitions": [0]}])
        assert (reply.error_code, reply.member_epoch) == (0, epoch)

    run(scenario())
