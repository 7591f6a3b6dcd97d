"""Formats that are known by name, on lines as real programs write them, and on lines as nobody does."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline.known_formats import ACCESS, SYSLOG, extract_access, extract_syslog
from appliance.spark.pipeline.parsers import build
from appliance.spark.pipeline.regex_parser import Extract, extract_groups
from appliance.spark.pipeline.settings import Source

from .lines import only, parse


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


@pytest.mark.parametrize(
    ("line", "host", "service", "pid", "message"),
    [
        ("Nov 20 10:00:00 h last message repeated 3 times", "h", None, None, "last message repeated 3 times"),
        ("Nov 20 10:00:00 2001:db8::1 sshd[1]: x", "2001:db8::1", "sshd", 1, "x"),
        ("Nov 20 10:00:00 ::1 su: x", "::1", "su", None, "x"),
        ("Nov 20 10:00:00 h syslogd 1.4.1: restart.", "h", None, None, "syslogd 1.4.1: restart."),
        ("<13>Nov 20 10:00:00 h no tag here", "h", None, None, "no tag here"),
        ("Nov 20 10:00:00 h app[worker-1]: x", "h", "app", None, "app[worker-1]: x"),
        ("Nov 20 10:00:00 h sandboxd[129] ([31211]): deny", "h", "sandboxd", 129, "sandboxd[129] ([31211]): deny"),
        ("2026-11-20T10:00:00Z h message repeated 2 times: [ x]", "h", None, None, "message repeated 2 times: [ x]"),
    ],
)
def test_syslog_as_programs_write_it_in_their_own_ways(
    line: str, host: str, service: str | None, pid: int | None, message: str
) -> None:
    usual = "<34>Nov 20 10:00:00 other su: usual"
    for lines in ([line], [usual, line], [line, "no line of syslog", usual]):
        found = parse("syslog", *lines)
        assert found.matched.to_pylist() == [each != "no line of syslog" for each in lines]
        at = lines.index(line)
        of = {name: column[at].as_py() for name, column in found.columns.items()}
        assert (of["host"], of["service"], of["pid"], of["message"]) == (host, service, pid, message)
        assert (of["time"].hour, of["level"]) == (10, "notice" if line.startswith("<13>") else None)
        if usual in lines:
            assert found.columns["message"][lines.index(usual)].as_py() == "usual"
            assert found.columns["level"][lines.index(usual)].as_py() == "crit"


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


@pytest.mark.parametrize("agent", ["curl", 'cu\\"rl'])
def test_a_user_may_have_blanks_and_forge_nothing(agent: str) -> None:
    rest = f'[10/Oct/2026:13:55:36 +0000] "GET /real HTTP/1.1" 200 5 "-" "{agent}"'
    assert only("access", f"10.0.0.1 - Jane Doe {rest}")["user"] == "Jane Doe"
    forged = "x [01/Jan/2000:00:00:00 +0000] \\x22GET /forged HTTP/1.1\\x22 200 5"
    found = only("access", f"10.0.0.1 - {forged} {rest}")
    assert (found["user"], found["path"], found["time"].year) == (forged, "/real", 2026)


@pytest.mark.parametrize(
    ("client", "user"), [("192.0.2.1", "Jane"), ("192.0.2.1", "Jane Doe"), ("2001:db8::1", None), ("pc.example", "-x")]
)
@pytest.mark.parametrize("agent", ["curl", 'cu\\"rl'])
def test_a_virtual_host_before_the_client(client: str, user: str | None, agent: str) -> None:
    """As in other_vhosts_access.log of Debian's Apache."""
    rest = f'{client} - {user or "-"} [10/Oct/2026:13:55:36 +0000] "GET /a HTTP/1.1" 200 5 "-" "{agent}"'
    found = only("access", f"www.example.net:443 {rest}")
    assert (found["host"], found["client"], found.get("user")) == ("www.example.net", client, user)
    plain = only("access", rest)
    assert ("host" in plain, plain["client"], plain.get("user"), plain["path"]) == (False, client, user, "/a")


def test_a_port_behind_the_client_is_no_virtual_host() -> None:
    found = only("access", '192.0.2.1:5432 - Jane Doe [10/Oct/2026:13:55:36 +0000] "GET /a HTTP/1.1" 200 5')
    assert (found["client"], found["user"], "host" in found) == ("192.0.2.1:5432", "Jane Doe", False)


