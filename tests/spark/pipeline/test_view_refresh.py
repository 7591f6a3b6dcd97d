"""Views: whatever happens to events, a view that was refreshed is its own query over them, computed by others.

Events are written by the pipeline's own tasks and commits, without topics; Spark runs the views.  What they must
give is computed in Python from the lines that were written, and by DuckDB from the rows of the table.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from appliance.errors import BadValue
from appliance.spark.pipeline import view_table
from appliance.spark.pipeline.compaction import DeltaEvents, compact
from appliance.spark.pipeline.event_versions import RowFile
from appliance.spark.pipeline.linked_files import link_files
from appliance.spark.pipeline.reparse import reparse
from appliance.spark.pipeline.settings import Settings
from appliance.spark.pipeline.view_definitions import parse_view
from appliance.spark.pipeline.view_messages import ViewMessages
from appliance.spark.pipeline.view_refresh import RANGES_MAX, Refresher, compressed
from appliance.spark.pipeline.view_states import view_of, views_lock, views_of
from appliance.spark.pipeline.view_table import PARTS, ViewTable

from ...support.pipelines import rows as rows_of_events
from ...support.topics import Topics
from ..test_sink import stored
from .view_pipelines import COUNTS, DAY, HOUR_US, MERGED, Pipeline, line


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path)


def test_only_windows_that_a_commit_touched_are_computed(pipeline: Pipeline) -> None:
    view = pipeline.define("counts", COUNTS)
    pipeline.write(*[line(minute, "ab"[minute % 2]) for minute in range(300)], b"=")
    first = pipeline.refresh(view)
    assert (first.state, first.ranges, first.rows) == ("new", None, 10)
    assert pipeline.stored(view) == pipeline.counted()
    assert pipeline.refresh(view)._replace(seconds=0) == first._replace(state="current", ranges=[], rows=0, seconds=0)
    pipeline.write(line(61, "c"), line(190), line(3000))  # two come late
    assert pipeline.state(view) == "behind"
    second = pipeline.refresh(view)
    begin = int(DAY.timestamp()) * 1_000_000
    hours = [(begin + hour * HOUR_US, begin + (hour + 1) * HOUR_US) for hour in (1, 3, 50)]
    assert (second.state, second.ranges, second.rows) == ("behind", hours, 6)
    assert pipeline.stored(view) == pipeline.counted()


def with_parsers(settings: Settings, *parsers: str) -> Settings:
    source = msgspec.structs.replace(settings.source[0], parsers=parsers)
    return msgspec.structs.replace(settings, source=(source,))


def test_lines_that_have_parts_are_not_read_again(pipeline: Pipeline) -> None:
    """Not even their files need be there; what else is in their windows is right."""
    view = pipeline.define("counts", MERGED)
    pipeline.write(*[line(minute, "ab"[minute % 2]) for minute in range(100)])
    pipeline.refresh(view)
    had = {path: path.read_bytes() for path in (pipeline.out / "events").glob("**/*.parquet")}
    for path in had:
        path.unlink()
    pipeline.write(line(3), line(70, "c"))
    assert pipeline.refresh(view).rows == 5
    for path, content in had.items():
        path.write_bytes(content)
    assert pipeline.stored(view) == pipeline.counted()


def test_a_window_has_as_many_parts_as_its_query_gives(pipeline: Pipeline) -> None:
    """However many commits its lines came with."""
    view = pipeline.define("counts", MERGED)
    for number in range(4):
        pipeline.write(line(number, "a"), line(number + 7, "b"), line(61 + number, "a"))
        pipeline.refresh(view)
        parts = DeltaTable(ViewTable(pipeline.settings.output, f"{view.name}/{PARTS}").uri).to_pyarrow_table()
        assert sorted(parts.column("m").to_pylist()) == [number + 1] * 3
        assert pipeline.stored(view) == pipeline.counted()


def test_parts_that_cannot_be_merged_again_are_refused(pipeline: Pipeline) -> None:
    wrong = MERGED.replace("sum(m) as m from", "sum(m) / 2 as m from")
    view = pipeline.define("counts", wrong)
    pipeline.write(line(1))
    with pytest.raises(BadValue, match=r"parts: summed gives .* m double, and counted .* m bigint: both must give"):
        pipeline.refresh(view)


def test_values_of_partitions_may_be_any_text(spark: SparkSession, tmp_path: Path) -> None:
    values = ["plain", "a b", "100%", "x=y/z", "..", ".", '"[{^}]"', "back\\slash", "a:b?c#d*", "über", "7", None]
    files = []
    for number, value in enumerate(values):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"n": [number]}), path)
        files.append(RowFile(str(path), (("place", value), ("day", "2026-11-20")), None, None))
    reader = spark.read.schema("n long, place string, day string")
    rows = reader.parquet(link_files(files, tmp_path / "links")).collect()
    assert sorted((row.n, row.place, row.day) for row in rows) == [
        (number, value, "2026-11-20") for number, value in enumerate(values)
    ]
    assert not spark.read.schema("n long").parquet(link_files([], tmp_path / "none")).collect()


@pytest.mark.parametrize("text", [COUNTS, MERGED], ids=["whole", "of parts"])
def test_a_view_follows_whatever_happens_to_events(pipeline: Pipeline, text: str) -> None:
    view = pipeline.define("counts", text)
    table = str(pipeline.out / "events")

    def deleted() -> None:
        DeltaTable(table).delete("host = 'b'")

    def restored() -> None:
        DeltaTable(table).restore(2)

    def put_together() -> None:
        compact(DeltaEvents(pipeline.settings.output), pipeline.settings.output, settled=True, vacuum=False)

    steps: list[tuple[Callable[[], object], str, bool]] = [
        (lambda: pipeline.write(*[line(minute, "ab"[minute % 2]) for minute in range(0, 200, 7)]), "new", True),
        (lambda: pipeline.write(line(5), line(900, "b")), "behind", True),
        (put_together, "behind", False),
        (deleted, "behind", True),
        (restored, "behind", True),
        (lambda: pipeline.write(b"rejected", line(901)), "behind", True),
        (lambda: reparse(with_parsers(pipeline.settings, "logfmt", "plain")), "behind", True),
    ]
    for step, state, changes in steps:
        step()
        found = pipeline.refresh(view)
        assert (found.state, bool(found.ranges is None or found.ranges)) == (state, changes), step
        assert pipeline.stored(view) == pipeline.counted()
        assert pipeline.state(view) == "current"


@pytest.mark.parametrize(
    "loss", ["log of events", "old files of events", "older output", "written by another", "restored", "deleted"]
)
@pytest.mark.parametrize("text", [COUNTS, MERGED], ids=["whole", "of parts"])
def test_what_cannot_be_known_is_computed_whole(pipeline: Pipeline, loss: str, text: str) -> None:
    view = pipeline.define("counts", text)
    pipeline.write(line(1), line(2, "b"))
    copy = pipeline.base / "copy"
    shutil.copytree(pipeline.out / "events", copy)
    pipeline.refresh(view)
    pipeline.write(line(70), line(80))
    if loss == "log of events":
        for entry in (pipeline.out / "events/_delta_log").glob("*.json"):
            if int(entry.stem) < 3:
                DeltaTable(str(pipeline.out / "events")).create_checkpoint()
                entry.unlink()
    elif loss == "old files of events":
        compact(DeltaEvents(pipeline.settings.output), pipeline.settings.output, settled=True, vacuum=False)
        DeltaTable(str(pipeline.out / "events")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    elif loss == "older output":
        pipeline.refresh(view)
        shutil.rmtree(pipeline.out / "events")
        shutil.copytree(copy, pipeline.out / "events")
    elif loss == "deleted":
        shutil.rmtree(ViewTable(pipeline.settings.output, view.name).uri)
    else:
        table = DeltaTable(ViewTable(pipeline.settings.output, view.name).uri)
        table.delete("host = 'b'")
        if loss == "restored":
            table.restore(0)
    found = pipeline.refresh(view)
    assert found.ranges is None and found.state == {"deleted": "new", "old files of events": "behind"}.get(
        loss, "unknown"
    )
    assert pipeline.stored(view) == pipeline.counted()


def test_a_changed_query_is_computed_whole_with_its_columns(pipeline: Pipeline) -> None:
    view = pipeline.define("counts", COUNTS)
    pipeline.write(line(1), line(200, "b", "error"))
    pipeline.refresh(view)
    view = pipeline.define("counts", COUNTS.replace("count(*) as n", "count(*) as n, max(level) as level"))
    assert pipeline.state(view) == "changed"
    assert pipeline.refresh(view).ranges is None
    assert [row["level"] for row in pipeline.stored(view)] == ["info", "error"]


def test_a_rebuild_leaves_what_was_before(pipeline: Pipeline) -> None:
    view = pipeline.define("counts", COUNTS)
    pipeline.write(line(1), line(200))
    pipeline.refresh(view)
    since_us = int((DAY + timedelta(minutes=190)).timestamp()) * 1_000_000
    found = Refresher(pipeline.spark, pipeline.settings).rebuild(view, since_us)
    assert found.rows == 1 and pipeline.stored(view) == pipeline.counted()
    assert found.ranges is not None and found.ranges[0][0] == since_us // HOUR_US * HOUR_US
    wider = pipeline.define("counts", COUNTS.replace("count(*) as n", "count(*) as n, 1 as one"))
    with pytest.raises(BadValue, match=r"other columns now .* rebuild it without --since"):
        Refresher(pipeline.spark, pipeline.settings).rebuild(wider, since_us)
    view = pipeline.define("counts", COUNTS)
    assert Refresher(pipeline.spark, pipeline.settings).rebuild(view).ranges is None
    assert pipeline.stored(view) == pipeline.counted()


def test_a_rebuild_of_what_is_not_known_computes_all(pipeline: Pipeline) -> None:
    """Its earlier rows would count as current from then on."""
    view = pipeline.define("counts", COUNTS)
    pipeline.write(line(1), line(200))
    since_us = int((DAY + timedelta(minutes=190)).timestamp()) * 1_000_000
    assert Refresher(pipeline.spark, pipeline.settings).rebuild(view, since_us).ranges is None  # there is no table
    assert pipeline.stored(view) == pipeline.counted()
    DeltaTable(ViewTable(pipeline.settings.output, view.name).uri).update({"n": "7"})
    assert pipeline.state(view) == "unknown"
    assert Refresher(pipeline.spark, pipeline.settings).rebuild(view, since_us).ranges is None
    assert pipeline.stored(view) == pipeline.counted() and pipeline.state(view) == "current"


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("step", ["staged", "parts", "before the commit", "after the commit"])
def test_a_refresh_that_is_killed_is_repeated_whole_or_not_at_all(pipeline: Pipeline, step: str) -> None:
    view = pipeline.define("counts", MERGED)
    pipeline.write(line(1), line(200))
    pipeline.refresh(view)
    pipeline.write(line(2), line(300, "b"))
    before = pipeline.stored(view)
    places: dict[str, tuple[object, str]] = {
        "staged": (pa.dataset, "dataset"),
        "parts": (view_table.ViewTable, "files"),
        "before the commit": (view_table.ViewTable, "replace"),
        "after the commit": (ViewMessages, "send"),
    }
    with (
        mock.patch.object(*places[step], side_effect=Killed),
        mock.patch.object(shutil, "rmtree"),  # nobody tidies up after it
        pytest.raises(Killed),
    ):
        pipeline.refresh(view)
    assert any((pipeline.out / "_views").iterdir())
    assert pipeline.stored(view) == (pipeline.counted() if step == "after the commit" else before)
    assert pipeline.refresh(view).state == ("current" if step == "after the commit" else "behind")
    assert pipeline.stored(view) == pipeline.counted()
    assert not any((pipeline.out / "_views").glob("*"))


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select count(*) as n from events", "must give the column start"),
        ("select start, count(*) as n, 'x' as date from events group by start", "date is the day of start"),
        ("select start, count(*) as n from events group by start", "keys: its query gives no column 'host'"),
        ("select start, host, n from events", "n"),
        (
            "select start, host from events",
            r"keys: 3 rows have start = 2026-11-20 00:00:00, host = 'a': name all",
        ),
        ("select start + interval 1 minute as start, host from events", "leave start as events have it"),
        ("select start, host from event", "event"),
        (
            "select start, array(host) as host from events",
            "keys: texts, numbers and times tell rows apart, not host list",
        ),
        ("select start, host, 1 / (count(*) - 3) as n from events group by all", "DIVIDE_BY_ZERO"),
        ("select null::timestamp as start, host from events", "a row has no start"),
        ("select start, host, 1 as n, 2 as N from events", "its query gives two columns 'N': give one of them another"),
        ("select start, host, hots from events", "hots"),
        ("select start, host, raise_error('out of cheese') as n from events", "out of cheese"),
    ],
)
def test_a_wrong_query_is_refused_in_a_sentence(pipeline: Pipeline, query: str, says: str) -> None:
    """And the table stays as it is."""
    view = pipeline.define("counts", COUNTS)
    pipeline.write(line(1), line(2))
    pipeline.refresh(view)
    before = pipeline.stored(view)
    pipeline.write(line(3))
    wrong = parse_view("counts", f"-- window: 1h\n-- keys: host\n{query}", "counts.sql")
    with pytest.raises(BadValue, match=f"^view counts: .*{says}") as told:
        pipeline.refresh(wrong)
    assert "\n" not in str(told.value) and pipeline.stored(view) == before
    with pytest.raises(BadValue, match="there is no view 'count': there are counts"):
        view_of(pipeline.settings, "count")


EXAMPLES_IN_DUCKDB = {
    "volume": "select start, topic, count(*) as lines, count(rejected) as rejected from events group by all",
    "errors": """select start, topic, service, count(*) as lines,
        count(*) filter (level in ('emerg', 'alert', 'crit', 'error')) as errors,
        errors / lines as error_rate from events where rejected is null group by all""",
    "hosts": """select start, host, count(*) as lines, row_number() over (partition by start order by lines desc, host)
        as place from events where host is not null group by start, host qualify place <= 10""",
    "distinct_hosts": """select start, count(host) as lines, count(distinct host) as hosts
        from events where host is not null group by all""",
    "arrival": """select start, topic, count(*) as lines, quantile_disc(s, 0.5) as p50, quantile_disc(s, 0.9) as p90,
        quantile_disc(s, 0.99) as p99 from (select *, date_diff('microsecond', time, received) / 1e6 as s from events)
        where rejected is null group by all""",
    "sessions": """select start, host, min(time) as begun, max(time) as ended, count(*) as lines
        from (select *, sum(fresh) over (partition by start, host order by time) as session
            from (select *, (time - lag(time) over (partition by start, host order by time) >= interval 30 minutes)::int
                as fresh from events where host is not null))
        group by start, host, coalesce(session, 0)""",
    "ledger": """select start, topic, partition, count(*) as lines, count(rejected) as rejected,
        min("offset") as first_offset, max("offset") as last_offset, max(received) as last_received
        from events group by all""",
    "rejected": """select start, topic, rejected as reason, count(*) as lines from events
        where rejected is not null group by all""",
}


def test_windows_before_1970_begin_before_their_lines(pipeline: Pipeline) -> None:
    """As all others: also those in which there is something new, and those that a rebuild begins with."""
    before = int((datetime(1970, 1, 1, tzinfo=UTC) - DAY).total_seconds()) // 60
    views = [pipeline.define(name, text) for name, text in {"counts": COUNTS, "merged": MERGED}.items()]
    pipeline.write(*[line(before + minute) for minute in (-90, -59, -1, 0, 1, 60)])
    for number, minutes in enumerate(((), (-2, 2), (-58,))):
        if minutes:
            pipeline.write(*[line(before + minute) for minute in minutes])
        for view in views:
            refreshed = pipeline.refresh(view)
            assert pipeline.stored(view) == pipeline.counted(), view.name
        expected = None if number == 0 else [(-HOUR_US, HOUR_US)] if number == 1 else [(-HOUR_US, 0)]
        assert refreshed.ranges == expected
    assert len(pipeline.counted()) == 4
    assert Refresher(pipeline.spark, pipeline.settings).rebuild(views[0], -1).rows == 3
    assert pipeline.stored(views[0]) == pipeline.counted()


@pytest.mark.long
def test_the_examples_are_right(pipeline: Pipeline) -> None:
    """After several commits and refreshes each is what DuckDB computes from the rows of the table at once."""
    for file in (files("appliance.spark.pipeline") / "example_views").iterdir():
        pipeline.define(file.name.removesuffix(".sql"), file.read_text())
    views = views_of(pipeline.settings)
    assert {view.name for view in views} == EXAMPLES_IN_DUCKDB.keys()
    refresher = Refresher(pipeline.spark, pipeline.settings)
    for part in range(2):
        minutes = [(number * 37 + part * 11) % 3000 for number in range(150)]
        lines = [line(at, f"h{at % 13}", "error" if at % 5 == 0 else "info") for at in minutes]
        pipeline.write(*lines, b"no pairs", b"\xff", b"")
        for view in views:
            refresher.refresh(view)
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("stored", rows_of_events(pipeline.settings))
    for view in views:
        seconds = view.window_us // 1_000_000
        connection.execute(
            f"create or replace view events as select *, time_bucket(interval {seconds} seconds, time, "
            "timestamptz '1970-01-01 00:00:00+00') as start from stored"
        )
        expected = connection.sql(EXAMPLES_IN_DUCKDB[view.name]).to_arrow_table().to_pylist()
        found = pipeline.stored(view)
        assert found and plain(found) == plain(expected), view.name


def plain(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Rows in an order of their own, with times in one zone and rounded fractions."""

    def value(of: Any) -> Any:
        if isinstance(of, datetime):
            return of.astimezone(UTC).isoformat()
        return round(of, 6) if isinstance(of, float) else of

    return sorted(repr(sorted((name, value(of)) for name, of in row.items())) for row in rows)


