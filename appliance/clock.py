"""The clocks.  Logic that depends on one takes it as an argument."""

from __future__ import annotations

import time
from typing import Final

_CLOCK_REALTIME_COARSE: Final = 5
"""Of linux/time.h, which Python does not name."""


def now_ms() -> int:
    """Monotonic milliseconds: for deadlines and delays."""
    return time.monotonic_ns() // 1_000_000


def now_ns() -> int:
    """Monotonic nanoseconds: for times that are measured."""
    return time.monotonic_ns()


def wall_ms() -> int:
    """Milliseconds since 1970: for stored timestamps."""
    return time.time_ns() // 1_000_000


def wall_s() -> float:
    """Seconds since 1970: for people."""
    return time.time_ns() / 1e9


def file_clock_ns() -> int:
    """The time that a file has which changes now, in ns since 1970: that of the kernel's last tick."""
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
