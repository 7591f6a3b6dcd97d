"""appliance.groups.offsets_api: offsets are committed, fetched and deleted in every version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from appliance.addresses import PLAINTEXT, Listener
from appliance.groups.offsets_api import encode_committed
from appliance.groups.store import Commit
from appliance.names import TopicPartition
from appliance.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from appliance.security.principals import ANONYMOUS, Origin
from appliance.security.security_state import SecurityState
from appliance.wire.kafka import forwarded
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.call import Call
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, NO_TOPIC, Client, FakeCluster, run
from ..support.kafka_group import codes, commit, stable


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


@pytest.mark.parametrize("version", range(2, APIS[KEY["OffsetCommit"]].version_max + 1))
def test_the_reply_to_a_commit_is_the_one_of_its_definition(version: int) -> None:
    call = Call(None, version, 7, "", Origin(Listener("kafka", PLAINTEXT, "l:1"), "p:1", ANONYMOUS))
    topics = [
        {
            "name": "n" * (size + 1),
            "topic_id": UUID(int=size),
            "partitions": [{"partition_index": number, "error_code": 3 * (number % 2)} for number in range(size)],
        }
        for size in (0, 1, 3, 200)
    ]
    for some in ([], topics):
        reply = encode_committed(call, some)
        assert reply.frame == forwarded.encode({"topics": some}, 7, KEY["OffsetCommit"], version)
        assert reply.served == (1 + 2 + 100 if some else 0)
        assert [len(row["partitions"]) for row in reply.rows] == ([3, 200] if some else []), "those with an error"


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
        assert cluster.positions["g"] == {("t", 0): Commit(5), ("t", 1): Commit(-1)}, "as in Kafka"
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
                groups = [{"group_id": "g", "topics": topics}]
                reply = (await client.ask("OffsetFetch", version, groups=groups)).groups[0]
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


def test_topics_by_id() -> None:
    """Goal: what is committed under an id is found under it; an id that no topic has, or no longer, is an error of its
    own, and what is stored of a topic that is gone has no id to be shown under.
    """

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add("t", 2)
        cluster.add("u", 1)
        client, old = Client(cluster), UUID(cluster.all["t"].id)
        rows = [("t", 1, 5, "note"), ("none", 0, 6, ""), ("u", 0, 7, ""), ("u", 3, 8, "")]
        reply = await client.ask("OffsetCommit", 10, **commit("", -1, *rows))
        assert [topic.topic_id for topic in reply.topics] == [old, NO_TOPIC, UUID(cluster.all["u"].id)]
        assert codes(reply) == [0, Code.UNKNOWN_TOPIC_ID, 0, Code.UNKNOWN_TOPIC_OR_PARTITION]
        stored = {TopicPartition("t", 1): Commit(5, "note"), TopicPartition("u", 0): Commit(7)}
        assert cluster.positions["g"] == stored

        async def fetched(topics: Any) -> list[Any]:
            reply = (await client.ask("OffsetFetch", 10, groups=[{"group_id": "g", "topics": topics}])).groups[0]
            return [
                (topic.topic_id, each.partition_index, each.committed_offset, each.error_code)
                for topic in reply.topics
                for each in topic.partitions
            ]

        now = UUID(cluster.all["u"].id)
        asked = [{"name": name, "partition_indexes": [1]} for name in ("t", "none")]
        assert await fetched(asked) == [(old, 1, 5, 0), (NO_TOPIC, 1, -1, Code.UNKNOWN_TOPIC_ID)]
        assert await fetched(None) == [(old, 1, 5, 0), (now, 0, 7, 0)]
        del cluster.all["t"]
        cluster.revision += 1
        by_id = [{"topic_id": old, "partition_indexes": [1]}]
        assert await fetched(by_id) == [(old, 1, -1, Code.UNKNOWN_TOPIC_ID)]
        assert await fetched(None) == [(now, 0, 7, 0)]
        cluster.add("t", 2)
        assert await fetched(by_id) == [(old, 1, -1, Code.UNKNOWN_TOPIC_ID)], "another topic of the name"
        again = await client.ask("OffsetCommit", 10, group_id="g", generation_id_or_member_epoch=-1, topics=[
            {"topic_id": old, "partitions": [{"partition_index": 1, "committed_offset": 9}]}])  # fmt: skip
        assert codes(again) == [Code.UNKNOWN_TOPIC_ID] and cluster.positions["g"] == stored

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


def test_topics_that_a_client_may_not_see_are_refused_or_left_out() -> None:
    def rule(resource: ResourceType, operation: Operation, name: str) -> Acl:
        return Acl(resource, name, PatternType.LITERAL, ANONYMOUS, "*", operation, Permission.ALLOW)

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.authorizes = True
        rules = [rule(ResourceType.GROUP, Operation.ALL, "g"), rule(ResourceType.TOPIC, Operation.READ, "t")]
        cluster.security.state = SecurityState(acls=tuple(sorted(rules)))
        for name in ("t", "hidden"):
            cluster.add(name)
            cluster.positions.setdefault("g", {})[TopicPartition(name, 0)] = Commit(5)
        client = Client(cluster)
        for version in range(1, 9):
            named = [{"name": name, "partition_indexes": [0]} for name in ("t", "hidden")]
            wanted = {"group_id": "g", "topics": named}
            reply = await client.ask("OffsetFetch", version, **({"groups": [wanted]} if version >= 8 else wanted))
            answer = reply.groups[0] if version >= 8 else reply
            rows = {topic.name: topic.partitions[0] for topic in answer.topics}
            assert [(rows[name].error_code, rows[name].committed_offset) for name in ("t", "hidden")] == [
                (0, 5),
                (Code.TOPIC_AUTHORIZATION_FAILED, -1),
            ]
        every = (await client.ask("OffsetFetch", groups=[{"group_id": "g", "topics": None}])).groups[0]
        assert [topic.name for topic in every.topics] == ["t"]
        topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "hidden")]
        deleted = await client.ask("OffsetDelete", group_id="g", topics=topics)
        codes = {topic.name: topic.partitions[0].error_code for topic in deleted.topics}
        assert codes == {"t": 0, "hidden": Code.TOPIC_AUTHORIZATION_FAILED}
        assert cluster.positions["g"] == {("hidden", 0): Commit(5)}

    run(scenario())
