"""The bad days of systemd/README.md: each condition is caused for real, found by all that judge, and mended.

``CASES`` has how each condition is made to happen, and what its remedy is carried out with; ``SHOWN_BY`` names the
tests that do so for those that need a bed of their own.  ``tests/rules/test_remedies.py`` demands it.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from appliance.addresses import parse_addresses
from appliance.client import Producer
from appliance.health import bad_days
from appliance.health.conditions import CONDITIONS, DIES_AGAIN, INPUT_REFUSALS_MIN, LAG_S
from appliance.log.files import COMPACTED_SUFFIX, log_path
from appliance.records.encode import encode_values
from appliance.wire import native

from ..cli.test_statuses import alone
from ..support.certificates import make_certificates, sign_again
from ..support.command_line import Said, run, succeeding
from ..support.native_peer import Peer
from ..support.remedies import Remedy, carry_out, commands_in, fault_of
from ..support.server import Server, runs, stopped, wait_for
from ..support.small_machine import SmallMachine, fill, small_machine

PAGE = Path(__file__).parents[2] / "systemd" / "README.md"

LAGGING = 10_000
"""Messages that a group has not read."""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance with a ZooKeeper node of its own, a listener that wants certificates, console and metrics."""
    files = tmp_path_factory.mktemp("bad")
    for arguments in (("ca",), ("server", "127.0.0.1")):
        make_certificates(files, *arguments)
    make_certificates(files / "other", "ca")
    make_certificates(files / "other", "client", "stranger")
    settings = {"tls.certificate": files / "server.pem", "tls.key": files / "server.key", "tls.ca": files / "ca.pem"}
    settings |= {"tls.client_auth": "required", "kafka.listen": "127.0.0.1:0,SSL://127.0.0.1:0"}
    settings |= {"console.listen": "127.0.0.1:0", "metrics.listen": "127.0.0.1:0", "scrub.every_ms": 500}
    settings["console.anonymous"] = True
    (files / "watched").mkdir()
    settings |= {"inputs.a.type": "files", "inputs.a.include": f"{files}/watched/*.log", "inputs.a.topic": "a"}
    settings |= {"inputs.a.scan_ms": 200, "disk.check_ms": 500}
    settings |= {"inputs.b.type": "http", "inputs.b.listen": "127.0.0.1:0", "inputs.b.topic": "b"}
    with Server(files / "data", **{"zookeeper.nodes": 1}, **settings) as server:
        server.wait_for_zookeeper()
        succeeding("topics", "create", "web", "--data", str(server.data_dir))
        yield server


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SmallMachine, Server]]:
    """An appliance on a small disk, with a small /dev/shm."""
    directory = tmp_path_factory.mktemp("small")
    limits = {"disk.free_bytes_warn": 8 << 20, "disk.free_bytes_min": 1 << 20, "disk.check_ms": 60_000}
    limits["topics.trash_ms"] = 0  # what was deleted is no room that is still to come
    with small_machine(directory, shm="24m", disk="48m") as machine, machine.server(directory / "log", **limits) as box:
        yield machine, box


WITH_PROGRAM = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""Where a shell finds the command ``appliance``."""

# ---- the judges


def at(server: Server) -> tuple[str, str]:
    return "--data", str(server.data_dir)


def doctor(server: Server, *options: str) -> list[Row]:
    said = run("doctor", "--json", *options, *(() if "--connect" in options else at(server)))
    assert said.status in (0, 74, 75), said
    rows: list[Row] = said.json
    assert said.status == min((row["exit_status"] for row in rows if row["exit_status"]), default=0), rows
    return rows


def found(server: Server, condition: str) -> Row | None:
    """The finding of a condition, if the doctor has it."""
    return next((row for row in doctor(server) if row["condition"] == condition), None)


def agree(server: Server) -> bool:
    """Whether all that judge say the same of what has an exit status."""
    rows = doctor(server, "--quiet")
    health = run("health", "--json", *at(server))
    names = [row["condition"] for row in rows]
    same = [row["condition"] for row in health.json["findings"]] == names
    statuses = {health.status, run("status", "--json", *at(server)).status, run("doctor", *at(server)).status}
    listeners = server.state["listeners"]
    if "metrics" in listeners:
        texts = [row["text"] for row in health.json["findings"]]
        ready = over_http(listeners["metrics"], "/ready").splitlines()
        ready = [line.partition(":")[0] for line in ready if line != "ready"]
        same = same and [text.partition(":")[0] for text in texts] == ready
    if "console" in listeners:
        shown = {row["condition"] for row in console_alerts(listeners["console"])}
        same = same and set(names) <= shown
    return same and len(statuses) == 1


def over_http(address: str, path: str) -> str:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def console_alerts(address: str) -> list[Row]:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", "/api/events")
        event = json.loads(connection.getresponse().readline().removeprefix(b"data: "))
    alerts: list[Row] = event["set"].get("alerts", {}).get("", [])
    return alerts


# ---- causes, and remedies


@contextmanager
def lagging(server: Server) -> Iterator[None]:
    """Many unread messages are normal where many come; old ones are not."""
    succeeding("topics", "create", "read", *at(server))
    reset = ("groups", "reset", "reports", "--topic", "read", "--to", "earliest", "--new", "--yes")
    with Producer(server.native) as producer:
        producer.send_many("read", [b"new"] * LAGGING)
        producer.flush()
        succeeding(*reset, *at(server))
        assert found(server, "GroupLags") is None
        succeeding("topics", "trim", "read", "--before", "latest", "--yes", *at(server))
        producer.send("read", b"old", timestamp=int(time.time() * 1000) - LAG_S * 2_000).result(60)
        producer.send_many("read", [b"new"] * LAGGING)
    succeeding(*reset, *at(server))
    yield
    succeeding("groups", "delete", "reports", "--yes", *at(server))


def read_on(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy shows the group; then a member is started, which reads all."""
    assert "read" in remedy.run("appliance groups describe").out
    succeeding("consume", "read", "--group", "reports", "--max", str(LAGGING + 1), *at(server))


@contextmanager
def filling(server: Server) -> Iterator[None]:
    over = threading.Event()

    def fill_up() -> None:
        with Producer(server.native, acks="1") as producer:
            while not over.wait(0.02):
                producer.send_many("web", [bytes(1000)] * 200)

    thread = threading.Thread(target=fill_up)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def hanging(server: Server) -> Iterator[None]:
    with stopped(server.pid_of("network"), may_die=True):
        yield


def shell_commands(row: Row) -> list[list[str]]:
    return [shlex.split(command) for command in re.findall(r"`([^`]*)`", row["todo"])]


def continue_it(server: Server, row: Row, remedy: Remedy) -> None:
    """``kill -CONT PID``; and where ``kill -9 PID`` stands for it, that, too: another one is started."""
    (pid,) = map(int, remedy.take("kill -CONT").split()[2:])
    with suppress(ProcessLookupError):  # it may have been killed and replaced by now
        os.kill(pid, signal.SIGCONT)
    if remedy.left:
        assert remedy.take("kill -9") == f"kill -9 {pid}"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not runs(pid) and pid not in server.pids(), "another one")


