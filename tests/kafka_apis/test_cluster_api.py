"""appliance.kafka_apis.cluster_api: metadata, coordinators, log directories, epochs, producer ids."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from appliance.errors import StorageFault
from appliance.kafka_apis.appliance import ProducerInLog
from appliance.kafka_apis.cluster_api import CREATIONS_MAX
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code
from appliance.wire.kafka.metadata_reply import Broker

from ..support.kafka_apis_fixture import KEY, Client, FakeCluster, run


def versions(name: str) -> range:
    return range(APIS[KEY[name]].version_min, APIS[KEY[name]].version_max + 1)


def names(*topics: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in topics]


@pytest.mark.parametrize("version", versions("Metadata"))
def test_metadata_in_every_version(version: int) -> None:
    cluster = FakeCluster()
    cluster.add("b", 2)
    cluster.add("a")
    cluster.all["a"].partitions[0] = [9]  # nobody that lives
    everything: Any = [] if version == 0 else None
    reply = run(Client(cluster).ask("Metadata", version, topics=everything))
    assert [(broker.node_id, broker.host, broker.port) for broker in reply.brokers] == [(1, "here", 9092)]
    a, b = reply.topics
    assert (a.name, b.name) == ("a", "b")
    (lost,) = a.partitions
    assert (lost.error_code, lost.leader_id, lost.replica_nodes, lost.isr_nodes) == (5, -1, [9], [])
    assert [(part.partition_index, part.leader_id, part.error_code) for part in b.partitions] == [(0, 1, 0), (1, 1, 0)]
    assert version < 5 or (lost.offline_replicas, b.partitions[0].offline_replicas) == ([9], [])
    assert version < 7 or b.partitions[0].leader_epoch == 0
    assert version < 2 or reply.cluster_id == "cluster"
    assert version < 1 or reply.controller_id == 1
    if version >= 1:
        assert not run(Client(cluster).ask("Metadata", version, topics=[])).topics


@pytest.mark.parametrize("version", versions("Metadata"))
def test_topics_are_made_as_configured(version: int) -> None:
    cluster = FakeCluster()
    cluster.add("known")
    topics = names("known", "new", "b/d", "known")
    asked = Client(cluster).ask(
        "Metadata", version, topics=topics, **({"allow_auto_topic_creation": True} if version >= 4 else {})
    )
    reply = run(asked)
    assert [(topic.name, topic.error_code) for topic in reply.topics] == [("known", 0), ("new", 0), ("b/d", 17)]
    assert len(reply.topics[1].partitions) == 1, "it can be produced to at once"
    if version >= 4:
        held = run(Client(cluster).ask("Metadata", version, topics=names("no"), allow_auto_topic_creation=False))
        assert held.topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    cluster.topic_store.auto_create = False
    assert run(Client(cluster).ask("Metadata", version, topics=names("no"))).topics[0].error_code == 3


@pytest.mark.parametrize("version", versions("Metadata"))
def test_names_are_judged_alike_with_and_without_automatic_creation(version: int) -> None:
    """Illegal ones are an INVALID_TOPIC_EXCEPTION; reserved ones are never made: monitors look for Kafka's own."""
    illegal, reserved = ["b/d", "", "..", "n" * 250], ["__consumer_offsets", "__transaction_state", "__mine"]
    for auto_create in (False, True):
        cluster = FakeCluster()
        cluster.topic_store.auto_create = auto_create
        asked = names(*illegal, *reserved)
        reply = run(Client(cluster).ask("Metadata", version, topics=asked))
        codes = [Code.INVALID_TOPIC_EXCEPTION] * len(illegal) + [Code.UNKNOWN_TOPIC_OR_PARTITION] * len(reserved)
        assert [topic.error_code for topic in reply.topics] == codes and not cluster.all


def test_kafkas_own_topics_are_internal_where_somebody_has_made_them() -> None:
    cluster = FakeCluster()
    for name in ("__consumer_offsets", "__mine", "t"):
        cluster.add(name)
    for api in ("Metadata", "DescribeTopicPartitions"):
        topics = run(Client(cluster).ask(api, topics=names("__consumer_offsets", "__mine", "t"))).topics
        assert [(topic.name, topic.is_internal) for topic in topics] == [
            ("__consumer_offsets", True), ("__mine", False), ("t", False),
        ]  # fmt: skip


