"""What workers answer of brokers and topics, without the coordinator, on a real appliance with real clients."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from appliance.wire import native

from ...support.native_peer import Peer
from ...support.server import Server, stopped, wait_for

HANGS = {"liveness.timeout_ms": 600_000}
"""A process that is stopped stays so: what waits for it is never answered."""
"""Far below librdkafka's and the coordinator's time limits, far above what a busy machine takes."""


def topics_of(peer: Peer, *names: str) -> dict[str, int]:
    """Topic → error, of those that are asked for or of all."""
    header, _ = peer.call([native.METADATA, 5, list(names) or None])
    return {topic["name"]: topic["error"] for topic in header[2]["topics"]}


@pytest.mark.parametrize("nodes", [0, 1])
def test_a_change_that_was_answered_is_seen_on_every_connection(
    make_appliance: Callable[..., Server], nodes: int
) -> None:
    """Method: connections enough to have some on each worker; each change is followed at once by all questions."""
    server = make_appliance(**{"network.workers": 3, "zookeeper.nodes": nodes})
    if nodes:
        server.wait_for_zookeeper()
    peers = [Peer(server.native) for _ in range(12)]
    for turn in range(20):
        asking = peers[turn % len(peers)]
        asking.create(f"t{turn}")
        assert all(f"t{turn}" in topics_of(peer) for peer in peers)
        if turn % 2:
            asking.admin("delete_topic", name=f"t{turn}")
            assert not any(f"t{turn}" in topics_of(peer) for peer in peers)
            assert topics_of(asking, f"t{turn}") == {f"t{turn}": 3}
    for peer in peers:
        peer.close()


class Traffic:
    """A producer that waits for each acknowledgement and a consumer with assigned partitions."""

    def __init__(self, server: Server, topic: str) -> None:
        self.topic, self.sent, self.read = topic, 0, 0
        common = {"bootstrap.servers": server.kafka, "topic.metadata.refresh.interval.ms": 50}
        self.producer = Producer({**common, "acks": "all", "linger.ms": 0})
        self.consumer = Consumer({**common, "group.id": f"of-{topic}", "enable.auto.commit": False})
        self.consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def run(self, seconds: float) -> None:
        """Messages one after the other, each read before the next is sent."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            self.producer.produce(self.topic, str(self.sent).encode(), partition=0)
            assert self.producer.flush(60) == 0
            self.sent += 1
            while self.read < self.sent:
                message = self.consumer.poll(1)
                if message is not None and not message.error():
                    self.read += 1
                assert time.monotonic() - begun < 30, "not read"

    def close(self) -> None:
        self.consumer.close()


def test_a_coordinator_that_hangs_is_not_noticed_by_producers_and_assigned_consumers(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance(**{"network.workers": 2}, **HANGS)
    admin = AdminClient({"bootstrap.servers": server.kafka})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    old = Traffic(server, "t")
    old.run(0.5)
    coordinator = server.pid_of("coordinator")
    with stopped(coordinator):
        old.run(2)
        fresh = Traffic(server, "t")  # bootstrap, metadata and the coordinator of its group: all anew
        fresh.read -= old.sent
        fresh.run(1)
        assert "t" in AdminClient({"bootstrap.servers": server.kafka}).list_topics(timeout=60).topics
        with Peer(server.native) as peer:
            assert topics_of(peer) == {"t": 0} and topics_of(peer, "none") == {"none": 3}
    old.close()
    fresh.close()


def test_a_coordinator_that_is_killed_is_not_noticed_either(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 2})
    admin = AdminClient({"bootstrap.servers": server.kafka})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    traffic = Traffic(server, "t")
    traffic.run(0.3)
    for _ in range(3):
        os.kill(server.pid_of("coordinator"), signal.SIGKILL)
        traffic.run(0.7)
    traffic.close()
    with Peer(server.native) as peer:  # its successor tells the workers what changes
        peer.create("later")
        assert "later" in topics_of(peer)


def test_what_is_to_be_made_is_asked_of_the_coordinator(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 1})
    assert server.state["listeners"]
    producer = Producer({"bootstrap.servers": server.kafka})
    producer.produce("made", b"x")
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "g"})
    assert "never" not in {name for name, topic in consumer.list_topics("never").topics.items() if not topic.error}
    consumer.close()
    with Peer(server.native) as peer:
        assert topics_of(peer) == {"made": 0}


def test_idempotent_producers_do_not_notice_a_coordinator_that_hangs(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 1}, **HANGS)
    with Peer(server.native) as peer:
        peer.create("t")
        coordinator = server.pid_of("coordinator")
        with stopped(coordinator):
            producer = Producer({"bootstrap.servers": server.kafka, "enable.idempotence": True, "linger.ms": 0})
            producer.produce("t", b"x", partition=0)
            assert producer.flush(60) == 0
            assert peer.admin("init_producer")["epoch"] == 0


def test_no_producer_id_is_given_twice_whatever_dies(make_appliance: Callable[..., Server]) -> None:
    """Method: over several connections, while workers and coordinator are killed in turn."""
    server = make_appliance(**{"network.workers": 2})
    ids: list[int] = []
    for role in ("coordinator", "network", "coordinator", "network", ""):
        peers = [Peer(server.native) for _ in range(6)]
        for _ in range(64):
            ids += [peer.admin("init_producer")["producer_id"] for peer in peers]
        if role:
            killed = server.pids(role)
            server.kill(killed[0])
            wait_for(lambda: len(server.pids(role)) == len(killed) and killed[0] not in server.pids(role), "another")  # noqa: B023
        for peer in peers:
            peer.close()
    assert len(set(ids)) == len(ids)
