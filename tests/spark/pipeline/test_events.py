"""Records to events: every line is an event or a dead letter, complete, and from where it came."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue
from appliance.spark.pipeline.events import Transform, by_topic, near
from appliance.spark.pipeline.settings import parse
from appliance.spark.pipeline.times import MICROS

RECEIVED = datetime(2026, 11, 20, 12, tzinfo=UTC)
DPKG = b"2025-06-24 23:36:25 status installed libc:amd64 2.36\n"
SYSLOG = b"<34>Oct 11 22:14:15 db-1 su: failed"


def transform(base: Path, **tables: Any) -> Transform:
    least = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["t"], "parsers": ["syslog", "dpkg"], "host": "here"}],
        "output": {"path": "out"},
    }
    return Transform(parse(least | tables, base))


def batch(values: Sequence[bytes | None], topics: Sequence[str] | None = None) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(topics or ["t"] * count, pa.string()),
        "partition": pa.array([3] * count, pa.int32()),
        "offset": pa.array(range(100, 100 + count), pa.int64()),
        "timestamp": pa.array([RECEIVED] * count, MICROS),
    }
    return pa.record_batch(columns)


def test_events_are_complete(tmp_path: Path) -> None:
    made = transform(tmp_path)
    found = made.run(batch([DPKG, SYSLOG]))
    assert found.events.schema == made.schema and len(found.dead) == 0
    dpkg, syslog = found.events.to_pylist()
    assert (dpkg["topic"], dpkg["partition"], dpkg["offset"], dpkg["parser"]) == ("t", 3, 100, "dpkg")
    assert (dpkg["date"], dpkg["hour"], dpkg["received"]) == ("2025-06-24", 23, RECEIVED)
    assert (dpkg["host"], syslog["host"]) == ("here", "db-1"), "what the line says wins"
    assert dpkg["message"] == "status installed libc:amd64 2.36", "without the end of the line"
    assert syslog["package"] is None and dpkg["facility"] is None


def test_what_is_not_parsed_is_dead_and_says_why(tmp_path: Path) -> None:
    found = transform(tmp_path).run(batch([b"?", DPKG, b"\xff", None, b"2025-99-24 14:36:25 status a b c"]))
    assert found.events.column("offset").to_pylist() == [101]
    assert found.dead.column("offset").to_pylist() == [100, 102, 103, 104]
    assert found.dead.column("value").to_pylist()[1] == b"\xff"
    reasons = ["not a line of syslog, dpkg", "not UTF-8 text", "no value", "dpkg: time is not a time"]
    assert found.dead.column("reason").to_pylist() == reasons


@pytest.mark.parametrize("encoding", ["latin-1", "iso-8859-15", "windows-1252"])
def test_lines_in_another_encoding_are_text(tmp_path: Path, encoding: str) -> None:
    source = {"topics": ["t"], "parsers": ["syslog"], "redact": [{"pattern": r"user \p{L}+", "replacement": "user ?"}]}
    made = transform(tmp_path, source=[source | {"encoding": encoding}])
    lines = [SYSLOG, "Oct 11 22:14:15 h s: user Müller: café".encode(encoding), None, b"Oct 11 22:14:15 h s: \x81"]
    found = made.run(batch(lines))
    kept = [row["message"] for row in found.rows.to_pylist()]
    assert kept[:3] == ["failed", "user ?: café", None]
    if encoding == "windows-1252":
        assert found.dead.column("value").to_pylist()[1] == lines[3], "no text there, and unchanged"
    else:
        assert kept[3] == "\x81"
    again = made.run(
        batch([row["message"] and f"Oct 11 22:14:15 h s: {row['message']}".encode() for row in found.rows.to_pylist()])
    )
    assert [row["message"] for row in again.rows.to_pylist()][:2] == kept[:2], "what is UTF-8 is not decoded again"
    with pytest.raises(BadValue, match="encoding"):
        transform(tmp_path, source=[source | {"encoding": "utf-16"}])


def test_a_rejected_line_is_a_row_of_where_it_came_from(tmp_path: Path) -> None:
    """Defaults, lookups and what parsers give are of events: a rejected line has its bytes, and the reason."""
    (tmp_path / "teams.csv").write_text("service,team\nsu,core\nhere,none\n")
    source = [{"topics": ["t"], "parsers": ["syslog"], "host": "here", "service": "here"}]
    made = transform(tmp_path, source=source, lookup=[{"file": "teams.csv", "key": "service"}])
    found = made.run(batch([SYSLOG, b"?\xff", None]))
    event, *others = found.rows.to_pylist()
    assert found.rows.schema == made.schema and found.events.to_pylist() == [event]
    assert (event["team"], event["rejected"], event["raw"]) == ("core", None, None)
    for row, raw, reason in zip(others, (b"?\xff", None), ("not UTF-8 text", "no value"), strict=True):
        assert {name: value for name, value in row.items() if value is not None} == {
            **{"topic": "t", "partition": 3, "offset": row["offset"], "received": RECEIVED, "rejected": reason},
            **({} if raw is None else {"raw": raw}),
            **{"date": "2026-11-20", "hour": 12, "time": RECEIVED},
        }
    assert [row["offset"] for row in others] == [101, 102]


def test_a_line_without_a_time_has_that_of_its_record(tmp_path: Path) -> None:
    source = [{"topics": ["t"], "parsers": ["plain"], "service": "s"}]
    (event,) = transform(tmp_path, source=source).run(batch([b"words"])).events.to_pylist()
    assert (event["time"], event["date"], event["service"]) == (RECEIVED, "2026-11-20", "s")


def test_secrets_are_redacted_in_events_and_in_dead_letters(tmp_path: Path) -> None:
    redact = [{"pattern": r"(password)=\S+", "replacement": r"\1=?"}, {"pattern": r"\d{4}-\d{4}"}]
    source = [{"topics": ["t"], "parsers": ["syslog"], "redact": redact}]
    made = transform(tmp_path, source=source, output={"path": "out", "raw": True})
    found = made.run(batch([SYSLOG + b" password=a 1111-2222", b"password=b", b"\xff password=c"]))
    (event,) = found.events.to_pylist()
    assert event["message"] == "failed password=? ***" and "1111" not in event["line"]
    assert found.dead.column("value").to_pylist() == [b"password=?", b"\xff password=?"]
    with pytest.raises(BadValue, match=r"source\.redact: pattern"):
        transform(tmp_path, source=[{"topics": ["t"], "parsers": ["syslog"], "redact": [{"pattern": "("}]}])


@pytest.mark.parametrize(
    "pattern, line, redacted",
    [
        (r"user=\p{Han}+", "user=张伟 in", "*** in"),
        (r"name=\p{L}+", "name=Müller in", "*** in"),
        (r"stra\x{DF}e", "Hauptstraße 1", "Haupt*** 1"),
        ("[äöü]", "Räder, ñandú, größer", "R***der, ñandú, gr***ßer"),
        ("^.{4}", "Ärger", "***r"),
    ],
)
def test_secrets_are_redacted_as_text(tmp_path: Path, pattern: str, line: str, redacted: str) -> None:
    source = [{"topics": ["t"], "parsers": ["plain"], "redact": [{"pattern": pattern}]}]
    for beside in ([], [b"\xff", None]):  # values that are no text change nothing
        found = transform(tmp_path, source=source).run(batch([line.encode(), *beside]))
        assert found.events.column("message").to_pylist() == [redacted]
        assert found.dead.column("value").to_pylist() == beside


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])
@pytest.mark.parametrize(
    "parser, line",
    [
        ("syslog", "Oct 11 22:14:15 db-1 su: failed"),
        ("dpkg", "2025-06-24 23:36:25 status installed libc:amd64 2.36"),
        ("access", '10.0.0.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5'),
        ("logfmt", "level=info status=200"),
        ("syslog5424", "<34>1 2026-11-20T10:00:00Z h s - - -"),
        ("json", '{"message": "m", "level": "info"}'),
        ("plain", "words"),
        ("own", "took 5 ms"),
    ],
)
def test_a_line_ends_anyhow(tmp_path: Path, parser: str, line: str, end: str) -> None:
    own = {"kind": "regex", "pattern": r"^took (?P<message>\d+) ms$"}
    made = transform(tmp_path, source=[{"topics": ["t"], "parsers": [parser]}], parser={"own": own})
    (expected,) = made.run(batch([line.encode()])).events.to_pylist()
    for lines in ([line + end], [line + end, "other\n"], ["other", line + end]):
        events = made.run(batch([each.encode() for each in lines])).events.drop_columns(["offset"]).to_pylist()
        assert {name: value for name, value in expected.items() if name != "offset"} in events


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path: Path) -> None:
    source = [{"topics": ["t"], "parsers": ["json"]}]
    found = transform(tmp_path, source=source).run(batch([b'\xef\xbb\xbf{"message": "m"}', b'{"message": "n"}']))
    assert found.events.column("message").to_pylist() == ["m", "n"]


def test_fields_that_do_not_fit_are_counted_and_explained(tmp_path: Path) -> None:
    source = [{"topics": ["t"], "parsers": ["dpkg", "own"]}]
    own = {"kind": "json", "columns": {"n": "int", "x": {"type": "float"}}}
    made = transform(tmp_path, source=source, parser={"own": own}, output={"path": "o"})
    found = made.run(batch([DPKG, b'{"n": "many", "x": "much"}', b"?", b'{"n": "7", "x": "no"}']))
    assert found.events.column("offset").to_pylist() == [100, 101, 103] and len(found.dead) == 1
    n, x = "own: n is not of its type (int)", "own: x is not of its type (float)"
    assert found.events.column("column_errors").to_pylist() == [None, f"{n}; {x}", x]
    assert found.events.column("n").to_pylist() == [None, None, 7]


def test_the_whole_line_is_kept_when_asked_for(tmp_path: Path) -> None:
    made = transform(tmp_path, output={"path": "out", "raw": True})
    assert made.run(batch([SYSLOG])).events.column("line").to_pylist() == [SYSLOG.decode()]


def test_a_lookup_adds_columns(tmp_path: Path) -> None:
    (tmp_path / "hosts.csv").write_text("host,rack,owner\ndb-1,7,ann\nweb-1,8,\n")
    made = transform(tmp_path, lookup=[{"file": "hosts.csv", "key": "host"}])
    rows = made.run(batch([SYSLOG, DPKG])).events.to_pylist()
    assert [(row["rack"], row["owner"]) for row in rows] == [("7", "ann"), (None, None)]


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("host,rack\na,1\na,2\n", {}, "not unique"),
        ("name,rack\na,1\n", {}, "key 'host' must be a column of the file"),
        ("host,level\na,1\n", {}, "events have a column 'level' already"),
        ("host,rack\na,1\n", {"columns": ["rak"]}, "no column 'rak'"),
        ("", {}, "Empty CSV"),
    ],
)
def test_lookups_that_cannot_be(tmp_path: Path, text: str, options: dict[str, Any], says: str) -> None:
    (tmp_path / "hosts.csv").write_text(text)
    with pytest.raises(BadValue, match=says):
        transform(tmp_path, lookup=[{"file": "hosts.csv", "key": "host"} | options])


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"output": {"path": "x", "partition_by": ["hour"]}}, "'hour' is int32: directories are named by texts"),
        (
            {
                "source": [{"topics": ["t"], "parsers": ["access", "own"]}],
                "parser": {"own": {"kind": "json", "columns": {"status": "string"}}},
            },
            "column 'status' is string, but int64 in another parser",
        ),
        (
            {
                "source": [{"topics": ["t"], "parsers": ["own"]}],
                "parser": {"own": {"kind": "json", "columns": {"offset": "int"}}},
            },
            "'offset' is the pipeline's own",
        ),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, tables: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        transform(tmp_path, **tables)


@given(st.lists(st.sampled_from([DPKG, SYSLOG, b"?", b"\xff\xfe", None, b""]), min_size=1, max_size=30))
def test_nothing_is_lost_between_events_and_dead_letters(values: list[bytes | None]) -> None:
    found = transform(Path("/nowhere")).run(batch(values))
    events, dead = found.events.column("offset").to_pylist(), found.dead.column("offset").to_pylist()
    assert sorted(events + dead) == list(range(100, 100 + len(values)))
    assert [values[at - 100] for at in dead] == found.dead.column("value").to_pylist()
    assert all(values[at - 100] in (DPKG, SYSLOG) for at in events)
    assert found.dead.column("reason").null_count == 0
    assert found.rows.column("offset").to_pylist() == list(range(100, 100 + len(values))), "each line is one row"
    told = {row["offset"]: (row["rejected"], row["raw"]) for row in found.rows.to_pylist() if row["rejected"]}
    assert told == {row["offset"]: (row["reason"], row["value"]) for row in found.dead.to_pylist()}


@given(st.lists(st.sampled_from("abc"), max_size=20))
def test_batches_are_told_apart_by_topic(topics: list[str]) -> None:
    parts = list(by_topic(batch([b"x"] * len(topics), topics)))
    assert all(part.column("topic").unique().to_pylist() == [part.column("topic")[0].as_py()] for part in parts)
    found = sorted(offset for part in parts for offset in part.column("offset").to_pylist())
    assert found == list(range(100, 100 + len(topics)))


def test_stamps_of_producers_may_be_anything(tmp_path: Path) -> None:
    strange = [-(1 << 62), 1 << 62, 0]
    given_rows = batch([b"?", b"?", DPKG])
    given_rows = given_rows.set_column(5, "timestamp", pa.array(strange, pa.int64()).cast(MICROS))
    (tamed,) = by_topic(given_rows)
    found = transform(tmp_path).run(tamed)
    assert [stamp.year for stamp in found.dead.column("timestamp").to_pylist()] == [1970, 9000]
    assert len(found.events) == 1


def test_columns_that_differ_by_case_are_refused(tmp_path: Path) -> None:
    columns = {"status": "int", "Status": "string"}
    with pytest.raises(BadValue, match="'status' and 'Status' differ by their case only"):
        transform(
            tmp_path,
            source=[{"topics": ["t"], "parsers": ["own"]}],
            parser={"own": {"kind": "json", "columns": columns}},
        )


def test_a_time_without_a_year_is_that_of_its_own_record(tmp_path: Path) -> None:
    """A batch has records of three years, as where a backlog is read; they are not in order."""
    stamps = [datetime(year, month, 2, tzinfo=UTC) for year, month in ((2024, 1), (2026, 7), (2025, 1), (2024, 7))]
    lines = [b"<30>Dec 31 23:59:59 h p: m", b"<30>Jul  1 00:00:01 h p: m", b"no line", b"<30>Jul  2 00:00:00 h p: m"]
    given_rows = batch(lines).set_column(5, "timestamp", pa.array(stamps, MICROS))
    made = transform(tmp_path, source=[{"topics": ["t"], "parsers": ["syslog"]}])
    found = made.run(given_rows).rows.to_pylist()
    assert [row["time"].year for row in found] == [2023, 2026, 2025, 2024]
    assert [row["rejected"] is None for row in found] == [True, True, False, True]
    assert [row["offset"] for row in found] == given_rows.column("offset").to_pylist()


def test_few_groups_are_parsed_apart() -> None:
    hours = np.arange(1000) * 3_600_000_000
    assert [len(near(hours[:count])) for count in (0, 1, 64, 65, 1000)] == [1, 1, 64, 3, 42]
    assert len(near(np.arange(100_000) * 30 * 86_400_000_000)) == 1
