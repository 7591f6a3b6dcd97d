"""Every byte of a stream is in one message, however it is cut; every message has the headers that it says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue
from appliance.inputs.intake import InputMessage
from appliance.inputs.machinery import InputTopics
from appliance.inputs.syslog_format import (
    FACILITIES,
    SEVERITIES,
    Frames,
    Framing,
    SyslogParser,
    split_message,
    time_of_3164,
    with_part,
    without_terminator,
)
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_tailed

MESSAGE_BYTES_MAX = 16
NOW_S = datetime(2026, 11, 25, 22, 30).timestamp()

# ---- framing

_messages = st.lists(
    st.sampled_from(
        (
            *(
                b"<13>a",
                b"<13>b  ",
                b"<13>1 - - - - - -",
                b"7 <14>xx",
                b"x",
                b"<14>\xff\xfe\x01",
                "<14>öäü€𝄞ß".encode(),
            ),
            *(b"<13>" + b"z" * 40, b"<13>12 <14>yyyyyyyyy " * 3, b"0123456789abcdef", b"0123456789abcdefg"),
        )
    ),
    max_size=8,
)
_pieces = st.lists(st.integers(0, 30), max_size=8)


def read(data: bytes, pieces: list[int]) -> list[Frames]:
    """All messages of a stream that is read in pieces of these lengths."""
    framing = Framing(MESSAGE_BYTES_MAX)
    found: list[Frames] = []
    at = 0
    for length in [*pieces, len(data)]:
        found += framing.feed(data[at : at + length])
        at = min(at + length, len(data))
    return found + framing.finish()


def whole(found: list[Frames]) -> list[bytes]:
    """The messages; parts are numbered from 1 on, and put together."""
    messages: list[bytes] = []
    parts = 0
    for frames in found:
        assert all(0 < len(value) <= MESSAGE_BYTES_MAX + 2 for value in frames.values), "2: for its line break"
        if frames.part:
            assert len(frames.values) == 1
            assert frames.part in (1, parts + 1)
            parts = frames.part
            if parts > 1:
                messages[-1] += frames.values[0]
                continue
        messages += frames.values
    return messages


@given(messages=_messages, pieces=_pieces)
def test_octet_counting_gives_each_message_as_it_is(messages: list[bytes], pieces: list[int]) -> None:
    data = b"".join(b"%d %b" % (len(message), message) for message in messages)
    assert whole(read(data, pieces)) == messages


@given(messages=_messages, pieces=_pieces, ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\0"]), min_size=8))
def test_terminators_give_each_message_as_it_is(messages: list[bytes], pieces: list[int], ends: list[bytes]) -> None:
    messages = [b"<1>first", *messages]
    data = b"".join(message + end for message, end in zip(messages, [b"\n", *ends], strict=False))
    assert whole(read(data, pieces)) == messages


@given(data=st.binary(max_size=120), pieces=_pieces, counted=st.booleans())
def test_no_bytes_raise_or_are_lost(data: bytes, pieces: list[int], counted: bool) -> None:
    """Whatever follows; only terminators, and lengths, are in no message."""
    data = (b"3 abc" if counted else b"<1>a\n") + data
    read_bytes = b"".join(whole(read(data, pieces)))
    left = iter(data)
    assert all(byte in left for byte in read_bytes), "in the order of the stream"
    if not counted:
        assert read_bytes.replace(b"\r", b"") == data.translate(None, b"\n\0\r")


@given(data=st.binary(max_size=120), pieces=_pieces)
def test_pieces_do_not_matter(data: bytes, pieces: list[int]) -> None:
    assert whole(read(data, pieces)) == whole(read(data, []))


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (b"<1>a\n12 <1>b\n", [b"<1>a", b"12 <1>b"]),  # lines stay lines
        (b"4 <1>a\n4 <1>b\r\n4 <1>c\0", [b"<1>a", b"<1>b", b"<1>c"]),  # a terminator that the length leaves out
        (b"5 <1>a\n6 <1>b\r\n5 <1>c\0", [b"<1>a", b"<1>b", b"<1>c"]),  # ... and one that it counts
        (b"2026-11-25 22:00 started\nnext\n", [b"2026-11-25 22:00 started", b"next"]),
        (b"1234567890 items\n", [b"1234567890 items"]),  # no length has so many digits
        (b"12", [b"12"]),
        (b"<1>no end", [b"<1>no end"]),
        (b"9 <1>no", [b"<1>no"]),
        (b"4 <1>ano length here", [b"<1>a", b"no length here"]),
        (b"\n\n<1>a\n\n\0<1>b\n", [b"<1>a", b"<1>b"]),
        (b"<1>two words  \n", [b"<1>two words  "]),
    ],
)
def test_framing(data: bytes, messages: list[bytes]) -> None:
    assert whole(read(data, [])) == messages


def test_framing_is_not_decided_again_inside_a_long_message() -> None:
    """Neither what looks like a length in a long line, nor a line break in a long counted message, changes anything."""
    line = b"<13>" + b"x" * 30 + b"5 <14>hello"
    assert whole(read(line + b"\n<13>b\n", [20, 14, 3])) == [line, b"<13>b"]
    counted = b"<13>" + b"x" * 30 + b"\n<14>a\n3 abc"
    assert whole(read(b"%d %b5 <13>b" % (len(counted), counted), [20, 14, 3])) == [counted, b"<13>b"]


def test_a_stream_that_cannot_be_cut_takes_nothing_more() -> None:
    framing = Framing(MESSAGE_BYTES_MAX)
    assert framing.feed(b"4 <1>a") == [Frames([b"<1>a"])]
    assert framing.feed(b"no length at all") == []
    assert framing.is_broken
    assert framing.feed(b"4 <1>b") == []


def test_a_long_stream_is_held_up_to_one_message() -> None:
    for first in (b"999999999 ", b"<13>"):
        framing = Framing(MESSAGE_BYTES_MAX)
        found = framing.feed(first)
        for _ in range(100):
            found += framing.feed(b"x" * 10)
        assert 1000 - sum(len(value) for frames in found for value in frames.values) <= MESSAGE_BYTES_MAX + 4


@given(value=st.text(max_size=60).map(str.encode))
def test_parts_end_with_characters(value: bytes) -> None:
    parts = split_message(value, MESSAGE_BYTES_MAX)
    assert b"".join(frames.values[0] for frames in parts) == value
    assert [frames.part for frames in parts] == list(range(1, len(parts) + 1))
    for frames in parts:
        assert len(frames.values[0]) <= MESSAGE_BYTES_MAX
        frames.values[0].decode()


def test_the_terminator_of_a_datagram() -> None:
    for end in (b"", b"\n", b"\r\n", b"\0"):
        assert without_terminator(b"<1>a  " + end) == b"<1>a  "
    assert without_terminator(b"<1>a\n\n") == b"<1>a\n"


# ---- headers


def headers_of(message: InputMessage) -> dict[str, str]:
    (record,) = decode_batch(encode_tailed([message.value], [message.tail], 0))
    names = [name for name, _ in record.headers]
    assert len(set(names)) == len(names)
    return {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}


def parsed(value: bytes, key: str = "", topic: str = "net") -> tuple[str, InputMessage]:
    parser = SyslogParser(InputTopics(topic, 100), key, lambda: NOW_S)
    both = [parser.parse([value], "192.0.2.7") for _ in range(2)]  # the second time from what is known
    assert both[0] == both[1]
    ((name, (message,)),) = both[0].items()
    assert message.value is value
    return name, message


@pytest.fixture(autouse=True)
def zone() -> Iterator[None]:
    """Ours is two hours east of UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC-2"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


