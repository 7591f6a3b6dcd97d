"""Judges two samples of an appliance: what is wrong, why, what to do about it, and which page explains it.

Each rule is a function from samples to findings; :data:`RULES` has them in the order in which they are shown.  A
finding is ``wrong`` when messages are not served, or are about to be refused, and a ``warning`` otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ...security.audit_log import Reason
from .. import output
from .samples import Sample, busy, rate

WRONG: Final = "wrong"
WARNING: Final = "warning"
DAMAGED, NOT_NOW = 74, 75

LAG_S: Final = 60
LAG_MESSAGES: Final = 10_000
FREE_SHARE: Final = 0.05
FULL_WITHIN_S: Final = 24 * 3600
RESTARTED_WITHIN_S: Final = 600
BUSY: Final = 0.9
CONNECTIONS: Final = 500
"""So many connections from one address are named."""

_OF_CERTIFICATES: Final = (Reason.CERTIFICATE, Reason.TLS_HANDSHAKE, Reason.PLAIN_ON_TLS, Reason.TLS_ON_PLAIN)
_OF_FLOODS: Final = (Reason.THROTTLED, Reason.CONNECTIONS_PER_ADDRESS, Reason.CONNECTIONS_PER_USER)


class Finding(NamedTuple):
    """``page``: the part of systemd/README.md.  ``status``: the exit status if this is the worst."""

    level: str
    what: str
    why: str
    do: str
    page: str
    status: int = NOT_NOW


Rule = Callable[[Sample, Sample], Iterator[Finding]]


def judge(before: Sample, now: Sample) -> list[Finding]:
    """All findings, the wrong ones first."""
    found = [finding for rule in RULES for finding in rule(before, now)]
    return sorted(found, key=lambda finding: finding.level != WRONG)


def _state(before: Sample, now: Sample) -> Iterator[Finding]:
    state = now.status["state"]
    if state == "stopped":
        do = "systemctl start appliance; journalctl -u appliance -n 50 says why it ended"
        yield Finding(
            WRONG, "the appliance does not run", f"nobody serves {now.status['data']}", do, "start-stop-reload"
        )
    elif state != "serving":
        why = "its logs are opened, or ZooKeeper is not there yet" if state == "starting" else "somebody has stopped it"
        yield Finding(
            WRONG, f"the appliance is {state}", why, "appliance status shows what it waits for", "start-stop-reload"
        )


def _partitions(before: Sample, now: Sample) -> Iterator[Finding]:
    if now.status["pid"] is None:
        return
    for row in now.status["partitions"]:
        name = f"{row['topic']}-{row['partition']}"
        if row["state"] in ("offline", "damaged"):
            do = f"appliance log verify {name} shows the damage, appliance log repair {name} --dry-run what can be kept"
            yield Finding(WRONG, f"{name} is {row['state']}", row.get("reason", ""), do, "damage-and-repair", DAMAGED)
        elif row["state"] == "opening":
            yield Finding(WARNING, f"{name} is being opened", "its log is recovered", "wait", "faults")
    full = [f"{row['topic']}-{row['partition']}" for row in now.status["partitions"] if row["state"] == "disk full"]
    if full:
        do = "make room, or appliance topics alter NAME --setting retention.bytes=10GiB"
        yield Finding(WRONG, f"{len(full)} partitions take nothing", "the disk is full", do, "disk")


def _disk(before: Sample, now: Sample) -> Iterator[Finding]:
    if now.disk is None:
        return
    total, free = now.disk
    speed = rate(before, now)
    left_s = free / speed if speed else float("inf")
    at = f"{output.size(free)} of {output.size(total)} are free"
    if speed:
        at += f", logs grow by {output.size(int(speed))}/s"
    sizes: dict[str, int] = {}
    for row in now.status["partitions"]:
        sizes[row["topic"]] = sizes.get(row["topic"], 0) + row["bytes"]
    largest = max(sizes, key=lambda topic: sizes[topic], default="NAME")
    do = f"make room, or appliance topics alter {largest} --setting retention.bytes=10GiB"
    if left_s < FULL_WITHIN_S or free < FREE_SHARE * total:
        until = f" in {output.duration(left_s)} at this rate" if left_s < FULL_WITHIN_S else " soon"
        yield Finding(WARNING, f"the disk is full{until}", at, do, "disk")


def _zookeeper(before: Sample, now: Sample) -> Iterator[Finding]:
    zookeeper = now.status["zookeeper"]
    if now.status["state"] != "serving" or zookeeper["state"] in ("connected", "off"):
        if now.error is not None:
            yield Finding(WARNING, "groups cannot be asked for", str(now.error), "appliance groups list", "groups")
        return
    nodes = [row for row in now.status["processes"] if row["role"] == "zookeeper"]
    standing = [str(row["pid"]) for row in nodes if now.states.get(row["pid"], "S") in "TZ" or not row["pid"]]
    why = f"ZooKeeper is {zookeeper['state']} ({zookeeper['connect']})"
    if nodes:
        why += f"; {len(nodes) - len(standing)} of {len(nodes)} local nodes run"
        why += f", stopped are {' '.join(standing)}" if standing else ""
    do = "see the processes of appliance status; journalctl -u appliance -g zookeeper"
    yield Finding(WRONG, "no quorum: groups and changes of topics wait", why, do, "faults")


def _processes(before: Sample, now: Sample) -> Iterator[Finding]:
    shares = busy(before, now)
    for row in now.status["processes"]:
        name, pid = _process(row), row["pid"]
        if now.states.get(pid) in ("T", "t"):
            do = f"kill -CONT {pid}, or kill -9 {pid}; it is killed and started again after liveness.timeout_ms"
            yield Finding(WRONG, f"{name} hangs", f"process {pid} is stopped (SIGSTOP or a debugger)", do, "faults")
        elif now.states.get(pid) == "D" and before.states.get(pid) == "D":
            yield Finding(WARNING, f"{name} waits for a disk", f"process {pid} is in state D", "iostat -x 1", "faults")
        elif shares.get(pid, 0) >= BUSY:
            why = f"process {pid} uses {shares[pid]:.0%} of a core"
            yield Finding(WARNING, f"{name} is busy", why, "appliance top shows which topics", "a-bad-day")
        ago_s = time.time() - row["started"]
        if row["restarts"] and ago_s < RESTARTED_WITHIN_S:
            why = f"{row['restarts']} times; the last time {output.duration(ago_s)} ago"
            do = f"journalctl -u appliance --since -15min says why {name} ended"
            yield Finding(WARNING, f"{name} was started again", why, do, "faults")


def _limits(before: Sample, now: Sample) -> Iterator[Finding]:
    for row in now.status["limits"]:
        use = "" if row["in_use"] is None else f"{row['in_use']:,} of "
        at = f"{use}{row['value']:,}" if row["value"] is not None else ""
        where = f" of {row['process']}" if row["process"] else ""
        yield Finding(WRONG, f"{row['limit']}{where} is at its limit", at, row["advice"], "faults")
    for row in now.status["refused"]:
        why = f"{row['reason']} ({row['attempts']} attempts)"
        yield Finding(WRONG, f"the machine refuses: {row['action']}", why, "see the limits above", "faults")


def _refusals(before: Sample, now: Sample) -> Iterator[Finding]:
    earlier = before.status["refusals"]
    for reason, count in now.status["refusals"].items():
        fresh = count - earlier.get(reason, 0)
        why = f"{count:,} since the start" + (f", {fresh:,} in this second" if fresh else "")
        do = f"journalctl -u appliance -g 'audit:.*{reason}' says who"
        page = "security"
        if reason in _OF_CERTIFICATES:
            page = "listeners-and-tls"
        elif reason in _OF_FLOODS:
            do += "; appliance top shows how much"
            page = "access-rules-and-quotas"
        yield Finding(WARNING, f"clients are refused: {reason}", why, do, page)


def _floods(before: Sample, now: Sample) -> Iterator[Finding]:
    total = sum(now.peers.values())
    for address, count in now.peers.most_common(1):
        if count >= CONNECTIONS:
            why = f"{count:,} of {total:,} connections are from {address}"
            do = f"ss -tnp dst {address}; quotas and network.connections_max limit it"
            yield Finding(WARNING, f"{address} floods the listeners", why, do, "access-rules-and-quotas")


def _groups(before: Sample, now: Sample) -> Iterator[Finding]:
    for group in now.groups:
        behind = [row for row in group["partitions"] if row["lag_messages"]]
        late = [row for row in behind if (row["lag_seconds"] or 0) >= LAG_S or row["lag_messages"] >= LAG_MESSAGES]
        if not late:
            continue
        worst = max(late, key=lambda row: row["lag_messages"])
        messages = sum(row["lag_messages"] for row in behind)
        seconds = max(row["lag_seconds"] or 0 for row in late)
        why = f"most in {worst['topic']}-{worst['partition']}, "
        owner = next((each for each in group["members"] if each["id"] == worst["owner"]), None)
        if owner is not None:
            why += f"read by {owner['client'] or owner['id']} at {owner['host']}"
        else:
            why += "which no member reads" if group["members"] else "and it has no members"
        what = f"group {group['group']} lags by {messages:,} messages, {output.duration(seconds)}"
        do = f"appliance groups describe {group['group']}; more members, or look at that one"
        yield Finding(WARNING, what, why, do, "groups")


def _insecure(before: Sample, now: Sample) -> Iterator[Finding]:
    if now.status["insecure"]:
        why = f"other hosts reach {', '.join(now.status['insecure'])}"
        do = "use SASL_SSL, or SSL with tls.client_auth"
        yield Finding(WARNING, "a listener has no TLS and no authentication", why, do, "security")


RULES: Final[tuple[Rule, ...]] = (
    *(_state, _partitions, _disk, _zookeeper, _processes, _limits, _refusals, _floods, _groups, _insecure),
)


def _process(row: dict[str, object]) -> str:
    return f"writer of {row['topic']}-{row['partition']}" if row["role"] == "writer" else str(row["role"])
