"""appliance.kafka_apis.absent_api: what there is none of is answered as by a Kafka broker that has none of it."""

from __future__ import annotations

import pytest

from appliance.kafka_apis.absent_api import NO_SHARE_GROUPS
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, Client, FakeCluster, run

UNKNOWN = Code.UNKNOWN_TOPIC_OR_PARTITION


def versions(name: str) -> range:
    return range(APIS[KEY[name]].version_min, APIS[KEY[name]].version_max + 1)


def cluster_with_t() -> FakeCluster:
    """Topic t: partition 0 here, partition 1 on a broker that is away."""
    cluster = FakeCluster()
    cluster.add("t", 2)
    cluster.all["t"].partitions[1] = [9]
    return cluster


@pytest.mark.parametrize("version", versions("ElectLeaders"))
def test_no_election_is_needed(version: int) -> None:
    client = Client(cluster_with_t())
    partitions_of_topics = [{"topic": "t", "partitions": [0, 1, 2]}, {"topic": "none", "partitions": [0]}]
    reply = run(client.ask("ElectLeaders", version, topic_partitions=partitions_of_topics, timeout_ms=5))
    rows = [(each.topic, part.partition_id, part.error_code, bool(part.error_message))
            for each in reply.replica_election_results for part in each.partition_result]  # fmt: skip
    needless, away = Code.ELECTION_NOT_NEEDED, Code.PREFERRED_LEADER_NOT_AVAILABLE
    assert rows == [("t", 0, needless, True), ("t", 1, away, True), ("t", 2, UNKNOWN, True), ("none", 0, UNKNOWN, True)]
    assert version < 1 or reply.error_code == 0
    assert run(client.ask("ElectLeaders", version, topic_partitions=None)).replica_election_results == []
    if version >= 1:
        reply = run(client.ask("ElectLeaders", version, election_type=7, topic_partitions=partitions_of_topics[1:]))
        assert reply.error_code == Code.INVALID_REQUEST
        assert reply.replica_election_results[0].partition_result[0].error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", versions("AlterPartitionReassignments"))
def test_partitions_stay_where_they_are(version: int) -> None:
    cases: list[tuple[int, list[int] | None, int]] = [
        (0, [1], 0), (1, [9], 0), (0, None, Code.NO_REASSIGNMENT_IN_PROGRESS), (2, [1], UNKNOWN),
        *((0, replicas, Code.INVALID_REPLICA_ASSIGNMENT) for replicas in ([2], [1, 2], [])),
    ]  # fmt: skip
    parts = [{"partition_index": number, "replicas": replicas} for number, replicas, _ in cases]
    topics = [{"name": "t", "partitions": parts}, {"name": "none", "partitions": parts[:1]}]
    reply = run(Client(cluster_with_t()).ask("AlterPartitionReassignments", version, topics=topics))
    assert reply.error_code == 0
    codes = [[part.error_code for part in topic.partitions] for topic in reply.responses]
    assert codes == [[code for _, _, code in cases], [UNKNOWN]]


def test_nothing_is_being_moved() -> None:
    reply = run(Client(cluster_with_t()).ask("ListPartitionReassignments", topics=None))
    assert (reply.error_code, reply.error_message, reply.topics) == (0, None, [])


def test_share_groups_are_refused_with_the_reason() -> None:
    reply = run(Client(FakeCluster()).ask("ShareGroupHeartbeat", group_id="g", member_id="m", member_epoch=0))
    assert (reply.error_code, reply.error_message) == (Code.UNSUPPORTED_VERSION, NO_SHARE_GROUPS)
    assert reply.assignment is None
