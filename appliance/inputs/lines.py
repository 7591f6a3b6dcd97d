"""Turns the bytes of a log file into messages, and knows which bytes and lines each message came from.

No I/O, no clock.  :class:`LineReader` is fed with consecutive pieces of one file and returns :class:`Block` s: messages
that follow each other in the file and can be sent as one batch.  Bytes after the last whole line, and the lines of an
event that may go on, are held; :attr:`LineReader.position` is the byte from which a reader that starts anew has to
read, so what is held is never part of a committed position.

=================  =================================================================================================
line break         LF, or CR LF; it is not part of the message
encoding           UTF-8 (and anything else that is ASCII in its line breaks) is kept as it is; UTF-16 and Latin-1 are
                   turned into UTF-8, with U+FFFD for what is not valid
long line          more than ``message_bytes_max``: it becomes several messages, its *parts*, each a block of its own
multi-line event   begins with a line that matches ``start``; all lines up to the next such line belong to it.  It is
                   one message with LF between the lines.  An event of more than ``message_bytes_max`` bytes or
                   EVENT_LINES_MAX lines ends there, and what follows begins another one
NUL bytes          at the beginning of a file: skipped.  Programs that do not append leave them behind when the file is
                   truncated under them
=================  =================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

EVENT_LINES_MAX: Final = 1_000
"""A stack trace has some hundred lines; a pattern that never matches must not make one message of a whole file."""

Encoding = Literal["utf-8", "latin-1", "utf-16-le", "utf-16-be"]
_BREAKS: Final[dict[Encoding, bytes]] = {
    "utf-8": b"\n",
    "latin-1": b"\n",
    "utf-16-le": b"\n\0",
    "utf-16-be": b"\0\n",
}


class Block(NamedTuple):
    """Messages from the bytes [start, stop) of a file, line breaks included.

    ``first_line`` counts from 1; ``lines``: how many line breaks the bytes have, an unfinished last line counts as one.
    ``part``: 0, or the number of the part of a long line, from 1 on; its last part has ``lines`` 1, the others 0.
    ``skipped``: NUL bytes at the beginning of [start, stop) that are in no message.
    """

    values: list[bytes]
    start: int
    stop: int
    first_line: int
    lines: int
    part: int = 0
    skipped: int = 0


class LineReader:
    """Reads one file from ``position`` on, which must be the beginning of a line (of an event, with ``starts``).

    Args:
        line: the number of the line there, from 1.
        is_blank: whether the file has nothing but NUL bytes before it.
        starts: whether a line (without its break, in UTF-8) begins an event; None: every line is one.
        block_bytes_max: bound of the values of a block, with ``record_bytes`` for each beside its value.
    """

    def __init__(
        self,
        position: int,
        line: int,
        *,
        encoding: Encoding = "utf-8",
        message_bytes_max: int,
        block_bytes_max: int,
        record_bytes: int = 24,
        starts: Callable[[bytes], bool] | None = None,
        is_blank: bool = False,
    ) -> None:
        assert message_bytes_max + record_bytes <= block_bytes_max
        self._encoding = encoding
        self._break = _BREAKS[encoding]
        self._return = self._break.replace(b"\n", b"\r")
        # A character of UTF-16 takes at most 3 bytes of UTF-8 for 2, one of Latin-1 at most 2 for 1.
        self._raw_bytes_max = max(2, message_bytes_max // 2 if encoding != "utf-8" else message_bytes_max) & ~1
        self._message_bytes_max, self._block_bytes_max = message_bytes_max, block_bytes_max
        self._record_bytes = record_bytes
        self._starts = starts
        self._position, self._line = position, line
        self._is_blank = position == 0 or is_blank
        self._held = b""  # the beginning of a line
        self._part = 0  # parts of that line that were returned
        self._event: list[bytes] = []  # lines of the event that may go on, raw, with their breaks
        self._event_bytes = 0

    @property
    def position(self) -> int:
        """The first byte that no block has had."""
        return self._position

    @property
    def line(self) -> int:
        """The number of the line that begins, or goes on, at :attr:`position`."""
        return self._line

    @property
    def held_bytes(self) -> int:
        """Bytes that were fed and are in no block yet."""
        return len(self._held) + self._event_bytes

    @property
    def awaits_event(self) -> bool:
        """Whether an event with whole lines waits for the line that ends it."""
        return bool(self._event)

    def feed(self, data: bytes) -> list[Block]:
        """Take the bytes that follow; return the messages that are complete."""
        skipped = 0
        if self._is_blank and data:
            if data[:1] == b"\0" and self._break == b"\n":
                skipped = len(data) - len(data.lstrip(b"\0"))
                data = data[skipped:]
            self._is_blank = not data
        if self._held:
            data = self._held + data
        end = self._last_break(data)
        self._held = data[end:]
        blocks: list[Block] = []
        if skipped:
            blocks.append(Block([], self._position, self._position + skipped, self._line, 0, 0, skipped))
            self._position += skipped
        if end:
            raw = data[:end] if end < len(data) else data
            if self._starts is not None:
                self._add_to_events(self._whole_lines(raw, blocks), blocks)
            elif not self._add_plain(raw, blocks):
                self._add_lines(self._whole_lines(raw, blocks), blocks)
        if self._is_long(self._held):
            self.end_event(blocks)
            self._add_parts(blocks)
        return blocks

    def end_event(self, blocks: list[Block] | None = None) -> list[Block]:
        """End the event that may go on, because nothing has followed for long."""
        blocks = [] if blocks is None else blocks
        if self._event:
            lines, self._event, self._event_bytes = self._event, [], 0
            size = sum(map(len, lines))
            value = b"\n".join(map(self._text, lines))
            blocks.append(Block([value], self._position, self._position + size, self._line, len(lines)))
            self._position += size
            self._line += len(lines)
        return blocks

    def finish(self) -> list[Block]:
        """The end of a file that does not grow any more: return everything that is left."""
        blocks: list[Block] = []
        if len(self._held) > self._raw_bytes_max:  # by a CR, behind which no LF came
            self.end_event(blocks)
            self._add_part(self._held[: self._part_bytes(self._held)], blocks)
        held, self._held = self._held, b""
        if held and self._starts is not None and self._event and not self._starts(self._text(held)):
            self._event.append(held)
            held = b""
        self.end_event(blocks)
        if held or self._part:
            self._part += 1 if self._part else 0
            stop = self._position + len(held)
            blocks.append(Block([self._text(held)], self._position, stop, self._line, 1, self._part))
            self._position, self._part = stop, 0
            self._line += 1
        return blocks

    # ---- lines

    def _add_plain(self, raw: bytes, blocks: list[Block]) -> bool:
        """Make one block of whole lines with nothing special in them: the case that must be quick."""
        if self._part or self._encoding != "utf-8" or b"\r" in raw:
            return False
        values = raw[:-1].split(b"\n")
        if len(raw) + self._record_bytes * len(values) > self._block_bytes_max:
            return False
        if len(raw) > self._raw_bytes_max and max(map(len, values)) > self._raw_bytes_max:
            return False
        stop = self._position + len(raw)
        blocks.append(Block(values, self._position, stop, self._line, len(values)))
        self._position = stop
        self._line += len(values)
        return True

    def _last_break(self, data: bytes) -> int:
        """Where the last whole line of ``data`` ends; 0: there is none."""
        end = data.rfind(self._break)
        if self._break != b"\n":
            while end > 0 and end % 2:  # a code unit begins at an even byte: these are halves of two
                end = data.rfind(self._break, 0, end + 1)
        return end + len(self._break) if end >= 0 else 0

    def _whole_lines(self, raw: bytes, blocks: list[Block]) -> list[bytes]:
        """The lines of ``raw``, with their breaks; the end of a long line goes to ``blocks``."""
        lines = raw.splitlines(keepends=True) if self._is_plain(raw) else self._split(raw)
        if self._part:  # the first one ends a line of which parts were returned
            self._add_last_part(lines.pop(0), blocks)
        return lines

    def _is_plain(self, raw: bytes) -> bool:
        """Whether CR occurs only before LF: then ``splitlines``, which is quick, finds the right lines."""
        return len(self._break) == 1 and raw.count(b"\r") == raw.count(b"\r\n")

    def _split(self, raw: bytes) -> list[bytes]:
        if len(self._break) == 1:
            return [line + b"\n" for line in raw[:-1].split(b"\n")]
        lines = []
        start = 0
        at = raw.find(self._break)
        while at >= 0:
            if at % 2:
                at = raw.find(self._break, at + 1)
                continue
            lines.append(raw[start : at + 2])
            start = at + 2
            at = raw.find(self._break, start)
        return lines

    def _text(self, line: bytes) -> bytes:
        """A line as a message: without its break, in UTF-8."""
        if self._encoding == "utf-8":
            if line.endswith(b"\n"):
                return line[:-2] if line.endswith(b"\r\n") else line[:-1]
            return line
        text = line.decode(self._encoding, "replace").encode("utf-8", "replace")
        if text.endswith(b"\n"):
            text = text[:-2] if text.endswith(b"\r\n") else text[:-1]
        return text

    def _texts(self, lines: list[bytes]) -> list[bytes]:
        """As :meth:`_text` for many lines, quickly where every line ends alike."""
        if self._encoding != "utf-8":
            return [self._text(line) for line in lines]
        joined = b"".join(lines)
        if b"\r" not in joined:
            return joined[:-1].split(b"\n")
        return [self._text(line) for line in lines]

    def _add_lines(self, lines: list[bytes], blocks: list[Block]) -> None:
        """Make each of these lines a message."""
        start = 0
        for stop in self._cuts(lines):
            group = lines[start:stop]
            if len(group) == 1 and self._is_long(group[0]):
                self._add_long_line(group[0], blocks)
            else:
                self._add_block(group, self._texts(group), len(group), blocks)
            start = stop

    def _cuts(self, lines: list[bytes]) -> Sequence[int]:
        """Where to cut so that each group is a block; a line that is too long is a group of its own."""
        factor = 1 if self._encoding == "utf-8" else 2
        whole = sum(map(len, lines)) * factor + self._record_bytes * len(lines)
        longest = max(map(len, lines), default=0)
        if whole <= self._block_bytes_max and longest <= self._raw_bytes_max:
            return [len(lines)] if lines else []
        cuts: list[int] = []
        size = first = 0
        for number, line in enumerate(lines):
            takes = len(line) * factor + self._record_bytes
            is_long = self._is_long(line)
            if number > first and (is_long or size + takes > self._block_bytes_max):
                cuts.append(number)
                size, first = 0, number
            size += takes
            if is_long:
                cuts.append(number + 1)
                size, first = 0, number + 1
        if first < len(lines):
            cuts.append(len(lines))
        return cuts

    def _add_block(self, raw: list[bytes], values: list[bytes], lines: int, blocks: list[Block]) -> None:
        stop = self._position + sum(map(len, raw))
        blocks.append(Block(values, self._position, stop, self._line, lines))
        self._position = stop
        self._line += lines

    # ---- long lines

    def _is_long(self, line: bytes) -> bool:
        """Whether a line has more than one part; its break, or a CR that may begin it, does not count."""
        size = len(line) - len(line) % len(self._break)  # without half a code unit
        if size > self._raw_bytes_max and line.endswith(self._break, 0, size):
            size -= len(self._break)
        if size > self._raw_bytes_max and line.endswith(self._return, 0, size):
            size -= len(self._return)
        return size > self._raw_bytes_max

    def _add_parts(self, blocks: list[Block]) -> None:
        """Return the beginning of a line of which no end is in sight."""
        while self._is_long(self._held):
            self._add_part(self._held[: self._part_bytes(self._held)], blocks)

    def _add_part(self, raw: bytes, blocks: list[Block]) -> None:
        self._part += 1
        stop = self._position + len(raw)
        blocks.append(Block([self._text(raw)], self._position, stop, self._line, 0, self._part))
        self._position = stop
        self._held = self._held[len(raw) :]

    def _part_bytes(self, raw: bytes) -> int:
        """How many bytes the next part of a long line takes."""
        return utf8_cut(raw, self._raw_bytes_max) if self._encoding == "utf-8" else self._raw_bytes_max

    def _add_last_part(self, line: bytes, blocks: list[Block]) -> None:
        held, self._held = self._held, line
        while self._is_long(self._held):
            self._add_part(self._held[: self._part_bytes(self._held)], blocks)
        line, self._held = self._held, held
        stop = self._position + len(line)
        blocks.append(Block([self._text(line)], self._position, stop, self._line, 1, self._part + 1))
        self._position, self._part = stop, 0
        self._line += 1

    def _add_long_line(self, line: bytes, blocks: list[Block]) -> None:
        """A whole line that is too long for one message."""
        held, self._held = self._held, line
        self._add_part(line[: self._part_bytes(line)], blocks)
        rest, self._held = self._held, held
        self._add_last_part(rest, blocks)

    # ---- events of several lines

    def _add_to_events(self, lines: list[bytes], blocks: list[Block]) -> None:
        """Group lines to events; the last one stays open."""
        assert self._starts is not None
        starts = self._starts
        raw: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for line in lines:
            long = self._is_long(line)
            event = self._event
            fits = self._event_bytes + len(line) <= self._raw_bytes_max and len(event) < EVENT_LINES_MAX
            if event and (long or not fits or starts(self._text(line))):
                value = b"\n".join(map(self._text, event))
                if size + len(value) + self._record_bytes > self._block_bytes_max:
                    self._add_block(raw, values, len(raw), blocks)
                    raw, values, size = [], [], 0
                raw += event
                values.append(value)
                size += len(value) + self._record_bytes
                self._event, self._event_bytes = [], 0
            if long:
                if raw:
                    self._add_block(raw, values, len(raw), blocks)
                    raw, values, size = [], [], 0
                self._add_long_line(line, blocks)
            else:
                self._event.append(line)
                self._event_bytes += len(line)
        if raw:
            self._add_block(raw, values, len(raw), blocks)


def utf8_cut(raw: bytes, size: int) -> int:
    """Where to cut ``raw``, which is longer, so that a part has at most ``size`` bytes and ends with a character."""
    for back in range(min(4, size)):
        if raw[size - back] & 0xC0 != 0x80:
            return size - back
    return size
