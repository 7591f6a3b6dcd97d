"""Settings by pattern: the tables ``[topics."web-*"]`` of the configuration.

A pattern gives defaults to the topics whose names match it, present and future ones: over those of ``[topics]``, under
what a topic sets itself.  ``*`` stands for any number of characters, also none.  If several match, each key has its
value from the pattern with the most characters besides ``*``, and of equally long ones from the last by the alphabet.
``partitions`` counts when a topic is made.

In dotted names a pattern stands in quotes: ``topics."web-*".retention.ms``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from .config_keys import Key, Scalar, nearest
from .errors import BadValue, UnknownKey
from .names import TOPIC_CHARACTERS_MAX

TABLE: Final = "topics"
PARTITIONS: Final = "partitions"
EXAMPLE: Final = 'topics."web-*".retention.ms'
TopicPatterns = dict[str, dict[str, Scalar]]
"""By pattern: the values of keys, by the names that they have in ``[topics]``."""

_NAME = re.compile(rf'{TABLE}\."([^"]*)"\.(.+)', re.DOTALL)
_PATTERN = re.compile(r"[A-Za-z0-9._*-]+")


class PatternValue(NamedTuple):
    """A value that a table of a pattern gives a key; ``where``: its place, for messages."""

    pattern: str
    key: str
    value: object
    where: str


def split_name(name: str) -> tuple[str, str] | None:
    """The pattern and the key of a dotted name; None for any other name."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2]) if match else None


def full_name(pattern: str, key: str) -> str:
    return f'{TABLE}."{pattern}".{key}'


def parse_patterns(
    values: Iterable[PatternValue], keys: Mapping[str, Key]
) -> tuple[TopicPatterns, list[UnknownKey | BadValue]]:
    """The patterns, and what is wrong with them; ``keys``: those that a pattern can set."""
    patterns: TopicPatterns = {}
    faults: list[UnknownKey | BadValue] = []
    for pattern, name, value, where in values:
        full = full_name(pattern, name)
        if fault := _fault_of(pattern):
            faults.append(BadValue(f'{where}[{TABLE}."{pattern}"]: {fault}'))
        elif name not in keys:
            faults.append(UnknownKey(f"{where}unknown key {full!r}: a pattern has none such{nearest(name, keys)}"))
        else:
            try:
                patterns.setdefault(pattern, {})[name] = keys[name].parse(value)
            except ValueError as error:
                faults.append(BadValue(f"{where}{full} = {value!r}: {error}"))
    return patterns, faults


def _fault_of(pattern: str) -> str:
    if not _PATTERN.fullmatch(pattern):
        return "a pattern has letters, digits, '.', '_', '-', and '*' for any number of them"
    if len(pattern) > TOPIC_CHARACTERS_MAX:
        return f"no topic has a name of more than {TOPIC_CHARACTERS_MAX} characters"
    if "*" not in pattern:
        return f"a pattern has a '*'; one topic is set by `appliance topics create {pattern} --setting NAME=VALUE`"
    return ""


@lru_cache(1000)
def _matcher(pattern: str) -> Callable[[str], object]:
    """Whether a name matches; in time linear in both, since each part between stars is looked for once."""
    first, *middle, last = pattern.split("*")

    def matches(name: str) -> bool:
        if not (name.startswith(first) and name.endswith(last) and len(name) >= len(first) + len(last)):
            return False
        at, end = len(first), len(name) - len(last)
        for part in middle:
            place = name.find(part, at, end)
            if place < 0:
                return False
            at = place + len(part)
        return True

    return matches


def values_for(patterns: TopicPatterns, topic: str) -> dict[str, tuple[Scalar, str]]:
    """What the patterns give a topic: by the name of the key its value, and the pattern that it comes from."""
    if not patterns:
        return {}
    values: dict[str, tuple[Scalar, str]] = {}
    for pattern in sorted(patterns, key=lambda pattern: (len(pattern) - pattern.count("*"), pattern)):
        if _matcher(pattern)(topic):
            values.update({key: (value, pattern) for key, value in patterns[pattern].items()})
    return values


def flat_patterns(patterns: TopicPatterns) -> dict[str, Scalar]:
    """Every key of every pattern by its dotted name, with its value."""
    return {full_name(pattern, key): value for pattern, values in patterns.items() for key, value in values.items()}
