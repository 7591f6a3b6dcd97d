"""The deadlines of a group as a whole; those of its members are in ``members``.  All in ms of the caller's clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Deadlines:
    """When the present rebalance ends (PREPARING), and when all members must have synced (COMPLETING).

    ``delay_ms``: the end of the delay of an empty group's first rebalance; None while there is none.
    """

    rebalance_ms: int = 0
    sync_ms: int = 0
    delay_ms: int | None = None

    def begin_rebalance(self, now_ms: int, rebalance_ms: int, initial_delay_ms: int) -> None:
        """Begin a rebalance, which waits at least ``initial_delay_ms`` and at most ``rebalance_ms``."""
        self.rebalance_ms = now_ms + rebalance_ms
        delay_ms = min(now_ms + initial_delay_ms, self.rebalance_ms)
        self.delay_ms = delay_ms if delay_ms > now_ms else None

    def begin_sync(self, now_ms: int, rebalance_ms: int) -> None:
        self.sync_ms = now_ms + max(rebalance_ms, 1)

    def delay_again(self, now_ms: int, initial_delay_ms: int) -> None:
        """Begin the delay anew, if there is one, since a member has come."""
        if self.delay_ms is not None:
            self.delay_ms = min(now_ms + initial_delay_ms, self.rebalance_ms)

    def end_delay(self, now_ms: int) -> None:
        if self.delay_ms is not None and self.delay_ms <= now_ms:
            self.delay_ms = None

    def prolong(self, now_ms: int, rebalance_ms: int) -> None:
        """Put the deadlines off, as if the waits had begun now."""
        self.rebalance_ms = max(self.rebalance_ms, now_ms + rebalance_ms)
        self.sync_ms = max(self.sync_ms, now_ms + rebalance_ms)
