"""Where clients are sent: IPv6, host names, an advertised address, and several appliances in one cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.server import wait_for

from ..support.kafka_peer import KafkaPeer
from ..support.ready import free_port
from .adapters import (
    BATCH,
    CLIENTS,
    DEADLINE_S,
    confluent_group,
    confluent_produce,
    confluent_read,
    kafka_python_group,
    kcat,
    new_topic,
)
from .conftest import Broker

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_ipv6(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", {"kafka.listen": "[::1]:0"}) as broker:
        assert broker.kafka.startswith("[::1]:")
        topic = new_topic()
        for client in CLIENTS[:3]:
            client.produce(broker.kafka, topic, "none", BATCH)
        assert len(confluent_read(broker.kafka, topic, 0, 3 * BATCH)) == 3 * BATCH


def test_a_client_that_came_to_a_name_is_sent_to_the_advertised_one(tmp_path: Path) -> None:
    """The address that Metadata gives is the advertised one; the bootstrap address does not matter."""
    port = free_port()
    settings = {"kafka.listen": f"127.0.0.1:{port}", "kafka.advertised": f"localhost:{port}"}
    with Broker(tmp_path / "data", settings) as broker:
        assert f"localhost:{port}" in kcat("-b", broker.kafka, "-L")
        assert len(confluent_produce(broker.kafka, new_topic(), "none", BATCH)) == BATCH


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    """Two appliances; the second uses the ZooKeeper of the first."""
    data = tmp_path_factory.mktemp("two")
    with (
        Broker(data / "first", {"zookeeper.nodes": 1}) as first,
        Broker(data / "second", first.zookeeper_access | {"broker.id": 1}) as second,
    ):
        first.wait_for_zookeeper()
        second.wait_for_zookeeper()
        admin = AdminClient({"bootstrap.servers": first.kafka})
        wait_for(lambda: len(admin.list_topics(timeout=DEADLINE_S).brokers) == 2, "both are registered")
        yield first, second


def test_both_are_shown_by_both(two: tuple[Broker, Broker]) -> None:
    for broker in two:
        listed = kcat("-b", broker.kafka, "-L")
        assert all(f"at {other.kafka}" in listed for other in two), listed


def test_a_client_that_comes_to_another_broker_than_it_means_is_told(two: tuple[Broker, Broker]) -> None:
    """KIP-1242: as when an address has been given to somebody else, or a balancer is in between."""
    codes = {}
    for index, broker in enumerate(two):
        with KafkaPeer(broker.kafka) as peer:
            metadata = peer.ask("Metadata", topics=[])
            nodes = sorted(node.node_id for node in metadata.brokers)
            for node in nodes:
                reply = peer.ask("ApiVersions", 5, cluster_id=metadata.cluster_id, node_id=node, **SOFTWARE)
                codes[index, node] = reply.error_code
    assert len(nodes) == 2 and codes == {(i, node): 129 * (node != nodes[i]) for i in (0, 1) for node in nodes}


def test_partitions_are_spread_and_clients_find_their_leaders(two: tuple[Broker, Broker]) -> None:
    first, second = two
    topic = new_topic()
    admin = AdminClient({"bootstrap.servers": second.kafka})
    for future in admin.create_topics([NewTopic(topic, 4, 1)]).values():
        future.result(DEADLINE_S)
    for broker in two:
        metadata = AdminClient({"bootstrap.servers": broker.kafka}).list_topics(topic, timeout=DEADLINE_S)
        leaders = [partition.leader for _, partition in sorted(metadata.topics[topic].partitions.items())]
        assert sorted(leaders) == [0, 0, 1, 1]
    producer = Producer({"bootstrap.servers": first.kafka, "enable.idempotence": True})
    failures: list[object] = []
    for number in range(400):
        producer.produce(
            topic,
            str(number).encode(),
            b"k",
            partition=number % 4,
            headers=[("h", b"")],
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0 and not failures
    for bootstrap, group in ((first.kafka, confluent_group), (second.kafka, kafka_python_group)):
        values = [int(message.value) for message in group(bootstrap, topic, new_topic(), 400)]
        assert sorted(values) == list(range(400))


def test_members_that_come_to_different_appliances_share_one_group(two: tuple[Broker, Broker]) -> None:
    topic, group = new_topic(), new_topic()
    admin = AdminClient({"bootstrap.servers": two[0].kafka})
    for future in admin.create_topics([NewTopic(topic, 4, 1)]).values():
        future.result(DEADLINE_S)
    members = [
        Consumer({"bootstrap.servers": broker.kafka, "group.id": group, "log_level": 0, "client.id": broker.kafka})
        for broker in two
    ]
    for member in members:
        member.subscribe([topic])

    def shared() -> bool:
        for member in members:
            member.poll(0.05)
        owned = [{part.partition for part in member.assignment()} for member in members]
        return len(owned[0]) == len(owned[1]) == 2 and owned[0] | owned[1] == {0, 1, 2, 3}

    wait_for(shared, "each owns two partitions, together all", seconds_max=60)
    for member in members:
        member.close()
