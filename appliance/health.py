"""Judges the state of an appliance: what keeps it from serving everything, and the exit status that says so.

============  ======================================================================================
exit status   meaning
============  ======================================================================================
0             everything is served
75            something passes or waits for room: not running, starting, stopping, ZooKeeper away, a full disk, a limit
              that is reached, a step that the machine refuses
74            a partition is offline, because its files cannot be trusted: a person has to look
============  ======================================================================================

A state is that of ``state.json`` (:mod:`appliance.status`); everything here is a function of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from .errors import StorageFault, Unavailable
from .partition_states import DISK_FULL, OFFLINE, OPENING, STATE_NAMES

NAMED_MAX: Final = 3
"""Partitions that a finding names; the others are counted."""


class Finding(NamedTuple):
    """One thing that is wrong.  ``stops_all``: nobody is served because of it."""

    exit_status: int
    text: str
    stops_all: bool = False


def findings(state: Mapping[str, Any] | None, partitions: Mapping[str, str]) -> list[Finding]:
    """What is wrong now, the worst first; nothing when all is well.

    Args:
        state: what the supervisor has written; None: nothing runs.
        partitions: the state of each partition (STATE_NAMES), by ``topic-number``.
    """
    if state is None or state.get("state") in (None, "stopped"):
        return [_passing("it does not run: start it with `appliance start` or systemctl", stops_all=True)]
    found = []
    if state["state"] != "serving":
        found.append(_passing(f"it is {state['state']}", stops_all=True))
    roles = {row["role"] for row in state["processes"]}
    if state["state"] == "serving" and "network" not in roles:
        found.append(_passing("no network worker runs: clients are not answered", stops_all=True))
    if state["state"] == "serving" and "coordinator" not in roles:
        found.append(_passing("the coordinator is being started again: groups and changes of topics wait"))
    zookeeper = state["zookeeper"].get("state", "off")
    if zookeeper not in ("off", "connected", "stopped"):
        found.append(_passing(f"ZooKeeper is {zookeeper}: groups and changes of topics wait"))
    offline = dict.fromkeys((name for name, one in partitions.items() if one == STATE_NAMES[OFFLINE]), "")
    offline |= state.get("offline") or {}
    for name, reason in sorted(offline.items())[:NAMED_MAX]:
        found.append(Finding(StorageFault.exit_status, f"{name} is offline{': ' if reason else ''}{reason}"))
    if len(offline) > NAMED_MAX:
        found.append(Finding(StorageFault.exit_status, f"{len(offline) - NAMED_MAX} more partitions are offline"))
    for number, consequence in ((DISK_FULL, "produce is refused until there is room"), (OPENING, "not served yet")):
        names = sorted(name for name, one in partitions.items() if one == STATE_NAMES[number] and name not in offline)
        if names:
            found.append(_passing(f"{STATE_NAMES[number]}: {_some(names)}: {consequence}"))
    for row in state["limits"]:
        where = f" in {row['process']}" if row["process"] else ""
        found.append(_passing(f"limit reached{where}: {row['limit']}: {row['advice']}"))
    for row in state["refused"]:
        found.append(_passing(f"the machine refuses to {row['action']}: {row['reason']}"))
    return sorted(found, key=lambda one: (not one.stops_all, one.exit_status))


def exit_status(found: Iterable[Finding]) -> int:
    """0, 75 or 74: see the head of this module."""
    return min((one.exit_status for one in found), default=0)


def status_line(state: Mapping[str, Any], partitions: int) -> str:
    """One line for the service manager: what is served, then what is wrong, the worst first."""
    served = f"{state['state']} {partitions} partitions" if state["state"] == "serving" else str(state["state"])
    wrong = [one.text for one in findings(state, {}) if not one.stops_all]
    insecure = [f"INSECURE: {', '.join(state['insecure'])}"] if state["insecure"] else []
    return "; ".join([served, *insecure, *wrong])


def _passing(text: str, stops_all: bool = False) -> Finding:
    return Finding(Unavailable.exit_status, text, stops_all)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
