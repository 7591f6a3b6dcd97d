"""Takes what is flushed of one source into its position, in the order in which it was read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from .outlet import Placed

T = TypeVar("T")


class InOrder(Generic[T]):
    """The blocks of one source that are on their way.

    After one that failed none is taken: once nothing is on its way any more all are forgotten, and ``fail`` is called.
    The source is then read again from what was taken last.
    """

    def __init__(self, take: Callable[[T, Placed], None], fail: Callable[[BaseException], None]) -> None:
        """``take``: a block is flushed, and so are those before it; ``fail``: see above."""
        self._take, self._fail = take, fail
        self._blocks: deque[tuple[T, asyncio.Future[Placed]]] = deque()
        self.has_failed = False
        """One has, and others are on their way: nothing more should be sent."""

    def __len__(self) -> int:
        return len(self._blocks)

    def waiting(self) -> Iterator[asyncio.Future[Placed]]:
        """Those that are not done."""
        return (future for _, future in self._blocks if not future.done())

    async def drain(self) -> None:
        """Wait until all blocks are flushed and taken, or have failed.

        What is done is not taken yet: that is done by a callback, which comes later.
        """
        while self._blocks:
            if waiting := list(self.waiting()):
                await asyncio.wait(waiting)
            await asyncio.sleep(0)

    def add_block(self, block: T, future: asyncio.Future[Placed]) -> None:
        self._blocks.append((block, future))
        future.add_done_callback(self._settle)

    def _settle(self, done: asyncio.Future[Placed]) -> None:
        self.has_failed |= done.exception() is not None
        while self._blocks and self._blocks[0][1].done():
            block, future = self._blocks[0]
            error = future.exception()
            if error is None:
                self._blocks.popleft()
                self._take(block, future.result())
            elif next(self.waiting(), None) is None:  # what is behind it is sent again, too
                self._blocks.clear()
                self.has_failed = False
                self._fail(error)
            else:
                return
