"""Takes samples of an appliance for ``doctor`` and ``top``: its status, its groups, and what the kernel knows.

A sample costs one status and, with ``groups``, one request for each group.  Rates are differences of two samples.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...addresses import parse_addresses, parse_listeners
from ...errors import ApplianceError
from ..target import cluster

ANSWER_MS: Final = 500
"""How long an appliance of this host may take to answer: the rest of a sample does not need it."""
GROUPS_MAX: Final = 100
"""Groups that a sample describes."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ESTABLISHED: Final = "01"


class Sample(NamedTuple):
    """One look at an appliance.

    ``error``: why its groups could not be asked for.  ``cpu_s`` and ``states`` (as in /proc/PID/stat) are by pid,
    ``peers`` are numbers of connections by address; all three, and ``disk`` (bytes in all, bytes free), are empty for
    an appliance of another host.
    """

    at_s: float
    status: Mapping[str, Any]
    groups: list[dict[str, Any]]
    error: ApplianceError | None
    cpu_s: dict[int, float]
    states: dict[int, str]
    peers: Counter[str]
    disk: tuple[int, int] | None


def take(directory: Path | None, connect: str | None, *, with_groups: bool = True) -> Sample:
    """A sample of the appliance of a data directory, or of that at an address.

    Raises:
        ApplianceError: there is no such directory, or nobody answers at the address.
    """
    groups: list[dict[str, Any]] = []
    error: ApplianceError | None = None
    if directory is None:
        with cluster(None, connect) as asked:
            status = asked.admin("status", {})
            if with_groups:
                groups, error = _groups(asked, status)
        return Sample(time.monotonic(), status, groups, error, {}, {}, Counter(), None)
    from ...status import collect

    status = collect(directory)
    if with_groups and status["pid"] is not None:
        try:
            with cluster(directory, None, timeout_ms=ANSWER_MS) as asked:
                groups, error = _groups(asked, status)
        except ApplianceError as failed:
            error = failed
    pids = [row["pid"] for row in status["processes"] if row.get("pid")]
    stats = {pid: stat for pid in pids if (stat := _stat(pid))}
    usage = shutil.disk_usage(directory)
    return Sample(
        time.monotonic(),
        status,
        groups,
        error,
        {pid: (int(stat[11]) + int(stat[12])) / _TICKS for pid, stat in stats.items()},
        {pid: stat[0] for pid, stat in stats.items()},
        _peers(status["listeners"]),
        (usage.total, usage.free),
    )


def _groups(asked: Any, status: Mapping[str, Any]) -> tuple[list[dict[str, Any]], ApplianceError | None]:
    """The groups, as many as can be described within ANSWER_MS; without ZooKeeper there are none to ask for."""
    found: list[dict[str, Any]] = []
    if status["zookeeper"]["state"] != "connected":
        return found, None
    until_s = time.monotonic() + ANSWER_MS / 1000
    try:
        for row in asked.admin("groups", {})[:GROUPS_MAX]:
            if time.monotonic() > until_s:
                break
            found.append(asked.admin("group", {"group": row["group"]}))
    except ApplianceError as failed:
        return found, failed
    return found, None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; [] when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _peers(listeners: Mapping[str, str]) -> Counter[str]:
    """Established connections to the listeners, by address of the client."""
    ports = set()
    for protocol in ("native", "kafka"):
        for one in parse_listeners(protocol, listeners.get(protocol, "")) if listeners.get(protocol) else ():
            if not one.unix:
                ports.add(f"{parse_addresses(one.address)[0][1]:04X}")
    found: Counter[str] = Counter()
    for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            lines = path.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, state, *_ = line.split()
            if state == _ESTABLISHED and local.rpartition(":")[2] in ports:
                found[_address(remote.rpartition(":")[0])] += 1
    return found


def _address(digits: str) -> str:
    """``0100007F`` of /proc/net/tcp as ``127.0.0.1``; an address of IPv6 keeps its digits in pairs."""
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    raw = b"".join(words)
    if len(raw) == 4:
        return ".".join(map(str, raw))
    if raw[:12] == bytes(10) + b"\xff\xff":
        return ".".join(map(str, raw[12:]))
    return ":".join(f"{raw[at]:02x}{raw[at + 1]:02x}" for at in range(0, 16, 2))


def rate(before: Sample, now: Sample, topic: str | None = None) -> float:
    """Bytes per second that logs grew by, of one topic or of all."""
    seconds = max(now.at_s - before.at_s, 1e-3)
    ends = {(row["topic"], row["partition"]): row["end"] for row in before.status["partitions"]}
    grown = 0
    for row in now.status["partitions"]:
        if topic in (None, row["topic"]):
            grown += max(0, row["end"] - ends.get((row["topic"], row["partition"]), row["end"]))
    return grown / seconds


def busy(before: Sample, now: Sample) -> dict[int, float]:
    """The share of a core that each process used."""
    seconds = max(now.at_s - before.at_s, 1e-3)
    return {pid: (used - before.cpu_s[pid]) / seconds for pid, used in now.cpu_s.items() if pid in before.cpu_s}
