"""Counts who is connected to a worker, and how many bytes each moves: see :mod:`appliance.connected_clients`.

Connections are grouped only when they are counted, so a byte costs an addition.  Nothing is told while nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import Protocol

from ...addresses import Listener
from ...connected_clients import CLIENTS_MAX, COUNTED_MS, ClientName, ClientRow, shown
from .connection_state import ClientSession
from .turn import Turn

Served = tuple[Listener, ClientSession]


class _HasSession(Protocol):
    listener: Listener
    session: ClientSession


def connections_of(served: Iterable[_HasSession]) -> Iterator[Served]:
    """What is counted of connections."""
    return ((one.listener, one.session) for one in served)


class ClientCounts:
    """The counts of one worker.  ``tell`` takes rows, and how many connections have none."""

    def __init__(self, turn: Turn, tell: Callable[[list[ClientRow], int], None]) -> None:
        self._turn, self._tell = turn, tell
        self._told: tuple[list[ClientRow], int] = ([], 0)
        self._counted_ms = turn.now_ms - COUNTED_MS

    def check(self, connections: Iterable[Served]) -> None:
        """Once in COUNTED_MS, count all connections, and tell what has changed."""
        elapsed_ms = self._turn.now_ms - self._counted_ms
        if elapsed_ms < COUNTED_MS:
            return
        groups: dict[ClientName, list[ClientSession]] = {}
        for listener, session in connections:
            groups.setdefault(_name(listener, session), []).append(session)
        if not groups and not self._told[0]:  # the first client after a rest is told of at once
            return
        self._counted_ms = self._turn.now_ms
        every = (_row(name, sessions, elapsed_ms / 1000) for name, sessions in groups.items())
        rows = nsmallest(CLIENTS_MAX, every, key=lambda row: row.order)
        others = sum(map(len, groups.values())) - sum(row.connections for row in rows)
        if (rows, others) != self._told:
            self._told = rows, others
            self._tell(rows, others)


def _name(listener: Listener, session: ClientSession) -> ClientName:
    shown_listener = shown(f"{listener.protocol} {listener}")
    return ClientName(shown(session.principal), session.host, session.client_id or "", session.software, shown_listener)


def _row(name: ClientName, sessions: list[ClientSession], elapsed_s: float) -> ClientRow:
    bytes_in, bytes_out = sum(one.bytes_in for one in sessions), sum(one.bytes_out for one in sessions)
    lately_in = bytes_in - sum(one.counted[0] for one in sessions)
    lately_out = bytes_out - sum(one.counted[1] for one in sessions)
    for one in sessions:
        one.counted = one.bytes_in, one.bytes_out
    since_ms = min(one.since_ms for one in sessions)
    rates = round(lately_in / elapsed_s, 1), round(lately_out / elapsed_s, 1)
    return ClientRow(name, len(sessions), since_ms, bytes_in, bytes_out, *rates)
