"""Chooses messages by their values: by a regular expression, and by fields of JSON or ``key=value`` text.

A filter looks at all values of a batch at once.  An expression costs one search per value.  A field decodes only values
that have its name somewhere.  The expression comes as a function: programs of a person compile it with ``re``, a server
with RE2, which no text makes slow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

Test = Callable[[bytes], object]
_LOGFMT: Final = re.compile(rb'(?:^|\s)([^\s="]+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))')
_ESCAPED: Final = re.compile(rb"\\(.)")
_MISSING: Final = object()


def make_select(search: Test | None, fields: Sequence[str]) -> Callable[[Sequence[bytes | None]], list[int]] | None:
    """What chooses the values of a batch; None when every message is wanted.

    Args:
        search: whether something is found in the value.
        fields: ``name=text``; a value needs all of them.

    Raises:
        ValueError: a field without a name or a ``=``.
    """
    tests = [_field_test(field) for field in fields]
    if search is not None:
        tests.insert(0, search)
    if not tests:
        return None
    first, rest = tests[0], tests[1:]
    if not rest:
        return lambda values: [index for index, value in enumerate(values) if value is not None and first(value)]
    return lambda values: [
        index for index, value in enumerate(values) if value is not None and all(test(value) for test in tests)
    ]


def _field_test(text: str) -> Test:
    name, equals, expected = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text}: must be NAME=TEXT, such as status=500 or http.method=GET")
    key, path = os.fsencode(name), name.split(".")
    last = os.fsencode(path[-1])

    def test(value: bytes) -> bool:
        if last not in value:
            return False
        if value.lstrip()[:1] == b"{":
            return _json_field(value, name, path) == expected
        return any(pair[0] == key and _logfmt_value(pair) == expected for pair in _LOGFMT.findall(value))

    return test


def _json_field(value: bytes, name: str, path: list[str]) -> str | None:
    try:
        node: Any = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(node, dict) and name in node:  # a name may have points, as in Elastic's
        return _text(node[name])
    for step in path:
        node = node.get(step, _MISSING) if isinstance(node, dict) else _MISSING
    return None if node is _MISSING else _text(node)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _logfmt_value(pair: tuple[bytes, bytes, bytes]) -> str:
    _, quoted, plain = pair
    return os.fsdecode(_ESCAPED.sub(rb"\1", quoted) or plain)
