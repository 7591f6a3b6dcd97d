"""appliance.cli.data_commands: lines of files and pipes as they come."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli import data_commands
from appliance.cli.data_commands import lines_of
from appliance.errors import MessageTooLarge

from .command_line import run, succeeding
from .server import Server


class Pipe(io.RawIOBase):
    """Gives what was written to it in the pieces in which it was written."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def read1(self, _: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@given(st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\x01", b"\n")), max_size=12))
def test_lines_do_not_depend_on_how_the_pipe_was_filled(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    expected = whole.split(b"\n")
    if not expected[-1]:
        expected.pop()
    got = [line for lines in lines_of(Pipe(pieces), "pipe") for line in lines]  # type: ignore[arg-type]
    assert got == expected


def test_lines_are_given_before_the_pipe_ends() -> None:
    lines = lines_of(Pipe([b"a\nb", b"c\n"]), "pipe")  # type: ignore[arg-type]
    assert next(lines) == [b"a"]
    assert next(lines) == [b"bc"]


def test_a_line_without_end_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_commands, "LINE_BYTES_MAX", 10)
    with pytest.raises(MessageTooLarge, match="pipe: line 2 is longer"):
        list(lines_of(Pipe([b"a\n", b"x" * 8, b"x" * 8]), "pipe"))  # type: ignore[arg-type]


def test_lines_in_lines_out(appliance: Server, topic: str, tmp_path: Path) -> None:
    at = ("--data", str(appliance.data_dir))
    succeeding("topics", "create", topic, *at)
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\r\n\n\xff\nlast without end")
    said = succeeding("produce", topic, str(path), "--json", *at)
    assert {**said.json, "seconds": 0} == {"topic": topic, "messages": 5, "bytes": 24, "seconds": 0}
    rows = succeeding("consume", topic, "--from", "earliest", "--timeout", "0.2", "--json", *at).out.splitlines()
    messages = [json.loads(row) for row in rows]
    values = [message.get("value", message.get("value_base64")) for message in messages]
    assert values == ["one", "two\r", "", "/w==", "last without end"]
    assert {message["topic"] for message in messages} == {topic}
    second = messages[1]["offset"]
    one = succeeding("consume", topic, "--from", str(second), "--partition", "0", "--max", "1", *at)
    assert one.out.encode() == b"two\r\n"
    assert succeeding("consume", topic, "--timeout", "0.1", *at).out == ""  # from the end
    since = succeeding("consume", topic, "--from", "-1h", "--max", "1", *at)
    assert since.out == "one\n"


def test_keys_and_partitions(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    succeeding("produce", topic, "--key-separator", ":", "--codec", "zstd", *at, stdin=b"k:v\nnone\n")
    said = succeeding("consume", topic, "--from", "earliest", "--max", "2", "--json", *at)
    found = {row["value"]: row["key"] for row in map(json.loads, said.out.splitlines())}
    assert found == {"v": "k", "none": None}
    said = succeeding("consume", topic, "--from", "earliest", "--max", "2", "--key-separator", "=", *at)
    assert sorted(said.out.splitlines()) == ["k=v", "none"]
    succeeding("topics", "alter", topic, "--partitions", "3", *at)
    succeeding("produce", topic, "--partition", "2", "--acks", "1", *at, stdin=b"here\n")
    said = succeeding("consume", topic, "--from", "earliest", "--partition", "2", "--timeout", "0.2", *at)
    assert "here\n" in said.out


def test_what_is_refused(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--partitions", "2", "--setting", "max.message.bytes=200", *at)
    for words, stdin, status, says in [
        (("produce", topic), b"x" * 300, 65, "max.message.bytes"),
        (("produce", topic, "--partition", "7"), b"x", 66, "partitions 0 to 1"),
        (("produce", topic, "--key-separator", ""), b"", 2, "must not be empty"),
        (("consume", topic, "--partition", "7"), b"", 66, "partitions 0 to 1"),
        (("consume", topic, "--from", "5"), b"", 2, "--partition"),
        (("consume", topic, "--from", "999", "--partition", "0"), b"", 65, "outside of 0..0"),
        (("consume", topic, "--group", "g", "--partition", "0"), b"", 2, "leave out"),
    ]:
        said = run(*words, *at, stdin=stdin)
        assert (said.status, said.out) == (status, ""), said
        assert says in said.err, said
