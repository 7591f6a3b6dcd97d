"""Starts the brokers that speak Kafka's protocol: an appliance, and beside it Apache Kafka, klite and a bare one.

Kafka's jars are in the directory that KAFKA_LIB names.  Where it has none of a version that is wanted, Maven fetches
them (``kafka/pom.xml``) into the user's cache.  klite is the program that KLITE names, or that on the PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..client.admin import Admin
from . import accounts
from .compiling import Missing, bare_broker
from .local_appliance import LocalAppliance

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

START_S_MAX = 60
STOP_S_MAX = 20
QUERY_S_MAX = 10
APPLIANCE, KAFKA, KLITE, BARE = "appliance", "Kafka 4.4", "klite", "a bare broker"
KAFKA_BEFORE = "Kafka 4.1"
"""The version that was compared with before, beside which a change of Kafka itself shows."""
KAFKA_VERSIONS = {KAFKA: "4.4.0", KAFKA_BEFORE: "4.1.0"}
"""By the name of the side.  What an appliance is compared with: the first of these that was measured."""
KAFKA_PEERS = {"kafka": KAFKA, "kafka-4.1": KAFKA_BEFORE}
"""By the name of the peer."""
KLITE_BYTES_MAX = 16 << 30
JVM = ["-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={protocol}://127.0.0.1:{port}
inter.broker.listener.name={protocol}
controller.listener.names=CONTROLLER
listener.security.protocol.map={protocol}:{protocol},CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.dirs={data}
"""
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
"""An ApiVersions request, version 0, without a client id."""


class MeasuredBroker(Protocol):
    """A broker with a listener of Kafka's protocol.  ``start_s``: from exec until that listener answers.

    It serves when it is made.  After :meth:`stop`, or :meth:`kill` (SIGKILL to all its processes), :meth:`start` starts
    it again with the same data at the same address.  :meth:`messages` counts what readers see of a topic.
    """

    name: str
    address: str
    start_s: float
    data_dir: Path

    def start(self) -> None: ...
    def messages(self, topic: str, partitions: int) -> int: ...
    def cpu_s(self) -> float: ...
    def pss_bytes(self) -> int: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True)
class Launcher:
    """Makes a broker, given its directory."""

    name: str
    make: Callable[[Path], MeasuredBroker]

    def __call__(self, directory: Path) -> MeasuredBroker:
        return self.make(directory)


class Daemon:
    """A server process and its children, with its output in ``<directory>/output.log``.

    ``ready`` is asked until it is true.  :meth:`stop` sends SIGTERM, after STOP_S_MAX SIGKILL.

    Raises:
        Missing: it ends, or does not get ready within START_S_MAX.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, ready: Callable[[], bool], environment: Mapping[str, str] = {}
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._command, self._directory, self._ready = command, directory, ready
        self._environment = os.environ | environment
        self.start()

    def start(self) -> None:
        start = time.perf_counter()
        with (self._directory / "output.log").open("w") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self._directory, env=self._environment,
            )  # fmt: skip
        while not self._ready():
            if self.process.poll() is not None or time.perf_counter() - start > START_S_MAX:
                self.stop()
                said = (self._directory / "output.log").read_text(errors="replace").strip()
                raise Missing(f"{self._command[0]} that starts; it says: {said[-400:]}")
            time.sleep(0.005)
        self.start_s = time.perf_counter() - start

    def cpu_s(self) -> float:
        return sum(accounts.cpu_s(pid) for pid in accounts.tree(self.process.pid))

    def pss_bytes(self) -> int:
        return sum(accounts.pss_bytes(pid) for pid in accounts.tree(self.process.pid))

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        accounts.kill_tree(self.process.pid)
        self.process.wait()


class OurBroker:
    """An appliance with its default configuration, without ZooKeeper unless ``settings`` say otherwise.

    With a certificate in the settings it listens with TLS.  ``ready_s``: until it prints that it serves.
    """

    name = APPLIANCE

    def __init__(self, directory: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.data_dir = directory / "data"
        directory.mkdir(parents=True, exist_ok=True)
        own_settings = dict(settings or {})
        self._tls = "tls.certificate" in own_settings
        own_settings["kafka.listen"] = f"SSL://{self.address}" if self._tls else self.address
        self.server = LocalAppliance(self.data_dir, **own_settings)
        self.start()

    def start(self) -> None:
        start = time.perf_counter()
        self.server.launch()
        serves = listens if self._tls else answers
        while not serves(self.address) and time.perf_counter() - start < START_S_MAX:
            time.sleep(0.002)
        self.start_s = time.perf_counter() - start
        self.server.wait_serving()
        self.ready_s = time.perf_counter() - start

    def messages(self, topic: str, partitions: int) -> int:
        with Admin(self.server.native) as admin:
            parts = admin.topics([topic])[0]["partitions"]
        return sum(partition["messages"] for partition in parts)

    def cpu_s(self) -> float:
        assert self.server.process is not None
        return sum(accounts.cpu_s(pid) for pid in accounts.tree(self.server.process.pid))

    def pss_bytes(self) -> int:
        return self.server.pss_bytes()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()


class KafkaBroker(Daemon):
    """One KRaft broker with Kafka's default settings; ``tls``: more lines of its properties, then it listens with TLS.

    ``name``: one of :data:`KAFKA_VERSIONS`.  ``flushed``: it flushes each batch before it answers, also those of its
    own topics; by default it leaves that to the kernel.

    Raises:
        Missing: there is no Java, or there are no jars and no Maven.
    """

    def __init__(self, directory: Path, tls: str = "", name: str = KAFKA, flushed: bool = False) -> None:
        self.name, self.jars = f"{name}, flushed" if flushed else name, kafka_jars(name)
        port, controller = free_port(), free_port()
        self.address, self.data_dir = f"127.0.0.1:{port}", directory / "data"
        directory.mkdir(parents=True, exist_ok=True)
        properties = directory / "server.properties"
        protocol = "SSL" if tls else "PLAINTEXT"
        content = PROPERTIES.format(port=port, controller=controller, data=self.data_dir, protocol=protocol)
        properties.write_text(content + tls + ("log.flush.interval.messages=1\n" if flushed else ""))
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run(self.java(*tool), check=True, stdout=subprocess.DEVNULL)
        command = ["java", *JVM, QUIET, "-cp", f"{self.jars}/*", "kafka.Kafka", str(properties)]
        super().__init__(command, directory, lambda: listens(self.address) if tls else answers(self.address))

    def messages(self, topic: str, partitions: int) -> int:
        return ends_of(admin_of(self.address), topic, partitions)

    def java(self, *arguments: str) -> list[str]:
        """A command that runs a class of Kafka's jars."""
        return ["java", QUIET, "-cp", f"{self.jars}/*", *arguments]


