"""A task that reads in steps, each of which may be cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def turns(count: int) -> None:
    """Turns of the loop, between which other threads run now and then."""
    for number in range(count):
        await (asyncio.sleep(0) if number % 4 else asyncio.to_thread(int))


class Steps:
    """Steps that a test chooses: the coroutines ``_WAY`` of a subclass.  What they have read is in ``values``."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []

    async def step(self, way: str, patience: int) -> None:
        """Begin one, and cancel it after so many turns of the loop."""
        task = asyncio.create_task(getattr(self, f"_{way}")())
        await turns(patience)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
