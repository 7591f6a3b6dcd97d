"""What an appliance is doing, from its data directory alone: served or not, asked from inside or outside.

A running supervisor keeps ``<data>/state.json`` (listeners, processes, names of the segment tables) and holds a
lock on ``<data>/lock``.  Partitions are read from the shared tables while it runs and from the files
otherwise, so the answer needs no listener, no ZooKeeper and no free worker.  The object that :func:`collect`
returns is a contract::

    {"state": "serving",                          as the supervisor says; "stopped" when nothing runs
     "data": "/var/lib/appliance", "pid": 4711,   pid null when stopped
     "listeners": {"native": "127.0.0.1:9091", …},
     "zookeeper": {"connect": "…", "state": "connected"},
     "processes": [{"role", "pid", "started", "restarts", "partition"?, "topic"?}],
     "refused": [{"action", "waiting", "since", "attempts", "reason"}],   what the machine refuses at the moment
     "limits": [{"limit", "process", "value", "in_use", "since", "advice"}],         those that are reached now
     "removals": [{"topic", "partitions", "whole"}],     deletions that are not complete; not whole: the topic stays
     "partitions": [{"topic", "partition", "start", "end", "bytes", "messages", "state", "reason"?}]}

``start`` and ``end`` are offsets, so ``bytes`` is their difference.  ``messages`` is null where counting them
would mean reading the log (a partition that was not stopped cleanly and is not served).  ``limits``: names and
units are in :mod:`appliance.machine_limits`; ``process`` is empty where it is not one process that has reached it;
``value``, ``in_use`` and ``since`` are null where they are not known.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from .catalog import Catalog
from .errors import NoDirectory, WriterGone
from .log import FileCache, LogReader, peek
from .machine_limits import ADVICE, DISK, measure
from .partition_states import DISK_FULL, OFFLINE, STATE_NAMES
from .shared import memory
from .shared.table import SegmentTable, TableSnapshot

STATE_FILE = "state.json"
LOCK_FILE = "lock"
NOTHING: dict[str, Any] = {"listeners": {}, "zookeeper": {}, "processes": [], "refused": [], "limits": []}
"""The parts of a state that nothing serves."""


def read_state(data_dir: Path) -> dict[str, Any] | None:
    """What the supervisor of this directory last wrote about itself; None when nothing serves it.

    Raises:
        NoDirectory: there is no such directory.
    """
    if not data_dir.is_dir():
        raise NoDirectory(f"{data_dir}: no such directory; `appliance start --data {data_dir}` would make it")
    pid = holder(data_dir)
    if not pid:
        return None
    try:
        state: dict[str, Any] = json.loads((data_dir / STATE_FILE).read_text())
    except (FileNotFoundError, ValueError):
        state = {}
    if state.get("pid") != pid:  # of an earlier instance: the one that holds the lock has not come so far yet
        state = {"pid": pid, "state": "starting"}
    return NOTHING | {"tables": {}, "offline": {}} | state


def holder(data_dir: Path) -> int:
    """The pid that serves the directory, 0 when nobody does.

    The lock is tried only when the process named in the file exists, so that looking at a directory does not
    get into the way of an appliance that is just taking it.
    """
    try:
        with (data_dir / LOCK_FILE).open() as file:
            pid = int(file.read() or 0)
            if not pid or not Path(f"/proc/{pid}").exists():
                return 0
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return 0
    except BlockingIOError:
        return pid
    except (FileNotFoundError, ValueError):
        return 0


def collect(data_dir: Path) -> dict[str, Any]:
    """The status of an appliance, from inside or outside of its processes.

    Raises:
        NoDirectory: there is no such directory.
    """
    state = read_state(data_dir)
    served = state is not None
    state = state or {"state": "stopped", "pid": None} | NOTHING
    tables, offline = state.pop("tables", {}), state.pop("offline", {})
    partitions = []
    catalog = Catalog.load(data_dir)
    for name, topic, partition in hosted(data_dir, catalog):
        row = from_table(data_dir / name, tables[name]) if name in tables else None
        if row is None:
            row = from_files(data_dir / name) | ({"state": "opening"} if served else {})
        if name in offline:
            row |= {"state": STATE_NAMES[OFFLINE], "reason": offline[name]}
        partitions.append({"topic": topic, "partition": partition, **row})
    zookeeper = {"connect": "", "state": "off" if served else "stopped"} | state["zookeeper"]
    limits = [*state["limits"], *disk_full(data_dir, state["limits"], partitions)]
    more = {"zookeeper": zookeeper, "limits": limits, "removals": removals(catalog, tables), "partitions": partitions}
    return {**state, "data": str(data_dir), **more}


def disk_full(data_dir: Path, limits: list[dict[str, Any]], partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The limit that writers have reached, which show it in their tables alone; nothing if it is among ``limits``."""
    full = STATE_NAMES[DISK_FULL]
    if any(row["limit"] == DISK for row in limits) or all(row["state"] != full for row in partitions):
        return []
    value, in_use = measure(DISK, data_dir)
    return [{"limit": DISK, "process": "", "value": value, "in_use": in_use, "since": None, "advice": ADVICE[DISK]}]


def removals(catalog: Catalog, tables: dict[str, str]) -> list[dict[str, Any]]:
    """Deletions that have been decided and are not complete.

    While a topic is being created it is noted as one, too (:class:`.catalog.Removal`); its partitions have tables.
    """
    return [
        {"topic": removal.name, "partitions": sorted(removal.partitions), "whole": removal.whole}
        for removal in catalog.removals
        if not any(f"{removal.name}-{partition}" in tables for partition in removal.partitions)
    ]


def hosted(data_dir: Path, catalog: Catalog) -> list[tuple[str, str, int]]:
    """The partitions stored here, as (directory name, topic, partition), in order; the catalog knows them."""
    topics = catalog.topics.values()
    rows = [(f"{topic.name}-{number}", topic.name, number) for topic in topics for number in topic.partitions]
    return sorted((row for row in rows if (data_dir / row[0]).is_dir()), key=lambda row: row[1:])


def from_table(path: Path, table_name: str) -> dict[str, Any] | None:
    """A partition as its writer shows it; None when there is nothing to see (any more)."""
    try:
        mapped = memory.attach(table_name, writable=False)
        with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
            table = SegmentTable(cells)
            seen, records, state = table.snapshot(), table.records, STATE_NAMES[table.state]
    except (FileNotFoundError, WriterGone):
        return None
    return _row(seen, records - records_before(path, seen), state)


def records_before(path: Path, seen: TableSnapshot) -> int:
    """How many records lie before the start of a log whose oldest segments have been retired."""
    if seen.start == 0:
        return 0
    return LogReader(path, FileCache(2)).at(seen.bases, seen.high_watermark, seen.start)[1]


def from_files(path: Path) -> dict[str, Any]:
    """A partition that no writer shows: exact after a clean stop, else what the names and sizes say."""
    summary = peek(path)
    if summary is not None:
        seen = TableSnapshot(summary.bases, summary.start, summary.end)
        return _row(seen, summary.records - records_before(path, seen), "stopped")
    segments = sorted(path.glob("*.log"))
    start = int(segments[0].stem) if segments else 0
    end = int(segments[-1].stem) + segments[-1].stat().st_size if segments else 0
    return _row(TableSnapshot((start,), start, end), None, "needs recovery")


def _row(seen: TableSnapshot, messages: int | None, state: str) -> dict[str, Any]:
    sizes = {"start": seen.start, "end": seen.high_watermark, "bytes": seen.high_watermark - seen.start}
    return {**sizes, "messages": messages, "state": state}
