"""How long a session certainly lives.

kazoo tells that a session is lost only after it has reconnected, which may take any time.  So a session counts as alive
for ``timeout_ms`` after the *sending* of the last request that was answered, by a clock that goes on while the machine
sleeps.  ZooKeeper starts the same time when it receives that request, which is later, so it cannot have expired the
session before: until then no other member can have taken what the session's ephemeral nodes protect.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def boot_clock_ms() -> int:
    """Milliseconds since boot, also those that the machine slept: a lease runs out during sleep too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Lease:
    """May be extended and read by any thread."""

    def __init__(self, timeout_ms: int, clock_ms: Callable[[], int]) -> None:
        self.end_ms = 0
        self._timeout_ms = timeout_ms
        self._clock_ms = clock_ms

    @property
    def left_ms(self) -> int:
        return max(0, self.end_ms - self._clock_ms())

    def extend(self, sent_ms: int) -> None:
        """A request that was sent at ``sent_ms`` is answered."""
        self.end_ms = max(self.end_ms, sent_ms + self._timeout_ms)

    def drop(self) -> None:
        """The session is lost."""
        self.end_ms = 0
