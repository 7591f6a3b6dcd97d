"""Polls the state of the appliance while a page is open: topics, partitions, groups, lag, alerts, as one value.

While no page is open, it does nothing.  Otherwise a poll (:class:`Poller`) follows the last one after INTERVAL_S, or
later: after so much time that polling takes LOOKS_SHARE of a core, but after INTERVAL_S_MAX at the latest.  So with
very many partitions it takes more.  A page that is opened ends the pause early, after a quarter of that time at the
earliest.

The processor time of a poll's thread is measured.  For the look at this host that is all; the rest, with what the
coordinator and the streams of the pages spend, is COST_FACTOR times as much.  Each poll asks for the lag of at most
GROUPS_MAX groups, those that a page shows first, then those that were asked for the longest time ago.

A poll runs in a thread.  It looks as ``health`` and ``doctor`` do (:mod:`appliance.metrics.looks`); only groups, and
partitions of other brokers, are asked for.  What cannot be asked for now (ZooKeeper is away, the coordinator restarts)
keeps its last value, and an alert says why.  A row that has not changed is the object of the poll before: with ten
thousand topics a poll makes few new ones, and what a page has is compared at once.  What is known of a group says when
it was asked for, and is forgotten with the last page: the next one shows nothing rather than what was.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from .. import __version__
from ..client.cluster_client import Cluster
from ..errors import ApplianceError, BrokerAway
from ..health.findings import GroupsSeen, judge
from ..metrics.disk_forecast import DiskForecast
from ..metrics.looks import Look, Looker, at_directory, seen
from ..metrics.readings import Readings
from ..status import NOTHING, read_state
from .topic_rows import TopicRows

INTERVAL_S: Final = 2.0
INTERVAL_S_MIN: Final = 0.5
"""After a page was opened."""
INTERVAL_S_MAX: Final = 30.0
LOOKS_SHARE: Final = 0.01
COST_FACTOR: Final = 6
"""Measured with 1,000 partitions: 2.5 to 4, without groups, which cost the coordinator more."""
GROUPS_MAX: Final = 25
REQUEST_MS_MAX: Final = 5_000

ALERTS_MAX: Final = 100

T = TypeVar("T")
AlertRow = dict[str, str]
PolledRow = dict[str, Any]


class ConsoleSnapshot(NamedTuple):
    """What a poll has found.  ``topics``, ``partitions``: by topic; ``groups``, ``details``: by group.

    Nobody changes any of it.
    """

    number: int
    """One more than that of the poll before."""
    at_ms: int
    appliance: PolledRow
    alerts: list[AlertRow]
    topics: Mapping[str, PolledRow]
    partitions: Mapping[str, list[PolledRow]]
    groups: Mapping[str, PolledRow]
    details: Mapping[str, PolledRow]


class TopicTotals(NamedTuple):
    """What a rate is computed from: bytes and messages written up to a time."""

    at_s: float
    bytes: int
    messages: int


class Poller:
    """Makes snapshots.  One thread at a time."""

    def __init__(self, data_dir: Path, broker_id: int, clock: Callable[[], float], wall_s: Callable[[], float]) -> None:
        self._data_dir = data_dir
        self._clock, self._wall_s = clock, wall_s
        self._looker = Looker(data_dir)
        self._rows = TopicRows(
            data_dir, broker_id, self._looker.reader, lambda names: self._admin("topics", names=names)
        )
        self._forecast = DiskForecast()
        self._cluster: Cluster | None = None
        self._number = 0
        self._groups: dict[str, PolledRow] = {}
        self._details: dict[str, PolledRow] = {}
        self._asked_ms: dict[str, int] = {}
        """When a group's lag was asked for, since 1970."""
        self._totals: dict[str, TopicTotals] = {}
        self._topics: dict[str, PolledRow] = {}
        self._partitions: dict[str, list[PolledRow]] = {}

    def close(self) -> None:
        """Forget what was polled: nobody looks any more."""
        for polled in (self._groups, self._details, self._asked_ms, self._totals):
            polled.clear()
        self._topics, self._partitions = {}, {}  # those of before are in a snapshot
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def look(self) -> Look:
        """Read what is known on this host."""
        return self._looker.take_look()

    def take(self, look: Look, focus: Collection[str]) -> ConsoleSnapshot:
        """Ask for the rest now.  ``focus``: the groups that pages show.  What cannot be read stays as it was."""
        self._number += 1
        readings = look.readings
        self._forecast.note(readings.at_s, readings.room)
        state = NOTHING | {"state": "stopped"} | dict(readings.state or {})
        unknown = []
        asks: list[Callable[[], None]] = [self._rows.ask_others]
        if state["zookeeper"].get("state", "off") != "off":
            asks.append(lambda: self._ask_groups(focus))
        asks.append(lambda: self._take_topics(readings))
        for ask in asks:
            try:
                ask()
            except ApplianceError as error:
                unknown.append(f"{error}; shown are the last known ones")
        return ConsoleSnapshot(
            self._number,
            round(self._wall_s() * 1000),
            _appliance_row(state, readings, self._topics),
            self._alerts(look, unknown),
            self._topics,
            self._partitions,
            dict(self._groups),
            dict(self._details),
        )

    def _take_topics(self, readings: Readings) -> None:
        """Raises StorageFault: the catalog cannot be read."""
        totals, topics, partitions = {}, {}, {}
        for topic in self._rows.make(readings):
            name, parts = topic["name"], topic["partitions"]
            totals[name], rate = self._rate(topic)
            topics[name] = _kept(self._topics.get(name), _topic_row(topic, rate))
            partitions[name] = _kept(self._partitions.get(name), parts)
        self._totals, self._topics, self._partitions = totals, topics, partitions

    def _alerts(self, look: Look, unknown: list[str]) -> list[AlertRow]:
        """What is wrong, the worst first."""
        full_s = self._forecast.seconds_until_full(look.at_s, look.readings.room)
        groups = GroupsSeen(list(self._details.values()), len(self._groups), unknown[0] if unknown else "")
        state_seen = seen(look, at_directory(self._data_dir), self._wall_s(), groups=groups, full_s=full_s)
        return [finding.as_json() for finding in judge(state_seen)[:ALERTS_MAX]]

    def _admin(self, verb: str, **arguments: Any) -> Any:
        """Raises ApplianceError."""
        if self._cluster is None:
            address = own_address(self._data_dir)
            self._cluster = Cluster(address, client_name="appliance-console", request_timeout_ms=REQUEST_MS_MAX)
        return self._cluster.admin(verb, arguments)

    def _ask_groups(self, focus: Collection[str]) -> None:
        rows = {row["group"]: row for row in self._admin("groups")}
        polled: dict[str, Any]
        for polled in (self._details, self._asked_ms, self._groups):
            for name in polled.keys() - rows.keys():
                del polled[name]
        for name, row in rows.items():
            self._note_group(name, row)
        due = sorted(rows, key=lambda name: (name not in focus, self._asked_ms.get(name, 0)))
        for name in due[:GROUPS_MAX]:
            self._details[name] = self._admin("group", group=name)
            self._asked_ms[name] = round(self._wall_s() * 1000)
            self._note_group(name, rows[name])

    def _note_group(self, name: str, row: PolledRow) -> None:
        earlier, asked_ms = self._groups.get(name, {}), self._asked_ms.get(name)
        if earlier.get("lag_asked_ms") != asked_ms or any(earlier.get(field) != value for field, value in row.items()):
            texts = {field: sys.intern(row[field]) for field in ("protocol", "state")}  # the same few for all groups
            self._groups[name] = {**row, **texts, **self._lag_row(name)}

    def _lag_row(self, name: str) -> PolledRow:
        """The lag of a group in all partitions, and since when; its seconds are those of the latest partition."""
        rows = self._details[name]["partitions"] if name in self._details else []
        seconds = [row["lag_seconds"] for row in rows if row["lag_seconds"] is not None]
        return {
            "lag_messages": total(rows, "lag_messages"),
            "lag_bytes": total(rows, "lag_bytes"),
            "lag_seconds": max(seconds, default=None),
            "lag_asked_ms": self._asked_ms.get(name),
            "topics": sorted({row["topic"] for row in rows}),
        }

    def _rate(self, topic: PolledRow) -> tuple[TopicTotals, PolledRow]:
        """Bytes and messages per second since the last poll; None at the first."""
        ends = sum(row["end"] or 0 for row in topic["partitions"])
        now = TopicTotals(self._clock(), ends, sum(row["messages"] or 0 for row in topic["partitions"]))
        before = self._totals.get(topic["name"])
        if before is None or now.at_s <= before.at_s or ends < before.bytes:
            return now, {"bytes_per_s": None, "messages_per_s": None}
        seconds = now.at_s - before.at_s
        messages = max(0, now.messages - before.messages)  # retention removes some
        return now, {
            "bytes_per_s": round((ends - before.bytes) / seconds),
            "messages_per_s": round(messages / seconds, 1),
        }