def test_lines_of_container_runtimes() -> None:
    assert only("cri", '2026-11-20T10:00:00.123456789+01:00 stderr F {"a": 1}') == {
        "time": datetime(2026, 11, 20, 9, 0, 0, 123456, tzinfo=UTC),
        "message": '{"a": 1}',
        "stream": "stderr",
        "partial": False,
    }
    found = parse("cri", "2026-11-20T10:00:00Z stdout P begins", "2026-11-20T10:00:00Z stdout F", "2026 stdout F x")
    assert found.matched.to_pylist() == [True, True, False]
    assert found.columns["partial"].to_pylist() == [True, False, None]
    line = r'{"log":"GET / \u00e9\r\n","stream":"stdout","attrs":{"a":"b"},"time":"2026-11-20T10:00:00.5Z"}'
    assert only("docker", line) == {
        "time": datetime(2026, 11, 20, 10, 0, 0, 500000, tzinfo=UTC),
        "message": "GET / é",
        "stream": "stdout",
    }


def test_json_of_others_is_left_to_their_parser() -> None:
    found = parse("docker", '{"MESSAGE": "x"}', '{"log": "y\\n"}', "[]")
    assert found.matched.to_pylist() == [False, True, False]
    assert found.reasons is not None and found.reasons[0].as_py() == "docker: there is no log"


def test_iis() -> None:
    start = "2026-11-20 10:00:00 10.0.0.9 GET /default.htm a=b 443 - 203.0.113.7"
    found = only("iis", f"{start} Mozilla/5.0+(X11;+Linux) https://r/ 404 0 2 15")
    assert (found["time"], found["service"], found["level"]) == (
        datetime(2026, 11, 20, 10, tzinfo=UTC),
        "iis",
        "warning",
    )
    assert (found["message"], found["agent"], found["referer"]) == (
        "GET /default.htm",
        "Mozilla/5.0 (X11; Linux)",
        "https://r/",
    )
    assert (found["client"], found["status"], found["win32_status"], found["taken_ms"]) == ("203.0.113.7", 404, 2, 15)
    assert "user" not in found
    older = only("iis", f"{start} Mozilla/5.0 200 0 0")
    assert older["status"] == 200 and "referer" not in older and "taken_ms" not in older
    zoned = Source(topics=("t",), parsers=("iis",), zone="Europe/Berlin")
    lines = pa.array(["#Fields: date time s-ip", f"{start} - - 500 0 0 1", "2026-11-20 10:00:00 other"])
    parsed = build("iis", zoned, {}).parse(lines, datetime(2026, 11, 20, 12, tzinfo=UTC))
    assert parsed.matched.to_pylist() == [True, True, False]
    assert parsed.columns["message"].to_pylist()[:2] == ["#Fields: date time s-ip", "GET /default.htm"]
    assert parsed.columns["time"].to_pylist()[:2] == [None, datetime(2026, 11, 20, 10, tzinfo=UTC)], "UTC by its rules"


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


def test_nginx_error() -> None:
    line = (
        '2026/11/20 10:00:00 [error] 12#13: *7 open() "/srv/x" failed (2: No such file or directory), '
        'client: 10.0.0.1, server: _, request: "GET /x HTTP/1.1", host: "localhost"'
    )
    found = only("nginx_error", line)
    assert (found["time"], found["level"], found["pid"]) == (datetime(2026, 11, 20, 10, tzinfo=UTC), "error", 12)
    assert (found["connection"], found["client"], found["path"]) == (7, "10.0.0.1", "/x")
    assert found["message"].startswith("*") is False and found["message"].endswith('host: "localhost"')
    plain = only("nginx_error", '2026/11/20 10:00:00 [notice] 12#12: using the "epoll" event method')
    assert plain["level"] == "notice" and "client" not in plain and "connection" not in plain


@pytest.mark.parametrize(
    "said",
    [
        'FastCGI sent in stderr: "PHP message: no, client: 198.51.100.66, server: x, request: "GET /fake HTTP/1.1"" '
        "while reading response header from upstream",
        'open() "/srv/, client: 198.51.100.66, server: x" failed (2: No such file or directory)',
        'upstream said: "no, client: 198.51.100.66"',
    ],
)
def test_what_an_upstream_or_a_path_says_is_no_client(said: str) -> None:
    real = 'client: 192.0.2.2, server: s, request: "GET /real HTTP/1.1"'
    for end in (
        "",
        ', host: "h"',
        ', upstream: "http://u/", host: "h", referrer: "http://r/"',
        ', upstream: "http://cut',
    ):
        found = only("nginx_error", f"2026/11/20 10:00:00 [error] 12#13: *7 {said}, {real}{end}")
        assert (found["client"], found["path"]) == ("192.0.2.2", "/real")


