"""Blocks of the entries of a journal, and what is missing between them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.inputs.journal_blocks import (
    GONE,
    REMOVED,
    START,
    TAIL_BYTES_MAX,
    JournalBlock,
    JournalGap,
    JournalReader,
    json_of,
    sequence_number_of,
)
from appliance.inputs.journal_export import ExportFault, JournalEntry
from appliance.records.encode import encode_headers


def cursor(number: int, sequence: str = "a") -> str:
    return f"s={sequence};i={number:x};b=1;m=2;t=3;x=4"


def exported(*cursors: str) -> bytes:
    return b"".join(b"__CURSOR=%s\nMESSAGE=m\n\n" % one.encode() for one in cursors)


def read(last: str, *cursors: str, has_all: bool = True) -> tuple[list[str], list[JournalGap]]:
    """The last cursors of the blocks of one entry each, and the gaps, after 7 entries up to ``last``."""
    reader = JournalReader(last, 7, block_bytes_max=1, entry_bytes_max=10_000, has_all=has_all)
    blocks = reader.feed(exported(*cursors))
    assert [block.units for block in blocks] == [(7 + at, 8 + at, 8 + at, 1) for at in range(len(blocks))]
    return [block.cursor for block in blocks], [gap for block in blocks for gap in block.gaps]


A5, A6, A7, A9, B1 = cursor(5), cursor(6), cursor(7), cursor(9), cursor(1, "b")
UNKNOWN = JournalGap(7, None, "entries", GONE)
CASES = [
    ("the first of all", START, [A5, A6], True, [A5, A6], []),
    ("what follows", A5, [A5, A6, A7], True, [A6, A7], []),
    ("nothing new", A5, [A5], True, [], []),
    ("the last one was removed, and none after it", A5, [A6, A7], True, [A6, A7], []),
    ("more were removed", A5, [A9], True, [A9], [JournalGap(6, 9, "sequence numbers", REMOVED)]),
    (
        "some were removed while it was read",
        A5,
        [A5, A6, A9],
        True,
        [A6, A9],
        [JournalGap(7, 9, "sequence numbers", REMOVED)],
    ),
    ("only some are asked for", A5, [A5, A7, A9], False, [A7, A9], []),
    ("more were removed, and only some are asked for", A5, [A9], False, [A9], [UNKNOWN]),
    ("another sequence", A5, [A5, B1, A6], True, [B1, A6], []),
    ("another sequence, and the last one was removed", A5, [B1], True, [B1], [UNKNOWN]),
    ("earlier ones come again, up to the last", A6, [A5, A6, A7], True, [A7], []),
]


@pytest.mark.parametrize(
    ("last", "cursors", "has_all", "taken", "gaps"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)
def test_every_entry_is_taken_once_and_what_is_missing_is_told(
    last: str, cursors: list[str], has_all: bool, taken: list[str], gaps: list[JournalGap]
) -> None:
    assert read(last, *cursors, has_all=has_all) == (taken, gaps)


@pytest.mark.parametrize("number", ["-5", "+5", " 5", "5 ", "0x5", "1_0", "", "f" * 17, "1" * 150, "\u0665"])
def test_only_64_bits_in_hexadecimal_are_a_sequence_number(number: str) -> None:
    assert sequence_number_of(f"s=a;i={number};b=1") is None
    assert sequence_number_of(f"s=a;i={2**64 - 1:x};b=1") == ("a", 2**64 - 1)


def test_an_entry_without_a_cursor_is_no_entry_of_journalctl() -> None:
    for wrong in (b"MESSAGE=m\n\n", b"__CURSOR=a b\n\n", b"__CURSOR=" + b"x" * 200 + b"\n\n"):
        with pytest.raises(ExportFault):
            JournalReader(START, 0, block_bytes_max=1_000, entry_bytes_max=1_000, has_all=True).feed(wrong)


NAMES = st.sampled_from(
    ["MESSAGE", "A", "_HOSTNAME", "SYSLOG_IDENTIFIER", "PRIORITY", "__REALTIME_TIMESTAMP", "Z" * 64]
)
VALUES = st.binary(max_size=3_000) | st.from_regex(rb"[0-9]{1,25}", fullmatch=True) | st.just(b"\n" * 2_900)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=30)


@given(FIELDS, st.integers(200, 4_000))
def test_an_entry_is_json_within_its_bound_with_each_field_that_fits(
    fields: list[tuple[str, bytes]], bytes_max: int
) -> None:
    value, cut = json_of(JournalEntry(list(fields), 0), bytes_max)
    assert len(value) <= bytes_max
    found = msgspec.json.decode(value)
    for name in {name for name, _ in fields} - set(cut):
        wanted = [_as_json(one) for other, one in fields if other == name]
        assert found[name] == (wanted[0] if len(wanted) == 1 else wanted)


def _as_json(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return list(value)


@given(st.lists(FIELDS, max_size=5))
def test_a_message_takes_no_more_than_its_bound_beside_the_value(entries: list[list[tuple[str, bytes]]]) -> None:
    data = b"".join(
        b"__CURSOR=c%d\n" % at
        + b"".join(b"%s\n%s%s\n" % (name.encode(), len(value).to_bytes(8, "little"), value) for name, value in fields)
        + b"\n"
        for at, fields in enumerate(entries)
    )
    reader = JournalReader(START, 0, block_bytes_max=6_000, entry_bytes_max=6_000 - TAIL_BYTES_MAX, has_all=False)
    blocks: list[JournalBlock] = reader.feed(data)
    assert sum(len(block.values) for block in blocks) == len(entries)
    for block in blocks:
        assert block.bytes <= 6_000
        assert all(len(tail) < TAIL_BYTES_MAX for tail in block.tails)


def test_headers_name_what_an_entry_is_of() -> None:
    fields = {
        "__CURSOR": b"c1", "__REALTIME_TIMESTAMP": b"1700000000000001", "_HOSTNAME": b"web-1", "_COMM": b"sshd",
        "_SYSTEMD_UNIT": b"ssh.service", "PRIORITY": b"3", "SYSLOG_FACILITY": b"10",
    }  # fmt: skip
    data = b"".join(b"%s=%s\n" % (name.encode(), value) for name, value in fields.items()) + b"\n"
    (block,) = JournalReader(START, 0, block_bytes_max=9_000, entry_bytes_max=5_000, has_all=True).feed(data)
    wanted = [
        *(("host", b"web-1"), ("app", b"sshd"), ("unit", b"ssh.service")),
        *(("facility", b"authpriv"), ("severity", b"err"), ("time", b"2023-11-14T22:13:20.000001Z")),
    ]
    assert block.tails == [encode_headers(wanted)]
