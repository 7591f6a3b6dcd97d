"""Values that nobody expects in a field or an argument: numbers that are none, and texts that harm who shows them."""

from __future__ import annotations

import json
import os
from typing import Any, Final

TEXTS: Final = {
    "a pair without a name": "=",
    "empty": "",
    "more than 64 bits": "9" * 400,
    "more than Python reads": "9" * 5000,
    "the largest of 64 bits": str(2**63 - 1),
    "less than nothing": "-1",
    "no number": "nan",
    "infinite": "inf",
    "an escape": "\x1b[31m",
    "a line break": "first\r\nrefused: who=User:nobody",
    "right to left": "a\u202eb\u2066c",
    "markup": "<img src=x onerror=document.title='broken'></script>&lt;",
    "quotes": "\"'`$(echo broken)\\",
    "a pattern": "*",
    "a path": "../../etc/passwd",
    "very long": "x" * 100_000,
    "other digits": "٣",
    "a name of a host that is none": "a..b:1",
}
ARGUMENTS: Final = {**TEXTS, "no UTF-8": os.fsdecode(b"\xdf"), "no UTF-8 behind =": os.fsdecode(b"a=\xdf")}
"""Those of a command line: no argument has a NUL."""
QUERIES: Final = {
    **TEXTS,
    "no UTF-8": b"\xdf",
    "half of a pair of UTF-16": b"\xed\xa0\x80",
    "NUL": "\0",
}
"""Those of an address."""
JSON_VALUES: Final[dict[str, Any]] = {
    **{name: json.dumps(text) for name, text in TEXTS.items()},
    "NUL": r'"\u0000"',
    "half of a pair of UTF-16": r'"\ud800"',
    "null": "null",
    "true": "true",
    "-1": "-1",
    "0": "0",
    "more than 64 bits": "9" * 400,
    "a small number": "1e-400",
    "a large number": "1e400",
    "a list": "[]",
    "a list of lists": "[[[]]]",
    "an object": "{}",
    "deep": "[" * 500 + "]" * 500,
    "not closed": '"',
}
"""Those of a field of JSON, as they stand there."""
