"""Syslog from the programs that people have, over every transport, into a topic of a real appliance."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.bench.local_appliance import LocalAppliance
from appliance.client import Consumer
from appliance.client.decoder import Message
from appliance.errors import UnknownPartition
from appliance.inputs.syslog import DRAIN_S
from appliance.processes.supervisor.inputs import DATAGRAM_BUFFER_BYTES, SO_RCVBUFFORCE, bind_input
from appliance.wire.requests import LATEST

from ..support.certificates import NO_TEXT, make_certificates, sign_client
from ..support.ready import free_port
from ..support.server import Server, stopped, wait_for

RSYSLOG = shutil.which("rsyslogd", path="/usr/sbin:/usr/bin")
SYSLOG_NG = Path(os.environ.get("SYSLOG_NG", "/"))
MODULES = Path("/usr/lib/x86_64-linux-gnu/rsyslog")
MESSAGE_BYTES_MAX = 2048
OFFERS = b"relp_version=0\ncommands=syslog"
OPEN = b"1 open %d %b\n" % (len(OFFERS), OFFERS)

CONFIG = """
[inputs.net]
type = "syslog"
listen = ["udp://127.0.0.1:0", "tcp://127.0.0.1:0", "relp://127.0.0.1:0", "tls://127.0.0.1:0",
    "relps://127.0.0.1:0", "unix://{place}/log", "udp://[::1]:0", "tcp://[::]:0"]
allow = ["127.0.0.0/8", "::1"]
topic = "net"
message_bytes_max = {message_bytes_max}
connections_max = 20

[inputs.apps]
type = "syslog"
listen = ["tcp://127.0.0.1:0", "udp://127.0.0.1:0", "relp://127.0.0.1:0"]
topic = "logs-{{app}}"
topics_max = 2
key = "host"

[inputs.keyed]
type = "syslog"
listen = ["tcp://127.0.0.1:0"]
topic = "keyed"
key = "app"

[inputs.others]
type = "syslog"
listen = ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"]
topic = "others"
allow = ["192.0.2.0/24"]

