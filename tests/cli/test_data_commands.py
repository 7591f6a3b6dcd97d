"""appliance.cli.data_commands and the lines that it reads: lines of files and pipes as they come."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.cli.messages.format_string import parse_format
from appliance.cli.messages.line_input import LongLineReader, LongLines, details_bytes, make_parse
from appliance.client import Message, Producer
from appliance.errors import MessageTooLarge
from appliance.records.encode import encode_values

from ..support.command_line import run, succeeding
from ..support.native_peer import Peer
from ..support.server import Server


class Pipe(io.RawIOBase):
    """Gives what was written to it in the pieces in which it was written."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def read1(self, _: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def reader(pipe: Pipe, treatment: Any = "refuse", bytes_max: int = 1000) -> LongLineReader:
    long_lines = LongLines(treatment, 1 << 20, 0)
    long_lines.bytes_max = bytes_max
    return LongLineReader(pipe, "pipe", long_lines)  # type: ignore[arg-type]


def lines_in(text: bytes) -> list[bytes]:
    """The lines of a text: what LF or CR LF ends, and what is behind the last of them."""
    *ended, rest = text.split(b"\n")
    return [line.removesuffix(b"\r") for line in ended] + ([rest] if rest else [])


pieces_of_text = st.lists(
    st.text("ab\u00e4\u20ac\n\r", max_size=12).map(str.encode) | st.binary(max_size=4), max_size=12
)


@given(pieces_of_text)
def test_lines_do_not_depend_on_how_the_pipe_was_filled(pieces: list[bytes]) -> None:
    got = [line for lines in reader(Pipe(pieces)) for line in lines]
    assert got == lines_in(b"".join(pieces))


@example(pieces=[b"aa\r", b"\n"], bytes_max=1, treatment="skip")
@example(pieces=[b"aa\r", b"\n"], bytes_max=1, treatment="cut")
@given(pieces_of_text, st.integers(1, 9), st.sampled_from(["skip", "cut", "split"]))
def test_long_lines_do_not_change_the_others(pieces: list[bytes], bytes_max: int, treatment: str) -> None:
    """Goal: each treatment, however the pipe was filled, and whole characters of UTF-8."""
    reading = reader(Pipe(pieces), treatment, bytes_max)
    got = iter([line for lines in reading for line in lines])
    lines = lines_in(b"".join(pieces))
    for line in lines:
        if len(line) <= bytes_max:
            assert next(got) == line
        elif treatment != "skip":
            part = next(got)
            assert line.startswith(part) and bytes_max - 3 <= len(part) <= bytes_max
            whole = part
            while treatment == "split" and whole != line:
                part = next(got)
                whole += part
                assert len(part) <= bytes_max and line.startswith(whole)
            if bytes_max >= 4 and is_utf8(line):
                assert is_utf8(part)
    assert next(got, None) is None
    long = [len(line) for line in lines if len(line) > bytes_max]
    assert reading._long.count == len(long)
    if treatment != "cut":
        assert reading._long.left_out_bytes == (sum(long) if treatment == "skip" else 0)


def is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_lines_are_given_before_the_pipe_ends() -> None:
    lines = iter(reader(Pipe([b"a\nb", b"c\n"])))
    assert next(lines) == [b"a"]
    assert next(lines) == [b"bc"]


@pytest.mark.parametrize("pieces", [[b"a\n", b"x" * 8, b"x" * 8], [b"a\n" + b"x" * 11 + b"\nb\n"]])
def test_a_long_line_is_refused_by_its_number_behind_the_lines_before_it(pieces: list[bytes]) -> None:
    lines = iter(reader(Pipe(pieces), bytes_max=10))
    assert next(lines) == [b"a"]
    with pytest.raises(MessageTooLarge, match=r"pipe: line 2 has more than 10 bytes.*--long-lines skip"):
        next(lines)


