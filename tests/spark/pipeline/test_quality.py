"""Rules for lines: which fail, what becomes of them, what is counted, and which rules are refused; without Spark."""

from __future__ import annotations

import time
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import extras
from appliance.errors import BadValue
from appliance.spark.pipeline import commit_follower, quality
from appliance.spark.pipeline.event_questions import questions
from appliance.spark.pipeline.events import Transform
from appliance.spark.pipeline.letters import Letters
from appliance.spark.pipeline.pipeline_status import summary
from appliance.spark.pipeline.quality import Rules
from appliance.spark.pipeline.reparse import Reparsed, reparse
from appliance.spark.pipeline.report_panels import Asked, panels
from appliance.spark.pipeline.settings import Quality, Settings, parse
from appliance.spark.pipeline.startup import check_from

from ...support.pipelines import rows
from .test_events import batch
from .test_letters import Topic
from .test_pipeline_sink import micro_batch, records

RANGE = "status between 100 and 599"


def made(base: Path, *rules: tuple[str, str], raw: bool = False, **tables: Any) -> Settings:
    """``rules``: condition and what becomes of lines that fail it."""
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["own"]}],
        "parser": {"own": {"kind": "logfmt", "columns": {"status": "int", "user": "string"}}},
        "quality": [{"expect": expect, "on_failure": what} for expect, what in rules],
        "output": {"path": "out", "raw": raw},
        "dead_letters": {"topic": "dead"},
    }
    return parse(given | tables, base)


