"""The audit's judgement of windows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from appliance.names import TopicPartition
from appliance.spark.pipeline.audit_counts import PARSER, WINDOWS, read_windows
from appliance.spark.pipeline.audit_verdicts import verdict, windows
from appliance.spark.pipeline.event_questions import Questions
from appliance.spark.pipeline.settings import Audit
from appliance.spark.pipeline.times import MICROS

from ...support.spending import spent_by

START = datetime(2026, 11, 20, tzinfo=UTC)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


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


def test_windows_of_which_the_table_may_not_have_all_are_not_judged(tmp_path: Path) -> None:
    """Ten lines a minute in each of two partitions; a table that begins at an offset other than 0 may lack some."""
    rows = [
        {"topic": "t", "partition": part, "offset": 60 * minute + at, "received": START + minute * MINUTE + at * SECOND}
        for part in range(2)
        for minute in range(4)
        for at in range(0, 60, 6)
        if part == 0 or (minute, at) >= (1, 30)
    ]
    for minute in range(4):
        told = {"topic": "t", "window_start_ms": int((START + minute * MINUTE).timestamp() * 1000), "window_ms": 60_000}
        counted = {"message": json.dumps(told | {"count": 20}), "parser": PARSER}
        row = {"topic": "counts", "partition": 0, "offset": minute, "received": START + (minute + 1.1) * MINUTE}
        rows.append(row | counted)
    columns = {"received": pa.array([row["received"] for row in rows], MICROS)}
    columns |= {name: pa.array([row[name] for row in rows]) for name in ("topic", "partition", "offset")}
    columns |= {name: pa.array([row.get(name) for row in rows], pa.string()) for name in ("message", "parser")}
    write_deltalake(str(tmp_path), pa.table(columns))
    asked = Questions(DeltaTable(str(tmp_path)))

    def judged(**since: int) -> list[tuple[int, int]]:
        beginnings = {TopicPartition(name[:-1], int(name[-1])): offset for name, offset in since.items()}
        found = read_windows(asked, Audit("counts"), beginnings=beginnings).to_pylist()
        return [((row["start"] - START) // MINUTE, row["arrived"]) for row in found]

    assert judged() == [(0, 10), (1, 15), (2, 20), (3, 20)], "it has all: these are lost"
    assert judged(t1=90) == [(2, 20), (3, 20)]
    assert judged(counts0=1, t1=0) == [(2, 20), (3, 20)], "counts of earlier windows may have come before"


def test_what_was_sent_and_has_not_arrived_at_all_is_lost() -> None:
    (window,) = windows(table(("a", 0, 5, 0)), START + 10 * MINUTE, 60_000)
    assert (window.verdict, window.difference) == ("lost", -5)


def test_nothing_is_judged_where_nothing_is_counted() -> None:
    assert windows(WINDOWS.empty_table(), START, 0) == []
    assert str(verdict([])) == "no counts were published: nothing is audited" and not verdict([]).audited


def read_counts(directory: str) -> None:
    found = read_windows(Questions(DeltaTable(directory)), Audit("counts"))
    assert found.column("counted").to_pylist() == [6000] * 10


def test_counts_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """There is a message of each server, topic and window, for as long as the table keeps them."""
    messages = [
        b'{"topic": "t", "window_start_ms": %d, "window_ms": 60000, "count": 1}' % (number % 10 * 60_000)
        for number in range(60_000)
    ]
    rows = {
        "topic": ["counts"] * len(messages),
        "parser": [PARSER] * len(messages),
        "message": pa.array(messages, pa.binary()).cast(pa.string()),
        "received": pa.array([0] * len(messages), pa.int64()).cast(MICROS),
    }
    write_deltalake(str(tmp_path), pa.table(rows))
    (spent,) = spent_by(read_counts, [(str(tmp_path),)])
    assert spent.error == "" and spent.peak_bytes < 6 << 20
