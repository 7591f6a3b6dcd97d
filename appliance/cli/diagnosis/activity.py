"""Computes what ``top`` shows from two samples: rates of topics, lag of groups, the disk, and the processes."""

from __future__ import annotations

from typing import Any

from .samples import Sample, busy, rate


def activity(before: Sample, now: Sample) -> dict[str, Any]:
    """What ``top --json`` prints.  Rates are per second; unknown values are null::

    {"state", "zookeeper", "bytes_per_s", "messages_per_s", "disk_free", "disk_full_s", "connections",
     "topics": [{"topic", "messages_per_s", "bytes_per_s", "bytes", "not_online"}],        the busiest first
     "groups": [{"group", "members", "lag_messages", "lag_seconds", "change_per_s"}],     the latest first
     "processes": [{"role", "pid", "cpu", "restarts", "topic"?, "partition"?}]}           the busiest first
    """
    seconds = max(now.at_s - before.at_s, 1e-3)
    topics = _topics(before, now, seconds)
    speed = rate(before, now)
    free = now.disk[1] if now.disk is not None else None
    connections = [row["connections"] for row in now.status["processes"] if "connections" in row]
    return {
        "state": now.status["state"],
        "zookeeper": now.status["zookeeper"]["state"],
        "bytes_per_s": round(speed),
        "messages_per_s": sum(row["messages_per_s"] for row in topics),
        "disk_free": free,
        "disk_full_s": round(free / speed) if free is not None and speed >= 1 else None,
        "connections": sum(connections),
        "topics": topics,
        "groups": _groups(before, now, seconds),
        "processes": _processes(before, now),
    }


def _topics(before: Sample, now: Sample, seconds: float) -> list[dict[str, Any]]:
    counted = {(row["topic"], row["partition"]): row["messages"] for row in before.status["partitions"]}
    rows: dict[str, dict[str, Any]] = {}
    for row in now.status["partitions"]:
        name = row["topic"]
        sums = rows.setdefault(
            name, {"topic": name, "messages_per_s": 0, "bytes_per_s": 0, "bytes": 0, "not_online": 0}
        )
        sums["bytes"] += row["bytes"]
        sums["not_online"] += row["state"] != "online"
        earlier = counted.get((name, row["partition"]))
        if earlier is not None and row["messages"] is not None:
            sums["messages_per_s"] += max(0, row["messages"] - earlier) / seconds
    for name, sums in rows.items():
        sums["messages_per_s"] = round(sums["messages_per_s"])
        sums["bytes_per_s"] = round(rate(before, now, name))
    return sorted(rows.values(), key=lambda row: (-row["bytes_per_s"], -row["bytes"], row["topic"]))


def _groups(before: Sample, now: Sample, seconds: float) -> list[dict[str, Any]]:
    earlier = {group["group"]: _lag(group) for group in before.groups}
    rows = []
    for group in now.groups:
        lag = _lag(group)
        late = [row["lag_seconds"] for row in group["partitions"] if row["lag_seconds"] is not None]
        change = round((lag - earlier[group["group"]]) / seconds) if group["group"] in earlier else None
        members = len(group["members"])
        row = {"group": group["group"], "members": members, "lag_messages": lag, "lag_seconds": max(late, default=None)}
        rows.append(row | {"change_per_s": change})
    return sorted(rows, key=lambda row: (-row["lag_messages"], row["group"]))


def _lag(group: dict[str, Any]) -> int:
    return sum(row["lag_messages"] or 0 for row in group["partitions"])


def _processes(before: Sample, now: Sample) -> list[dict[str, Any]]:
    shares = busy(before, now)
    rows = []
    for row in now.status["processes"]:
        kept = {name: row[name] for name in ("role", "topic", "partition", "pid", "restarts") if name in row}
        rows.append(kept | {"cpu": round(shares[row["pid"]], 3) if row["pid"] in shares else None})
    return sorted(rows, key=lambda row: (-(row["cpu"] or 0), row["role"]))