def test_a_topic_that_cannot_be_made_now_is_asked_for_again() -> None:
    cluster = FakeCluster()
    cluster.away = True
    reply = run(Client(cluster).ask("Metadata", topics=names("new")))
    assert reply.topics[0].error_code == Code.LEADER_NOT_AVAILABLE


def test_one_request_makes_a_bounded_number_of_topics() -> None:
    cluster = FakeCluster()
    missing = [f"n{number}" for number in range(CREATIONS_MAX + 5)]
    reply = run(Client(cluster).ask("Metadata", topics=names(*missing)))
    assert len(cluster.all) == CREATIONS_MAX
    assert [topic.error_code for topic in reply.topics[-5:]] == [Code.LEADER_NOT_AVAILABLE] * 5


def test_operations_are_told_when_asked_for() -> None:
    cluster = FakeCluster()
    cluster.add("t")
    client = Client(cluster)
    plain = run(client.ask("Metadata", topics=None))
    assert plain.topics[0].authorized_operations is None
    more = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    asked = run(client.ask("Metadata", 10, topics=None, **more))
    assert 3 in asked.topics[0].authorized_operations
    assert 5 in asked.authorized_operations


def test_topics_are_found_by_id_too() -> None:
    cluster = FakeCluster()
    cluster.add("t")
    cluster.all["t"].id = UUID(int=7).hex
    by_id = [{"name": None, "topic_id": UUID(int=7)}, {"name": None, "topic_id": UUID(int=8)}]
    known, unknown = run(Client(cluster).ask("Metadata", 12, topics=by_id)).topics
    assert (known.name, known.topic_id, known.error_code) == ("t", UUID(int=7), 0)
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, UUID(int=8), Code.UNKNOWN_TOPIC_ID)


def test_metadata_of_all_topics_is_encoded_once() -> None:
    cluster = FakeCluster()
    cluster.add("t")
    client = Client(cluster)
    before = run(client.frame("Metadata", topics=None))
    cluster.all["t"].partitions[1] = [1]  # behind its back
    assert run(client.frame("Metadata", topics=None)) == before
    cluster.revision += 1
    assert len(run(client.ask("Metadata", topics=None)).topics[0].partitions) == 2


def test_partitions_are_described_page_by_page() -> None:
    """Pages of any size together are what metadata says, each partition once, in the order of the topics' names."""
    cluster = FakeCluster()
    for name, count in (("b", 3), ("a", 1), ("c", 0), ("d", 2)):
        cluster.add(name, count)
    cluster.all["b"].partitions[1] = [9]  # nobody that lives
    client = Client(cluster)
    everything = [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("d", 0), ("d", 1)]
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 7, 100):
        listed: list[tuple[str, int]] = []
        cursor: dict[str, Any] | None = None
        for _ in range(10):
            reply = run(client.ask("DescribeTopicPartitions", topics=[], response_partition_limit=limit, cursor=cursor))
            page = [(topic.name, part.partition_index) for topic in reply.topics for part in topic.partitions]
            assert len(page) <= max(limit, 1)
            listed += page
            if reply.next_cursor is None:
                break
            cursor = {"topic_name": reply.next_cursor.topic_name, "partition_index": reply.next_cursor.partition_index}
        assert listed == everything, limit


def test_partitions_are_described_as_metadata_has_them() -> None:
    cluster = FakeCluster()
    cluster.add("t", 2)
    cluster.all["t"].id = UUID(int=7).hex
    cluster.all["t"].partitions[1] = [9]
    reply = run(Client(cluster).ask("DescribeTopicPartitions", topics=names("t", "none", "a/b", "t")))
    rows = [(topic.name, topic.error_code, len(topic.partitions)) for topic in reply.topics]
    assert rows == [("a/b", Code.INVALID_TOPIC_EXCEPTION, 0), ("none", 3, 0), ("t", 0, 2)]
    topic = reply.topics[2]
    (here, lost), (known,) = topic.partitions, run(Client(cluster).ask("Metadata", topics=names("t"))).topics
    assert topic.topic_id == known.topic_id == UUID(int=7)
    for part, other in ((here, known.partitions[0]), (lost, known.partitions[1])):
        assert part.error_code == other.error_code and part.leader_id == other.leader_id
        assert (part.replica_nodes, part.isr_nodes) == (other.replica_nodes, other.isr_nodes)
        assert (part.leader_epoch, part.offline_replicas) == (other.leader_epoch, other.offline_replicas)
    assert topic.topic_authorized_operations == 0b1101_1111_1000


