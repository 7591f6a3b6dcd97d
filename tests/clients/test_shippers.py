"""Log shippers ship to the appliance while it is restarted, and while its disk is full: no line is lost.

They run with the files in ``shippers/``, without security, with TLS and a password, and with certificates; only the
address, the topic, the password and the paths are replaced.  syslog-ng is found by SYSLOG_NG (a directory that its
packages were unpacked into) where it is not installed: Debian's rsyslog and syslog-ng exclude each other.  fluent-bit,
Vector and Filebeat, which Debian does not have, are found by FLUENT_BIT, VECTOR and FILEBEAT (their programs).
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from ..support.certificates import make_certificates
from ..support.command_line import succeeding
from ..support.native_peer import Peer
from ..support.server import wait_for
from ..support.small_machine import SmallMachine, fill
from .adapters import confluent_events, kcat, new_topic
from .conftest import Broker
from .shipper_files import DIRECTORY, STATE_DIRS, Security, set_up

LINES = 3_000
RSYSLOG = shutil.which("rsyslogd") or "/usr/sbin/rsyslogd"
OMKAFKA = Path("/usr/lib/x86_64-linux-gnu/rsyslog/omkafka.so")
SYSLOG_NG = Path(os.environ.get("SYSLOG_NG", "/"))


@contextmanager
def running(command: list[str], work: Path, environment: dict[str, str] | None = None) -> Iterator[int]:
    """Runs a shipper, and yields its pid."""
    with (work / "shipper.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def program(name: str) -> str:
    """Named by the environment, or found on the PATH."""
    variable = name.upper().replace("-", "_")
    found = os.environ.get(variable) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: install it, or set {variable} to its program")
    return found


class Ground:
    """An appliance with one kind of security, on a small disk of its own where mounting is permitted."""

    def __init__(self, broker: Broker, security: Security, disk: Path | None, files: Path, password: str) -> None:
        self.broker = broker
        self.security = security
        self.disk = disk
        self.files = files
        self.password = password

    @property
    def address(self) -> str:
        return self.broker.address("kafka", LISTENERS[self.security][0])

    def is_full(self, topic: str) -> bool:
        with Peer(self.broker.native) as peer:
            rows = peer.admin("status")["partitions"]
        return any(row["topic"] == topic and row["state"] == "disk full" for row in rows)


LISTENERS: dict[Security, tuple[str, dict[str, str]]] = {
    "plain": ("PLAINTEXT", {}),
    "scram": ("SASL_SSL", {}),
    "mtls": ("SSL", {"tls.ca": "ca.pem", "tls.client_auth": "required"}),
}
"""The protocol of a listener, and what the appliance needs for it beside its certificate."""


@pytest.fixture(scope="module", params=LISTENERS)
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    security: Security = request.param
    directory = tmp_path_factory.mktemp(security)
    files = directory / "shipper"
    for arguments in (("ca",), ("server", "127.0.0.1"), ("client", "web-1")):
        made = make_certificates(files, *arguments)
        assert made.returncode == 0, made
    protocol, more = LISTENERS[security]
    settings = {key: str(files / value) if key == "tls.ca" else value for key, value in more.items()}
    if security != "plain":
        settings |= {"kafka.listen": f"127.0.0.1:0, {protocol}://127.0.0.1:0"}
        settings |= {"tls.certificate": str(files / "server.pem"), "tls.key": str(files / "server.key")}
    (directory / "disk").mkdir()
    machine = SmallMachine(directory / "disk", "64m", "64m")
    room = {"disk.free_bytes_min": 0, "disk.free_bytes_warn": 0, "network.workers": 1}
    broker = Broker((machine.path if machine.may else directory) / "box", room | settings)
    if machine.may:
        broker.within, broker.log_path = machine.wrapper, directory / "log"
    try:
        with broker:
            if security == "scram":
                (directory / "password").touch(0o600)
                (directory / "password").write_text("a long password\n")
                at = ("--password-file", str(directory / "password"), "--connect", broker.native)
                succeeding("users", "add", "shipper", *at)
            yield Ground(broker, security, machine.path if machine.may else None, files, "a long password")
    finally:
        machine.close()


def configured(name: str, work: Path, ground: Ground, topic: str) -> str:
    """Writes a file of ``shippers/`` with the test's address, topic and paths.  Filebeat wants mode 0600."""
    text = set_up(name, ground.security)
    for shown, used in (("HOST:9092", ground.address), ("app-logs", topic), ("/var/log/app.log", f"{work}/in.log")):
        assert shown in text, f"{name} does not have {shown}"
        text = text.replace(shown, used)
    for state_dir in STATE_DIRS:
        text = text.replace(state_dir, str(work))
    text = text.replace("PASSWORD", ground.password).replace("/etc/shipper", str(ground.files))
    left = [line for line in text.splitlines() if re.match(r"[^#]*/(var|etc)/", line)]
    assert not left, f"{name}: a path that the test does not replace"
    conf = work / name
    conf.write_text(text)
    conf.chmod(0o600)
    return str(conf)