def _kept(before: T | None, now: T) -> T:
    """The earlier object, if it is equal: what has not changed keeps its identity."""
    return before if before is not None and before == now else now


def own_address(data_dir: Path) -> str:
    """The Unix socket of the appliance that serves a data directory.

    Raises:
        BrokerAway: it has none, or nothing serves the directory.
    """
    state = read_state(data_dir)
    local = str(state["listeners"].get("local", "")) if state is not None else ""
    if not local:
        raise BrokerAway(f"{data_dir}: the appliance has no Unix socket there yet, which the console needs")
    return local


def _topic_row(topic: PolledRow, rate: PolledRow) -> PolledRow:
    rows = topic["partitions"]
    troubled = sorted({row["state"] for row in rows} - {"online", "elsewhere"})
    counts = [row["messages"] for row in rows if row["messages"] is not None]
    return {
        "partitions": len(rows),
        "messages": sum(counts) if counts else None,
        "bytes": sum(row["bytes"] or 0 for row in rows),
        "state": ", ".join(troubled) or "online",
        "own": topic["own"],
        **rate,
    }


def total(rows: list[PolledRow], name: str) -> float | None:
    """The sum of the values in a column that are known; None if none is."""
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def _appliance_row(state: Mapping[str, Any], readings: Readings, topics: Mapping[str, PolledRow]) -> PolledRow:
    return {
        "state": state["state"],
        "version": __version__,
        "started": state["started"],
        "listeners": state["listeners"],
        "zookeeper": state["zookeeper"].get("state", "off"),
        "disk": {"total": readings.room.size, "free": readings.room.free},
        "processes": Counter(row["role"] for row in state["processes"]),
        "bytes_per_s": _total(topics, "bytes_per_s"),
        "messages_per_s": _total(topics, "messages_per_s"),
        "bytes": sum(row["bytes"] for row in topics.values()),
    }


