"""Formats messages by a format string, as kcat's ``-f``.

A format string has text, escapes (``\\n \\r \\t \\\\ \\xXX``) and these fields::

    %s  value            %S  its length in bytes, -1 for none      %R  its length as 4 bytes, big-endian
    %k  key              %K  its length in bytes, -1 for none
    %t  topic            %p  partition                             %o  offset
    %T  timestamp, ms    %h  headers, NAME=VALUE with commas       %%  a percent sign
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from typer import BadParameter

if TYPE_CHECKING:
    from ...client import Message

Field = Callable[["Message"], bytes]


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def headers_text(message: Message) -> bytes:
    """Headers as ``NAME=VALUE,NAME=VALUE``; a header without a value is its name and ``=NULL``, as in kcat."""
    pairs = (name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in message.headers)
    return b",".join(pairs)


FIELDS: Final[dict[str, Field]] = {
    "s": lambda message: message.value or b"",
    "S": lambda message: b"%d" % _length(message.value),
    "R": lambda message: _length(message.value).to_bytes(4, "big", signed=True),
    "k": lambda message: message.key or b"",
    "K": lambda message: b"%d" % _length(message.key),
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "T": lambda message: b"%d" % message.timestamp,
    "h": headers_text,
    "%": lambda message: b"%",
}
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_PIECE: Final = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|([^%\\]+)", re.DOTALL)


def parse_format(text: str) -> Field:
    """A function that formats a message.

    Raises:
        BadParameter: an unknown field or escape.
    """
    pieces: list[bytes | Field] = []
    for field, number, escape, plain in _PIECE.findall(text):
        if plain:
            pieces.append(os.fsencode(plain))
        elif number:
            pieces.append(bytes([int(number, 16)]))
        elif field in FIELDS:
            pieces.append(FIELDS[field])
        elif escape in _ESCAPES:
            pieces.append(_ESCAPES[escape])
        else:
            wrong = f"\\{escape}" if escape else f"%{field}"
            raise BadParameter(f"--format {text!r}: {wrong!r}: give %{' %'.join(FIELDS)} or \\n \\r \\t \\xXX")
    return lambda message: b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces)


LINE_FIELDS: Final = "skhTp"


def line_pieces(text: str) -> list[bytes | str]:
    """What a line looks like that a message is made of: text, and letters of fields, which take turns.

    The fields are ``%s %k %h %T %p`` with the meaning that they have for printed messages, each at most once.  A field
    ends where the text behind it begins for the first time, the last one at the end of the line, whose break may stand
    at the end of ``text``, as it does for printed messages.

    Raises:
        BadParameter: another field, one twice, two without text in between, or an unknown escape.
    """
    pieces: list[bytes | str] = []
    for field, number, escape, plain in _PIECE.findall(text.removesuffix("\\n")):
        if plain or number or field == "%" or escape:
            if escape and escape not in _ESCAPES:
                raise BadParameter(f"--format: unknown escape \\{escape}")
            piece = bytes([int(number, 16)]) if number else _ESCAPES[escape] if escape else os.fsencode(plain or "%")
            if pieces and isinstance(pieces[-1], bytes):
                pieces[-1] += piece
            else:
                pieces.append(piece)
        elif not field or field not in LINE_FIELDS:
            raise BadParameter(f"--format: %{field} is no field of a line; these are: %{' %'.join(LINE_FIELDS)}")
        elif field in pieces or (pieces and isinstance(pieces[-1], str)):
            raise BadParameter(f"--format: where does %{field} begin? Give text before it, and give it once")
        else:
            pieces.append(field)
    if not any(isinstance(piece, str) for piece in pieces):
        raise BadParameter("--format: has no field, such as %s")
    return pieces
