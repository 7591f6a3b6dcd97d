"""A machine that lacks room: what is asked for is refused, what exists goes on, and room that comes back is noticed."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from appliance import status
from appliance.errors import OutOfResources
from appliance.records.encode import encode_values
from appliance.shared import memory
from appliance.shared.table import TABLE_BYTES, WAITS
from appliance.wire import native

from ...support.native_peer import Peer
from ...support.server import NotServing, Server, stopped, wait_for
from ...support.small_machine import SmallMachine, fill, small_machine

BATCH = encode_values([b"one"], 1_000)
ARENA_MIB = 16


def create(peer: Peer, name: str, partitions: int) -> list[Any]:
    return peer.call([native.ADMIN, 1, "create_topic", {"name": name, "partitions": partitions, "settings": {}}])[0]


def names(peer: Peer) -> set[str]:
    return {topic["name"] for topic in peer.admin("topics")}


def refused(server: Server) -> dict[str, dict[str, Any]]:
    return {row["action"]: row for row in server.state["refused"]}


def test_a_topic_that_has_no_room_is_refused_and_nothing_else_is(tmp_path: Path) -> None:
    with small_machine(tmp_path, shm=f"{ARENA_MIB + 2}m") as machine:
        with machine.server(tmp_path / "log") as server, Peer(server.native) as peer:
            peer.create("t")
            answer = create(peer, "big", 400)
            assert answer[1] == OutOfResources.code and "/dev/shm" in str(answer) and "enlarge" in str(answer), answer
            assert names(peer) == {"t"}
            assert peer.produce("t", BATCH, acks=-1)[0] == 0
            wait_for(lambda: create(peer, "small", 20)[1] == 0, "what it took to be free again")
            machine.resize_shm("64m")
            answer = create(peer, "big", 400)
            assert answer[1] == 0, answer
            assert peer.produce("big", BATCH, partition=399, acks=-1)[0] == 0
            assert server.stop() == 0
        assert list(machine.shm.iterdir()) == []


def alter(peer: Peer, name: str, partitions: int) -> list[Any]:
    return peer.call([native.ADMIN, 1, "alter_topic", {"name": name, "settings": {}, "partitions": partitions}])[0]


def test_partitions_that_have_no_room_are_refused_together_and_nothing_is_left_of_them(tmp_path: Path) -> None:
    with (
        small_machine(tmp_path, shm=f"{ARENA_MIB + 2}m") as machine,
        machine.server(tmp_path / "log") as server,
        Peer(server.native) as peer,
    ):
        peer.create("t", partitions=2)
        assert peer.produce("t", BATCH, partition=1, acks=-1)[0] == 0
        before = names_in(machine.shm)
        answer = alter(peer, "t", 400)
        assert answer[1] == OutOfResources.code and "/dev/shm" in str(answer) and "enlarge" in str(answer), answer
        assert [row["partition"] for row in peer.admin("topics")[0]["partitions"]] == [0, 1]
        wait_for(lambda: names_in(machine.shm) == before, "the tables to be given back")
        wait_for(lambda: names_in(server.data_dir, "t-*") == {"t-0", "t-1"}, "the directories to be removed")
        assert peer.produce("t", BATCH, partition=1, acks=-1)[0] == 0
        assert alter(peer, "t", 20)[1] == 0, "what it took is free again"
        assert peer.produce("t", BATCH, partition=19, acks=-1)[0] == 0
        machine.resize_shm("64m")
        assert alter(peer, "t", 400)[1] == 0
        assert peer.produce("t", BATCH, partition=399, acks=-1)[0] == 0
        assert server.stop() == 0


def names_in(directory: Path, pattern: str = "*") -> set[str]:
    return {path.name for path in directory.glob(pattern)}


def test_a_start_with_less_room_serves_what_it_can_and_the_rest_once_there_is_more(tmp_path: Path) -> None:
    count = 200
    with small_machine(tmp_path) as machine:
        with machine.server(tmp_path / "log") as server, Peer(server.native) as peer:
            peer.create("t", partitions=count)
            for partition in (0, count - 1):
                assert peer.produce("t", BATCH, partition=partition, acks=-1)[0] == 0
            server.stop()
        machine.resize_shm(f"{ARENA_MIB + 1}m")
        with machine.server(tmp_path / "log") as server, Peer(server.native) as peer:
            offline = server.state["offline"]
            assert count - (1 << 20) // TABLE_BYTES <= len(offline) < count
            assert f"t-{count - 1}" in offline and "t-0" not in offline
            assert "/dev/shm" in offline[f"t-{count - 1}"]
            assert "partitions are offline" in refused(server)["place partitions in /dev/shm"]["reason"]
            assert peer.fetch("t", 0)[1] and peer.produce("t", BATCH, acks=-1)[0] == 0
            error, *_, message = peer.produce("t", BATCH, partition=count - 1, acks=-1)
            assert error and "offline" in message
            seen = status.collect(server.data_dir)
            rows = {row["partition"]: row for row in seen["partitions"]}
            assert rows[count - 1]["state"] == "offline"
            (limit,) = seen["limits"]
            assert (limit["limit"], limit["process"]) == ("/dev/shm", "") and "enlarge it" in limit["advice"]
            machine.resize_shm("64m")
            wait_for(lambda: not server.state["offline"] and not server.state["refused"], "all to be online")
            assert server.state["limits"] == []
            wait_for(lambda: peer.produce("t", BATCH, partition=count - 1, acks=-1)[0] == 0, "the last one")
            assert peer.fetch("t", 0, count - 1)[1]


def test_a_start_without_room_for_anything_waits_and_says_so(tmp_path: Path) -> None:
    with small_machine(tmp_path, shm="1m") as machine:
        server = machine.server(tmp_path / "log")
        server.launch()
        with ExitStack() as stack:
            stack.push(server.__exit__)
            wait_for(lambda: (server.data_dir / "state.json").exists(), "state.json")
            wait_for(lambda: "start network workers" in refused(server), "it to be told")
            assert "network.arena_bytes" in refused(server)["start network workers"]["reason"]
            machine.resize_shm("64m")
            server.wait_serving()
            with Peer(server.native) as peer:
                peer.create("t")
                assert peer.produce("t", BATCH, acks=-1)[0] == 0


def fill_all(directory: Path) -> Path:
    """Take the last files and blocks of a disk; returns the directory that has them."""
    others = directory / "others"
    others.mkdir()
    fill(others / "blocks")
    with suppress(OSError):
        for number in itertools.count():
            (others / str(number)).touch()
    return others


def test_a_start_on_a_full_disk_serves_what_is_there_and_takes_more_once_there_is_room(tmp_path: Path) -> None:
    """Method: a killed instance, whose index has to be written again to be recovered."""
    with small_machine(tmp_path, disk="12m") as machine:
        server = machine.server(tmp_path / "log")
        with server, Peer(server.native) as peer:
            peer.create("t")
            peer.create("u")
            assert peer.produce("u", BATCH, acks=-1)[0] == 0
            for _ in range(120):
                assert peer.produce("t", encode_values([os.urandom(1000)] * 60, 1_000), acks=-1)[0] == 0
            server.kill_supervisor()
        partitions = [server.data_dir / "t-0", server.data_dir / "u-0"]
        wait_for(lambda: not holders(machine), "the writers to end")
        for partition in partitions:
            (partition / "clean-shutdown").unlink(missing_ok=True)
        os.truncate(partitions[0] / f"{0:020d}.index", 24)
        other = fill_all(machine.path)
        with server, Peer(server.native) as peer:
            assert peer.fetch("t", 0)[1] and peer.fetch("u", 0)[1]
            assert peer.produce("u", encode_values([os.urandom(1000)] * 60, 1_000), acks=-1)[0] != 0
            (limit,) = peer.admin("status")["limits"]
            assert limit["limit"] == "disk" and limit["value"] - limit["in_use"] < 1 << 20
            shutil.rmtree(other)
            wait_for(lambda: not server.state["offline"] and not server.state["refused"], "all to be online")
            for topic in ("t", "u"):
                wait_for(lambda topic=topic: peer.produce(topic, BATCH, acks=-1)[0] == 0, topic)
                assert peer.fetch(topic, 0)[1]
            assert peer.admin("status")["limits"] == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to refuse system calls")
def test_a_log_that_the_machine_does_not_let_be_opened_is_opened_later(tmp_path: Path) -> None:
    """Method: an instance is killed, and the next one gets no descriptor for the log until strace ends."""
    server = Server(tmp_path / "data")
    with server, Peer(server.native) as peer:
        peer.create("t")
        peer.create("u")
        for topic in ("t", "u"):
            assert peer.produce(topic, BATCH, acks=-1)[0] == 0
        server.kill_supervisor()
    log = server.data_dir / "t-0" / f"{0:020d}.log"
    marker = log.parent / "clean-shutdown"
    wait_for(marker.exists, "the orphaned writer to end")
    marker.unlink()
    inject = ["-P", str(log), "-e", "trace=openat", "-e", "inject=openat:error=EMFILE"]
    server.within = ["strace", "-D", "-I", "2", "-f", "-o", os.devnull, *inject]
    with server, Peer(server.native) as peer:
        assert server.process is not None
        assert "Too many open files" in server.state["offline"]["t-0"]
        assert "Too many open files" in refused(server)["open partitions"]["reason"]
        assert peer.produce("u", BATCH, acks=-1)[0] == 0, "the others serve"
        tracer = re.search(r"TracerPid:\s*(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())
        assert tracer is not None
        os.kill(int(tracer[1]), signal.SIGTERM)
        wait_for(lambda: not server.state["offline"] and not server.state["refused"], "it to be online")
        wait_for(lambda: peer.produce("t", BATCH, acks=-1)[0] == 0, "produce")
        assert peer.fetch("t", 0)[1]


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to refuse system calls")
def test_a_start_that_cannot_read_the_catalog_for_want_of_descriptors_ends_and_can_be_repeated(tmp_path: Path) -> None:
    """Goal: exit status 75, after which the service manager starts it again, and what to raise."""
    server = Server(tmp_path / "data")
    with server, Peer(server.native) as peer:
        peer.create("t")
        assert peer.produce("t", BATCH, acks=-1)[0] == 0
        server.stop()
    inject = ["-P", str(server.data_dir / "catalog.json"), "-e", "trace=openat", "-e", "inject=openat:error=EMFILE"]
    server.within = ["strace", "-o", os.devnull, *inject]
    with pytest.raises(NotServing, match="exit status 75") as caught:
        server.start()
    assert "catalog.json: Too many open files (descriptors): raise LimitNOFILE=" in str(caught.value)
    server.within = []
    with server, Peer(server.native) as peer:
        assert peer.fetch("t", 0)[1]


def holders(machine: SmallMachine) -> list[str]:
    """Processes that have a file of the box open."""
    found = []
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if "/disk/box/" in str(path.readlink()) and machine.path.parent.name in str(path.readlink()):
                found.append(path.parts[2])
        except OSError:
            continue
    return found


def test_names_of_others_are_left_where_they_are(tmp_path: Path, make_appliance: Callable[..., Server]) -> None:
    """Method: a directory in the place of a file, which nobody may unlink, stands for what belongs to somebody else."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    foreign = memory.SHM_DIR / memory.name_of(memory.instance_of(data_dir), "table.mine")[1:]
    foreign.mkdir()
    try:
        server = make_appliance("data")
        assert f"{foreign} is left there" in server.log()
        with Peer(server.native) as peer:
            peer.create("t")
            assert peer.produce("t", BATCH, acks=-1)[0] == 0
        ours = [name for name in server.leftovers() if name != foreign.name]
        assert len(ours) == 8, "its owner, two arenas, a table, that of offline partitions, and three pages of counters"
        assert {(memory.SHM_DIR / name).stat().st_mode & 0o777 for name in ours} == {0o600}
        assert len({name.rsplit(".", 1)[1] for name in ours}) == len(ours), "nobody can know the next name"
        assert server.stop() == 0
        assert server.leftovers() == [foreign.name]
    finally:
        foreign.rmdir()


