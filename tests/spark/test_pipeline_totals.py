"""Totals: however events are divided into tasks and micro-batches, and in whatever order, the result is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline import aggregates, total_parts
from appliance.spark.pipeline.settings import Aggregate
from appliance.spark.pipeline.space_saving import heaviest_of_all
from appliance.spark.pipeline.table_files import Part
from appliance.spark.pipeline.times import MICROS
from appliance.spark.pipeline.total_parts import change, touched_days
from appliance.spark.pipeline.totals import Total, micros_of
from appliance.spark.pipeline.watermarks import Newest, Watermarks

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


def made(kind: Any, by: Sequence[str] = ("host",), **more: Any) -> Total:
    return aggregates.total(Aggregate(name="t", kind=kind, by=tuple(by), **more), dict.fromkeys(by, pa.string()))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few rows fill a part, so that tables of a test have several."""
    monkeypatch.setattr(total_parts, "PART_ROWS_MAX", 3)
    yield


class Stored:
    """A table of totals in memory, changed part by part, as the stores do."""

    def __init__(self, total: Total) -> None:
        self.total = total
        self.parts: dict[Part, pa.Table] = {}
        self.written = 0

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables([self.total.schema.empty_table(), *self.parts.values()])

    def add(self, partials: Sequence[pa.Table]) -> pa.Table:
        """One micro-batch; rows that changed."""
        given_rows = [part for part in partials if len(part)]
        if not given_rows:
            return self.total.schema.empty_table()
        return self.add_partial(self.total.merge(given_rows).drop_columns(["changed"]))

    def add_partial(self, partial: pa.Table) -> pa.Table:
        days = touched_days(self.total, partial)
        near = [part for part in self.parts if part.date in days]
        found, changed = change(self.total, partial, near, lambda each: pa.concat_tables(self.parts[e] for e in each))
        for old, rows in found.contents:
            assert old is None or old in near, "only parts of the given dates are replaced"
            if old is not None:
                del self.parts[old]
            self.written += len(rows)
            if len(rows):
                (date,) = set(rows.column("date").to_pylist())
                assert date in days and len(rows) <= max(3, total_parts.PART_ROWS_MAX)
                bounds = int(micros_of(rows.column("start")).min()), int(micros_of(rows.column("end")).max())
                self.parts[Part(date, f"{len(self.parts)}-{id(rows)}", len(rows), *bounds)] = rows
        return changed


def fill(total: Total, batches: Sequence[Sequence[Event]]) -> list[dict[str, Any]]:
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


