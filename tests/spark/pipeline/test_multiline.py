"""Lines of one event are joined: all lines, in order, within bounds, wherever batches end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue
from appliance.spark.pipeline.multiline import Joiner
from appliance.spark.pipeline.settings import parse

from .lines import parse as parse_lines
from .test_events import batch


def joiner(**multiline: Any) -> Joiner:
    rule = {"start": r"^\d", "lines_max": 4, "bytes_max": 60} | multiline
    source = [
        {"topics": ["t"], "parsers": ["plain"], "multiline": rule},
        {"topics": ["u"], "parsers": ["plain"]},
    ]
    given_settings = {"pipeline": {"name": "p"}, "source": source, "output": {"path": "out"}}
    return Joiner(parse(given_settings, Path("/nowhere")))


def joined(made: Joiner, batches: Sequence[pa.RecordBatch]) -> list[tuple[int, int, bytes | None]]:
    parts = [part for each in batches for part in made.add(each)] + list(made.rest())
    rows = [row for part in parts for row in part.to_pylist()]
    return [(row["offset"], row["lines"], row["value"]) for row in rows]


def test_a_trace_is_one_event() -> None:
    lines = [b"1 failed", b"java.io.IOException: no", b"\tat x", b"2 fine", b"3 fine"]
    whole = b"\n".join(lines[:3])
    assert joined(joiner(), [batch(lines)]) == [(100, 3, whole), (103, 1, b"2 fine"), (104, 1, b"3 fine")]
    apart = [batch(lines).slice(0, 2), batch(lines).slice(2)]
    assert joined(joiner(), apart)[0] == (100, 3, whole), "also across batches of a task"


def test_bounds_partitions_and_other_topics() -> None:
    many = [b"1"] + [b"x"] * 9
    assert [lines for _, lines, _ in joined(joiner(), [batch(many)])] == [4, 4, 2]
    long = [b"1", b"x" * 50, b"y" * 50, b"z"]
    assert [lines for _, lines, _ in joined(joiner(), [batch(long)])] == [2, 2]
    two = batch([b"1", b"x", b"x"])
    two = two.set_column(3, "partition", pa.array([0, 0, 1], pa.int32()))
    assert [lines for _, lines, _ in joined(joiner(), [two])] == [2, 1]
    other = batch([b"x", None], ["u", "u"])
    assert joined(joiner(), [other]) == [(100, 1, b"x"), (101, 1, None)]
    assert joined(joiner(), [batch([b"1", b"a\n", b"b\r\n", None])]) == [(100, 4, b"1\na\nb\n")]


JAVA = """\
2026-11-20 10:00:00,123 ERROR [main] com.example.Shop - failed
java.lang.IllegalStateException: no
\tat com.example.Shop.sell(Shop.java:7)
Caused by: java.io.IOException: 2026 is over
2026-11-20T10:00:01.5Z INFO started
[2026-11-20 10:00:02,004] WARN slow (kafka.server.Server)
java.net.SocketException: closed
20-Nov-2026 10:00:03.123 SEVERE [main] org.example.App.run stopped
26/11/20 10:00:04 INFO Executor: done"""
POSTGRESQL = """\
2026-11-20 10:00:00.123 +01 [17] ann@shop LOG:  statement: select
\t2026-11-20 10:00:00 UTC [1] LOG:  from t
2026-11-20 10:00:00 UTC [17] DETAIL:  none
2026-11-20 was a Friday"""


@pytest.mark.parametrize(
    ("name", "text", "firsts"), [("java", JAVA, [0, 4, 5, 7, 8]), ("postgresql", POSTGRESQL, [0, 2])]
)
def test_events_of_a_known_format_are_joined_and_taken(name: str, text: str, firsts: list[int]) -> None:
    """None of their lines can pass for a first one, and the parser of that name takes each whole."""
    lines = text.encode().split(b"\n")
    made = joined(joiner(format=name, start="", lines_max=100, bytes_max=10_000), [batch(lines)])
    ends = [*firsts[1:], len(lines)]
    assert [value for _, _, value in made] == [b"\n".join(lines[at:end]) for at, end in zip(firsts, ends, strict=True)]
    assert parse_lines(name, *(value.decode() for _, _, value in made if value)).matched.true_count == len(firsts)


def test_one_of_both_says_what_begins() -> None:
    for wrong in ({"format": "java"}, {"start": ""}):
        with pytest.raises(BadValue, match=r"source\.multiline: start or format says"):
            joiner(**wrong)


def test_a_pattern_that_cannot_be() -> None:
    with pytest.raises(BadValue, match=r"source\.multiline: start"):
        joiner(start="(")


@given(
    st.lists(st.sampled_from([b"1", b"22", b"x", b"yyyyy", b"", b"z" * 70]), min_size=1, max_size=30),
    st.lists(st.integers(1, 29), max_size=4),
)
def test_no_line_is_lost_or_doubled(lines: list[bytes], cuts: list[int]) -> None:
    bounds = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
    whole = batch(lines)
    parts = [whole.slice(first, end - first) for first, end in pairwise(bounds)]
    found = joined(joiner(), parts)
    assert found == joined(joiner(), [whole]), "where batches end does not matter"
    assert b"\n".join(value or b"" for _, _, value in found) == b"\n".join(lines)
    assert sum(count for _, count, _ in found) == len(lines)
    for _, count, value in found:
        assert count <= 4 and (count == 1 or len(value or b"") < 60)
        assert not any(line[:1].isdigit() for line in (value or b"").split(b"\n")[1:])


def test_patterns_are_of_letters_and_lines_end_anyhow() -> None:
    lines = ["Über\r".encode(), b"  more\r", "Änderung".encode(), b"  more\n", b"\xff\r\n"]
    values = [value for _, _, value in joined(joiner(start=r"^\p{Lu}"), [batch(lines)])]
    assert values == ["Über\n  more".encode(), "Änderung\n  more\n".encode() + b"\xff"]
    alone = [value for _, _, value in joined(joiner(start=r"^\p{Lu}"), [batch([line]) for line in lines])]
    assert alone == values, "whatever stands beside them"