@pytest.mark.parametrize("version", versions("DescribeCluster"))
def test_describe_cluster_in_every_version(version: int) -> None:
    cluster = FakeCluster()
    cluster.live = [Broker(0, "there", 1), Broker(1, "::1", 2)]
    reply = run(Client(cluster).ask("DescribeCluster", version, include_cluster_authorized_operations=True))
    assert (reply.error_code, reply.cluster_id, reply.controller_id) == (0, "cluster", 1)
    assert [(broker.broker_id, broker.host, broker.port) for broker in reply.brokers] == [
        (0, "there", 1),
        (1, "::1", 2),
    ]
    if version >= 1:
        assert run(Client(cluster).ask("DescribeCluster", endpoint_type=2)).error_code == 35


@pytest.mark.parametrize("version", versions("DescribeLogDirs"))
def test_log_directories_in_every_version(version: int) -> None:
    cluster = FakeCluster()
    cluster.add("t", 2)
    cluster.extents["t", 1] = StorageFault("offline")
    client = Client(cluster)
    (directory,) = run(client.ask("DescribeLogDirs", version, topics=None)).results
    (topic,) = directory.topics
    assert (directory.log_dir, topic.name) == ("/data", "t")
    assert [(part.partition_index, part.partition_size) for part in topic.partitions] == [(0, 900)]
    assert version < 4 or (directory.total_bytes, directory.usable_bytes) == (1_000_000, 400_000)
    some = [{"topic": "none", "partitions": [0]}]
    assert not run(client.ask("DescribeLogDirs", version, topics=some)).results[0].topics


@pytest.mark.parametrize("version", versions("OffsetForLeaderEpoch"))
def test_epochs_end_where_the_log_ends(version: int) -> None:
    """Records say 0 or -1, as their producer wrote them; both must lead to "nothing was truncated"."""
    cluster = FakeCluster()
    cluster.add("t", 3)
    cluster.all["t"].partitions[1] = [9]
    cluster.extents["t", 2] = StorageFault("offline")
    asked = [(0, -1, 0), (0, 0, -1), (0, -1, 5), (0, 3, 0), (0, -2, 0), (1, -1, 0), (2, -1, 0), (7, -1, 0)]
    partitions = [
        {"partition": number, "current_leader_epoch": current, "leader_epoch": epoch}
        for number, current, epoch in asked
    ]
    reply = run(Client(cluster).ask("OffsetForLeaderEpoch", version, topics=[{"topic": "t", "partitions": partitions}]))
    rows = [(part.error_code, part.leader_epoch, part.end_offset) for part in reply.topics[0].partitions]
    assert rows == [
        (0, 0, 1_000),
        (0, -1, 1_000),
        (0, -1, -1),
        (Code.UNKNOWN_LEADER_EPOCH, -1, -1),
        (Code.FENCED_LEADER_EPOCH, -1, -1),
        (6, -1, -1),
        (56, -1, -1),
        (3, -1, -1),
    ]


def test_the_producers_of_a_partition() -> None:
    cluster = FakeCluster()
    cluster.add("t", 3)
    cluster.all["t"].partitions[2] = [9]
    cluster.extents["t", 1] = StorageFault("offline")
    cluster.known_producers["t", 0] = [ProducerInLog(2**62 - 1, 7, 2**31 - 1, 1_000, 4, 90), ProducerInLog(0, 0, 0, -1)]
    topics = [{"name": name, "partition_indexes": [0, 1, 2, 3]} for name in ("t", "none", "a/b")]
    reply = run(Client(cluster).ask("DescribeProducers", topics=topics))
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    codes = [[part.error_code for part in topic.partitions] for topic in reply.topics]
    assert codes == [[0, 56, 6, unknown], [unknown] * 4, [Code.INVALID_TOPIC_EXCEPTION] * 4]
    assert [bool(part.error_message) for part in reply.topics[0].partitions] == [False, True, True, True]
    shown = [
        (
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.current_txn_start_offset,
        )
        for producer in reply.topics[0].partitions[0].active_producers
    ]
    assert shown == [(2**62 - 1, 7, 2**31 - 1, 1_000, 90), (0, 0, 0, -1, -1)]
