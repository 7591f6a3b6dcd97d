"""Says what is wrong now, why, and what to do: from the state that the supervisor writes, and from the topics.

Pure.  An alert is JSON: ``level``, ``what``, ``why``, ``todo``.  The level is "critical" when something does not work
now: partitions cannot be read or written, the disk is full, or ZooKeeper is away, so that groups wait.  It is "warning"
when that may happen soon, when a process has died, or when something is open that should not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ..machine_limits import DISK
from ..partition_states import DISK_FULL, OFFLINE, STATE_NAMES

LOOK: Final = "look at its log: `journalctl -u appliance`"
CRITICAL: Final = "critical"
WARNING: Final = "warning"
ALERTS_MAX: Final = 100
"""More are counted."""
YOUNG_S: Final = 600
"""How long a restart is worth a warning."""

Alert = dict[str, str]


def alerts_of(
    state: Mapping[str, Any], topics: Iterable[Mapping[str, Any]], free_bytes_min: int, now_s: float
) -> list[Alert]:
    """What is wrong, the worst first.

    Args:
        state: as :func:`appliance.status.read_state`, with ``disk``: total and free bytes of the data directory.
        topics: as the admin verb ``topics``.
        free_bytes_min: see ``disk.free_bytes_min``.
        now_s: seconds since 1970.
    """
    found = [*_of_appliance(state), *_of_partitions(state, topics), *_of_disk(state, free_bytes_min)]
    found += _of_processes(state, now_s)
    found.sort(key=lambda alert: alert["level"] != CRITICAL)
    if len(found) > ALERTS_MAX:
        more = len(found) - ALERTS_MAX + 1
        found[ALERTS_MAX - 1 :] = [_alert(WARNING, f"{more} more", "", "`appliance status` shows all of them")]
    return found


def _alert(level: str, what: str, why: str, todo: str) -> Alert:
    return {"level": level, "what": what, "why": why, "todo": todo}


def _of_appliance(state: Mapping[str, Any]) -> Iterator[Alert]:
    if state["state"] != "serving":
        yield _alert(
            WARNING, f"The appliance is {state['state']}", "", "Wait; then look at its log: journalctl -u appliance"
        )
    zookeeper = state["zookeeper"].get("state", "off")
    if zookeeper not in ("off", "connected"):
        why = "Groups, and creating and deleting topics, wait for it; produce and consume go on."
        yield _alert(
            CRITICAL, f"ZooKeeper is {zookeeper}", why, "Look for its nodes in `appliance status`, and at their logs"
        )
    for listener in state["insecure"]:
        why = "Other hosts reach it without TLS and authentication: whoever does may do everything."
        yield _alert(WARNING, f"The listener {listener} is insecure", why, "Use SASL_SSL, or listen on loopback")
    for row in state["refused"]:
        what = f"The machine refuses to {row['action']}"
        yield _alert(WARNING, what, f"{row['reason']}, {row['attempts']} attempts", "It is tried again; see the limits")
    for row in state["limits"]:
        of = f" of {row['process']}" if row["process"] else ""
        size = f"{row['in_use']} of {row['value']} in use" if row["value"] is not None else ""
        yield _alert(
            CRITICAL if row["limit"] == DISK else WARNING, f"Limit reached: {row['limit']}{of}", size, row["advice"]
        )


def _of_partitions(state: Mapping[str, Any], topics: Iterable[Mapping[str, Any]]) -> Iterator[Alert]:
    offline: Mapping[str, str] = state["offline"]
    full = 0
    for topic in topics:
        for row in topic["partitions"]:
            name = f"{topic['name']}-{row['partition']}"
            if row["state"] == STATE_NAMES[OFFLINE] or name in offline:
                todo = f"`appliance log verify DIR/{name}` shows the damage, `appliance log repair` mends it"
                yield _alert(CRITICAL, f"Partition {name} is offline", offline.get(name, ""), todo)
            full += row["state"] == STATE_NAMES[DISK_FULL]
    if full and not any(row["limit"] == DISK for row in state["limits"]):
        yield _alert(CRITICAL, f"The disk is full for {full} partitions", "They can be read, not written.", "Make room")


def _of_disk(state: Mapping[str, Any], free_bytes_min: int) -> Iterator[Alert]:
    disk = state["disk"]
    if disk["free"] < free_bytes_min:
        why = f"{disk['free'] >> 20} MiB are free; disk.free_bytes_min is {free_bytes_min >> 20} MiB."
        yield _alert(WARNING, "The disk is nearly full", why, "Old segments are deleted early: make room, or keep less")


def _of_processes(state: Mapping[str, Any], now_s: float) -> Iterator[Alert]:
    for row in state["processes"]:
        if row["restarts"] and now_s - row["started"] < YOUNG_S:
            of = f" of {row['topic']}-{row['partition']}" if row["role"] == "writer" else ""
            why = f"{row['restarts']} restarts, the last {round(now_s - row['started'])} s ago."
            yield _alert(
                WARNING, f"A process has died: {row['role']}{of}", why, "The log says why: journalctl -u appliance"
            )
