"""Collects the status of an appliance from its data directory, whether it runs or not.

A running supervisor keeps ``<data>/state.json`` (listeners, processes, names of the segment tables) and holds a
lock on ``<data>/lock``.  While it runs, partitions are read from the shared tables, otherwise from the files.  So the
status needs no listener, no ZooKeeper and no free worker.  The object that :func:`collect` returns is a contract::

    {"state": "serving",                          from the supervisor; "stopped" when nothing runs
     "data": "/var/lib/appliance", "pid": 4711,   pid null when stopped
     "version": "0.1.0", "started": 1763800000.0, seconds since 1970; both null when stopped
     "launch": {"words", "unit", "log"},       how it was started last: :class:`.launch.Launch`
     "listeners": {"native": "127.0.0.1:9091", "kafka": "127.0.0.1:9092,SASL_SSL://10.0.0.1:9093",
                   "local": "unix:/var/lib/appliance/native.sock"},
     "insecure": ["kafka 10.0.0.1:9092"],         open to other hosts without TLS and authentication
     "without_rules": ["kafka SASL_SSL://10.0.0.1:9093"],     who logs in there from other hosts may do everything
     "foreign": {"web-0": 1},                     partitions with a log here that another broker stores, and which
     "faults": [{"role", "reason", "todo"}],      why a process cannot start, and what to do
     "zookeeper": {"connect": "…", "state": "connected"},
     "cluster": {"leaderless": [{"broker", "host", "partitions", "names", "since"}], "rival": {...} or null,
                 "offsets_lost": {"at", "count", "groups": {group: [topic]}, "cluster", "found", "local"} or null},
                                                  {} at first
     "tls": {"error", "files": [{"key", "file", "expires"}]},   certificates; error: why newer files are not used
     "processes": [{"role", "pid", "started", "restarts", "partition"?, "topic"?}],
     "refused": [{"action", "waiting", "since", "attempts", "reason", "limit"}],   what the machine refuses now
     "restarts": {"network": 1}, "hangs": {"writer": 1},      by role; hangs: those that were killed because they hung
     "deaths": [{"role", "times", "status", "topic"?, "partition"?, "node"?}],   of the last 10 minutes
     "refusals": {"certificate": 3},                          to clients, by reason, since the start
     "refusals_recent": {"certificate": {"count", "last"}},   in the 5 minutes before the last one
     "reload": {"count", "error", "changed", "needs_restart"},  of the last one; rows of [key, value before, after]
     "disk": {"bytes_max", "free_bytes_min", "free_bytes_warn"},     of the configuration
     "clock": {"jump_ms", "believed", "kept_bytes"},       of a jump of the clock that is not believed; null without one
     "transactions": {"ids", "open", "late", "oldest": {"id", "state", "since"} or null, "hanging", "hanging_in"},
                            late: for too long open; the oldest one that is late; in how many partitions one is open
                            that nobody will end, and in which; {} without a coordinator
     "retention": {"age": 0, "size": 0, "room": 0},  bytes that it has removed, by reason, since the coordinator's start
     "inputs": {"disk": {"type", "topic", "state", "listen", "addresses", "lines", "bytes", "messages", "refused",
                         "gaps", "sources", "trouble", "todo", "refusing", "refused_lately", "further"}},
                            since the process of each began; what it waits for; whom it has refused something in the
                            last 5 minutes, and how many lines, requests or connections; how many sockets systemd
                            passes beyond one for each of its processes
     "trash": {"topics": 0, "bytes": 0},       deleted topics that can be brought back, and their room on the disk
     "host": {"disk": {"size", "free"}, "shm", "processes", "logs", ...},    :class:`.health.host.Host`; see there
     "limits": [{"limit", "process", "value", "in_use", "since", "advice"}],         limits reached now
     "low": [{"limit", "value", "allows", "advice"}],     of the machine, below what the configuration allows
     "strays": ["web-0"],                         directories of partitions that belong to no topic
     "uncompacted": [{"log", "since", "reason"}],        logs of compacted topics whose last pass has failed
     "removals": [{"topic", "partitions", "whole"}],     deletions in progress; not whole: the topic stays
     "failed_start": {"at", "exit_status", "message", "remedy", "launch"},    null when it runs, or has ended in order
     "killed": false,                             whether it has ended without stopping; false while it runs
     "partitions": [{"topic", "partition", "start", "end", "bytes", "messages", "state", "reason"?,
                     "damaged"?: [{"start", "stop", "file", "position", "reason"}]}]}      offsets that are not served

``start`` and ``end`` are offsets, so ``bytes`` is their difference.  ``messages`` is null when counting would need to
read the log: the partition was not stopped cleanly and is not served.  ``limits``: :mod:`appliance.machine_limits` has
names and units; ``process`` is empty for limits of the whole machine or service; unknown values of ``value``,
``in_use`` and ``since`` are null.  ``clock``: by how much it has jumped, when that is believed (seconds since 1970, by
this clock), and the bytes of logs that are old only by it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from .catalog import Catalog
from .connected_clients import CLIENTS_FILE
from .durable_files import replace_file
from .errors import BrokerAway, NoDirectory, WriterGone
from .launch import Launch
from .log import FileCache, LogReader, peek
from .log.partition_directory import trash_bytes
from .machine_limits import ADVICE, DISK, measure
from .owners import acting_as_owner
from .partition_states import DAMAGED, DISK_FULL, ELSEWHERE, OFFLINE, STATE_NAMES, damage_rows, damage_text
from .shared import memory
from .shared.table import SegmentTable, TableSnapshot

STATE_FILE = "state.json"
FAILED_START_FILE = "failed-start.json"
"""Why the last start has failed; there is none while an appliance serves the directory."""
LOCK_FILE = "lock"
NOTHING: dict[str, Any] = {
    "listeners": {},
    "insecure": [],
    "without_rules": [],
    "foreign": {},
    "faults": [],
    "tls": {"error": "", "files": []},
    "disk": {},
    "reload": {"count": 0, "error": "", "changed": [], "needs_restart": []},
    "restarts": {},
    "hangs": {},
    "deaths": [],
    "zookeeper": {},
    "cluster": {},
    "processes": [],
    "refused": [],
    "limits": [],
    "clock": None,
    "transactions": {},
    "retention": {},
    "trash": {"topics": 0, "bytes": 0},
    "compaction": {},
    "inputs": {},
    "low": [],
    "refusals": {},
    "strays": [],
    "uncompacted": [],
    "refusals_recent": {},
    "version": None,
    "started": None,
}
"""The default parts of a state, for a directory that is not served."""


def read_state(data_dir: Path) -> dict[str, Any] | None:
    """Read the last state that the supervisor of this directory wrote; None when it is not served.

    Raises:
        NoDirectory: there is no such directory.
    """
    if not data_dir.is_dir():
        raise NoDirectory(f"{data_dir}: no such directory; `appliance start --data {data_dir}` would create it")
    pid = holder(data_dir)
    if not pid:
        return None
    try:
        state: dict[str, Any] = msgspec.json.decode((data_dir / STATE_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        state = {}
    if state.get("pid") != pid:  # of an earlier instance: the one that holds the lock has not written yet
        state = {"pid": pid, "state": "starting"}
    return NOTHING | {"tables": {}, "pages": {}, "offline": {}, "full": {}, "damaged": {}} | state


def read_clients(data_dir: Path) -> dict[str, Any]:
    """Who is connected to the appliance that serves a directory; see :mod:`.connected_clients`.

    Nobody is, as far as is known, until a worker has told of a client, about a second after the first has come.

    Raises:
        NoDirectory: there is no such directory.
        BrokerAway: nobody serves it.
    """
    state = read_state(data_dir)
    if state is None:
        raise BrokerAway(f"no appliance serves {data_dir}")
    return clients_of(data_dir, state)


def clients_of(data_dir: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """As :func:`read_clients`, of an appliance whose state is known."""
    try:
        clients: dict[str, Any] = msgspec.json.decode((data_dir / CLIENTS_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        clients = {}
    if clients.pop("pid", 0) != state["pid"]:  # of an earlier appliance
        return {"clients": [], "others": 0}
    return clients


def note_failed_start(data_dir: Path, at_s: float, exit_status: int, message: str, remedy: str, launch: Launch) -> None:
    """Note a failed start for ``doctor``: whoever did not see it fail finds it nowhere else.

    No note is left in a directory that somebody else serves, or that belongs to somebody else.
    """
    note = {"at": at_s, "exit_status": exit_status, "message": message, "remedy": remedy, "launch": launch}
    with contextlib.suppress(OSError), acting_as_owner(data_dir):
        if data_dir.stat().st_uid != os.geteuid() or holder(data_dir) not in (0, os.getpid()):
            return
        replace_file(data_dir / FAILED_START_FILE, msgspec.json.encode(note))


def forget_failed_start(data_dir: Path) -> None:
    """Remove the note of a failed start: an appliance serves the directory now."""
    with contextlib.suppress(OSError):
        (data_dir / FAILED_START_FILE).unlink()


def failed_start(data_dir: Path) -> dict[str, Any] | None:
    """The note of the last failed start; None if a later one has succeeded, or none has failed."""
    try:
        note: dict[str, Any] = msgspec.json.decode((data_dir / FAILED_START_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return note if note.keys() == {"at", "exit_status", "message", "remedy", "launch"} else None


def was_killed(data_dir: Path) -> bool:
    """Whether the last appliance of a directory that nobody serves has ended without stopping in order."""
    return bool(_last_state(data_dir).get("state", "stopped") != "stopped")


def last_launch(data_dir: Path) -> Any:
    """How the appliance of a directory was started last, whether that start has failed or not."""
    return (failed_start(data_dir) or _last_state(data_dir)).get("launch") or msgspec.to_builtins(Launch())


def _last_state(data_dir: Path) -> dict[str, Any]:
    """What the last supervisor of a directory has written last, whether it runs or not; empty without one."""
    try:
        state = msgspec.json.decode((data_dir / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def holder(data_dir: Path) -> int:
    """The pid of the process that serves the directory; 0 without one.

    The lock is tried only when the process named in the file exists.  So this does not disturb an appliance that is
    about to take the lock.
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
    """Collect the status of an appliance, from inside or outside of its processes.

    Raises:
        NoDirectory: there is no such directory.
    """
    state = read_state(data_dir)
    served = state is not None
    state = state or {"state": "stopped", "pid": None} | NOTHING
    tables, offline, full, damaged = (state.pop(part, {}) for part in ("tables", "offline", "full", "damaged"))
    state.pop("pages", None)
    state["launch"] = last_launch(data_dir)
    partitions = []
    catalog = Catalog.load(data_dir)
    for name, topic, partition in hosted(data_dir, catalog):
        row = row_from_table(data_dir / name, tables[name], state["pid"]) if name in tables else None
        if row is None:
            row = row_from_files(data_dir / name) | ({"state": "opening"} if served else {})
        if name in state.get("foreign", {}):
            row |= {"state": ELSEWHERE}
        if name in offline:
            row |= {"state": STATE_NAMES[OFFLINE], "reason": offline[name]}
        elif name in full and row["state"] == STATE_NAMES[DISK_FULL]:
            row |= {"reason": full[name]}
        elif name in damaged:
            row |= damage(damaged[name])
        partitions.append({"topic": topic, "partition": partition, **row})
    zookeeper = {"connect": "", "state": "off" if served else "stopped"} | state["zookeeper"]
    limits = [*state["limits"], *disk_full(data_dir, state["limits"], partitions)]
    more = {"zookeeper": zookeeper, "limits": limits, "removals": removals(catalog, tables), "partitions": partitions}
    ended = {"failed_start": None if served else failed_start(data_dir), "killed": not served and was_killed(data_dir)}
    trash = {"topics": len(catalog.trash), "bytes": sum(trash_bytes(data_dir).values()) if catalog.trash else 0}
    return {**state, "data": str(data_dir), "trash": trash, **ended, **more}


