"""Waits for a descriptor with poll(2): select(2) knows none above 1023, and a long run of tests has as many open."""

from __future__ import annotations

import select
from typing import Any


def readable(source: Any, timeout_s: float = 0) -> bool:
    """Whether something can be read, or the end has come, within a time."""
    return _ready(source, select.POLLIN, timeout_s)


def writable(source: Any, timeout_s: float = 0) -> bool:
    """Whether something can be written within a time."""
    return _ready(source, select.POLLOUT, timeout_s)


def _ready(source: Any, events: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(source, events)
    return bool(poll.poll(timeout_s * 1000))