def test_a_line_without_end_is_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: bounded memory.  Method: a thousand times the limit; the rest that is kept is looked at all the time."""
    for treatment in ("skip", "cut", "split"):
        pipe = Pipe([b"x" * 100] * 100 + [b"\nend\n"])
        reading = reader(pipe, treatment, 10)
        kept, last = 0, b""
        for lines in reading:
            kept, last = max(kept, len(reading._rest)), lines[-1]
        assert last == b"end" and kept <= 10 + 1 + 100  # a line and a piece
        assert (
            f"pipe: line 1: 10,000 bytes: {'skipped' if treatment == 'skip' else treatment}" in capsys.readouterr().err
        )


def test_lines_in_lines_out(appliance: Server, topic: str, tmp_path: Path) -> None:
    at = ("--data", str(appliance.data_dir))
    succeeding("topics", "create", topic, *at)
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\r\n\n\xff\nlast without end")
    said = succeeding("produce", topic, str(path), "--json", *at)
    told = {"topic": topic, "messages": 5, "bytes": 23, "long_lines": 0, "left_out_bytes": 0}
    assert {**said.json, "seconds": 0} == {**told, "seconds": 0}
    rows = succeeding("consume", topic, "--from", "earliest", "--timeout", "0.2", "--json", *at).out.splitlines()
    messages = [json.loads(row) for row in rows]
    values = [message.get("value", message.get("value_base64")) for message in messages]
    assert values == ["one", "two", "", "/w==", "last without end"]
    assert {message["topic"] for message in messages} == {topic}
    second = messages[1]["offset"]
    one = succeeding("consume", topic, "--from", str(second), "--partition", "0", "--max", "1", *at)
    assert one.out.encode() == b"two\n"
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
    succeeding("produce", topic, "-", "--partition", "2", "--acks", "1", *at, stdin=b"here\n")
    said = succeeding("consume", topic, "--from", "earliest", "--partition", "2", "--timeout", "0.2", *at)
    assert "here\n" in said.out


def test_what_is_refused(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--partitions", "2", "--setting", "max.message.bytes=200", *at)
    for words, stdin, status, says in [
        (("produce", topic), b"x" * 300, 65, "max.message.bytes"),
        (("produce", topic, "--partition", "7"), b"x", 66, "partitions 0 to 1"),
        (("produce", "xqzw"), b"x", 66, "`appliance topics create xqzw` makes it"),
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


@pytest.mark.parametrize("treatment, messages", [("skip", 2), ("cut", 3), ("split", 4)])
def test_a_long_line_does_not_end_a_shipper(appliance: Server, topic: str, treatment: str, messages: int) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--setting", "max.message.bytes=1024", *at)
    lines = b"before\n" + b"x" * 1500 + b"\nafter\n"
    options = ("--key", "k", "--header", "h=v", "--long-lines", treatment)
    said = succeeding("produce", topic, *options, "--json", *at, stdin=lines)
    assert (said.json["messages"], said.json["long_lines"]) == (messages, 1)
    assert "standard input: line 2: 1,500 bytes: " in said.err and "max.message.bytes is 1,024" in said.err
    values = succeeding("consume", topic, "--from", "earliest", "--max", str(messages), *at).out.splitlines()
    assert (values[0], values[-1]) == ("before", "after")
    left_out = 1500 - sum(map(len, values[1:-1]))
    assert said.json["left_out_bytes"] == left_out and (treatment == "split") == (left_out == 0)
    said = succeeding("produce", topic, *options, *at, stdin=lines)
    assert f"1 long line ({treatment}), " in said.err


def test_without_a_treatment_a_long_line_ends_it(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--setting", "max.message.bytes=1024", *at)
    said = run("produce", topic, *at, stdin=b"before\n" + b"x" * 1500 + b"\nafter\n")
    assert said.status == 65 and "standard input: line 2 has more than" in said.err and "--long-lines skip" in said.err
    assert succeeding("consume", topic, "--from", "earliest", "--timeout", "0.2", *at).out == "before\n"
    for options in (("--input", "json", "--long-lines", "cut"), ("--key-separator", ":", "--long-lines", "split")):
        assert run("produce", topic, *options, *at).status == 2
    said = run("produce", topic, "--key", "k" * 1000, *at, stdin=b"x\n")
    assert said.status == 65 and "no room" in said.err


@pytest.mark.parametrize("key, headers", [(None, ()), (b"k" * 300, ()), (b"", ((("name", b"v" * 70)), ("n", None)))])
def test_a_line_is_treated_as_long_only_if_a_message_has_no_room_for_it(
    appliance: Server, topic: str, key: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    """Goal: what --long-lines cut leaves is sent, and what is refused could not be.  Method: the largest of each."""
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--setting", "max.message.bytes=2048", *at)
    details = details_bytes(key, headers)
    with Producer(appliance.native) as producer:
        largest = b"x" * LongLines("cut", 2048, details).bytes_max
        producer.send(topic, largest, key=key, headers=headers).result(60)
        with pytest.raises(MessageTooLarge):
            refused = b"x" * (LongLines("refuse", 2048, details).bytes_max + 1)
            producer.send(topic, refused, key=key, headers=headers).result(60)


def test_an_object_that_is_too_large_is_left_out(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--setting", "max.message.bytes=1024", *at)
    objects = [{"value": "before"}, {"value": "v", "headers": {"h": "x" * 2000}}, {"value": "after"}]
    lines = "".join(f"{json.dumps(each)}\n" for each in objects).encode()
    said = succeeding("produce", topic, "--input", "json", "--long-lines", "skip", "--json", *at, stdin=lines)
    assert (said.json["messages"], said.json["long_lines"]) == (2, 1) and "line 2: 2," in said.err
    assert succeeding("consume", topic, "--from", "earliest", "--max", "2", *at).out == "before\nafter\n"


def test_an_object_without_a_time_gets_that_of_sending(appliance: Server, topic: str) -> None:
    """What is printed of a message without a time can be sent again."""
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    with Peer(appliance.native) as peer:
        assert peer.produce(topic, encode_values([b"no time"], -1))[0] == 0
    printed = succeeding("consume", topic, "--from", "earliest", "--max", "1", "--json", *at).out
    assert json.loads(printed)["timestamp"] == -1
    succeeding("produce", topic, "--input", "json", *at, stdin=printed.encode())
    said = succeeding("consume", topic, "--from", "-1h", "--max", "1", "--json", *at)
    assert json.loads(said.out)["value"] == "no time" and json.loads(said.out)["timestamp"] > 0


# ---- templates, and files as messages


@given(
    st.text("ab \u20ac", max_size=6),
    st.text("ab\t %", max_size=12),
    st.dictionaries(st.text("ab", min_size=1, max_size=3), st.none() | st.text("xy", max_size=3), max_size=3),
    st.integers(-1, 2**40),
)
def test_what_a_format_prints_it_also_reads(
    key: str, value: str, headers: dict[str, str | None], timestamp: int
) -> None:
    given_headers = tuple((name, None if one is None else one.encode()) for name, one in headers.items())
    message = Message("t", 3, 7, timestamp, key.encode(), value.encode(), given_headers)
    template = "%T\\t%p\\x00%h|%k;%s\\n"  # a line comes without its break
    parse = make_parse("lines", None, None, (), template)
    assert parse is not None
    read = parse(parse_format(template)(message).removesuffix(b"\n"))
    wanted = (value.encode(), key.encode() or None, given_headers, 3)
    assert (read.value, read.key, read.headers, read.partition) == wanted
    assert read.timestamp == (None if timestamp == -1 else timestamp)


def test_lines_that_look_otherwise_are_refused(appliance: Server, topic: str) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    for template, line in (
        ("%k=%s", b"none"),
        ("%T %s", b"x y"),
        ("[%s]", b"[a] b"),
        ("%h %s", b"a b"),
        ("%p %s", b"-1 a"),
    ):
        said = run("produce", topic, "--format", template, *at, stdin=line + b"\n")
        assert said.status == 65 and "--format" in said.err, said
    for template in ("%x", "%s%k", "%s %s", "text", "\\q%s"):
        assert run("produce", topic, "--format", template, *at).status == 2
    for more in (("--input", "json"), ("--key-separator", " "), ("--long-lines", "cut")):
        assert run("produce", topic, "--format", "%s", *more, *at).status == 2
    assert run("produce", topic, "--input", "file", "--long-lines", "split", *at).status == 2


def test_messages_come_back_as_they_were_printed(appliance: Server, topic: str) -> None:
    at, shape = ("--connect", appliance.native), "%T %h %k: %s"
    succeeding("topics", "create", topic, *at)
    lines = b"1700000000000 a=1,b=NULL k1: one: two\n1700000000001  k2: \n"
    succeeding("produce", topic, "--format", shape + "\\n", *at, stdin=lines)
    assert succeeding("tail", topic, "-n", "2", "--format", shape + "\\n", *at).out.encode() == lines


def test_each_file_is_a_message(appliance: Server, topic: str, tmp_path: Path) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, "--setting", "max.message.bytes=1000", *at)
    for name, content in (("a", b"one\ntwo\r\n"), ("b", b""), ("big", bytes(2_000))):
        (tmp_path / name).write_bytes(content)
    files = [str(tmp_path / name) for name in ("a", "b")]
    succeeding("produce", topic, *files, "--input", "file", "--key", "k", "--header", "h=1", *at)
    succeeding("produce", topic, "--input", "file", *at, stdin=b"from\nstandard input")
    consumed = succeeding("consume", topic, "--from", "earliest", "--max", "3", "--json", *at).out.splitlines()
    assert [json.loads(line)["value"] for line in consumed] == ["one\ntwo\r\n", "", "from\nstandard input"]
    assert json.loads(consumed[0])["key"] == "k" and json.loads(consumed[0])["headers"][0]["name"] == "h"
    large = ("produce", topic, str(tmp_path / "big"), "--input", "file", *at)
    assert "big: more than" in run(*large).err and run(*large).status == 65
    assert "skipped" in succeeding(*large, "--long-lines", "skip").err
