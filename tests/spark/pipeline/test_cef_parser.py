"""appliance.spark.pipeline.cef_parser: the Common Event Format, as devices send it and as nobody does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .lines import only, parse

WORM = (
    r"CEF:0|Security|threat\|manager|1.0|100|worm \\ stopped|10|src=10.0.0.1 dst=2.1.2.2 msg=it \= was\nstopped act=x"
)


def test_a_line_with_all_of_it() -> None:
    assert only("cef", "<13>Nov 20 10:00:00 fw-1 " + WORM) == {
        "time": datetime(2026, 11, 20, 10, tzinfo=UTC),
        "host": "fw-1",
        "service": "threat|manager",
        "level": "crit",
        "message": "it = was\nstopped",
        "vendor": "Security",
        "product": "threat|manager",
        "product_version": "1.0",
        "signature": "100",
        "severity": "10",
        "extension": [("src", "10.0.0.1"), ("dst", "2.1.2.2"), ("msg", "it = was\nstopped"), ("act", "x")],
    }


def test_its_own_time_and_host_win_over_those_of_the_relay() -> None:
    found = only("cef", "2026-11-20T10:00:00Z relay CEF:0|v|p|1|s|named|Low|rt=1763800000000 dvchost=fw-2 cs1=a b")
    assert found["time"] == datetime.fromtimestamp(1763800000, UTC)
    assert (found["host"], found["message"], found["level"]) == ("fw-2", "named", "info")
    assert dict(found["extension"])["cs1"] == "a b"


def test_a_time_that_is_none_leaves_the_next_one() -> None:
    found = only("cef", "Nov 20 10:00:00 fw CEF:0|v|p|1|s|n|3|rt=soon end=1763800000000")
    assert found["time"] == datetime.fromtimestamp(1763800000, UTC)
    found = only("cef", "Nov 20 10:00:00 fw CEF:0|v|p|1|s|n|3|rt=soon")
    assert found["time"] == datetime(2026, 11, 20, 10, tzinfo=UTC)


def test_without_a_head_and_an_extension() -> None:
    found = only("cef", "CEF:0|v|p|1|s|n|Unknown|")
    assert found["extension"] == [] and "time" not in found and "host" not in found and "level" not in found


def test_a_time_that_is_none_is_counted_and_the_line_kept() -> None:
    found = parse("cef", "CEF:0|v|p|1|s|n|3|rt=soon", "CEF:0|v|p|1|s|n|3|rt=Nov 20 2026 10:00:00", "no CEF")
    assert found.matched.to_pylist() == [True, True, False]
    assert found.columns["time"].to_pylist() == [None, datetime(2026, 11, 20, 10, tzinfo=UTC), None]
    assert {reason: wrong.tolist() for reason, wrong in found.nulled.items()} == {
        "cef: time is not a time": [True, False, False]
    }


@pytest.mark.parametrize(
    "line", ["CEF:0|v|p|1|s|n", "CEF:x|v|p|1|s|n|3|", "CEF:0|v|p|1|s|n\\|3|", "xCEF:0|v|p|1|s|n|3|"]
)
def test_what_is_no_cef_is_left_to_other_parsers(line: str) -> None:
    assert parse("cef", line, WORM).matched.to_pylist() == [False, True]


def _escaped(text: str, byte: str) -> str:
    text = text.replace("\\", r"\\").replace(byte, f"\\{byte}")
    return text.replace("\n", r"\n").replace("\r", r"\r") if byte == "=" else text


_HEAD = st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=9)
_KEYS = st.text("abcXYZ019_", min_size=1, max_size=9)
_VALUES = st.text("ab =\\|\n\ré0", max_size=12).map(str.strip)


@given(st.lists(st.tuples(_HEAD, st.dictionaries(_KEYS, _VALUES, max_size=4)), min_size=1, max_size=5))
def test_what_is_written_by_its_rules_is_read_back(events: list[tuple[str, dict[str, str]]]) -> None:
    lines = [
        f"CEF:0|v|p|1|{_escaped(signature, '|')}|n|3|"
        + " ".join(f"{key}={_escaped(value, '=')}" for key, value in pairs.items())
        for signature, pairs in events
    ]
    found = parse("cef", *lines)
    assert found.columns["signature"].to_pylist() == [signature or None for signature, _ in events]
    assert found.columns["extension"].to_pylist() == [list(pairs.items()) for _, pairs in events]
