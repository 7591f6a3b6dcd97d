"""appliance.kafka_apis.topic_api: topics; each resource of a request has its own answer."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from appliance.errors import StorageFault
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, Client, FakeCluster, run


def cluster_with(name: str = "t", partitions: int = 2, **settings: str) -> FakeCluster:
    cluster = FakeCluster()
    cluster.add(name, partitions, **settings)
    return cluster


def topic(name: str = "new", partitions: int = 3, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [],
        "configs": [],
    } | more


def versions(name: str) -> range:
    return range(APIS[KEY[name]].version_min, APIS[KEY[name]].version_max + 1)


@pytest.mark.parametrize("version", versions("CreateTopics"))
def test_create_in_every_version(version: int) -> None:
    cluster = cluster_with()
    configs = [{"name": "retention.ms", "value": "3600000"}]
    topics = [topic(configs=configs), topic("t"), topic("b/d"), topic("twice"), topic("twice")]
    reply = run(Client(cluster).ask("CreateTopics", version, topics=topics))
    codes = {answer.name: answer.error_code for answer in reply.topics}
    assert codes == {"new": 0, "t": 36, "b/d": 17, "twice": Code.INVALID_REQUEST}
    assert len(cluster.all["new"].partitions) == 3
    assert cluster.all["new"].settings == {"retention.ms": "3600000"}
    if version >= 5:
        new = reply.topics[0]
        assert (new.num_partitions, new.replication_factor) == (3, 1)
        assert {config.name: config.value for config in new.configs}["retention.ms"] == "3600000"


@pytest.mark.parametrize(
    "wanted, error",
    [
        (topic(partitions=-1, replicas=-1), 0),
        (topic(replicas=3), Code.INVALID_REPLICATION_FACTOR),
        (topic(partitions=0), Code.INVALID_PARTITIONS),
        (topic(configs=[{"name": "no.such", "value": "1"}]), Code.INVALID_CONFIG),
        (topic(configs=[{"name": "retention.ms", "value": None}]), Code.INVALID_CONFIG),
        (topic(configs=[{"name": "cleanup.policy", "value": "compress"}]), Code.INVALID_CONFIG),
        (topic(configs=[{"name": "cleanup.policy", "value": "compact, delete"}]), 0),
        (topic(configs=[{"name": "min.insync.replicas", "value": "1"}]), 0),
        (topic(configs=[{"name": "retention.ms", "value": "1"}] * 2), Code.INVALID_REQUEST),
        (topic(partitions=-1, replicas=-1, assignments=[{"partition_index": 0, "broker_ids": [1]}]), 0),
        (topic(assignments=[{"partition_index": 0, "broker_ids": [1]}]), Code.INVALID_REQUEST),
        (
            topic(partitions=-1, replicas=-1, assignments=[{"partition_index": 1, "broker_ids": [1]}]),
            Code.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            topic(partitions=-1, replicas=-1, assignments=[{"partition_index": 0, "broker_ids": [1, 2]}]),
            Code.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_what_a_topic_may_be(wanted: dict[str, Any], error: int, validate_only: bool) -> None:
    cluster = FakeCluster()
    (row,) = run(Client(cluster).ask("CreateTopics", topics=[wanted], validate_only=validate_only)).topics
    assert row.error_code == error and (error == 0) == (not row.error_message)
    assert ("new" in cluster.all) == (error == 0 and not validate_only)


@pytest.mark.parametrize("version", versions("DeleteTopics"))
def test_delete_in_every_version(version: int) -> None:
    cluster = cluster_with()
    cluster.add("u")
    cluster.all["u"].id = UUID(int=7).hex
    names = ["t", "none"]
    request: dict[str, Any] = {"topic_names": names}
    if version >= 6:
        by_id = [{"name": None, "topic_id": UUID(int=number)} for number in (8, 7)]
        request = {"topics": [{"name": name} for name in names] + by_id}
    reply = run(Client(cluster).ask("DeleteTopics", version, **request))
    expected = [0, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, 0]
    assert [answer.error_code for answer in reply.responses] == expected[: len(reply.responses)]
    assert list(cluster.all) == (["u"] if version < 6 else [])


@pytest.mark.parametrize("version", versions("CreatePartitions"))
def test_grow_in_every_version(version: int) -> None:
    cluster = cluster_with()
    cluster.add("u", 2)
    cluster.add("v", 2)
    topics: list[dict[str, Any]] = [
        {"name": "t", "count": 4, "assignments": None},
        {"name": "u", "count": 2, "assignments": None},
        {"name": "v", "count": 3, "assignments": [{"broker_ids": [9]}]},
        {"name": "none", "count": 4, "assignments": None},
    ]
    client = Client(cluster)
    expected = [0, Code.INVALID_PARTITIONS, Code.INVALID_REPLICA_ASSIGNMENT, Code.UNKNOWN_TOPIC_OR_PARTITION]
    checked = run(client.ask("CreatePartitions", version, topics=topics, validate_only=True))
    assert [answer.error_code for answer in checked.results] == expected and not cluster.calls
    reply = run(client.ask("CreatePartitions", version, topics=topics))
    assert [answer.error_code for answer in reply.results] == expected
    assert cluster.calls == [("alter", "t", 4)]


def test_what_is_named_twice_in_one_request_is_refused() -> None:
    cluster = cluster_with()
    client = Client(cluster)
    grown = [{"name": "t", "count": 3, "assignments": None}, {"name": "t", "count": 4, "assignments": None}]
    reply = run(client.ask("CreatePartitions", topics=grown))
    assert [(row.name, row.error_code) for row in reply.results] == [("t", Code.INVALID_REQUEST)]
    reply = run(client.ask("DeleteTopics", topics=[{"name": "t"}] * 2))
    assert [(row.name, row.error_code) for row in reply.responses] == [("t", Code.INVALID_REQUEST)]
    reply = run(client.ask("DeleteTopics", topics=[{"name": "t", "topic_id": UUID(int=7)}]))
    assert [(row.name, row.error_code) for row in reply.responses] == [("t", Code.INVALID_REQUEST)]
    assert list(cluster.all) == ["t"] and not cluster.calls


@pytest.mark.parametrize("count, brokers, error", [
    (3, [[1]], 0), (4, [[1]], Code.INVALID_REPLICA_ASSIGNMENT), (3, [[1], [1]], Code.INVALID_REPLICA_ASSIGNMENT),
])  # fmt: skip
def test_each_new_partition_has_one_assignment(count: int, brokers: list[list[int]], error: int) -> None:
    topic_grown = {"name": "t", "count": count, "assignments": [{"broker_ids": ids} for ids in brokers]}
    (row,) = run(Client(cluster_with()).ask("CreatePartitions", topics=[topic_grown])).results
    assert (row.error_code, bool(row.error_message)) == (error, error != 0)


# Records


@pytest.mark.parametrize("version", versions("DeleteRecords"))
def test_delete_records_in_every_version(version: int) -> None:
    cluster = cluster_with(partitions=5)
    cluster.extents["t", 3] = StorageFault("offline")
    cluster.all["t"].partitions[4] = [9]
    offsets = [(0, 500), (1, -1), (2, 1_001), (3, 500), (4, 500), (5, 500)]
    partitions = [{"partition_index": number, "offset": offset} for number, offset in offsets]
    reply = run(Client(cluster).ask("DeleteRecords", version, topics=[{"name": "t", "partitions": partitions}]))
    rows = [(part.low_watermark, part.error_code) for part in reply.topics[0].partitions]
    assert rows == [(490, 0), (990, 0), (-1, Code.OFFSET_OUT_OF_RANGE), (-1, 56), (-1, 6), (-1, 3)]
    assert cluster.calls == [("delete_records", "t", 0, 500), ("delete_records", "t", 1, 1_000)]


def test_an_offset_that_is_gone_already_is_no_error() -> None:
    cluster = cluster_with()
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 5}]}]
    reply = run(Client(cluster).ask("DeleteRecords", topics=topics))
    assert reply.topics[0].partitions[0].error_code == 0
    assert cluster.calls == [("delete_records", "t", 0, 100)]


def test_without_zookeeper_topics_cannot_change() -> None:
    cluster = cluster_with()
    cluster.away = True
    client = Client(cluster)
    assert run(client.ask("CreateTopics", topics=[topic()])).topics[0].error_code == 15
    assert run(client.ask("DeleteTopics", topics=[{"name": "t"}])).responses[0].error_code == 15
