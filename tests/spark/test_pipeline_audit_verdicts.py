"""The audit's judgement of windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from appliance.spark.pipeline.audit_verdicts import verdict, windows

START = datetime(2026, 11, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def table(*rows: tuple[str, int, int, int]) -> pa.Table:
    """Topic, minute, sent, arrived."""
    return pa.Table.from_pylist(
        [
            {
                "topic": topic,
                "start": START + minute * MINUTE,
                "end": START + (minute + 1) * MINUTE,
                "counted": counted,
                "arrived": arrived,
            }
            for topic, minute, counted, arrived in rows
        ]
    )


def test_windows_are_judged_when_they_are_old_enough() -> None:
    rows = table(("b", 0, 5, 5), ("a", 0, 5, 3), ("a", 1, 5, 9), ("a", 2, 5, 4), ("quiet", 0, 0, 7))
    found = windows(rows, START + 3 * MINUTE, 60_000)
    assert [(each.topic, each.verdict, each.difference) for each in found] == [
        ("a", "lost", -2),
        ("b", "balanced", 0),
        ("a", "doubled", 4),
        ("a", "pending", -1),
    ]
    judged = verdict(found)
    assert judged.as_json() == {"lost": 2, "doubled": 4, "balanced": 1, "faulty": 2, "pending": 1}
    assert str(judged) == "2 lost, 4 doubled in 3 windows, 1 pending"


def test_what_was_sent_and_has_not_arrived_at_all_is_lost() -> None:
    (window,) = windows(table(("a", 0, 5, 0)), START + 10 * MINUTE, 60_000)
    assert (window.verdict, window.difference) == ("lost", -5)


def test_nothing_is_judged_where_nothing_is_counted() -> None:
    assert windows(None, START, 0) == []
    assert str(verdict([])) == "no counts were published: nothing is audited" and not verdict([]).audited
