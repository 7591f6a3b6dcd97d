"""What another user of the host can do to a running appliance: nothing, with each command that comes to mind.

Method: an appliance runs as an ordinary user, with a /dev/shm of its own as under ``systemd/appliance.service``, and
with a local ensemble (LONG=1: of three nodes).  User nobody runs shell commands.  Needs root, to become both users.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.records.encode import encode_batch
from appliance.shared import memory
from appliance.zookeeper.login import LOCAL_USER

from ..support.long import LONG
from ..support.native_peer import Peer
from ..support.places import open_place
from ..support.server import Server, wait_for
from ..support.sockets import LISTENING, LOOPBACK, open_files, tcp_sockets

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv, to become two other users"
)

SERVICE, NOBODY = 54_321, 65_534
BATCH = encode_batch([(None, b"the message of a customer", (), 1)])
CONNECTIONS = 900
"""Idle connections of a neighbour to the nodes of the ensemble, within the descriptors of a test."""
OWN_SHM = 'umask 0; mount -t tmpfs -o mode=1777 shm /dev/shm && exec "$@"'


def become(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


class Service(Server):
    """An appliance of an ordinary user.  ``place``: a directory that everybody may enter."""

    def __init__(self, place: Path, **settings: Any) -> None:
        (place / "home").mkdir()
        os.chown(place / "home", SERVICE, SERVICE)
        within = ["unshare", "-m", "bash", "-c", OWN_SHM, "sh", *become(SERVICE)]
        super().__init__(place / "home" / "data", within=within, **settings)

    @property
    def state(self) -> dict[str, Any]:  # its disk is the host's; only its /dev/shm is not
        state: dict[str, Any] = json.loads((self.data_dir / "state.json").read_text())
        return state


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with open_place() as place, Service(place, **{"zookeeper.nodes": 3 if LONG else 1}) as running:
        running.wait_for_zookeeper()
        with Peer(running.native) as peer:
            peer.create("t")
            assert peer.produce("t", BATCH, acks=-1)[0] == 0
            peer.admin("commit", group="g", offsets=[["t", 0, 0]])
        wait_for(lambda: running.pids("inspector") and running.pids("scrubber"), "what starts last")
        wait_for(
            lambda: not running.pids("cleaner") and not running.pids("opener"), "what only starts something to end"
        )
        yield running


@pytest.fixture(autouse=True)
def it_goes_on(service: Service) -> Iterator[None]:
    """The processes are the same, and serve messages, topics and groups."""
    before = {row["pid"] for row in service.state["processes"] if row["role"] != "writer"}
    yield
    with Peer(service.native) as peer:
        assert peer.produce("t", BATCH, acks=-1)[0] == 0
        peer.admin("commit", group="g", offsets=[["t", 0, 0]])
        peer.admin("ensure_topic", name="t")
    assert {row["pid"] for row in service.state["processes"] if row["role"] != "writer"} == before


def nobody(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command line of user nobody, with ``arguments`` as $1, $2, ..."""
    words = [*become(NOBODY), "bash", "-c", command, "bash", *arguments]
    return subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=60, check=False, cwd="/")


