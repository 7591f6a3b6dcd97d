"""Chooses messages by their values: ``--grep`` and ``--field``.

A filter looks at all values of a batch at once.  ``--grep`` costs one search per value.  ``--field`` decodes only
values that have the field's name and the wanted text somewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from typer import BadParameter

Test = Callable[[bytes], object]
_LOGFMT: Final = re.compile(rb'(?:^|\s)([^\s="]+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))')
_ESCAPED: Final = re.compile(rb"\\(.)")
_MISSING: Final = object()


def make_select(
    pattern: str | None, fields: Sequence[str], *, ignore_case: bool
) -> Callable[[Sequence[bytes | None]], list[int]] | None:
    """What chooses the values of a batch; None when every message is wanted.

    Args:
        pattern: a regular expression that is found in the value.
        fields: ``name=text``; a value needs all of them.

    Raises:
        BadParameter: no regular expression, or no ``=``.
    """
    tests = [_field_test(each) for each in fields]
    if pattern is not None:
        try:
            compiled = re.compile(os.fsencode(pattern), re.IGNORECASE if ignore_case else 0)
        except re.error as error:
            raise BadParameter(f"--grep {pattern!r}: no regular expression: {error}") from None
        tests.insert(0, compiled.search)
    if not tests:
        return None
    first, rest = tests[0], tests[1:]
    if not rest:
        return lambda values: [index for index, value in enumerate(values) if value is not None and first(value)]
    return lambda values: [
        index for index, value in enumerate(values) if value is not None and all(test(value) for test in tests)
    ]


def _field_test(text: str) -> Test:
    name, equals, wanted = text.partition("=")
    if not name or not equals:
        raise BadParameter(f"--field {text}: must be NAME=TEXT, such as status=500 or http.method=GET")
    key, path = os.fsencode(name), name.split(".")
    last = os.fsencode(path[-1])

    def test(value: bytes) -> bool:
        if last not in value:
            return False
        if value.lstrip()[:1] == b"{":
            return _json_field(value, name, path) == wanted
        return any(found[0] == key and _logfmt_value(found) == wanted for found in _LOGFMT.findall(value))

    return test


def _json_field(value: bytes, name: str, path: list[str]) -> str | None:
    try:
        found: Any = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(found, dict) and name in found:  # a name may have points, as in Elastic's
        return _text(found[name])
    for step in path:
        found = found.get(step, _MISSING) if isinstance(found, dict) else _MISSING
    return None if found is _MISSING else _text(found)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _logfmt_value(found: tuple[bytes, bytes, bytes]) -> str:
    _, quoted, plain = found
    return os.fsdecode(_ESCAPED.sub(rb"\1", quoted) or plain)
