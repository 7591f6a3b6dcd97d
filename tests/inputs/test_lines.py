"""Every byte of a file is in one message, whatever pieces it is read in, and the reader knows where it came from."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from appliance.inputs.lines import Block, Encoding, LineReader

MESSAGE_BYTES_MAX = 16
BLOCK_BYTES_MAX = 64
RECORD_BYTES = 4

_lines = st.lists(
    st.sampled_from(
        ["", "a", "\r", "x\ry", "ERR one", "  at two", "ö€𝄞ü", "0123456789abcde", "z" * 40, "\0"]
        + ["y" * length for length in (15, 16, 17, 18, 32, 33)]
        + ["y" * length + "\r" for length in (15, 16, 17)]
    )
)
_breaks = st.sampled_from(["\n", "\r\n"])


def read(data: bytes, pieces: list[int], encoding: Encoding = "utf-8", events: bool = False) -> list[Block]:
    """All blocks of a file that is read in pieces of these lengths."""
    reader = LineReader(
        *(0, 1),
        encoding=encoding,
        message_bytes_max=MESSAGE_BYTES_MAX,
        block_bytes_max=BLOCK_BYTES_MAX,
        record_bytes=RECORD_BYTES,
        starts=(lambda line: not line.startswith(b" ")) if events else None,
    )
    blocks: list[Block] = []
    at = 0
    for length in [*pieces, len(data)]:
        blocks += reader.feed(data[at : at + length])
        at = min(at + length, len(data))
        assert reader.position + reader.held_bytes == at
    blocks += reader.finish()
    assert reader.position == len(data)
    return blocks


def check_places(blocks: list[Block], size: int, lines: int) -> None:
    """Each byte and line is in one block, in order, and no block is larger than its bound."""
    position, line = 0, 1
    for block in blocks:
        assert (block.start, block.first_line) == (position, line)
        position, line = block.stop, line + block.lines
        assert sum(map(len, block.values)) + RECORD_BYTES * len(block.values) <= BLOCK_BYTES_MAX
        assert all(len(value) <= MESSAGE_BYTES_MAX for value in block.values)
    assert (position, line) == (size, lines + 1)


def whole_lines(blocks: list[Block]) -> list[bytes]:
    """The values, with the parts of long lines put together."""
    lines: list[bytes] = []
    part = b""
    for block in blocks:
        if block.part:
            part += block.values[0]
            if block.lines:
                lines.append(part)
                part = b""
        else:
            lines += block.values
    assert not part
    return lines


@given(_lines, _breaks, st.booleans(), st.lists(st.integers(1, 20)))
def test_every_line_arrives_once_in_whatever_pieces_the_file_is_read(
    texts: list[str], line_break: str, ends: bool, pieces: list[int]
) -> None:
    texts = [text.lstrip("\0") for text in texts]
    data = line_break.join(texts).encode() + (line_break.encode() if ends and texts else b"")
    wanted = data.split(b"\n")
    if wanted[-1] == b"":
        wanted.pop()
    blocks = read(data, pieces)
    check_places(blocks, len(data), len(wanted))
    stripped = [line.removesuffix(b"\r") for line in wanted]
    if wanted and not data.endswith(b"\n"):
        stripped[-1] = wanted[-1]  # the break may not have come yet
    assert whole_lines(blocks) == stripped


@given(
    _lines,
    _breaks,
    st.sampled_from(["utf-8", "latin-1", "utf-16-le", "utf-16-be"]),
    st.booleans(),
    st.lists(st.integers(1, 20)),
)
def test_a_long_line_has_the_same_parts_in_whatever_pieces_it_is_read(
    texts: list[str], line_break: str, encoding: Encoding, ends: bool, pieces: list[int]
) -> None:
    """As long as its end is not read a line may be long or not."""
    text = line_break.join(texts) + line_break * ends
    data = text.encode(encoding, "replace")

    def parts(blocks: list[Block]) -> list[tuple[bytes, int]]:
        return [(value, block.part) for block in blocks for value in block.values]

    assert parts(read(data, pieces, encoding)) == parts(read(data, [], encoding))
    assert all(value for value, part in parts(read(data, pieces, encoding)) if part), "no part is empty"


@given(_lines, st.sampled_from(["utf-16-le", "utf-16-be"]), st.lists(st.integers(1, 20)))
def test_utf_16_becomes_utf_8_wherever_the_pieces_end(texts: list[str], encoding: Encoding, pieces: list[int]) -> None:
    texts = [*texts, "\u0a00\u000a\u0a0a"[:1]]
    data = "".join(f"{text}\n" for text in texts).encode(encoding)
    blocks = read(data, pieces, encoding)
    check_places(blocks, len(data), len(texts))
    assert whole_lines(blocks) == [text.removesuffix("\r").encode() for text in texts]


@given(
    st.lists(st.text(st.characters(max_codepoint=255, exclude_characters="\n\r"), max_size=20)),
    st.lists(st.integers(1, 9)),
)
def test_latin_1_becomes_utf_8(texts: list[str], pieces: list[int]) -> None:
    data = "".join(f"{text}\n" for text in texts).encode("latin-1")
    blocks = read(data, pieces, "latin-1")
    check_places(blocks, len(data), len(texts))
    assert whole_lines(blocks) == [text.encode() for text in texts]


@given(_lines, _breaks, st.lists(st.integers(1, 20)))
def test_events_have_all_lines_and_begin_at_a_start(texts: list[str], line_break: str, pieces: list[int]) -> None:
    texts = [text.replace("\r", "").lstrip("\0") for text in texts]
    data = "".join(text + line_break for text in texts).encode()
    blocks = read(data, pieces, events=True)
    check_places(blocks, len(data), len(texts))
    for block in blocks:
        for event, value in pairwise(block.values):
            breaks = 2 * (event.count(b"\n") + 2)
            has_room = len(event) + len(value.split(b"\n")[0]) + breaks <= MESSAGE_BYTES_MAX
            assert not (has_room and value.startswith(b" ")), "a line that continues an event begins another one"
    long = {text.encode() for text in texts if len(text.encode()) > MESSAGE_BYTES_MAX}
    lines = [line for value in whole_lines(blocks) for line in ([value] if value in long else value.split(b"\n"))]
    assert lines == [text.encode() for text in texts]


def test_nul_bytes_before_the_first_line_are_skipped_and_counted() -> None:
    blocks = read(b"\0" * 5 + b"a\n", [])
    assert [(block.skipped, block.values, block.start, block.stop) for block in blocks] == [
        (5, [], 0, 5),
        (0, [b"a"], 5, 7),
    ]


def test_what_is_held_is_no_part_of_the_position() -> None:
    reader = LineReader(
        *(100, 7), message_bytes_max=90, block_bytes_max=200, starts=lambda line: not line.startswith(b" ")
    )
    assert reader.feed(b"one\n two\n thr") == []
    assert (reader.position, reader.line, reader.held_bytes) == (100, 7, 13)
    (block,) = reader.feed(b"ee\nfour\n")
    assert block.values == [b"one\n two\n three"]
    assert (reader.position, reader.line, reader.awaits_event) == (116, 10, True)
    (block,) = reader.end_event()
    assert (block.values, reader.position, reader.line) == ([b"four"], 121, 11)
