"""Parsers, on lines as real programs write them, and on lines as nobody does."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue
from appliance.spark.pipeline.parsers import Parsed, build
from appliance.spark.pipeline.settings import BUILT_IN, Parser, Source

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SOURCE = Source(topics=("t",), parsers=("plain",))


def parse(name: str, *lines: str | None, own: Parser | None = None) -> Parsed:
    return build(name, SOURCE, {} if own is None else {name: own}).parse(pa.array(lines, pa.string()), NOW)


def only(name: str, line: str, own: Parser | None = None) -> dict[str, Any]:
    """What is known of one line."""
    found = parse(name, line, own=own)
    assert found.matched.to_pylist() == [True], found.reasons
    values = {column: array[0].as_py() for column, array in found.columns.items()}
    return {column: value for column, value in values.items() if value is not None}


def test_syslog_as_sent() -> None:
    assert only("syslog", "<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8") == {
        "time": datetime(2026, 10, 11, 22, 14, 15, tzinfo=UTC),
        "host": "mymachine",
        "service": "su",
        "message": "'su root' failed for lonvick on /dev/pts/8",
        "level": "crit",
        "facility": "auth",
    }


def test_syslog_as_files_hold_it() -> None:
    found = only("syslog", "2026-11-20T10:00:00.123456+01:00 web-1 sshd[42]: Accepted publickey")
    assert (found["host"], found["service"], found["pid"]) == ("web-1", "sshd", 42)
    assert only("syslog", "Nov 20 01:02:03 web-1 kernel: [ 1.5] two: parts")["message"] == "[ 1.5] two: parts"


def test_syslog5424() -> None:
    line = '<165>1 2003-10-11T22:14:15.003Z h.example.com app 7 ID47 [a@1 k="v\\]" l="m"][b] \ufeffAn event'
    assert only("syslog5424", line) == {
        "time": datetime(2003, 10, 11, 22, 14, 15, 3000, tzinfo=UTC),
        "host": "h.example.com",
        "service": "app",
        "pid": 7,
        "msgid": "ID47",
        "structured": '[a@1 k="v\\]" l="m"][b]',
        "message": "An event",
        "level": "notice",
        "facility": "local4",
    }
    assert only("syslog5424", "<0>1 - - - - - -") == {"level": "emerg", "facility": "kern"}


def test_access() -> None:
    line = '10.0.0.1 - bob [10/Oct/2026:13:55:36 +0200] "GET /a?b HTTP/1.1" 503 23 "http://r/" "curl \\"7\\"" extra 1'
    found = only("access", line)
    assert (found["client"], found["user"], found["method"], found["path"]) == ("10.0.0.1", "bob", "GET", "/a?b")
    assert (found["status"], found["bytes"], found["level"], found["message"]) == (
        503,
        23,
        "error",
        "GET /a?b HTTP/1.1",
    )
    assert found["time"] == datetime(2026, 10, 10, 11, 55, 36, tzinfo=UTC) and found["agent"] == 'curl \\"7\\"'
    common = only("access", '::1 - - [10/Oct/2026:13:55:36 +0000] "\\x16\\x03" 400 -')
    assert "method" not in common and common["message"] == "\\x16\\x03" and common["level"] == "warning"


def test_dpkg_and_alternatives() -> None:
    line = "2025-06-24 14:36:25 upgrade libsystemd0:amd64 252.36 252.38"
    assert only("dpkg", line) == {
        "time": datetime(2025, 6, 24, 14, 36, 25, tzinfo=UTC),
        "service": "dpkg",
        "message": "upgrade libsystemd0:amd64 252.36 252.38",
        "action": "upgrade",
        "package": "libsystemd0:amd64",
        "version": "252.36",
        "version_new": "252.38",
    }
    assert only("dpkg", "2025-06-24 14:36:25 status installed a:all 1")["state"] == "installed"
    assert only("dpkg", "2025-06-24 14:36:25 startup archives unpack")["message"] == "startup archives unpack"
    found = only("alternatives", "update-alternatives 2025-06-24 14:36:53: link group pager updated")
    assert (found["service"], found["message"]) == ("update-alternatives", "link group pager updated")


@pytest.mark.parametrize(("name", "file"), [("dpkg", "dpkg.log"), ("alternatives", "alternatives.log")])
def test_this_hosts_own_logs(name: str, file: str) -> None:
    path = Path("/var/log") / file
    if not path.exists():
        pytest.skip(f"no {path} here")
    lines = path.read_text().splitlines()
    matched = parse(name, *lines).matched.to_pylist()
    assert matched.count(False) == 0, lines[matched.index(False)]


JSON = Parser(kind="json", time="ts", message="msg", columns={"status": "int", "ms": "float", "ok": "bool"})


def test_json() -> None:
    line = '{"ts": 1763632800, "level": "WARN", "msg": "hi", "status": "200", "ms": 1.5, "ok": true, "more": [1]}'
    assert only("app", line, JSON) == {
        "time": datetime(2025, 11, 20, 10, tzinfo=UTC),
        "level": "warning",
        "message": "hi",
        "status": 200,
        "ms": 1.5,
        "ok": True,
    }
    bad = parse("app", '{"status": "many"}', "{", "[]", '{"ts": "noon"}', None, own=JSON)
    assert bad.reasons is not None and not any(bad.matched.to_pylist())
    assert bad.reasons.to_pylist()[0] == "app: Expected `int | null`, got `str` - at `$.status`"
    assert bad.reasons.to_pylist()[3] == "app: ts is not a time"


def test_logfmt() -> None:
    own = Parser(kind="logfmt", columns={"status": "int"})
    line = 'time=2026-11-20T10:00:00Z level=err msg=x message="a \\"b\\" c" status=200 empty='
    found = only("app", line, own)
    assert (found["level"], found["message"], found["status"]) == ("error", 'a "b" c', 200)
    bad = parse("app", "no pairs at all", "status=many", own=own)
    assert bad.reasons is not None
    assert bad.reasons.to_pylist() == ["app: no key=value", "app: status is not of its type (int64)"]


def test_regex() -> None:
    own = Parser(
        kind="regex", pattern=r"^(?P<at>\S+) (?P<sev>\w+) (?P<n>\S+)$", time="at", level="sev", columns={"n": "int"}
    )
    assert only("app", "2026-11-20T10:00:00Z WARN 7", own) == {
        "time": datetime(2026, 11, 20, 10, tzinfo=UTC),
        "level": "warning",
        "n": 7,
    }
    bad = parse("app", "2026-11-20T10:00:00Z WARN x", "noon WARN 7", "x", own=own)
    assert bad.matched.to_pylist() == [False] * 3 and bad.reasons is not None
    assert bad.reasons.to_pylist() == ["app: n is not of its type (int64)", "app: time is not a time", None]
    assert not any(column[0].as_py() for column in bad.columns.values()), "nothing of a line that is not matched"


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (Parser(kind="regex", pattern="(?P<a>"), "pattern"),
        (Parser(kind="regex", pattern="(?P<a>x)", columns={"b": "int"}), "no group of the pattern is named b"),
        (Parser(kind="json", columns={"host": "string"}), "has a column already"),
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
