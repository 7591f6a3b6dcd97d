"""A person is forgotten: rows, old files and views have nothing left of them, and what else has is said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace
from pyspark.sql import SparkSession

from appliance.errors import AlreadyRunning, BadValue
from appliance.spark.pipeline.audit_verdicts import Verdict
from appliance.spark.pipeline.batch_record import TopicRead
from appliance.spark.pipeline.compaction import DeltaEvents, compact
from appliance.spark.pipeline.forget import (
    ADVICE,
    Place,
    Remains,
    expire_rows,
    find,
    older_than,
    remaining,
    remove_old_files,
    remove_rows,
)
from appliance.spark.pipeline.input_audit import Block, Rows, audit
from appliance.spark.pipeline.pipeline_status import summary
from appliance.spark.pipeline.reparse import reparse
from appliance.spark.pipeline.settings import Settings, Views, parse
from appliance.spark.pipeline.startup import output_lock
from appliance.spark.pipeline.view_states import VIEWS_LOCK, orphans, views_lock

from ...support.pipelines import access, fill, rows, settings
from ...support.topics import Topics
from .test_pipeline_sink import STAMP, micro_batch, records
from .view_pipelines import COUNTS, MERGED, Pipeline, line

PERSON = "host = 'ann' or arrow_cast(raw, 'Utf8') like '%ann%'"


def written(base: Path) -> Settings:
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["logfmt"]}],
        "output": {"path": "out"},
    }
    made = parse(given, base)
    lines = [line(1, "ann"), line(2, "bob"), b"ann was here", b"nobody", line(3000, "ann")]
    micro_batch(made, 0, [[records(lines, "t")], [records([line(5, "bob")], "t", 5, STAMP + timedelta(hours=1))]])
    return made


def bytes_of(out: Path) -> list[Path]:
    """The files of rows in which the person is."""
    return [
        path for path in out.rglob("*.parquet") if "ann" in repr(pq.read_table(path, partitioning=None).to_pylist())
    ]


def test_rows_are_found_and_removed(tmp_path: Path) -> None:
    made = written(tmp_path)
    newest = int(STAMP.timestamp()) * 1_000_000
    assert find(made, PERSON) == [Place("t", 0, 3, 1, 0, 4, newest)]
    assert find(made, "host = 'eve'") == [] and len(rows(made)) == 6
    assert remove_rows(made, PERSON) == 3
    assert sorted(rows(made).column("offset").to_pylist()) == [1, 3, 5]
    assert bytes_of(tmp_path), "older versions have them still"
    assert remove_old_files(made) > 0 and not bytes_of(tmp_path)
    assert (find(made, PERSON), remove_rows(made, PERSON)) == ([], 0)
    micro_batch(made, 1, [[records([line(7, "bob")], "t", 6)]])
    assert len(rows(made)) == 4, "the pipeline goes on"


@pytest.mark.parametrize("more", [False, True])
def test_everything_goes_on_with_files_that_a_removal_has_written(tmp_path: Path, more: bool) -> None:
    """Alone, and beside files of the pipeline: who counts, compacts, parses again, or sends reads both."""
    made = written(tmp_path)
    assert remove_rows(made, "host = 'ann'") == 2
    if more:
        micro_batch(made, 1, [[records([line(7, "ann"), b"nor this"], "t", 6)]])
    counted = {"logfmt": 2 + more}, {"logfmt: no key=value": 2 + more}
    assert (summary(made).parsed, summary(made).dead) == counted
    compact(DeltaEvents(made.output), made.output, settled=True, vacuum=False)
    assert len(rows(made)) == 4 + 2 * more and (summary(made).parsed, summary(made).dead) == counted
    lenient = replace(made, source=(replace(made.source[0], parsers=("logfmt", "plain")),))
    assert remove_rows(made, '"offset" = 5') == 1
    assert reparse(lenient).taken == 2 + more


def test_old_rows_expire(tmp_path: Path) -> None:
    """Their files stay for readers of the version before."""
    made = written(tmp_path)
    night_us = int((STAMP + timedelta(days=1)).timestamp()) * 1_000_000
    assert [place.rows for place in find(made, older_than(night_us))] == [5], "rejected lines are of when they arrived"
    before = DeltaTable(str(tmp_path / "out/events")).version()
    assert remove_rows(made, older_than(night_us)) == 5
    assert rows(made).column("offset").to_pylist() == [4]
    assert len(DeltaTable(str(tmp_path / "out/events"), version=before).to_pyarrow_table()) == 6
    assert remove_rows(made, older_than(night_us)) == 0


def test_what_has_expired_is_not_taken_for_lost(tmp_path: Path) -> None:
    """By the audit of windows, and by that of inputs; what is missing in the others is still told."""
    given = {"pipeline": {"name": "p"}, "source": [{"topics": ["t"], "parsers": ["logfmt"]}]}
    made = parse(given | {"output": {"path": "out"}, "audit": {"topic": "counts"}}, tmp_path)
    minute, start_ms = timedelta(minutes=1), int(STAMP.timestamp() * 1000)
    for number in range(4):  # a minute late
        sent = [b"time=%s n=1" % (STAMP + (number - 1) * minute).isoformat().encode()] * (2 if number < 3 else 1)
        count = {"topic": "t", "window_start_ms": start_ms + number * 60_000, "window_ms": 60_000, "count": 2}
        arrived = STAMP + number * minute
        told = records([msgspec.json.encode(count)], "counts", number, arrived)
        read = {"t": TopicRead("id", {0: (number * 2, number * 2 + 2)})}
        micro_batch(made, number, [[records(sent, "t", number * 2, arrived)], [told]], read)
    blocks = {"file": [Block("t", 0, 0, 8)]}
    judged = datetime(2026, 11, 25, tzinfo=UTC)
    assert summary(made, judged).audit == Verdict(balanced=3, pending=0, lost=1, doubled=0, faulty=1)
    assert audit(made, blocks)["file"] == Rows(rows=7, missing=1)
    assert expire_rows(made, int((STAMP + minute / 2).timestamp() * 1e6)) == 5, "four lines, one count"
    assert summary(made, judged).audit == Verdict(balanced=1, pending=0, lost=1, doubled=0, faulty=1)
    assert audit(made, blocks)["file"] == Rows(rows=3, expired=4, missing=1)
    assert expire_rows(made, int(STAMP.timestamp() * 1e6)) == 0
    assert summary(made, judged).audit == Verdict(balanced=1, pending=0, lost=1, doubled=0, faulty=1)


def test_tables_of_views_without_a_file_are_named(tmp_path: Path) -> None:
    made = written(tmp_path)
    write_deltalake(str(tmp_path / "out/views/hosts"), pa.table({"start": [STAMP], "host": ["ann"]}))
    assert orphans(made) == ["hosts"]
    (found,) = remaining(made, [])
    assert found == Remains(
        "table of the view hosts, which is not refreshed: there is no hosts.sql", "its directory is deleted"
    )
    (tmp_path / "views").mkdir()
    (tmp_path / "views/hosts.sql").write_text(COUNTS)
    defined = msgspec.structs.replace(made, views=Views(str(tmp_path / "views")))
    assert orphans(defined) == [] and remaining(defined, []) == []


def test_rows_of_views_in_topics_remain(topics: Topics, topic: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.sql").write_text(COUNTS.replace("-- keys", "-- topic: told\n-- keys"))
    made = settings(tmp_path, topics, topics.create(topic), views={"path": "."})
    assert remaining(made, []) == []
    found = remaining(made, [Place(topic, 0, 2, 0, 0, -1, 0)])
    assert found[0] == Remains("rows of the view hosts in topic told", "its retention")


@pytest.mark.parametrize("place", ["delete", "vacuum"])
def test_a_kill_at_any_step_is_repaired_by_a_repetition(tmp_path: Path, place: str) -> None:
    made = written(tmp_path)
    with mock.patch.object(DeltaTable, place, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        remove_rows(made, PERSON)
        remove_old_files(made)
    remove_rows(made, PERSON)
    remove_old_files(made)
    assert len(rows(made)) == 3 and not bytes_of(tmp_path)


def test_what_is_no_table_is_named_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = written(tmp_path)
    (tmp_path / "out/views/mine").mkdir(parents=True)
    (tmp_path / "out/views/notes.txt").write_text("ann")
    remove_rows(made, PERSON)
    assert remove_old_files(made) > 0 and not bytes_of(tmp_path)
    assert [Path(record.args[0]).name for record in caplog.records] == ["mine", "notes.txt"]


def test_an_object_store_has_the_locks_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"pipeline": {"name": "p"}, "source": [{"topics": ["t"], "parsers": ["logfmt"]}]}
    made = parse(given | {"output": {"path": "s3://b/out"}}, tmp_path)
    with views_lock(made), pytest.raises(AlreadyRunning), views_lock(made):
        pass
    assert (made.state_dir / VIEWS_LOCK).exists() and not (tmp_path / "s3:").exists()


@pytest.mark.parametrize("text", [COUNTS, MERGED], ids=["whole", "of parts"])
def test_views_forget(spark: SparkSession, tmp_path: Path, text: str) -> None:
    pipeline = Pipeline(spark, tmp_path)
    view = pipeline.define("counts", text)
    pipeline.write(line(1, "ann"), line(2, "bob"), line(200, "ann"), line(300, "bob"))
    pipeline.refresh(view)
    assert remove_rows(pipeline.settings, "host = 'ann'") == 2
    assert pipeline.refresh(view).ranges is not None
    assert pipeline.stored(view) == pipeline.counted()
    remove_old_files(pipeline.settings)
    assert not bytes_of(tmp_path) and pipeline.refresh(view).ranges == [], "nothing is computed whole for it"


def test_what_remains_is_said(topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(topic, 2, retention_ms=3_600_000)
    fill(topics, topic, [access(number) for number in range(14)], each=7)
    made = settings(tmp_path, topics, topic, dead_letters={"topic": "letters"}, output={"path": "o"})
    stamp_us = 1_795_219_200_000_000
    there, past = Place(topic, 0, 2, 0, 0, 500, stamp_us), Place(topic, 0, 2, 1, 0, -1, stamp_us)
    letters = Remains("dead letters in topic letters", "its retention")
    log = Remains("lowest and highest values of removed files, in the logs of the tables", "7 days")
    assert remaining(made, [there]) == [
        Remains(f"messages of {topic}-0, offsets 0 to 500", "2026-11-21T01:00:00+00:00 or later, with their segment"),
        letters,
        log,
    ]
    assert remaining(made, [past]) == [letters, log]
    assert remaining(made, []) == []
    gone = there._replace(topic=f"{topic}-deleted")
    assert remaining(made, [gone]) == [letters, log]


@pytest.mark.parametrize(
    ("predicate", "rows_of"),
    [
        ("host = 'ann' or host = 'bob'", 4),
        ("(host = 'ann') or (host = 'bob')", 4),
        ("received >= '2026-11-20T00:00:00Z' and lower(host) = 'ann'", 2),
        ("date_trunc('hour', received) = timestamp '2026-11-20T00:00:00Z'", 5),
        ("true", 6),
    ],
)
def test_what_is_found_is_removed(tmp_path: Path, predicate: str, rows_of: int) -> None:
    made = written(tmp_path)
    assert sum(place.rows for place in find(made, predicate)) == remove_rows(made, predicate) == rows_of
    assert len(rows(made)) == 6 - rows_of


@pytest.mark.parametrize(
    ("predicate", "advice"),
    [
        ("host = 'ann') or (host = 'bob'", False),
        ("host = 'ann' -- ", False),
        ("host = 'ann' group by topic", False),
        ("received >= timestamp '2026-11-20T00:00:00Z'", True),
        ("time < now() - interval '1 day'", True),
        ("host in (select host from events)", True),
        ("random() >= 0", True),
        ("exists (select 1)", True),
    ],
)
def test_what_cannot_be_removed_is_not_found_either(tmp_path: Path, predicate: str, advice: bool) -> None:
    """In the same words, and nothing is removed."""
    made = written(tmp_path)
    told = []
    for step in (find, remove_rows):
        with pytest.raises(BadValue, match=r"^--where") as refused:
            step(made, predicate)
        told.append(str(refused.value))
    assert told[0] == told[1] and "\n" not in told[0] and (ADVICE in told[0]) == advice
    assert len(rows(made)) == 6


def test_other_rows_than_those_that_were_found_are_told(tmp_path: Path) -> None:
    made = written(tmp_path)
    delete = DeltaTable.delete

    def of_all(table: DeltaTable, predicate: str, **more: Any) -> Any:
        return delete(table, "true" if Path(table.table_uri).name == "events" else predicate, **more)

    with (
        mock.patch.object(DeltaTable, "delete", of_all),
        pytest.raises(BadValue, match=r"6 rows were deleted, 2 were found: .* back to its version 2 "),
    ):
        remove_rows(made, "host = 'ann'")
    table = DeltaTable(str(tmp_path / "out/events"))
    table.restore(2)
    assert len(rows(made)) == 6


def test_what_cannot_be_removed_is_refused(tmp_path: Path) -> None:
    made = written(tmp_path)
    for wrong in ("hots = 'ann'", "host =", "1", "host = 'ann'; drop table events"):
        with pytest.raises(BadValue, match=r"^--where") as told:
            remove_rows(made, wrong)
        assert "\n" not in str(told.value)
    assert len(rows(made)) == 6
    with output_lock(made), pytest.raises(AlreadyRunning):
        remove_rows(made, PERSON)
    with output_lock(made), pytest.raises(AlreadyRunning):
        remove_old_files(made)
    with pytest.raises(BadValue, match="is no table yet"):
        find(parse({"pipeline": {"name": "q"}, "source": [{"topics": ["t"], "parsers": ["plain"]}],
                    "output": {"path": "none"}}, tmp_path), PERSON)  # fmt: skip
