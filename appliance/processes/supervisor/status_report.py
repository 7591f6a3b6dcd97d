"""Writes state.json, from which ``appliance status`` shows the running processes, and systemd's status line."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ... import __version__
from ...clock import now_ms, wall_s
from ...disk_settings import Disk
from ...health.conditions import REFUSED_WITHIN_S
from ...health.findings import status_line
from ...launch import Launch
from ...machine_limits import ADVICE, measure
from .actions import Actions
from .certificates import Certificates
from .children import Children
from .compactions import Compactions
from .coordinator_child import CoordinatorChild
from .hosted import Hosted
from .inputs import Inputs
from .inspection import Inspection
from .nodes import Nodes
from .reloads import Reloads
from .state_file import StateFile
from .systemd import Notifier
from .workers import Workers
from .writers import Writers

WRITE_MS: Final = 200
"""state.json is written at most this often, and takes at most one part in RESTS + 1 of the time."""
RESTS: Final = 20
MINUTE_S: Final = 60
FOREIGN_MS: Final = 2_000
"""How often to look whether partitions of other brokers are still here."""


class RefusalCounts:
    """Counts what was refused to clients, by reason: since the start, and lately."""

    def __init__(self, clock_s: Callable[[], float] = wall_s) -> None:
        self._clock_s = clock_s
        self.totals: Counter[str] = Counter()
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        """Of each reason, the beginnings of the last minutes with refusals, since 1970, and their numbers."""
        self._last_s: dict[str, float] = {}

    def count_refused(self, counts: Mapping[str, int]) -> None:
        now_s = self._clock_s()
        self.totals.update(counts)
        for reason, count in counts.items():
            self._last_s[reason] = now_s
            minutes = self._recent.setdefault(reason, deque(maxlen=REFUSED_WITHIN_S // MINUTE_S))
            if minutes and 0 <= now_s - minutes[-1][0] < MINUTE_S:
                minutes[-1] = (minutes[-1][0], minutes[-1][1] + count)
            else:
                minutes.append((now_s, count))

    def recent(self) -> dict[str, dict[str, float]]:
        """By reason: how many there were in REFUSED_WITHIN_S before the last one, and when that was, since 1970."""
        return {
            reason: {
                "count": sum(count for at_s, count in self._recent[reason] if last_s - at_s < REFUSED_WITHIN_S),
                "last": last_s,
            }
            for reason, last_s in self._last_s.items()
        }


class StatusReport:
    """The report.  ``state``: "starting", "serving", "stopping" or "stopped"; ``listeners``: their addresses."""

    def __init__(
        self,
        data_dir: Path,
        instance: str,
        launch: Launch,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        workers: Workers,
        writers: Writers,
        coordinator: CoordinatorChild,
        nodes: Nodes,
        notifier: Notifier,
        reloads: Reloads,
        certificates: Certificates,
        inspection: Inspection,
        inputs: Inputs,
        refusals: RefusalCounts,
        compactions: Compactions,
    ) -> None:
        self.state = "starting"
        self.listeners: dict[str, str] = {}
        self.disk = Disk()
        self.reloads = reloads
        self.low: list[dict[str, Any]] = []
        """Limits of the machine that are below what the configuration allows."""
        self.insecure: list[str] = []
        self.without_rules: list[str] = []
        """Listeners that other hosts reach without TLS and authentication."""
        self._started_s = wall_s()
        self._data_dir = data_dir
        self._file = StateFile(data_dir / "state.json")
        self._rests_until_ms = 0
        self._instance, self._launch = instance, launch
        self._hosted, self._children, self._actions = hosted, children, actions
        self._workers, self._writers, self._coordinator, self._nodes = workers, writers, coordinator, nodes
        self._notifier, self._certificates = notifier, certificates
        self._inspection, self._inputs, self._compactions = inspection, inputs, compactions
        self._refusals = refusals
        self._foreign: dict[str, int] = {}
        self._save = actions.define("write state.json", lambda _: self.write())
        self._look_at_foreign = actions.define("look at partitions of other brokers", lambda _: self._forget_foreign())

    def on_change(self) -> None:
        """Write the report soon, because it has changed, but rest first: with 10,000 partitions it takes 0.1 s."""
        if "" not in self._save:
            self._save.want(delay_ms=max(1, self._rests_until_ms - now_ms()))

    def watch_foreign(self, foreign: dict[str, int]) -> None:
        """Show partitions with a log here that another broker stores, by name: its id; until they are moved away."""
        self._foreign = foreign
        if foreign:
            self._look_at_foreign.want(delay_ms=FOREIGN_MS)

    def _forget_foreign(self) -> None:
        there = {name: broker for name, broker in self._foreign.items() if (self._data_dir / name).exists()}
        if there != self._foreign:
            self.on_change()
        self.watch_foreign(there)

    def enter(self, state: str) -> None:
        """Report another state at once."""
        self.state = state
        self.write_now()

    def write_now(self) -> None:
        """Write the report without a rest: somebody is told that a change has been made, and may look for it."""
        self._save.want()

    def write(self) -> None:
        """Raises OSError: the disk is full."""
        started_ms = now_ms()
        content = {
            "pid": os.getpid(),
            "instance": self._instance,
            "state": self.state,
            "version": __version__,
            "started": self._started_s,
            "launch": self._launch,
            "disk": {name: getattr(self.disk, name) for name in ("bytes_max", "free_bytes_min", "free_bytes_warn")},
            "listeners": self.listeners,
            "insecure": [*self.insecure, *self._inputs.insecure],
            "without_rules": self.without_rules,
            "foreign": self._foreign,
            "faults": self._coordinator.faults(),
            "inputs": self._inputs.rows(),
            "tls": self._certificates.report,
            "zookeeper": self._coordinator.zookeeper,
            **self._coordinator.shown,
            "processes": self._processes(),
            "restarts": dict(self._children.restarts.totals),
            "hangs": dict(self._children.hangs),
            "deaths": self._deaths(),
            "pages": self._workers.pages | ({"coordinator": page} if (page := self._coordinator.page) else {}),
            "reload": self.reloads.last,
            **self._partitions(),
            "strays": self._inspection.strays,
            "uncompacted": self._compactions.failures(),
            "refused": self._actions.rows(),
            "limits": self._limits(),
            "low": self.low,
            "refusals": dict(self._refusals.totals),
            "refusals_recent": self._refusals.recent(),
        }
        self._notifier.show(status_line(content, len(self._hosted), wall_s()))
        self._file.replace(msgspec.json.encode(content))
        written_ms = now_ms()
        self._rests_until_ms = written_ms + max(WRITE_MS, RESTS * (written_ms - started_ms))

    def _partitions(self) -> dict[str, dict[str, Any]]:
        """By partition: the name of the table, and what is wrong."""
        by_state: dict[str, dict[str, Any]] = {"tables": {}, "offline": {}, "full": {}, "damaged": {}}
        for (topic, number), row in self._hosted.items():
            name = f"{topic}-{number}"
            if row.table:
                by_state["tables"][name] = row.table
            for what, value in (("offline", row.offline), ("full", row.full), ("damaged", row.damaged)):
                if value:
                    by_state[what][name] = value
        return by_state

    def _limits(self) -> list[dict[str, Any]]:
        """The limits that are reached: those of the machine that cause refusals, and those of processes."""
        rows = [*self._workers.limits(), *self._writers.limits(), *self._children.limits()]
        for limit, since_s in self._actions.limits().items():
            value, in_use = measure(limit, self._data_dir)
            rows.append({"limit": limit, "process": "", "value": value, "in_use": in_use, "since": since_s})
        return [{**row, "advice": ADVICE[row["limit"]]} for row in rows]

    def _deaths(self) -> list[dict[str, Any]]:
        """The processes that have ended by themselves lately: role, times, status, and whose they were."""
        rows = []
        for role, key, deaths in self._children.restarts.recent():
            row = {"role": role, "times": list(deaths.times_s), "status": deaths.status}
            rows.append(row | dict(zip(("topic", "partition"), key, strict=True)) if role == "writer" else row)
        return rows + self._nodes.deaths()

    def _processes(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"role": "supervisor", "pid": os.getpid(), "started": self._started_s, "restarts": 0}
        ]
        for child in self._children:
            if not child.pid:
                continue
            row: dict[str, Any] = {"role": child.role, "pid": child.pid, "started": child.started_s}
            row["heart"] = self._children.heart_of(child)
            if child.role == "input":
                row["input"] = child.key
            row["restarts"] = self._children.restarts.count(child.role, child.key)
            if child.role == "writer":
                row["topic"], row["partition"] = child.key
            if child.role == "network":
                row |= self._workers.stats(child.key)
            rows.append(row)
        return rows + self._nodes.rows()
