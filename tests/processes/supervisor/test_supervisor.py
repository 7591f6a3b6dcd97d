"""The supervisor, as an operator meets it: start, stop, reload, leftovers, sd_notify."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.processes import child
from appliance.records.encode import encode_values
from appliance.shared import memory
from appliance.wire import native

from ...support.native_peer import Peer
from ...support.server import NotServing, Server, runs, stopped, wait_for

BATCH = encode_values([b"one"], 1_000)


def test_an_ordered_stop_leaves_clean_logs_and_nothing_else(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance()
    with Peer(server.native) as peer:
        peer.create("t", partitions=3)
        assert peer.produce("t", BATCH)[0] == 0
        pids = [row["pid"] for row in server.state["processes"]]
        assert server.stop() == 0
    assert all((server.data_dir / f"t-{partition}" / "clean-shutdown").exists() for partition in range(3))
    assert server.leftovers() == []
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert server.state["state"] == "stopped"


def test_a_stop_answers_what_it_has_taken(make_appliance: Callable[..., Server]) -> None:
    """A fetch that waits is answered, a produce that was read is acknowledged, then connections end."""
    server = make_appliance()
    with Peer(server.native) as waiting, Peer(server.native) as peer:
        peer.create("t")
        waiting.send([1, 1, 60_000, 1, 1 << 20, [["t", 0, 0, 1 << 20]]])
        peer.produce("t", BATCH)
        waiting.receive()
        waiting.send([1, 2, 60_000, 1, 1 << 20, [["t", 0, len(BATCH), 1 << 20]]])
        peer.admin("topics")
        assert server.stop() == 0
        assert waiting.receive()[0] == [2, 0, [[0, 0, len(BATCH), 0]]]
        assert waiting.hung_up()


def test_a_stop_ends_the_others_first_and_serves_messages_meanwhile(make_appliance: Callable[..., Server]) -> None:
    """Method: the coordinator hangs, so the stop waits for it, for a quarter of its time at most."""
    server = make_appliance(**{"stop.timeout_ms": 30_000})
    assert server.process is not None
    with Peer(server.native) as peer:
        peer.create("t")
        coordinator = server.pid_of("coordinator")
        with stopped(coordinator):
            server.process.terminate()
            wait_for(lambda: server.state["state"] == "stopping", "the stop")
            assert peer.produce("t", BATCH, acks=-1)[0] == 0, "a writer is started, and acknowledges"
            with Peer(server.native) as other:
                assert other.fetch("t", 0)[1]
        assert peer.hung_up()
    assert server.stop() == 0
    assert "did not stop in time" not in server.log() and "ended with status" not in server.log()


BRAKE = """
import importlib.abc, os, select, sys