def python_of(user: int, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script in Python of a user; without a shell, which may not be allowed to start this Python."""
    words = [*become(user), sys.executable, "-c", script, *arguments]
    here = Path(__file__).parents[2]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=here)


def pids(service: Service) -> list[str]:
    return [str(row["pid"]) for row in service.state["processes"]]


@pytest.mark.parametrize(
    "command",
    ["ls -a $1", "find $1 -mindepth 1", "cat $1/state.json", "cat $1/lock", "cat $1/zookeeper/secret",
     "cat $1/zookeeper/node-1/jaas.conf", "cat $1/t-0/*.log", "cat $1/catalog.json", "touch $1/x", "rm -rf $1",
     "mv $1 $1.old", "chmod 777 $1", "ln -s /etc/passwd $1/x", "mkdir $1.tmp", "flock -n $1/lock true"],
)  # fmt: skip
def test_the_data_directory_is_closed(service: Service, command: str) -> None:
    done = nobody(command, str(service.data_dir))
    assert done.returncode != 0 and done.stdout == "", done


@pytest.mark.parametrize(
    "what",
    ["environ", "mem", "maps", "smaps", "auxv", "stack", "syscall", "io", "cwd/state.json", "root/etc/hostname",
     "fd/", "map_files/", "task/$1/fd/", "pagemap", "personality"],
)  # fmt: skip
def test_processes_cannot_be_read(service: Service, what: str) -> None:
    for pid in pids(service):
        done = nobody(f"test -e /proc/$1/{what} && {'ls' if what.endswith('/') else 'head -c 1'} /proc/$1/{what}", pid)
        assert done.returncode != 0 and done.stdout == "", (pid, done)


@pytest.mark.parametrize(
    "command",
    ["kill -9 $1", "kill -STOP $1", "kill -HUP $1", "kill -TERM $1", "renice -n 19 -p $1",
     "prlimit --pid $1 --nofile=3", "taskset -p 1 $1", "chrt -i -p 0 $1", "ionice -c 3 -p $1",
     "echo 1000 > /proc/$1/oom_score_adj",
     "echo 0 > /proc/$1/coredump_filter", "strace -p $1 -o /dev/null"],
)  # fmt: skip
def test_processes_cannot_be_touched(service: Service, command: str) -> None:
    for pid in pids(service):
        done = nobody(command, pid)
        assert done.returncode != 0, (pid, done)


def test_arguments_and_environment_hold_no_secret(service: Service) -> None:
    """Arguments are for all to see, so this one is read by nobody."""
    secrets = [(service.data_dir / "zookeeper" / name).read_text().strip() for name in ("secret", "quorum-secret")]
    for pid in pids(service):
        arguments = nobody("cat /proc/$1/cmdline", pid).stdout
        environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        assert arguments and not any(secret in arguments + environment for secret in secrets)


def test_shared_memory_is_out_of_sight(service: Service) -> None:
    ours = [path for path in (service.root / "dev/shm").iterdir() if path.name.startswith("appliance.")]
    assert len(ours) >= 4 and {path.stat().st_mode & 0o777 for path in ours} == {0o600}
    assert not [name for name in os.listdir("/dev/shm") if name in {path.name for path in ours}]  # noqa: PTH208
    done = nobody("ls /proc/$1/root/dev/shm/ || cat /dev/shm/$2", pids(service)[0], ours[0].name)
    assert done.returncode != 0 and done.stdout == "", done


def test_status_looks_into_the_memory_of_the_service(service: Service) -> None:
    """For its user and for root, who see another /dev/shm."""
    command = [sys.executable, "-m", "appliance", "status", "--data", str(service.data_dir), "--json"]
    for words in (command, [*become(SERVICE), *command]):
        seen = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout)
        assert seen["partitions"][0]["state"] == "online" and seen["partitions"][0]["messages"] >= 1
    refused = nobody('exec "$@"', *command)
    assert refused.returncode != 0 and "messages" not in refused.stdout


def test_sockets_have_no_names_that_others_could_use(service: Service) -> None:
    """The processes are connected by pairs of sockets; only listeners have addresses, all of them on loopback."""
    ours = set[str]().union(*(open_files(int(pid)) for pid in pids(service)))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [row[7] for row in rows if f"socket:[{row[6]}]" in ours and len(row) > 7]
    assert {name.rpartition("/")[2] for name in named} == {"native.sock"}, "in the data directory, which is closed"
    assert not any(name.startswith("@") for name in named), "abstract names are open to everybody"
    addresses = {each.address for each in tcp_sockets() if each.file in ours and each.state == LISTENING}
    assert addresses and addresses <= LOOPBACK


# ---- the local ensemble

MEMBER = """
import sys
from appliance.client import GroupConsumer
with GroupConsumer(sys.argv[1], "of-" + sys.argv[2]) as consumer:
    (stream,) = consumer.create_message_streams({"t": 1})["t"]
    print(type(next(stream.messages(30))).__name__)
"""


def test_every_user_can_be_in_a_native_group(service: Service) -> None:
    """Nobody has the password of the ensemble for that."""
    for user in (NOBODY, SERVICE, 0):
        done = python_of(user, MEMBER, service.native, str(user))
        assert done.stdout == "Message\n", done


GUEST = """
import sys
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1], timeout=3, auth_data=eval(sys.argv[3]))
try:
    client.start(3)
    print(getattr(client, sys.argv[2])(*sys.argv[4:]))
