"""Deleted topics come back: with all that was in them, whatever is killed meanwhile, and not for longer than said."""

from __future__ import annotations

import os
import shutil
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from appliance.catalog import Catalog
from appliance.client import LATEST, Admin, Producer
from appliance.client import Consumer as NativeConsumer
from appliance.errors import TopicExists, UnknownPartition
from appliance.log import partition_directory
from appliance.records.encode import encode_values
from appliance.wire import native

from ..processes.supervisor.test_removal import BODY, Held, answer, kill_coordinator, refusal
from ..support.command_line import run, succeeding
from ..support.native_peer import Peer
from ..support.server import Server, wait_for
from ..support.small_machine import small_machine

OLD, NEW = encode_values([b"old"], 1_000), encode_values([b"new"], 2_000)
ONCE = encode_values([b"once"], 1_000, producer_id=77, producer_epoch=0, base_sequence=0)
ALONE: dict[str, Any] = {
    "network.workers": 1,
    "zookeeper.nodes": 0,
    "disk.check_ms": 100,
    "liveness.timeout_ms": 300_000,
}
"""No ZooKeeper."""


def make(peer: Peer, topic: str = "x", batch: bytes = OLD, partitions: int = 2) -> None:
    peer.create(topic, partitions, retention_bytes="1000000")
    for partition in range(partitions):
        assert peer.produce(topic, batch, partition, acks=-1)[0] == 0


def holds(peer: Peer, topic: str, batch: bytes) -> bool:
    """Whether each of two partitions has this message first."""
    return all(peer.fetch(topic, 0, partition)[1][BODY : len(batch)] == batch[BODY:] for partition in range(2))


def in_trash(server: Server) -> list[str]:
    return [path.name for _, path in partition_directory.trashed_directories(server.data_dir)]


def test_a_deleted_topic_comes_back_as_it_was(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**ALONE)
    with Peer(server.native) as peer:
        make(peer)
        repeated = peer.produce("x", ONCE, acks=-1)
        (before,) = peer.admin("topics", names=["x"])
        assert peer.admin("delete_topic", name="x") == {"trash_ms": 86_400_000}
        assert peer.admin("topics") == [] and not (server.data_dir / "x-0").exists()
        (row,) = peer.admin("trash")
        assert (row["name"], row["partitions"], row["pending"]) == ("x", 2, False)
        assert row["bytes"] > 0 and row["until_ms"] - row["deleted_ms"] == 86_400_000
        server.stop()
        server.start()
    with Peer(server.native) as peer:
        assert peer.admin("undelete_topic", name="x") == {"name": "x", "partitions": 2, "offsets": {}}
        assert holds(peer, "x", OLD) and peer.admin("trash") == [] and in_trash(server) == []
        (after,) = peer.admin("topics", names=["x"])
        assert after["own"] == before["own"] and after["partitions"] == before["partitions"]
        assert peer.produce("x", ONCE, acks=-1) == repeated, "a repeat is taken for a new batch"
        for partition in range(2):
            assert peer.produce("x", NEW, partition, acks=-1)[0] == 0
        assert refusal(server, "undelete_topic", name="x") == UnknownPartition.code


def test_topics_of_one_name_never_mix(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**ALONE)
    with Peer(server.native) as peer:
        make(peer)
        peer.admin("delete_topic", name="x")
        make(peer, batch=NEW)
        assert holds(peer, "x", NEW)
        assert refusal(server, "undelete_topic", name="x") == TopicExists.code
        peer.admin("undelete_topic", name="x", new_name="y")
        assert holds(peer, "y", OLD) and holds(peer, "x", NEW)
        for topic in ("y", "x"):
            peer.admin("delete_topic", name=topic)
        make(peer)
        peer.admin("delete_topic", name="x")
        first, second, third = peer.admin("trash")
        assert [first["name"], second["name"], third["name"]] == ["y", "x", "x"]
        peer.admin("undelete_topic", name=second["id"])
        assert holds(peer, "x", NEW)
        peer.admin("undelete_topic", name="x", new_name="z")
        assert holds(peer, "z", OLD)


def test_without_a_trash_a_deletion_is_final(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**ALONE, **{"topics.trash_ms": 0})
    with Peer(server.native) as peer:
        make(peer)
        assert peer.admin("delete_topic", name="x") == {"trash_ms": 0}
        assert peer.admin("trash") == [] and in_trash(server) == []
        assert refusal(server, "undelete_topic", name="x") == UnknownPartition.code


