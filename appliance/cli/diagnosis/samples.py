"""Takes samples of an appliance for ``doctor`` and ``top``: a reading, its groups, and what the kernel knows.

A sample of an appliance of this host reads shared memory (:mod:`appliance.metrics.readings`); one of another host costs
a request for its status.  With groups there is one request for each group.  Rates are differences of two samples.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...addresses import parse_addresses, parse_listeners
from ...errors import ApplianceError
from ...health.findings import Disk, Process, Seen
from ...metrics.readings import Reader, Readings, of_status
from ...owners import acting_as_owner
from ...processes.clock import wall_s
from ...status import NOTHING, collect
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
    ``peers`` are numbers of connections by address; all three are empty for an appliance of another host.
    """

    readings: Readings
    groups: list[dict[str, Any]]
    error: ApplianceError | None
    cpu_s: dict[int, float]
    states: dict[int, str]
    peers: Counter[str]

    @property
    def at_s(self) -> float:
        return self.readings.at_s

    @property
    def state(self) -> Mapping[str, Any]:
        """What the supervisor has written; the defaults when nothing runs."""
        return self.readings.state or NOTHING | {"state": "stopped", "pid": None}


class Sampler:
    """Takes samples of the appliance of a data directory, or of that at an address."""

    def __init__(self, directory: Path | None, connect: str | None) -> None:
        self._directory, self._connect = directory, connect
        self._reader = Reader(directory) if directory is not None else None

    def take(self, *, with_groups: bool = True) -> Sample:
        """Look now.

        Raises:
            ApplianceError: there is no such directory, or nobody answers at the address.
        """
        groups: list[dict[str, Any]] = []
        error: ApplianceError | None = None
        if self._directory is None or self._reader is None:
            with cluster(None, self._connect) as asked:
                readings = of_status(asked.admin("status", {}), wall_s())
                if with_groups:
                    groups, error = _groups(asked, readings.state)
            return Sample(readings, groups, error, {}, {}, Counter())
        with acting_as_owner(self._directory):
            readings = self._reader.read()
            if readings.state is None:
                return Sample(of_status(collect(self._directory), wall_s()), [], None, {}, {}, Counter())
        if with_groups:
            try:
                with cluster(self._directory, None, timeout_ms=ANSWER_MS) as asked:
                    groups, error = _groups(asked, readings.state)
            except ApplianceError as failed:
                error = failed
        pids = [row["pid"] for row in readings.state["processes"] if row.get("pid")]
        stats = {pid: stat for pid in pids if (stat := _stat(pid))}
        return Sample(
            readings,
            groups,
            error,
            {pid: (int(stat[11]) + int(stat[12])) / _TICKS for pid, stat in stats.items()},
            {pid: stat[0] for pid, stat in stats.items()},
            _peers(readings.state["listeners"]),
        )


def seen(before: Sample, now: Sample) -> Seen:
    """What two samples say, to be judged."""
    readings, shares, speed = now.readings, busy(before, now), rate(before, now)
    room = readings.room
    kernel = {
        pid: Process(state, before.states.get(pid, ""), shares.get(pid, 0.0)) for pid, state in now.states.items()
    }
    sizes = {topic: row.log_bytes for topic, row in readings.topics.items()}
    largest = max(sizes, key=lambda topic: sizes[topic], default="NAME")
    refused = before.state["refusals"] if readings.state is not None else None
    return Seen(
        readings.state,
        readings.states,
        now_s=wall_s(),
        disk=Disk(room.size, room.free, speed, room.left / speed if speed else None, largest),
        processes=kernel,
        refused_before=refused,
        groups=now.groups,
        unknown=str(now.error) if now.error is not None else "",
        peers=now.peers,
        arenas={name: (row["arena_used_bytes"], row["arena_bytes"]) for name, row in readings.gauges.items()},
    )


def _groups(asked: Any, state: Mapping[str, Any] | None) -> tuple[list[dict[str, Any]], ApplianceError | None]:
    """The groups, as many as can be described within ANSWER_MS; without ZooKeeper there are none to ask for."""
    found: list[dict[str, Any]] = []
    if state is None or state["zookeeper"].get("state") != "connected":
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
    known, grown = before.readings.partitions, 0
    for key, row in now.readings.partitions.items():
        if topic in (None, key.topic) and key in known:
            grown += max(0, row.high_watermark - known[key].high_watermark)
    return grown / seconds_between(before, now)


def seconds_between(before: Sample, now: Sample) -> float:
    return max(now.at_s - before.at_s, 1e-3)


def busy(before: Sample, now: Sample) -> dict[int, float]:
    """The share of a core that each process used."""
    seconds = seconds_between(before, now)
    return {pid: (used - before.cpu_s[pid]) / seconds for pid, used in now.cpu_s.items() if pid in before.cpu_s}
