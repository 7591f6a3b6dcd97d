"""Keeps the connections that wait for memory for received bytes, those that wait longest first.

Administrators go before all others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from .connection_state import Connection
from .inbox import Buffers
from .turn import Turn

STARVED_MS_MAX: Final = 500
"""How long connections wait for memory before the connection with the oldest unfinished request is closed."""


class Starved:
    """See the module's docstring.  ``read`` lets a connection receive as if no other had waited longer."""

    def __init__(self, turn: Turn, buffers: Buffers, read: Callable[[Connection], None]) -> None:
        self._turn, self._buffers, self._read = turn, buffers, read
        self.waiting: OrderedDict[Connection, None] = OrderedDict()
        self._since_ms = 0
        """When the first of them began to wait, or one was last fed."""

    @property
    def due_ms(self) -> int:
        """When the wait is too long."""
        return self._since_ms + STARVED_MS_MAX

    def add(self, connection: Connection) -> None:
        """Let the connection wait until there is room for its bytes."""
        if not self.waiting:
            self._since_ms = self._turn.now_ms
        self.waiting.setdefault(connection)
        if connection.session.administrator:
            self.waiting.move_to_end(connection, last=False)

    def discard(self, connection: Connection) -> None:
        self.waiting.pop(connection, None)

    def feed(self) -> bool:
        """Let the connections try again, those that wait longest first; return whether they have waited too long.

        The oldest unfinished frame comes before all: while memory is used up only that frame may grow.
        """
        oldest = self._buffers.oldest
        for connection in self.waiting:
            if connection.inbox is oldest:
                self._feed(connection)
                break
        while self.waiting and self._feed(next(iter(self.waiting))):
            pass
        if not self.waiting or self._turn.now_ms < self.due_ms:
            return False
        self._since_ms = self._turn.now_ms
        return True

    def _feed(self, connection: Connection) -> bool:
        """Let a connection read; return whether it waits no more."""
        if not connection.closed:
            self._read(connection)
            if connection.inbox.starved:
                return False
        self.waiting.pop(connection, None)
        self._since_ms = self._turn.now_ms
        return True
