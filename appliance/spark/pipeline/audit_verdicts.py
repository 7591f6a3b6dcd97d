"""The paper's audit: what producers say that they sent, against what arrived, for each topic and window of time.

A window is *balanced* when both are equal.  Otherwise messages are *lost* or *doubled*; but a window whose end is not
``grace_ms`` old is *pending*, since counts and messages may still be on their way.  Topics for which no producer ever
published a count are not judged.  Windows go by the time that producers stamp messages with, so a topic must keep that
(message.timestamp.type=CreateTime) and all of its producers must publish counts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa


class Window(NamedTuple):
    """``verdict``: balanced, lost, doubled or pending."""

    topic: str
    start: datetime
    counted: int
    arrived: int
    verdict: str

    @property
    def difference(self) -> int:
        """Negative: lost; positive: doubled."""
        return self.arrived - self.counted


class Verdict(NamedTuple):
    """Over all windows; ``lost`` and ``doubled`` are messages, the others windows."""

    balanced: int
    pending: int
    lost: int
    doubled: int

    def __str__(self) -> str:
        told = f"{self.lost:,} lost, {self.doubled:,} doubled in {self.balanced + self.faulty:,} windows"
        return f"{told}, {self.pending:,} pending" if self.pending else told

    faulty: int = 0

    def as_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("lost", "doubled", "balanced", "faulty", "pending")}


def windows(table: pa.Table | None, now: datetime, grace_ms: int) -> list[Window]:
    """Judge the table of totals, in order of time."""
    rows: list[dict[str, Any]] = (
        [] if table is None else table.sort_by([("start", "ascending"), ("topic", "ascending")]).to_pylist()
    )
    audited = {row["topic"] for row in rows if row["counted"]}
    due = now - timedelta(milliseconds=grace_ms)
    return [
        Window(row["topic"], row["start"], row["counted"], row["arrived"], _verdict(row, due))
        for row in rows
        if row["topic"] in audited
    ]


def _verdict(row: dict[str, Any], due: datetime) -> str:
    if row["arrived"] == row["counted"]:
        return "balanced"
    if row["end"] > due:
        return "pending"
    return "lost" if row["arrived"] < row["counted"] else "doubled"


def verdict(judged: list[Window]) -> Verdict:
    told = [each.verdict for each in judged]
    return Verdict(
        balanced=told.count("balanced"),
        pending=told.count("pending"),
        lost=sum(-each.difference for each in judged if each.verdict == "lost"),
        doubled=sum(each.difference for each in judged if each.verdict == "doubled"),
        faulty=told.count("lost") + told.count("doubled"),
    )
