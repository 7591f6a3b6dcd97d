"""Counts who is connected to a worker, and how many bytes each moves: see :mod:`appliance.connected_clients`.

Connections are grouped only when they are counted, so a byte costs an addition.  Nothing is told while nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import Protocol

from ...addresses import Listener
from ...connected_clients import CLIENTS_MAX, COUNTED_MS, ClientName, ClientRow, shown
from .turn import Turn
from .worker_connection import ClientSession

Served = tuple[Listener, ClientSession]


class _HasSession(Protocol):
    listener: Listener
    session: ClientSession


def connections_of(served: Iterable[_HasSession]) -> Iterator[Served]:
    """What is counted of connections."""
    return ((connection.listener, connection.session) for connection in served)


class _Group:
    """The connections of one client.  ``lately_in``, ``lately_out``: bytes since the last count."""

    __slots__ = ("bytes_in", "bytes_out", "connections", "lately_in", "lately_out", "name", "since_ms")

    def __init__(self, name: ClientName, since_ms: int) -> None:
        self.name, self.since_ms = name, since_ms
        self.connections = self.bytes_in = self.bytes_out = self.lately_in = self.lately_out = 0

    def add(self, session: ClientSession) -> None:
        """Count a connection."""
        bytes_in, bytes_out = session.bytes_in, session.bytes_out
        before_in, before_out = session.counted
        session.counted = bytes_in, bytes_out
        self.connections += 1
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self.lately_in += bytes_in - before_in
        self.lately_out += bytes_out - before_out
        if session.since_ms < self.since_ms:
            self.since_ms = session.since_ms

    def order(self) -> tuple[int, int, ClientName]:
        """Where its row stands in the list: the busiest of the last interval first."""
        return -(self.lately_in + self.lately_out), -(self.bytes_in + self.bytes_out), self.name

    def row(self, elapsed_s: float) -> ClientRow:
        rates = round(self.lately_in / elapsed_s, 1), round(self.lately_out / elapsed_s, 1)
        return ClientRow(self.name, self.connections, self.since_ms, self.bytes_in, self.bytes_out, *rates)


class ClientCounts:
    """The counts of one worker.  ``tell`` takes rows, and how many connections have none."""

    def __init__(self, turn: Turn, tell: Callable[[list[ClientRow], int], None]) -> None:
        self._turn, self._tell = turn, tell
        self._told: tuple[list[ClientRow], int] = ([], 0)
        self._counted_ms = turn.now_ms - COUNTED_MS

    def count_connections(self, connections: Iterable[Served]) -> None:
        """Once in COUNTED_MS, count all connections, and tell what has changed."""
        elapsed_ms = self._turn.now_ms - self._counted_ms
        if elapsed_ms < COUNTED_MS:
            return
        groups: dict[ClientName, _Group] = {}
        for listener, session in connections:
            name = session.client_name
            if name is None:
                name = session.client_name = _name(listener, session)
            group = groups.get(name)
            if group is None:
                group = groups[name] = _Group(name, session.since_ms)
            group.add(session)
        if not groups and not self._told[0]:  # the first client after a rest is told of at once
            return
        self._counted_ms = self._turn.now_ms
        first = nsmallest(CLIENTS_MAX, groups.values(), key=_Group.order)
        rows = [group.row(elapsed_ms / 1000) for group in first]
        others = sum(group.connections for group in groups.values()) - sum(row.connections for row in rows)
        if (rows, others) != self._told:
            self._told = rows, others
            self._tell(rows, others)


def _name(listener: Listener, session: ClientSession) -> ClientName:
    shown_listener = shown(f"{listener.protocol} {listener}")
    return ClientName(shown(session.principal), session.host, session.client_id or "", session.software, shown_listener)
