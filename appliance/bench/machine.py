"""Describes the machine that is measured, and what runs on it."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import subprocess
from pathlib import Path

import msgspec

from .. import __version__

PACKAGES = ("confluent-kafka", "kafka-python", "pika", "stomp.py", "nats-py", "redis", "pyspark")
MEMORY_BYTES = 3 << 30


class Machine(msgspec.Struct, frozen=True):
    """What figures depend on.  ``load`` is the load average of the last minute before the run."""

    processors: int
    processor: str
    memory_bytes: int
    kernel: str
    python: str
    load: float
    file_system: str
    congestion_control: str = ""


def describe(directory: Path) -> Machine:
    """This machine, with the file system of ``directory``."""
    return Machine(
        processors=os.cpu_count() or 1,
        processor=_field("/proc/cpuinfo", "model name") or platform.machine(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        load=round(os.getloadavg()[0], 1),
        file_system=file_system(directory),
        congestion_control=Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
    )


def use_memory() -> None:
    """Write to memory, and free it: MEMORY_BYTES, or an eighth of the machine's."""
    size = min(MEMORY_BYTES, os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 8)
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def file_system(directory: Path) -> str:
    """The type of the file system that ``directory`` is on, from its longest mount point."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, name, *_ = line.split()
        if directory.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind


def versions() -> dict[str, str]:
    """Versions of the appliance and of the clients that are installed."""
    versions_by_name = {"appliance": __version__}
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    ) if (Path(__file__).parents[2] / ".git").exists() else None  # fmt: skip
    if commit is not None and commit.returncode == 0:
        versions_by_name["commit"] = commit.stdout.strip()
    for package in PACKAGES:
        try:
            versions_by_name[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions_by_name
