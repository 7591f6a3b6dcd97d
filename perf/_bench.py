"""Shared by all benchmarks: starts an appliance, accounts for the CPU of its processes, prints the results.

A benchmark is a file named after its question.  ``--smoke`` runs it at a size that proves that it still works; the
canonical size is its default.  Each result line carries a hash of what arrived, so that a fast wrong answer shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAYLOAD_BYTES = 200


class Appliance:
    """Runs ``appliance start`` with the given settings, by default without ZooKeeper, on free ports.

    ``kafka_tls``: a second Kafka listener, if the settings have a certificate.  ``serving_s``: from exec until its
    Kafka listener answers; ``ready_s``: until it prints that it serves.
    """

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.data_dir = data_dir
        start = time.perf_counter()
        self.kafka, self.kafka_tls = (f"127.0.0.1:{free_port()}" for _ in range(2))
        listening = f"{self.kafka},SSL://{self.kafka_tls}" if "tls.certificate" in settings else self.kafka
        command = [sys.executable, "-m", "appliance", "start", "--data", str(data_dir)]
        given = {"native.listen": "127.0.0.1:0", "kafka.listen": listening, "zookeeper.nodes": 0} | settings
        for key, value in given.items():
            command += ["--set", f"{key}={value}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while not answers(self.kafka) and self.process.poll() is None:
            time.sleep(0.005)
        self.serving_s = time.perf_counter() - start
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 120)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("appliance: serving"):
            self.process.kill()
            sys.exit("the appliance did not start; see its messages above")
        self.ready_s = time.perf_counter() - start

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.data_dir / "state.json").read_text())
        return state

    @property
    def native(self) -> str:
        return str(self.state["listeners"]["native"])

    def pids(self, role: str = "") -> list[int]:
        return [row["pid"] for row in self.state["processes"] if role in ("", row["role"])]

    def cpu_s(self, role: str = "") -> float:
        return sum(cpu_s(pid) for pid in self.pids(role))

    def pss_bytes(self, role: str = "") -> int:
        return sum(pss_bytes(pid) for pid in self.pids(role))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Appliance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answers(address: str) -> bool:
    """Whether a broker at ``address`` answers an ApiVersions request of the Kafka protocol."""
    request = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 0.2) as sock:
            sock.sendall(request)
            return bool(sock.recv(1))
    except OSError:
        return False


def cpu_s(pid: int) -> float:
    """User and system time of a process, its threads and the children that it has reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or while it was read
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS_PER_SECOND


def tree(pid: int) -> list[int]:
    """The pids of a process and of all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        below = [int(child) for child in children.read_text().split()]
    except FileNotFoundError:
        return []
    return [pid, *(one for child in below for one in tree(child))]


def pss_bytes(pid: int) -> int:
    return smaps_bytes(pid, "Pss:")


def private_bytes(pid: int) -> int:
    return smaps_bytes(pid, "Private_Clean:") + smaps_bytes(pid, "Private_Dirty:")


def smaps_bytes(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@contextmanager
def appliance(**settings: Any) -> Iterator[Appliance]:
    """An appliance in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="perf-") as place, Appliance(Path(place) / "data", **settings) as one:
        yield one


def digest(values: Iterable[bytes]) -> str:
    """A short hash of a sequence of messages."""
    hasher = hashlib.blake2s(digest_size=6)
    for value in values:
        hasher.update(value)
    return hasher.hexdigest()


def machine() -> str:
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} x {cpu}, Linux {platform.release()}, {python}"


def headline(question: str, **parameters: Any) -> None:
    print(question)
    print("machine:   ", machine())
    print("parameters:", ", ".join(f"{name}={value}" for name, value in parameters.items()), flush=True)


def row(name: str, **figures: Any) -> None:
    print(f"  {name:<34}" + "  ".join(f"{label}={text(value)}" for label, value in figures.items()), flush=True)


def text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
