"""Computes what ``top`` shows from two samples: rates of topics, lag of groups, the disk, and the processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...metrics.looks import Look, busy, rate, seconds_between


class Sample(NamedTuple):
    """A look at an appliance, and the groups that there was time for, as the admin verb ``group``."""

    look: Look
    groups: Sequence[Mapping[str, Any]] = ()


def activity(before: Sample, now: Sample) -> dict[str, Any]:
    """What ``top --json`` prints.  Rates are per second; unknown values are null::

    {"state", "zookeeper", "bytes_per_s", "messages_per_s", "disk_free", "disk_full_s", "connections",
     "topics": [{"topic", "messages_per_s", "bytes_per_s", "bytes", "not_online"}],        the busiest first
     "groups": [{"group", "members", "lag_messages", "lag_seconds", "change_per_s"}],     the latest first
     "processes": [{"role", "pid", "cpu", "restarts", "topic"?, "partition"?}]}           the busiest first
    """
    look = now.look
    topics = _topics(before.look, look)
    speed, room = rate(before.look, look), look.readings.room
    connections = [row["connections"] for row in look.state["processes"] if "connections" in row]
    return {
        "state": look.state["state"],
        "zookeeper": look.state["zookeeper"].get("state", "off"),
        "bytes_per_s": round(speed),
        "messages_per_s": sum(row["messages_per_s"] for row in topics),
        "disk_free": room.free if room.size else None,
        "disk_full_s": round(room.left / speed) if room.size and speed >= 1 else None,
        "connections": sum(connections),
        "topics": topics,
        "groups": _groups(before, now),
        "processes": _processes(before.look, now.look),
    }


def _topics(before: Look, now: Look) -> list[dict[str, Any]]:
    seconds = seconds_between(before, now)
    rows: dict[str, dict[str, Any]] = {}
    not_online = Counter(name.rpartition("-")[0] for name in now.readings.not_online)
    for topic in {key.topic for key in now.readings.partitions} | not_online.keys():
        zero = {"messages_per_s": 0, "bytes_per_s": 0, "bytes": 0}
        rows[topic] = {"topic": topic, **zero, "not_online": not_online[topic]}
    earlier = before.readings.partitions
    for key, counts in now.readings.partitions.items():
        row = rows[key.topic]
        row["bytes"] += counts.high_watermark - counts.start
        if key in earlier:
            row["messages_per_s"] += max(0, counts.records - earlier[key].records) / seconds
            row["bytes_per_s"] += max(0, counts.high_watermark - earlier[key].high_watermark) / seconds
    for row in rows.values():
        row |= {name: round(row[name]) for name in ("messages_per_s", "bytes_per_s")}
    return sorted(rows.values(), key=lambda row: (-row["bytes_per_s"], -row["bytes"], row["topic"]))


def _groups(before: Sample, now: Sample) -> list[dict[str, Any]]:
    seconds = seconds_between(before.look, now.look)
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


def _lag(group: Mapping[str, Any]) -> int:
    return sum(row["lag_messages"] or 0 for row in group["partitions"])


def _processes(before: Look, now: Look) -> list[dict[str, Any]]:
    shares = busy(before, now)
    rows = []
    for row in now.state["processes"]:
        kept = {name: row[name] for name in ("role", "topic", "partition", "pid", "restarts") if name in row}
        rows.append(kept | {"cpu": round(shares[row["pid"]], 3) if row["pid"] in shares else None})
    return sorted(rows, key=lambda row: (-(row["cpu"] or 0), row["role"]))