[tls]
certificate = "{place}/server.pem"
key = "{place}/server.key"
ca = "{place}/ca.pem"
client_auth = "required"
handshake_ms_max = 1000
"""


def make_ours(place: Path) -> None:
    """Make an authority, and certificates of a server here and of a sender."""
    for words in (["ca"], ["server", "localhost", "127.0.0.1"], ["client", "web-1"]):
        made = make_certificates(place, *words)
        assert not made.returncode, made.stderr


def sender_context(place: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=place / "ca.pem")
    context.load_cert_chain(place / "web-1.pem", place / "web-1.key")
    return context


class Box:
    """An appliance, and where its inputs listen."""

    def __init__(self, server: Server, place: Path) -> None:
        self.server, self.place = server, place
        self._read: dict[str, list[Message]] = {}

    def input(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = self.server.state["inputs"][name]
        return row

    def address(self, scheme: str, name: str = "net", host: str = "127.0.0.1") -> tuple[str, int]:
        for text in self.input(name)["addresses"]:
            if text.startswith(f"{scheme}://{host}:"):
                return host.strip("[]"), int(text.rpartition(":")[2])
        raise AssertionError(f"no {scheme}")

    def connect(self, scheme: str = "tcp", name: str = "net") -> socket.socket:
        return socket.create_connection(self.address(scheme, name), timeout=30)

    def messages(self, topic: str = "net") -> list[Message]:
        """All that are in the topic now."""
        read = self._read.setdefault(topic, [])
        with contextlib.suppress(UnknownPartition), Consumer(self.server.native) as consumer:  # no such topic yet
            consumer.assign({(topic, 0): read[-1].offset + 1 if read else 0})
            end = consumer.offsets_at(LATEST)[topic, 0]
            while consumer.position(topic, 0) < end:
                read += consumer.poll(timeout=10, messages_max=100_000)
        return list(read)

    def wait_for(self, mark: bytes, count: int = 1, topic: str = "net") -> list[Message]:
        """The messages with a mark, as soon as there are so many."""

        def marked() -> list[Message]:
            found = [message for message in self.messages(topic) if mark in (message.value or b"")]
            return found if len(found) >= count else []

        found: list[Message] = wait_for(marked, f"{count} messages with {mark!r}")
        assert len(found) == count
        return found

    def pid_of(self, name: str) -> int:
        """The process of an input."""

        def found() -> list[int]:
            pids: list[int] = []
            for pid in self.server.pids("input"):
                with contextlib.suppress(OSError):  # it has ended
                    if Path(f"/proc/{pid}/comm").read_text().strip().endswith(name):
                        pids.append(pid)
            return pids

        return int(wait_for(found, f"the process of {name}")[0])


def headers_of(message: Message) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in message.headers if name != "origin"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    place = tmp_path_factory.mktemp("syslog")
    make_ours(place)
    make_certificates(place / "strangers", "ca")
    make_certificates(place / "strangers", "client", "web-2")
    file = place / "appliance.toml"
    file.write_text(CONFIG.format(place=place, message_bytes_max=MESSAGE_BYTES_MAX))
    with Server(place / "data", file) as server:
        box = Box(server, place)
        for name in ("net", "apps", "keyed", "others"):
            wait_for(lambda name=name: box.input(name)["state"] == "running", f"the input {name}")
        yield box
        log = server.log()
        assert server.stop() == 0
        assert "Traceback" not in log
        assert "did not stop in time" not in server.log()


# ---- programs that people have


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
def test_python_logging(box: Box, kind: str) -> None:
    address = str(box.place / "log") if kind == "unix" else box.address(kind)
    socktype = socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
    handler = logging.handlers.SysLogHandler(address, "local3", socktype)
    handler.ident = "shop: "
    for number in range(3):
        handler.emit(logging.LogRecord("x", logging.WARNING, "", 0, f"python-{kind} {number}  ", None, None))
    handler.close()
    found = box.wait_for(b"python-%b" % kind.encode(), 3)
    assert [one.value for one in found] == [b"<156>shop: python-%b %d  " % (kind.encode(), n) for n in range(3)]
    host = socket.gethostname() if kind == "unix" else "127.0.0.1"
    wanted = {"host": host, "app": "shop", "facility": "local3", "severity": "warning"}
    assert [headers_of(one) for one in found] == [wanted] * 3


@pytest.mark.skipif(shutil.which("logger") is None, reason="no logger: apt-get install bsdutils")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("udp", ["-d", "--rfc5424"]),
        ("udp", ["-d", "--rfc3164"]),
        ("tcp", ["-T", "--rfc5424"]),
        ("tcp", ["-T", "--rfc5424", "--octet-count"]),
        ("tcp", ["-T", "--rfc3164", "--octet-count"]),
        ("unix", []),
    ],
)
def test_logger(box: Box, kind: str, options: list[str]) -> None:
    mark = "-".join(["logger", kind, *options])
    if kind == "unix":
        where = ["-u", str(box.place / "log")]
    else:
        host, port = box.address(kind)
        where = ["-n", host, "-P", str(port), *options]
    subprocess.run(["logger", *where, "-p", "auth.err", "-t", "door", "--", mark], check=True, timeout=60)
    (found,) = box.wait_for(mark.encode())
    headers = headers_of(found)
    time = headers.pop("time")
    assert time[10] == "T"
    assert time[-1] == "Z" or time[-3] == ":"
    assert headers == {"host": socket.gethostname(), "app": "door", "facility": "auth", "severity": "err"}


def sent_by(command: list[str], box: Box, token: bytes, count: int, place: Path, **environment: str) -> list[Message]:
    """What a shipper sends until so many messages with ``token`` are in the topic: numbered, and in order."""
    with (place / "out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | environment)
    try:
        found = box.wait_for(token, count)
    finally:
        process.terminate()
        process.wait(60)
    assert [(one.value or b"").rpartition(b" ")[2] for one in found] == [b"%d" % number for number in range(count)]
    return found


@pytest.mark.skipif(RSYSLOG is None, reason="no rsyslog: apt-get install rsyslog rsyslog-relp rsyslog-gnutls")
@pytest.mark.parametrize("kind", ["udp", "tcp", "octets", "tls", "relp", "relps"])
def test_rsyslog(box: Box, tmp_path: Path, kind: str) -> None:
    needed = {"relp": "omrelp.so", "relps": "omrelp.so", "tls": "lmnsd_gtls.so"}.get(kind)
    if needed is not None and not (MODULES / needed).exists():
        pytest.skip(f"no {needed}: apt-get install rsyslog-relp rsyslog-gnutls")
    scheme = "tcp" if kind == "octets" else kind
    host, port = box.address(scheme)
    action = f'target="{host}" port="{port}" template="RSYSLOG_SyslogProtocol23Format"'
    if kind.startswith("relp"):
        action = f'type="omrelp" {action}'
    else:
        action = f'type="omfwd" {action} protocol="{"udp" if kind == "udp" else "tcp"}"'
    if kind == "octets":
        action += ' TCP_Framing="octet-counted"'
    if kind == "tls":
        action += ' StreamDriver="gtls" StreamDriverMode="1" StreamDriverAuthMode="x509/certvalid"'
    if kind == "relps":
        files = (
            f'tls.caCert="{box.place}/ca.pem" tls.myCert="{box.place}/web-1.pem" tls.myPrivKey="{box.place}/web-1.key"'
        )
        action += f' tls="on" {files} tls.authMode="name" tls.permittedPeer="localhost"'
    source = tmp_path / "app.log"
    source.write_text("".join(f"rsyslog-{kind} line {number}\n" for number in range(500)))
    (tmp_path / "rsyslog.conf").write_text(
        f"""global(workDirectory="{tmp_path}" maxMessageSize="8k"
    defaultNetstreamDriverCAFile="{box.place}/ca.pem" defaultNetstreamDriverCertFile="{box.place}/web-1.pem"
    defaultNetstreamDriverKeyFile="{box.place}/web-1.key")
