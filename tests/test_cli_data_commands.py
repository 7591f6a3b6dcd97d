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


def test_keys_and_headers_go_there_and_back(appliance: Server, topic: str) -> None:
    """Goal: what ``consume --json`` prints can be produced again, bytes that are no text and nulls, too."""
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--partitions", "2", *at)
    succeeding("topics", "create", f"{topic}-copy", "--partitions", "2", *at)
    general = ("--key", "k", "--header", "from=a=b", "--header", "empty=")
    succeeding("produce", topic, *general, "--partition", "1", *at, stdin=b"one\ntwo\n")
    objects = [
        {"value_base64": "/w==", "key_base64": "/g==", "headers": {"h": "1", "null": None}, "timestamp": 1234},
        {"value": None, "key": "gone"},
    ]
    lines = "".join(json.dumps(each) + "\n" for each in objects).encode()
    succeeding("produce", topic, "--input", "json", "--header", "first=1", *at, stdin=lines)
    reading = ("--from", "earliest", "--timeout", "0.3", "--json", *at)
    printed = succeeding("consume", topic, *reading).out
    rows = {row.get("key", "bytes"): row for row in map(json.loads, printed.splitlines())}
    assert rows["k"]["headers"] == [{"name": "from", "value": "a=b"}, {"name": "empty", "value": ""}]
    assert rows["k"]["partition"] == 1 and rows["gone"]["value"] is None
    assert rows["bytes"]["value_base64"] == "/w==" and rows["bytes"]["timestamp"] == 1234
    assert [header["name"] for header in rows["bytes"]["headers"]] == ["first", "h", "null"]
    succeeding("produce", f"{topic}-copy", "--input", "json", *at, stdin=printed.encode())
    copied = [json.loads(line) for line in succeeding("consume", f"{topic}-copy", *reading).out.splitlines()]
    bare = [{name: value for name, value in row.items() if name not in ("topic", "offset")} for row in copied]
    for line in printed.splitlines():
        row = {name: value for name, value in json.loads(line).items() if name not in ("topic", "offset")}
        assert row in bare


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"value": 1}', b'{"value_base64": "?"}', b'{"partition": -1}'])
def test_a_line_that_is_no_message_ends_it(appliance: Server, topic: str, line: bytes) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    said = run("produce", topic, "--input", "json", *at, stdin=b'{"value": "first"}\n' + line + b"\n")
    assert said.status == 65 and "consume --json" in said.err
    assert succeeding("consume", topic, "--from", "earliest", "--max", "1", *at).out == "first\n"
    assert run("produce", topic, "--header", "x", *at).status == 2
    assert run("produce", topic, "--key-separator", ":", "--input", "json", *at).status == 2
