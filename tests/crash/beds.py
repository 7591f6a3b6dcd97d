"""Where faults happen: an appliance of a certain kind under load, and what scenarios need to reach into it.

A *bed* makes a :class:`Run`.  Beds that need what this machine does not give skip, and say what is missing.

==========  ==========================================================================================================
box         one appliance with a ZooKeeper node, groups on both listeners
ensemble    the same with three nodes
small       the same with one, whose disk and /dev/shm are small file systems of its own (``unshare -m``) and whose wall
            clock can be moved (``skewed/sitecustomize.py``)
network     an appliance without ZooKeeper behind a proxy that cuts connections in the middle of frames
inputs      one with a ZooKeeper node on a small disk, and inputs through which all comes: files, syslog, RELP and HTTP
pair        two appliances on one ZooKeeper node, which the first one reaches through a proxy
==========  ==========================================================================================================
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from appliance.wire import native as native_wire
from appliance.wire.sockets import LOCAL_SOCKET

from ..clients.proxy import CuttingProxy
from ..support.native_peer import Peer
from ..support.ready import free_port
from ..support.server import Server, wait_for
from ..support.zookeeper_fixture import ACCESS, fresh_connect, running
from .consumers import HEARTBEAT_MS
from .consumers import SESSION_MS as MEMBER_SESSION_MS
from .input_load import InputLoad, settings_of
from .workload import Workload

HERE = Path(__file__).parent
SESSION_MS: Final = 2_000
"""Of the appliances with ZooKeeper."""
SESSIONS: Final = {
    "zookeeper.session_timeout_ms": SESSION_MS,
    "groups.consumer_session_ms": MEMBER_SESSION_MS,
    "groups.consumer_heartbeat_ms": HEARTBEAT_MS,
}
"""Theirs, and those of members that do not say it themselves."""
LIVENESS: Final = {"liveness.timeout_ms": 3_000}
"""What hangs for so long is replaced."""
DISK_BYTES, SHM_BYTES = 192 << 20, 96 << 20
CUT_BYTES_MEAN: Final = 150_000
PARTITIONS_MAX: Final = 60
"""What hostile clients may make of a box."""
START_S_MAX: Final = 60


class Missing(Exception):
    """What a bed or a fault needs is not given on this machine."""


class Run:
    """An appliance (``server``) under ``load``; ``injected`` counts what was done to it."""

    def __init__(self, server: Server, load: Workload, seed: int = 0) -> None:
        self.server, self.load = server, load
        self.random = random.Random(seed)
        self.injected = 0
        self.named_s: float | None = None
        """The longest time from a cause that lasts until `doctor` had named it; None: no cause lasted."""
        self.stack = ExitStack()
        self.proxies: list[CuttingProxy] = []
        self.kept: dict[str, Any] = {}
        """What faults keep from one strike to the next."""

    def pid(self, role: str) -> int:
        """Any process of that role, or the nodes' of that number: ``zookeeper 2``."""
        return self.random.choice(wait_for(lambda: self.server.pids(role), f"a {role}"))

    def inside(self, path: str | Path) -> Path:
        """A path as the appliance sees it."""
        return self.server.root / Path(path).relative_to("/")

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        os.kill(pid, number)
        self.injected += 1

    def restart(self, stop: Callable[[Server], Any]) -> None:
        """End the appliance by ``stop``, and start it again at its addresses."""
        old = self.server
        settings = old.settings | {"native.listen": old.native, "kafka.listen": old.kafka}
        stop(old)
        self.injected += 1
        self.server = Server(old.data_dir, within=old.within, environment=old.environment, **settings).start()
        self.stack.push(self.server)


def hold(seconds: float) -> None:
    """A fault lasts so long."""
    if seconds > 0:
        until_s = time.monotonic() + seconds
        wait_for(lambda: time.monotonic() >= until_s, "the clock goes on", seconds + 5)


