"""The bad day of systemd/README.md: each row of its table is caused for real, and ``appliance doctor`` names the cause.

``DAY`` has what it prints.  The row of the page has these words, too, so that page and program agree.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from appliance.addresses import parse_addresses
from appliance.client import Producer
from appliance.health.conditions import CONNECTIONS, LAG_MESSAGES

from .certificates import make_certificates
from .command_line import run, succeeding
from .server import Server, stopped, wait_for

PAGE = (Path(__file__).parent.parent / "systemd" / "README.md").read_text()
SECTION = PAGE.split("## A bad day")[1].split("\n## ")[0]
ROWS = [line for line in SECTION.splitlines() if line.startswith("| ") and "symptom" not in line]


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance with a ZooKeeper node of its own and a listener that wants certificates."""
    files = tmp_path_factory.mktemp("bad")
    for arguments in (("ca",), ("server", "127.0.0.1")):
        make_certificates(files, *arguments)
    make_certificates(files / "other", "ca")
    make_certificates(files / "other", "client", "stranger")
    settings = {"tls.certificate": files / "server.pem", "tls.key": files / "server.key", "tls.ca": files / "ca.pem"}
    settings |= {"tls.client_auth": "required", "kafka.listen": "127.0.0.1:0,SSL://127.0.0.1:0"}
    with Server(files / "data", **{"zookeeper.nodes": 1}, **settings) as server:
        server.wait_for_zookeeper()
        succeeding("topics", "create", "web", "--data", str(server.data_dir))
        yield server


def doctor(server: Server) -> str:
    said = run("doctor", "--data", str(server.data_dir))
    assert said.status in (0, 74, 75), said
    return said.out


@contextmanager
def lagging(server: Server) -> Iterator[None]:
    at = ("--data", str(server.data_dir))
    lines = b"".join(b"line %d\n" % number for number in range(LAG_MESSAGES))
    succeeding("produce", "web", *at, stdin=lines)
    succeeding("groups", "reset", "reports", "--topic", "web", "--to", "earliest", "--new", "--yes", *at)
    yield
    succeeding("groups", "delete", "reports", "--yes", *at)


@contextmanager
def filling(server: Server) -> Iterator[None]:
    over = threading.Event()

    def fill() -> None:
        with Producer(server.native, acks="1") as producer:
            while not over.wait(0.02):
                producer.send_many("web", [bytes(1000)] * 200)

    thread = threading.Thread(target=fill)
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


@contextmanager
def without_quorum(server: Server) -> Iterator[None]:
    with stopped(server.pid_of("zookeeper")):
        wait_for(lambda: server.state["zookeeper"]["state"] != "connected", "the session to suffer", 60)
        yield
    server.wait_for_zookeeper()


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
    wait_for(lambda: server.state["refusals"].get("certificate"), "the refusal to be counted")
    yield


@contextmanager
def flooding(server: Server) -> Iterator[None]:
    address = parse_addresses(server.kafka)[0]
    with ExitStack() as open_ones:
        for _ in range(CONNECTIONS + 20):
            open_ones.enter_context(socket.create_connection(address, 10))
        yield


DAY = {
    "lags": (lagging, "lags by 10,000 messages"),
    "fills": (filling, "the disk is full in"),
    "seconds": (hanging, "network hangs"),
    "rebalance": (without_quorum, "no quorum"),
    "renewal": (refusing, "clients are refused: certificate"),
    "floods": (flooding, "floods the listeners"),
}


def row_of(symptom: str) -> str:
    (row,) = [row for row in ROWS if symptom in row.split("|")[1]]
    return row


@pytest.mark.parametrize("symptom", DAY)
def test_the_doctor_names_the_cause(ill: Server, symptom: str) -> None:
    cause, said = DAY[symptom]
    assert said not in doctor(ill), "all is well before"
    with cause(ill):
        out = doctor(ill)
    assert said in out, out
    assert re.sub(r"[\d,]+ ", "", said).split(":")[0] in re.sub(r"[\d,]+ ", "", row_of(symptom)), "the page has it"


def test_a_key_that_others_can_read_is_named(ill: Server) -> None:
    key = ill.data_dir.with_name("server.key")
    key.chmod(0o644)
    wait_for(lambda: ill.state["tls"]["error"], "the supervisor to look at the files")
    out = doctor(ill)
    key.chmod(0o600)
    assert "warning: new files of tls.* cannot be used" in out and "server.key" in out
    wait_for(lambda: not ill.state["tls"]["error"], "the files to be taken again")
    named = {row["key"]: row["expires"] - time.time() for row in ill.state["tls"]["files"]}
    assert named.keys() == {"tls.certificate", "tls.ca"} and all(left_s > 300 * 86_400 for left_s in named.values())


def test_a_damaged_log_is_named_with_its_place(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        at = ("--data", str(server.data_dir))
        succeeding("topics", "create", "web", *at)
        succeeding("produce", "web", *at, stdin=b"a\nb\n")
        server.stop()
        (server.data_dir / "web-0" / "clean-shutdown").unlink()
        log = next((server.data_dir / "web-0").glob("*.log"))
        content = bytearray(log.read_bytes())
        content[65] ^= 0xFF
        log.write_bytes(content)
        server.start()
        wait_for(lambda: "web-0" in server.state["offline"], "the partition to be offline")
        said = run("doctor", *at)
        assert said.status == 74 and "web-0 is offline" in said.out and log.name in said.out, said
    assert "web-0 is offline" in row_of("after a crash")


def test_every_row_is_caused() -> None:
    assert len(ROWS) == len(DAY) + 1
