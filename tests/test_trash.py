"""Deleted topics come back: with all that was in them, whatever is killed meanwhile, and not for longer than said."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from appliance.catalog import Catalog
from appliance.errors import TopicExists, UnknownPartition
from appliance.log import partition_directory
from appliance.records.encode import encode_values

from .native_peer import Peer
from .server import Server, wait_for
from .test_processes_supervisor_removal import BODY, Held, kill_coordinator, refusal

OLD, NEW = encode_values([b"old"], 1_000), encode_values([b"new"], 2_000)
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
    return all(peer.fetch(topic, 0, partition)[1][BODY:] == batch[BODY:] for partition in range(2))


def in_trash(server: Server) -> list[str]:
    return [path.name for _, path in partition_directory.in_trash(server.data_dir)]


def test_a_deleted_topic_comes_back_as_it_was(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**ALONE)
    with Peer(server.native) as peer:
        make(peer)
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
    server = make_appliance(**ALONE, **{"disk.bytes_max": 450_000, "topics.segment.bytes": 20_000})
    batch = encode_values([os.urandom(10_000)], 1_000)
    with Peer(server.native) as peer:
        for topic in ("a", "b", "c"):
            peer.create(topic)
            for _ in range(10 if topic != "c" else 25):
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