module(load="imfile") {'module(load="omrelp")' if kind.startswith("relp") else ""}
input(type="imfile" file="{source}" tag="shop:" facility="local1" severity="info")
action({action})
"""
    )
    command = [str(RSYSLOG), "-n", "-f", str(tmp_path / "rsyslog.conf"), "-i", str(tmp_path / "rsyslog.pid")]
    found = sent_by(command, box, b"rsyslog-%b " % kind.encode(), 500, tmp_path)
    headers = headers_of(found[0])
    assert headers.pop("time")
    assert headers == {"host": socket.gethostname(), "app": "shop", "facility": "local1", "severity": "info"}


@pytest.mark.parametrize("kind", ["udp", "tcp", "syslog", "tls", "unix"])
def test_syslog_ng(box: Box, tmp_path: Path, kind: str) -> None:
    binary, libraries = SYSLOG_NG / "usr/sbin/syslog-ng", SYSLOG_NG / "usr/lib/x86_64-linux-gnu"
    if not binary.exists():
        pytest.skip("no syslog-ng: install syslog-ng-core, or set SYSLOG_NG")
    modules = next((SYSLOG_NG / "usr/lib/syslog-ng").glob("*.*"))
    if kind == "unix":
        destination = f'unix-dgram("{box.place}/log")'
    else:
        host, port = box.address("tcp" if kind == "syslog" else kind)
        driver = "syslog" if kind == "syslog" else "network"  # octet counting, and line breaks
        files = f'ca-file("{box.place}/ca.pem") key-file("{box.place}/web-1.key") cert-file("{box.place}/web-1.pem")'
        tls = f"tls({files} peer-verify(yes))" if kind == "tls" else ""
        transport = "tcp" if kind == "syslog" else kind
        destination = f'{driver}("{host}" port({port}) transport("{transport}") {tls})'
    source = tmp_path / "app.log"
    source.write_text("".join(f"shop: ng-{kind} line {number}\n" for number in range(200)))
    (tmp_path / "syslog-ng.conf").write_text(
        f"""@version: current
