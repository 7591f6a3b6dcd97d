"""Lines are parsed again, without Spark: what a corrected parser takes are events then, and nothing else changes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable

from appliance.client import Admin
from appliance.errors import AlreadyRunning, BadValue
from appliance.spark.pipeline.compaction import DeltaEvents, compact
from appliance.spark.pipeline.forget import remove_rows
from appliance.spark.pipeline.output_files import OutputFiles
from appliance.spark.pipeline.reparse import NOTHING, Reparsed, reparse
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import output_lock

from ...support.pipelines import events, fill, places, rejections, rows
from ...support.pipelines import settings as settings_of
from ...support.topics import Topics
from .test_pipeline_sink import STAMP, micro_batch, records
from .test_pipeline_source import run as consume

LINES = [b"time=2026-11-19T10:00:00Z level=info message=a", b"took 5 ms", b"took 7 ms", b"?", b"\xff"]
TOOK = {"kind": "regex", "pattern": r"^took (?P<took>\d+) ms$", "columns": {"took": "int"}}


def made(base: Path, parsers: list[str], **output: Any) -> Settings:
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": parsers, "host": "here"}],
        "parser": {"took": TOOK},
        "output": {"path": "out"} | output,
    }
    return parse(given, base)


def as_if(base: Path, parsers: list[str], **output: Any) -> list[dict[str, Any]]:
    """What the table would be, had it these parsers from the beginning."""
    other = made(base, parsers, **(output | {"path": "other"}))
    micro_batch(other, 0, [[records(LINES[:3], "t")], [records(LINES[3:], "t", 3)]])
    return table(other)


def table(settings: Settings) -> list[dict[str, Any]]:
    found = rows(settings)
    return found.select(sorted(found.column_names)).sort_by("offset").to_pylist()


def write(settings: Settings) -> None:
    micro_batch(settings, 0, [[records(LINES[:3], "t")], [records(LINES[3:], "t", 3)]])


@pytest.mark.parametrize("output", [{}, {"partition_by": []}, {"sort_by": ["offset"], "raw": True}])
def test_a_corrected_parser_takes_rejected_lines(tmp_path: Path, output: dict[str, Any]) -> None:
    """The parser adds a column, and its lines go to other partitions or stay."""
    write(made(tmp_path, ["logfmt"], **output))
    corrected = made(tmp_path, ["logfmt", "took"], **output)
    assert reparse(corrected) == Reparsed(4, 2, 0, 0, 1)
    assert sorted(row["took"] for row in events(corrected).to_pylist() if row["took"]) == [5, 7]
    assert [row["raw"] for row in rejections(corrected)] == LINES[3:]
    assert table(corrected) == as_if(tmp_path, ["logfmt", "took"], **output)
    version = DeltaTable(str(tmp_path / "out/events")).version()
    assert reparse(corrected) == Reparsed(2, 0, 0, 0, 0), "a repetition changes nothing"
    assert DeltaTable(str(tmp_path / "out/events")).version() == version
    micro_batch(corrected, 1, [[records([b"took 9 ms"], "t", 5)]])
    assert len(set(places(rows(corrected)))) == len(rows(corrected)) == 6, "the pipeline goes on"


def test_all_lines_are_parsed_again_where_they_are_kept(tmp_path: Path) -> None:
    """A stricter parser also rejects what an earlier one took."""
    write(made(tmp_path, ["took", "plain"], raw=True))
    stricter = made(tmp_path, ["took", "logfmt"], raw=True)
    assert reparse(stricter, every=True) == Reparsed(5, 0, 1, 0, 2)
    keyless = [{**row, "raw_key": None} for row in as_if(tmp_path, ["took", "logfmt"], raw=True)]
    assert [{**row, "raw_key": None} for row in table(stricter)] == keyless, "keys of parsed lines are not kept"


TRACED = rb"""line %d
  at a
  at b"""


@pytest.mark.parametrize("several", [False, True])
def test_lines_that_the_table_does_not_keep_come_from_their_topics(
    topics: Topics, topic: str, tmp_path: Path, several: bool
) -> None:
    """Of one line or of several; what is parsed as before does not change, and what a topic has not stays as it is."""

    def configured(pattern: str) -> Settings:
        source: dict[str, Any] = {"topics": [topic], "parsers": ["own"]}
        if several:
            source["multiline"] = {"start": "^line"}
        own = {"kind": "regex", "pattern": pattern, "columns": {"number": "int"} if "number" in pattern else {}}
        return settings_of(tmp_path, topics, topic, source=[source], parser={"own": own})

    topics.create(topic, partitions=2)
    for part in range(2):
        values = [b"line %d" % number for number in range(100 * part, 100 * part + 100)]
        traced = [row for value in values for row in (TRACED % int(value[5:])).split(b"\n")]
        fill(topics, topic, traced if several else values, partition=part, each=7)
    before, after = configured(r"(?s)^(?P<message>\w+) .*$"), configured(r"(?s)^(?P<message>\w+) (?P<number>\d+).*$")
    assert list(consume(before, 1 << 30 if several else 900)) != [] and events(before).num_rows == 200
    removed = remove_rows(before, '"offset" % 5 = 1')
    left = events(before).num_rows
    assert removed and reparse(before, every=True) == Reparsed(left, 0, 0, 0, 0)
    with Admin(topics.server.native) as admin:
        middle = sorted(place for place in places(rows(before)) if place[0] == 0)[50][1]
        admin.delete_records(topic, 0, middle)
    found = reparse(after, every=True)
    assert found.lines + found.without == left and found.without == 50 and found.taken == found.lost == 0
    told = events(after).select(["partition", "offset", "number"]).sort_by("offset").to_pylist()
    assert all((row["number"] is None) == (row["partition"] == 0 and row["offset"] < middle) for row in told)
    numbers = [row["number"] for row in told if row["partition"] == 1]
    assert numbers == sorted(numbers) and set(numbers) <= {*range(100, 200)}
    stricter = configured(r"(?s)^(?P<message>\w+) (?P<number>\d*[02468])\b.*$")
    lost = reparse(stricter, every=True).lost
    assert lost == sum(row["number"] % 2 for row in told if row["number"] is not None) == len(rejections(stricter))
    assert all(
        row["raw"].startswith(b"line ") and row["raw"].count(b"\n") == 2 * several for row in rejections(stricter)
    )
    topics.cluster.admin("delete_topic", {"name": topic})
    topics.create(topic, partitions=2)
    assert reparse(after, every=True)[:4] == (lost, lost, 0, left - lost), "the lines of another topic are not these"


def test_only_lines_of_a_time_are_parsed_again(tmp_path: Path) -> None:
    old = made(tmp_path, ["logfmt"])
    for number in range(3):
        micro_batch(old, number, [[records([b"took 5 ms"], "t", number, STAMP + timedelta(hours=number))]])
    corrected = made(tmp_path, ["took"])
    hour_us = 3_600_000_000
    first_us = int(STAMP.timestamp()) * 1_000_000 + hour_us
    assert reparse(corrected, since_us=first_us, until_us=first_us + hour_us) == Reparsed(1, 1, 0, 0, 1)
    assert [row["rejected"] is None for row in table(corrected)] == [False, True, False]


@pytest.mark.parametrize("place", [(OutputFiles, "write_table"), (DeltaTable, "create_write_transaction")])
def test_a_reparse_that_is_killed_has_changed_nothing(tmp_path: Path, place: tuple[object, str]) -> None:
    write(made(tmp_path, ["logfmt"], partition_by=["host"]))
    corrected = made(tmp_path, ["logfmt", "took"], partition_by=["host"])
    before = [{**row, "took": None} for row in table(corrected)]
    with mock.patch.object(*place, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        reparse(corrected)
    assert [{**row, "took": None} for row in table(corrected)] == before
    assert reparse(corrected).taken == 2
    assert table(corrected) == as_if(tmp_path, ["logfmt", "took"], partition_by=["host"])


def test_files_with_odd_values_in_their_names_are_found(tmp_path: Path) -> None:
    """delta-rs names directories by values, where it writes files again."""
    logfmt = [f'time=2026-11-19T10:0{n}:00Z host="a b%c:ö" message={n}'.encode() for n in range(4)]
    settings = made(tmp_path, ["logfmt"], partition_by=["host"], raw=True)
    micro_batch(settings, 0, [[records(logfmt[:2], "t")], [records(logfmt[2:], "t", 2)]])
    assert DeltaTable(str(tmp_path / "out/events")).delete("message in ('0', '2')")["num_deleted_rows"] == 2
    assert reparse(settings, every=True) == Reparsed(2, 0, 0, 0, 0)
    stricter = made(tmp_path, ["took"], partition_by=["host"], raw=True)
    assert reparse(stricter, every=True) == Reparsed(2, 0, 2, 0, 1)
    assert places(rows(stricter)) == [(0, 1), (0, 3)], "each row is there once"
    micro_batch(settings, 1, [[records(logfmt[:2], "t", 4)], [records(logfmt[2:], "t", 6)]])
    DeltaTable(str(tmp_path / "out/events")).delete("message in ('0', '2')")
    compact(DeltaEvents(settings.output), settings.output, settled=True)
    assert places(rows(settings)) == [(0, 1), (0, 3), (0, 5), (0, 7)]
    assert len(DeltaEvents(settings.output).event_files()) == 2, "one of each partition"


def test_what_cannot_be_parsed_again_is_refused(tmp_path: Path) -> None:
    settings = made(tmp_path, ["logfmt"])
    with pytest.raises(BadValue, match=r"there is no table of events .*`appliance pipeline run CONFIG.toml` makes it"):
        reparse(settings)
    write(settings)
    assert reparse(settings)._replace(lines=0) == NOTHING
    with output_lock(settings), pytest.raises(AlreadyRunning):
        reparse(settings)