def rsyslog(work: Path, ground: Ground, topic: str) -> tuple[list[str], dict[str, str]]:
    if not (Path(RSYSLOG).exists() and OMKAFKA.exists()):
        pytest.skip("no rsyslog with omkafka: apt-get install rsyslog rsyslog-kafka")
    return [RSYSLOG, "-n", "-f", configured("rsyslog.conf", work, ground, topic), "-i", str(work / "pid")], {}


def syslog_ng(work: Path, ground: Ground, topic: str) -> tuple[list[str], dict[str, str]]:
    binary, libraries = SYSLOG_NG / "usr/sbin/syslog-ng", SYSLOG_NG / "usr/lib/x86_64-linux-gnu"
    if not binary.exists():
        pytest.skip("no syslog-ng: install syslog-ng-core and syslog-ng-mod-rdkafka, or set SYSLOG_NG")
    modules = next((SYSLOG_NG / "usr/lib/syslog-ng").glob("*.*"))
    conf = configured("syslog-ng.conf", work, ground, topic)
    command = [str(binary), "--foreground", "--no-caps", f"--module-path={modules}", "--cfgfile", conf]
    for option, name in (("control", "ctl"), ("persist-file", "persist"), ("pidfile", "pid")):
        command.append(f"--{option}={work / name}")
    paths = f"{libraries}:{SYSLOG_NG / 'lib/x86_64-linux-gnu'}:{SYSLOG_NG / 'usr/lib/syslog-ng'}:{modules}"
    return command, {"LD_LIBRARY_PATH": paths}


def fluent_bit(work: Path, ground: Ground, topic: str) -> tuple[list[str], dict[str, str]]:
    return [program("fluent-bit"), "-c", configured("fluent-bit.conf", work, ground, topic)], {}


def vector(work: Path, ground: Ground, topic: str) -> tuple[list[str], dict[str, str]]:
    return [program("vector"), "--config", configured("vector.toml", work, ground, topic)], {}


def filebeat(work: Path, ground: Ground, topic: str) -> tuple[list[str], dict[str, str]]:
    conf = configured("filebeat.yml", work, ground, topic)
    own = ["--path.home", str(work), "--path.data", str(work / "filebeat")]
    return [program("filebeat"), "-e", "-c", conf, *own], {}


SHIPPERS = [
    pytest.param(rsyslog, id="rsyslog"),
    pytest.param(syslog_ng, id="syslog-ng"),
    pytest.param(fluent_bit, id="fluent-bit"),
    pytest.param(vector, id="vector"),
    pytest.param(filebeat, id="filebeat"),
]


