"""logfmt: all lines at once give the same as each line alone, by a regular expression."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline import logfmt_parser
from appliance.spark.pipeline.settings import Column, Parser

from .lines import nulled, only, parse


def test_logfmt() -> None:
    own = Parser(kind="logfmt", columns={"status": "int"})
    line = 'time=2026-11-20T10:00:00Z level=err msg=x message="a \\"b\\" c" status=200 empty='
    found = only("app", line, own)
    assert (found["level"], found["message"], found["status"]) == ("error", 'a "b" c', 200)
    bad = parse("app", "no pairs at all", "status=many", own=own)
    assert bad.reasons is not None and bad.matched.to_pylist() == [False, True]
    assert bad.reasons.to_pylist() == ["app: no key=value", None]
    assert nulled(bad) == {"app: status is not of its type (int)": [1]}


def test_quotes_of_every_kind() -> None:
    own = Parser(kind="logfmt", columns={"a": "string", "b c": "string"})
    assert only("app", "a='x \\'y\\' z'", own)["a"] == "x 'y' z"
    assert only("app", 'a="p=q r=s" x=1', own)["a"] == "p=q r=s"
    assert only("app", '"b c"="d e"', own)["b c"] == "d e"
    assert only("app", r'a="line\nnext\u00e9\\"', own)["a"] == "line\nnext\u00e9\\"
    assert only("app", "a=1 word a=2", own)["a"] == "2"
    assert only("app", "ms=NaN a=it's", Parser(kind="logfmt", columns={"ms": "float", "a": "string"})) == {"a": "it's"}


def test_a_cut_line_keeps_what_there_is_of_its_last_field() -> None:
    own = Parser(kind="logfmt", columns={"a": "string"})
    for line, value in (
        ('x=1 a="could not open the file, since', "could not open the file, since"),
        ("a='could not open", "could not open"),
        (r'a="a \"b\" c', 'a "b" c'),
        (r'a="ends in \"', 'ends in "'),
        ('a="ends in \\', "ends in \\"),
        ('a="', ""),
    ):
        assert only("app", line, own).get("a", "") == value


def test_renamed_fields_and_the_rest() -> None:
    own = Parser(kind="logfmt", columns={"code": Column(type="int", field="status")}, rest="more")
    assert only("app", 'status=7 x=1 y="a b" x=2 message=m', own) == {
        "code": 7,
        "message": "m",
        "more": [("y", "a b"), ("x", "2")],
    }
    found = parse("app", "status=7", "nothing", "k=v", own=own)
    assert found.columns["more"].to_pylist() == [[], None, [("k", "v")]]


PIECES = ["a", "b=", "=", " ", "  ", '"', '"x y"', "k=v", 'k="v w"', 'k="v=w" ', "\t", "\n", "é", "a=b"]


LINE = st.lists(st.sampled_from([*PIECES, "\\", "'"]), max_size=9).map("".join)


@given(st.lists(st.none() | LINE, min_size=2, max_size=6))
def test_all_at_once_is_the_same_as_one_by_one(given_lines: list[str | None]) -> None:
    lines = pa.array(given_lines, pa.string()).slice(1)
    found, right = logfmt_parser.split(lines), logfmt_parser._split_each(lines.to_pylist())
    assert [found.lines.tolist(), found.keys.to_pylist(), found.values.to_pylist()] == [
        right.lines.tolist(),
        right.keys.to_pylist(),
        right.values.to_pylist(),
    ]
