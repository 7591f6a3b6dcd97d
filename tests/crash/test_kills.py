"""kill -9 of each process under load: nothing acknowledged is lost or duplicated, order stays, recovery is bounded."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.client import Producer

from ..support.native_peer import Peer
from ..support.server import NotServing, Server, stopped, wait_for
from .load import Load, check

PARTITIONS = 2
KILLS = 4


def create(server: Server, **settings: object) -> None:
    with Peer(server.native) as peer:
        peer.create("t", PARTITIONS, **settings)


@pytest.mark.parametrize("acks", ["all", 1])
@pytest.mark.parametrize("role", ["writer", "network", "coordinator"])
def test_a_killed_child_loses_nothing(make_appliance: Callable[..., Server], role: str, acks: str | int) -> None:
    server = make_appliance()
    create(server)
    with Load(server.native, "t", PARTITIONS, acks) as load:
        load.wait_for_more(200)
        for _ in range(KILLS):
            victim = server.pid_of(role)
            server.kill(victim)
            wait_for(lambda: victim not in server.pids(role) and server.pids(role), f"another {role}")  # noqa: B023
            load.wait_for_more(200)
    check(server.native, "t", load, PARTITIONS)
    assert server.stop() == 0
    assert server.leftovers() == []


@pytest.mark.parametrize("acks", ["all", pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_supervisor_loses_nothing(tmp_path: Path, acks: str | int) -> None:
    first = Server(tmp_path / "data").start()
    address = first.native
    create(first)
    with Load(address, "t", PARTITIONS, acks) as load:
        for _ in range(KILLS):
            load.wait_for_more(200)
            first.kill_supervisor()
            first = Server(tmp_path / "data", **{"native.listen": address}).start()
        load.wait_for_more(200)
    check(address, "t", load, PARTITIONS)
    assert first.stop() == 0
    assert first.leftovers() == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to kill at a system call")
@pytest.mark.parametrize(
    "settings",
    [{}, *(pytest.param(one, marks=pytest.mark.long) for one in ({"flush_messages": 0}, {"segment_bytes": 4096}))],
)
@pytest.mark.parametrize("step", ["writev", "fdatasync", "sendmsg,sendto", "openat", "ftruncate,write,pwrite64"])
def test_a_writer_killed_at_a_named_step(
    make_appliance: Callable[..., Server], step: str, settings: dict[str, int]
) -> None:
    """The writer is killed on entering its n-th system call of a kind: between any two steps of an append."""
    server = make_appliance()
    create(server, **settings)
    with Load(server.native, "t", PARTITIONS) as load:
        for number in (1, 2, 7):
            load.wait_for_more(50)
            victim = server.pid_of("writer")
            tracer = subprocess.Popen(
                ["strace", "-f", "-o", "/dev/null", "-p", str(victim), "-e", f"trace={step}",
                 "-e", f"inject={step}:signal=SIGKILL:when={number}"],
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            enough = load.count + 300  # not every kind of step is taken with every setting
            try:
                wait_for(lambda: dead(victim) or load.count >= enough, "the writer to be killed")  # noqa: B023
            finally:
                tracer.kill()  # a tracer that lives on keeps a killed thread a zombie, and its process from ending
                tracer.wait()
            load.wait_for_more(100)
    check(server.native, "t", load, PARTITIONS)


def dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_second_instance_is_refused_and_names_the_first(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance()
    second = Server(server.data_dir)
    second.log_path = server.data_dir.with_name("second.log")
    assert server.process is not None
    with pytest.raises(NotServing, match=f"exit status 75(?s:.)*pid {server.process.pid}"):
        second.start()
    with Peer(server.native) as peer:
        assert peer.admin("topics") == []


def test_a_writer_that_hangs_keeps_the_next_appliance_out(make_appliance: Callable[..., Server]) -> None:
    """Two writers of one log would destroy it: nothing starts until the first has ended, and who starts it is told."""
    server = make_appliance()
    with Producer(server.native) as producer:
        producer.send("t", b"x").result(60)
    writer = server.pid_of("writer")
    with stopped(writer):
        server.kill_supervisor()
        with pytest.raises(NotServing, match=r"exit status 75(?s:.)*fuser --kill"):
            server.start()
    server.start()  # it ends by itself when it goes on
    with Peer(server.native) as peer:
        assert [row["name"] for row in peer.admin("topics")] == ["t"]


def test_a_cleanly_stopped_log_opens_without_recovery(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as first:
        create(first)
        with Load(first.native, "t", PARTITIONS) as load:
            load.wait_for_more(100)
        assert first.stop() == 0
    assert (tmp_path / "data" / "t-0" / "clean-shutdown").exists()
    with Server(tmp_path / "data") as again:
        assert "recover" not in again.log().partition("stopping")[2]
        assert again.pids("writer") == []
        check(again.native, "t", load, PARTITIONS)
