"""Runs the local ensemble: one ZooKeeper node, or three, as child processes of the supervisor.

:class:`Ensemble` finds Java and the jars, chooses ports, writes the nodes' files and starts each node.  It has no
thread and no loop, and does not load kazoo.  The supervisor calls it, and reaps the processes as it reaps all its
children::

    ensemble = Ensemble(config.zookeeper, data_dir)
    ensemble.prepare()  # ConfigFault: what is missing, and the remedy
    for number in range(ensemble.count):
        process = ensemble.start_node(number)
        ensemble.note_pid(number)

Files, below ``<data>/zookeeper/``::

    ensemble.json               {"ports": [[client, quorum, election], ...]}: chosen at first start, then kept
    secret, quorum-secret       passwords of clients and of the nodes among each other: made at first start, then kept
    node-<n>/zoo.cfg            derived from ensemble.json (``node_files``); written when it differs
    node-<n>/jaas.conf          both passwords, for Java's login modules (``login``)
    node-<n>/log4j2.properties  for logging; log4j.properties and logback.xml beside it are for the other backends
    node-<n>/zookeeper.log      ZooKeeper's log, and LOG_FILES_MAX older ones, each up to LOG_BYTES_MAX
    node-<n>/console.log        the output of the JVM, started anew when larger than LOG_BYTES_MAX
    node-<n>/pid                of the last start, to find a node that outlived its supervisor
    node-<n>/data/              ZooKeeper's own: myid, snapshots, transaction logs (every write is fsynced)

Nobody but their owner can read these files and directories, whatever the umask: ZooKeeper runs with one of 077.  A
directory of an earlier release, whose nodes (in ZooKeeper) are open to all, is used as it is: no client gets a session
any more without the password, so open nodes are open to us only.

Ports are on the loopback interface only.  They lie below the range of outgoing connections, so that no program takes
one by accident while the appliance is stopped.  If one is taken anyway, all are chosen again.  Dynamic reconfiguration
is off, so ZooKeeper never rewrites ``zoo.cfg``.

Growing from one node to three first copies the data of the one node.  Otherwise the two empty nodes would be a
majority, and the first would drop its data to follow them.  Shrinking is refused: a single node may lack data that the
other two have agreed on.
"""

from __future__ import annotations

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

from ..config import HEAP_MB_MIN, ZooKeeperSection
from ..die_with import DieWith
from ..durable_files import DIRECTORY_MODE, FILE_MODE
from ..errors import ConfigFault, OutOfResources
from ..security.secret_files import keep_secret
from .java import JVM_FLAGS, MAIN_CLASS, find_classpath, find_java
from .login import ZooKeeperLogin, jaas, login_of
from .node_files import (
    LOG_BYTES_MAX,
    LOG_FILES_MAX,
    LOGGING_FILES,
    LOOPBACK,
    Ports,
    write,
    zoo_cfg,
)

log = logging.getLogger(__name__)

PORT_MIN: Final = 20_000
PORTS_TRIED_MAX: Final = 1_000
LEFTOVER_MS_MAX: Final = 2_000  # how long to wait for a killed leftover node to be gone