def test_the_trash_is_emptied_when_its_time_is_over(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**ALONE, **{"topics.trash_ms": 1})
    with Peer(server.native) as peer:
        make(peer)
        peer.admin("delete_topic", name="x")
        wait_for(lambda: not peer.admin("trash"), "the trash to be empty")
        wait_for(
            lambda: not in_trash(server) and not partition_directory.deleted(server.data_dir), "the files to be gone"
        )
        assert Catalog.load(server.data_dir).trash == []


def test_the_trash_makes_room_before_anything_else_goes(make_appliance: Callable[..., Server]) -> None:
    """Goal: the oldest goes first, no more than is needed, and no message of a topic that is there."""
    server = make_appliance(**ALONE, **{"disk.bytes_max": 550_000, "topics.segment.bytes": 20_000})
    batch = encode_values([os.urandom(10_000)], 1_000)
    with Peer(server.native) as peer:
        for topic, batches in {"a": 40, "b": 10, "c": 25}.items():
            peer.create(topic)
            for _ in range(batches):
                assert peer.produce(topic, batch, acks=-1)[0] == 0
            if topic != "c":
                peer.admin("delete_topic", name=topic)
        wait_for(lambda: [row["name"] for row in peer.admin("trash")] == ["b"], "the oldest to go")
        peer.admin("undelete_topic", name="b")
        assert [peer.fetch(topic, 0)[1][BODY:] != b"" for topic in ("b", "c")] == [True, True]
        assert not [line for line in server.log().splitlines() if "removing what lies before" in line]


@pytest.mark.parametrize("step", ["writer", "remover"])
@pytest.mark.parametrize("victim", ["coordinator", "supervisor"])
def test_whoever_is_killed_in_a_deletion_the_topic_is_in_the_trash_in_the_end(
    make_appliance: Callable[..., Server], step: str, victim: str
) -> None:
    server = make_appliance(**ALONE)
    held = Held(server, step)
    if victim == "coordinator":
        kill_coordinator(server)
        held.go_on()
    else:
        server.kill_supervisor()
        held.peer.close()
        if step == "remover":
            (held.directory / partition_directory.METADATA_NAME).unlink()
            (held.directory / partition_directory.METADATA_NAME).write_bytes(held.metadata)
        else:
            os.kill(held.writer, signal.SIGCONT)
        server.start()
    wait_for(lambda: not Catalog.load(server.data_dir).removals, "the deletion to be complete")
    assert in_trash(server) == [f"{held.topic_id}-0.trash"]
    with Peer(server.native) as peer:
        peer.admin("undelete_topic", name="x")
        assert peer.fetch("x", 0)[1][BODY:] == OLD[BODY:]


def test_a_writer_killed_in_a_deletion_loses_nothing(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**ALONE)
    held = Held(server, "writer")
    os.kill(held.writer, signal.SIGKILL)
    held.peer.close()
    wait_for(lambda: not Catalog.load(server.data_dir).removals, "the deletion to be complete")
    with Peer(server.native) as peer:
        peer.admin("undelete_topic", name="x")
        assert peer.fetch("x", 0)[1][BODY:] == OLD[BODY:]


@pytest.mark.parametrize("victim", ["coordinator", "supervisor"])
def test_whoever_is_killed_while_a_topic_comes_back_it_is_there_in_the_end(
    make_appliance: Callable[..., Server], victim: str
) -> None:
    """Method: the opener that takes the directory back waits for a named pipe in place of its identity."""
    server = make_appliance(**ALONE)
    with Peer(server.native) as peer:
        make(peer)
        topic_id = partition_directory.topic_id_of(server.data_dir / "x-0")
        peer.admin("delete_topic", name="x")
    metadata = partition_directory.trash_directory(server.data_dir, topic_id, 0) / partition_directory.METADATA_NAME
    content = metadata.read_bytes()
    metadata.unlink()
    os.mkfifo(metadata)
    pipe = server.data_dir / "x-0" / partition_directory.METADATA_NAME
    with Peer(server.native) as peer:
        peer.send([native.ADMIN, 1, "undelete_topic", {"name": "x"}])
        wait_for(pipe.exists, "the directory to be taken back")
        if victim == "coordinator":
            kill_coordinator(server)
            answer(pipe, content)
        else:
            server.kill_supervisor()
            pipe.unlink()
            pipe.write_bytes(content)
            server.start()
    with Peer(server.native) as peer:
        wait_for(lambda: peer.fetch("x", 0, 1)[0][0] == 0 and peer.fetch("x", 0, 0)[0][0] == 0, "the topic to be there")
        assert holds(peer, "x", OLD) and peer.admin("trash") == [] and in_trash(server) == []


