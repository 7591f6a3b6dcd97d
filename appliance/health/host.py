"""Looks at what only the machine of an appliance knows: its disk, /dev/shm, its processes, its clock.

:func:`look_at_host` takes some microseconds for each process, and reads the directories of the logs only while the disk
has little room.  A :class:`Host` goes through JSON, so an appliance tells others what its machine says (``status``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from ..libc import clock_is_synchronised
from ..machine_limits import SHARED_MEMORY
from ..names import is_topic
from .undelivered import Undelivered, read_undelivered

LOGS_MAX: Final = 20
"""Logs that a look names, the largest of all."""
LITTLE_SHARE: Final = 0.05
"""With less than this share of a disk free, the logs on it are measured."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class DiskRoom(msgspec.Struct, frozen=True):
    """A file system, in bytes and in files; ``size`` 0: it could not be looked at, ``files`` 0: it has no limit.

    ``mount``: where it begins, if something is wrong with it.  ``read_only``: nothing can be written, as after an error
    of the disk.
    """

    size: int = 0
    free: int = 0
    files: int = 0
    files_free: int = 0
    mount: str = "/"
    read_only: bool = False


class HostProcess(msgspec.Struct, frozen=True):
    """What the kernel knows of a process.

    ``state``: as in /proc/PID/stat.  ``cpu_s``: the processor time that its threads have used.  ``delayed_s``: how long
    they have waited for a processor, because others had it.
    """

    state: str
    cpu_s: float
    delayed_s: float = 0.0


class LogUse(msgspec.Struct, frozen=True):
    """A log on the disk.  ``segments``: base offset and size in bytes of each file, the oldest first."""

    topic: str
    partition: int
    segments: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.segments)


class Host(msgspec.Struct, frozen=True):
    """One look.

    ``logs``: the largest ones while the disk has little room, and ``logs_size`` the bytes of all; else empty and 0.
    ``synchronised``: whether something keeps the clock right; None: not known.  ``undelivered``: by name, receivers of
    alerts that cannot be told.
    """

    disk: DiskRoom = DiskRoom()
    shm: DiskRoom = DiskRoom()
    processes: dict[int, HostProcess] = {}
    logs: tuple[LogUse, ...] = ()
    logs_size: int = 0
    synchronised: bool | None = None
    undelivered: dict[str, Undelivered] = {}

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return fields


def from_json(look_json: Any) -> Host:
    """The look that :meth:`Host.as_json` has made an object of; an empty one of an older appliance, which has none."""
    return msgspec.convert(look_json or {}, Host, str_keys=True, strict=False)


def look_at_host(data_dir: Path, state: Mapping[str, Any]) -> Host:
    """Look now; ``state``: what the supervisor has written, whose /dev/shm may be another one than ours."""
    disk, limits = _room(data_dir), state["disk"]
    little = max(limits.get("free_bytes_warn", 0), limits.get("free_bytes_min", 0), LITTLE_SHARE * disk.size)
    is_little = disk.free < little or (disk.files and not disk.files_free)
    logs = measure_logs(data_dir) if is_little else []
    if is_little or disk.read_only:
        disk = msgspec.structs.replace(disk, mount=str(_mount_of(data_dir)))
    pids = [row["pid"] for row in state["processes"] if row.get("pid")]
    stats = {pid: stat for pid in pids if (stat := _stat(pid)) is not None}
    return Host(
        disk,
        _room(Path(f"/proc/{state['pid']}/root{SHARED_MEMORY}")),
        stats,
        tuple(logs[:LOGS_MAX]),
        sum(log.size for log in logs),
        clock_is_synchronised(),
        read_undelivered(data_dir) if any(row["role"] == "alerts" for row in state["processes"]) else {},
    )


def measure_logs(data_dir: Path) -> list[LogUse]:
    """The logs in a data directory, the largest first: from names and sizes of files, whether it is served or not."""
    uses = []
    with suppress(OSError), os.scandir(data_dir) as entries:
        for entry in entries:
            topic, _, number = entry.name.rpartition("-")
            if is_topic(topic) and number.isdecimal() and entry.is_dir(follow_symlinks=False):
                uses.append(LogUse(topic, int(number), _segments(entry.path)))
    return sorted(uses, key=lambda log: (-log.size, log.topic, log.partition))


def _segments(path: str) -> tuple[tuple[int, int], ...]:
    rows = []
    with suppress(OSError), os.scandir(path) as files:
        for file in files:
            base, _, suffix = file.name.partition(".")
            if suffix == "log" and base.isdecimal():
                rows.append((int(base), file.stat(follow_symlinks=False).st_size))
    return tuple(sorted(rows))


def _room(path: Path) -> DiskRoom:
    try:
        space = os.statvfs(path)
    except OSError:
        return DiskRoom()
    sizes = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    return DiskRoom(*sizes, space.f_files, space.f_favail, read_only=bool(space.f_flag & os.ST_RDONLY))


def _mount_of(path: Path) -> Path:
    """The directory at which the file system of a path begins, or what is mounted of it there."""
    at, bound = path.absolute(), set()
    with suppress(OSError):  # is_mount() does not see a part of a file system that is mounted in that one
        bound = {_unescaped(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return next((parent for parent in (at, *at.parents) if str(parent) in bound or parent.is_mount()), at)


def _unescaped(mount_point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), mount_point)


def _stat(pid: int) -> HostProcess | None:
    """None: there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return HostProcess(fields[0], (int(fields[11]) + int(fields[12])) / _TICKS, _delayed_s(pid))


def _delayed_s(pid: int) -> float:
    """From /proc/PID/task/TID/schedstat; 0 where the kernel does not count it."""
    total_ns = 0
    with suppress(OSError, ValueError, IndexError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in tasks:
            total_ns += int(Path(task.path, "schedstat").read_text().split()[1])
    return total_ns / 1e9