@contextmanager
def without_quorum(server: Server) -> Iterator[None]:
    pid = server.pid_of("zookeeper")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: server.state["zookeeper"]["state"] != "connected", "the session to suffer", 60)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def refusing(server: Server) -> Iterator[None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    directory = server.data_dir.with_name("other")
    context.load_cert_chain(directory / "stranger.pem", directory / "stranger.key")
    address = parse_addresses(server.address("kafka", "SSL"))[0]
    with suppress(OSError), socket.create_connection(address, 10) as plain, context.wrap_socket(plain) as sock:
        sock.settimeout(60)
        sock.recv(1)
    wait_for(lambda: server.state["refusals_recent"].get("certificate"), "the refusal to be counted")
    yield


@contextmanager
def uncompactable(server: Server) -> Iterator[None]:
    """Method: where a pass removes what the one before has left, there is something that it cannot remove."""
    small = ("segment.bytes=4096", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0.01")
    succeeding("topics", "create", "kept", *(word for one in small for word in ("--setting", one)), *at(server))
    obstacle = server.data_dir / "kept-0" / f"{0:020}.log{COMPACTED_SUFFIX}"
    obstacle.mkdir()
    for _ in range(8):
        succeeding("produce", "kept", "--key", "k", *at(server), stdin=b"x" * 2_000 + b"\n")
    yield
    (row,) = succeeding("topics", "describe", "kept", "--json", *at(server)).json["partitions"]
    assert row["dirty_ratio"] == 1.0, "nothing of it is compacted"
    obstacle.rmdir()
    described = ("topics", "describe", "kept")
    wait_for(lambda: succeeding(*described, "--json", *at(server)).json["partitions"][0]["dirty_ratio"] < 1, "a pass")
    assert "dirty_ratio" in succeeding(*described, *at(server)).out


def look_at_it(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy says that the files are sound."""
    assert remedy.run("appliance log verify").status == 0


@contextmanager
def open_to_others(server: Server) -> Iterator[None]:
    key = server.data_dir.with_name("server.key")
    key.chmod(0o644)
    try:
        yield
    finally:
        key.chmod(0o600)


def close_the_key(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy: mend the file."""
    assert "server.key" in row["why"]
    server.data_dir.with_name("server.key").chmod(0o600)


def certificate_for(days: int) -> Callable[[Server], AbstractContextManager[None]]:
    """The appliance gets a certificate that is valid for so many days from now; it has expired with -1."""

    @contextmanager
    def cause(server: Server) -> Iterator[None]:
        sign_again(server.data_dir.parent, "server", days)
        yield

    return cause


def renew_it(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy: a renewed one in the place of the file that it names, by the script of systemd/README.md."""
    file = server.data_dir.with_name("server.pem")
    assert f"in the place of {file}" in row["todo"]
    is_expired = row["condition"] == "CertificateExpired"
    context = ssl.create_default_context(cafile=file.with_name("ca.pem"))
    address = parse_addresses(server.address("kafka", "SSL"))[0]

    def refusal() -> str:
        """What a client has against the certificate."""
        try:
            with socket.create_connection(address, 10) as plain, context.wrap_socket(plain, server_hostname=address[0]):
                return ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message

    assert refusal() == ("certificate has expired" if is_expired else "")
    assert make_certificates(file.parent, "server", "127.0.0.1").returncode == 0
    wait_for(lambda: not refusal(), "clients to be served")


@contextmanager
def dying(server: Server) -> Iterator[None]:
    """A worker is killed once."""
    kill_and_wait(server, "console")
    yield


@contextmanager
def dying_again(server: Server) -> Iterator[None]:
    for _ in range(DIES_AGAIN):
        kill_and_wait(server, "scrubber")
    yield


def kill_and_wait(server: Server, role: str) -> None:
    pid = server.pid_of(role)
    server.kill(pid)
    wait_for(lambda: pid not in server.pids(role) and server.pids(role), f"another {role}")


SCRAPES = """
import socket, sys
while True:
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
        while sock.recv(1 << 20):
            pass
"""


@contextmanager
def scraped_again_and_again(server: Server) -> Iterator[None]:
    """The metrics process has work without end, as if it span."""
    ((host, port),) = parse_addresses(server.state["listeners"]["metrics"])
    command = [sys.executable, "-c", SCRAPES, host, str(port)]
    scrapers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(3)]
    try:
        yield
    finally:
        for scraper in scrapers:
            scraper.kill()
            scraper.wait()


def kill_it(server: Server, row: Row, remedy: Remedy) -> None:
    """``kill -9 PID``: another one is started."""
    pid = server.pid_of("metrics")
    assert f"kill -9 {pid}" in remedy.left
    remedy.run("kill -9")
    wait_for(lambda: pid not in server.pids("metrics") and server.pids("metrics"), "another one")


@contextmanager
def users_scribbled_over(server: Server) -> Iterator[None]:
    """security.json is damaged while it serves, and the coordinator has to start again."""
    (server.data_dir / "security.json").write_bytes(b"scribble")
    server.kill(server.pid_of("coordinator"))
    yield


def move_it_away(server: Server, row: Row, remedy: Remedy) -> None:
    """``mv FILE FILE.damaged``: what was in it comes from ZooKeeper."""
    remedy.run("mv ")
    server.wait_for_zookeeper()
    wait_for(lambda: (server.data_dir / "security.json").exists(), "the file to be made again")


@contextmanager
def pipe_among_files(server: Server) -> Iterator[None]:
    """Something that the input cannot read: for root, who runs tests, every file can be."""
    pipe = server.data_dir.with_name("watched") / "x.log"
    os.mkfifo(pipe)
    try:
        yield
    finally:
        pipe.unlink(missing_ok=True)


@contextmanager
def bad_posts(server: Server) -> Iterator[None]:
    """One sender is wrong: the input does not wait, and takes what others send.  One bad request is no condition."""
    row = wait_for(lambda: server.state["inputs"]["b"]["addresses"], "the input to listen")
    bad, good = ("/_bulk", b"no index\n", 400), ("/", b"a line\n", 200)
    _post_each(row[0], [bad, good])
    wait_for(lambda: server.state["inputs"]["b"]["refused_lately"] == 1, "the refusal to be told")
    assert found(server, "InputRefuses") is None
    _post_each(row[0], [bad] * (INPUT_REFUSALS_MIN - 1))
    assert server.state["inputs"]["b"]["trouble"] == ""
    yield


def _post_each(address: str, requests: Sequence[tuple[str, bytes, int]]) -> None:
    for path, body, status in requests:
        with closing(http.client.HTTPConnection(address.rpartition("/")[2], timeout=60)) as connection:
            connection.request("POST", path, body)
            assert connection.getresponse().status == status


def remove_it(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy: mend what the reason names."""
    Path(row["why"].split(":")[0]).unlink()


@contextmanager
def damaging(server: Server) -> Iterator[None]:
    """A byte of what is stored changes, as on a disk that fails."""
    succeeding("topics", "create", "harmed", *at(server))
    for line in (b"one\n", b"two\n", b"three\n"):
        succeeding("produce", "harmed", *at(server), stdin=line)
    with log_path(server.data_dir / "harmed-0", 0).open("r+b") as log:
        log.seek(-3, os.SEEK_END)
        log.write(b"\xa5\xa5\xa5")
    yield


def repair_it(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy shows the damage, what can be kept, and mends it, while it serves."""
    verified = remedy.run("appliance log verify")
    assert verified.status == row["exit_status"] and "could not" not in verified.err, verified
    assert [said.status for said in remedy.run_all()] == [0, 0]
    assert succeeding("consume", "harmed", "--from", "earliest", "--max", "2", *at(server)).out == "one\ntwo\n"


FLOOD_OF_QUESTIONS = """
import socket, struct, sys, threading
body = struct.pack(">hhih7siih3si", 2, 1, 1, 7, b"flooder", -1, 1, 3, b"web", 5_000)  # ListOffsets, 5,000 times
body += struct.pack(">iq", 0, -1) * 5_000
request = struct.pack(">i", len(body)) + body
with socket.create_connection((sys.argv[1], int(sys.argv[2])), None, (sys.argv[3], 0)) as sock:
    def read_on():
        while sock.recv(1 << 20, socket.MSG_TRUNC):
            pass
    threading.Thread(target=read_on, daemon=True).start()
    while True:
        sock.sendall(request)
"""


FLOODER = "127.0.0.9"


@contextmanager
def asked_again_and_again(server: Server, source: str = FLOODER) -> Iterator[None]:
    """Network workers get more requests than they can answer."""
    ((host, port),) = parse_addresses(server.kafka)
    command = [sys.executable, "-c", FLOOD_OF_QUESTIONS, host, str(port), source]
    clients = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(6)]
    try:
        yield
    finally:
        for client in clients:
            client.kill()
            client.wait()


def show_who_asks(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy shows which topics, and who: the clients that send so much."""
    assert "network" in remedy.run("appliance top", "--interval", "0.3").out
    clients = shlex.split(remedy.take("appliance clients"))[1:]
    shown = lambda: json.loads(carry_out([*clients, "--json"]).out)["clients"]  # noqa: E731
    wait_for(lambda: [one for one in shown() if one["bytes_in"] > 100_000], "the clients to be shown")


@contextmanager
def flooded(server: Server) -> Iterator[None]:
    """One host asks without end, and another one uses the appliance, too."""
    with Producer(server.native) as honest, asked_again_and_again(server):
        honest.send("web", b"honest").result(60)
        yield


def slow_it_down(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy shows who it is; with the quota it may go on, and harms nobody."""
    assert "flooder" in remedy.run("appliance clients", "--json").out
    remedy.run("appliance quotas set")
    # Whether workers are still busy is no question here: other programs of the machine can make them wait.
    wait_for(lambda: found(server, "Flood") is None, "its end, while it goes on")
    succeeding("quotas", "delete", "--client-id", "flooder", "--yes", *at(server))


@contextmanager
def in_the_way(server: Server) -> Iterator[None]:
    """A directory has the name of a file that the supervisor writes, here whenever clients come or go."""
    obstacle = server.data_dir / "clients.json.spare"
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    try:
        with socket.create_connection(parse_addresses(server.kafka)[0], 10):
            yield
    finally:
        with suppress(FileNotFoundError):
            obstacle.rmdir()


def remove_the_obstacle(server: Server, row: Row, remedy: Remedy) -> None:
    """The remedy: mend what the reason names; it is tried again by itself."""
    refused = 'appliance_actions_refused{action="write clients.json"} 1.0'
    wait_for(lambda: refused in over_http(server.state["listeners"]["metrics"], "/metrics").splitlines(), "the metric")
    Path(row["why"].partition(": ")[0]).rmdir()


@contextmanager
def without_answers(server: Server) -> Iterator[None]:
    with stopped(server.pid_of("coordinator"), may_die=True):
        yield


def let_it_answer(server: Server, row: Row, remedy: Remedy) -> None:
    """The machine is calm again once the remedy of what stands still is carried out; then the groups can be listed."""
    (hanging_row,) = (one for one in doctor(server) if one["condition"] == "ProcessHangs")
    with Remedy(hanging_row) as first:
        continue_it(server, hanging_row, first)
    groups = shlex.split(remedy.take("appliance groups list"))[1:]
    wait_for(lambda: run(*groups).status == 0, "the groups to be listed")


@contextmanager
def dying_as_soon_as_it_lives(server: Server) -> Iterator[None]:
    """The coordinator is killed again and again: each time it is started later."""
    over = threading.Event()

    def kill_on() -> None:
        while not over.wait(0.02):
            for pid in server.pids("coordinator"):
                with suppress(ProcessLookupError):
                    server.kill(pid)

    thread = threading.Thread(target=kill_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Case(NamedTuple):
    """``says``: a part of what is found.  ``mend``: carries the remedy out where its commands alone are not all of it.

    ``passes``: it ends by time alone.
    """

    cause: Callable[[Server], AbstractContextManager[None]]
    says: str
    mend: Callable[[Server, Row, Remedy], None] | None = None
    passes: bool = False


CASES = {
    "GroupLags": Case(lagging, "group reports lags by 10,001 messages", read_on),
    "InputWaits": Case(pipe_among_files, "x.log: is no regular file", remove_it),
    "InputRefuses": Case(bad_posts, "input b refuses", passes=True),
    "DiskFillsUp": Case(filling, "the disk is full in"),
    "ZooKeeperAway": Case(without_quorum, "no quorum", continue_it),
    "ClientsRefused": Case(refusing, "clients are refused: certificate", passes=True),
    "CompactionFails": Case(uncompactable, "kept-0 cannot be compacted", look_at_it),
    "CertificateUnusable": Case(open_to_others, "server.key", close_the_key),
    "CertificateExpired": Case(certificate_for(-1), "server.pem", renew_it),
    "CertificateExpires": Case(certificate_for(13), "server.pem", renew_it),
    "ProcessRestarted": Case(dying, "console was started again", passes=True),
    "ProcessDies": Case(dying_again, "scrubber dies again and again", passes=True),
    "ProcessHangs": Case(hanging, "network hangs", continue_it),  # after those before whom nobody may have died
    "FileDamaged": Case(users_scribbled_over, "security.json: damaged", move_it_away),
    "PartitionDamaged": Case(damaging, "harmed-0", repair_it),
    "ProcessSpins": Case(scraped_again_and_again, "metrics spins", kill_it),
    "ProcessBusy": Case(asked_again_and_again, "network is busy", show_who_asks),
    "Flood": Case(flooded, f"{FLOODER} floods the listeners", slow_it_down),
    "ActionRefused": Case(in_the_way, "clients.json.spare: Is a directory", remove_the_obstacle),
    "GroupsUnknown": Case(without_answers, "did not answer within", let_it_answer),
    "CoordinatorAway": Case(dying_as_soon_as_it_lives, "is being started again"),  # the last: it has died often then
}


LONG_CASES = dict.fromkeys(("CoordinatorAway", "GroupsUnknown"), pytest.mark.long)
"""The coordinator has to die some times before it stays away for long enough; each look at one that hangs takes 2 s."""


@pytest.mark.parametrize("condition", [pytest.param(name, marks=LONG_CASES.get(name, ())) for name in CASES])
def test_it_is_found_by_all_and_ends_with_its_cause(ill: Server, condition: str) -> None:
    case = CASES[condition]
    wait_for(lambda: found(ill, condition) is None, "all to be well before")
    with case.cause(ill):
        row = wait_for(lambda: found(ill, condition), f"{condition} to be found")
        assert case.says in f"{row['what']}: {row['why']}", row
        if row["exit_status"]:
            wait_for(lambda: agree(ill), "all judges to agree")
        with Remedy(row) as remedy:
            if case.mend is not None:
                case.mend(ill, row, remedy)
            else:
                assert all(said.out for said in remedy.run_all() if said.status == 0), "it shows nothing"
    if not case.passes:
        wait_for(lambda: found(ill, condition) is None, f"the end of {condition}")


# ---- what a restart with another configuration mends


@pytest.fixture
def few_places(make_appliance: Callable[..., Server], tmp_path: Path) -> Server:
    config = tmp_path / "appliance.toml"
    config.write_text("[network]\nconnections_max = 20\n")
    return make_appliance(config_file=config, **{"network.workers": 1})


def test_a_limit_is_named_until_it_is_raised(few_places: Server) -> None:
    """Method: as many clients as a worker takes, and some more; then the limit is raised, as the remedy says."""
    server = few_places
    with ExitStack() as clients:
        connect_often(server, clients, 25)
        row = wait_for(lambda: found(server, "LimitReached"), "the limit to be found")
        assert "network.connections_max" in row["what"] and row["todo"].startswith("raise it"), row
        wait_for(lambda: agree(server), "all judges to agree")
        with Remedy(row) as remedy:
            remedy.run("appliance config set")
    wait_for(lambda: found(server, "LimitReached") is None, "the end of it, once they are gone")
    server.stop()
    server.start()
    with ExitStack() as clients:
        connect_often(server, clients, 25)
        rows = lambda: [row for row in server.state["processes"] if row["role"] == "network"]  # noqa: E731
        wait_for(lambda: sum(row.get("connections", 0) for row in rows()) >= 25, "all to be served")
        assert found(server, "LimitReached") is None


def connect_often(server: Server, clients: ExitStack, count: int, source: str = "127.0.0.1") -> None:
    address = parse_addresses(server.kafka)[0]
    for _ in range(count):
        clients.enter_context(socket.create_connection(address, 10, (source, 0)))


def test_a_crowd_of_one_address_is_named_where_others_find_no_place(few_places: Server) -> None:
    """Until the remedy leaves others room: then the crowd alone is harmless, and no flood."""
    server = few_places
    with ExitStack() as clients:
        connect_often(server, clients, 3)
        connect_often(server, clients, 22, FLOODER)
        row = wait_for(lambda: found(server, "Flood"), "the flood to be found")
        assert row["what"] == f"{FLOODER} floods the listeners" and "find no place" in row["why"], row
        with Remedy(row) as remedy:
            wait_for(lambda: FLOODER in carry_out(shlex.split(remedy.left[0])[1:]).out, "the connections to be counted")
            remedy.take("appliance clients")
            remedy.run("appliance config set")
    server.stop()
    server.start()
    with ExitStack() as clients:
        connect_often(server, clients, 22, FLOODER)
        connect_often(server, clients, 3)
        with Peer(server.native) as other:
            other.create("web")
        assert found(server, "Flood") is None and found(server, "LimitReached") is None


def test_hundreds_of_quiet_clients_behind_one_address_are_no_flood(make_appliance: Callable[..., Server]) -> None:
    """Nor is one of them that is busy."""
    server = make_appliance()
    with ExitStack() as clients:
        connect_often(server, clients, 520, FLOODER)
        connect_often(server, clients, 3)
        with Producer(server.native) as producer:
            producer.send_many("web", [bytes(1_000)] * 1_000)
            producer.flush()
            assert found(server, "Flood") is None


def test_a_listener_that_everybody_may_use_is_named_until_it_is_closed(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"kafka.listen": "0.0.0.0:0", "security.allow_insecure": True})
    row = wait_for(lambda: found(server, "InsecureListener"), "the listener to be found")
    assert "0.0.0.0" in row["why"] and "loopback" in row["todo"], row
    server.stop()
    server.settings["kafka.listen"] = "127.0.0.1:0"
    server.start()
    assert found(server, "InsecureListener") is None


def test_a_login_without_access_rules_is_named_until_there_are_some(
    make_appliance: Callable[..., Server], tmp_path: Path
) -> None:
    for words in (("ca",), ("server", "127.0.0.1")):
        make_certificates(tmp_path, *words)
    files = {"tls.certificate": tmp_path / "server.pem", "tls.key": tmp_path / "server.key"}
    config = tmp_path / "appliance.toml"
    config.touch()
    server = make_appliance(config_file=config, **{"kafka.listen": "127.0.0.1:0,SASL_SSL://0.0.0.0:0"}, **files)
    row = wait_for(lambda: found(server, "NoAccessRules"), "the login to be found")
    assert "SASL_SSL://0.0.0.0" in row["why"], row
    with Remedy(row, {"NAME": "shipper", "TOPIC": "web"}) as remedy:
        remedy.run("appliance config set")
        server.stop()
        server.start()
        remedy.run("appliance acl add")
    assert found(server, "NoAccessRules") is None
    assert "shipper" in succeeding("acl", "list", *at(server)).out


SMALL_ARENA = (
    *("network.arena_bytes = 1048576", "network.frame_bytes_max = 524288", "network.frame_ms_max = 3600000"),
    *("topics.max.message.bytes = 400000", "liveness.timeout_ms = 600000"),
)
"""The smallest arena, of 16 blocks; who has sent a tenth of a request is in time for minutes, and nothing is killed."""
BEGUN = b"\x00\x04\x93\xe0\x00\x00\x00\x07" + bytes(10_000)
"""The beginning of a produce request of 300,000 bytes, for which a worker keeps room ahead."""


@pytest.fixture
def with_small_arena(make_appliance: Callable[..., Server], tmp_path: Path) -> Server:
    """An appliance with little memory for requests."""
    config = tmp_path / "appliance.toml"
    config.write_text("\n".join(SMALL_ARENA))
    return make_appliance(config_file=config, **{"metrics.listen": "127.0.0.1:0", "network.workers": 1})


class Uploads:
    """Clients that send a request slowly: some more of it with each look."""

    def __init__(self, server: Server, clients: ExitStack) -> None:
        self._server, self._clients = server, clients
        self._sockets: list[socket.socket] = []

    def begin(self, count: int) -> None:
        address = parse_addresses(self._server.kafka)[0]
        for _ in range(count):
            self._sockets.append(self._clients.enter_context(socket.create_connection(address, 10)))
            self._sockets[-1].sendall(BEGUN)

    def go_on(self) -> None:
        for sock in self._sockets:
            sock.sendall(bytes(2_000))

    def named(self) -> Row | None:
        self.go_on()
        return found(self._server, "ClientsWaitForMemory")


def test_who_waits_for_memory_is_named_until_there_is_enough(with_small_arena: Server) -> None:
    """A full arena alone is no reason: unfinished requests give way.  Those that lack room beside it, too, wait."""
    server = with_small_arena
    with ExitStack() as clients:
        uploads = Uploads(server, clients)
        uploads.begin(5)
        wait_for(lambda: of_worker(server, "arena_used_bytes") > 0.9 * (1 << 20), "the arena to be full")
        assert uploads.named() is None and of_worker(server, "memory_wait_seconds") == 0
        uploads.begin(11)
        row = wait_for(uploads.named, "those that wait to be found")
        assert re.match(r"[1-9]\d* connections? of worker 0 waits? for memory", row["what"]), row
        assert "unfinished requests 1." in row["why"], row
        assert of_worker(server, "memory_wait_seconds") > 1, "the alert sees the same"
        remedy = Remedy(row)
        shown = shlex.split(remedy.take("appliance clients"))[1:]
        wait_for(lambda: clients_of_kafka(shown) == 16, "the clients to be shown")
    ends(server, "ClientsWaitForMemory")
    with remedy:
        remedy.run("appliance config set")
    server.stop()
    server.start()
    with ExitStack() as clients:
        uploads = Uploads(server, clients)
        uploads.begin(16)
        wait_for(lambda: of_worker(server, "connections", state="open") >= 16, "all to be counted")
        for _ in range(3):
            assert uploads.named() is None and of_worker(server, "memory_wait_seconds") == 0


def test_who_waits_for_a_writer_that_stands_still_is_named_until_it_goes_on(with_small_arena: Server) -> None:
    """Two requests take 10 of 16 blocks, which is more than their writers may have: four others wait for them.

    While the writers work nobody waits for long, though one delays its flushes: see
    ``test_no_producer_waits_for_memory_until_the_time_of_a_flush``.
    """
    server = with_small_arena
    batch = encode_values([bytes(300_000)], 1_000)
    with ExitStack() as clients:
        producers = [clients.enter_context(Peer(server.native)) for _ in range(6)]
        producers[0].create("t", 2, flush_messages=1_000_000, flush_ms=20_000)
        for partition in range(2):
            assert producers[0].produce("t", encode_values([b"first"], 1_000), partition)[0] == 0
        writers = wait_for(lambda: len(server.pids("writer")) == 2 and server.pids("writer"), "both to be shown")
        with ExitStack() as still:
            for pid in writers:
                still.enter_context(stopped(pid))
            for number, one in enumerate(producers):
                one.send([native.PRODUCE, number, "t", number % 2, -1, 10_000], batch)
            row = wait_for(lambda: found(server, "ClientsWaitForMemory"), "those that wait to be found")
            assert row["what"] == "4 connections of worker 0 wait for memory", row
            assert re.search(r"writers have \d+\.0 KiB of 1\.0 MiB in hand", row["why"]), row
            remedy = Remedy(row)
            assert sorted(map(int, remedy.left[0].split()[2:])) == sorted(writers), row
            remedy.run("kill -CONT")
            ends(server, "ClientsWaitForMemory")
        assert [one.receive()[0][1] for one in producers[:4]] == [0] * 4


def of_worker(server: Server, name: str, **labels: str) -> float:
    """What the metrics say of its only worker; 0 until that has counted."""
    lines = over_http(server.state["listeners"]["metrics"], "/metrics").splitlines()
    shown = ",".join(f'{label}="{value}"' for label, value in sorted({"worker": "0", **labels}.items()))
    return float(dict(line.rsplit(" ", 1) for line in lines).get(f"appliance_{name}{{{shown}}}", 0))


def clients_of_kafka(words: list[str]) -> int:
    rows = json.loads(carry_out([*words, "--json"]).out)["clients"]
    return sum(row["connections"] for row in rows if row["listener"].startswith("kafka"))


# ---- the disk and /dev/shm


@pytest.fixture
def on_two_disks(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """An appliance that serves, and the disk of its partition web-0 alone, which can be frozen."""
    if os.geteuid() or not all(map(shutil.which, ("mkfs.ext4", "fsfreeze"))):
        pytest.skip("needs root, mkfs.ext4 and fsfreeze, to make a disk that does not answer")
    server = Server(tmp_path / "data", **{"network.workers": 1, "metrics.listen": "127.0.0.1:0"})
    with server:
        succeeding("topics", "create", "web", *at(server))
        succeeding("produce", "web", *at(server), stdin=b"a\n")
        server.stop()
    image, disk, log_directory = tmp_path / "image", tmp_path / "disk", server.data_dir / "web-0"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    disk.mkdir()
    with ExitStack() as mounts:
        mount(mounts, "-o", "loop", image, disk)
        shutil.copytree(log_directory, disk / "web-0")
        mount(mounts, "--bind", disk / "web-0", log_directory)
        mounts.enter_context(server)
        yield server, disk


def mount(mounts: ExitStack, *words: str | Path) -> None:
    if subprocess.run(["mount", *words], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    mounts.callback(subprocess.run, ["umount", "-l", words[-1]], check=True)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Whoever writes to this disk waits, as for one that does not answer."""
    subprocess.run(["fsfreeze", "-f", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", disk], check=True)


def test_a_disk_that_does_not_answer_is_named_as_long_as_that_lasts(on_two_disks: tuple[Server, Path]) -> None:
    """Method: it stands still while somebody produces, and again while a start mends the torn end of a log."""
    server, disk = on_two_disks
    with ExitStack() as producers:
        with frozen(disk):
            command = [sys.executable, "-m", "appliance", "produce", "web", *at(server)]
            producer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            producers.callback(producer.kill)
            assert producer.stdin is not None
            producer.stdin.write(b"b\n")
            producer.stdin.close()
            row = wait_for(lambda: found(server, "ProcessWaitsForDisk"), "the disk to be found")
            assert row["what"] == "writer of web-0 waits for a disk" and "state D" in row["why"], row
            with Remedy(row) as remedy:
                assert remedy.left == ["iostat -x 1"]
        assert producer.wait(60) == 0, "it was late, not lost"
    wait_for(lambda: found(server, "ProcessWaitsForDisk") is None, "the end of it")
    server.kill_supervisor()
    wait_for(lambda: found(server, "Down"), "all to have ended")
    with log_path(disk / "web-0", 0).open("ab") as log:
        log.write(bytes(range(40)))  # as a power loss may leave it
    with frozen(disk):
        server.launch()
        opening_row = wait_for(lambda: found(server, "PartitionOpening"), "the opening to be found")
        assert "web-0: being opened" in opening_row["what"] and opening_row["todo"].startswith("wait"), opening_row
        rows = {row["condition"]: row for row in doctor(server)}
        assert rows["NotServing"]["what"] == "the appliance is starting", rows
        with Remedy(rows["NotServing"]) as remedy:
            assert [said.out for said in remedy.run_all()] != [""]
        wait_for(lambda: agree(server), "all judges to agree")
    server.wait_serving()
    assert not [row for row in doctor(server) if row["exit_status"]]
    assert succeeding("consume", "web", "--from", "earliest", "--max", "2", *at(server)).out == "a\nb\n"


# ---- the clock of the machine


def test_a_clock_that_nobody_keeps_right_is_a_warning(make_appliance: Callable[..., Server], tmp_path: Path) -> None:
    """Method: what the kernel answers to doctor is changed, both ways: the clock is that of the whole machine."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace, to change an answer of the kernel")
    server = make_appliance()
    row = clock_finding(server, "5", tmp_path)  # TIME_ERROR
    assert row is not None and row["exit_status"] == 0, row
    with Remedy(row) as remedy:
        assert remedy.left == ["timedatectl set-ntp true"]
    assert clock_finding(server, "0", tmp_path) is None, "TIME_OK, as after the remedy"


def clock_finding(server: Server, answer: str, directory: Path) -> Row | None:
    """What doctor says of the clock when adjtimex(2) answers so."""
    command = ["strace", "-f", "-o", directory / "trace", "-e", "trace=adjtimex,clock_adjtime"]
    command += ["-e", f"inject=adjtimex,clock_adjtime:retval={answer}"]
    command += [sys.executable, "-m", "appliance", "doctor", "--json", *at(server)]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert "INJECTED" in (directory / "trace").read_text(), said
    return next((row for row in json.loads(said.stdout) if row["condition"] == "ClockNotSynchronised"), None)


def test_a_full_disk_is_one_finding_whose_remedy_makes_room(small: tuple[SmallMachine, Server]) -> None:
    """Method: a topic of one file in each partition, as most are; nobody produces while there is room again."""
    _, server = small
    succeeding("topics", "create", "a", "--partitions", "4", *at(server))
    server.wait_for_tables("a", 4)
    fill_the_topic(server, "a")
    row = wait_for(lambda: found(server, "DiskFull"), "the full disk to be found")
    assert {one["condition"] for one in doctor(server)} & {"DiskLow", "DiskFillsUp", "LimitReached"} == set()
    assert "a-0" in row["what"] and "producers are refused" in row["what"]
    wait_for(lambda: agree(server), "all judges to agree")
    with Remedy(row) as remedy:
        remedy.run("appliance topics trim a ")
        wait_for(lambda: not doctor_minds_the_disk(server), "room again, although nobody writes")
        remedy.run("appliance topics alter a ")
    fill_the_topic(server, "a", rounds=30)
    carry_out(["topics", "delete", "a", *at(server)])


def test_of_a_log_with_many_files_only_what_is_lacking_goes(small: tuple[SmallMachine, Server]) -> None:
    _, server = small
    succeeding("topics", "create", "b", "--partitions", "1", "--setting", "segment.bytes=2MiB", *at(server))
    server.wait_for_tables("b")
    fill_the_topic(server, "b")
    row = wait_for(lambda: found(server, "DiskFull"), "the full disk to be found")
    with Remedy(row) as remedy:
        trim = remedy.left[0].split()
        assert "--partition" in trim and trim[trim.index("--before") + 1].isdecimal(), row
        remedy.run("appliance topics trim")
        wait_for(lambda: not doctor_minds_the_disk(server), "room again")
        remedy.run("appliance topics alter")
    left = succeeding("topics", "describe", "b", "--json", *at(server)).json["partitions"][0]["bytes"]
    assert left > 20 << 20, "most of it is kept"
    carry_out(["topics", "delete", "b", *at(server)])


def test_a_disk_that_something_else_fills_is_low(small: tuple[SmallMachine, Server]) -> None:
    machine, server = small
    other, used = machine.path / "other", 42 << 20
    room = lambda: shutil.disk_usage(machine.path).free > used  # noqa: E731
    wait_for(room, "the files of what was deleted to be gone")
    with other.open("wb") as file:
        file.write(bytes(used))
    row = wait_for(lambda: found(server, "DiskLow"), "the low disk to be found")
    assert "something else fills the disk" in row["todo"] and "8.0 MiB" in row["what"]
    wait_for(lambda: agree(server), "all judges to agree")
    with Remedy(row, within=machine.wrapper) as remedy:
        shown = remedy.run("du ").out.splitlines()
        assert str(other.parent).endswith(shown[-1].split()[1]), "the disk of the logs, not the one of the system"
    other.unlink()
    assert not doctor_minds_the_disk(server), "at once"


@pytest.fixture
def mounts() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_a_disk_that_has_become_read_only_is_named_although_nothing_can_be_written_there(
    make_appliance: Callable[..., Server], mounts: ExitStack
) -> None:
    """As after an error of the disk; what the supervisor has written last says that all is well.

    Method: a mount over the directory, which the kernel lets be read-only while no file is open for writing through it.
    """
    server = make_appliance()
    directory = server.data_dir
    mount(mounts, "--bind", directory, directory)
    command = ["mount", "-o", "remount,ro,bind", directory]
    wait_for(lambda: subprocess.run(command, check=False).returncode == 0, "no state to be written at this moment")
    assert run("topics", "create", "web", *at(server)).status == 75
    row = wait_for(lambda: found(server, "DiskReadOnly"), "the disk to be found")
    assert str(directory) in row["what"] and run("health", *at(server)).status == 75
    with Remedy(row) as remedy:
        remedy.run("dmesg")
        remedy.run(f"mount -o remount,rw {directory}")
    ends(server, "DiskReadOnly")
    succeeding("topics", "create", "web", *at(server))
    wait_for(lambda: run("health", *at(server)).status == 0, "what had to be written to be written")


def test_a_reload_that_has_failed_is_named_until_one_succeeds(
    make_appliance: Callable[..., Server], tmp_path: Path
) -> None:
    """A directory is where the configuration was: it serves, and would not start again."""
    config = tmp_path / "appliance.toml"
    config.touch()
    server = make_appliance(config_file=config)
    config.unlink()
    config.mkdir()
    assert run("reload", *at(server)).status == 78
    row = found(server, "ReloadFailed")
    assert row is not None and f"{config}: cannot be read: Is a directory" in row["why"], row
    config.rmdir()
    config.touch()
    with Remedy(row) as remedy:
        remedy.run("appliance reload")
    assert found(server, "ReloadFailed") is None


def test_a_full_dev_shm_is_found(small: tuple[SmallMachine, Server]) -> None:
    machine, server = small
    fill(machine.shm / "other")
    assert run("topics", "create", "none", "--partitions", "100", *at(server)).status == 75
    row = found(server, "SharedMemoryFull")
    assert row is not None and "no topic can be made" in row["why"]
    wait_for(lambda: agree(server), "all judges to agree")
    with Remedy(row, within=machine.wrapper) as remedy:
        remedy.run("mount -o remount")
    assert found(server, "SharedMemoryFull") is None
    succeeding("topics", "create", "many", "--partitions", "100", *at(server))
    (machine.shm / "other").unlink()


def fill_the_topic(server: Server, topic: str, rounds: int = 1_000) -> None:
    """Produce to all partitions until each is refused for lack of room, or for some rounds."""
    partitions = {name for name in server.state["tables"] if name.rpartition("-")[0] == topic}
    end_s = time.monotonic() + 60
    with Producer(server.native, acks="1", delivery_timeout_ms=2_000) as producer:
        for _ in range(rounds):
            if partitions <= set(server.state["full"]) or time.monotonic() > end_s:
                break
            for one in [producer.send(topic, os.urandom(200_000)) for _ in range(8)]:
                with suppress(Exception):
                    one.result(60)


def doctor_minds_the_disk(server: Server) -> list[str]:
    return [row["condition"] for row in doctor(server) if row["condition"].startswith("Disk")]


# ---- an appliance of its own


def test_a_damaged_log_is_named_with_its_place_and_repaired(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        succeeding("topics", "create", "web", *at(server))
        succeeding("produce", "web", *at(server), stdin=b"a\nb\n")
        server.stop()
        (server.data_dir / "web-0" / "clean-shutdown").unlink()
        log = next((server.data_dir / "web-0").glob("*.log"))
        content = bytearray(log.read_bytes())
        content[65] ^= 0xFF
        log.write_bytes(content)
        server.start()
        row = wait_for(lambda: found(server, "PartitionOffline"), "the partition to be offline")
        assert row["what"] == "web-0 is offline" and log.name in row["why"] and row["exit_status"] == 74
        assert agree(server)
        with Remedy(row) as remedy:
            verified = remedy.run("appliance log verify")
            assert verified.status == 74 and "could not be told" not in verified.err, verified
            remedy.run_all()
        assert found(server, "PartitionOffline") is None
        succeeding("produce", "web", *at(server), stdin=b"c\n")


def test_it_does_not_run_and_the_doctor_knows_why(tmp_path: Path) -> None:
    """Method: stopped in order, killed, and a start that fails, each followed by what the doctor says to do."""
    server = Server(tmp_path / "data")
    with server:
        server.stop()
        (row,) = doctor(server)
        assert row["condition"] == "Down" and "stopped in order" in row["why"]
        assert {run(what, *at(server)).status for what in ("doctor", "health", "status")} == {75}
        with Remedy(row) as remedy:
            again = subprocess.Popen(["sh", "-c", f"exec {remedy.take('appliance start')}"], env=WITH_PROGRAM)
        wait_for(lambda: found(server, "Down") is None, "it to run")
        again.terminate()
        assert again.wait(60) == 0
        server.start()
        server.kill_supervisor()
        (row,) = wait_for(lambda: [row for row in doctor(server) if row["condition"] == "Down"], "all to have ended")
        assert "killed" in row["why"]
        with Remedy(row) as remedy:
            remedy.take("appliance start")
            remedy.run("dmesg")
        server.start()
        server.stop()
    config = tmp_path / "appliance.toml"
    config.write_text("[network]\nworkers = 1\n\n[topics]\npartitions = many\n")
    assert run("start", *at(server), "--config", str(config)).status == 78
    (row,) = doctor(server)
    assert "exit status 78" in row["why"] and "line 5" in row["why"] and str(config) in row["why"]
    config.write_text("[network]\nworkers = 1\nworker = 2\n")
    assert run("start", *at(server), "--config", str(config)).status == 78
    (row,) = doctor(server)
    assert f"{config}:3: unknown key 'network.worker'" in row["why"]
    documents, start = commands_in(row["todo"])
    assert documents == ["config", "show"] and not fault_of(start)
    with server:
        assert doctor(server) is not None and found(server, "Down") is None
        assert not (server.data_dir / "failed-start.json").exists()


def start_of(server: Server, *settings: str) -> Said:
    """What a start without ZooKeeper says, at free ports, in a process of its own."""
    given = ["zookeeper.nodes=0", "native.listen=127.0.0.1:0", "kafka.listen=127.0.0.1:0", *settings]
    status, said = alone("start", *at(server), *(word for one in given for word in ("--set", one)))
    return Said(status, "", said)


LATER = {"empty": pytest.mark.long, "short": pytest.mark.long}
DAMAGES = {"garbage": b"\xff\x00{", "empty": b"", "short": b'{"version": 1, "clus'}


@pytest.mark.parametrize("damage", [pytest.param(one, marks=LATER.get(one, ())) for one in DAMAGES])
@pytest.mark.parametrize(
    "name", ["catalog.json", "security.json", "format.json", "producer-id", "scrub.json", "groups.json"]
)
def test_a_small_file_that_is_damaged_ends_the_start_or_is_begun_anew(tmp_path: Path, name: str, damage: str) -> None:
    server = Server(tmp_path / "data")
    with server:
        succeeding("topics", "create", "web", *at(server))
        succeeding("produce", "web", *at(server), stdin=b"a\n")
        server.stop()
    file = server.data_dir / name
    backup = file.read_bytes() if file.exists() else b""
    file.write_bytes(DAMAGES[damage])
    if name in ("producer-id", "scrub.json", "groups.json"):
        with server:
            succeeding("produce", "web", *at(server), stdin=b"b\n")
            assert not [row for row in doctor(server) if row["exit_status"]]
        return
    said = start_of(server)
    assert said.status == 74 and f"{file}: damaged" in said.err, said
    (row,) = doctor(server)
    assert row["condition"] == "Down" and f"{file}: damaged" in row["why"]
    todo = row["todo"]
    if name == "format.json":
        subprocess.run(shlex.split(re.findall(r"`(mv [^`]*)`", todo)[0]), check=True)
    else:
        copy = re.findall(r"`(cp [^`]*)`", todo)[0]
        (tmp_path / "backup").mkdir()
        (tmp_path / "backup" / name).write_bytes(backup)
        subprocess.run(shlex.split(copy.replace("BACKUP", str(tmp_path / "backup"))), check=True)
    with server:
        assert succeeding("consume", "web", "--from", "earliest", "--max", "1", *at(server)).out == "a\n"


def test_a_small_file_that_is_gone_is_missed_where_nothing_brings_it_back(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    with server:
        succeeding("topics", "create", "web", *at(server))
        server.stop()
    catalog, kept = server.data_dir / "catalog.json", tmp_path / "catalog.json"
    catalog.rename(kept)
    said = start_of(server)
    assert said.status == 74 and "it is gone, and these partitions are here: web-0" in said.err
    copy = re.findall(r"`(cp [^`]*)`", said.err)[0]
    subprocess.run(shlex.split(copy.replace("BACKUP", str(tmp_path))), check=True)
    (server.data_dir / "security.json").unlink()
    said = start_of(server, "security.authorizer=acl")
    assert said.status == 74 and "all users" in said.err
    (echo,) = re.findall(r"`(echo [^`]*)`", said.err)
    subprocess.run(echo, shell=True, check=True)
    with server:
        assert "web" in succeeding("topics", "list", *at(server)).out


def test_data_of_another_broker_end_the_start_with_the_way_back(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    with server:
        succeeding("topics", "create", "web", "--partitions", "5", *at(server))
        server.stop()
    said = start_of(server, "broker.id=1")
    assert said.status == 78 and "has the partitions of broker 0 (web-0, web-1, web-2 and 2 more)" in said.err, said
    assert "id = 0 in [broker]" in said.err
    (row,) = doctor(server)
    assert "broker.id = 1" in row["why"] and "id = 0" in row["todo"]
    with server:
        assert not [row for row in doctor(server) if row["exit_status"]]


# ---- ZooKeeper, and other brokers


def ends(server: Server, condition: str) -> None:
    wait_for(lambda: found(server, condition) is None, f"the end of {condition}")


def test_brokers_that_are_away_and_that_share_an_id(tmp_path: Path) -> None:
    """Method: three brokers of one ensemble; the second one is killed, the third has the id of the second."""
    quick = {"zookeeper.session_timeout_ms": 1_000}
    with Server(tmp_path / "a", **{"zookeeper.nodes": 1} | quick) as first:
        first.wait_for_zookeeper()
        access = first.zookeeper_access | quick
        second = Server(tmp_path / "b", **{"broker.id": 2} | access)
        with second:
            second.wait_for_zookeeper()
            for number in range(4):  # spread over both
                succeeding("topics", "create", f"t{number}", *at(first))
            assert found(first, "LeadersAway") is None
            second.kill_supervisor()
            row = wait_for(lambda: found(first, "LeadersAway"), "the absence to be found")
            assert "2 partitions have no leader" in row["what"] and "broker 2 on" in row["why"], row
            wait_for(lambda: agree(first), "all judges to agree")
            assert "start the appliance with broker.id = 2" in row["todo"]
            second.start()
            ends(first, "LeadersAway")
            with Server(tmp_path / "c", **{"broker.id": 2} | access) as third:
                row = wait_for(lambda: found(third, "BrokerIdTaken"), "the id to be found taken")
                assert "another appliance has broker.id = 2" in row["what"] and second.native in row["why"], row
                wait_for(lambda: agree(third), "all judges to agree")
                assert found(second, "BrokerIdTaken") is None, "it was there before"
                second.stop()  # the remedy: stop one of the two
                ends(third, "BrokerIdTaken")


def test_an_earlier_life_of_ones_own_is_waited_for(tmp_path: Path) -> None:
    """Goal: a restored copy that starts while the session of the original lives on says nothing of another appliance.

    Method: everything is killed at once, and the directory, with its ensemble, is copied as a restore does.
    """
    with Server(tmp_path / "data", **{"zookeeper.nodes": 1}) as server:
        server.wait_for_zookeeper()
        succeeding("topics", "create", "web", *at(server))
        pids = [row["pid"] for row in server.state["processes"]]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: nobody ends its session in order
            for pid in pids:
                with suppress(ProcessLookupError):  # the cleaner has ended
                    os.kill(pid, number)
        wait_for(lambda: not any(runs(pid) for pid in pids), "all to be gone")
        server.kill_supervisor()
        shutil.copytree(server.data_dir, tmp_path / "copy", symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        with Server(tmp_path / "copy", **{"zookeeper.nodes": 1}) as restored:
            restored.wait_for_zookeeper()
            wait_for(lambda: run("topics", "create", "new", *at(restored)).status in (0, 65), "topics to be made")
            assert found(restored, "BrokerIdTaken") is None
            assert "has this id" not in restored.log() and " error " not in restored.log().lower(), restored.log()


@pytest.mark.parametrize("way", ["restored", "deleted", "foreign"])
def test_offsets_that_zookeeper_has_lost(tmp_path: Path, way: str) -> None:
    """``foreign``: the ensemble has the data of another cluster, which is something else than none."""
    with Server(tmp_path / "data", **{"zookeeper.nodes": 1, "disk.check_ms": 200}) as server:
        server.wait_for_zookeeper()
        succeeding("topics", "create", "web", *at(server))
        succeeding("produce", "web", *at(server), stdin=b"a\nb\n")
        for group in ("reports", "audit"):
            succeeding("groups", "reset", group, "--topic", "web", "--to", "latest", "--new", "--yes", *at(server))
        known = server.data_dir / "groups.json"
        wait_for(lambda: known.exists() and b"reports" in known.read_bytes(), "the groups to be noted")
        succeeding("backup", str(tmp_path / "backup"), *at(server))
        cluster = json.loads((server.data_dir / "catalog.json").read_text())["cluster"]
        server.stop()
        shutil.rmtree(server.data_dir / "zookeeper")
        if way == "foreign":
            put_another_ensemble(tmp_path, server.data_dir / "zookeeper")
        server.start()
        row = wait_for(lambda: found(server, "OffsetsLost"), "the loss to be found")
        assert "of 2 groups: audit, reports" in row["what"] and "audit read web" in row["why"], row
        assert ("its data were gone" in row["why"]) == (way != "foreign"), row
        assert (f"not of {cluster} as before" in row["why"]) == (way == "foreign"), row
        assert row["exit_status"] == 74
        wait_for(lambda: agree(server), "all judges to agree")
        remedy = Remedy(row, {"BACKUP": tmp_path / "backup"})
        if way != "deleted":
            server.stop()
            remedy.run("rm -r")
            remedy.run("cp -a")
            server.start()
        else:
            remedy.run("appliance groups delete")
            wait_for(lambda: "1 group: reports" in (found(server, "OffsetsLost") or row)["what"], "one to be left")
            Remedy(found(server, "OffsetsLost") or row).run("appliance groups reset reports")
        ends(server, "OffsetsLost")
        left = {one["group"] for one in succeeding("groups", "list", "--json", *at(server)).json}
        assert left == ({"reports"} if way == "deleted" else {"audit", "reports"})


def put_another_ensemble(tmp_path: Path, place: Path) -> None:
    with Server(tmp_path / "other", **{"zookeeper.nodes": 1}) as other:
        other.wait_for_zookeeper()
        succeeding("topics", "create", "elsewhere", *at(other))
        catalog = other.data_dir / "catalog.json"
        wait_for(lambda: json.loads(catalog.read_text())["cluster"], "ZooKeeper to have the id of the cluster")
        other.stop()
        shutil.copytree(other.data_dir / "zookeeper", place, symlinks=True)


def test_partitions_of_another_broker(tmp_path: Path) -> None:
    """As after a directory was put together from two; the condition ends without a restart."""
    with Server(tmp_path / "data") as server:
        succeeding("topics", "create", "web", *at(server))
        server.stop()
        catalog = server.data_dir / "catalog.json"
        content = json.loads(catalog.read_text())
        content["topics"]["moved"] = {"partitions": {"0": [7]}, "id": "5f" * 16}
        catalog.write_text(json.dumps(content))
        shutil.copytree(server.data_dir / "web-0", server.data_dir / "moved-0")
        server.start()
        row = wait_for(lambda: found(server, "PartitionsForeign"), "the partition to be found")
        assert "moved-0" in row["what"] and "broker.id = 7" in row["todo"], row
        wait_for(lambda: agree(server), "all judges to agree")
        (server.data_dir / "moved-0").rename(tmp_path / "moved-0")
        ends(server, "PartitionsForeign")


# ---- the table

HERE = "behaviour/test_bad_day.py::"
SHOWN_BY = {
    "DiskFull": HERE + "test_a_full_disk_is_one_finding_whose_remedy_makes_room",
    "DiskReadOnly": HERE + "test_a_disk_that_has_become_read_only_is_named_although_nothing_can_be_written_there",
    "ReloadFailed": HERE + "test_a_reload_that_has_failed_is_named_until_one_succeeds",
    "DiskLow": HERE + "test_a_disk_that_something_else_fills_is_low",
    "SharedMemoryFull": HERE + "test_a_full_dev_shm_is_found",
    "PartitionOffline": HERE + "test_a_damaged_log_is_named_with_its_place_and_repaired",
    "Down": HERE + "test_it_does_not_run_and_the_doctor_knows_why",
    "LimitReached": HERE + "test_a_limit_is_named_until_it_is_raised",
    "InsecureListener": HERE + "test_a_listener_that_everybody_may_use_is_named_until_it_is_closed",
    "NoAccessRules": HERE + "test_a_login_without_access_rules_is_named_until_there_are_some",
    "ClientsWaitForMemory": HERE + "test_who_waits_for_memory_is_named_until_there_is_enough",
    "ProcessWaitsForDisk": HERE + "test_a_disk_that_does_not_answer_is_named_as_long_as_that_lasts",
    "PartitionOpening": HERE + "test_a_disk_that_does_not_answer_is_named_as_long_as_that_lasts",
    "NotServing": HERE + "test_a_disk_that_does_not_answer_is_named_as_long_as_that_lasts",
    "ClockNotSynchronised": HERE + "test_a_clock_that_nobody_keeps_right_is_a_warning",
    "LeadersAway": HERE + "test_brokers_that_are_away_and_that_share_an_id",
    "BrokerIdTaken": HERE + "test_brokers_that_are_away_and_that_share_an_id",
    "OffsetsLost": HERE + "test_offsets_that_zookeeper_has_lost",
    "PartitionsForeign": HERE + "test_partitions_of_another_broker",
    "AlertsUndelivered": "behaviour/test_alerts.py::test_who_cannot_be_told_is_named_until_they_are",
    "ClockJumped": "behaviour/test_clock.py::test_an_operator_says_that_the_clock_is_right",
    "TransactionLate": "clients/test_transactions.py::test_a_transaction_that_stays_open_is_named_with_its_remedy",
    "TransactionHangs": "behaviour/test_native_transactions.py::"
    "test_what_hangs_when_zookeeper_has_lost_its_data_is_named_with_its_remedy",
    "PipelineIncomplete": "spark/pipeline/test_troubles.py::"
    "test_a_view_that_fails_is_named_by_the_doctor_until_it_is_mended",
    "LimitLow": "behaviour/test_few_descriptors.py::test_few_descriptors_are_a_warning_before_anybody_lacks_one",
    "GroupLost": "cli/test_groups_commands.py::test_what_goes_before_a_group_has_read_it_is_said_before_and_after",
    "RequestErrors": "metrics/test_metrics_server.py::"
    "test_a_client_that_is_refused_again_and_again_is_judged_by_its_rate",
    "SlowFlushes": "metrics/test_metrics_server.py::test_a_slow_disk_is_judged_by_the_times_of_its_flushes",
}


def test_each_condition_is_made_to_happen() -> None:
    """A condition that no test causes is not in the table, and the tests that are named exist."""
    names = {one.name for one in CONDITIONS}
    shown = {*CASES, *SHOWN_BY}
    assert shown == names, f"no test: {names - shown}; no condition: {shown - names}"


def test_the_page_has_the_table() -> None:
    """`python -m appliance.health.bad_days systemd/README.md` writes it again."""
    page = PAGE.read_text()
    assert bad_days.with_table(page) == page


def test_the_table_says_all_of_each_condition() -> None:
    for one in CONDITIONS:
        assert one.symptom and one.seen and one.todo, one
        for words in commands_in(one.todo):
            assert not fault_of(words), one
