"""Bounds how many bytes of bodies are objects at a time: a body takes several times its size once it is parsed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

WORK_BYTES_MAX: Final = 4 << 20


class WorkRoom:
    """Lets those in first that came first, up to ``bytes_max``; one that is larger goes in alone."""

    def __init__(self, bytes_max: int = WORK_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait until there is room for so many bytes, and take it; :meth:`leave` gives it back."""
        if not self._waiting and self._has_room(size):
            self._bytes += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was let in at this moment
                self._bytes -= size
            self._let_in()
            raise

    def leave(self, size: int) -> None:
        self._bytes -= size
        self._let_in()

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._bytes_max

    def _let_in(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if not self._has_room(size):
                    return
                self._bytes += size
                turn.set_result(None)
            self._waiting.popleft()