def outcomes(settings: Settings, *values: bytes | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Transform(settings).run(batch(values)).rows.to_pylist()
    return found


@given(
    lines=st.lists(st.none() | st.tuples(st.none() | st.integers(0, 700), st.sampled_from("ab")), max_size=8),
    first=st.sampled_from(["warn", "drop", "reject"]),
    second=st.sampled_from(["warn", "drop", "reject"]),
)
def test_lines_that_fail_become_what_their_rule_says(lines: list[Any], first: str, second: str) -> None:
    """A line without a status passes, one that no parser takes fails nothing, and the first loss decides."""
    rules = [(RANGE, first), ("\"user\" <> 'b' -- not him", second)]
    settings = made(Path("/base"), *rules)
    written = [
        b"?" if each is None else (b"" if each[0] is None else b"status=%d " % each[0]) + b"user=" + each[1].encode()
        for each in lines
    ]
    found = Transform(settings).run(batch(written)) if lines else None
    dead = 0
    for each, row in zip(lines, [] if found is None else found.rows.to_pylist(), strict=True):
        failed = [] if each is None else [each[0] is not None and not 100 <= each[0] <= 599, each[1] == "b"]
        losses = [rule for rule, fails in zip(rules, failed, strict=each is not None) if fails and rule[1] != "warn"]
        warned = [
            expect for (expect, what), fails in zip(rules, failed, strict=each is not None) if fails and not losses
        ]
        dead += each is None or (bool(losses) and losses[0][1] == "reject")
        assert row.get("unexpected") == ("; ".join(warned) or None)
        if each is None:
            assert row["rejected"] and row["raw"] == b"?"
        elif not losses:
            assert (row["rejected"], row["status"], row["user"]) == (None, *each)
        else:
            expect, what = losses[0]
            reason = f"dropped: {expect}" if what == "drop" else f"not as expected: {expect}"
            assert (row["rejected"], row["status"], row["parser"], row["user"]) == (reason, None, None, None)
            assert (row["raw"] is None) == (what == "drop")
    assert found is None or len(found.dead) == dead


@pytest.mark.parametrize(
    "expect, said",
    [
        ("stats > 5", 'Referenced column "stats" not found'),
        ("status", "it is BIGINT: give a condition"),
        ("count(*) > 1", "aggregates are not allowed"),
        ("random() < 0.5", "volatile"),
        ("user in (select 'a')", "scalar subquery"),
        ("status > 1)), try((true", "it is more than one expression"),
        ("rejected is null", 'Referenced column "rejected" not found'),
        ("1 = 1", "it names no column"),
        ("'status' < 600", "it names no column: they are written without quotes, or in double ones"),
        ("now() > '2020-01-01'", "it names no column"),
        ("current_user <> 'ann'", "it names no column"),
        ("status > 100 and current_user <> 'ann'", "there is no column 'current_user'"),
        ("status = 200 or 301", "no line can fail it"),
        ("status <> null", "no line can fail it"),
        ("status > 10 or status <= 10 -- all", "no line can fail it"),
        ("status between 599 and 100", "no line can meet it"),
        ("false and status > 1", "no line can meet it"),
    ],
)
def test_a_rule_that_cannot_be_computed_is_refused_by_a_check(tmp_path: Path, expect: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        check_from(made(tmp_path, (expect, "warn")), {})


KINDS_OF_LINES = pa.table({"status": [200, 301, None, 0, 1], "user": ["a", "b", None, "", "a"]})
CONDITIONS = st.recursive(
    st.sampled_from(["status", "status = 200", "status is null", "\"user\" like 'a%'", "status + 1"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or", "="]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda part: f"not ({part})"),
        st.tuples(inner, st.sampled_from(["or", "and"]), st.sampled_from(["true", "false", "null", "301"])).map(
            lambda parts: f"({' '.join(parts)})"
        ),
    ),
    max_leaves=4,
)


@given(CONDITIONS)
def test_no_rule_is_refused_that_tells_lines_apart(expect: str) -> None:
    """Compared with what it says of lines of all kinds."""
    said = ""
    try:
        Rules([Quality(expect)], {field.name: field.type for field in KINDS_OF_LINES.schema})
    except BadValue as error:
        said = str(error)
    if "no line can" in said:
        asked = quality.connected()
        asked.register("rows", KINDS_OF_LINES)
        values = {value for (value,) in asked.sql(f"select try(({expect})) from rows").fetchall()}
        assert ("fail" in said and False not in values) or ("meet" in said and True not in values)


def test_a_rule_needs_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "missing", lambda *names: [*names])
    with pytest.raises(BadValue, match=r"\[\[quality\]\] needs duckdb, here and where tasks run: `pip install"):
        check_from(made(tmp_path, (RANGE, "warn")), {})
    check_from(made(tmp_path), {})


def test_what_would_make_counts_ambiguous_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="expect"):
        made(tmp_path, ("status > 1; drop table rows", "warn"))
    own = {"kind": "logfmt", "columns": {"status": "int"}}
    with pytest.raises(BadValue, match=r"parser\.dropped: rules of \[\[quality\]\] say that"):
        made(tmp_path, parser={"own": own, "dropped": own})
    with pytest.raises(BadValue, match="'unexpected' is the pipeline's own"):
        Transform(made(tmp_path, parser={"own": {"kind": "logfmt", "columns": {"unexpected": "int"}}}))


def test_what_cannot_be_computed_for_a_line_passes(tmp_path: Path) -> None:
    """And the whole batch does not fail for it."""
    found = outcomes(made(tmp_path, ('cast("user" as int) > 5', "drop")), b"user=a", b"user=4", b"user=6")
    assert [row["rejected"] for row in found] == [None, 'dropped: cast("user" as int) > 5', None]


def test_the_zone_of_the_host_changes_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour in a rule is that of the column hour."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        found = outcomes(made(tmp_path, ('hour("time") = "hour"', "reject"), raw=True), b"time=2026-11-20T02:00:00Z")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [(row["hour"], row["rejected"]) for row in found] == [(2, None)]


def test_rules_see_what_lookups_add(tmp_path: Path) -> None:
    (tmp_path / "owners.csv").write_text("user,owner\na,ann\n")
    settings = made(tmp_path, ("owner is not null", "warn"), lookup=[{"file": "owners.csv", "key": "user"}])
    found = outcomes(settings, b"user=a", b"user=b")
    assert [row["unexpected"] for row in found] == [None, "owner is not null"]


LINES = [b"status=200 user=a", b"status=7 user=a", b"status=200 user=b", b"status=201 user=c", b"?"]
RULES = (RANGE, "reject"), ("\"user\" <> 'b'", "drop"), ("status = 200", "warn")


def test_everything_is_counted_and_only_rejected_lines_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic()
    monkeypatch.setattr(commit_follower, "TaskWriter", topic.writer)
    settings = made(tmp_path, *RULES, raw=True)
    micro_batch(settings, 0, [[records([], "t")]])
    micro_batch(settings, 1, [[records(LINES, "t")]])
    found = summary(settings)
    assert found.parsed == {"own": 2}
    assert found.dead == {f"not as expected: {RANGE}": 1, "own: no key=value": 1}
    assert (found.dropped, found.unexpected) == ({"\"user\" <> 'b'": 1}, {"status = 200": 1})
    told = found.as_json()
    assert (told["parsed"], told["dead_letters"], sum(told["dropped"].values())) == (2, 2, 1)
    assert not any(b"user=b" in repr(row).encode() for row in rows(settings).to_pylist()), "nothing of it is kept"
    assert len(rows(settings)) == len(LINES), "each line has a row"
    asked = questions(settings)
    assert asked is not None
    shown = {panel.title: panel.caption for panel in panels(Asked(asked, settings, (None, None), UTC))}
    assert shown["Not as expected"].startswith("1 parsed lines") and shown["Rejected lines"].startswith("3 lines")
    Letters(settings).send()
    assert topic.values == [LINES[1], LINES[4]]


def test_a_corrected_rule_takes_lines_that_were_rejected_but_not_dropped(tmp_path: Path) -> None:
    micro_batch(made(tmp_path, *RULES), 0, [[records(LINES, "t")]])
    corrected = made(tmp_path, ("status between 1 and 599", "reject"), RULES[2])
    assert reparse(corrected) == Reparsed(2, 1, 0, 1, 1)
    found = summary(corrected)
    assert (found.parsed, sum(found.dropped.values())) == ({"own": 3}, 1)
    assert found.unexpected == {"status = 200": 2}
