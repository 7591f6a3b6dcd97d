"""Limits of the machine that an appliance can reach: which one an error is about, its value, and what to do::

    name           what is limited                                       value            in use
    descriptors    of one process (RLIMIT_NOFILE)                        descriptors      descriptors
    processes      of the service (its control group) or the user        tasks            tasks
    memory         of the service (its control group)                    bytes            bytes
    open files     of the whole machine (fs.file-max)                    files            files
    disk           of the file system that has the data                  bytes            bytes
    /dev/shm       shared memory: segment tables and arenas              bytes            bytes
    network.connections_max, of one network worker                       connections      connections

A value that cannot be found out is None.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from .errors import DiskFull

DESCRIPTORS: Final = "descriptors"
PROCESSES: Final = "processes"
MEMORY: Final = "memory"
OPEN_FILES: Final = "open files"
DISK: Final = "disk"
DISK_WARN: Final = "disk.free_bytes_warn"
SHARED_MEMORY: Final = "/dev/shm"
CONNECTIONS_MAX: Final = "network.connections_max"
PER_ADDRESS_MAX: Final = "network.connections_per_address_max"
PER_USER_MAX: Final = "network.connections_per_user_max"

BY_ERRNO: Final = {
    errno.EAGAIN: PROCESSES,
    errno.EMFILE: DESCRIPTORS,
    errno.ENFILE: OPEN_FILES,
    errno.ENOMEM: MEMORY,
    errno.ENOSPC: DISK,
    errno.EDQUOT: DISK,
}
ADVICE: Final = {
    DESCRIPTORS: "raise LimitNOFILE= of the service, or `ulimit -Hn`",
    PROCESSES: "raise TasksMax= of the service, or `ulimit -u`",
    MEMORY: "raise MemoryMax= of the service, or give the machine more",
    OPEN_FILES: "raise fs.file-max",
    DISK: "make room, or keep less: `appliance topics alter NAME --setting retention.bytes=10GiB`",
    DISK_WARN: "make room in time, or keep less: `appliance topics alter NAME --setting retention.bytes=10GiB`",
    SHARED_MEMORY: "enlarge it, or lower network.arena_bytes or network.workers, or delete topics",
    CONNECTIONS_MAX: "raise it, or network.workers",
}


class Measure(NamedTuple):
    """What a limit allows, and how much of that is in use."""

    value: int | None
    in_use: int | None


def limit_of(error: BaseException | None) -> str:
    """The limit that an error, or what it comes from, is about; "" for none of these."""
    while error is not None:
        if isinstance(error, MemoryError):
            return MEMORY
        if isinstance(error, DiskFull):
            return DISK
        if isinstance(error, OSError):
            name = BY_ERRNO.get(error.errno or 0, "")
            if name == DISK:  # the kernel uses these errors for other limits, too: of a disk only where a file is named
                where = str(error.filename or "")
                return SHARED_MEMORY if where.startswith(SHARED_MEMORY) else DISK if where else ""
            return name
        error = error.__cause__
    return ""


def measure(limit: str, data_dir: Path) -> Measure:
    """What a limit is at the moment, for this process where it is one of each process."""
    look = _LOOKS.get(limit)
    try:
        if look is not None:
            return look(data_dir)
    except OSError:  # what is lacking may be what it takes to look
        pass
    return Measure(None, None)


def _descriptors() -> Measure:
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return Measure(resource.getrlimit(resource.RLIMIT_NOFILE)[0], used)


def _processes() -> Measure:
    """The control group's, where it limits them; else the user's, whose use is not known."""
    most = _group("pids.max")
    if most is not None:
        return Measure(most, _group("pids.current"))
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return Measure(None if limit == resource.RLIM_INFINITY else limit, None)


def _memory() -> Measure:
    return Measure(_group("memory.max"), _group("memory.current"))


def _open_files() -> Measure:
    allocated, _, most = Path("/proc/sys/fs/file-nr").read_text().split()
    return Measure(int(most), int(allocated))


def _bytes_of(path: Path) -> Measure:
    """Size and use of a file system."""
    found = os.statvfs(path)
    total = found.f_blocks * found.f_frsize
    return Measure(total, total - found.f_bavail * found.f_frsize)


_LOOKS: Final[dict[str, Callable[[Path], Measure]]] = {
    DESCRIPTORS: lambda _: _descriptors(),
    PROCESSES: lambda _: _processes(),
    MEMORY: lambda _: _memory(),
    OPEN_FILES: lambda _: _open_files(),
    DISK: _bytes_of,
    SHARED_MEMORY: lambda _: _bytes_of(Path(SHARED_MEMORY)),
}
"""What measures each limit of the machine; it is given the data directory."""


def _group(name: str) -> int | None:
    """A number of this process's control group; None where it has none, or no limit."""
    try:
        path = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2]
        text = Path(f"/sys/fs/cgroup{path}/{name}").read_text().strip()
    except (OSError, IndexError):
        return None
    return int(text) if text.isdecimal() else None