class Brake(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        while name == "appliance.processes.coordinator" and not os.path.exists(os.environ["RELEASED"]):
            select.select([], [], [], 0.01)

sys.meta_path.insert(0, Brake())
"""
"""Lets the import of the coordinator wait for a file."""


def test_a_start_serves_producers_and_their_metadata_before_the_coordinator(tmp_path: Path) -> None:
    data, released = tmp_path / "data", tmp_path / "released"
    with Server(data) as server, Peer(server.native) as peer:
        peer.create("t")
    (tmp_path / "sitecustomize.py").write_text(BRAKE)
    server = Server(data)
    server.environment = {"PYTHONPATH": str(tmp_path), "RELEASED": str(released)}
    with server, Peer(server.native) as peer:
        header, _ = peer.call([native.METADATA, 5, None])
        assert [topic["name"] for topic in header[2]["topics"]] == ["t"]
        assert peer.produce("t", BATCH, acks=-1)[0] == 0
        peer.send([native.ADMIN, 1, "create_topic", {"name": "later", "partitions": 1, "settings": {}}])
        assert not select.select([peer.sock], [], [], 0.2)[0], "there is a coordinator"
        released.touch()
        assert peer.receive()[0][1] == 0
        header, _ = peer.call([native.METADATA, 5, None])
        assert [topic["name"] for topic in header[2]["topics"]] == ["later", "t"]


def test_what_a_killed_instance_left_is_cleaned_up_at_the_next_start(tmp_path: Path) -> None:
    server = Server(tmp_path / "data").start()
    with Peer(server.native) as peer:
        peer.create("t")
    instance = memory.instance_of(server.data_dir)
    owner_fd = memory.own(instance)  # else an appliance of another test may remove it all before the next start here
    server.kill_supervisor()
    assert server.leftovers()
    stale, _ = memory.create(instance, "arena9", 4096)
    with Server(tmp_path / "data") as again:
        assert stale[1:] not in again.leftovers()
        assert "removed shared memory" in again.log()
    os.close(owner_fd)
    assert again.leftovers() == []


def test_children_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    server = Server(tmp_path / "data").start()
    with Peer(server.native) as peer:
        peer.create("t")
        peer.produce("t", BATCH, acks=-1)
    wait_for(lambda: server.pids("writer"), "the writer to be shown")
    pids = [row["pid"] for row in server.state["processes"]]
    server.kill_supervisor()
    wait_for(lambda: not any(alive(pid) for pid in pids), "the children to end")
    assert (server.data_dir / "t-0" / "clean-shutdown").exists()  # a writer closes its log in order all the same
    for name in server.leftovers():
        memory.unlink("/" + name)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_a_node_that_was_started_again_is_shown(make_appliance: Callable[..., Server]) -> None:
    """Also when nothing else changes: the coordinator, which would report its session, stands still."""
    server = make_appliance(**{"zookeeper.nodes": 1, "liveness.timeout_ms": 600_000})
    server.wait_for_zookeeper()
    with stopped(server.pid_of("coordinator")):
        for _ in range(4):  # each waits longer than the one before
            node = server.pid_of("zookeeper")
            server.kill(node)
            wait_for(lambda: server.pids("zookeeper") not in ([], [node]), "another one")  # noqa: B023


def test_sighup_changes_what_can_change(tmp_path: Path) -> None:
    config = tmp_path / "appliance.toml"
    config.write_text('[topics]\n"max.message.bytes" = 100000\n')
    server = Server(tmp_path / "data", config_file=config)
    with server, Peer(server.native) as peer:
        peer.create("t")
        assert peer.produce("t", encode_values([bytes(50_000)], 1_000))[0] == 0
        config.write_text('[topics]\n"max.message.bytes" = 1000\n')
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "configuration reloaded" in server.log(), "the reload")
        large = encode_values([bytes(50_000)], 1_000)
        wait_for(lambda: peer.produce("t", large)[0] == 10, "the new limit")
        config.write_text("[topics]\nmax.mesage.bytes = 5\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "did you mean 'topics.max.message.bytes'" in server.log(), "the refusal")
        assert peer.produce("t", BATCH)[0] == 0


def test_sd_notify_is_spoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        server = Server(tmp_path / "data")
        with server:
            assert server.process is not None
            hear(manager, b"STATUS=serving 0 partitions")
            hear(manager, b"READY=1")
            hear(manager, b"WATCHDOG=1")
            with Peer(server.native) as peer:
                peer.create("t", partitions=2)
            hear(manager, b"STATUS=serving 2 partitions")
            server.process.terminate()
            hear(manager, b"STOPPING=1")
            hear(manager, b"STATUS=stopping")


def hear(manager: socket.socket, start: bytes) -> bytes:
    """The next message that starts so."""
    while not (said := manager.recv(4096)).startswith(start):
        pass
    return said


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"native.listen": "192.0.2.1:1"}, "native.listen = 192.0.2.1:1"),
        ({"native.listen": "nowhere.invalid:1"}, "native.listen"),
        ({"network.frame_bytes_max": "1GiB"}, "network.arena_bytes"),
        ({"zookeeper.nodes": 1, "zookeeper.java": "/nonexistent"}, "zookeeper.java"),
    ],
)
def test_what_cannot_work_is_refused_with_the_key_named(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    with pytest.raises(NotServing, match=f"exit status 78(?s:.)*{says}"):
        Server(tmp_path / "data", **settings).start()


def test_an_unknown_key_offers_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotServing, match=r"did you mean 'network\.workers'"):
        Server(tmp_path / "data", **{"network.worker": 1}).start()


def test_two_appliances_serve_side_by_side(make_appliance: Callable[..., Server]) -> None:
    one, two = make_appliance("one"), make_appliance("two")
    with Peer(one.native) as peer:
        peer.create("only-here")
    with Peer(two.native) as peer:
        assert peer.admin("topics") == []
    assert one.stop() == 0
    with Peer(two.native) as peer:
        assert peer.admin("topics") == []


def all_running(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, if none is that of a process which an earlier test has killed."""
    return rows if all(runs(row["pid"]) for row in rows) else []


def test_children_take_short_turns_on_the_processor(appliance: Server) -> None:
    def slice_ns(pid: int) -> int:
        found = re.search(r"^se\.slice\s*:\s*(\d+)", Path(f"/proc/{pid}/sched").read_text(), re.MULTILINE)
        return int(found[1]) if found else pytest.skip("this kernel does not show slices")

    usual = slice_ns(os.getpid())
    rows = wait_for(lambda: all_running(appliance.state["processes"]), "all processes to run")
    for row in rows:
        wanted = usual if row["role"] == "supervisor" else child.SLICE_NS
        wait_for(lambda pid=row["pid"], wanted=wanted: slice_ns(pid) == wanted, f"short turns: {row}")
