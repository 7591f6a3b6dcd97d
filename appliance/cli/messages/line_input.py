"""Reads lines, and makes messages of them: the value, after a key, or an object of JSON as ``consume --json`` prints.

A line ends with LF or with CR LF; neither is in the message.

An object has ``value`` and, if wanted, ``key``, ``headers`` (a list of ``{name, value}``, or an object), ``timestamp``
(ms since 1970; -1, which stands for none, becomes the time of sending) and ``partition``.  ``value_base64`` and
``key_base64`` stand for bytes that are no text.  Other fields, such as ``topic`` and ``offset``, are ignored, so that
what one command prints can be sent by another.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, BinaryIO, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta
from typer import BadParameter

from ...errors import InvalidRequest, MessageTooLarge
from ...records.batch import HEADER_BYTES
from .. import output
from .format_string import line_pieces

LineHeaders = tuple[tuple[str, bytes | None], ...]
SHOWN_BYTES = 60
NO_TIME = -1
READ_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 64 << 20
"""Longest line that is read where the size of its message is not known before: with a codec, and as an object."""
RECORD_BYTES: Final = 24
"""At most what the lengths and numbers of a record or a header take, as the producer reckons."""
Treatment = Literal["refuse", "skip", "cut", "split"]


class LineMessage(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: LineHeaders = ()
    timestamp: int | None = None
    partition: int | None = None


class _HeaderObject(msgspec.Struct):
    name: str
    value: str | None = None
    value_base64: str | None = None


class _MessageObject(msgspec.Struct):
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: list[_HeaderObject] | dict[str, str | None] = []
    timestamp: Annotated[int, Meta(ge=NO_TIME, le=2**63 - 1)] | None = None
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class LongLines:
    """What becomes of lines that are longer than a message may be, and how many there were.

    Each is told on standard error; when there are many, the second, fourth, eighth...

    Args:
        treatment: *refuse* ends the reading, *skip* leaves the line out, *cut* leaves its end out, and *split* makes
            several messages of it.  Neither breaks a character of UTF-8.
        message_bytes_max: max.message.bytes of the topic.
        details_bytes: what a message takes beside its line, at most.

    Raises:
        MessageTooLarge: there is no room for any line.
    """

    def __init__(self, treatment: Treatment, message_bytes_max: int, details_bytes: int) -> None:
        room = message_bytes_max - details_bytes
        if room < 1:
            raise MessageTooLarge(f"max.message.bytes is {message_bytes_max}: key and headers leave no room for a line")
        self.treatment = treatment
        self.message_bytes_max = message_bytes_max
        self.bytes_max = room + RECORD_BYTES if treatment == "refuse" else room
        """Of a line.  Only what has no room for sure is refused here, and only what has room for sure is sent."""
        self.count = 0
        self.left_out_bytes = 0

    def add(self, name: str, number: int, size: int, left_out_bytes: int) -> None:
        self.count += 1
        self.left_out_bytes += left_out_bytes
        if self.count & (self.count - 1) == 0:
            done = {"skip": "skipped", "cut": "cut", "split": "split"}[self.treatment]
            many = f" ({self.count:,} long lines so far)" if self.count > 1 else ""
            limit = f"max.message.bytes is {self.message_bytes_max:,}"
            output.remark(f"{name}: line {number:,}: {size:,} bytes: {done}, {limit}{many}")

    def refused(self, name: str, number: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"{name}: line {number:,} has more than {self.bytes_max:,} bytes; max.message.bytes of the topic is "
            f"{self.message_bytes_max:,}: `--long-lines skip`, cut or split goes on behind it"
        )


class LongLineReader:
    """Yields lists of lines, without line breaks, as soon as they can be read.  Holds one line and one piece at most.

    Raises:
        MessageTooLarge: a long line, if these are refused; the lines before it have been yielded.
    """

    def __init__(self, file: BinaryIO, name: str, long_lines: LongLines) -> None:
        self._read = getattr(file, "read1", file.read)
        self._name = name
        self._long = long_lines
        self._number = 0  # of lines that have ended
        self._rest = b""
        # Of a long line whose end has not been read: how many bytes are gone from ``_rest``, and what --long-lines cut
        # keeps.
        self._gone_bytes = 0
        self._head = b""

    def __iter__(self) -> Iterator[list[bytes]]:
        while piece := self._read(READ_BYTES):
            has_returns = b"\r" in piece or self._rest.endswith(b"\r")
            *lines, self._rest = (self._rest + piece).split(b"\n")
            if has_returns:
                lines = [line.removesuffix(b"\r") for line in lines]
            if self._gone_bytes or max(map(len, lines), default=0) > self._long.bytes_max:
                for line in lines:
                    self._number += 1
                    if parts := self._parts(line):
                        yield parts
            elif lines:
                self._number += len(lines)
                yield lines
            if len(self._rest) > self._long.bytes_max + 1:  # the last byte may be the CR of a line break
                yield from self._shorten()
        if self._rest or self._gone_bytes:
            self._number += 1
            if parts := self._parts(self._rest):
                yield parts

    def _parts(self, line: bytes) -> list[bytes]:
        """The values of a line whose end has been read, but for what is gone already."""
        long_lines, bytes_max = self._long, self._long.bytes_max
        gone_bytes, head = self._gone_bytes, self._head
        self._gone_bytes, self._head = 0, b""
        size = gone_bytes + len(line)
        if size <= bytes_max:
            return [line]
        if long_lines.treatment == "refuse":
            raise long_lines.refused(self._name, self._number)
        if long_lines.treatment == "split":
            long_lines.add(self._name, self._number, size, 0)
            parts = []
            while line:
                stop = _fitting(line, bytes_max)
                parts.append(line[:stop])
                line = line[stop:]
            return parts
        if long_lines.treatment == "cut":
            head = head or line[: _fitting(line, bytes_max)]
        long_lines.add(self._name, self._number, size, size - len(head))
        return [head] if long_lines.treatment == "cut" else []

    def _shorten(self) -> Iterator[list[bytes]]:
        """Keep of a long line whose end has not been read only what is needed later."""
        rest, bytes_max = self._rest, self._long.bytes_max
        match self._long.treatment:
            case "refuse":
                raise self._long.refused(self._name, self._number + 1)
            case "split":
                parts = []
                while len(rest) > bytes_max + 1:
                    stop = _fitting(rest, bytes_max)
                    parts.append(rest[:stop])
                    rest = rest[stop:]
                yield parts
            case "cut":
                self._head = self._head or rest[: _fitting(rest, bytes_max)]
                rest = _end_of_line(rest)
            case "skip":
                rest = _end_of_line(rest)
        self._gone_bytes += len(self._rest) - len(rest)
        self._rest = rest


def details_bytes(key: bytes | None, headers: LineHeaders) -> int:
    """What a message takes in a batch of its own beside its value, at most: every length a byte or two too long."""
    key_bytes = 0 if key is None else len(key)
    return (
        HEADER_BYTES
        + RECORD_BYTES
        + key_bytes
        + sum(RECORD_BYTES + 4 * len(name) + (0 if value is None else len(value)) for name, value in headers)
    )


def _end_of_line(rest: bytes) -> bytes:
    """The last byte, if it may be the CR of a line break, which is no byte of the line."""
    return b"\r" if rest.endswith(b"\r") else b""


def _fitting(line: bytes, bytes_max: int) -> int:
    """How many bytes of ``line`` to take: at most ``bytes_max``, and fewer to leave a character of UTF-8 whole."""
    for stop in range(bytes_max, max(0, bytes_max - 4), -1):
        if stop >= len(line) or line[stop] & 0xC0 != 0x80:
            return min(stop, len(line))
    return bytes_max


_DECODER = msgspec.json.Decoder(_MessageObject)


def parse_headers(texts: Sequence[str]) -> LineHeaders:
    """``NAME=VALUE`` each.

    Raises:
        BadParameter: without ``=``.
    """
    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadParameter(f"--header {text}: must be NAME=VALUE, such as source=web-1")
        try:
            name.encode()
        except UnicodeEncodeError:  # a value may have such bytes
            raise BadParameter(f"--header {output.safe(os.fsencode(text))}: the name is not UTF-8") from None
        headers.append((name, os.fsencode(value)))
    return tuple(headers)


def make_parse(
    form: str, key: str | None, separator: str | None, headers: LineHeaders, template: str | None = None
) -> Callable[[bytes], LineMessage] | None:
    """What makes a message of a line; None when each line is a value and nothing else.

    Args:
        form: "lines", "json" or "file".
        key: of all messages that have no other.
        separator: what stands before it in a line is the key; not for JSON.
        headers: of all messages, before their own.
        template: what a line looks like, as :func:`line_pieces` reads it; not for JSON.

    Raises:
        BadParameter: the template is wrong.
    """
    general = None if key is None else os.fsencode(key)
    if form == "json":
        return lambda line: _message_of_object(line, general, headers)
    if template is not None:
        pieces = line_pieces(template)
        return lambda line: _message_of_template(line, pieces, general, headers)
    if separator is not None:
        between = os.fsencode(separator)
        return lambda line: _message_of_line(line, between, general, headers)
    if general is not None or headers:
        return lambda line: LineMessage(line, general, headers)
    return None


def _message_of_line(line: bytes, separator: bytes, general: bytes | None, headers: LineHeaders) -> LineMessage:
    key, separated, value = line.partition(separator)
    return LineMessage(value, key, headers) if separated else LineMessage(line, general, headers)


def _message_of_template(
    line: bytes, pieces: Sequence[bytes | str], general: bytes | None, headers: LineHeaders
) -> LineMessage:
    """Raises InvalidRequest: the line does not look like that."""
    values: dict[str, bytes] = {}
    at = 0
    for number, piece in enumerate(pieces):
        if isinstance(piece, bytes):
            at += len(piece)
            if line[at - len(piece) : at] != piece:
                raise _unlike(line)
            continue
        following = pieces[number + 1] if number + 1 < len(pieces) else b""
        assert isinstance(following, bytes)
        stop = line.find(following, at) if following else len(line)
        if stop < 0:
            raise _unlike(line)
        values[piece], at = line[at:stop], stop
    if at < len(line):
        raise _unlike(line)
    try:
        timestamp, partition = (int(values[field]) if field in values else None for field in ("T", "p"))
        own = _headers_of(values.get("h", b""))
    except ValueError:
        raise _unlike(line) from None
    if (partition or 0) < 0 or (timestamp or 0) < NO_TIME:
        raise _unlike(line)
    key = values["k"] or None if "k" in values else general  # a message without a key is printed as an empty one
    return LineMessage(values.get("s"), key, headers + own, None if timestamp == NO_TIME else timestamp, partition)


def _headers_of(text: bytes) -> LineHeaders:
    """Headers as ``tail --format %h`` prints them.  Raises ValueError."""
    headers = []
    for part in text.split(b",") if text else ():
        name, equals, value = part.partition(b"=")
        if not equals or not name:
            raise ValueError(part)
        headers.append((name.decode(), None if value == b"NULL" else value))
    return tuple(headers)


def _unlike(line: bytes) -> InvalidRequest:
    shown = line[:SHOWN_BYTES].decode(errors="backslashreplace")
    return InvalidRequest(f"a line does not look like --format says: {shown!r}")


def _message_of_object(line: bytes, general: bytes | None, headers: LineHeaders) -> LineMessage:
    """Raises InvalidRequest: the line is no such object."""
    try:
        message = _DECODER.decode(line)
        value = _bytes(message.value, message.value_base64)
        key = _bytes(message.key, message.key_base64)
        own = _own_headers(message.headers)
    except (ValueError, RecursionError) as error:  # msgspec's errors and those of base64 are ValueErrors
        shown = line[:SHOWN_BYTES].decode(errors="backslashreplace")
        raise InvalidRequest(f"no message as `consume --json` prints: {error}: {shown!r}") from None
    timestamp = None if message.timestamp == NO_TIME else message.timestamp
    return LineMessage(value, general if key is None else key, headers + own, timestamp, message.partition)


def _own_headers(fields: Any) -> LineHeaders:
    if isinstance(fields, dict):
        return tuple((name, None if value is None else value.encode()) for name, value in fields.items())
    return tuple((header.name, _bytes(header.value, header.value_base64)) for header in fields)


def _bytes(text: str | None, base64: str | None) -> bytes | None:
    if base64 is not None:
        return b64decode(base64, validate=True)
    return None if text is None else text.encode()
