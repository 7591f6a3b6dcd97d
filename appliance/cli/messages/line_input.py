"""Makes messages of lines: the value, after a key, or an object of JSON as ``consume --json`` prints.

An object has ``value`` and, if wanted, ``key``, ``headers`` (a list of ``{name, value}``, or an object), ``timestamp``
(ms since 1970) and ``partition``.  ``value_base64`` and ``key_base64`` stand for bytes that are no text.  Other fields,
such as ``topic`` and ``offset``, are ignored, so that what one command prints can be sent by another.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from typer import BadParameter

from ...errors import InvalidRequest

Headers = tuple[tuple[str, bytes | None], ...]
SHOWN_BYTES = 60


class Outgoing(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
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
    timestamp: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


_DECODER = msgspec.json.Decoder(_MessageObject)


def parse_headers(given: Sequence[str]) -> Headers:
    """``NAME=VALUE`` each.

    Raises:
        BadParameter: without ``=``.
    """
    headers = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadParameter(f"--header {text}: must be NAME=VALUE, such as source=web-1")
        headers.append((name, value.encode()))
    return tuple(headers)


def make_parse(
    form: str, key: str | None, separator: str | None, headers: Headers
) -> Callable[[bytes], Outgoing] | None:
    """What makes a message of a line; None when each line is a value and nothing else.

    Args:
        form: "lines" or "json".
        key: of all messages that have no other.
        separator: what stands before it in a line is the key; not for JSON.
        headers: of all messages, before their own.
    """
    general = None if key is None else key.encode()
    if form == "json":
        return lambda line: _of_object(line, general, headers)
    if separator is not None:
        between = separator.encode()
        return lambda line: _of_line(line, between, general, headers)
    if general is not None or headers:
        return lambda line: Outgoing(line, general, headers)
    return None


def _of_line(line: bytes, separator: bytes, general: bytes | None, headers: Headers) -> Outgoing:
    key, found, value = line.partition(separator)
    return Outgoing(value, key, headers) if found else Outgoing(line, general, headers)


def _of_object(line: bytes, general: bytes | None, headers: Headers) -> Outgoing:
    """Raises InvalidRequest: the line is no such object."""
    try:
        found = _DECODER.decode(line)
        value = _bytes(found.value, found.value_base64)
        key = _bytes(found.key, found.key_base64)
        own = _own_headers(found.headers)
    except (ValueError, RecursionError) as error:  # msgspec's errors and those of base64 are ValueErrors
        shown = line[:SHOWN_BYTES].decode(errors="backslashreplace")
        raise InvalidRequest(f"no message as `consume --json` prints: {error}: {shown!r}") from None
    return Outgoing(value, general if key is None else key, headers + own, found.timestamp, found.partition)


def _own_headers(given: Any) -> Headers:
    if isinstance(given, dict):
        return tuple((name, None if value is None else value.encode()) for name, value in given.items())
    return tuple((header.name, _bytes(header.value, header.value_base64)) for header in given)


def _bytes(text: str | None, base64: str | None) -> bytes | None:
    if base64 is not None:
        return b64decode(base64, validate=True)
    return None if text is None else text.encode()