ADDRESS = {"host": "192.0.2.7"}
USER = {"facility": "user", "severity": "notice"}
AUTH = {"facility": "auth", "severity": "crit"}


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        # RFC 5424, 6.5
        (
            b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed on pts/8",
            {"host": "mymachine.example.com", "app": "su", "time": "2003-10-11T22:14:15.003Z"} | AUTH,
        ),
        (
            b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.",
            {"host": "192.0.2.1", "app": "myproc", "time": "2003-08-24T05:14:15.000003-07:00"}
            | {"facility": "local4", "severity": "notice"},
        ),
        (
            b'<165>1 2003-10-11T22:14:15.003Z mymachine evntslog - ID47 [exampleSDID@32473 iut="3"][a@1 b="\\]"]',
            {"host": "mymachine", "app": "evntslog", "time": "2003-10-11T22:14:15.003Z"}
            | {"facility": "local4", "severity": "notice"},
        ),
        (b"<13>1 - - - - - -", ADDRESS | USER),
        (b"<13>1 - - app - - - text", ADDRESS | USER | {"app": "app"}),
        (b"<13>1 - -host -app - - -", USER | {"host": "-host", "app": "-app"}),
        # ... and what looks like it
        (b"<13>1 yesterday host app - - - text", ADDRESS | USER | {"format": "raw"}),
        (b"<13>1 2003-13-11T22:14:15Z host app - - - text", ADDRESS | USER | {"format": "raw"}),
        (b"<13>1 - host app - - text", ADDRESS | USER | {"format": "raw"}),
        (b"<13>1 - " + b"h" * 256 + b" app - - -", ADDRESS | USER | {"format": "raw"}),
        # RFC 3164, 5.4
        (
            b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
            {"host": "mymachine", "app": "su", "time": "2026-10-11T22:14:15+02:00"} | AUTH,
        ),
        (
            b"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!",
            USER | {"host": "10.0.0.99", "time": "2026-02-05T17:32:18+02:00"},
        ),
        (
            b"<13>Oct 11 22:14:15 fe80::1 sshd[12]: x",
            USER | {"host": "fe80::1", "app": "sshd", "time": "2026-10-11T22:14:15+02:00"},
        ),
        (
            b"<13>Oct 11 22:14:15 /usr/sbin/cron[12]: no host",
            ADDRESS | USER | {"app": "/usr/sbin/cron", "time": "2026-10-11T22:14:15+02:00"},
        ),
        (b"<13>Oct 11 22:14:15 user: x", ADDRESS | USER | {"app": "user", "time": "2026-10-11T22:14:15+02:00"}),
        (b"<13>Oct 11 22:14:15 h http://x/", USER | {"host": "h", "time": "2026-10-11T22:14:15+02:00"}),
        (b"<13>Feb 30 22:14:15 h a: x", USER | {"host": "h", "app": "a"}),
        (b"<13>Oct 11 25:14:15 h a: x", USER | {"host": "h", "app": "a"}),
        # what devices and programs make of it
        (
            b"<13>2026-11-25T22:14:15.123+01:00 h a[1]: x",
            USER | {"host": "h", "app": "a", "time": "2026-11-25T22:14:15.123+01:00"},
        ),
        (b"<13>Oct 11 2025 22:14:15 h : %ASA-6-302013: x", USER | {"host": "h", "time": "2025-10-11T22:14:15+02:00"}),
        (
            b"<13>Oct 11 22:14:15.5: %SYS-5-CONFIG: x",
            ADDRESS | USER | {"app": "%SYS-5-CONFIG", "time": "2026-10-11T22:14:15.5+02:00"},
        ),
        (b"<13>app: text", ADDRESS | USER | {"app": "app"}),
        (b"<13>app[77]: text", ADDRESS | USER | {"app": "app"}),
        (b"<13>just words", ADDRESS | USER),
        (b"<13>std::string", ADDRESS | USER),
        (b"<13>C:\\temp", ADDRESS | USER),
        (b"<13>12:30 lunch", ADDRESS | USER),
        (b"<0>", ADDRESS | {"facility": "kern", "severity": "emerg"}),
        (b"<191>x", ADDRESS | {"facility": "local7", "severity": "debug"}),
        # neither
        (b"no priority", ADDRESS | {"format": "raw"}),
        (b"<192>x", ADDRESS | {"format": "raw"}),
        (b"<999>Oct 11 22:14:15 mymachine su: x", ADDRESS | {"format": "raw"}),
        (b"<13", ADDRESS | {"format": "raw"}),
        (b"<>x", ADDRESS | {"format": "raw"}),
        (b"<-1>x", ADDRESS | {"format": "raw"}),
        (b"\0\x01\xff", ADDRESS | {"format": "raw"}),
    ],
)
def test_headers(value: bytes, headers: dict[str, str]) -> None:
    assert headers_of(parsed(value)[1]) == headers


