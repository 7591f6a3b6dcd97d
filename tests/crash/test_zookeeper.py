"""ZooKeeper killed, frozen and missing under an appliance: what does not need it never notices."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.client.admin import Admin
from appliance.client.group import GroupConsumer
from appliance.errors import ZooKeeperAway
from appliance.zookeeper.operations import Operation
from appliance.zookeeper.registry import BrokerRegistry
from appliance.zookeeper.session import Session

from ..native_peer import Peer
from ..server import Server, wait_for
from .load import Load, check

PARTITIONS = 2
LOCAL = {"zookeeper.nodes": 3, "zookeeper.session_timeout_ms": 2_000}


def state(server: Server) -> str:
    return str(server.state["zookeeper"]["state"])


def ask(server: Server, operation: Operation[Any]) -> Any:
    session = Session(server.state["zookeeper"]["connect"], 5_000)
    session.start()
    try:
        return session.call(operation, timeout_ms=20_000)
    finally:
        session.close()


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """All nodes stopped in their tracks: connections stay, nothing is answered, and nobody restarts them."""
    pids = server.pids("zookeeper")
    for pid in pids:
        server.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            server.kill(pid, signal.SIGCONT)


def test_zookeeper_away_never_stops_produce_and_fetch(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**LOCAL)
    with Peer(server.native) as peer, Admin(server.native) as admin:
        peer.create("t", PARTITIONS)
        with Load(server.native, "t", PARTITIONS) as load:
            load.wait_for_more(200)
            with frozen(server):
                wait_for(lambda: state(server) == "lost", "the session is known to be lost")
                load.wait_for_more(500)
                assert peer.fetch("t", 0)[0][0] == 0
                with pytest.raises(ZooKeeperAway):
                    admin.create_topic("later")
                with Peer(server.native) as newcomer:
                    assert newcomer.end("t") > 0
                load.wait_for_more(500)
            wait_for(lambda: state(server) == "connected", "the session is back")
            load.wait_for_more(200)
        check(server.native, "t", load, PARTITIONS)
        admin.create_topic("later")
    brokers = ask(server, BrokerRegistry().brokers())
    assert brokers[0].native == server.native and brokers[0].partitions["t"] == [0, 1]
    assert server.stop() == 0
    assert server.leftovers() == []


def test_every_node_is_killed_and_comes_back_under_load(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**LOCAL)
    with Peer(server.native) as peer:
        peer.create("t", PARTITIONS)
    with Load(server.native, "t", PARTITIONS) as load:
        for victim in server.pids("zookeeper"):
            server.kill(victim)
            load.wait_for_more(200)
            wait_for(lambda: len(set(server.pids("zookeeper")) - {victim}) == 3, "another node")  # noqa: B023
        for victim in server.pids("zookeeper"):
            server.kill(victim)
        load.wait_for_more(200)
        wait_for(lambda: len(server.pids("zookeeper")) == 3, "all nodes")
        wait_for(lambda: [row["restarts"] for row in server.processes("zookeeper")] == [2, 2, 2], "all restarts")
        wait_for(lambda: ask(server, BrokerRegistry().brokers()), "the broker is registered")
    check(server.native, "t", load, PARTITIONS)


def test_a_group_keeps_its_place_when_all_nodes_are_killed(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**LOCAL)
    with Peer(server.native) as peer:
        peer.create("t", 1)
    with Load(server.native, "t", 1) as load:
        load.wait_for_more(200)
    acknowledged = load.acknowledged[0]
    half = len(acknowledged) // 2

    def consume(count: int) -> list[int]:
        with GroupConsumer(server.native, "g", session_timeout_ms=2_000) as consumer:
            (stream,) = consumer.create_message_streams({"t": 1})["t"]
            return [int(message.value or b"") for _, message in zip(range(count), stream, strict=False)]

    first = consume(half)
    for victim in server.pids("zookeeper"):
        server.kill(victim)
    wait_for(lambda: len(server.pids("zookeeper")) == 3, "all nodes")
    wait_for(lambda: state(server) == "connected", "the session is back")
    assert first + consume(len(acknowledged) - half) == acknowledged


def test_what_is_on_disk_is_served_without_any_zookeeper(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        with Peer(server.native) as peer:
            peer.create("t", PARTITIONS)
        with Load(server.native, "t", PARTITIONS) as load:
            load.wait_for_more(100)
    settings: dict[str, Any] = {"zookeeper.connect": "127.0.0.1:1"}
    with Server(tmp_path / "data", **settings) as again:
        check(again.native, "t", load, PARTITIONS)
        assert state(again) == "connecting"
        with Load(again.native, "t", PARTITIONS) as more:
            more.wait_for_more(100)
        with Admin(again.native) as admin, pytest.raises(ZooKeeperAway):
            admin.create_topic("later")
        assert again.stop() == 0


def test_a_killed_supervisor_leaves_an_ensemble_that_the_next_one_takes_up(tmp_path: Path) -> None:
    settings: dict[str, Any] = LOCAL
    first = Server(tmp_path / "data", **settings).start()
    with Peer(first.native) as peer:
        peer.create("t", PARTITIONS)
        peer.admin("commit", group="g", offsets=[["t", 0, 5]])
    connect = first.state["zookeeper"]["connect"]
    first.kill_supervisor()
    with Server(tmp_path / "data", **settings) as again:
        wait_for(lambda: state(again) == "connected", "the session")
        assert again.state["zookeeper"]["connect"] == connect
        with Peer(again.native) as peer:
            assert peer.admin("offsets", group="g") == [["t", 0, 5]]
        assert wait_for(lambda: ask(again, BrokerRegistry().brokers()), "registered")[0].native == again.native
        assert again.stop() == 0
        assert again.leftovers() == []
