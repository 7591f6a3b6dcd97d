"""JSON lines: what people expect is converted, what does not fit is null and counted, and nothing is lost for it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline.settings import Column, Parser

from .lines import nulled, only, parse

JSON = Parser(kind="json", time="ts", message="msg", columns={"status": "int", "ms": "float", "ok": "bool"})
STRICT = msgspec.structs.replace(JSON, on_error="dead_letter", time_on_error="dead_letter")


def test_fields_become_columns() -> None:
    line = '{"ts": 1763632800, "level": "WARN", "msg": "hi", "status": "200", "ms": 1.5, "ok": true, "more": [1]}'
    assert only("app", line, JSON) == {
        "time": datetime(2025, 11, 20, 10, tzinfo=UTC),
        "level": "warning",
        "message": "hi",
        "status": 200,
        "ms": 1.5,
        "ok": True,
    }


def test_a_bad_field_is_null_and_counted_and_the_line_is_kept() -> None:
    found = parse("app", '{"status": "many", "ms": 2}', '{"ts": "noon", "ok": "perhaps"}', '{"status": 7}', own=JSON)
    assert found.matched.to_pylist() == [True, True, True] and found.reasons is None
    assert found.columns["status"].to_pylist() == [None, None, 7] and found.columns["ms"].to_pylist() == [
        2.0,
        None,
        None,
    ]
    assert nulled(found) == {
        "app: ts is not a time": [1],
        "app: status is not of its type (int)": [0],
        "app: ok is not of its type (bool)": [1],
    }


def test_a_bad_field_makes_a_dead_letter_when_asked_for() -> None:
    found = parse("app", '{"status": "many", "msg": "x"}', '{"ts": "noon"}', '{"status": 7}', own=STRICT)
    assert found.reasons is not None and found.matched.to_pylist() == [False, False, True]
    assert found.reasons.to_pylist() == ["app: status is not of its type (int)", "app: ts is not a time", None]
    assert found.columns["message"].to_pylist() == [None] * 3, "nothing of a line that is not matched"
    one = msgspec.structs.replace(JSON, columns={"status": Column(type="int", on_error="dead_letter"), "ms": "float"})
    found = parse("app", '{"status": "many"}', '{"ms": "much"}', own=one)
    assert found.matched.to_pylist() == [False, True] and nulled(found) == {"app: ms is not of its type (float)": [1]}


def test_whole_numbers_that_no_double_has() -> None:
    found = parse("app", '{"ms": 9007199254740993}', '{"ms": 1}', own=JSON)
    assert found.columns["ms"].to_pylist() == [9007199254740992.0, 1.0] and not nulled(found)


def test_what_is_no_object_is_not_matched() -> None:
    bad = parse("app", "{", "[]", None, "null", '{"a":' * 20_000, own=JSON)
    assert bad.reasons is not None and not any(bad.matched.to_pylist())
    assert bad.reasons.to_pylist()[2] == "app: no value" and bad.reasons.to_pylist()[4] == "app: nested too deeply"


@pytest.mark.parametrize(
    ("given_text", "kind", "meant"),
    [
        ("1", "string", "1"),
        ("1.50", "string", "1.5"),
        ("1e300", "string", f"{1e300:f}"),
        ("true", "string", "true"),
        ('{"a": [1, "b"]}', "string", '{"a":[1,"b"]}'),
        ('"\\ud800x"', "string", "?x"),
        ('"200"', "int", 200),
        ("200.0", "int", 200),
        ('"200.0"', "int", 200),
        ("9223372036854775808", "int", None),
        ("true", "int", None),
        ("1.5", "int", None),
        ("3", "float", 3.0),
        ('"3e2"', "float", 300.0),
        ("NaN", "float", None),
        ("-Infinity", "float", None),
        ("1e999", "float", None),
        ('"true"', "bool", True),
        ("0", "bool", False),
        ("2", "bool", None),
    ],
)
def test_conversions_that_people_expect(given_text: str, kind: str, meant: Any) -> None:
    own = Parser(kind="json", columns=msgspec.convert({"x": kind}, dict[str, Any]))
    found = parse("app", f'{{"x": {given_text}, "message": "kept"}}', '{"x": null}', "{}", own=own)
    assert found.matched.to_pylist() == [True] * 3 and found.columns["message"][0].as_py() == "kept"
    assert found.columns["x"].to_pylist() == [meant, None, None]
    assert list(nulled(found).values()) == ([[0]] if meant is None else [])


def test_paths_names_with_dots_and_the_rest() -> None:
    columns = {
        "id": Column(type="int", field="req.id"),
        "first": Column(field="tags.0"),
        "source": Column(field="log.file"),
    }
    own = Parser(kind="json", columns=columns, level="log.level", rest="more")
    line = (
        '{"req": {"id": 7, "m": "GET"}, "tags": ["a"], "log.level": "warn", "log": {"file": "x"}, "n": null, "t": 1.5}'
    )
    assert only("app", line, own) == {
        "id": 7,
        "first": "a",
        "source": "x",
        "level": "warning",
        "more": [("req", '{"id":7,"m":"GET"}'), ("tags", '["a"]'), ("log", '{"file":"x"}'), ("n", None), ("t", "1.5")],
    }
    assert "id" not in only("app", '{"req": "none", "tags": {}}', own)


def test_pino_and_others_with_numbers_for_levels() -> None:
    pino = Parser(kind="json", message="msg")
    line = '{"level":30,"time":1763632800123,"pid":1,"hostname":"h","msg":{"object":1}}'
    found = only("app", line, pino)
    assert found == {
        "time": datetime(2025, 11, 20, 10, 0, 0, 123_000, tzinfo=UTC),
        "level": "info",
        "message": '{"object":1}',
    }
    python = msgspec.structs.replace(pino, levels={"30": "warning"})
    assert only("app", line, python)["level"] == "warning"


def test_journald() -> None:
    line = '{"__REALTIME_TIMESTAMP":"1763632800123456","_HOSTNAME":"h","PRIORITY":"3","MESSAGE":[104,255,105]}'
    assert only("journald", line) == {
        "time": datetime(2025, 11, 20, 10, 0, 0, 123_456, tzinfo=UTC),
        "host": "h",
        "level": "error",
        "message": "h\ufffdi",
    }


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.lists(st.dictionaries(st.sampled_from(["status", "ms", "ok", "msg", "level", "ts", "x"]), values), max_size=4)
)
def test_every_object_is_an_event(objects: list[dict[str, Any]]) -> None:
    lines = [msgspec.json.encode(each).decode() for each in objects]
    found = parse("app", *lines, own=JSON)
    assert all(found.matched.to_pylist())
    for given_object, status in zip(objects, found.columns["status"].to_pylist(), strict=True):
        if type(given_object.get("status")) is int and abs(given_object["status"]) < 1 << 63:
            assert status == given_object["status"]
