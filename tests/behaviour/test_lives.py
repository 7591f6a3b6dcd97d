"""What may not come twice does not, whatever life a data directory leads.

A directory that is restored from a backup, from a snapshot of its disk, or cloned beside others begins again from an
earlier state, while clients of its former life, and the other directory, go on.  So nothing that must be unique may be
counted from what lies in it.  IDENTITIES lists all of that; those of processes and memory are made anew anyway.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.broker.sequences import new_producer_id
from appliance.config import Config, ZooKeeperSection
from appliance.console.console_sessions import Sessions
from appliance.processes.coordinator.coordinator import owner_of
from appliance.records.encode import encode_values
from appliance.security.scram import make_nonce
from appliance.wire import native

from ..support.kafka_peer import KafkaPeer
from ..support.native_peer import Peer
from ..support.server import Server, runs, wait_for

GROUP = "g"


def producer_ids(server: Server, peer: KafkaPeer) -> list[object]:
    """Those that workers give, and that the coordinator gives through a worker."""
    ids: list[object] = [peer.ask("InitProducerId", 3, transactional_id=None).producer_id for _ in range(600)]
    with Peer(server.native) as native_peer:
        return [*ids, *(native_peer.admin("init_producer")["producer_id"] for _ in range(600))]


def topic_ids(server: Server, peer: KafkaPeer) -> list[object]:
    """Of a topic that each life makes: a consumer of one must not read on in another."""
    with Peer(server.native) as native_peer:
        native_peer.create("made-in-each-life")
        header, _ = native_peer.call([native.METADATA, 5, ["made-in-each-life"]])
        return [header[2]["topics"][0]["id"]]


def member_ids(server: Server, peer: KafkaPeer) -> list[object]:
    """Generations begin at 1 in each life; a member of an earlier one is not known, whatever its generation."""
    values = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer"}
    offer = [{"name": "range", "metadata": b""}]
    ids = []
    for _ in range(3):
        joined = peer.ask("JoinGroup", 4, group_id=GROUP, member_id="", protocols=offer, **values)
        assert joined.error_code == 79
        ids.append(joined.member_id)
    return ids


def claims(server: Server, peer: KafkaPeer) -> list[object]:
    """The node by which the coordinator writes committed offsets."""
    part = {"name": "kept", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    reply = peer.ask("OffsetCommit", 2, group_id=GROUP, generation_id_or_member_epoch=-1, topics=[part])
    assert reply.topics[0].partitions[0].error_code == 0
    client = server.zookeeper_client()
    client.start()
    found = [name for name in client.get_children(f"/consumers/{GROUP}") if name.startswith("claim-")]
    client.stop()
    client.close()
    assert found
    return found


def shared_memory(server: Server, peer: KafkaPeer) -> list[object]:
    """Tables with their epochs, arenas, counters."""
    return [*server.leftovers()]


def nonces(server: Server, peer: KafkaPeer) -> list[object]:
    """A login that was heard in one life cannot be played to another."""
    return [make_nonce() for _ in range(3)]


def sessions(server: Server, peer: KafkaPeer) -> list[object]:
    """Cookies of the console, and what protects its forms."""
    token, session = Sessions(lambda: 0.0).begin("alice", {})
    return [token, session.csrf]


IDENTITIES: dict[str, Callable[[Server, KafkaPeer], list[object]]] = {
    "producer ids": producer_ids,
    "topic ids": topic_ids,
    "ids of members of groups": member_ids,
    "claims of groups": claims,
    "shared memory": shared_memory,
    "nonces of logins": nonces,
    "sessions of the console": sessions,
}


def test_nothing_unique_comes_twice_after_a_restore(make_appliance: Callable[..., Server], tmp_path: Path) -> None:
    """Method: three lives begin with the same copy of a directory that has served; each makes some of everything."""
    server = make_appliance(**{"zookeeper.nodes": 1, "network.workers": 2})
    server.wait_for_zookeeper()
    with Peer(server.native) as peer:
        peer.create("kept")
        assert peer.admin("init_producer")["epoch"] == 0
    server.stop()
    shutil.copytree(server.data_dir, tmp_path / "copy", symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    lives: list[dict[str, set[object]]] = []
    for _ in range(3):
        shutil.rmtree(server.data_dir)
        shutil.copytree(tmp_path / "copy", server.data_dir, symlinks=True)
        server.start()
        server.wait_for_zookeeper()
        with KafkaPeer(server.kafka) as peer:
            made = {name: make(server, peer) for name, make in IDENTITIES.items()}
        lives.append({name: set(values) for name, values in made.items()})
        assert {name for name, values in made.items() if len(set(values)) < len(values)} == set(), "twice in one life"
        server.stop()
    for name in IDENTITIES:
        assert not lives[0][name] & lives[1][name] and not lives[2][name] & (lives[0][name] | lives[1][name]), name


def test_a_producer_goes_on_in_a_restored_log_beside_new_ones(make_appliance: Callable[..., Server]) -> None:
    """Goal: no batch of a producer that outlives its data directory is taken for a repeat of another one's.

    Method: the producer begins after the copy was made; after the restore a new one writes more than it has.
    """
    server = make_appliance(**{"network.workers": 1})

    def write(identity: tuple[int, int], sequence: int, value: bytes) -> tuple[int, int, int, str]:
        producer_id, epoch = identity
        numbers = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        return peer.produce("t", encode_values([value], 1_000, **numbers), acks=-1)

    def begin() -> tuple[int, int]:
        identity = peer.admin("init_producer")
        return identity["producer_id"], identity["epoch"]

    with Peer(server.native) as peer:
        peer.create("t")
    server.stop()
    shutil.copytree(server.data_dir, server.data_dir.with_name("copy"))
    server.start()
    with Peer(server.native) as peer:
        old = begin()
        for sequence in range(20):
            assert write(old, sequence, b"old %d" % sequence)[0] == 0
    writer = server.pid_of("writer")
    server.kill_supervisor()
    wait_for(lambda: not runs(writer), "the writer to close its log")
    shutil.rmtree(server.data_dir)
    server.data_dir.with_name("copy").rename(server.data_dir)
    server.start()
    with Peer(server.native) as peer:
        new = begin()
        for sequence in range(40):
            assert write(new, sequence, b"new %d" % sequence)[0] == 0
        error, base, *_ = write(old, 20, b"old 20")
        assert error == 0
        (error, _, end, size), data = peer.fetch("t", base)
        assert error == 0 and size and data.endswith(b"old 20\0") and end == base + 1


@pytest.mark.parametrize("value, expected", [(b"\0" * 8, 0), (b"\xff" * 8, 2**62 - 1)])
def test_producer_ids_are_positive_and_leave_room_for_those_of_spark(value: bytes, expected: int) -> None:
    assert new_producer_id(lambda size: value[:size]) == expected


def test_a_clone_beside_others_is_not_taken_for_an_earlier_life() -> None:
    """Copies of one machine have the same inodes, and may have the same name; they were booted apart.

    A node of the local ensemble is on this machine, so that a registration there is always our own.
    """
    others = Config(zookeeper=ZooKeeperSection(connect="zk:2181"))
    assert owner_of("5:7", others, "host", (1, 2)) != owner_of("5:7", others, "host", (3, 4))
    assert owner_of("5:7", others, "host", (1, 2)) == owner_of("5:7", others, "host", (1, 2))
    assert owner_of("5:7", others, "host", (1, 2)) != owner_of("5:7", others, "other", (1, 2))
    assert owner_of("5:7", Config(), "host", (1, 2)) == owner_of("5:7", Config(), "host", (3, 4))