def test_every_priority_has_its_names() -> None:
    for number in range(192):
        headers = headers_of(parsed(b"<%d>x" % number)[1])
        assert (FACILITIES.index(headers["facility"]), SEVERITIES.index(headers["severity"])) == divmod(number, 8)


def test_headers_do_not_depend_on_what_others_sent() -> None:
    """One sender's names are not another's, also where both send the same bytes."""
    values = [b"<999>Oct 11 22:14:15 h a: x", b"x", b"<13>a: x", b"<13>1 - - a - - - x", b"<13>Oct 11 22:14:15 a: x"]
    parser = SyslogParser(InputTopics("net", 1), "", lambda: NOW_S)
    for host in ("192.0.2.1", "192.0.2.2"):
        assert {headers_of(message)["host"] for message in parser.parse(values, host)["net"]} == {host}


@given(
    values=st.lists(st.binary(max_size=60) | st.binary(max_size=40).map(lambda rest: b"<13>Oct 11 22:14:15 h " + rest))
)
def test_nothing_is_dropped_and_what_is_known_changes_nothing(values: list[bytes]) -> None:
    parser = SyslogParser(InputTopics("net", 1), "", lambda: NOW_S)
    together = parser.parse(values, "h").get("net", [])
    assert [message.value for message in together] == values
    assert together == [
        SyslogParser(InputTopics("net", 1), "", lambda: NOW_S).parse([value], "h")["net"][0] for value in values
    ]


