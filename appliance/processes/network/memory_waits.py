"""Counts the connections of a network worker that wait for memory, for how long, and what they need.

A connection waits for memory in one of three ways::

    starved   it is not read, or its whole request not taken: the arena has no room for it, or others come before it
    parked    its unfinished request is not read on until there is private memory for all of it
    stalled   its whole request does not start: the writer has its share of the arena in hand, or has still to come

How much memory is taken says nothing of that: all of it may be that of unfinished requests, which give way to others,
and half of it may be free, but not side by side or not for this writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .worker_connection import WorkerConnection


class MemoryWaits(NamedTuple):
    """Numbers of connections; since when the one that waits longest does, in ms; what they need in all."""

    starved: int = 0
    parked: int = 0
    stalled: int = 0
    longest_ms: int = 0
    wanted_bytes: int = 0


def count_memory_waits(connections: Iterable[WorkerConnection], now_ms: int) -> MemoryWaits:
    """Count those that wait now."""
    starved = parked = stalled = longest_ms = wanted_bytes = 0
    for connection in connections:
        inbox = connection.inbox
        if not connection.memory_since_ms:
            continue
        if inbox.starved:
            starved += 1
        elif inbox.parked:
            parked += 1
        elif connection.stalled and not connection.session.held:
            stalled += 1
        else:  # it has what it has waited for
            continue
        longest_ms = max(longest_ms, now_ms - connection.memory_since_ms)
        wanted_bytes += inbox.wanted_bytes
    return MemoryWaits(starved, parked, stalled, longest_ms, wanted_bytes)