except Exception as error:
    sys.exit(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [("get_children", ["/"]), ("get", ["/brokers/topics/t"]), ("get_children", ["/consumers"]), ("create", ["/x"]),
     ("delete", ["/consumers"]), ("get", ["/zookeeper/config"]), ("get_acls", ["/"])],
)  # fmt: skip
@pytest.mark.parametrize("credentials", ["None", f"[('digest', '{LOCAL_USER}:guess')]"])
def test_the_ensemble_serves_no_guest(service: Service, verb: str, arguments: list[str], credentials: str) -> None:
    connect = service.state["zookeeper"]["connect"]
    done = python_of(NOBODY, GUEST, connect, verb, credentials, *arguments)
    assert done.returncode == 1 and done.stdout == "", done
    assert any(error in done.stderr for error in ("SessionClosedRequire", "KazooTimeout")), done


@pytest.mark.parametrize("word", ["conf", "cons", "crst", "dump", "envi", "mntr", "stmk", "wchp", "dirs", "isro"])
def test_the_ensemble_says_nothing_about_itself(service: Service, word: str) -> None:
    host, port = service.state["zookeeper"]["connect"].split(",")[0].split(":")
    said = nobody('exec 3<>/dev/tcp/$1/$2 && printf %s "$3" >&3 && timeout 5 cat <&3', host, port, word).stdout
    assert "not executed because it is not in the whitelist" in said or said == "", said


def test_connections_that_stay_idle_keep_nobody_out(service: Service) -> None:
    """The limit of connections per address would be one for all, since all have the address of the loopback."""
    addresses = service.state["zookeeper"]["connect"].split(",")
    held: list[socket.socket] = []
    try:
        for address in addresses:
            host, port = address.split(":")
            held += [socket.create_connection((host, int(port)), 20) for _ in range(CONNECTIONS // len(addresses))]
        newcomer = service.zookeeper_client()
        newcomer.start(30)
        assert newcomer.get("/brokers/topics/t")[0]
        newcomer.stop()
        newcomer.close()
    finally:
        for sock in held:
            sock.close()


def test_garbage_at_the_ports_of_the_nodes(service: Service) -> None:
    ports = json.loads((service.data_dir / "zookeeper/ensemble.json").read_text())["ports"]
    for number in [port for row in ports for port in row]:
        nobody("exec 3<>/dev/tcp/127.0.0.1/$1 && head -c 100000 /dev/urandom >&3", str(number))


# ---- names in the way


@pytest.fixture
def beside() -> Iterator[Service]:
    """An appliance in the host's /dev/shm, not started."""
    with open_place() as place:
        yield Service(place)


def test_names_of_others_in_shared_memory_keep_no_start_from_happening(beside: Service) -> None:
    """What nobody may have put into the host's /dev/shm is stepped over with a warning."""
    service = beside
    service.within = become(SERVICE)
    service.data_dir.mkdir(0o700)
    os.chown(service.data_dir, SERVICE, SERVICE)
    prefix = memory.SHM_DIR / memory.name_of(memory.instance_of(service.data_dir), "")[1:]
    try:
        assert nobody("for name in table arena0 arena1 offline; do touch $1$name; mkdir $1$name.d; done", str(prefix))
        with service:
            assert service.log().count("is left there") == 8
            with Peer(service.native) as peer:
                peer.create("t")
                assert peer.produce("t", BATCH, acks=-1)[0] == 0
            ours = [name for name in service.leftovers() if name.count(".") == 3 and not name.endswith(".d")]
            assert len(ours) == 8, "its owner, two arenas, a table, that of offline ones, and three pages of counters"
            done = nobody("cd /dev/shm && cat $1; rm -f $1; : > $1; mv $1 x", ours[0])
            assert done.returncode != 0 and done.stdout == "" and (memory.SHM_DIR / ours[0]).exists()
    finally:
        nobody("rm -rf $1*", str(prefix))
    assert service.leftovers() == []