@pytest.mark.parametrize(
    "forged",
    [
        ', client: 198.51.100.66, server: x, request: "GET /fake HTTP/1.1", host: "h',
        ', client: 198.51.100.66, server: x, referrer: "',
        ", client: 198.51.100.66, server: x" * 9,
    ],
)
def test_who_forges_what_nginx_says_hides_the_client_but_sets_none(forged: str) -> None:
    """A referrer is what a client sent, and a path is decoded: quotes and all."""
    head, name = "2026/11/20 10:00:00 [error] 12#13: *7", forged.replace("GET", "GET ")
    real = 'client: 192.0.2.2, server: s, request: "GET /real HTTP/1.1", host: "h"'
    for line in (
        f'{head} directory index is forbidden, {real}, referrer: "http://r/{forged}"',
        f'{head} open() "/srv/{name}" failed (2: No such file or directory), {real}, referrer: "http://r/{forged}"',
        f'{head} open() "/srv/{name}" failed (2: No such file or directory), {real}',
    ):
        found = parse("nginx_error", line)
        client, path = (found.columns[column].to_pylist()[0] for column in ("client", "path"))
        assert (client, path) in ((None, None), ("192.0.2.2", "/real"))
        counted = {reason: wrong.tolist() for reason, wrong in found.nulled.items()}
        assert counted == ({} if client else {"nginx_error: client is one of several": [True]})


@pytest.mark.parametrize("client", ["2001:db8::1", "fe80::1", "::1", "192.0.2.1", "2001:db8:0:0:0:0:0:1"])
def test_apache_writes_a_port_since_2_4(client: str) -> None:
    old = only("apache_error", f"[Fri Nov 20 10:00:00 2026] [error] [client {client}] File does not exist")
    assert old["client"] == client
    new = "[Fri Nov 20 10:00:00.123456 2026] [core:error] [pid 1]"
    assert only("apache_error", f"{new} [client {client}:55512] AH1: x")["client"] == client
    whole = "2001:db8:0:0:0:0:0:1"
    assert only("apache_error", f"{new} [client {whole}] AH1: x")["client"] == whole


def test_apache_error() -> None:
    line = (
        "[Fri Nov 20 10:00:00.123456 2026] [core:error] [pid 12:tid 34] (13)Permission denied: [client ::1:555] AH1: no"
    )
    found = only("apache_error", line)
    assert found["time"] == datetime(2026, 11, 20, 10, 0, 0, 123_456, tzinfo=UTC)
    assert (found["level"], found["pid"], found["client"]) == ("error", 12, "::1")
    assert found["message"] == "(13)Permission denied: AH1: no"
    old = only("apache_error", "[Fri Nov 20 10:00:00 2026] [warn] mod_fcgid: cleanup")
    assert (old["level"], old["message"]) == ("warning", "mod_fcgid: cleanup")


def test_postgresql() -> None:
    found = only("postgresql", '2026-11-20 10:00:00.123 UTC [77] bob@shop ERROR:  relation "x" does not exist')
    assert (found["user"], found["database"], found["level"], found["pid"]) == ("bob", "shop", "error", 77)
    assert found["message"] == 'relation "x" does not exist' and found["service"] == "postgresql"
    assert only("postgresql", "2026-11-20 10:00:00.123 UTC [77] LOG:  ready")["level"] == "info"
    assert only("postgresql", "2026-11-20 10:00:00 UTC [77] DEBUG2:  x")["level"] == "debug"


@pytest.mark.parametrize(
    ("line", "logger"),
    [
        ("2026-11-20 10:00:00,000 [main] WARN  org.x.Y - no", "org.x.Y"),
        ("2026-11-20T10:00:00.000Z  WARN 77 --- [shop] [ main] o.x.Y : no", "o.x.Y"),
        ("2026-11-20 10:00:00,000 [myid:] - WARN  [main:o.a.z.Server@12] - no", "o.a.z.Server"),
        ("26/11/20 10:00:00 WARN SparkContext: no", "SparkContext"),
        ("2026-11-20 10:00:00,000 - WARN  [QuorumPeer[myid=1]/0:0:0:0:0:0:0:0:2181:o.Fast@774] - no", "o.Fast"),
        (
            "2026-11-20 10:00:00,000 - WARN  [/10.10.34.11:3888:QuorumCnxManager$Listener@493] - no",
            "QuorumCnxManager$Listener",
        ),
        (
            "20-Nov-2026 10:00:00.000 WARN [main] org.apache.catalina.startup.Catalina.start no",
            "org.apache.catalina.startup.Catalina",
        ),
        ("[2026-11-20 10:00:00,000] WARN [Broker id=1] no (kafka.server.KafkaServer)", "kafka.server.KafkaServer"),
    ],
)
def test_java(line: str, logger: str) -> None:
    found = only("java", f"{line}\njava.io.IOException: broken\n\tat org.x.Y.z(Y.java:7)")
    assert (found["time"], found["level"]) == (datetime(2026, 11, 20, 10, tzinfo=UTC), "warning")
    assert (found["logger"], found["exception"]) == (logger, "java.io.IOException")
    assert "exception" not in only("java", line)


