"""Rules for topics in one text: ``PATTERN: WHAT; PATTERN: WHAT``, where ``*`` stands for any number of characters."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from .errors import BadValue

RULES_MAX: Final = 100
MSGPACK: Final = "msgpack"
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]{1,249}")


class TopicRule(NamedTuple):
    pattern: re.Pattern[str]
    what: str


def topics_pattern(text: str) -> re.Pattern[str]:
    """What fits the names that a text with ``*`` stands for.

    What a ``*`` has passed over is not tried again (``(?>``), so that no pattern takes long.
    """
    first, *pieces = map(re.escape, text.split("*"))
    if not pieces:
        return re.compile(first)
    *middle, last = pieces
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + ".*" + last)


def parse_rules(text: str, example: str) -> list[TopicRule]:
    """The rules in their order.

    Args:
        example: a rule, for the message of an error.

    Raises:
        BadValue: says what is wrong.
    """
    rules = []
    for rule in filter(None, map(str.strip, text.split(";"))):
        pattern, colon, what = (part.strip() for part in rule.partition(":"))
        if not (colon and what and _PATTERN.fullmatch(pattern)):
            raise BadValue(f"{rule!r:.100}: must be TOPICS: and what holds for them, such as {example}")
        rules.append(TopicRule(topics_pattern(pattern), what))
    if len(rules) > RULES_MAX:
        raise BadValue(f"has {len(rules)} rules: {RULES_MAX} at most")
    return rules


def parse_decodings(text: str) -> list[TopicRule]:
    """Rules of how the values of topics are written: ``msgpack``, ``/FILE.avsc`` or ``/FILE#MESSAGE``.

    Raises:
        BadValue: says what is wrong.
    """
    rules = parse_rules(text, "orders: /etc/appliance/order.avsc")
    for rule in rules:
        path, sign, name = rule.what.partition("#")
        is_file = path.startswith("/") and bool(sign and name) != path.endswith(".avsc")
        if rule.what != MSGPACK and not is_file:
            raise BadValue(f"{rule.what!r:.100}: must be msgpack, /FILE.avsc, or /FILE#MESSAGE with its full name")
    return rules
