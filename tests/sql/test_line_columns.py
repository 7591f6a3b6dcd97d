"""appliance.sql.line_columns: parsers are chosen by what they take, and make the columns that the pipeline has."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from appliance.log_access.arrow import SCHEMA
from appliance.sql.line_columns import LineColumns, guessed

from ..support.pipelines import STAMP_MS, access


def records(*values: bytes | None) -> pa.RecordBatch:
    rows = [
        {"value": value, "topic": "t", "partition": 0, "offset": number, "timestamp": STAMP_MS * 1000}
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


JSON = [json.dumps({"level": "warn", "status": 200 + number, "Status": "x"}).encode() for number in range(20)]
LINES = {
    "access": [access(number) for number in range(20)],
    "json": JSON,
    "logfmt": [b"level=info status=%d took=0.5" % number for number in range(20)],
    "syslog": [b"Nov 20 10:00:%02d host app[7]: says a=%d" % (number, number) for number in range(20)],
    "journald": [json.dumps({"MESSAGE": f"m {number}", "PRIORITY": "3"}).encode() for number in range(20)],
}


@pytest.mark.parametrize("parser", LINES)
def test_the_parser_is_chosen_that_takes_the_lines(parser: str) -> None:
    guess = guessed("t", records(*LINES[parser]))
    assert guess is not None
    assert guess[:3] == (parser, 20, 20)


@pytest.mark.parametrize(
    "values",
    [
        [b"a sentence", b"and another one with url=x"],
        [b"\xff\xfe", b"\x00"],
        [*LINES["access"][:15], *[b"a sentence"] * 5],
    ],
)
def test_no_parser_is_chosen_that_takes_only_some(values: list[bytes]) -> None:
    assert guessed("t", records(*values)) is None
    assert guessed("t", None) is None


def test_fields_of_json_become_columns_of_their_types() -> None:
    rows = [
        {"level": "warn", "status": 200, "took": 1, "ok": True, "user": {"id": 1}, "offset": 7, "a.b": "c", "n": None},
        {"status": "none", "took": 0.5, "late": None},
    ]
    values = records(*(json.dumps(row).encode() for row in rows))
    guess = guessed("t", values)
    assert guess is not None
    columns = LineColumns(guess.settings, "t")
    kinds = {field.name: str(field.type) for field in columns.fields}
    assert kinds == {
        **{"parser": "string", "time": "timestamp[us, tz=UTC]"},
        **dict.fromkeys(["host", "service", "level", "message"], "string"),
        **{"a.b": "string", "late": "string", "n": "string", "offset_": "int64", "ok": "bool"},
        **{"status": "string", "took": "double", "user": "string"},
    }
    made = columns.parse(values)
    assert made["status"].to_pylist() == ["200", "none"]
    assert made["took"].to_pylist() == [1.0, 0.5]
    assert made["user"].to_pylist() == ['{"id":1}', None]
    assert made["a.b"].to_pylist() == ["c", None]
    assert made["level"].to_pylist() == ["warning", None]


def test_names_that_differ_by_case_only_get_other_names() -> None:
    guess = guessed("t", records(*JSON))
    assert guess is not None
    names = [field.name for field in LineColumns(guess.settings, "t").fields]
    assert {"Status", "status_"} <= {*names}
    assert len({name.lower() for name in names}) == len(names)


def test_a_parser_that_is_named_is_used_whatever_it_takes() -> None:
    guess = guessed("t", records(b"no line of it"), "access")
    assert guess is not None
    assert guess[:3] == ("access", 0, 1)
    made = LineColumns(guess.settings, "t").parse(records(b"no line of it", LINES["access"][0], None))
    assert made["status"].to_pylist() == [None, 200, None]
    assert made["parser"].to_pylist() == [None, "access", None]
