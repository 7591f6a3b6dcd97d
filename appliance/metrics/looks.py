"""Looks at an appliance for whoever judges it: ``health``, ``status``, ``doctor``, ``top``, ``/ready``, the console.

A :class:`Look` at an appliance of this host reads shared memory (:mod:`.readings`) and what the kernel knows
(:mod:`appliance.health.host`), so it needs no free worker and no ZooKeeper; one at another host's is made of its
``status``, which has the same.  :func:`seen` is what one look says, or two, to be judged: rates are differences of two.
Groups are asked for besides (:func:`ask_groups`), within a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..addresses import parse_addresses, parse_listeners
from ..clock import now_ms, wall_s
from ..errors import ApplianceError, ClientFault, StorageFault, UnknownGroup
from ..health.findings import GroupsSeen, Rates, Seen
from ..health.host import Host, HostProcess, from_json, look_at_host
from ..proc_net import peers
from ..status import NOTHING, clients_of, collect, failed_start, last_launch, was_killed
from .readings import Reader, Readings, of_status

GROUPS_MS: Final = 2_000
"""How long a look at groups may take: what is not known by then is left out."""
PEERS_MS: Final = 10_000
"""How often the connections of the machine are counted: the kernel takes 10 ms, more than for all else of a look."""
FAILED_MAX: Final = 3
"""Groups that are named because they cannot be described."""

Ask = Callable[..., Any]
"""Asks an admin verb: (verb, arguments, timeout_ms=...)."""


class Look(NamedTuple):
    """One look.

    ``host`` is None when nothing runs; ``ended`` is the status then.  ``peers``: numbers of connections by address.
    ``clients``: who moves how much.
    """

    readings: Readings
    host: Host | None = None
    peers: Mapping[str, int] = {}
    clients: Sequence[Mapping[str, Any]] = ()
    ended: Mapping[str, Any] = {}

    @property
    def at_s(self) -> float:
        return self.readings.at_s

    @property
    def state(self) -> Mapping[str, Any]:
        """What the supervisor has written; the defaults when nothing runs."""
        return self.readings.state or NOTHING | {"state": "stopped", "pid": None}


class Looker:
    """Looks at the appliance of a data directory on this host.  Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader = Reader(directory)
        self._peers: Mapping[str, int] = {}
        self._peers_at_ms = -PEERS_MS

    def read(self) -> Readings:
        """What the processes have counted, without a look at the host.

        Raises:
            NoDirectory: there is no such directory.
        """
        return self._reader.read()

    def take_look(self) -> Look:
        """Look now.

        Raises:
            NoDirectory: there is no such directory.
        """
        readings = self._reader.read()
        state = readings.state
        if state is None:
            return _stopped(self._directory)
        now = now_ms()
        if now - self._peers_at_ms >= PEERS_MS:
            self._peers_at_ms, self._peers = now, _peers(state["listeners"])
        clients = clients_of(self._directory, state)["clients"]
        return Look(readings, look_at_host(self._directory, state), self._peers, clients)


def _stopped(directory: Path) -> Look:
    """A look at a directory that nobody serves; its topics are left out when the catalog cannot be read."""
    try:
        status = collect(directory)
    except StorageFault:
        ended = {
            "failed_start": failed_start(directory),
            "killed": was_killed(directory),
            "launch": last_launch(directory),
        }
        return Look(of_status(NOTHING | {"pid": None, "partitions": []}, wall_s()), ended=ended)
    return Look(of_status(status, wall_s()), ended=status)


def of_other_host(status: Mapping[str, Any], at_s: float) -> Look:
    """What the status of an appliance of another host says."""
    readings = of_status(status, at_s)
    host = from_json(status.get("host"))
    if host.disk.size:
        readings = readings._replace(room=readings.room._replace(size=host.disk.size, free=host.disk.free))
    return Look(readings, host if readings.state is not None else None)