options {{ keep-hostname(no); use-dns(no); }};
source s {{ file("{source}" follow-freq(0.1) default-facility(local2) default-priority(info)); }};
destination d {{ {destination}; }};
log {{ source(s); destination(d); }};
"""
    )
    paths = f"{libraries}:{SYSLOG_NG / 'lib/x86_64-linux-gnu'}:{SYSLOG_NG / 'usr/lib/syslog-ng'}:{modules}"
    command = [str(binary), "-F", "--no-caps", f"--module-path={modules}", "-f", str(tmp_path / "syslog-ng.conf")]
    command += [f"--{name}={tmp_path}/ng.{name}" for name in ("persist-file", "pidfile", "control")]
    found = sent_by(command, box, b"ng-%b " % kind.encode(), 200, tmp_path, LD_LIBRARY_PATH=paths)
    headers = headers_of(found[0])
    assert headers.pop("time")
    assert headers.pop("host") == socket.gethostname()
    assert headers == {"app": "shop", "facility": "local2", "severity": "info"}


@pytest.mark.parametrize("kind", ["relp", "relps"])
def test_relppy(box: Box, kind: str) -> None:
    relppy = pytest.importorskip("relppy.client", reason="no relppy: pip install relppy")
    secured = {"context": sender_context(box.place), "server_hostname": "localhost"}
    client = (
        relppy.RelpTCPClient(box.address(kind))
        if kind == "relp"
        else relppy.RelpTlsClient(address=box.address(kind), **secured)
    )
    texts = [b"<13>shop: relppy-%b %d" % (kind.encode(), number) for number in range(200)]
    with client:
        answers = [client.send_command(b"syslog", text) for text in texts]
        assert {answer.result(30) for answer in answers} == {b"200 OK"}
    found = box.wait_for(b"relppy-%b " % kind.encode(), 200)
    assert [one.value for one in found] == texts


# ---- what is taken, and what not


def test_what_does_not_parse_is_raw(box: Box) -> None:
    with box.connect() as sock:
        sock.sendall(b"nothing rawline 1\n<13>rawline \xff\xfe 2\n\n\0<999>rawline 3  \nrawline without an end")
    found = box.wait_for(b"rawline", 4)
    raw = {"host": "127.0.0.1", "format": "raw"}
    assert [(one.value, headers_of(one)) for one in found] == [
        (b"nothing rawline 1", raw),
        (b"<13>rawline \xff\xfe 2", {"host": "127.0.0.1", "facility": "user", "severity": "notice"}),
        (b"<999>rawline 3  ", raw),
        (b"rawline without an end", raw),
    ]


@pytest.mark.parametrize("kind", ["udp", "tcp", "octets", "unix", "relp"])
def test_long_messages_come_in_parts(box: Box, kind: str) -> None:
    text = f"<13>Oct 11 22:14:15 far long: {'ä€𝄞' * 800}".encode()
    if kind in ("udp", "unix"):
        family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.sendto(text, str(box.place / "log") if kind == "unix" else box.address("udp"))
    elif kind == "relp":
        with box.connect("relp") as sock:
            sock.sendall(OPEN + b"2 syslog %d %b\n" % (len(text), text))
            assert until(sock, b"\n2 rsp 6 200 OK\n")
    else:
        with box.connect() as sock:
            sock.sendall(b"%d %b" % (len(text), text) if kind == "octets" else text + b"\n")

    def parts() -> list[Message]:
        found = [one for one in box.messages() if headers_of(one).get("app") == "long"]
        return found if b"".join(one.value or b"" for one in found).count(text) > before else []

    before = LONG_BEFORE[0]
    LONG_BEFORE[0] += 1
    found = wait_for(parts, "all parts")[-4:]
    assert b"".join(one.value or b"" for one in found) == text
    assert [headers_of(one)["part"] for one in found] == ["1", "2", "3", "4"]
    assert {headers_of(one)["host"] for one in found} == {"far"}
    for one in found:
        assert len((one.value or b"").decode().encode()) <= MESSAGE_BYTES_MAX


LONG_BEFORE = [0]
"""How often the long message of the test above was sent."""


def until(sock: socket.socket, end: bytes) -> bytes:
    """What comes up to these bytes, or to the end of the connection."""
    found = b""
    while end not in found:
        data = sock.recv(65536)
        if not data:
            break
        found += data
    return found


def test_networks_that_may_not_send(box: Box) -> None:
    with box.connect("tcp", "others") as sock, contextlib.suppress(ConnectionError):
        sock.sendall(b"<13>stranger\n")
        assert sock.recv(1) == b""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"<13>stranger", box.address("udp", "others"))
    wait_for(lambda: box.input("others")["refused"] == 2, "both to be counted")
    assert box.input("others")["messages"] == 0
    assert "not in allow" in box.input("others")["refusing"] and not box.input("others")["trouble"]


def test_topics_of_a_template_are_bounded(box: Box) -> None:
    with box.connect("tcp", "apps") as sock:
        sock.sendall(
            b"".join(
                b"<13>Oct 11 22:14:15 h%d %b: bounded\n" % (n, app) for n, app in enumerate([b"a", b"b", b"c", b"a"])
            )
        )
    assert [one.key for one in box.wait_for(b"bounded", 2, "logs-a")] == [b"h0", b"h3"]
    assert [one.key for one in box.wait_for(b"bounded", 1, "logs-b")] == [b"h1"]
    wait_for(lambda: box.input("apps")["refused"] >= 1, "the third to be counted")
    with box.connect("relp", "apps") as sock:
        sock.sendall(
            OPEN + b"".join(b"%d syslog 14 <13>%b: bounded\n" % row for row in [(2, b"b"), (3, b"d"), (4, b"b")])
        )
        got = until(sock, b"4 rsp 6 200 OK\n")
    assert (
        got.index(b"\n2 rsp 6 200 OK\n") < got.index(b"\n3 rsp 24 500 the topic is refused\n") < got.index(b"\n4 rsp")
    )


def test_messages_with_a_key_and_without_one_keep_their_order(box: Box) -> None:
    lines = [b"<13>%b mixed %d" % (b"a%d:" % (n % 3) if n % 5 else b"no key", n) for n in range(5_000)]
    with box.connect("tcp", "keyed") as sock:
        sock.sendall(b"\n".join(lines))
    found = box.wait_for(b" mixed ", 5_000, "keyed")
    assert [one.value for one in found] == lines
    assert [one.key for one in found] == [b"a%d" % (n % 3) if n % 5 else None for n in range(5_000)]


def test_ipv6(box: Box) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"<13>six udp", box.address("udp", host="[::1]"))
    _, port = box.address("tcp", host="[::]")
    for host in ("::1", "127.0.0.1"):
        with socket.create_connection((host, port)) as sock:
            sock.sendall(b"<13>six tcp\n")
    hosts = sorted(headers_of(one)["host"] for one in box.wait_for(b"six ", 3))
    assert hosts == ["127.0.0.1", "::1", "::1"]


@pytest.mark.parametrize("kind", ["tls", "relps"])
@pytest.mark.parametrize("whose", ["ours", "strangers", "nobody", "plain", "odd"])
def test_tls_wants_a_certificate_of_ours(box: Box, whose: str, kind: str) -> None:
    context = ssl.create_default_context(cafile=box.place / "ca.pem")
    if whose == "ours":
        context.load_cert_chain(box.place / "web-1.pem", box.place / "web-1.key")
    elif whose == "strangers":
        context.load_cert_chain(box.place / "strangers/web-2.pem", box.place / "strangers/web-2.key")
    elif whose == "odd":
        sign_client(box.place, box.place, "odd", NO_TEXT)
        context.load_cert_chain(box.place / "odd.pem", box.place / "odd.key")
    before = box.input("net")["refused"]
    text = b"<13>over %b from %b" % (kind.encode(), whose.encode())
    line = OPEN + b"2 syslog %d %b\n" % (len(text), text) if kind == "relps" else text + b"\n"
    with box.connect(kind) as raw:
        if whose == "plain":
            raw.sendall(line)
            with contextlib.suppress(ConnectionError):
                until(raw, b"never")
        else:
            with contextlib.suppress(OSError), context.wrap_socket(raw, server_hostname="localhost") as sock:
                sock.sendall(line)
                if whose != "ours":
                    until(sock, b"never")
                elif kind == "relps":
                    assert until(sock, b"\n2 rsp 6 200 OK\n")
    if whose == "ours":
        assert box.wait_for(text)
    else:
        wait_for(lambda: box.input("net")["refused"] > before, "the handshake to be counted")
        assert not [one for one in box.messages() if text in (one.value or b"")]


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_many_connections_keep_the_order_of_each(box: Box, kind: str) -> None:
    context = sender_context(box.place)
    texts = [
        [
            b"<13>Oct 11 22:14:15 h crowd-%b: %d %d %b" % (kind.encode(), k, n, b"x" * (n * 7 % 900))
            for n in range(3_000)
        ]
        for k in range(4)
    ]

    def send(lines: list[bytes]) -> None:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(box.connect(kind))
            if kind == "tls":
                sock = stack.enter_context(context.wrap_socket(sock, server_hostname="localhost"))
            data = b"\n".join([*lines, b""])
            for start in range(0, len(data), 30_011):
                sock.sendall(data[start : start + 30_011])

    threads = [threading.Thread(target=send, args=(lines,)) for lines in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = [one.value or b"" for one in box.wait_for(b" crowd-%b: " % kind.encode(), 12_000)]
    for k, lines in enumerate(texts):
        assert [value for value in found if b": %d " % k in value] == lines


def test_an_idle_handshake_ends(box: Box) -> None:
    before = box.input("net")["refused"]
    with box.connect("tls") as sock:
        assert until(sock, b"never") == b""
    wait_for(lambda: box.input("net")["refused"] > before, "it to be counted")


def test_hostile_senders_do_not_stop_the_others(box: Box) -> None:
    """Too many connections, rubbish, half a message, answers that are not read; another sender's lines arrive."""
    with contextlib.ExitStack() as stack:
        good = stack.enter_context(box.connect())
        good.sendall(b"<13>amid first\n")
        box.wait_for(b"amid first")
        for data in (
            b"\x16\x03\x01\x02",
            b"GET / HTTP/1.1\r\n\r\n",
            b"99999999 <13>",
            b"5 <1>ano length at all",
            b"\0" * 70_000,
        ):
            stack.enter_context(box.connect()).sendall(data)
        for data in (b"1 syslog 1 x\n", OPEN + b"x" * 100, OPEN + b"2 syslog 999999999 x", b"\xff" * 1000, b""):
            stack.enter_context(box.connect("relp")).sendall(data)
        crowd = [stack.enter_context(box.connect()) for _ in range(30)]
        wait_for(lambda: "connections_max" in box.input("net")["refusing"], "connections to be refused")
        for sock in crowd:
            sock.close()
        for number in range(1000):
            good.sendall(b"<13>amid %d\n" % number)
        box.wait_for(b"amid ", 1001)


