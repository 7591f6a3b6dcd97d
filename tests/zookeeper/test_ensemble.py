"""appliance.zookeeper.ensemble: found, started, measured, killed in every way, and gone without a trace."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from appliance.config import ZooKeeperSection
from appliance.errors import ConfigFault
from appliance.zookeeper.ensemble import (
    Ensemble,
    probe,
)
from appliance.zookeeper.operations import Operation, ask, create, get, set_value

from ..support.measures import memory_bytes
from ..support.sockets import LISTENING, LOOPBACK, open_files, tcp_sockets
from ..support.zookeeper_fixture import (
    fresh_connect,
    now_ms,
    result_of,
    running,
    serving,
    sessions,
    wait_serving,
    wait_until,
)

MEMORY_MB_MAX = 300  # three nodes together


def written(path: str, value: bytes) -> Operation[None]:
    yield from ask([create(path, b"")])
    yield [set_value(path, value, -1)]


def read(path: str) -> Operation[bytes]:
    (node,) = yield [get(path)]
    return bytes(node.value)


def listeners(pid: int) -> set[str]:
    """Addresses that a process listens on."""
    files = open_files(pid)
    return {each.address for each in tcp_sockets() if each.state == LISTENING and each.file in files}


# --- files and ports, without starting anything


def prepared(directory: Path, nodes: int = 3, choice: int = 1) -> Ensemble:
    """Each test (by the name of its directory) has ports of its own: those that run beside it would take them."""
    seed = zlib.crc32(f"{directory.name} {choice}".encode())
    made = Ensemble(ZooKeeperSection(nodes=nodes), directory, seed=seed)  # type: ignore[arg-type]
    made.prepare()
    return made


def test_files_are_written_once_and_ports_remembered(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    assert len({port for ports in first.ports for port in ports}) == 9
    files = [path for path in (tmp_path / "zookeeper").rglob("*") if path.is_file()]
    times = {path: path.stat().st_mtime_ns for path in files}
    second = prepared(tmp_path, choice=2)
    assert second.ports == first.ports and second.connect == first.connect
    assert {path: path.stat().st_mtime_ns for path in files} == times


def test_ports_that_somebody_took_are_chosen_again(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    with socket.create_server(("127.0.0.1", first.ports[1].quorum)):
        second = prepared(tmp_path, choice=2)
    taken = {port for ports in first.ports for port in ports}
    assert not taken & {port for ports in second.ports for port in ports}
    assert f":{second.ports[1].quorum}:" in (tmp_path / "zookeeper/node-3/zoo.cfg").read_text()


def test_three_nodes_do_not_become_one(tmp_path: Path) -> None:
    prepared(tmp_path, 3)
    with pytest.raises(ConfigFault, match=r"set zookeeper\.nodes=3"):
        prepared(tmp_path, 1)


def test_an_unreadable_port_file_is_named(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "zookeeper/ensemble.json").write_text("{")
    with pytest.raises(ConfigFault, match=r"ensemble\.json cannot be read"):
        prepared(tmp_path)


def test_options_of_other_java_programs_are_not_inherited(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "JAVA_TOOL_OPTIONS": "-Xmx4g", "CLASSPATH": "/x"}
    made = Ensemble(ZooKeeperSection(nodes=1), tmp_path, environ=environ)
    made.prepare()
    assert made.commands[0].env.keys() == {"PATH", "MALLOC_ARENA_MAX"}


# --- real nodes


def test_three_nodes_serve_on_loopback_within_their_memory(ensemble: Ensemble) -> None:
    assert sorted(filter(None, serving(ensemble))) == ["follower", "follower", "leader"]
    with sessions(fresh_connect(ensemble)) as opened:
        session = opened.open()

        def load() -> Operation[None]:
            yield from ask([create("/a")])
            for _ in range(10):
                yield [set_value("/a", b"x" * 200, -1) for _ in range(500)]

        result_of(session, load(), timeout_ms=60_000)
    pids = [process.pid for process in ensemble.processes.values()]
    assert sum(memory_bytes(pid, "Pss") for pid in pids) <= MEMORY_MB_MAX << 20
    for pid in pids:
        assert listeners(pid) <= LOOPBACK
    for command in ensemble.commands:
        text = (command.cwd / "zookeeper.log").read_text()
        assert "INFO" in text and len(text) < 100_000
        assert not list((command.cwd / "tmp").iterdir())


@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.long)])
def test_killed_nodes_come_back_with_their_data(tmp_path: Path, nodes: int) -> None:
    """Goal: kill -9 of one node interrupts for less than a session; of all of them, loses nothing."""
    with running(tmp_path, nodes) as own, sessions(own.connect) as opened:  # type: ignore[arg-type]
        session = opened.open()
        result_of(session, written("/a", b"1"))
        for round_, mode in enumerate(["leader", "follower"] if nodes == 3 else ["standalone"]):
            victim = serving(own).index(mode)
            kill(own, victim)
            result_of(session, written(f"/b{round_}", b"2"), timeout_ms=60_000) if nodes == 3 else None
            own.start_node(victim)
            wait_serving(own)
        for i in range(nodes):
            kill(own, i)
        assert serving(own) == [None] * nodes
        for i in range(nodes):
            own.start_node(i)
        wait_serving(own)
        assert result_of(session, read("/a"), timeout_ms=60_000) == b"1"
        assert nodes == 1 or result_of(session, read("/b1"), timeout_ms=60_000) == b"2"


def kill(own: Ensemble, i: int) -> None:
    own.processes[i].kill()
    own.processes[i].wait()


def test_one_node_grows_to_three_and_keeps_its_data(tmp_path: Path) -> None:
    with running(tmp_path, 1) as own, sessions(own.connect) as opened:
        result_of(opened.open(), written("/a", b"1"))
    with running(tmp_path, 3) as own, sessions(own.connect) as opened:
        assert result_of(opened.open(), read("/a")) == b"1"


def test_an_ensemble_that_is_said_to_have_grown_keeps_what_its_nodes_have(tmp_path: Path) -> None:
    """``ensemble.json`` names one node, restored or written by mistake, and the others have data."""
    with running(tmp_path, 1) as own, sessions(own.connect) as opened:
        result_of(opened.open(), written("/a", b"1"))
    data = tmp_path / "zookeeper" / "node-2" / "data" / "version-2"
    for content in ("once", "twice"):
        data.mkdir(parents=True, exist_ok=True)
        (data / "log.1").write_text(content)
        path = tmp_path / "zookeeper" / "ensemble.json"
        path.write_text(json.dumps({"ports": json.loads(path.read_text())["ports"][:1]}))
        prepared(tmp_path, 3)
    kept = [data.with_name(f"version-2.before{number}") / "log.1" for number in ("", "-2")]
    assert [path.read_text() for path in kept] == ["once", "twice"]
    assert sorted(path.name for path in data.iterdir()) == sorted(
        path.name for path in (tmp_path / "zookeeper/node-1/data/version-2").iterdir()
    )


def test_nodes_end_with_their_supervisor_and_a_leftover_is_ended_at_the_next_start(tmp_path: Path) -> None:
    one = prepared(tmp_path, 1)
    script = f"""