class Klite(Daemon):
    """One klite with its default settings, and room for what is measured.  It flushes what it acknowledges.

    Raises:
        Missing: there is no such program.
    """

    name = KLITE

    def __init__(self, directory: Path) -> None:
        program = shutil.which(os.environ.get("KLITE", "klite"))
        if program is None:
            how = "`go build -o /usr/local/bin/klite ./cmd/klite` in a checkout of github.com/klaudworks/klite"
            raise Missing(f"the program: {how}; or set KLITE to it")
        self.address, self.data_dir = f"127.0.0.1:{free_port()}", directory / "data"
        command = [program, "--listen", self.address, "--data-dir", str(self.data_dir), "--log-level", "error"]
        command += ["--wal-max-disk-size", str(KLITE_BYTES_MAX)]
        super().__init__(command, directory, lambda: answers(self.address))

    def messages(self, topic: str, partitions: int) -> int:
        return ends_of(admin_of(self.address), topic, partitions)


class BareBroker(Daemon):
    """A broker in C that only writes, flushes and sends: the client's limit, and the kernel's.

    Raises:
        Missing: there is no compiler.
    """

    name = BARE

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.address, self.data_dir = f"127.0.0.1:{port}", directory / "data"
        self.data_dir.mkdir(parents=True)
        super().__init__([str(bare_broker()), str(port), str(self.data_dir)], directory, lambda: answers(self.address))

    def messages(self, topic: str, partitions: int) -> int:
        return ends_of(admin_of(self.address), topic, partitions)


def admin_of(address: str, settings: Mapping[str, str] | None = None) -> AdminClient:
    """An administrator's client of librdkafka.  Raises ImportError where confluent-kafka is not installed."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "log_level": "0", **(settings or {})})


def ends_of(admin: AdminClient, topic: str, partitions: int) -> int:
    """The sum of the partitions' ends, which are numbers of messages, asked within QUERY_S_MAX.

    Raises:
        confluent_kafka.KafkaException: a partition has no leader, or nobody answered in time.
    """
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(partitions)}
    ends = admin.list_offsets(asked, request_timeout=QUERY_S_MAX)
    return sum(end.result(2 * QUERY_S_MAX).offset for end in ends.values())


def kafka_jars(name: str = KAFKA) -> Path:
    """The directory of the jars of one of :data:`KAFKA_VERSIONS`; Maven fetches them if need be.

    Raises:
        Missing: there is no Java, or there are no jars and no Maven.
    """
    need_java()
    version = KAFKA_VERSIONS[name]
    kafka_lib = os.environ.get("KAFKA_LIB", "")
    if kafka_lib and (Path(kafka_lib) / f"kafka_2.13-{version}.jar").exists():
        return Path(kafka_lib)
    jars = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "appliance" / f"kafka-{version}"
    if not (jars / f"kafka_2.13-{version}.jar").exists():
        jars_wanted, instead = f"the jars of Kafka {version}", "set KAFKA_LIB to a directory that has them"
        if shutil.which("mvn") is None:
            raise Missing(f"{jars_wanted}: apt-get install maven, or {instead}")
        pom = Path(__file__).parent / "kafka" / "pom.xml"
        command = ["mvn", "-q", "-f", str(pom), f"-Dkafka.version={version}"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
            raise Missing(f"{jars_wanted}: Maven could not fetch them; {instead}")
    return jars


def need_java() -> None:
    """
    Raises:
        Missing: there is no Java.
    """
    if shutil.which("java") is None:
        raise Missing("Java: apt-get install default-jre-headless")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def listens(address: str) -> bool:
    """Whether connections to ``address`` are accepted."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 0.2).close()
    except OSError:
        return False
    return True


def answers(address: str) -> bool:
    """Whether a broker at ``address`` answers an ApiVersions request of the Kafka protocol."""
    return greets(address, API_VERSIONS)


def greets(address: str, request: bytes = b"") -> bool:
    """Whether a server at ``address`` accepts a connection and sends something, after ``request`` if there is one."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 0.2) as sock:
            sock.settimeout(2)
            if request:
                sock.sendall(request)
            return bool(sock.recv(1))
    except OSError:
        return False