bounds = st.tuples(st.integers(0, 10_000), st.integers(1, 20)).map(lambda each: (each[0], each[0] + each[1]))


@given(st.lists(bounds, max_size=300))
def test_ranges_are_compressed(ranges: list[tuple[int, int]]) -> None:
    found = compressed(ranges)
    assert len(found) <= RANGES_MAX and list(found) == sorted(found)
    assert all(one[1] < other[0] for one, other in pairwise(found)), "none touches the next"
    assert all(any(first <= low and high <= end for first, end in found) for low, high in ranges)
    covered = {at for first, end in ranges for at in range(first, end)}
    if len(found) < RANGES_MAX:
        assert covered == {at for first, end in found for at in range(first, end)}, "no more than is asked for"


def test_one_process_refreshes_at_a_time(pipeline: Pipeline) -> None:
    def holders() -> Iterator[int | None]:
        yield views_lock(pipeline.settings).holder()
        with views_lock(pipeline.settings):
            yield views_lock(pipeline.settings).holder()

    assert [holder is None for holder in holders()] == [True, False]


def test_rows_are_sent_when_their_refresh_is_committed(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Each refresh sends what it has computed, once, also where it was killed before or after that."""
    pipeline = Pipeline(spark, tmp_path)
    of = pipeline.settings.pipeline
    pipeline.settings = msgspec.structs.replace(
        pipeline.settings, pipeline=msgspec.structs.replace(of, bootstrap=topics.server.native)
    )
    view = pipeline.define("counts", COUNTS.replace("-- keys: host\n", f"-- keys: host\n-- topic: {topic}\n"))
    topics.create(topic)

    def sent() -> list[tuple[str, str, int]]:
        rows = [(json.loads(each.key or b""), json.loads(each.value or b"")) for each in stored(topics.server, topic)]
        assert all(row == key | {"view": "counts", "n": row["n"]} for key, row in rows)
        return [(row["start"][11:16], row["host"], row["n"]) for _, row in rows]

    pipeline.write(line(1), line(2, "b"), line(70))
    pipeline.refresh(view)
    first = {("00:00", "a", 1), ("00:00", "b", 1), ("01:00", "a", 1)}
    assert sorted(sent()) == sorted(first)
    pipeline.write(line(3))
    for killed in (mock.patch.object(ViewMessages, "send"), mock.patch.object(ViewMessages, "_store")):
        with killed as kill:
            kill.side_effect = KeyboardInterrupt
            with pytest.raises(KeyboardInterrupt):
                pipeline.refresh(view)
    pipeline.refresh(view)
    assert sorted(sent()[3:]) == [("00:00", "a", 2), ("00:00", "b", 1)], "those of the window that has changed"
    pipeline.refresh(view)
    assert len(sent()) == 5