def test_on_a_disk_that_fills_up_the_trash_goes_and_no_producer_is_refused(tmp_path: Path) -> None:
    """Method: retention does not look at the disk in time; free_bytes_min does not keep it from filling up."""
    settings: dict[str, Any] = ALONE | {"disk.check_ms": 3_600_000}
    batch = encode_values([os.urandom(500_000)], 1_000)
    with (
        small_machine(tmp_path, disk="64m") as machine,
        machine.server(tmp_path / "log", **settings) as server,
        Peer(server.native) as peer,
    ):
        for topic in ("a", "b", "c"):
            peer.create(topic)
            for _ in range(30):
                assert peer.produce(topic, batch, acks=-1)[0] == 0
            peer.admin("delete_topic", name=topic)
        peer.create("d")
        for number in range(75):
            wait_for(lambda: shutil.disk_usage(server.data_dir).free > 4 << 20, "room to be made")
            assert peer.produce("d", batch, acks=-1)[0] == 0, number
        assert [row["name"] for row in peer.admin("trash")] == ["c"]
        peer.admin("undelete_topic", name="c")
        assert peer.end("c") == 30 * (len(batch))


class Cluster(NamedTuple):
    first: Server
    second: Server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers of one ensemble."""
    quick = {"zookeeper.session_timeout_ms": 2_000, "disk.check_ms": 100, "network.workers": 1}
    directory = tmp_path_factory.mktemp("cluster")
    with Server(directory / "a", **{"zookeeper.nodes": 1} | quick) as first:
        first.wait_for_zookeeper()
        with Server(directory / "b", **{"broker.id": 7} | quick | first.zookeeper_access) as second:
            second.wait_for_zookeeper()
            for server in (first, second):
                kafka = AdminClient({"bootstrap.servers": server.kafka})
                wait_for(lambda kafka=kafka: len(kafka.list_topics(timeout=60).brokers) == 2, "they know each other")
            yield Cluster(first, second)


def values_of(topic: str, count: int = 6) -> list[bytes]:
    return [b"%s %d" % (topic.encode(), number) for number in range(count)]


def fill(cluster: Cluster, topic: str) -> None:
    """Six messages in two partitions, one at each broker; a Kafka group and a native one have read half."""
    with Admin(cluster.first.native) as admin:
        admin.create_topic(topic, 2)
        (row,) = admin.topics([topic])
        assert {part["leader"] for part in row["partitions"]} == {0, 7}
    with Producer(cluster.first.native) as producer:
        for number, value in enumerate(values_of(topic)):
            producer.send(topic, value, partition=number % 2)
        producer.flush()
    consumer = kafka_consumer(cluster, topic)
    half = [consumer.consume(1, 60)[0] for _ in range(3)]
    assert all(message.error() is None for message in half)
    consumer.commit(asynchronous=False)
    consumer.close()
    with Admin(cluster.second.native) as admin:
        admin.commit(f"native-{topic}", {(topic, 0): admin.offsets(f"kafka-{topic}").get((topic, 0), 0)})


def kafka_consumer(cluster: Cluster, topic: str, group_of: str = "") -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.first.kafka,
            "group.id": f"kafka-{group_of or topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    return consumer


def read_all(cluster: Cluster, topic: str) -> list[bytes]:
    """All messages, sorted."""
    values: list[bytes] = []
    with NativeConsumer(cluster.first.native) as consumer:
        consumer.assign_topic(topic)

        def have_read_all() -> bool:
            values.extend(message.value or b"" for message in consumer.poll(1))
            with suppress(UnknownPartition):  # it has come back just now
                return consumer.positions() == consumer.offsets_at(LATEST)
            return False

        wait_for(have_read_all, "all to be read")
    return sorted(values)


def at(server: Server) -> tuple[str, str]:
    return ("--data", str(server.data_dir))


def offsets(server: Server, topic: str) -> dict[str, dict[int, int]]:
    with Admin(server.native) as admin:
        found = {kind: admin.offsets(f"{kind}-{topic}") for kind in ("kafka", "native")}
    return {kind: {part: at for (_, part), at in rows.items()} for kind, rows in found.items()}


@pytest.mark.parametrize("new_name", ["", "other"])
def test_a_topic_of_two_brokers_comes_back_with_what_groups_have_read(cluster: Cluster, new_name: str) -> None:
    topic = f"web-{new_name or 'same'}"
    target = new_name or topic
    fill(cluster, topic)
    before = offsets(cluster.first, topic)
    assert before["kafka"] and before["native"]
    admin = AdminClient({"bootstrap.servers": cluster.second.kafka})
    assert admin.delete_topics([topic])[topic].result(60) is None
    gone: dict[str, dict[int, int]] = {"kafka": {}, "native": {}}
    wait_for(lambda: offsets(cluster.first, topic) == gone, "the other broker to hear of it")
    for server in cluster:
        with Admin(server.native) as native_admin:
            wait_for(
                lambda asked=native_admin: [row["pending"] for row in asked.trash() if row["name"] == topic] == [False],
                "the deletion to be complete",
            )
    said = succeeding("topics", "undelete", topic, *(("--as", new_name) if new_name else ()), *at(cluster.first))
    assert said.out == f"{target} is back with 2 partitions\n"
    for group in before:
        assert f"{group}-{topic} ({len(before[group])})" in said.err, said
    assert offsets(cluster.second, topic) == before
    consumer = kafka_consumer(cluster, target, topic)
    left = [consumer.consume(1, 60)[0] for _ in range(3)]
    consumer.close()
    assert read_all(cluster, target) == values_of(topic)
    assert {message.value() for message in left} < set(values_of(topic)) and len(left) == 3


def test_a_topic_does_not_come_back_without_the_broker_that_has_a_part_of_it(cluster: Cluster) -> None:
    fill(cluster, "half")
    succeeding("topics", "delete", "half", "--yes", *at(cluster.first))
    cluster.second.stop()
    try:
        said = wait_for(
            lambda: (told := run("topics", "undelete", "half", *at(cluster.first))).status and told, "the refusal"
        )
        assert "broker 7 has partitions of topic 'half', and is away: start it first" in said.err, said
    finally:
        cluster.second.start()
    cluster.second.wait_for_zookeeper()

    def back() -> bool:
        return run("topics", "undelete", "half", *at(cluster.first)).status == 0

    wait_for(back, "the topic to come back")
    assert read_all(cluster, "half") == values_of("half")


def test_the_commands_say_what_can_come_back_and_how(cluster: Cluster) -> None:
    for _ in range(2):
        succeeding("topics", "create", "twice", *at(cluster.first))
        said = succeeding("topics", "delete", "twice", "--yes", *at(cluster.first))
        assert "`appliance topics undelete NAME` brings it back" in said.err and "kept for 24 h" in said.err, said
    older, newer = [
        row for row in succeeding("topics", "trash", "--json", *at(cluster.first)).json if row["name"] == "twice"
    ]
    assert older["deleted_ms"] <= newer["deleted_ms"] and older["until"] > older["deleted"]
    assert older["id"] in succeeding("topics", "trash", *at(cluster.first)).out
    succeeding("topics", "create", "twice", *at(cluster.first))
    refused = run("topics", "undelete", "twice", *at(cluster.first))
    assert refused.status and "topics undelete twice --as NEW" in refused.err, refused
    wait_for(
        lambda: run("topics", "undelete", older["id"], "--as", "once", *at(cluster.first)).status == 0, "it to be back"
    )
    assert "what=undelete_topic" in cluster.first.log() and "as=once" in cluster.first.log()


def test_status_and_metrics_have_what_is_in_the_trash(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**ALONE, **{"metrics.listen": "127.0.0.1:0"})
    with Peer(server.native) as peer:
        make(peer)
        assert "trash" not in succeeding("status", *at(server)).out
        peer.admin("delete_topic", name="x")
        (row,) = peer.admin("trash")
    expected = {"topics": 1, "bytes": row["bytes"]}
    assert succeeding("status", "--json", *at(server)).json["trash"] == expected
    assert "in 1 deleted topic that can be brought back" in succeeding("status", *at(server)).out
    wait_for(lambda: server.state["trash"] == expected, "the supervisor to know it")

    def scraped() -> str:
        with urllib.request.urlopen(f"http://{server.state['listeners']['metrics']}/metrics") as reply:
            return str(reply.read().decode())

    wait_for(lambda: f"appliance_disk_trash_bytes {float(row['bytes'])}" in scraped(), "the metrics to have it")
    assert "appliance_trash_topics 1.0" in scraped()
    assert succeeding("log", "verify", "--json", *at(server)).json == []
    server.stop()
    assert run("status", "--json", *at(server)).json["trash"] == expected
