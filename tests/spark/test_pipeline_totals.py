"""Totals: however events are cut into tasks and micro-batches, and in whatever order, they come to the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline.settings import Aggregate
from appliance.spark.pipeline.times import MICROS
from appliance.spark.pipeline.totals import Sessions, Sums, _total

EPOCH = datetime(2026, 11, 19, 22, tzinfo=UTC)
Event = tuple[int, str | None, str]
"""Minutes since EPOCH, host, level."""
event = st.tuples(st.integers(0, 4000), st.sampled_from(["a", "b", None]), st.sampled_from(["info", "error"]))
cut_events = st.lists(st.lists(event, max_size=12), min_size=1, max_size=6)


def table(events: Sequence[Event]) -> pa.Table:
    times = [EPOCH + timedelta(minutes=minute) for minute, _, _ in events]
    columns = {
        "time": pa.array(times, MICROS),
        "host": pa.array([host for _, host, _ in events], pa.string()),
        "level": pa.array([level for _, _, level in events], pa.string()),
    }
    return pa.table(columns)


def made(kind: Any, **more: Any) -> Sums | Sessions:
    return _total(Aggregate(name="t", kind=kind, by=("host",), **more), {"host": pa.string()})


class Stored:
    """A table of totals, replaced date by date, as the stores do."""

    def __init__(self, total: Sums | Sessions) -> None:
        self.total = total
        self.rows = total.schema.empty_table()

    def add(self, partials: Sequence[pa.Table]) -> pa.Table:
        """One micro-batch; rows that changed."""
        given_rows = [part for part in partials if len(part)]
        if not given_rows:
            return self.total.schema.empty_table()
        partial = self.total.merge(given_rows).drop_columns(["changed"])
        days = pa.array(self.total.touched(partial))
        old = self.rows.filter(pa.compute.is_in(self.rows.column("date"), days))
        whole = self.total.merge([partial], old)
        new = self.total.finish(whole)
        kept = self.rows.filter(pa.compute.invert(pa.compute.is_in(self.rows.column("date"), days)))
        assert set(new.column("date").to_pylist()) <= set(days.to_pylist()), "it is replaced date by date"
        self.rows = pa.concat_tables([kept, new])
        return new.filter(pa.compute.greater(whole.column("changed"), 0))


def fill(total: Sums | Sessions, batches: list[list[Event]]) -> list[dict[str, Any]]:
    stored = Stored(total)
    for number in range(0, len(batches), 2):  # micro-batches of two tasks
        stored.add([total.partial(table(events)) for events in batches[number : number + 2]])
    rows: list[dict[str, Any]] = stored.rows.to_pylist()
    return sorted(rows, key=lambda row: (row["start"], str(row["host"])))


@given(cut_events)
def test_counts_are_those_of_all_events_at_once(batches: list[list[Event]]) -> None:
    every = [each for events in batches for each in events]
    rows = fill(made("errors", window_ms=600_000), batches)
    counts = Counter((minute // 10, host) for minute, host, _ in every)
    errors = Counter((minute // 10, host) for minute, host, level in every if level == "error")
    assert len(rows) == len(counts)
    for row in rows:
        key = ((row["start"] - EPOCH) // timedelta(minutes=10), row["host"])
        assert (row["count"], row["errors"]) == (counts[key], errors[key])
        assert row["error_rate"] == errors[key] / counts[key]
        assert row["end"] - row["start"] == timedelta(minutes=10) and row["date"] == str(row["start"].date())


@given(cut_events)
def test_the_heaviest_of_each_window_are_ranked(batches: list[list[Event]]) -> None:
    every = [each for events in batches for each in events]
    rows = fill(made("top", window_ms=3_600_000), batches)
    for start in {row["start"] for row in rows}:
        ranked = sorted((row for row in rows if row["start"] == start), key=lambda row: row["rank"])
        assert [row["rank"] for row in ranked] == list(range(1, len(ranked) + 1))
        assert [row["count"] for row in ranked] == sorted((row["count"] for row in ranked), reverse=True)
    assert sum(row["count"] for row in rows) == sum(host is not None for _, host, _ in every)


def test_only_so_many_values_are_kept() -> None:
    events: list[Event] = [(0, f"h{number}", "info") for number in range(20) for _ in range(number + 1)]
    rows = fill(made("top", keep=5), [events])
    assert [row["count"] for row in sorted(rows, key=lambda row: row["rank"])] == [20, 19, 18, 17, 16]


@given(cut_events)
def test_sessions_are_those_of_all_events_at_once(batches: list[list[Event]]) -> None:
    every = sorted(each for events in batches for each in events if each[1] is not None)
    expected = []
    for host in ("a", "b"):
        sessions: list[list[int]] = []
        for minute in (minute for minute, whose, _ in every if whose == host):
            if sessions and minute - sessions[-1][1] < 30:
                sessions[-1][1] = minute
                sessions[-1][2] += 1
            else:
                sessions.append([minute, minute, 1])
        expected += [(host, *session) for session in sessions]
    rows = fill(made("sessions", gap_ms=1_800_000, session_ms=86_400_000), batches)
    minute = timedelta(minutes=1)
    found = [
        (row["host"], (row["start"] - EPOCH) // minute, (row["end"] - EPOCH) // minute, row["count"]) for row in rows
    ]
    assert sorted(found) == sorted(expected)


def test_an_endless_session_is_cut() -> None:
    events: list[Event] = [(minute, "a", "info") for minute in range(0, 4000, 10)]
    rows = fill(made("sessions", session_ms=86_400_000), [events[:200], events[200:], []])
    assert sum(row["count"] for row in rows) == 400
    assert len(rows) >= 3 and all(row["seconds"] <= 86_400 for row in rows)


def test_only_what_changed_is_told() -> None:
    total = made("count", window_ms=600_000)
    stored = Stored(total)
    stored.add([total.partial(table([(0, "a", "info"), (0, "b", "info")]))])
    (row,) = stored.add([total.partial(table([(1, "b", "info")]))]).to_pylist()
    assert (row["host"], row["count"]) == ("b", 2)
