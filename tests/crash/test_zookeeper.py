"""ZooKeeper killed, frozen and missing under an appliance: what does not need it never notices, groups come back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.client import Admin, Consumer
from appliance.errors import BrokerAway, Unavailable, ZooKeeperAway
from appliance.zookeeper.broker_registry import BrokerRegistry
from appliance.zookeeper.ensemble import probe
from appliance.zookeeper.operations import Operation
from appliance.zookeeper.session import Session

from ..support.group_readers import SESSION_MS
from ..support.native_peer import Peer
from ..support.server import Server, stopped, wait_for
from ..support.zookeeper_fixture import result_of
from .group_load import Group
from .load import Load, check

PARTITIONS = 2
NODES = 3
GENTLE = 50
LOCAL: dict[str, Any] = {"zookeeper.nodes": NODES, "zookeeper.session_timeout_ms": SESSION_MS}
UP_S_MAX = 60
REFUSED_S_MAX = 25
"""How long a request that needs ZooKeeper may take to say that it is away: a change of a topic asks it up to three
times, each within ``OPERATION_TIMEOUT_MS``; a client waits for 30 s."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ensemble") / "data", **LOCAL) as running:
        yield running
        assert running.stop() == 0
        assert running.leftovers() == []


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> None:
    """Each test on the shared appliance begins with three nodes that serve."""
    if "server" in request.fixturenames:
        wait_whole(request.getfixturevalue("server"))


def wait_whole(server: Server) -> None:
    wait_for(lambda: None not in modes(server) and state(server) == "connected", "all nodes serve", UP_S_MAX)


def state(server: Server) -> str:
    return str(server.state["zookeeper"]["state"])


def modes(server: Server) -> list[str | None]:
    """What each node says that it is; None for one that does not serve."""
    addresses = str(server.state["zookeeper"]["connect"]).split(",")
    return [probe(int(address.rpartition(":")[2])) for address in addresses]


def pid_of(server: Server, node: int) -> int:
    return int((server.data_dir / "zookeeper" / f"node-{node + 1}" / "pid").read_text())


def kill_nodes(server: Server, *nodes: int) -> None:
    """kill -9, and wait until the supervisor has started each of them again."""
    before = {node: pid_of(server, node) for node in nodes}
    for pid in before.values():
        server.kill(pid)
    wait_for(
        lambda: all(pid_of(server, node) != pid for node, pid in before.items()), "they are started again", UP_S_MAX
    )


@contextmanager
def frozen(server: Server, *nodes: int) -> Iterator[None]:
    """Nodes stand still: connections stay, nothing is answered, and nobody restarts them."""
    with ExitStack() as stack:
        for node in nodes:
            stack.enter_context(stopped(pid_of(server, node)))
        yield


def ask(server: Server, operation: Operation[Any]) -> Any:
    session = Session(server.state["zookeeper"]["connect"], 5_000, login=server.zookeeper_login)
    session.start()
    try:
        return result_of(session, operation, timeout_ms=60_000)
    finally:
        session.close()


def assert_registered(server: Server, topic: str) -> None:
    def registered() -> bool:
        brokers = ask(server, BrokerRegistry().brokers())
        shown = 0 in brokers and brokers[0].native == server.native
        return shown and brokers[0].partitions.get(topic) == list(range(PARTITIONS))

    wait_for(registered, "the broker is registered, with its partitions")


@contextmanager
def group_under_load(server: Server, topic: str) -> Iterator[tuple[Group, Load]]:
    """Two members that read while the block runs; afterwards they must have read all.

    They may have lost their sessions on the way, so they may have read again what was not committed.
    """
    with Peer(server.native) as peer:
        peer.create(topic, PARTITIONS)
    with Group(server.native, topic, topic, PARTITIONS) as group:
        members = group.start(2)
        with Load(server.native, topic, PARTITIONS, in_flight_max=GENTLE) as load:
            group.wait_reading(*members)
            yield group, load
            group.wait_reading(*members)
        group.wait_caught_up()
        group.check(load, may_go_back=members)


