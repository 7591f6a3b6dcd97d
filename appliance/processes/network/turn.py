"""Shared by all parts of a network worker: the time of this turn of the loop, and logs with a bounded rate."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ...clock import now_ns
from ...security.audit_log import Audit

COMPLAINTS_MAX: Final = 20
"""Lines about peers in the log per second: garbage at full speed must not fill the host's disk."""

TURN_MS_MAX: Final = 5
"""After this, what is left of one client's work waits for the next turn, in which others come first."""

logger = logging.getLogger(__name__)


class Turn:
    """The present turn of the loop; it began at ``now_ns`` and ``now_ms``.  The worker sets ``stopping`` once."""

    __slots__ = ("_closing", "_complaints", "_complaints_ms", "audit", "now_ms", "now_ns", "stopping")

    def __init__(self) -> None:
        self.begin()
        self._closing: list[Callable[[], object]] = []
        self.audit = Audit(lambda: self.now_ms)
        self.stopping = False
        self._complaints = self._complaints_ms = 0

    def begin(self) -> None:
        """Read the clock, once for all that happens in this turn."""
        self.now_ns = now_ns()
        self.now_ms = self.now_ns // 1_000_000

    def is_over(self) -> bool:
        """Whether the turn has taken TURN_MS_MAX: what can wait, waits."""
        return now_ns() - self.now_ns >= TURN_MS_MAX * 1_000_000

    def close_at_end(self, close: Callable[[], object]) -> None:
        """Close a descriptor after all events of this turn: an event of it may be left when its number is reused."""
        self._closing.append(close)

    def end(self) -> None:
        """End the turn: all its events have been handled."""
        while self._closing:
            self._closing.pop()()

    def complain(self, text: str, *arguments: str) -> None:
        """Log a line about a peer, at most COMPLAINTS_MAX per second; the others are counted."""
        if self.now_ms - self._complaints_ms >= 1_000:
            if self._complaints > COMPLAINTS_MAX:
                logger.warning("%d more connections refused or closed", self._complaints - COMPLAINTS_MAX)
            self._complaints, self._complaints_ms = 0, self.now_ms
        self._complaints += 1
        if self._complaints <= COMPLAINTS_MAX:
            logger.warning(text, *arguments)
