"""Polls the state of the appliance while a page is open: topics, partitions, groups, lag, alerts, as one value.

While no page is open, it only reads what the charts show (:mod:`.history`).  Otherwise a poll (:class:`Poller`) follows
the last one after INTERVAL_S, or later: after so much time that polling takes LOOKS_SHARE of a core, but after
INTERVAL_S_MAX at the latest.  So with very many partitions it takes more.  A page that is opened ends the pause early,
after a quarter of that time at the earliest.

The processor time of a poll's thread is measured.  For the look at this host that is all; the rest, with what the
coordinator and the streams of the pages spend, is COST_FACTOR times as much.  Each poll asks for the lag of at most
GROUPS_MAX groups, those that a page shows first, then those that were asked for the longest time ago.

A poll runs in a thread.  It looks as ``health`` and ``doctor`` do (:mod:`appliance.metrics.looks`); only groups, and
partitions of other brokers, are asked for.  What cannot be asked for now (ZooKeeper is away, the coordinator restarts)
keeps its last value, and an alert says why.  A topic that has not changed has the row of the poll before: with ten
thousand topics a poll makes few new ones, and what a page has is compared at once.  What is known of a group says when
it was asked for, and is forgotten with the last page: the next one shows nothing rather than what was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

import msgspec

from .. import __version__
from ..client.cluster_client import Cluster
from ..errors import ApplianceError, BrokerAway
from ..health.findings import GroupsSeen, judge
from ..metrics.disk_forecast import DiskForecast
from ..metrics.looks import Look, Looker, at_directory, seen
from ..metrics.readings import Readings
from ..partition_states import ELSEWHERE, ONLINE, STATE_NAMES
from ..status import NOTHING, read_state
from .history import Recorder
from .topic_rows import PartitionRow, PartitionsNow, PlacedTopic, TopicRow, TopicRows

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

AlertRow = dict[str, Any]
PolledRow = dict[str, Any]


class ConsoleSnapshot(NamedTuple):
    """What a poll has found.  ``topics``: by name; ``groups``, ``details``: by group.

    Nobody changes any of it.  ``rated``: whether rates are known, which the first poll cannot say.
    """

    number: int
    """One more than that of the poll before."""
    at_ms: int
    appliance: PolledRow
    alerts: list[AlertRow]
    rated: bool
    topics: Mapping[str, TopicRow]
    partitions: PartitionsNow
    groups: Mapping[str, PolledRow]
    details: Mapping[str, PolledRow]


class Poller:
    """Makes snapshots.  One thread at a time."""

    def __init__(self, data_dir: Path, broker_id: int, clock: Callable[[], float], wall_s: Callable[[], float]) -> None:
        self._data_dir = data_dir
        self._clock, self._wall_s = clock, wall_s
        self._looker = Looker(data_dir)
        self._rows = TopicRows(data_dir, broker_id, lambda names: self._admin("topics", names=names))
        self._forecast = DiskForecast()
        self._cluster: Cluster | None = None
        self._number = 0
        self._groups: dict[str, PolledRow] = {}
        self._details: dict[str, PolledRow] = {}
        self._asked_ms: dict[str, int] = {}
        """When a group's lag was asked for, since 1970."""
        self._topics: dict[str, TopicRow] = {}
        self._ends: dict[str, int] = {}
        """Bytes ever written to each topic: what rates are computed from, with the messages of ``_topics``."""
        self._at_s: float | None = None
        """When those were read."""
        self._rated = False
        self._partitions = PartitionsNow()

    def close(self) -> None:
        """Forget what was polled: nobody looks any more."""
        for polled in (self._groups, self._details, self._asked_ms):
            polled.clear()
        self._topics, self._ends, self._partitions = {}, {}, PartitionsNow()  # those of before are in a snapshot
        self._at_s, self._rated = None, False
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def read(self) -> Readings:
        """Read only what the processes of the appliance have counted."""
        return self._looker.read()

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
            _appliance_row(state, readings, self._topics, self._rated),
            self._alerts(look, unknown),
            self._rated,
            self._topics,
            self._partitions,
            dict(self._groups),
            dict(self._details),
        )

    def _take_topics(self, readings: Readings) -> None:
        """Raises StorageFault: the catalog cannot be read."""
        now_s, before_s = self._clock(), self._at_s
        partitions = self._rows.take(readings)
        topics, ends = {}, {}
        changed = partitions.changed_since(self._partitions)
        for name, topic in partitions.topics.items():
            before = self._topics.get(name)
            if before is not None and name not in changed and not before.bytes_per_s:
                topics[name], ends[name] = before, self._ends[name]
                continue
            rows = partitions.rows(name)
            ends[name] = sum(row.end or 0 for row in rows)
            row = _topic_row(topic, rows)
            if before is not None and before_s is not None and now_s > before_s:
                written = max(0, ends[name] - self._ends[name]) / (now_s - before_s)
                messages = max(0, (row.messages or 0) - (before.messages or 0))  # retention removes some
                rates = {"bytes_per_s": round(written), "messages_per_s": round(messages / (now_s - before_s), 1)}
                row = msgspec.structs.replace(row, **rates) if written else row
            topics[name] = before if before is not None and before == row else row
        self._topics, self._ends, self._partitions = topics, ends, partitions
        self._at_s, self._rated = now_s, before_s is not None

    def _alerts(self, look: Look, unknown: list[str]) -> list[AlertRow]:
        """What is wrong, the worst first."""
        full_s = self._forecast.seconds_until_full(look.at_s, look.readings.room)
        groups = GroupsSeen(list(self._details.values()), len(self._groups), unknown[0] if unknown else "")
        state_seen = seen(look, at_directory(self._data_dir), self._wall_s(), groups=groups, full_s=full_s)
        return [finding.as_json() | {"groups": finding.groups} for finding in judge(state_seen)[:ALERTS_MAX]]

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
            texts = {field: intern(row[field]) for field in ("protocol", "state")}  # the same few for all groups
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


