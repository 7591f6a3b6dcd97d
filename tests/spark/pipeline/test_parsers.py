"""All parsers: what cannot be built is refused, and no line breaks one."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue
from appliance.spark.pipeline import columns
from appliance.spark.pipeline.parsers import build
from appliance.spark.pipeline.settings import BUILT_IN, Parser, Source

from .lines import NOW, SOURCE, nulled, parse


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (Parser(kind="regex", pattern="(?P<a>"), "pattern"),
        (Parser(kind="regex", pattern="(?P<a>x)", columns={"b": "int"}), "no group of the pattern is named b"),
        (Parser(kind="json", columns={"host": "string"}), "has a column already"),
        (Parser(kind="json", rest="host"), "rest = 'host': name a new column"),
        (Parser(kind="regex", pattern="(?P<a>x)", rest="more"), "rest = 'more'"),
        (Parser(kind="json", time_formats=("iso", "rfc9999")), "time_formats: 'rfc9999': use one of epoch, iso"),
    ],
)
def test_parsers_that_cannot_be(own: Parser, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        build("app", SOURCE, {"app": own})


def test_a_zone_that_there_is_not() -> None:
    with pytest.raises(BadValue, match="Mars/Olympus"):
        build("syslog", Source(topics=("t",), parsers=("syslog",), zone="Mars/Olympus"), {})


@given(st.lists(st.none() | st.text(max_size=80), min_size=1, max_size=8), st.sampled_from(BUILT_IN))
def test_no_line_breaks_a_parser(lines: list[str | None], name: str) -> None:
    found = parse(name, *lines)
    columns = [found.matched, *found.columns.values(), *([] if found.reasons is None else [found.reasons])]
    assert {len(column) for column in columns} == {len(lines)}
    for column in found.columns.values():
        pa.Array.validate(column, full=True)
        assert not any(
            value is not None
            for value, hit in zip(column.to_pylist(), found.matched.to_pylist(), strict=True)
            if not hit
        )


LINE = st.sampled_from(
    [
        *(
            '{"a": 1, "level": "warn", "time": "2026-11-20T10:00:00Z"}',
            '{"a": "x", "message": "é"}',
            "{",
            "null",
            "[1]",
        ),
        *("a=1 level=warn time=2026-11-20T10:00:00Z", 'a=x message="é = \\"1\\""', "nothing", 'a="b', "time=noon a=2"),
    ]
)


@pytest.mark.parametrize("kind", ["json", "logfmt"])
@given(lines=st.lists(st.none() | LINE, min_size=2, max_size=9), dead=st.booleans(), rest=st.sampled_from(["", "more"]))
def test_lines_in_parts_are_the_same_as_at_once(kind: Any, lines: list[str | None], dead: bool, rest: str) -> None:
    own = Parser(kind=kind, columns={"a": "int"}, rest=rest, on_error="dead_letter" if dead else "null")
    given_lines = pa.array(lines, pa.string()).slice(1)
    parser = build("app", SOURCE, {"app": own})
    whole = parser.parse(given_lines, NOW)
    with mock.patch.object(columns, "PART_MAX", 2):
        parts = parser.parse(given_lines, NOW)
    assert parts.matched.equals(whole.matched)
    assert parts.columns.keys() == whole.columns.keys()
    assert all(parts.columns[name].equals(whole.columns[name]) for name in whole.columns)
    none = [None] * len(given_lines)
    texts = [none if each.reasons is None else each.reasons.to_pylist() for each in (parts, whole)]
    assert texts[0] == texts[1] and nulled(parts) == nulled(whole)
