"""Compares the counts of producers with the messages that arrived, per topic and window of time: the paper's audit.

A window is *balanced* when both are equal.  Otherwise messages are *lost* or *doubled* (duplicated).  A window whose
end is not ``grace_ms`` old is *pending*, because counts and messages may still arrive.  Topics without any count
are left out.

Windows use the timestamps of producers, so a topic must keep them (message.timestamp.type=CreateTime), and all of its
producers must publish counts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa


class Window(NamedTuple):
    """One topic and window.  ``verdict``: balanced, lost, doubled or pending."""

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
    """The sums over all windows; ``lost`` and ``doubled`` count messages, the others windows."""

    balanced: int
    pending: int
    lost: int
    doubled: int

    @property
    def audited(self) -> bool:
        """Whether anybody has published counts."""
        return bool(self.balanced + self.pending + self.faulty)

    def __str__(self) -> str:
        if not self.audited:
            return "no counts were published: nothing is audited"
        text = f"{self.lost:,} lost, {self.doubled:,} doubled in {self.balanced + self.faulty:,} windows"
        return f"{text}, {self.pending:,} pending" if self.pending else text

    faulty: int = 0

    def as_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("lost", "doubled", "balanced", "faulty", "pending")}


def windows(table: pa.Table, now: datetime, grace_ms: int) -> list[Window]:
    """Judge windows as :func:`~.audit_counts.read_windows` gives them, in order of time."""
    rows: list[dict[str, Any]] = table.sort_by([("start", "ascending"), ("topic", "ascending")]).to_pylist()
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
    verdicts = [window.verdict for window in judged]
    return Verdict(
        balanced=verdicts.count("balanced"),
        pending=verdicts.count("pending"),
        lost=sum(-window.difference for window in judged if window.verdict == "lost"),
        doubled=sum(window.difference for window in judged if window.verdict == "doubled"),
        faulty=verdicts.count("lost") + verdicts.count("doubled"),
    )