import os, signal, sys
from pathlib import Path
from appliance.config import ZooKeeperSection
from appliance.zookeeper.ensemble import Ensemble
one = Ensemble(ZooKeeperSection(nodes=1), Path({str(tmp_path)!r}))
one.prepare()
one.start_node(0)
one.note_pid(0)
print(one.processes[0].pid, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        gone = os.pidfd_open(pid)
        wait_until(lambda: probe(one.ports[0].client), lambda: None, "the node serves")
        supervisor.kill()
        supervisor.wait()
        assert prepared(tmp_path, 1).ports == one.ports  # at once, although the node may still be ending
        assert _readable_within(gone, 10_000)  # a pidfd is readable when its process has ended
        os.close(gone)
    # A process on our data that the kernel did not end, as after a change of the parent: found by its pid file.
    config = tmp_path / "zookeeper/node-1/zoo.cfg"
    command = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as leftover:
        assert leftover.stdout is not None and leftover.stdout.readline()
        (config.parent / "pid").write_text(str(leftover.pid))
        prepared(tmp_path, 1)
        assert leftover.wait() == -signal.SIGKILL
    # Somebody else's process under a pid of old is left alone.
    with subprocess.Popen([*command[:-1], "/other"], stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None and stranger.stdout.readline()
        (config.parent / "pid").write_text(str(stranger.pid))
        prepared(tmp_path, 1)
        assert stranger.poll() is None
        stranger.terminate()


def _readable_within(descriptor: int, ms_max: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(ms_max))


def test_a_port_without_zookeeper_is_no_mode() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started, port = now_ms(), silent.getsockname()[1]
        assert probe(port, timeout_ms=50) is None
        assert now_ms() - started < 1_000
    assert probe(port) is None


def test_stop_ends_also_a_node_that_does_not_listen(tmp_path: Path) -> None:
    with running(tmp_path, 1) as own:
        own.processes[0].send_signal(signal.SIGSTOP)
        own.stop(timeout_ms=100)
        assert own.processes[0].returncode == -signal.SIGKILL
        wait_until(lambda: serving(own) == [None], lambda: None, "the port is free")


def test_a_single_host_has_one_node_unless_it_asks_for_three() -> None:
    assert ZooKeeperSection().nodes == 1
