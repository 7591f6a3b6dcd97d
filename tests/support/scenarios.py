"""Coroutines as tests, each with something of its own that is made in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS_MAX = 10


def scenarios(make: Callable[[], T]) -> Callable[[Callable[[T], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """A decorator for coroutines that are tests, each with what ``make`` returns."""

    def scenario(work: Callable[[T], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def bounded() -> None:
            async with asyncio.timeout(SECONDS_MAX):
                await work(make())

        def test() -> None:
            asyncio.run(bounded())

        test.__name__, test.__doc__ = work.__name__, work.__doc__
        return test

    return scenario