def test_datagrams_that_the_kernel_drops_are_a_gap(box: Box) -> None:
    """The input stands still until its buffer is full; what arrives and what is told lost are all that was sent."""
    before = box.input("net")
    host, port = box.address("udp")
    pid = box.pid_of("net")
    count = 60_000
    with stopped(pid), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(count):
            sock.sendto(b"<13>Oct 11 22:14:15 h flood: %d %b" % (number, b"x" * 500), (host, port))
    assert wait_for(lambda: box.input("net")["gaps"] > before["gaps"], "a gap to be told")
    lost = sum(lost_in(box))
    assert 0 < lost < count
    box.wait_for(b"flood: ", count - lost)


# ---- what is answered, and what was read, is in the log


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Box]:
    """An appliance to break, with one input."""
    file = tmp_path / "appliance.toml"
    listen = ", ".join(f'"{scheme}://127.0.0.1:{free_port()}"' for scheme in ("udp", "tcp", "relp", "tls", "relps"))
    make_ours(tmp_path)
    tls = f'[tls]\ncertificate = "{tmp_path}/server.pem"\nkey = "{tmp_path}/server.key"\n'
    file.write_text(f'{tls}[inputs.net]\ntype = "syslog"\ntopic = "net"\nlisten = [{listen}]\n')
    with Server(tmp_path / "data", file) as server:
        box = Box(server, tmp_path)
        wait_for(lambda: box.input("net")["state"] == "running", "the input")
        yield box


