"""Nobody but its owner can read what an appliance makes, whatever the umask that it is started with.

Nor is a secret in any of it but in the files for secrets: not in a log, a state, or what Java writes when it crashes.

Method: walk the data directory after topics, groups, producers, deletions, a kill and a second start have made every
kind of file, all under umask 0.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.records.encode import encode_batch

from ..support.native_peer import Peer
from ..support.server import Server, wait_for

BATCH = encode_batch([(None, bytes(50_000), (), 1)])


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def readable_by_others(directory: Path) -> dict[str, str]:
    """What in a directory, or the directory itself, is not for its owner alone: name -> mode."""
    found = {}
    for path in [directory, *directory.rglob("*")]:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_IMODE(mode) & 0o077 or (stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o100):
            found[str(path.relative_to(directory.parent))] = stat.filemode(mode)
    return found


def places_of_secrets(server: Server) -> set[str]:
    """The files below the data directory, and the log of the appliance, in which a secret stands."""
    folder = server.data_dir / "zookeeper"
    secrets = [(folder / name).read_bytes().strip() for name in ("secret", "quorum-secret")]
    assert all(len(secret) == 64 for secret in secrets)
    files = [path for path in server.data_dir.rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder)) for path in files if any(secret in path.read_bytes() for secret in secrets)}
    return found | {"log" for secret in secrets if secret.decode() in server.log()}


def use(server: Server) -> None:
    """Make files of every kind: segments, indexes, recovery points, producers, deletions, committed offsets."""
    server.wait_for_zookeeper()
    with Peer(server.native) as peer:
        for name in ("kept", "gone"):
            peer.admin("create_topic", name=name, settings={"segment.bytes": 1 << 16})
        for _ in range(5):
            assert peer.produce("kept", BATCH, acks=-1)[0] == 0
        peer.admin("init_producer")
        peer.admin("commit", group="g", offsets=[["kept", 0, 0]])
        peer.admin("delete_topic", name="gone")


def test_everything_is_for_its_owner_alone(tmp_path: Path, open_umask: None) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(0o755)  # as a package or an earlier release may have made it
    server = Server(data_dir, **{"zookeeper.nodes": 1})
    with server:
        use(server)
        assert readable_by_others(data_dir) == {}
        assert "had mode 0755" in server.log()
        server.kill_supervisor()
        server.start()  # recovery writes files, too
        with Peer(server.native) as peer:
            assert peer.produce("kept", BATCH, acks=-1)[0] == 0
        server.wait_for_zookeeper()
        server.kill(server.pid_of("zookeeper"), signal.SIGSEGV)
        wait_for(lambda: any(data_dir.rglob("crash.log")), "Java's report of its crash")
        wait_for(lambda: server.processes("zookeeper")[0]["restarts"], "another node")
        assert readable_by_others(data_dir) == {}
        assert places_of_secrets(server) == {"secret", "quorum-secret", "node-1/jaas.conf"}
    names = {path.name.split(".", 1)[-1] for path in data_dir.rglob("*") if path.is_file()}
    assert {"log", "index", "json"} <= names and any(data_dir.rglob("version-2/log.*"))
    assert readable_by_others(data_dir) == {}
