"""Writes messages to standard output: as they are, escaped for a terminal, as JSON, or by a format string.

A pipe or a file gets the bytes of the messages unchanged.  On a terminal they are escaped (:func:`.output.safe`),
unless somebody asks for them raw.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from .. import output
from .format_string import Field, headers_text

if TYPE_CHECKING:
    from ...client import Message


NO_CLOCK: Final = "--:--:--"


LOOKED_BYTES: Final = 512

RED: Final = "\x1b[31m"
YELLOW: Final = "\x1b[33m"
DIM: Final = "\x1b[2m"
PLAIN: Final = "\x1b[0m"

_NUMBER: Final = re.compile(rb'"level"\s*:\s*(\d0)\b')
_PRIORITY: Final = re.compile(rb"<(\d{1,3})>")
_WORD: Final = re.compile(
    rb"\b(?:(?P<red>emerg|emergency|alert|crit|critical|fatal|panic|severe|err|error)|(?P<yellow>warn|warning)"
    rb"|(?P<plain>notice|info|information)|(?P<dim>debug|trace|verbose))\b",
    re.IGNORECASE,
)
_BY_WORD: Final = {"red": RED, "yellow": YELLOW, "plain": "", "dim": DIM}


def colour(value: bytes) -> str:
    """The escape sequence for the level of a log line, whatever has written it; "" for none.

    Looked for, in the first :data:`LOOKED_BYTES`: the number of JSON loggers such as pino and bunyan (``"level":50``),
    syslog's priority (``<11>``), and the first word that is the name of a level.
    """
    text = value[:LOOKED_BYTES]
    priority = _PRIORITY.match(text)
    if priority:
        severity = int(priority[1]) % 8
        return RED if severity <= 3 else YELLOW if severity == 4 else DIM if severity == 7 else ""
    number = _NUMBER.search(text)
    if number:
        level = int(number[1])
        return RED if level >= 50 else YELLOW if level == 40 else "" if level == 30 else DIM
    word = _WORD.search(text)
    return _BY_WORD[word.lastgroup] if word and word.lastgroup else ""


class MessageWriter:
    """Writes messages in one form."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        form: Field | None = None,
        key_separator: str | None = None,
        headers: bool = False,
        prefix: str = "",
        raw: bool = False,
    ) -> None:
        """A line for each message, except with ``form``, which has its own line breaks.

        Args:
            form: from a format string.
            key_separator: write the key and this before the value.
            headers: write the headers before the value.
            prefix: on a terminal, write before a message its "time" or its time and partition ("partition").
            raw: never escape.
        """
        terminal = sys.stdout.isatty()
        self._raw = raw or not terminal
        self._form = form
        self._headers = headers
        self._separator = None if key_separator is None else os.fsencode(key_separator)
        self._prefix = prefix if terminal and not raw else ""
        self._coloured = bool(self._prefix) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._write = self._json if as_json else self._formatted if form else self._line

    def write(self, messages: Iterable[Message]) -> None:
        """Write messages and flush, so that written messages have left this process."""
        sys.stdout.buffer.write(b"".join(map(self._write, messages)))
        sys.stdout.buffer.flush()

    def _json(self, message: Message) -> bytes:
        from ...client.message_rows import json_row

        return output.json_text(json_row(message)).encode() + b"\n"

    def _formatted(self, message: Message) -> bytes:
        assert self._form is not None
        formatted = self._form(message)
        return formatted if self._raw else output.safe(formatted, kept="\t\n").encode()

    def _line(self, message: Message) -> bytes:
        value = message.value or b""
        if self._separator is not None and message.key is not None:
            value = message.key + self._separator + value
        if self._headers and message.headers:
            value = headers_text(message) + b" " + value
        if self._raw:
            return value + b"\n"
        text = output.safe(value, kept="\t")
        return f"{self._text_before(message)}{self._colour_value(value, text)}\n".encode()

    def _text_before(self, message: Message) -> str:
        if not self._prefix:
            return ""
        before = f"{_clock(message.timestamp)} "
        if self._prefix == "partition":
            before += f"{message.topic}-{message.partition} "
        return f"{DIM}{before}{PLAIN}" if self._coloured else before

    def _colour_value(self, value: bytes, text: str) -> str:
        begin = colour(value) if self._coloured else ""
        return f"{begin}{text}{PLAIN}" if begin else text


def _clock(timestamp: int) -> str:
    """The time of day; dashes for a message without a time, and for one that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(timestamp / 1000):%H:%M:%S}" if timestamp >= 0 else NO_CLOCK
    except (ValueError, OverflowError, OSError):  # microseconds where milliseconds belong: the year 50,000
        return NO_CLOCK