def _total(topics: Mapping[str, PolledRow], name: str) -> float | None:
    values = [row[name] for row in topics.values() if row[name] is not None]
    return round(sum(values), 1) if values else None


class Observer:
    """Shares snapshots among the open pages."""

    def __init__(self, poller: Poller, cpu_s: Callable[[], float]) -> None:
        """``cpu_s``: processor time of the calling thread."""
        self._poller, self._cpu_s = poller, cpu_s
        self._watchers: Counter[str] = Counter()
        """How many pages show each group; "" for those that show none."""
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._last: ConsoleSnapshot | None = None

    @property
    def watchers(self) -> int:
        return self._watchers.total()

    @contextlib.contextmanager
    def watching(self, group: str = "") -> Iterator[None]:
        """A page is open, and shows a group in particular."""
        self._watchers[group] += 1
        self._wake.set()
        try:
            yield
        finally:
            self._watchers -= Counter([group])

    async def snapshot_after(self, number: int) -> ConsoleSnapshot:
        """A snapshot that is newer than this number."""
        async with self._changed:
            while self._last is None or self._last.number <= number:
                await self._changed.wait()
            return self._last

    async def run(self) -> None:
        """Poll again and again, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._watchers:
                snapshot, cost_s = await asyncio.to_thread(self._take, [name for name in self._watchers if name])
                async with self._changed:
                    self._last = snapshot
                    self._changed.notify_all()
                await self._pause(cost_s)
            self._last = None
            await asyncio.to_thread(self._poller.close)

    def _take(self, focus: Collection[str]) -> tuple[ConsoleSnapshot, float]:
        """A poll, and its processor time in seconds in all processes."""
        begun_s = self._cpu_s()
        look = self._poller.look()  # which this thread does alone
        looked_s = self._cpu_s()
        snapshot = self._poller.take(look, focus)
        return snapshot, looked_s - begun_s + COST_FACTOR * (self._cpu_s() - looked_s)

    async def _pause(self, cost_s: float) -> None:
        pause_s = min(max(INTERVAL_S, cost_s / LOOKS_SHARE), INTERVAL_S_MAX)
        soon_s = min(max(INTERVAL_S_MIN, cost_s / LOOKS_SHARE / 4), pause_s)
        await asyncio.sleep(soon_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), pause_s - soon_s)
        self._wake.clear()
