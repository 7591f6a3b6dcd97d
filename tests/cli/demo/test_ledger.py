"""appliance.cli.demo.ledger: no line is lost, altered or out of order unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli.demo.ledger import ENTRY, DemoLedger, Spool, line_bytes

LINES = [line_bytes(b"a.log", number, b"text %d" % number) for number in range(1, 6)]


def filled() -> DemoLedger:
    ledger = DemoLedger()
    for line in LINES:
        ledger.sent((0, 1), line, 7)
    return ledger


def test_all_lines_in_order() -> None:
    ledger = filled()
    for offset, line in enumerate(LINES):
        ledger.received(0, 1, offset * 100, line)
    account = ledger.accounts()[0, 1]
    assert (account.fault, account.lines, account.bytes, account.repeats) == ("", 5, 35, 0)
    assert account.checksum_in == account.checksum_out
    assert ledger.lines_in == ledger.lines_out == 5


@given(st.lists(st.integers(0, 4), max_size=30))
def test_repeats_are_counted_once(again: list[int]) -> None:
    """Goal: at-least-once accounting.  Method: any messages come again, in any order."""
    ledger = filled()
    for index in [*range(5), *again]:
        ledger.received(0, 1, index, LINES[index])
    account = ledger.accounts()[0, 1]
    assert (account.fault, account.repeats, ledger.lines_out) == ("", len(again), 5)


@pytest.mark.parametrize(
    "came, fault",
    [
        ([0, 1, 3, 4], "1 missing, 0 never sent"),
        ([0, 2, 1, 3, 4], "out of order from line 2"),
        ([], "5 lines went in and 0 came out: 5 missing"),
    ],
)
def test_faults_are_named(came: list[int], fault: str) -> None:
    ledger = filled()
    for offset, index in enumerate(came):
        ledger.received(0, 1, offset, LINES[index])
    assert fault in ledger.accounts()[0, 1].fault


def test_altered_and_foreign_lines_are_faults() -> None:
    ledger = filled()
    for offset, line in enumerate([*LINES, line_bytes(b"b.log", 1, b"")]):
        ledger.received(0, 1, offset, line)
    assert "1 never sent" in ledger.accounts()[0, 1].fault
    ledger.received(0, 1, 0, LINES[1])
    assert "twice with different content" in ledger.accounts()[0, 1].fault


def test_a_partition_that_nothing_was_sent_to_is_a_fault_too() -> None:
    ledger = filled()
    ledger.received(3, 0, 0, LINES[0])
    assert "0 lines went in and 1 came out" in ledger.accounts()[3, 0].fault


def test_spool_gives_each_entry_once_and_no_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = Spool(path)
    assert spool.news() == []
    entries = [ENTRY.pack(0, 1, offset, line) for offset, line in enumerate(LINES)]
    path.write_bytes(b"".join(entries[:2]) + entries[2][:7])
    assert [entry[2] for entry in spool.news()] == [0, 1]
    path.write_bytes(b"".join(entries))
    assert [entry[2] for entry in spool.news()] == [2, 3, 4]
    assert (spool.news(), spool.count) == ([], 5)
