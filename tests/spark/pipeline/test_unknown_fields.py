"""Fields that no column takes: kept in a map, made columns, or refused; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from appliance.errors import BadValue
from appliance.spark.pipeline import unknown_fields
from appliance.spark.pipeline.compaction import DeltaEvents, compact
from appliance.spark.pipeline.event_questions import questions
from appliance.spark.pipeline.events import REASON_CHARACTERS_MAX, Transform
from appliance.spark.pipeline.line_counts import PLAIN_REASON, REASONS_MAX, REMEMBERED
from appliance.spark.pipeline.pipeline_status import summary
from appliance.spark.pipeline.quality import UNEXPECTED
from appliance.spark.pipeline.reparse import Reparsed, reparse
from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import check_from
from appliance.spark.pipeline.unknown_fields import ADDED_MAX, NO_NAME, AddedColumns

from ...support.pipelines import fill, rows
from ...support.pipelines import settings as settings_of
from ...support.topics import Topics
from .test_events import batch
from .test_pipeline_sink import micro_batch, records


def made(base: Path, kind: str, unknown: str, **parser: Any) -> Settings:
    own = {"kind": kind, "columns": {"status": "int", "id": {"field": "req.id"}}, "unknown": unknown} | parser
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["own"]}],
        "parser": {"own": own},
        "output": {"path": "out"},
    }
    return parse(given, base)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            "json",
            [b'{"status": 1, "req": {"id": "x", "m": "GET"}}', b'{"status": 2, "user": "ann"}', b'{"a": 1, "b": 2}'],
        ),
        ("logfmt", [b"status=1 req.id=x", b"status=2 user=ann", b"a=1 a=2 b=2"]),
    ],
)
def test_a_line_with_an_unknown_field_is_refused(tmp_path: Path, kind: str, lines: list[bytes]) -> None:
    """A column may take a part of a field; and a corrected parser takes the lines."""
    settings = made(tmp_path, kind, "fail")
    micro_batch(settings, 0, [[records(lines, "t")]])
    found = summary(settings)
    assert (
        found.parsed == {"own": 1} and found.dead["own: no column for the field 'user'"] == 1 and len(found.dead) == 2
    )
    corrected = made(tmp_path, kind, "fail", columns={"status": "int", "id": {"field": "req.id"}, "user": "string"})
    assert reparse(corrected) == Reparsed(2, 1, 0, 0, 1)


@pytest.mark.parametrize("kind", ["json", "logfmt"])
def test_names_of_fields_cannot_make_counts_grow(tmp_path: Path, kind: str) -> None:
    """Whoever writes lines chooses them: the most frequent ones are counted each, all lines are counted."""
    settings = made(tmp_path, kind, "fail")
    often = "user's" if kind == "json" else "user"
    names = [f"n{number}{'x' * (number % 300)}" for number in range(6 * REASONS_MAX)]

    def line(name: str) -> bytes:
        return json.dumps({name: "1"}).encode() if kind == "json" else f"{name}=1".encode()

    for number in range(3):  # files
        lines = [line(name) for name in names[2 * REASONS_MAX * number :][: 2 * REASONS_MAX]]
        micro_batch(settings, number, [[records([*lines, *[line(often), b"?"] * 5], "t", 1000 * number)]])
    dead = summary(settings).dead
    assert len(dead) == REASONS_MAX + 1 and sum(dead.values()) == 3 * (2 * REASONS_MAX + 10)
    assert all(len(reason) <= REASON_CHARACTERS_MAX for reason in dead)
    most = [reason for reason, count in dead.items() if count == 15]
    assert len(most) == 2 and f"own: no column for the field {often!r}" in most
    kept = json.loads((settings.state_dir / REMEMBERED).read_text())
    assert [len(of_file["rejected"]) for of_file in kept.values()] == [REASONS_MAX + 1] * 3
    asked = questions(settings)
    assert asked is not None
    plain = asked.rows(f"select {PLAIN_REASON} as reason, count(*) as lines from events group by 1 order by 2 desc")
    assert plain[0] == {"reason": "own: no column", "lines": 3 * (2 * REASONS_MAX + 5)} and len(plain) == 2
    assert rows(settings).column_names == Transform(settings).schema.names


def table(settings: Settings, *names: str) -> list[tuple[Any, ...]]:
    """The rows of the table in the order of their offsets."""
    return [tuple(row[name] for name in names) for row in rows(settings).sort_by("offset").to_pylist()]


@pytest.mark.parametrize("kind", ["json", "logfmt"])
def test_unknown_fields_become_columns(tmp_path: Path, kind: str) -> None:
    """Of the first lines, too; by tasks that do not know of each other, and beside files that do not have them."""
    settings = made(tmp_path, kind, "add")

    def lines(*fields: dict[str, str]) -> list[bytes]:
        if kind == "json":
            return [json.dumps(each).encode() for each in fields]
        return [" ".join(f"{key}={value}" for key, value in each.items()).encode() for each in fields]

    micro_batch(settings, 0, [[records(lines({"status": "1"}), "t")]])
    first = records(lines({"User": "ann", "status": "2"}, {"size": "5"}), "t", 1)
    second = records(lines({"user": "bob", "zone": "z"}), "t", 3)
    micro_batch(settings, 1, [[first], [second]])
    micro_batch(settings, 2, [[records(lines({"zone": "y"}, {"status": "3"}), "t", 4)]])
    want = [
        (1, None, None, None),
        (2, "ann", None, None),
        (None, None, "5", None),
        (None, "bob", None, "z"),
        (None, None, None, "y"),
        (3, None, None, None),
    ]
    names = ("status", "user", "size", "zone")
    assert table(settings, *names) == want
    compact(DeltaEvents(settings.output), settings.output, settled=True, vacuum=False)
    assert table(settings, *names) == want and len(DeltaTable(f"{tmp_path}/out/events").file_uris()) == 1
    told = [each.text for each in check_from(settings, {}).findings if each.effect == "ok"]
    assert told == [f"column {name!r} has unknown fields of its name from now on" for name in ("user", "size", "zone")]
    other = made(tmp_path, kind, "rescue")
    told = [each.text for each in check_from(other, {}).findings if each.effect == "ok"]
    assert told[0] == "column 'user' is kept, null from now on"


def test_a_reparsed_line_has_its_columns_too(tmp_path: Path) -> None:
    micro_batch(made(tmp_path, "logfmt", "fail"), 0, [[records([b"status=1", b"user=ann", b"?"], "t")]])
    adding = made(tmp_path, "logfmt", "add")
    assert reparse(adding) == Reparsed(2, 1, 0, 0, 1)
    assert table(adding, "status", "user", "raw") == [(1, None, None), (None, "ann", None), (None, None, b"?")]
    assert reparse(adding) == Reparsed(1, 0, 0, 0, 0), "a repetition changes nothing"


def test_fields_that_cannot_be_columns_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AddedColumns.__init__, "__defaults__", (2,))
    settings = made(tmp_path, "json", "add")
    lines = [
        b'{"Status": 5, "a": 1, "a.b": 2, "rejected": 3, "start": 4}',
        b'{"b": {"x": [1]}, "c": 1, "status": "many"}',
        b'{"a": null, "b": "2"}',
    ]
    micro_batch(settings, 0, [[records(lines, "t")]])
    assert table(settings, "a", "b") == [("1", None), (None, '{"x":[1]}'), (None, "2")]
    assert summary(settings).nulled == {
        NO_NAME: 1,
        unknown_fields.TOO_MANY: 1,
        "own: status is not of its type (int)": 1,
    }
    assert not {"c", "start", "a.b"} & set(rows(settings).column_names)


def test_a_field_is_not_taken_for_a_column_of_earlier_settings() -> None:
    """What was the line itself, or what a rule said, is believed by whoever asks the table."""
    now = Transform(made(Path("/base"), "logfmt", "add"))
    outcome = now.run(batch([b"a=2 line=forged unexpected=forged"]))
    assert outcome.unknown is not None
    before = pa.schema([*now.schema, ("line", pa.string()), (UNEXPECTED, pa.string())])
    (row,) = AddedColumns(before, now.schema).spread(outcome.rows, outcome.unknown).to_pylist()
    assert (row["a"], row["line"], row[UNEXPECTED], row["column_errors"]) == ("2", None, None, NO_NAME)


def test_micro_batches_of_one_run_see_the_columns_of_earlier_ones(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """A run that had only the columns from its beginning would go on to add some."""
    names = [f"f{number:03}" for number in range(ADDED_MAX + 50)]
    fill(
        topics,
        topics.create(topic),
        [b"%s=%s time=2026-11-20" % (name.encode(), b"x" * 200) for name in names],
        each=50,
    )
    own = {"kind": "logfmt", "unknown": "add"}
    source = [{"topics": [topic], "parsers": ["own"]}]
    run_of = settings_of(tmp_path, topics, topic, source=source, parser={"own": own}, input={"trigger_bytes": "12KB"})
    found = run(run_of, once=True, session=spark)
    assert found.batches > 2 and sum(found.summary.parsed.values()) == len(names)
    there = set(rows(run_of).column_names) & set(names)
    assert there == set(names[: len(there)]) and ADDED_MAX <= len(there) < ADDED_MAX + 25
    assert found.summary.nulled == {unknown_fields.TOO_MANY: len(names) - len(there)}


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "A", "b", "c", "message", "no name"]), st.sampled_from(["", "x", "y"])),
        min_size=1,
        max_size=6,
    )
)
def test_each_row_has_its_own_fields(lines: list[dict[str, str]]) -> None:
    settings = made(Path("/base"), "json", "add")
    transform = Transform(settings)
    outcome = transform.run(batch([json.dumps(each).encode() for each in lines]))
    assert outcome.unknown is not None
    columns = AddedColumns(transform.schema, transform.schema)
    found = columns.spread(outcome.rows, outcome.unknown).to_pylist()
    assert set(columns.fresh) == {key.lower() for each in lines for key in each} & {"a", "b", "c"}
    for each, row in zip(lines, found, strict=True):
        assert row["message"] == each.get("message") and (row["column_errors"] is None) == ("no name" not in each)
        for name in columns.fresh:
            given = [value for key, value in each.items() if key.lower() == name]
            assert row[name] in given if given else row[name] is None


@pytest.mark.parametrize("unknown", ["add", "fail"])
def test_policies_that_contradict_others_are_refused(tmp_path: Path, unknown: str) -> None:
    said = f"unknown = '{unknown}' is for json and logfmt, and leaves nothing for rest"
    with pytest.raises(BadValue, match=said):
        Transform(made(tmp_path, "json", unknown, rest="more"))
    with pytest.raises(BadValue, match=said):
        Transform(made(tmp_path, "regex", unknown, pattern="(?P<status>.)", columns={"status": "int"}))
