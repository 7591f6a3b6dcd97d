"""Finds the level of a log line, whatever has written it, to colour it.

Looked for, in the first :data:`LOOKED_BYTES`: the number of JSON loggers such as pino and bunyan (``"level":50``),
syslog's priority (``<11>``), and the first word that is the name of a level.
"""

from __future__ import annotations

import re
from typing import Final

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
    """The escape sequence that begins the level's colour; "" for none."""
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
