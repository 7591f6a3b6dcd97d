"""Limits of the machine that an appliance can reach: which one an error is about, its value, and what to do::

    name           what is limited                                       value            in use
    descriptors    of one process (RLIMIT_NOFILE)                        descriptors      descriptors
    processes      of the service (its control group) or the user        tasks            tasks
    memory         of the service (its control group)                    bytes            bytes
    open files     of the whole machine (fs.file-max)                    files            files
    disk           of the file system that has the data                  bytes            bytes
    /dev/shm       shared memory: segment tables and arenas              bytes            bytes
    maps           of one process (vm.max_map_count)                     maps             maps
    network.connections_max, of one network worker                       connections      connections
    writer.count_max                                                     processes        processes

A value that cannot be found out is None.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from .errors import DiskFull

DESCRIPTORS: Final = "descriptors"
PROCESSES: Final = "processes"
MEMORY: Final = "memory"
OPEN_FILES: Final = "open files"
DISK: Final = "disk"
SHARED_MEMORY: Final = "/dev/shm"
MAPS: Final = "maps"
CONNECTIONS_MAX: Final = "network.connections_max"
WRITERS_MAX: Final = "writer.count_max"
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
    DESCRIPTORS: "raise LimitNOFILE= of the service; by hand `ulimit -n NUMBER` as root before the start",
    PROCESSES: "raise TasksMax= of the service; by hand `ulimit -u NUMBER` as root before the start",
    MEMORY: "raise MemoryMax= of the service, or give the machine more",
    OPEN_FILES: "raise fs.file-max",
    DISK: "`appliance doctor` names the log that makes enough room",
    SHARED_MEMORY: "enlarge it, or lower network.arena_bytes or network.workers, or delete topics",
    MAPS: "raise it: `sysctl -w vm.max_map_count=262144`",
    CONNECTIONS_MAX: "raise it, or network.workers",
    WRITERS_MAX: "raise it if there is memory for that, or write to fewer partitions at a time",
}
CACHE_SHARE: Final = 8
"""A cache of open files has at most this part of the descriptors that are granted."""
DESCRIPTORS_KEPT: Final = 128
"""Descriptors of a worker that are neither for connections nor for files, about."""
MAPS_KEPT: Final = 2_000
"""Maps that a process has beside those of partitions: code, libraries, heaps, stacks."""


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


def descriptors_granted() -> int:
    """How many descriptors this process, and each that it forks, may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_files_max(most: int) -> int:
    """How many files a cache may keep open: ``most``, or fewer where few descriptors are granted."""
    return max(2, min(most, descriptors_granted() // CACHE_SHARE))


def connections_granted() -> int:
    """About how many connections a worker has descriptors for (:mod:`appliance.processes.network.acceptor`)."""
    granted = descriptors_granted()
    return max(1, granted - min(DESCRIPTORS_KEPT, granted // 4) - granted // CACHE_SHARE)


def descriptors_of(pid: int) -> Measure:
    """What a process of this user may have, and has; unknown when it is gone, or another user's."""
    try:
        return Measure(resource.prlimit(pid, resource.RLIMIT_NOFILE)[0], _used_descriptors(pid))
    except OSError:
        return Measure(None, None)


def memory_bytes() -> int:
    """Memory that the service may use: that of its control group, of one above it, or of the machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_group_values("memory.max")])


def partitions_mappable() -> int | None:
    """How many partitions a process can map the tables of; None: not known."""
    try:
        return max(0, _maps_granted() - MAPS_KEPT)
    except OSError:
        return None


def limit_of_map(error: OSError) -> str:
    """The limit that kept a process from mapping something."""
    maps = _maps()
    near = maps.value is not None and maps.in_use is not None and maps.in_use >= maps.value - 1
    return MAPS if error.errno == errno.ENOMEM and near else limit_of(error) or MEMORY


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
    return Measure(descriptors_granted(), _used_descriptors(os.getpid()))


def _used_descriptors(pid: int) -> int:
    """The one that it takes to look is not counted."""
    with os.scandir(f"/proc/{pid}/fd") as entries:
        return sum(1 for _ in entries) - (pid == os.getpid())


def _maps() -> Measure:
    with Path("/proc/self/maps").open() as lines:
        return Measure(_maps_granted(), sum(1 for _ in lines))


def _maps_granted() -> int:
    return int(Path("/proc/sys/vm/max_map_count").read_text())


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
    file_system = os.statvfs(path)
    total = file_system.f_blocks * file_system.f_frsize
    return Measure(total, total - file_system.f_bavail * file_system.f_frsize)


_LOOKS: Final[dict[str, Callable[[Path], Measure]]] = {
    DESCRIPTORS: lambda _: _descriptors(),
    PROCESSES: lambda _: _processes(),
    MEMORY: lambda _: _memory(),
    OPEN_FILES: lambda _: _open_files(),
    DISK: _bytes_of,
    SHARED_MEMORY: lambda _: _bytes_of(Path(SHARED_MEMORY)),
    MAPS: lambda _: _maps(),
}
"""What measures each limit of the machine; it is given the data directory."""


def _group(name: str) -> int | None:
    """A number of this process's control group; None where it has none, or no limit."""
    text = next(_group_texts(name), "")
    return int(text) if text.isdecimal() else None


def _group_values(name: str) -> list[int]:
    """A number of this process's control group and of all above it, where they have one."""
    return [int(text) for text in _group_texts(name) if text.isdecimal()]


def _group_texts(name: str) -> Iterator[str]:
    """A file of this process's control group, then those of the groups above it."""
    try:
        path = PurePosixPath(Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2])
    except (OSError, IndexError):
        return
    for group in (path, *path.parents):
        try:
            yield Path(f"/sys/fs/cgroup{group}", name).read_text().strip()
        except OSError:
            yield ""