def seen(
    now: Look,
    at: tuple[str, ...],
    now_s: float,
    before: Look | None = None,
    groups: GroupsSeen | None = None,
    full_s: float | None = None,
) -> Seen:
    """What a look says, and what has changed since the one before.

    Args:
        at: the options that commands about this appliance need, such as --data.
        full_s: how long the room on the disk lasts, from a longer time than that between two looks.
    """
    rates = None
    if before is not None:
        growth = rate(before, now)
        waiting = before.host.processes.items() if before.host is not None else ()
        rates = Rates(
            growth,
            full_s if full_s is not None else now.readings.room.left / growth if growth else None,
            busy(before, now),
            wanted(before, now),
            frozenset(pid for pid, process in waiting if process.state == "D"),
        )
    elif full_s is not None:
        rates = Rates(full_s=full_s)
    readings = now.readings
    sizes: dict[str, tuple[int, int]] = {}
    for key, row in readings.partitions.items():
        total, count = sizes.get(key.topic, (0, 0))
        sizes[key.topic] = total + max(0, row.log_end - row.base), count + 1
    largest = max(((topic, *size) for topic, size in sizes.items()), key=lambda topic_size: topic_size[1], default=None)
    return Seen(
        *(readings.state, readings.not_online, now_s, at, now.host, rates, groups, now.peers, now.clients, largest),
        workers=readings.gauges,
        ended=now.ended,
    )


def at_directory(directory: Path) -> tuple[str, ...]:
    """The options that name the appliance of a data directory."""
    return ("--data", str(directory))


def ask_groups(ask: Ask, state: Mapping[str, Any], timeout_ms: int = GROUPS_MS) -> GroupsSeen:
    """The groups that can be described within a time, in the order of their names.

    All names are asked for at first, which costs little however many there are.  Without ZooKeeper there are none.  A
    group that cannot be described is named, and does not hide the others.
    """
    if state["zookeeper"].get("state") != "connected":
        return GroupsSeen()
    deadline_ms = now_ms() + timeout_ms
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    names: list[str] = []
    try:
        names = ask("group_names", {}, timeout_ms=timeout_ms)
        for name in names:
            left_ms = deadline_ms - now_ms()
            if left_ms <= 0:
                break
            try:
                rows.append(ask("group", {"group": name}, timeout_ms=left_ms))
            except UnknownGroup:  # it has just been deleted
                continue
            except ClientFault as error:
                failed[name] = str(error)
    except ApplianceError as error:
        if not rows:
            return GroupsSeen((), len(names), str(error))
    return GroupsSeen(
        rows, len(names), "; ".join(f"{name}: {text}" for name, text in list(failed.items())[:FAILED_MAX])
    )


def _peers(listeners: Mapping[str, str]) -> Mapping[str, int]:
    """Established connections to the listeners, by address of the client."""
    texts = ((name, listeners.get(name)) for name in ("native", "kafka"))
    ours = [listener for name, text in texts if text for listener in parse_listeners(name, text)]
    return peers({parse_addresses(listener.address)[0][1] for listener in ours if not listener.unix})


def rate(before: Look, now: Look) -> float:
    """Bytes per second that logs grew by."""
    rows_before, grown = before.readings.partitions, 0
    for key, row in now.readings.partitions.items():
        if key in rows_before:
            grown += max(0, row.high_watermark - rows_before[key].high_watermark)
    return grown / seconds_between(before, now)


def seconds_between(before: Look, now: Look) -> float:
    return max(now.at_s - before.at_s, 1e-3)


def busy(before: Look, now: Look) -> dict[int, float]:
    """The share of a core that each process used."""
    return _shares(before, now, lambda process: process.cpu_s)


def wanted(before: Look, now: Look) -> dict[int, float]:
    """The share of a core that each process used, or waited for because others had it."""
    shares = _shares(before, now, lambda process: process.cpu_s + process.delayed_s)
    return {pid: min(share, 1.0) for pid, share in shares.items()}


def _shares(before: Look, now: Look, spent_s: Callable[[HostProcess], float]) -> dict[int, float]:
    if before.host is None or now.host is None:
        return {}
    seconds, earlier = seconds_between(before, now), before.host.processes
    processes = now.host.processes.items()
    return {pid: (spent_s(process) - spent_s(earlier[pid])) / seconds for pid, process in processes if pid in earlier}
