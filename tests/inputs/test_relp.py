"""RELP as bytes: whatever pieces they come in, the same commands; after anything odd, nothing more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.inputs.relp import RelpAnswer, RelpMessage, RelpReader, rsp

MESSAGE_BYTES_MAX = 16
OFFERS = b"relp_version=0\nrelp_software=test\ncommands=syslog"


def frame(number: int, command: str, data: bytes = b"") -> bytes:
    return b"%d %b %d%b%b\n" % (number, command.encode(), len(data), b" " if data else b"", data)


def read(data: bytes, pieces: list[int]) -> tuple[list[RelpMessage | RelpAnswer], RelpReader]:
    reader = RelpReader(MESSAGE_BYTES_MAX)
    events: list[RelpMessage | RelpAnswer] = []
    at = 0
    for length in [*pieces, len(data)]:
        events += reader.feed(data[at : at + length])
        at = min(at + length, len(data))
    return events, reader


_messages = st.lists(
    st.sampled_from([b"", b"<13>a", b"<13>b ", b"1 close 0\n1 close 0", b"x" * 16, b"y" * 40, "ö€𝄞".encode() * 5]),
    max_size=8,
)


@given(messages=_messages, pieces=st.lists(st.integers(0, 30), max_size=10))
def test_each_message_comes_with_its_number(messages: list[bytes], pieces: list[int]) -> None:
    last = len(messages) + 2
    data = [frame(1, "open", OFFERS[:14]), *(frame(n, "syslog", m) for n, m in enumerate(messages, 2))]
    events, reader = read(b"".join([*data, frame(last, "close"), b"more"]), pieces)
    opened, *sent, closed = events
    assert opened == RelpAnswer(rsp(b"1", b"200 OK\nrelp_version=0\nrelp_software=appliance\ncommands=syslog"))
    assert closed == RelpAnswer(b"%d rsp 0\n" % last)
    assert reader.is_closed
    assert reader.fault is None
    values: dict[bytes, bytes] = {}
    for event in sent:
        assert isinstance(event, RelpMessage)
        assert len(event.value) <= MESSAGE_BYTES_MAX
        values[event.number] = values.get(event.number, b"") + event.value
        assert event.is_last == (values[event.number] == messages[int(event.number) - 2])
    assert list(values.items()) == [(b"%d" % n, m) for n, m in enumerate(messages, 2)]


@pytest.mark.parametrize("size", [3, 16, 40])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\0"])
def test_a_terminator_that_is_counted_is_no_part_of_a_message(size: int, end: bytes) -> None:
    events, _ = read(frame(1, "open") + frame(2, "syslog", b"x" * size + end), [])
    assert b"".join(event.value for event in events if isinstance(event, RelpMessage)) == b"x" * size


def test_offers_are_answered() -> None:
    events, reader = read(frame(1, "open", b"commands=syslog"), [])
    assert events == [RelpAnswer(rsp(b"1", b"200 OK\nrelp_version=0\nrelp_software=appliance\ncommands=syslog"))]
    assert not reader.is_closed


@pytest.mark.parametrize("offers", [b"relp_version=7", b"commands=tls"])
def test_offers_that_cannot_be_met_end_the_session(offers: bytes) -> None:
    events, reader = read(frame(1, "open", offers) + frame(2, "syslog", b"x"), [])
    (answer,) = events
    assert isinstance(answer, RelpAnswer)
    assert answer.frame.startswith(b"1 rsp ")
    assert b" 500 " in answer.frame
    assert reader.is_closed


def test_an_unknown_command_is_answered() -> None:
    events, _ = read(frame(1, "open") + frame(2, "starttls") + frame(3, "syslog", b"x"), [])
    assert events[1:] == [RelpAnswer(rsp(b"2", b"500 command not known")), RelpMessage(b"3", b"x", 0, True)]


@pytest.mark.parametrize(
    "data",
    [
        frame(1, "syslog", b"x"),  # before open
        frame(1, "open") + b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: nobody in particular\r\nAccept: */*\r\n\r\n",
        frame(1, "open") + b"2 syslog 1 too long" + b"x" * 100,
        frame(1, "open") + b"2 syslog 9999999999 " + b"x" * 100,
        frame(1, "open") + b"-2 syslog 1 x" + b"x" * 100,
        frame(1, "open") + b"2 SYSLOG 1 x" + b"x" * 100,
        b"1 open 999999999 " + b"x" * 100,
        b"\x16\x03\x01" + b"\0" * 200,
    ],
)
def test_what_is_odd_is_a_fault(data: bytes) -> None:
    events, reader = read(data, [])
    assert reader.fault is not None
    assert not any(isinstance(event, RelpMessage) and event.value != b"t" for event in events)
    assert reader.feed(frame(9, "syslog", b"x")) == []


@given(data=st.binary(max_size=100), pieces=st.lists(st.integers(0, 30), max_size=5))
def test_no_bytes_raise_and_pieces_do_not_matter(data: bytes, pieces: list[int]) -> None:
    data = frame(1, "open") + data

    def said(pieces: list[int]) -> Any:
        events, reader = read(data, pieces)
        return events, reader.is_closed, str(reader.fault)

    assert said(pieces) == said([])
