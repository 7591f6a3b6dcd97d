"""Finds which of the :mod:`.conditions` hold now, from what is known about an appliance.

:class:`Seen` has what is known.  All of it comes from ``state.json`` (:mod:`appliance.status`) and from the tables, but
for what only its own host knows (processor, connections) or the coordinator (groups).  What is not known is left out,
and nothing is found about it.  So the status line, ``health``, ``/ready``, ``doctor`` and the console say the same in
the same words; some of them look at more.

Each rule is a function from what is seen to findings.  Pure, and bounded: of one condition at most NAMED_MAX are named.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..machine_limits import DISK, DISK_WARN
from ..partition_states import DAMAGED, DISK_FULL, OFFLINE, OPENING, STATE_NAMES, damage_text
from ..security.audit_log import Reason
from ..units import duration, size
from . import conditions as of
from .conditions import CONDITIONS, CRITICAL, OTHERS, Condition

NAMED_MAX: Final = 10
LISTED_MAX: Final = 3
"""Partitions that one finding names."""
HUNG: Final = ("T", "t")
_OF_CERTIFICATES: Final = (Reason.CERTIFICATE, Reason.TLS_HANDSHAKE, Reason.PLAIN_ON_TLS, Reason.TLS_ON_PLAIN)
_OF_FLOODS: Final = (Reason.THROTTLED, Reason.CONNECTIONS_PER_ADDRESS, Reason.CONNECTIONS_PER_USER)


class Finding(NamedTuple):
    """A condition that holds: what is wrong, why, and what to do about it here."""

    condition: Condition
    what: str
    why: str
    todo: str
    page: str

    @property
    def exit_status(self) -> int:
        return self.condition.exit_status

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.what}{': ' if self.why else ''}{self.why}"

    def as_json(self) -> dict[str, str]:
        """The alert as an object for programs and pages."""
        condition = self.condition
        named = {"condition": condition.name, "level": condition.level}
        return {**named, "what": self.what, "why": self.why, "todo": self.todo, "page": self.page}


class Process(NamedTuple):
    """What the kernel knows of a process: its state as in /proc/PID/stat, now and before, and its share of a core."""

    state: str = "S"
    before: str = "S"
    busy: float = 0.0


class Disk(NamedTuple):
    """The disk of the logs, in bytes; ``rate``: by how much they grow per second; ``largest``: the largest topic."""

    size: int
    free: int
    rate: float = 0.0
    full_s: float | None = None
    largest: str = "NAME"


class Seen(NamedTuple):
    """What is known of an appliance.

    ``state``: what the supervisor has written; None: nothing runs.  ``partitions``: state and reason by name, see
    :func:`partitions_of`.  ``now_s``: since 1970, to judge restarts.  ``refused_before``: the refusals of an earlier
    look.  ``groups``: as the admin verb ``group``.  ``unknown``: why these could not be asked for.  ``peers``: number
    of connections by address.  ``arenas``: used and total bytes by worker.
    """

    state: Mapping[str, Any] | None
    partitions: Mapping[str, tuple[str, str]] = {}
    now_s: float | None = None
    disk: Disk | None = None
    processes: Mapping[int, Process] = {}
    refused_before: Mapping[str, int] | None = None
    groups: Sequence[Mapping[str, Any]] = ()
    unknown: str = ""
    peers: Mapping[str, int] = {}
    arenas: Mapping[str, tuple[int, int]] = {}


Rule = Callable[[Seen], Iterator[Finding]]


def partitions_of(state: Mapping[str, Any] | None, states: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """State and reason of partitions, from those of the tables and what the supervisor has written."""
    if state is None:
        return {}
    full = state.get("full") or {}
    found = {name: (one, full.get(name, "") if one == STATE_NAMES[DISK_FULL] else "") for name, one in states.items()}
    found |= {name: (STATE_NAMES[DISK_FULL], reason) for name, reason in full.items() if name not in states}
    found |= {name: (DAMAGED, damage_text(ranges)) for name, ranges in (state.get("damaged") or {}).items()}
    return found | {name: (STATE_NAMES[OFFLINE], reason) for name, reason in (state.get("offline") or {}).items()}


def seen_in(status: Mapping[str, Any], now_s: float) -> Seen:
    """What a whole status (:func:`appliance.status.collect`) says."""
    rows = status["partitions"]
    states = {f"{row['topic']}-{row['partition']}": (row["state"], row.get("reason", "")) for row in rows}
    return Seen(status if status["pid"] is not None else None, states, now_s)


def judge(seen: Seen) -> list[Finding]:
    """All that is wrong, the worst first; nothing when all is well."""
    if seen.state is None or seen.state.get("state") in (None, "stopped"):
        return [_finding(of.DOWN, "the appliance does not run")]
    found = [finding for rule in RULES for finding in _bounded(rule(seen))]
    return sorted(found, key=lambda one: (not one.condition.stops_all, one.exit_status or 100, not _critical(one)))


def wrong(seen: Seen) -> list[Finding]:
    """Those that keep the appliance from serving everything, or soon will: all that have an exit status."""
    return [one for one in judge(seen) if one.exit_status]


def exit_status(found: Iterable[Finding]) -> int:
    """0, 75 or 74: see :mod:`.conditions`."""
    return min((one.exit_status for one in found if one.exit_status), default=0)


def status_line(state: Mapping[str, Any], partitions: int, now_s: float) -> str:
    """One line for the service manager: what is served, then what is wrong, the worst first."""
    served = f"{state['state']} {partitions} partitions" if state["state"] == "serving" else str(state["state"])
    found = [one.text for one in wrong(Seen(state, partitions_of(state, {}), now_s)) if not one.condition.stops_all]
    insecure = [f"INSECURE: {', '.join(state['insecure'])}"] if state["insecure"] else []
    return "; ".join([served, *insecure, *found])


def _critical(finding: Finding) -> bool:
    return finding.condition.level == CRITICAL


def _finding(condition: Condition, what: str, why: str = "", todo: str = "", page: str = "") -> Finding:
    assert condition in CONDITIONS
    return Finding(condition, what, why, todo or condition.todo, page or condition.page)


def _bounded(found: Iterable[Finding]) -> Iterator[Finding]:
    """At most NAMED_MAX of each condition; the others are counted, as bad as they are."""
    counts: dict[Condition, int] = {}
    for finding in found:
        counts[finding.condition] = counts.get(finding.condition, 0) + 1
        if counts[finding.condition] <= NAMED_MAX:
            yield finding
    for condition, count in counts.items():
        if count > NAMED_MAX:
            what = f"{count - NAMED_MAX} more of these: {condition.name}"
            yield Finding(condition, what, "", OTHERS.todo, OTHERS.page)


# ---- rules: of what the supervisor has written


def _state(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    state, roles = seen.state["state"], {row["role"] for row in seen.state["processes"]}
    if state != "serving":
        whys = {"starting": "its logs are opened, or ZooKeeper is not there yet", "stopping": "somebody has stopped it"}
        yield _finding(of.NOT_SERVING, f"the appliance is {state}", whys.get(state, ""))
        return
    if "network" not in roles:
        yield _finding(of.NOT_SERVING, "no network worker runs", "clients are not answered")
    if "coordinator" not in roles:
        why = "groups and changes of topics wait"
        yield _finding(of.COORDINATOR_AWAY, "the coordinator is being started again", why)


def _partitions(seen: Seen) -> Iterator[Finding]:
    by_state: dict[str, list[str]] = {}
    for name, (state, reason) in sorted(seen.partitions.items()):
        by_state.setdefault(state, []).append(name)
        for bad, condition in ((STATE_NAMES[OFFLINE], of.PARTITION_OFFLINE), (DAMAGED, of.PARTITION_DAMAGED)):
            if state == bad:
                todo = condition.todo.replace("NAME", name)
                yield _finding(condition, f"{name} is {state}", reason, todo)
    if names := by_state.get(STATE_NAMES[DISK_FULL]):
        reasons = [reason for name in names if (reason := seen.partitions[name][1])]
        why = reasons[0] if reasons else "they can be read, not written"
        yield _finding(of.DISK_FULL, f"the disk is full: {_listed(names)}: producers are refused", why)
    if names := by_state.get(STATE_NAMES[OPENING]):
        yield _finding(of.PARTITION_OPENING, f"{_listed(names)}: being opened", "not served yet")


def _limits(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    full = any(state == STATE_NAMES[DISK_FULL] for state, _ in seen.partitions.values())
    for row in seen.state["limits"]:
        use = "" if row.get("in_use") is None else f"{row['in_use']:,} of "
        why = f"{use}{row['value']:,}" if row.get("value") is not None else ""
        where = f" of {row['process']}" if row["process"] else ""
        if row["limit"] == DISK_WARN:
            free = f"{size(row['value'] - row['in_use'])} are free" if row.get("in_use") is not None else ""
            yield _finding(of.DISK_LOW, "less than disk.free_bytes_warn is free on the disk", free, row["advice"])
        elif row["limit"] != DISK:
            yield _finding(of.LIMIT_REACHED, f"limit reached: {row['limit']}{where}", why, row["advice"])
        elif not full:
            yield _finding(of.DISK_FULL, "the disk is full", f"{why} bytes in use" if why else "", row["advice"])
    for row in seen.state.get("low", ()):
        what = f"few {row['limit']} are granted: {row['value']:,}"
        yield _finding(of.LIMIT_LOW, what, f"they allow {row['allows']}", row["advice"])
    for row in seen.state["refused"]:
        why = f"{row['reason']} ({row['attempts']} attempts)" if "attempts" in row else row["reason"]
        yield _finding(of.ACTION_REFUSED, f"the machine refuses to {row['action']}", why)


def _clock(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    clock = seen.state.get("clock")
    if not clock:
        return
    jump_ms, kept = clock["jump_ms"], clock["kept_bytes"]
    span = duration(abs(jump_ms) / 1000)
    when = f"believed in {duration(max(0, clock['believed'] - seen.now_s))}" if seen.now_s is not None else ""
    why = f"{size(kept)} of messages that are old only by it are kept" if kept else "nothing is deleted by it"
    what = f"the clock has jumped {'ahead' if jump_ms > 0 else 'back'} by {span}"
    yield _finding(of.CLOCK_JUMPED, what, "; ".join(filter(None, (why, when))))


def _zookeeper(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    zookeeper = seen.state["zookeeper"].get("state", "off")
    if zookeeper in ("off", "connected", "stopped"):
        return
    nodes = [row for row in seen.state["processes"] if row["role"] == "zookeeper"]
    down = [row for row in nodes if not row.get("pid") or seen.processes.get(row["pid"], Process()).state in "TtZ"]
    why = "groups and changes of topics wait"
    if nodes:
        stopped = f", stopped are {' '.join(str(row['pid']) for row in down)}" if down else ""
        why += f"; {len(nodes) - len(down)} of {len(nodes)} local nodes run{stopped}"
    yield _finding(of.ZOOKEEPER_AWAY, f"no quorum: ZooKeeper is {zookeeper}", why)


def _restarts(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    if seen.now_s is None:
        return
    for row in seen.state["processes"]:
        ago_s = seen.now_s - row["started"]
        if row["restarts"] and ago_s < of.RESTARTED_WITHIN_S:
            why = f"{row['restarts']} times; the last time {duration(ago_s)} ago"
            yield _finding(of.PROCESS_RESTARTED, f"{_name(row)} was started again", why)


def _insecure(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    if insecure := seen.state["insecure"]:
        why = f"other hosts reach {', '.join(insecure)}"
        yield _finding(of.INSECURE, "a listener has no TLS and no authentication", why)


def _certificates(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    tls = seen.state.get("tls") or {"error": "", "files": []}
    if tls["error"]:
        yield _finding(of.CERTIFICATE_UNUSABLE, "new files of tls.* cannot be used", tls["error"])
    for row in tls["files"] if seen.now_s is not None else ():
        left_s = row["expires"] - (seen.now_s or 0)
        where = f"{row['key']} = {row['file']}"
        if left_s <= 0:
            yield _finding(of.CERTIFICATE_EXPIRED, f"a certificate expired {duration(-left_s)} ago", where)
        elif left_s < of.EXPIRES_WITHIN_S:
            yield _finding(of.CERTIFICATE_EXPIRES, f"a certificate expires in {duration(left_s)}", where)


def _refusals(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    if seen.refused_before is None:
        return
    for reason, count in seen.state["refusals"].items():
        fresh = count - seen.refused_before.get(reason, 0)
        why = f"{count:,} since the start" + (f", {fresh:,} in this second" if fresh else "")
        todo, page = f"{of.JOURNAL} -g 'audit:.*{reason}' says who", ""
        if reason in _OF_CERTIFICATES:
            page = "listeners-and-tls"
        elif reason in _OF_FLOODS:
            todo, page = f"{todo}; appliance top shows how much", of.FLOOD.page
        yield _finding(of.CLIENTS_REFUSED, f"clients are refused: {reason}", why, todo, page)


# ---- rules: of what its host, or its coordinator, knows besides


def _disk(seen: Seen) -> Iterator[Finding]:
    disk = seen.disk
    if disk is None or not disk.size:
        return
    full_s = disk.full_s if disk.full_s is not None else disk.free / disk.rate if disk.rate else float("inf")
    soon = full_s < of.FULL_WITHIN_S
    if soon or disk.free < of.FREE_SHARE * disk.size:
        grows = f", logs grow by {size(int(disk.rate))}/s" if disk.rate else ""
        until = f" in {duration(full_s)} at this rate" if soon else " soon"
        why = f"{size(disk.free)} of {size(disk.size)} are free{grows}"
        yield _finding(of.DISK_FILLS_UP, f"the disk is full{until}", why, of.ROOM.replace("NAME", disk.largest))


def _processes(seen: Seen) -> Iterator[Finding]:
    assert seen.state is not None
    for row in seen.state["processes"]:
        pid, process = row["pid"], seen.processes.get(row["pid"], Process())
        if process.state in HUNG and row["role"] != "zookeeper":
            todo = f"kill -CONT {pid}, or kill -9 {pid}; it is killed and started again after liveness.timeout_ms"
            why = f"process {pid} is stopped (SIGSTOP or a debugger)"
            yield _finding(of.PROCESS_HANGS, f"{_name(row)} hangs", why, todo)
        elif process.state == process.before == "D":
            yield _finding(of.PROCESS_WAITS, f"{_name(row)} waits for a disk", f"process {pid} is in state D")
        elif process.busy >= of.BUSY:
            yield _finding(of.PROCESS_BUSY, f"{_name(row)} is busy", f"process {pid} uses {process.busy:.0%} of a core")


def _floods(seen: Seen) -> Iterator[Finding]:
    total = sum(seen.peers.values())
    for address, count in sorted(seen.peers.items(), key=lambda one: -one[1])[:1]:
        if count >= of.CONNECTIONS:
            why = f"{count:,} of {total:,} connections are from {address}"
            yield _finding(of.FLOOD, f"{address} floods the listeners", why, of.FLOOD.todo.replace("ADDRESS", address))
    for worker, (used, most) in seen.arenas.items():
        if used > of.ARENA_FULL * most:
            why = f"{size(used)} of {size(most)} are used: producers wait"
            yield _finding(of.ARENA_NEARLY_FULL, f"worker {worker} has hardly room for requests", why)


def _groups(seen: Seen) -> Iterator[Finding]:
    if seen.unknown:
        yield _finding(of.GROUPS_UNKNOWN, "groups cannot be asked for", seen.unknown)
    for group in seen.groups:
        behind = [row for row in group["partitions"] if row["lag_messages"]]
        late = [
            row for row in behind if (row["lag_seconds"] or 0) >= of.LAG_S or row["lag_messages"] >= of.LAG_MESSAGES
        ]
        if not late:
            continue
        worst = max(late, key=lambda row: row["lag_messages"])
        messages = sum(row["lag_messages"] for row in behind)
        seconds = max(row["lag_seconds"] or 0 for row in late)
        owner = next((each for each in group["members"] if each["id"] == worst["owner"]), None)
        if owner is not None:
            reader = f"read by {owner['client'] or owner['id']} at {owner['host']}"
        else:
            reader = "which no member reads" if group["members"] else "and it has no members"
        what = f"group {group['group']} lags by {messages:,} messages, {duration(seconds)}"
        why = f"most in {worst['topic']}-{worst['partition']}, {reader}"
        yield _finding(of.GROUP_LAGS, what, why, of.GROUP_LAGS.todo.replace("GROUP", group["group"]))


def _lost(seen: Seen) -> Iterator[Finding]:
    for group in seen.groups:
        lost: dict[str, int] = {}
        for row in group["partitions"]:
            if row.get("lost_bytes"):
                lost[row["topic"]] = lost.get(row["topic"], 0) + row["lost_bytes"]
        for topic, count in lost.items():
            what = f"{size(count)} of {topic} were removed before group {group['group']} had read them"
            why = "it has members: this ends when they commit" if group["members"] else "it has no members"
            filled = {"GROUP": shlex.quote(group["group"]), "TOPIC": topic}
            todo = " ".join(filled.get(word, word) for word in of.GROUP_LOST.todo.split(" "))
            yield _finding(of.GROUP_LOST, what, why, todo)


RULES: Final[tuple[Rule, ...]] = (
    *(_state, _partitions, _limits, _disk, _clock, _zookeeper, _processes, _restarts),
    *(_refusals, _floods, _groups, _lost, _insecure, _certificates),
)


def _name(row: Mapping[str, Any]) -> str:
    return f"writer of {row['topic']}-{row['partition']}" if row["role"] == "writer" else str(row["role"])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return ", ".join(names[:LISTED_MAX]) + more