def test_a_killed_worker_does_not_go_on_waiting(make_appliance: Callable[..., Server]) -> None:
    """Goal: its successor is not rung for every message, for a fetch that nobody has asked for any more."""
    server = make_appliance(**{"network.workers": 1})
    with Peer(server.native) as peer, Peer(server.native) as waiting:
        peer.create("t")
        peer.produce("t", BATCH, acks=-1)
        waiting.send([native.FETCH, 3, 60_000, 1, 1000, [["t", 0, len(BATCH), 1000]]])
        table = wait_for(lambda: server.state["tables"].get("t-0"), "the table to be shown")
        mapped = memory.attach(table, writable=False)
        with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
            wait_for(lambda: cells[WAITS], "the fetch to wait")
            server.kill(server.pid_of("network"))
            wait_for(lambda: not cells[WAITS], "its successor to take that back")


def test_a_stopped_writer_and_any_number_of_questions_do_not_end_a_worker(
    make_appliance: Callable[..., Server],
) -> None:
    """Each question about the end of a log asks its writer for a flush: 10,000 parts are 10,000 messages."""
    server = make_appliance(**{"network.workers": 1, "liveness.timeout_ms": 600_000})
    with Peer(server.native) as peer:
        peer.create("t", flush_messages=1000, flush_ms=60_000)
        peer.produce("t", BATCH)
        worker, pid = server.pid_of("network"), server.pid_of("writer")
        peer.produce("t", BATCH)
        with stopped(pid):
            for _ in range(2):
                peer.call([native.OFFSETS, 4, [["t", 0, -1, -1]] * 10_000])
            peer.end("t")
        assert server.pids("network") == [worker]


@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_a_full_disk_ends_zookeeper_and_nothing_else(tmp_path: Path) -> None:
    with small_machine(tmp_path, disk="64m") as machine:
        server = machine.server(tmp_path / "log", **{"zookeeper.nodes": 1})
        with server, Peer(server.native) as peer:
            server.wait_for_zookeeper()
            peer.create("t")
            other = fill_all(machine.path)
            node = server.pid_of("zookeeper")
            os.kill(node, signal.SIGKILL)
            wait_for(lambda: "note the pids of ZooKeeper nodes" in server.log(), "the pid that cannot be noted")
            assert server.process is not None and server.process.poll() is None
            peer.fetch("t", 0)
            shutil.rmtree(other)
            wait_for(lambda: not server.state["refused"], "nothing to be refused any more")
            wait_for(
                lambda: server.state["zookeeper"]["state"] == "connected" and create(peer, "u", 1)[1] == 0, "groups"
            )
