"""Stores the committed offsets of several groups in one transaction of ZooKeeper.

A transaction costs ZooKeeper one write to its disk, and the coordinator one request, however many offsets it has.  So
while one is on its way, the next one waits and takes what all groups have to store by then, up to the bounds of
:func:`claims.fits`.  One that has reached them does not wait, as long as fewer than IN_FLIGHT_MAX are on their way.
Writes of one group are never in two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from ...errors import ApplianceError, Unavailable
from ...zookeeper import claims
from ...zookeeper.claims import GroupWrite
from ...zookeeper.operations import Operation

IN_FLIGHT_MAX: Final = 4

T = TypeVar("T")


class Asker(Protocol):
    """The part of the registry that is needed here."""

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T: ...


Done: TypeAlias = Callable[[ApplianceError | None], None]
"""Called with why a write was not stored; None: it was."""


class _Waiting(NamedTuple):
    write: GroupWrite
    session_id: int
    done: Done
    parts: int
    size: int


class SharedWrites:
    """Bound: one write for each group, whose lock its caller holds."""

    def __init__(self, registry: Asker, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._registry, self._spawn = registry, spawn
        self._queue: deque[_Waiting] = deque()
        self._parts = self._size = 0
        """Of all that wait."""
        self._groups: list[set[str]] = []
        """Of each transaction that is on its way."""

    def store(self, write: GroupWrite, session_id: int, done: Done) -> None:
        """Have one group's offsets stored, in the session of its claim, by the next :meth:`start`.

        The errors are those of :func:`claims.write`.
        """
        waiting = _Waiting(write, session_id, done, *write.cost())
        self._queue.append(waiting)
        self._note(waiting, 1)

    def _note(self, waiting: _Waiting, sign: int) -> None:
        self._parts += sign * waiting.parts
        self._size += sign * waiting.size

    def start(self) -> None:
        """Send what waits, or leave it to a transaction on its way to go on."""
        while not self._groups or (len(self._groups) < IN_FLIGHT_MAX and not claims.fits(self._parts, self._size)):
            batch = self._take()
            if not batch:
                return
            self._groups.append({waiting.write.group for waiting in batch})
            self._spawn(self._carry_out(batch, self._groups[-1]))

    def _take(self) -> list[_Waiting]:
        """What can be stored together, in order of arrival."""
        batch: list[_Waiting] = []
        groups = set().union(*self._groups)
        parts = size = 0
        for waiting in self._queue:
            if waiting.write.group in groups or (batch and waiting.session_id != batch[0].session_id):
                continue
            parts, size = parts + waiting.parts, size + waiting.size
            if batch and not claims.fits(parts, size):
                break
            batch.append(waiting)
            groups.add(waiting.write.group)
        for waiting in batch:
            self._queue.remove(waiting)
            self._note(waiting, -1)
        return batch

    async def _carry_out(self, batch: Sequence[_Waiting], groups: set[str]) -> None:
        try:
            await self._store_some(batch)
        finally:
            self._groups = [others for others in self._groups if others is not groups]
            self.start()

    async def _store_some(self, batch: Sequence[_Waiting]) -> None:
        try:
            writes = [waiting.write for waiting in batch]
            outcomes = await self._registry.ask(claims.write_together(writes), session_id=batch[0].session_id)
        except ApplianceError as error:
            if len(batch) > 1 and not isinstance(error, Unavailable):  # of one of them: the others are not at fault
                for waiting in batch:
                    await self._store_some([waiting])
                return
            outcomes = [error] * len(batch)
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.done(outcome)