def damage(ranges: list[list[Any]]) -> dict[str, Any]:
    """What the row of a partition says about damaged ranges, of which one exists."""
    return {"state": DAMAGED, "reason": damage_text(ranges), "damaged": damage_rows(ranges)}


def disk_full(data_dir: Path, limits: list[dict[str, Any]], partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The limit of a full disk, if the table of a writer shows it and ``limits`` does not have it."""
    full = STATE_NAMES[DISK_FULL]
    if any(row["limit"] == DISK for row in limits) or all(row["state"] != full for row in partitions):
        return []
    value, in_use = measure(DISK, data_dir)
    return [{"limit": DISK, "process": "", "value": value, "in_use": in_use, "since": None, "advice": ADVICE[DISK]}]


def removals(catalog: Catalog, tables: dict[str, str]) -> list[dict[str, Any]]:
    """Deletions that are decided and not complete.

    A topic being created has a removal, too (:class:`.catalog.Removal`).  It is left out: its partitions have tables.
    """
    return [
        {"topic": removal.name, "partitions": sorted(removal.partitions), "whole": removal.whole}
        for removal in catalog.removals
        if not any(f"{removal.name}-{partition}" in tables for partition in removal.partitions)
    ]


def hosted(data_dir: Path, catalog: Catalog) -> list[tuple[str, str, int]]:
    """The partitions of the catalog that are stored here, as (directory name, topic, partition), sorted."""
    topics = catalog.topics.values()
    rows = [(f"{topic.name}-{number}", topic.name, number) for topic in topics for number in topic.partitions]
    return sorted((row for row in rows if (data_dir / row[0]).is_dir()), key=lambda row: row[1:])


def row_from_table(path: Path, table_name: str, pid: int) -> dict[str, Any] | None:
    """The row of a partition from its table in the memory of the appliance ``pid``; None when it has no valid one."""
    try:
        mapped = memory.attach_elsewhere(table_name, pid)
        with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
            table = SegmentTable(cells)
            seen, records, state = table.snapshot(), table.records, STATE_NAMES[table.state]
    except (FileNotFoundError, WriterGone):
        return None
    return _row(seen, records - records_before(path, seen), state)


def records_before(path: Path, seen: TableSnapshot) -> int:
    """The number of records before the log start offset."""
    if seen.start == 0:
        return 0
    return LogReader(path, FileCache(2)).time_and_count(seen.bases, seen.high_watermark, seen.start)[1]


def row_from_files(path: Path) -> dict[str, Any]:
    """The row of a partition from its files: exact after a clean stop, else from their names and sizes."""
    summary = peek(path)
    if summary is not None:
        seen = TableSnapshot(summary.bases, summary.start, summary.end, summary.stable)
        return _row(seen, summary.records - records_before(path, seen), "stopped")
    segments = sorted(path.glob("*.log"))
    start = int(segments[0].stem) if segments else 0
    end = int(segments[-1].stem) + segments[-1].stat().st_size if segments else 0
    return _row(TableSnapshot((start,), start, end, start), None, "needs recovery")


def _row(seen: TableSnapshot, messages: int | None, state: str) -> dict[str, Any]:
    sizes = {"start": seen.start, "end": seen.high_watermark, "bytes": seen.high_watermark - seen.start}
    return {**sizes, "messages": messages, "state": state}
