"""A regular expression of one's own: groups become columns."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from appliance.spark.pipeline.settings import Column, Parser

from .lines import nulled, only, parse

OWN = Parser(
    kind="regex", pattern=r"^(?P<at>\S+) (?P<sev>\w+) (?P<n>\S+)$", time="at", level="sev", columns={"n": "int"}
)


def test_groups_become_columns() -> None:
    assert only("app", "2026-11-20T10:00:00Z WARN 7", OWN) == {
        "time": datetime(2026, 11, 20, 10, tzinfo=UTC),
        "level": "warning",
        "n": 7,
    }


def test_groups_that_do_not_fit() -> None:
    lines = ("2026-11-20T10:00:00Z WARN x", "noon WARN 7", "x")
    found = parse("app", *lines, own=OWN)
    assert found.matched.to_pylist() == [True, True, False] and found.columns["n"].to_pylist() == [None, 7, None]
    assert nulled(found) == {"app: n is not of its type (int)": [0], "app: at is not a time": [1]}
    strict = msgspec.structs.replace(OWN, on_error="dead_letter", time_on_error="dead_letter")
    bad = parse("app", *lines, own=strict)
    assert bad.matched.to_pylist() == [False] * 3 and bad.reasons is not None
    assert bad.reasons.to_pylist() == ["app: n is not of its type (int)", "app: at is not a time", None]
    assert not any(column[0].as_py() for column in bad.columns.values()), "nothing of a line that is not matched"


def test_formats_of_times_and_other_names() -> None:
    own = Parser(
        kind="regex",
        pattern=r"^(?<when>[\d.]+ [\d:]+) (?<code>\d+) (?<text>.*)$",
        time="when",
        time_formats=("%d.%m.%Y %H:%M",),
        message="text",
        columns={"status": Column(type="int", field="code")},
    )
    assert only("app", "20.11.2026 10:00 404 not found", own) == {
        "time": datetime(2026, 11, 20, 10, tzinfo=UTC),
        "status": 404,
        "message": "not found",
    }
