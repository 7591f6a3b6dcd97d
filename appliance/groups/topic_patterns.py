"""Finds the topics that regular expressions match, in the syntax of RE2, as Kafka does (KIP-848).

RE2 takes time in proportion to the text, whatever the expression is: no member can make the coordinator slow with one.
What an expression matched is kept until a topic comes or goes, for all members that have the same one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from .consumer_group import TopicsView

PATTERN_BYTES_MAX: Final = 1_024
PATTERNS_MAX: Final = 256
"""Patterns whose topics are remembered; the one used last stays longest."""
MEMORY_BYTES_MAX: Final = 1 << 20
"""Of one compiled pattern."""


class SubscribedPatterns:
    """Patterns and what they match."""

    def __init__(self) -> None:
        self._matched: OrderedDict[str, tuple[int, frozenset[str]]] = OrderedDict()

    def topics(self, pattern: str, view: TopicsView) -> frozenset[str]:
        """The names that the whole pattern matches; none for "".

        Raises:
            ValueError: it is no pattern, or too large a one.
        """
        if not pattern:
            return frozenset()
        revision, matched = self._matched.get(pattern, (-1, frozenset[str]()))
        if revision != view.revision:
            matched = self._match(pattern, view)
            self._matched[pattern] = view.revision, matched
            if len(self._matched) > PATTERNS_MAX:
                self._matched.popitem(last=False)
        self._matched.move_to_end(pattern)
        return matched

    def _match(self, pattern: str, view: TopicsView) -> frozenset[str]:
        matches = compiled(pattern)
        return frozenset(name for name in view.topics if matches(name))


def compiled(pattern: str) -> Callable[[str], bool]:
    """Whether the whole pattern matches a name.

    Raises:
        ValueError: it is no pattern, or too large a one.
    """
    size = len(pattern.encode())
    if size > PATTERN_BYTES_MAX:
        raise ValueError(f"a pattern of {size} bytes: at most {PATTERN_BYTES_MAX} are allowed")
    import re2  # 0.9 MB of the coordinator, once a member has a pattern

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    try:
        expression = re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"pattern {pattern!r}: {error.args[0].decode(errors='replace')}") from None
    return lambda name: expression.fullmatch(name) is not None
