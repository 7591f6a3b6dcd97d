"""Two appliances that share one ensemble: each is killed under load, the other goes on, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from appliance.client import Admin, Consumer, Producer
from appliance.wire import native
from appliance.zookeeper.ensemble import Ensemble

from ..support.native_peer import Peer
from ..support.server import Server, wait_for
from ..support.zookeeper_fixture import ACCESS, fresh_connect
from .group_load import Group
from .load import Load

PARTITIONS = 4
IDS = (1, 2)
GENTLE = 50
TIMEOUT_S = 60


class Cluster:
    """Appliances number 1 and 2, which can be killed and started again at their addresses."""

    def __init__(self, directory: Path, connect: str) -> None:
        self.directory = directory
        self.settings: dict[str, Any] = {
            "zookeeper.connect": connect,
            "zookeeper.session_timeout_ms": 20_000,  # it outlives a restart, also on a busy machine
        } | ACCESS
        self.servers: dict[int, Server] = {}
        self.addresses: dict[int, str] = {}
        for broker_id in IDS:
            self.start(broker_id)
            self.addresses[broker_id] = self.servers[broker_id].native
        self.wait_whole()

    def start(self, broker_id: int) -> None:
        own = {"broker.id": broker_id, "native.listen": self.addresses.get(broker_id, "127.0.0.1:0")}
        self.servers[broker_id] = Server(self.data_dir(broker_id), **self.settings | own).start()

    def data_dir(self, broker_id: int) -> Path:
        return self.directory / f"data-{broker_id}"

    def stored(self, broker_id: int, topic: str) -> set[int]:
        """The partitions of a topic that lie on this appliance's disk."""
        return {int(path.name.rpartition("-")[2]) for path in self.data_dir(broker_id).glob(f"{topic}-*")}

    def alive(self, asked: int) -> set[int]:
        """The brokers that one of them knows to be alive."""
        return {row[0] for row in self._metadata(asked, [])["brokers"]}

    def leaders(self, asked: int, topic: str) -> dict[int, int]:
        """Partition -> id of the broker that leads it, as one of them says; empty while it does not know the topic."""
        with Admin(self.addresses[asked]) as admin:
            if topic not in {row["name"] for row in admin.topics()}:
                return {}
        return dict(self._metadata(asked, [topic])["topics"][0]["partitions"])

    def wait_whole(self) -> None:
        wait_for(lambda: all(self.alive(broker_id) == set(IDS) for broker_id in IDS), "they know each other")

    def _metadata(self, asked: int, topics: list[str]) -> Any:
        with Peer(self.addresses[asked]) as peer:
            header, _ = peer.call([native.METADATA, 1, topics])
        return header[2]

    def stop(self) -> None:
        for server in self.servers.values():
            server.__exit__(None, None, None)


@pytest.fixture
def cluster(tmp_path: Path, standalone: Ensemble) -> Iterator[Cluster]:
    made = Cluster(tmp_path, fresh_connect(standalone))
    yield made
    made.stop()


def spread(cluster: Cluster, topic: str, asked: int = 1) -> dict[int, int]:
    """Make a topic at one broker and wait until both know it; partition -> leader."""
    with Admin(cluster.addresses[asked]) as admin:
        admin.create_topic(topic, PARTITIONS)
    wait_for(lambda: len(cluster.leaders(3 - asked, topic)) == PARTITIONS, "the other broker knows the topic")
    leaders = cluster.leaders(asked, topic)
    assert leaders == cluster.leaders(3 - asked, topic)
    wait_for(lambda: all(cluster.stored(leader, topic) >= {p} for p, leader in leaders.items()), "all are open")
    return leaders


def test_partitions_are_spread_and_everybody_finds_them(cluster: Cluster) -> None:
    """Goal: whichever broker one asks, a message gets to its partition's broker, and only there."""
    leaders = spread(cluster, "t")
    assert Counter(leaders.values()) == {1: 2, 2: 2}
    for asked in IDS:
        with Producer(cluster.addresses[asked]) as producer:
            for partition in range(PARTITIONS):
                sent = producer.send("t", b"asked %d" % asked, partition=partition).result(TIMEOUT_S)
                assert sent.partition == partition
    for broker_id in IDS:
        assert cluster.stored(broker_id, "t") == {p for p, leader in leaders.items() if leader == broker_id}
        with Consumer(cluster.addresses[broker_id]) as consumer:
            consumer.assign_topic("t")
            found = Counter(message.value for message in islice(consumer, 2 * PARTITIONS))
        assert found == {b"asked 1": PARTITIONS, b"asked 2": PARTITIONS}


def test_each_appliance_is_killed_under_load_and_a_group_reads_on(cluster: Cluster) -> None:
    """Goal: what was acknowledged outlives each of them, and both; a group that spans them reads everything.

    Method: producer and group know the first broker alone by name; kill the second, then the first, then both at once.
    """
    spread(cluster, "t")
    address = cluster.addresses[1]
    with Group(address, "g", "t", PARTITIONS) as group:
        members = group.start(2)
        with Load(address, "t", PARTITIONS, in_flight_max=GENTLE) as load:
            group.wait_reading(*members)
            for victims in ((2,), (1,), IDS):
                group.wait_committing()
                for broker_id in victims:
                    cluster.servers[broker_id].kill_supervisor()
                for broker_id in victims:
                    cluster.start(broker_id)
                load.wait_for_more(200)
                group.wait_reading(*members)
        group.wait_caught_up()
        group.check(load)


@pytest.mark.long
def test_the_survivor_serves_its_partitions_and_new_topics(cluster: Cluster) -> None:
    """Goal: while one is dead, the other's partitions take and give messages, and topics come and go; the dead one
    learns of it when it is back.
    """
    leaders = spread(cluster, "t")
    spread(cluster, "unwanted", asked=2)
    mine = [partition for partition, leader in leaders.items() if leader == 1]
    cluster.servers[2].kill_supervisor()
    with Producer(cluster.addresses[1]) as producer, Admin(cluster.addresses[1]) as admin:
        for partition in mine:
            producer.send("t", b"at once", partition=partition).result(TIMEOUT_S)
        wait_for(lambda: cluster.alive(1) == {1}, "the first knows that the second is gone")
        assert cluster.leaders(1, "t") == {p: 1 if p in mine else -1 for p in leaders}
        admin.create_topic("late", 2)
        assert set(cluster.leaders(1, "late").values()) == {1}
        producer.send("late", b"late", partition=1).result(TIMEOUT_S)
        admin.delete_topic("unwanted")
        with Consumer(cluster.addresses[1]) as consumer:
            consumer.assign([("t", partition) for partition in mine])
            assert {message.value for message in islice(consumer, len(mine))} == {b"at once"}
        assert cluster.stored(2, "unwanted")
        cluster.start(2)
        for partition in leaders:
            producer.send("t", b"again", partition=partition).result(TIMEOUT_S)
    wait_for(lambda: cluster.leaders(2, "late") == {0: 1, 1: 1}, "the second knows the new topic")
    wait_for(lambda: not cluster.stored(2, "unwanted"), "and has removed the deleted one")