class RelpSender:
    """Sends numbered lines, up to a window without an answer, over new connections when one breaks."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None = None) -> None:
        self._address, self._context = address, context
        self.answered: set[int] = set()
        self.stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self.stopping = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self.stopping:
            with contextlib.suppress(OSError), self._connect() as sock:
                self._converse(sock)

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(self._address, timeout=10)
        return sock if self._context is None else self._context.wrap_socket(sock, server_hostname="localhost")

    def _converse(self, sock: socket.socket) -> None:
        sock.sendall(OPEN)
        left = until(sock, b"commands=syslog\n").partition(b"commands=syslog\n")[2]
        sent: dict[int, int] = {}
        transaction, line = 1, max(self.answered, default=0)
        while not self.stopping:
            while len(sent) < 100:
                transaction, line = transaction + 1, line + 1
                text = b"<13>relp line %d" % line
                sock.sendall(b"%d syslog %d %b\n" % (transaction, len(text), text))
                sent[transaction] = line
            data = sock.recv(65536)
            if not data:
                return
            *answers, left = (left + data).split(b"\n")
            for answer in answers:
                number, command, *rest = answer.split(b" ")
                if command == b"serverclose":
                    return
                assert (command, rest) == (b"rsp", [b"6", b"200", b"OK"])
                assert int(number) == min(sent), "answers come in the order of the numbers"
                self.answered.add(sent.pop(int(number)))


@pytest.mark.parametrize("kind", ["relp", "relps"])
def test_every_answer_of_relp_means_flushed(own: Box, kind: str) -> None:
    """The input, then the whole appliance, are killed in the middle, and then stopped in order."""
    sender = RelpSender(own.address(kind), sender_context(own.place) if kind == "relps" else None)
    try:

        def more() -> None:
            wanted = len(sender.answered) + 500
            wait_for(lambda: len(sender.answered) >= wanted, "more answers")

        for _ in range(3):
            more()
            os.kill(own.pid_of("net"), signal.SIGKILL)
        more()
        LocalAppliance.kill(own.server)
        own.server.start()
        more()
        assert own.server.stop() == 0
        own.server.start()
        more()
    finally:
        sender.finish()
    values = {one.value for one in own.messages()}
    assert not [line for line in sender.answered if b"<13>relp line %d" % line not in values]


@pytest.mark.parametrize("kind", ["relp", "relps"])
def test_an_ordered_stop_answers_what_relp_has_brought(own: Box, kind: str) -> None:
    """All that is in the topic was answered, so nothing of it is sent again."""
    text = b"<13>whole"
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(own.connect(kind))
        if kind == "relps":
            sock = stack.enter_context(sender_context(own.place).wrap_socket(sock, server_hostname="localhost"))
        sock.sendall(OPEN)
        until(sock, b"commands=syslog\n")
        frames = [b"%d syslog %d %b\n" % (number, len(text), text) for number in range(2, 2_002)]
        sock.sendall(b"".join(frames) + b"2002 syslog 100 half")
        assert own.server.process is not None
        own.server.process.terminate()
        answers = until(sock, b"serverclose")
    assert own.server._wait() == 0
    own.server.start()
    assert answers.count(b" rsp 6 200 OK\n") == len(own.messages())
    assert b"serverclose" in answers


def test_an_ordered_stop_waits_for_a_slow_flush(own: Box) -> None:
    """Longer than it waits for senders that do not pause: what was flushed, and not answered, would come twice."""
    with own.connect("relp") as sock:
        sock.sendall(OPEN + b"2 syslog 9 <13>first\n")
        until(sock, b"2 rsp 6 200 OK\n")
        writer = own.server.pid_of("writer")
        own.server.kill(writer, signal.SIGSTOP)
        sock.sendall(b"".join(b"%d syslog 9 <13>whole\n" % number for number in range(3, 103)))
        assert own.server.process is not None
        own.server.process.terminate()
        due_s = time.monotonic() + DRAIN_S + 1
        wait_for(lambda: time.monotonic() > due_s, "the time that senders have to pass")
        own.server.kill(writer, signal.SIGCONT)
        answers = until(sock, b"serverclose")
    assert own.server._wait() == 0
    own.server.start()
    assert answers.count(b" rsp 6 200 OK\n") + 1 == len(own.messages()) > 1


@pytest.mark.skipif(
    RSYSLOG is None or not (MODULES / "omrelp.so").exists(), reason="no omrelp: apt-get install rsyslog rsyslog-relp"
)
def test_rsyslog_by_relp_loses_nothing_while_the_input_is_killed(own: Box) -> None:
    host, port = own.address("relp")
    source = own.place / "app.log"
    source.touch()
    (own.place / "rsyslog.conf").write_text(
        f"""global(workDirectory="{own.place}")
