"""Computes the lease of a session: until when it is certain that ZooKeeper has not expired the session.

kazoo reports a lost session only after it has reconnected, which may take any time.  So a session counts as alive for
``timeout_ms`` after the *sending* of the last request that was answered, by a clock that runs while the machine sleeps.
ZooKeeper counts the same time from the receipt of that request, which is later.  Until the lease ends, no other member
can have taken what the session's ephemeral nodes protect.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def boot_clock_ms() -> int:
    """Milliseconds since boot, sleep of the machine included: a lease ends during sleep too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Lease:
    """The lease of one session.  Any thread may extend and read it."""

    def __init__(self, timeout_ms: int, clock_ms: Callable[[], int]) -> None:
        self.end_ms = 0
        self._timeout_ms = timeout_ms
        self._clock_ms = clock_ms

    @property
    def left_ms(self) -> int:
        return max(0, self.end_ms - self._clock_ms())

    def extend(self, sent_ms: int) -> None:
        """Note the reply to a request that was sent at ``sent_ms``."""
        self.end_ms = max(self.end_ms, sent_ms + self._timeout_ms)

    def drop(self) -> None:
        """End the lease: the session is lost."""
        self.end_ms = 0