@contextmanager
def traced(pid: int, *arguments: str) -> Iterator[None]:
    """``strace`` on a process and its threads, which injects faults."""
    if shutil.which("strace") is None:
        raise Missing("strace")
    command = ["strace", "-f", "-o", "/dev/null", "-p", str(pid), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        try:
            if "attached" not in (line := tracer.stderr.readline()):
                raise Missing(f"strace that may attach: {line.strip()}")
            yield
        finally:
            tracer.kill()  # a tracer that lives on keeps a killed thread a zombie


def own_file_systems(directory: Path) -> list[str]:
    """The command in front of an appliance that gives it a small disk at ``directory`` and a small /dev/shm."""
    unshare = ["unshare", "-m"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        raise Missing("unshare -m (as root)")
    script = (
        f'mkdir -p "$0" && mount -t tmpfs -o size={DISK_BYTES} disk "$0" && '
        f'mount -t tmpfs -o size={SHM_BYTES} shm /dev/shm && exec "$@"'
    )
    return [*unshare, "sh", "-c", script, str(directory)]


@contextmanager
def _run(server: Server, directory: Path, *, proxies: Iterable[CuttingProxy] = (), **options: Any) -> Iterator[Run]:
    with ExitStack() as stack:
        stack.enter_context(server)
        sock = server.data_dir / LOCAL_SOCKET
        if not sock.exists():  # it is in a file system of the appliance's own, which clients do not see
            sock.symlink_to(server.root / sock.relative_to("/"))
        native, kafka = options.pop("native", server.native), options.pop("kafka", server.kafka)
        if server.settings["zookeeper.nodes"]:
            server.wait_for_zookeeper()
        kind = options.pop("load", Workload)
        load = kind(directory / "load", native, kafka, control=server.native, **options)
        stack.enter_context(load)
        run = Run(server, load)
        load.settle = lambda: run.restart(Server.stop)
        run.proxies += proxies
        stack.enter_context(run.stack)
        load.wait_progress()
        yield run


@contextmanager
def box(directory: Path, nodes: int = 1, **settings: Any) -> Iterator[Run]:
    about = {"zookeeper.nodes": nodes} | SESSIONS
    topics = {"topics.auto_create": "false", "topics.partitions_max": PARTITIONS_MAX}
    with _run(Server(directory / "data", **LIVENESS | about | topics | settings), directory, groups=True) as run:
        yield run


@contextmanager
def ensemble(directory: Path) -> Iterator[Run]:
    with box(directory, 3) as run:
        yield run


@contextmanager
def small(directory: Path) -> Iterator[Run]:
    """Retention has nothing to do with it: it would make room on the disk by taking what is checked."""
    about = {"zookeeper.nodes": 1} | SESSIONS
    settings = LIVENESS | {"disk.free_bytes_min": 0, "disk.check_ms": 1_000} | about
    clock = directory / "clock"
    clock.write_bytes(bytes(8))
    environment = {"PYTHONPATH": str(HERE / "skewed"), "SKEW_FILE": str(clock)}
    within = own_file_systems(directory / "data")
    server = Server(directory / "data", within=within, environment=environment, **settings)
    with _run(server, directory, groups=True) as run:
        yield run


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A small file system, which outlives the processes that write to it."""
    directory.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "disk", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        raise Missing("mount (as root)")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def inputs(directory: Path) -> Iterator[Run]:
    files, ports = directory / "logs", [free_port() for _ in range(3)]
    files.mkdir()
    # No LIVENESS: inputs take seconds to start on a busy machine.
    settings = {"zookeeper.nodes": 1, "disk.free_bytes_min": 0, "disk.check_ms": 1_000} | SESSIONS
    with small_disk(directory / "data"):
        server = Server(directory / "data", **settings | settings_of(files, ports))
        with _run(server, directory, load=InputLoad, files=files, ports=ports) as run:
            yield run


@contextmanager
def network(directory: Path) -> Iterator[Run]:
    with CuttingProxy(CUT_BYTES_MEAN, 1) as native, CuttingProxy(CUT_BYTES_MEAN, 2) as kafka:
        proxies = (native, kafka)
        for proxy in proxies:
            proxy.calm = True
        listening = [_free_address() for _ in proxies]
        for proxy, address in zip(proxies, listening, strict=True):
            host, _, port = address.rpartition(":")
            proxy.target = host, int(port)
        settings = {
            "native.listen": listening[0], "native.advertised": native.address,
            "kafka.listen": listening[1], "kafka.advertised": kafka.address, "topics.auto_create": "false",
        }  # fmt: skip
        server = Server(directory / "data", **settings)
        options = {"native": native.address, "kafka": kafka.address, "proxies": proxies}
        with _run(server, directory, **options) as run:
            yield run


def _free_address() -> str:
    return f"127.0.0.1:{free_port()}"


@contextmanager
def pair(directory: Path) -> Iterator[Run]:
    """Clients begin at the second one, which is never cut off; what is struck is the first."""
    with ExitStack() as stack:
        connect = fresh_connect(stack.enter_context(running(directory / "zookeeper", 1)))
        proxy = stack.enter_context(CuttingProxy(CUT_BYTES_MEAN, 3))
        proxy.calm = True
        address, _, chroot = connect.partition("/")
        host, _, port = address.rpartition(":")
        proxy.target = host, int(port)
        first, second = (
            stack.enter_context(
                Server(
                    directory / f"data-{number}",
                    **{"broker.id": number, "zookeeper.connect": way} | SESSIONS | ACCESS,
                )
            )
            for number, way in ((1, f"{proxy.address}/{chroot}"), (2, connect))
        )
        wait_for(lambda: _brokers(first) == 2 == _brokers(second), "they know each other", START_S_MAX)
        load = Workload(directory / "load", second.native, second.kafka, groups=True, raw=False)
        run = Run(first, stack.enter_context(load))
        run.proxies.append(proxy)
        stack.enter_context(run.stack)
        load.wait_progress()
        yield run


def _brokers(server: Server) -> int:
    with Peer(server.native) as peer:
        header, _ = peer.call([native_wire.METADATA, 1, []])
    return len(header[2]["brokers"])


BEDS: Final = {
    "box": box, "ensemble": ensemble, "small": small, "inputs": inputs, "network": network, "pair": pair,
}  # fmt: skip