module(load="imfile") module(load="omrelp")
input(type="imfile" file="{source}" tag="shop:")
action(type="omrelp" target="{host}" port="{port}" windowSize="50" timeout="5"
    action.resumeRetryCount="-1" action.resumeInterval="1" action.resumeIntervalMax="1")
"""
    )
    command = [str(RSYSLOG), "-n", "-f", str(own.place / "rsyslog.conf"), "-i", str(own.place / "rsyslog.pid")]
    with (own.place / "out").open("w") as out, source.open("a") as log:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            for number in range(3):
                log.write("".join(f"kept {line}\n" for line in range(1_000 * number, 1_000 * (number + 1))))
                log.flush()
                wait_for(lambda number=number: own.input("net")["messages"] or number, "some to come")
                os.kill(own.pid_of("net"), signal.SIGKILL)
            wanted = {b"kept %d" % line for line in range(3_000)}

            def missing() -> set[bytes]:
                return wanted - {(one.value or b"").partition(b"shop: ")[2].strip() for one in own.messages()}

            wait_for(lambda: not missing(), "all lines")
        finally:
            process.terminate()
            process.wait(60)


def test_a_listener_of_tls_whose_certificate_is_gone_is_told_and_the_others_serve(own: Box) -> None:
    (own.place / "server.key").unlink()
    before = own.pid_of("net")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: own.pid_of("net") != before, "another process")
    with own.connect() as sock:
        sock.sendall(b"<13>beside\n")
    own.wait_for(b"<13>beside")
    wait_for(lambda: "server.key" in own.input("net")["trouble"], "it to be told")


def test_an_ordered_stop_leaves_nothing_behind(own: Box) -> None:
    """What senders without answers have sent is in the log, also what the kernel still held for the input."""
    with own.connect() as sock:
        sock.sendall(b"<13>begun")
    own.wait_for(b"<13>begun")
    with stopped(own.pid_of("net")):
        streams = [own.connect() for _ in range(3)]
        for number, sock in enumerate(streams):
            sock.sendall(b"".join(b"<13>stream %d line %d\n" % (number, line) for line in range(2_000)) + b"<13>held")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for line in range(1_000):
                sock.sendto(b"<13>datagram line %d" % line, own.address("udp"))
        assert own.server.process is not None
        own.server.process.terminate()
    assert own.server._wait() == 0
    assert "did not stop in time" not in own.server.log()
    for sock in streams:
        sock.close()
    own.server.start()
    values = [one.value or b"" for one in own.messages()]
    wanted = [b"<13>stream %d line %d" % (number, line) for number in range(3) for line in range(2_000)]
    wanted += [b"<13>begun"] + [b"<13>held"] * 3 + [b"<13>datagram line %d" % line for line in range(1_000)]
    assert sorted(values) == sorted(wanted)
    for number in range(3):
        of_one = [value for value in values if value.startswith(b"<13>stream %d " % number)]
        assert of_one == wanted[2_000 * number : 2_000 * (number + 1)]


def test_a_sender_waits_while_the_log_does(own: Box) -> None:
    """The writer stands still: the input holds no more than its bound, TCP slows the sender down; then all arrives."""
    with own.connect() as sock:
        sock.sendall(b"<13>first\n")
    own.wait_for(b"first")
    line = b"<13>Oct 11 22:14:15 h slow: %b\n" % (b"x" * 1000)
    count = 0
    with own.connect() as sock:
        sock.settimeout(2)
        writers = wait_for(lambda: own.server.pids("writer"), "the writer to be shown")
        with contextlib.ExitStack() as stack:
            for pid in writers:
                stack.enter_context(stopped(pid))
            with contextlib.suppress(TimeoutError):
                while count < 100_000:
                    sock.sendall(line)
                    count += 1
            assert count < 20_000, "20 MB: 1 MB in the input, the rest in the kernel"
        sock.settimeout(60)
    wait_for(lambda: sum(b" slow: " in (one.value or b"") for one in own.messages()) >= count, "all of them")


def lost_in(box: Box) -> list[int]:
    """How many datagrams each line of the log tells lost."""
    lines = [line for line in box.server.log().splitlines() if " are lost: the receive buffer" in line]
    spans = [line.partition(": messages from ")[2].split(" ") for line in lines]
    return [int(words[2]) - int(words[0]) for words in spans]


def test_a_loss_is_told_once(own: Box) -> None:
    """Also when the process that told it is started again, with the same socket; another one is told within a minute.

    Here at the ordered stop.  What arrives, and what is told lost, are all that was sent.
    """
    address = own.address("udp")
    sent = 0

    def flood() -> None:
        nonlocal sent
        with stopped(own.pid_of("net")), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(30_000):
                sock.sendto(b"<13>x" + b"y" * 500, address)
        sent += 30_000

    def arrived(value: bytes) -> int:
        return sum(one.value == value for one in own.messages())

    flood()
    wait_for(lambda: own.input("net")["gaps"], "the gap to be told")  # it was noted before
    wait_for(lambda: arrived(b"<13>x" + b"y" * 500) == sent - sum(lost_in(own)), "the others")
    for number in range(2):
        pid = own.pid_of("net")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: own.pid_of("net") != pid, "another process")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"<13>after", address)
        wait_for(lambda number=number: arrived(b"<13>after") > number, "it to be read")
    assert len(lost_in(own)) == 1
    for _ in range(2):
        flood()
    assert own.server.stop() == 0
    assert len(lost_in(own)) in (2, 3)
    own.server.start()
    assert arrived(b"<13>x" + b"y" * 500) == sent - sum(lost_in(own))


def test_whoever_may_administrate_the_network_gets_the_whole_buffer() -> None:
    """However little net.core.rmem_max gives to others."""
    with bind_input("net", "udp://127.0.0.1:0") as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, DATAGRAM_BUFFER_BYTES)
        except PermissionError:
            pytest.skip("needs CAP_NET_ADMIN")
    with bind_input("net", "udp://127.0.0.1:0") as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * DATAGRAM_BUFFER_BYTES