@given(cut_events, st.sampled_from([2, 30, 600, 2880, 10_000]), st.sampled_from([60, 1440, 2880, 10_080, 20_000]))
def test_sessions_are_those_of_all_events_at_once(batches: list[list[Event]], gap: int, longest: int) -> None:
    """For every legal gap and length; minutes."""
    if gap > longest:
        return
    zero = int(EPOCH.timestamp()) // 60
    every = sorted(each for events in batches for each in events if each[1] is not None)
    expected = []
    for host in ("a", "b"):
        sessions: list[list[int]] = []
        for minute in (minute for minute, whose, _ in every if whose == host):
            near = sessions and minute - sessions[-1][1] < gap
            if near and (zero + minute) // longest == (zero + sessions[-1][0]) // longest:
                sessions[-1][1] = minute
                sessions[-1][2] += 1
            else:
                sessions.append([minute, minute, 1])
        expected += [(host, *session) for session in sessions]
    rows = fill(made("sessions", gap_ms=gap * 60_000, session_ms=longest * 60_000), batches)
    minute = timedelta(minutes=1)
    found = [
        (row["host"], (row["start"] - EPOCH) // minute, (row["end"] - EPOCH) // minute, row["count"]) for row in rows
    ]
    assert sorted(found) == sorted(expected)
    assert all(row["seconds"] < longest * 60 for row in rows)


def test_one_event_a_day_is_one_session_when_the_gap_is_two() -> None:
    """A week's visit, in micro-batches of a day."""
    monday = 4 * 1440  # in minutes since EPOCH; a multiple of seven days is on a Thursday
    days: list[list[Event]] = [[(monday + day * 1440, "a", "info")] for day in range(3)]
    rows = fill(made("sessions", gap_ms=48 * 3_600_000), [each for day in days for each in (day, [])])
    assert [row["count"] for row in rows] == [3]


def test_only_what_changed_is_published() -> None:
    total = made("count", window_ms=600_000)
    stored = Stored(total)
    stored.add([total.partial(table([(0, "a", "info"), (0, "b", "info")]))])
    (row,) = stored.add([total.partial(table([(1, "b", "info")]))]).to_pylist()
    assert (row["host"], row["count"]) == ("b", 2)


@pytest.mark.parametrize("kind", ["count", "sessions"])
def test_what_a_micro_batch_writes_does_not_grow_with_the_table(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(total_parts, "PART_ROWS_MAX", 100)
    total = made(kind, window_ms=60_000, gap_ms=120_000)
    stored = Stored(total)
    written = []
    for batch in range(60):
        stored.written = 0
        stored.add(
            [total.partial(table([(batch * 20 + number // 10, f"h{batch}-{number}", "info") for number in range(50)]))]
        )
        written.append(stored.written)
    assert len(stored.rows) == 3000 and len(stored.parts) < 40
    assert max(written) <= 3 * 100


# ---- watermarks


def watermarked(
    kind: Any, batches: Sequence[Sequence[Event]], **more: Any
) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """After each micro-batch: the changed rows, and the number of late lines until then."""
    total = made(kind, window_ms=3_600_000, gap_ms=600_000, watermark_ms=1_800_000, **more)
    both = {"t": total, "newest": Newest(("t",))}
    stored = {name: Stored(each) for name, each in both.items()}

    class Parts:
        def parts(self, name: str, _: Any) -> list[Part]:
            return list(stored[name].parts)

    schema = with_received(table([])).schema
    for events in batches:
        given_events = with_received(table(events))
        partials = {name: each.partial(given_events) for name, each in both.items()}
        changed: list[dict[str, Any]] = []
        for each, partial in Watermarks(both, schema).applied(partials, Parts()):
            stored[each.name].total = each
            rows = stored[each.name].add_partial(partial)
            changed += rows.to_pylist() if each.name == "t" else []
        yield changed, pc.sum(stored["newest"].rows.column("late")).as_py()


def with_received(events: pa.Table) -> pa.Table:
    return events.append_column("received", events.column("time"))


def test_a_window_is_final_once_and_then_stays() -> None:
    steps = watermarked(
        "count", [[(10, "a", "info")], [(80, "a", "info")], [(91, "b", "info")], [(20, "a", "info"), (92, "b", "info")]]
    )
    found = [
        (
            {
                (row["start"].minute + row["start"].hour * 60 - 1320, row["host"], row["count"], row["final"])
                for row in rows
            },
            late,
        )
        for rows, late in steps
    ]
    assert found == [
        ({(0, "a", 1, False)}, 0),
        ({(60, "a", 1, False)}, 0),
        ({(0, "a", 1, True), (60, "b", 1, False)}, 0),  # 91 - 30 is behind its end, 60
        ({(60, "b", 2, False)}, 1),
    ]


def test_a_session_is_final_behind_its_gap() -> None:
    steps = [
        *watermarked(
            "sessions",
            [[(0, "a", "info")], [(35, "b", "info")], [(45, "b", "info")], [(9, "a", "info"), (50, "b", "info")]],
        )
    ]
    finals = [{(row["host"], row["count"]) for row in rows if row["final"]} for rows, _ in steps]
    assert finals == [set(), set(), {("a", 1)}, {("a", 1)}], "what comes later begins another one, final at once"


@given(cut_events)
def test_what_is_final_does_not_change(batches: list[list[Event]]) -> None:
    """And every line is counted or late."""
    final: dict[Any, Any] = {}
    counts: dict[Any, int] = {}
    left_out = 0
    for rows, late in watermarked("count", [each for each in batches if each]):
        left_out = late
        for row in rows:
            key = row["start"], row["host"]
            assert key not in final
            counts[key] = row["count"]
            if row["final"]:
                final[key] = row
    assert sum(counts.values()) + left_out == sum(map(len, batches))


# ---- Space-Saving

hosts = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=15), min_size=1, max_size=8)


@given(hosts, st.integers(1, 4))
def test_the_heaviest_are_within_their_bounds(batches: list[list[str]], keep: int) -> None:
    rows = fill(made("top", keep=keep, window_ms=3_600_000), [[(0, host, "info") for host in each] for each in batches])
    true = Counter(host for each in batches for host in each)
    assert len(rows) == min(keep, len(true))
    for row in rows:
        assert row["count"] - row["count_error"] <= true[row["host"]] <= row["count"]
    for omitted in set(true) - {row["host"] for row in rows}:
        assert true[omitted] <= rows[0]["omitted_max"] <= sum(true.values()) / keep


def test_the_true_first_is_found_however_micro_batches_end() -> None:
    """It is the least of each micro-batch, and the first of all: without a bound it is dropped each time."""
    batches: list[list[Event]] = []
    for number in range(20):
        others: list[Event] = [(0, f"other-{number}-{each}", "info") for each in range(4) for _ in range(3)]
        batches += [[*others, (0, "true", "info"), (0, "true", "info")], []]
    rows = fill(made("top", keep=8), batches)
    (first,) = (row for row in rows if row["host"] == "true")
    assert first["count"] - first["count_error"] <= 40 <= first["count"]
    assert all(row["count_error"] <= 20 * 14 / 8 for row in rows)


def test_the_heaviest_of_all_windows_have_bounds_too() -> None:
    events: list[Event] = [
        (window * 60, host, "info") for window, of in enumerate(["aaab", "bbbbac", "cccd"]) for host in of
    ]
    stored = Stored(made("top", keep=2, window_ms=3_600_000))
    stored.add([stored.total.partial(table(events))])
    true = Counter(host for _, host, _ in events)
    rows, omitted = heaviest_of_all(stored.rows, ["host"], 2)
    assert [row["host"] for row in rows] == ["b", "a"] and omitted >= true["c"]
    for row in rows:
        assert row["count"] - row["count_error"] <= true[row["host"]] <= row["count"]


# ---- sketches


def numbers_table(values: np.ndarray, hosts: int = 2) -> pa.Table:
    count = len(values)
    times = pa.array(np.full(count, int(EPOCH.timestamp() * 1e6)), pa.int64()).cast(MICROS)
    names = pa.array([f"h{number % hosts}" for number in range(count)])
    return pa.table({"time": times, "host": names, "level": pa.nulls(count, pa.string()), "x": pa.array(values)})


def sketched(kind: str, values: np.ndarray, tasks: int, **more: Any) -> list[dict[str, Any]]:
    stored = Stored(made(kind, of="x", window_ms=3_600_000, **more))
    for chunk in np.array_split(values, tasks):
        stored.add([stored.total.partial(numbers_table(chunk))])
    return sorted(stored.rows.to_pylist(), key=lambda row: str(row["host"]))


def test_distinct_counts_are_within_their_bounds() -> None:
    values = np.repeat(np.arange(20_000), 2)  # both hosts see all of them
    for row in sketched("distinct", np.concatenate([values, values]), 4):
        assert row["count"] == 40_000
        assert row["distinct_low"] <= 20_000 <= row["distinct_high"]
        assert abs(row["distinct"] - 20_000) < 0.05 * 20_000 and row["distinct_high"] < 1.05 * row["distinct"]


def test_few_distinct_values_are_exact() -> None:
    rows = sketched("distinct", np.arange(96) // 2 % 6, 4)
    assert [row["distinct"] for row in rows] == [6, 6]


def test_percentiles_are_within_their_bounds() -> None:
    values = np.random.default_rng(16).lognormal(0, 2, 60_000)
    values[::1000] = np.nan
    for place, row in enumerate(sketched("percentiles", values, 5, percentiles=(50, 99, 99.9))):
        own = values[place::2]
        own = own[np.isfinite(own)]
        assert row["count"] == len(own)
        for rank, name, width in ((0.5, "p50", 0.03), (0.99, "p99", 0.001), (0.999, "p99_9", 0.0002)):
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
            true_rank = np.searchsorted(np.sort(own.astype(np.float32)), row[name]) / len(own)
            assert abs(true_rank - rank) < width


def test_rows_of_a_sketch_can_be_merged_by_others() -> None:
    import datasketches

    (one, two) = sketched("distinct", np.arange(1000), 2)
    union = datasketches.hll_union(12)
    for row in (one, two):
        union.update(datasketches.hll_sketch.deserialize(row["sketch"]))
    assert abs(union.get_estimate() - 1000) < 50
    assert pc.sum(pa.array([one["count"], two["count"]])).as_py() == 1000