class Command(NamedTuple):
    """How to start one node."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    console: Path  # standard output and error go here


class Ensemble:
    """See the module's docstring.  ``prepare`` before anything else."""

    def __init__(
        self,
        config: ZooKeeperSection,
        data_dir: Path,
        *,
        environ: Mapping[str, str] | None = None,
        seed: int | None = None,
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
        self._data_dir = data_dir
        self._jaas = ""

    @property
    def connect(self) -> str:
        """The connect string of the ensemble for clients."""
        return ",".join(f"{LOOPBACK}:{ports.client}" for ports in self.ports)

    @property
    def login(self) -> ZooKeeperLogin:
        """How clients log in.  Makes the password at the first call.

        Raises:
            BadValue: the file with the password cannot be used.
            OSError: it cannot be written.
        """
        login = login_of(self._config, self._data_dir)
        assert login is not None
        return login

    def prepare(self) -> None:
        """Find Java and jars, end nodes that outlived their supervisor, choose ports, write the nodes' files.

        May be called again after a refusal.

        Raises:
            ConfigFault: Java or the jars are missing, or the number of nodes was lowered.
            OSError: a file cannot be written.
        """
        java = find_java(self._config.java, self._environ)
        classpath = find_classpath(self._config.classpath)
        self.directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        self.directory.chmod(DIRECTORY_MODE)
        self._jaas = jaas(self.login, keep_secret(self.directory / "quorum-secret"))
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
        write(path, json.dumps({"ports": ports}) + "\n")
        return ports

    def _free_ports(self, count: int) -> list[int]:
        """Ports that nobody listens on, outside the range of outgoing connections if possible."""
        try:
            outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        except (OSError, ValueError):
            outgoing = 32_768
        ports: list[int] = []
        for tried in range(PORTS_TRIED_MAX):
            roomy = outgoing - PORT_MIN >= 1_000 and tried < PORTS_TRIED_MAX // 2
            number = self._random.randrange(PORT_MIN, outgoing if roomy else 65_536)
            if number not in ports and _is_free(number):
                ports.append(number)
                if len(ports) == count:
                    return ports
        raise ConfigFault(f"no {count} free ports were found on {LOOPBACK} for the local ZooKeeper ensemble")

    def _seed_new_nodes(self, present: int) -> None:
        """Copy the first node's data to the new ones.  What a new one has already is kept under another name.

        It may be of an ensemble that has grown, shrunk and grown: as two of three nodes with older data it would win.
        Or ``ensemble.json`` is not the one that goes with the data: then it is the only copy.
        """
        source = self._node_directory(0) / "data" / "version-2"
        if not source.exists():
            return
        for i in range(present, self.count):
            target = self._node_directory(i) / "data" / "version-2"
            copied = target.with_name("version-2.new")
            shutil.rmtree(copied, ignore_errors=True)  # of a start that was interrupted here
            shutil.copytree(source, copied)
            if target.exists():
                kept = _free_name(target.with_name("version-2.before"))
                target.rename(kept)
                log.warning("node %d of the ensemble begins with the data of the first; %s has its own", i + 1, kept)
            copied.rename(target)

    # --- a node's files

    def _node_directory(self, i: int) -> Path:
        return self.directory / f"node-{i + 1}"

    def _prepare_node(self, i: int, java: Path, classpath: str) -> Command:
        node = self._node_directory(i)
        for directory in (node, node / "data", node / "tmp"):
            directory.mkdir(DIRECTORY_MODE, exist_ok=True)
        write(node / "data" / "myid", f"{i + 1}\n")
        write(node / "zoo.cfg", zoo_cfg(i, node / "data", self.ports, self._config.session_timeout_ms))
        write(node / "jaas.conf", self._jaas)
        for name, text in LOGGING_FILES.items():
            write(node / name, text.format(file=node / "zookeeper.log", bytes=LOG_BYTES_MAX, files=LOG_FILES_MAX))
        options = [f"-Xmx{self._config.heap_mb or HEAP_MB_MIN}m", *JVM_FLAGS]
        options += [f"-XX:ErrorFile={node}/crash.log", f"-Djava.io.tmpdir={node}/tmp"]
        options += [f"-Djava.security.auth.login.config={node}/jaas.conf", "-cp", f"{node}:{classpath}"]
        # In a file, because who looks at processes would see nothing but a class path of two kilobytes.
        write(node / "java.options", "".join(f"{_quoted(option)}\n" for option in options))
        argv = [str(java), f"@{node}/java.options", MAIN_CLASS, str(node / "zoo.cfg")]
        # Options meant for other Java programs would change this one's heap and agents.
        dropped = {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"}
        env = {key: value for key, value in self._environ.items() if key not in dropped}
        env["MALLOC_ARENA_MAX"] = "2"
        return Command(argv, env, node, node / "console.log")

    # --- processes

    def start_node(self, i: int) -> subprocess.Popen[bytes]:
        """Start a node.  The kernel kills it when the calling thread ends.  The caller reaps it.

        Raises:
            OSError, OutOfResources: the process cannot be started.
        """
        command = self.commands[i]
        console_mode = os.O_TRUNC if _size(command.console) > LOG_BYTES_MAX else os.O_APPEND
        console = os.open(command.console, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | console_mode, FILE_MODE)
        try:
            process = subprocess.Popen(
                command.argv,
                env=command.env,
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # Ctrl-C is for the supervisor, which stops its nodes in order
                preexec_fn=DieWith(os.getpid()),
            )
        except subprocess.SubprocessError as error:
            raise OutOfResources(f"{command.argv[0]}: {error}") from error
        finally:
            os.close(console)
        self.processes[i] = process
        return process

    def note_pid(self, i: int) -> None:
        """Store the node's pid, so that the next start finds a node that outlived its supervisor.

        Raises:
            OSError: the file cannot be written.  The node runs all the same.
        """
        write(self.commands[i].cwd / "pid", f"{self.processes[i].pid}\n")

    def warn_of_taken_ports(self, i: int) -> None:
        """Log an error if other programs listen on the ports of a node that has ended."""
        taken = [port for port in self.ports[i] if not _is_free(port)]
        if taken:
            log.error("ZooKeeper node %d: others listen on %s; restart the appliance to choose again", i + 1, taken)

    def signal_nodes(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to all running nodes.  After SIGKILL, too, everything that they acknowledged is on the disk."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def stop(self, timeout_ms: int = 5_000) -> None:
        """End all nodes with SIGTERM and wait for them; after ``timeout_ms`` kill those that still run."""
        self.signal_nodes(signal.SIGTERM)
        deadline_ms = _now_ms() + timeout_ms
        for process in self.processes.values():
            try:
                process.wait(max(0, deadline_ms - _now_ms()) / 1000)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _end_leftovers(self) -> None:
        """Kill nodes that still run on our data: two processes on one transaction log would ruin it.

        The kernel kills the nodes when their supervisor ends, so at most this finds nodes that are just ending.
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


def _quoted(option: str) -> str:
    """An option as the files for arguments of java(1) have it."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def probe(port: int, timeout_ms: int = 200) -> str | None:
    """The mode of the node on this port: ``standalone``, ``leader`` or ``follower``; None when it does not serve.

    Blocks for up to ``timeout_ms``: for status and tests, not for an event loop.
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


def _free_name(path: Path) -> Path:
    """This path, or the first with a number behind it that does not exist."""
    name, number = path, 2
    while name.exists():
        name, number = path.with_name(f"{path.name}-{number}"), number + 1
    return name


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        # As ZooKeeper does: connections in TIME_WAIT do not block the port, listeners do.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((LOOPBACK, port))
            candidate.listen(1)
        except OSError:
            return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _wait_gone(pidfd: int, timeout_ms: int) -> None:
    """Wait until a process has ended with all its threads, and has closed its files and ports."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll(timeout_ms)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