@pytest.mark.long
def test_each_node_is_killed_and_then_the_leader(server: Server, topic: str) -> None:
    """Goal: no single node matters.  Method: one after the other, each back before the next; the leader once more."""
    with group_under_load(server, topic) as (group, load):
        for node in (*range(NODES), modes(server).index("leader")):
            kill_nodes(server, node)
            load.wait_for_more(200)
            wait_whole(server)
            group.wait_committing()
    assert_registered(server, topic)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_majority_is_killed_at_once(server: Server, topic: str, count: int) -> None:
    """Goal: produce and fetch never notice; topics can be made and groups read again when the nodes are back."""
    with group_under_load(server, topic) as (group, load), Peer(server.native) as peer:
        group.wait_committing()
        kill_nodes(server, *range(count))
        load.wait_for_more(500)
        end = peer.end(topic)
        assert peer.fetch(topic, end, wait_ms=20_000)[1]
        with Admin(server.native) as admin:
            wait_for(lambda: created(admin, f"{topic}-later"), "a topic can be made again", UP_S_MAX)
        wait_whole(server)
        group.wait_committing()
    assert_registered(server, topic)


def created(admin: Admin, name: str) -> bool:
    """Make a topic; it is no fault that this cannot be done now, if it is said in time."""
    started_s = time.monotonic()
    try:
        admin.ensure_topic(name)
    except Unavailable:
        assert time.monotonic() - started_s < REFUSED_S_MAX
        return False
    return True


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_majority_is_frozen_for_longer_than_the_session(server: Server, topic: str, count: int) -> None:
    """Goal: without a quorum what is here is served, what needs one is refused soon, with an error that says to try
    again; and no message is handed out by a member whose session may be over.  All of it heals by itself.

    The leader is among the frozen: left alone, it would take its syncLimit to notice that nobody follows.
    """
    led = modes(server).index("leader")
    nodes = [led, *(node for node in range(NODES) if node != led)][:count]
    with group_under_load(server, topic) as (group, load), Peer(server.native) as peer, Admin(server.native) as admin:
        group.wait_committing()
        with frozen(server, *nodes):
            frozen_s = time.monotonic()
            wait_for(lambda: state(server) == "lost", "the session is known to be lost")
            load.wait_for_more(500)
            started_s = time.monotonic()
            with pytest.raises(ZooKeeperAway):
                admin.create_topic(f"{topic}-later")
            assert time.monotonic() - started_s < REFUSED_S_MAX
            wait_for(lambda: time.monotonic() > frozen_s + 2 * SESSION_MS / 1000, "all leases are over")
            members_saw = [len(member.seen) for member in group.members]
            load.wait_for_more(500)
            with Consumer(server.native) as newcomer:
                newcomer.assign([(topic, 0)])
                assert newcomer.poll(20)
            assert peer.end(topic) > 0
            assert [len(member.seen) for member in group.members] == members_saw, "handed out without a lease"
        wait_whole(server)
        wait_for(lambda: created(admin, f"{topic}-later"), "a topic can be made again", UP_S_MAX)
        group.wait_committing()
    assert_registered(server, topic)


@pytest.mark.parametrize("why", ["nobody answers", pytest.param("Java fails", marks=pytest.mark.long)])
def test_what_is_on_disk_is_served_without_any_zookeeper(tmp_path: Path, why: str) -> None:
    """Goal: a start on existing data waits for no ZooKeeper.

    Method: one that refuses connections and one that takes them and is silent; or a local ensemble whose Java ends at
    once.  All is served before the appliance even says that it is ready, for which it gives ZooKeeper a few seconds.
    """
    with Server(tmp_path / "data") as first:
        address = first.native
        with Peer(address) as peer:
            peer.create("t", PARTITIONS)
        with Load(address, "t", PARTITIONS) as load:
            load.wait_for_more(100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings: dict[str, Any] = {"native.listen": address, "zookeeper.nodes": NODES, "zookeeper.java": "/bin/false"}
        if why == "nobody answers":
            connect = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]}"
            settings = {"native.listen": address, "zookeeper.connect": connect}
        again = Server(tmp_path / "data", **settings)
        starting = threading.Thread(target=again.start)
        starting.start()
        try:
            wait_for(lambda: answers(address), "the listener is open")
            check(address, "t", load, PARTITIONS)
            with Load(address, "t", PARTITIONS) as more:
                more.wait_for_more(100)
            assert starting.is_alive(), "all this came before it was ready"
            with Admin(address) as admin, pytest.raises(ZooKeeperAway):
                admin.create_topic("later")
        finally:
            starting.join()
        assert state(again) == "connecting" and again.stop() == 0


def answers(address: str) -> bool:
    try:
        with Admin(address) as admin:
            return [row["name"] for row in admin.topics()] == ["t"]
    except BrokerAway:
        return False