class Closed:
    """Somebody who accepts connections at an address and closes them, as long as nobody serves there; counts them."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_server((host, int(port)))
        self.attempts = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Closed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # close() alone would leave the thread in accept()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                self._socket.accept()[0].close()
                self.attempts += 1


def has_read(pid: int, path: Path) -> bool:
    """Whether a process has read a file to its end."""
    size = path.stat().st_size
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if fd.readlink() == path:
                info = (fd.parent.parent / "fdinfo" / fd.name).read_text()
                if int(info.split()[1]) == size:
                    return True
    return False


@pytest.mark.parametrize("shipper", SHIPPERS)
def test_no_line_is_lost_over_a_restart_and_a_full_disk(ground: Ground, tmp_path: Path, shipper: object) -> None:
    """Goal: no line is lost, whenever it was written.

    Method: lines before, lines that the shipper reads while nobody serves, some after each of its attempts to connect,
    lines after, while the disk is full, and after that.
    """
    topic, broker = new_topic(), ground.broker
    command, environment = shipper(tmp_path, ground, topic)  # type: ignore[operator]
    lines = [f"<13>host app[{number}]: something happened, größer" for number in range(LINES)]
    parts = [lines[at : at + LINES // 10] for at in range(0, LINES, LINES // 10)]
    before, away, after, full, room = parts[:2], parts[2:4], parts[4:6], parts[6:8], parts[8:]
    with running(command, tmp_path, environment) as pid:
        write(tmp_path, before)
        assert read(broker, topic, sum(map(len, before))) >= set(itertools.chain(*before))
        address = ground.address
        assert broker.stop() == 0
        with Closed(address) as closed:
            for part in away:
                write(tmp_path, [part])
                wait_for(lambda: has_read(pid, tmp_path / "in.log"), "the shipper to read it")
                attempts = closed.attempts
                wait_for(lambda: closed.attempts > attempts, "it to try to connect")  # noqa: B023
        broker.start()
        write(tmp_path, after)
        assert read(broker, topic, 6 * LINES // 10) >= set(lines[: 6 * LINES // 10])
        if ground.disk is not None:
            fill(ground.disk / "filler")
            write(tmp_path, full)
            wait_for(lambda: ground.is_full(topic), "a line to be refused")
            (ground.disk / "filler").unlink()
        write(tmp_path, room if ground.disk is not None else full + room)
        assert read(broker, topic, LINES) >= set(lines)


def write(work: Path, parts: list[list[str]]) -> None:
    with (work / "in.log").open("a") as file:
        file.writelines(f"{line}\n" for line in itertools.chain(*parts))


def read(broker: Broker, topic: str, count: int) -> set[str]:
    """Everything from the beginning, until there are so many different lines."""
    settings = {"bootstrap.servers": broker.kafka, "group.id": "unused", "log_level": 0}
    consumer = Consumer({**settings, "topic.metadata.refresh.interval.ms": 500})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: set[str] = set()
    for message in confluent_events(consumer):
        if message.error() is None:
            found.add(message.value().decode().strip())
            if len(found) >= count:
                break
    consumer.close()
    return found


def test_kcat_produces_and_consumes_keys_headers_and_partitions(broker: Broker) -> None:
    topic = new_topic()
    lines = [f"key-{number}:value {number}" for number in range(100)]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        common = ("-b", broker.kafka, "-t", topic, "-P", "-K", ":", "-z", codec)
        kcat(*common, "-H", f"codec={codec}", stdin="\n".join(lines))
    out = kcat("-b", broker.kafka, "-t", topic, "-C", "-e", "-q", "-o", "beginning", "-f", "%h %k:%s\n")
    wanted = [f"codec={codec} {line}" for codec in ("none", "gzip", "snappy", "lz4", "zstd") for line in lines]
    assert out.splitlines() == wanted


def test_kcat_reads_as_a_group_and_from_a_time(broker: Broker) -> None:
    topic = new_topic()
    kcat("-b", broker.kafka, "-t", topic, "-P", stdin="a\nb\nc")
    group = ("-b", broker.kafka, "-G", new_topic(), "-q", "-e", "-X", "auto.offset.reset=earliest", topic)
    assert kcat(*group).split() == ["a", "b", "c"]
    assert kcat(*group) == ""
    asked = kcat("-b", broker.kafka, "-Q", "-t", f"{topic}:0:1000000000000")
    assert asked.strip() == f"{topic} [0] offset {first_offset(broker, topic)}"


def first_offset(broker: Broker, topic: str) -> int:
    out = kcat("-b", broker.kafka, "-t", topic, "-C", "-c", "1", "-q", "-o", "beginning", "-f", "%o")
    return int(out)


def test_the_last_ones_by_offset_are_fewer(broker: Broker) -> None:
    """Goal: what the page says of kcat -o -N.  Method: batches of one message each."""
    topic = new_topic()
    for number in range(12):
        kcat("-b", broker.kafka, "-t", topic, "-P", stdin=str(number))
    newest = kcat("-b", broker.kafka, "-t", topic, "-C", "-e", "-q", "-o", "-10").split()
    assert 1 <= len(newest) < 10 and newest[-1] == "11"
    asked = succeeding("tail", topic, "-n", "10", "--connect", broker.native)
    assert asked.out.split() == [str(number) for number in range(2, 12)]


def test_the_page_says_which_shippers_were_tried() -> None:
    page = (Path(__file__).parent / "README.md").read_text()
    names = {path.name for path in DIRECTORY.iterdir()}
    assert names == set(re.findall(r"\(shippers/([\w.-]+)\)", page))
    for name in names:
        (version,) = re.findall(r"Tested with ([\d.]+)\.", (DIRECTORY / name).read_text())
        (row,) = [line for line in page.splitlines() if f"(shippers/{name})" in line]
        assert f"| {version} |" in row
