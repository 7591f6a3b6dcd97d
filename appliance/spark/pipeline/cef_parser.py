r"""Parses ArcSight's Common Event Format, which firewalls and intrusion detection send, alone or behind a syslog head::

    <13>Nov 20 10:00:00 fw CEF:0|Vendor|Product|1.0|100|Worm stopped|10|src=10.0.0.1 msg=a value with blanks

In the seven fields of the head ``\|`` and ``\\`` are escaped, in the values of the extension ``\=``, ``\\``, ``\n`` and
``\r``.  A value ends where a blank, a key and ``=`` follow.  (Micro Focus, *Implementing ArcSight Common Event Format*,
version 26.)

The time is the extension's ``rt``, else ``end`` or ``start``, else that of the syslog head; the host is ``dvchost`` or
``dvc``, else that of the head; the message is ``msg``, else the name of the event; the service is the product.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from .columns import MAP, Faults, Parsed, as_mask
from .regex_parser import extract_groups
from .times import Times

EXTENSION: Final = "extension"
TIME_FORMATS: Final = ("rfc3164", "iso", "epoch", "%b %d %Y %H:%M:%S.%f", "%b %d %Y %H:%M:%S")
_HEAD_FIELDS: Final = ("vendor", "product", "product_version", "signature", "name", "severity")
_CEF: Final = (
    r"^(?:(?:<\d{1,3}>)?(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (?P<host>\S+) )?CEF: ?\d+\|"
    + "".join(rf"(?P<{name}>(?:[^|\\]|\\.)*)\|" for name in _HEAD_FIELDS)
    + rf"(?P<{EXTENSION}>(?s:.*))$"
)
_KEY: Final = re.compile(r"(?:^|(?<= ))([A-Za-z0-9_.\[\]-]{1,100})=")
_ESCAPED: Final = re.compile(r"\\([\\|=nr])")
_MEANT: Final = {"n": "\n", "r": "\r"}
_TIME_KEYS: Final = ("rt", "end", "start")
_SEVERITIES: Final = {
    **{str(number): "info" for number in range(4)},
    **{str(number): "warning" for number in range(4, 7)},
    **{str(number): "error" for number in range(7, 9)},
    **{str(number): "crit" for number in range(9, 11)},
    **{"low": "info", "medium": "warning", "high": "error", "very-high": "crit"},
}
"""Its numbers and words as levels; another one, such as "Unknown", is no level."""


@dataclass
class Cef:
    """The parser; ``extension`` maps the keys of a line's extension to their values, the last of those with one key."""

    times: Times
    name: str = "cef"
    fields: Mapping[str, pa.DataType] = field(
        default_factory=lambda: {
            **dict.fromkeys(("vendor", "product", "product_version", "signature", "severity"), pa.string()),
            EXTENSION: MAP,
        }
    )

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        matched, head = extract_groups(lines, _CEF)
        if not matched.true_count:
            return Parsed(matched, {})
        hit = as_mask(matched)
        texts = [text if is_cef else None for text, is_cef in zip(head.pop(EXTENSION).to_pylist(), hit, strict=True)]
        pairs = [None if text is None else _pairs(text) for text in texts]
        columns = {name: _unescaped(head[name]) for name in _HEAD_FIELDS}
        faults = Faults(self.name, len(lines))
        severity = columns["severity"]
        return faults.parsed(
            hit,
            {
                **{name: columns[name] for name in ("vendor", "product", "product_version", "signature")},
                "severity": severity,
                "time": self._time(pairs, head["time"], received, faults),
                "host": pc.coalesce(_column(pairs, ("dvchost", "dvc")), _given(head["host"])),
                "service": columns["product"],
                "level": _mapped(severity, lambda text: _SEVERITIES.get(text.lower())),
                "message": pc.coalesce(_column(pairs, ("msg",)), columns["name"]),
                EXTENSION: pa.array(
                    [None if extension is None else list(extension.items()) for extension in pairs], MAP
                ),
            },
        )

    def _time(
        self, pairs: Sequence[Mapping[str, str] | None], of_head: pa.Array, received: datetime, faults: Faults
    ) -> pa.Array:
        told = [*(_column(pairs, (key,)) for key in _TIME_KEYS), _given(of_head)]
        column = pc.coalesce(*(self.times.parse(texts, received) for texts in told))
        wrong = pc.and_(pc.is_null(column), pc.is_valid(pc.coalesce(*told)))
        faults.add("time is not a time", as_mask(wrong), dead=False)
        return column


def _pairs(extension: str) -> dict[str, str]:
    """The keys and values of an extension."""
    keys = list(_KEY.finditer(extension))
    ends = [*(key.start() for key in keys[1:]), len(extension)]
    return {key[1]: _meant(extension[key.end() : end].strip()) for key, end in zip(keys, ends, strict=False)}


def _meant(text: str) -> str:
    return _ESCAPED.sub(lambda escape: _MEANT.get(escape[1], escape[1]), text) if "\\" in text else text


def _column(pairs: Sequence[Mapping[str, str] | None], keys: Sequence[str]) -> pa.Array:
    """The first of these keys that a line has."""
    return pa.array(
        [next((line[key] for key in keys if line.get(key)), None) if line else None for line in pairs], pa.string()
    )


def _given(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), None, texts)


def _unescaped(texts: pa.Array) -> pa.Array:
    texts = _given(texts)
    return _mapped(texts, _meant) if pc.any(pc.match_substring(texts, "\\")).as_py() else texts


def _mapped(texts: pa.Array, convert: Callable[[str], str | None]) -> pa.Array:
    """Converts each different text once."""
    encoded = texts.dictionary_encode()
    return pa.array([convert(text) for text in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)