def _topic_row(topic: PlacedTopic, rows: Sequence[PartitionRow]) -> TopicRow:
    troubled = sorted({row.state for row in rows} - {STATE_NAMES[ONLINE], ELSEWHERE})
    counts = [row.messages for row in rows if row.messages is not None]
    stored = sum(row.bytes or 0 for row in rows)
    state = intern(", ".join(troubled)) or STATE_NAMES[ONLINE]
    return TopicRow(len(rows), sum(counts) if counts else None, stored, state, topic.settings)


def total(rows: list[PolledRow], name: str) -> float | None:
    """The sum of the values in a column that are known; None if none is."""
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def _appliance_row(
    state: Mapping[str, Any], readings: Readings, topics: Mapping[str, TopicRow], rated: bool
) -> PolledRow:
    rows = topics.values()
    return {
        "state": state["state"],
        "version": __version__,
        "started": state["started"],
        "listeners": state["listeners"],
        "zookeeper": state["zookeeper"].get("state", "off"),
        "disk": {"total": readings.room.size, "free": readings.room.free},
        "processes": Counter(row["role"] for row in state["processes"]),
        "bytes_per_s": sum(row.bytes_per_s for row in rows) if rated else None,
        "messages_per_s": round(sum(row.messages_per_s for row in rows), 1) if rated else None,
        "bytes": sum(row.bytes for row in rows),
    }


class Observer:
    """Shares snapshots among the open pages."""

    def __init__(self, poller: Poller, recorder: Recorder, cpu_s: Callable[[], float]) -> None:
        """``recorder``: takes the points of the charts; ``cpu_s``: processor time of the calling thread."""
        self._poller, self._recorder, self._cpu_s = poller, recorder, cpu_s
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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._recorder.wait_s):
                    await self._wake.wait()
            self._wake.clear()
            if not self._watchers:
                await asyncio.to_thread(self._note_point)
                continue
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
        if not self._recorder.wait_s:
            self._recorder.note(look.readings)
        looked_s = self._cpu_s()
        snapshot = self._poller.take(look, focus)
        return snapshot, looked_s - begun_s + COST_FACTOR * (self._cpu_s() - looked_s)

    def _note_point(self) -> None:
        """Take a point of the charts, if it is time, while no page is open."""
        if not self._recorder.wait_s:
            self._recorder.note(self._poller.read())

    async def _pause(self, cost_s: float) -> None:
        pause_s = min(max(INTERVAL_S, cost_s / LOOKS_SHARE), INTERVAL_S_MAX)
        soon_s = min(max(INTERVAL_S_MIN, cost_s / LOOKS_SHARE / 4), pause_s)
        await asyncio.sleep(soon_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s - soon_s):
                await self._wake.wait()
        self._wake.clear()
