"""appliance.cli.output: what a pipe sees and what a terminal sees."""

from __future__ import annotations

import io
import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import units
from appliance.cli import output


def acting(text: str) -> set[str]:
    """The characters that do something else than being seen."""
    return {
        each for each in text if not each.isprintable() and each not in "\r\n\t" and unicodedata.category(each) != "Zs"
    }


ROWS = [
    {"topic": "web", "bytes": 1536, "settings": {"a": 1}, "reason": "tab\tand\nline", "none": None},
    {"topic": "app", "bytes": 0, "settings": {}, "parts": ["a-0", "a-1"]},
]
COLUMNS = ["topic", "bytes", "settings", "reason", "parts", "none"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_sees_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows(ROWS, COLUMNS)
    assert capsys.readouterr().out.splitlines() == [
        "topic\tbytes\tsettings\treason\tparts\tnone",
        "web\t1536\ta=1\ttab and line\t-\t-",
        "app\t0\t-\t-\ta-0 a-1\t-",
    ]


def test_json_has_whole_rows(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows(ROWS, ["topic"], as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_a_terminal_sees_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    output.print_rows([*ROWS, {"topic": "[b]x[/b]", "state": "online"}], [*COLUMNS, "state"], title="Topics")
    drawn = terminal.getvalue()
    assert "1.5 KiB" in drawn and "[b]x[/b]" in drawn and "Topics" in drawn


@pytest.mark.parametrize(
    "count, text", [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (1 << 60, "1048576.0 TiB")]
)
def test_size(count: int, text: str) -> None:
    assert units.size(count) == text


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("sending", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_progress_draws_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.progress("sending", 10) as advance:
        advance(10)
    assert "sending" in terminal.getvalue()


@given(st.text(alphabet=st.characters(codec=None)) | st.binary())
def test_safe_text_is_seen_and_nothing_else(text: str | bytes) -> None:
    shown = output.safe(text)
    assert not acting(shown) and "\n" not in shown and "\t" not in shown
    shown.encode()
    if isinstance(text, str) and text.isascii() and text.isprintable():
        assert shown == text
    assert output.safe(shown) == shown


TEXTS = st.text(max_size=20)


@given(st.lists(TEXTS | st.integers() | st.dictionaries(TEXTS, TEXTS, max_size=3), max_size=3))
def test_json_text_is_the_same_value(value: object) -> None:
    for indent in (None, 2):
        text = output.json_text(value, indent)
        assert json.loads(text) == value and not acting(text)


def test_marks_do_not_pile_up() -> None:
    assert output.safe("e\u0301") == "e\u0301"
    assert output.safe("e" + "\u0301" * 6) == "e" + "\u0301" * 4 + "\\u0301" * 2


def test_a_narrow_terminal_gets_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: everything can be read in 40 columns.  Method: no line is longer, every value is whole."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"topic": "access-log", "partition": 3, "end": 12_345_678_901, "state": "online", "reason": None}]
    output.print_rows(rows, ["topic", "partition", "end", "state", "reason"], title="Partitions")
    assert terminal.getvalue().splitlines() == [
        "Partitions",
        "* access-log",
        "  partition 3",
        "  end       12,345,678,901",
        "  state     online",
    ]
    output.print_rows([{"topic": "a", "end": 1}], ["topic", "end"])
    assert "┃" in terminal.getvalue(), "what fits is a table"


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_columns_that_would_be_cut_become_blocks(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Twelve columns in 80: each number is on one line, and each word of a usual length."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    row = {"user": "not logged in", "host": "192.168.100.20", "client_id": "librdkafka", "software": "librdkafka 2.6"}
    row |= {f"bytes_{number}": 1_234_567_890 for number in range(6)}
    output.print_rows([row, row], list(row))
    drawn = terminal.getvalue()
    numbers = drawn.count("1234567890") + drawn.count("1.1 GiB")
    assert numbers == 12 and drawn.count("192.168.100.20") == 2, drawn
    assert ("┃" in drawn) == (columns == 140)


def test_one_of_a_thing_is_not_many() -> None:
    assert units.counted(1, "batch was", "batches were") == "1 batch was"
    assert units.counted(2, "batch was", "batches were") == "2 batches were"
    assert [units.counted(number, "message") for number in (0, 1, 2, 1234)] == [
        *("0 messages", "1 message", "2 messages", "1,234 messages")
    ]