@pytest.mark.parametrize(
    ("now", "text", "wanted"),
    [
        ((2026, 1, 1, 0, 0), b"Dec 31 23:59:59", "2025-12-31T23:59:59+02:00"),
        ((2025, 12, 31, 23, 59), b"Jan  1 00:00:01", "2026-01-01T00:00:01+02:00"),
        ((2026, 11, 25, 0, 0), b"Feb 29 12:00:00", ""),
        ((2028, 1, 31, 0, 0), b"Feb 29 12:00:00", "2028-02-29T12:00:00+02:00"),
        ((2026, 11, 25, 0, 0), b"Feb 29 2024 12:00:00", "2024-02-29T12:00:00+02:00"),
        ((2026, 11, 25, 0, 0), b"Xyz 29 12:00:00", ""),
        ((2026, 11, 25, 0, 0), b"Jan  1 0000 00:00:00", ""),
    ],
)
def test_the_year_is_the_last_one_that_is_not_far_ahead(
    now: tuple[int, int, int, int, int], text: bytes, wanted: str
) -> None:
    assert time_of_3164(text, datetime(*now).timestamp()) == wanted


def test_a_year_is_not_kept_for_ever() -> None:
    now_s = [datetime(2026, 1, 2).timestamp()]
    parser = SyslogParser(InputTopics("net", 1), "", lambda: now_s[0])
    for year in (2026, 2027):
        now_s[0] = datetime(year, 1, 2).timestamp()
        (message,) = parser.parse([b"<13>Jan  1 00:00:01 h a: x"], "h")["net"]
        assert headers_of(message)["time"] == f"{year}-01-01T00:00:01+02:00"


@pytest.mark.parametrize(
    ("topic", "key", "value", "wanted"),
    [
        ("logs-{app}", "app", b"<13>Oct 11 22:14:15 h a/b: x", ("logs-a_b", b"a/b")),
        ("logs-{app}", "app", b"<13>words", ("logs-unknown", None)),
        ("{host}.{facility}.{severity}", "host", b"<34>Oct 11 22:14:15 h a: x", ("h.auth.crit", b"h")),
        ("{host}", "host", b"words", ("192.0.2.7", b"192.0.2.7")),
        ("net", "", b"<34>Oct 11 22:14:15 h a: x", ("net", None)),
    ],
)
def test_topics_and_keys(topic: str, key: str, value: bytes, wanted: tuple[str, bytes | None]) -> None:
    name, message = parsed(value, key, topic)
    assert (name, message.key) == wanted


def test_topics_are_bounded() -> None:
    topics = InputTopics("logs-{app}", 2)
    parser = SyslogParser(topics, "", lambda: NOW_S)
    found = parser.parse([b"<13>%b: x" % app for app in (b"a", b"b", b"c", b"a", b"d")], "h")
    assert {topic: len(messages) for topic, messages in found.items()} == {"logs-a": 2, "logs-b": 1, "": 2}
    with pytest.raises(BadValue):
        topics.topic_for({"app": "c"})


def test_a_part_has_its_number() -> None:
    _, message = parsed(b"<34>Oct 11 22:14:15 h a: x")
    assert headers_of(with_part(message, 3)) == headers_of(message) | {"part": "3"}