@pytest.mark.parametrize(
    ("parser", "line", "column"),
    [
        ("syslog5424", "<165>1 2026-11-20T10:00:00Z h app worker-1 ID - m", "pid"),
        ("access", '192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 99999999999999999999', "bytes"),
    ],
)
def test_a_field_that_is_no_number_is_null_and_counted(parser: str, line: str, column: str) -> None:
    found = parse(parser, line, "no line of it")
    assert found.columns[column].to_pylist() == [None, None]
    counted = {reason: wrong.tolist() for reason, wrong in found.nulled.items()}
    assert counted == {f"{parser}: {column} is not a number": [True, False]}


@pytest.mark.parametrize(
    ("parser", "rest"),
    [("syslog", "Nov 20 10:00:00 h app[1]: m"), ("syslog5424", "1 2026-11-20T10:00:00Z h app 7 ID - m")],
)
def test_a_priority_that_is_none_is_null_and_counted(parser: str, rest: str) -> None:
    found = parse(parser, f"<192>{rest}", f"<191>{rest}", "no line of it")
    assert found.columns["level"].to_pylist() == [None, "debug", None]
    assert found.columns["facility"].to_pylist() == [None, "local7", None]
    counted = {reason: wrong.tolist() for reason, wrong in found.nulled.items()}
    assert counted == {f"{parser}: pri is above 191": [True, False, False]}


# ---- the formats that are cut out at positions, against their regular expressions

PIECES = {
    extract_access: [
        *("10.0.0.1", "-", " ", '"', "[", "]", "[10/Oct/2026:13:55:36 +0200]", '"GET / HTTP/1.1"', "200", "5", '\\"'),
        *(' "-" "curl"', '" "', "é", "\n", ' 10.0.0.1 - - [x] "GET" 200 5 "-" "curl"', "10.0.0.1 - - [x] "),
    ],
    extract_syslog: [
        *(
            "<34>",
            "Oct 11 22:14:15 ",
            "2026-11-20T10:00:00Z ",
            "web-1 ",
            "su",
            "sshd",
            "[42]",
            ": ",
            ":",
            " ",
            "é",
            "\n",
        ),
        *("<9999>", "[a]", "[]"),
    ],
}


@pytest.mark.parametrize(("extract", "pattern"), [(extract_access, ACCESS), (extract_syslog, SYSLOG)])
@given(data=st.data())
def test_cut_lines_are_the_same_as_matched_ones(extract: Extract, pattern: str, data: st.DataObject) -> None:
    """Also where an array begins within the bytes that it shares."""
    line = st.lists(st.sampled_from(PIECES[extract]), max_size=12).map("".join)
    given_lines = data.draw(st.lists(st.none() | line, min_size=2, max_size=6))
    lines = pa.array(given_lines, pa.string()).slice(1)
    (cut, texts), (matched, wanted) = extract(lines), extract_groups(lines, pattern)
    assert cut.to_pylist() == matched.to_pylist()
    where = pa.array(np.flatnonzero(matched.to_numpy(zero_copy_only=False)))
    assert set(texts) == set(wanted) or not len(where)
    for name, each in wanted.items() if len(where) else ():
        found, right = (pc.fill_null(column, "").take(where).to_pylist() for column in (texts[name], each))
        assert found == right, name


def test_quotes_may_stand_before_the_request() -> None:
    line = '10.0.0.1 - - [10/Oct/2026:13:55:36 +0200] "GET / HTTP/1.1" 200 5 "-" "curl"'
    lines = [f'" {line}', line, f'a "b {line.partition(" ")[2]}', f'{line} "more"', "no", '" " " " " "']
    whole = parse("access", *lines)
    alone = [parse("access", each).matched.to_pylist() == [True] for each in lines]
    assert whole.matched.to_pylist() == alone == [True, True, True, True, False, False]


def test_most_lines_take_the_fast_way() -> None:
    """What the test above compares is reached by lines as they are."""
    line = '10.0.0.1 - - [10/Oct/2026:13:55:36 +0200] "GET / HTTP/1.1" 200 5 "-" "curl"'
    escaped = line.replace("curl", 'cu\\"rl')
    found = parse("access", line, escaped, f'{line} "more"', "no", line)
    assert found.matched.to_pylist() == [True, True, True, False, True]
    assert found.columns["agent"].to_pylist() == ["curl", 'cu\\"rl', "curl", None, "curl"]
    assert found.columns["extra"].to_pylist() == [None, None, ' "more"', None, None]
