"""appliance.inputs.in_order: what is flushed is taken in its order, and an ordered end waits for that."""

from __future__ import annotations

import asyncio

import pytest

from appliance.errors import StorageFault
from appliance.inputs.in_order import InOrder
from appliance.inputs.outlet import Placed

PLACED = Placed("t", 0, 0, 1)


@pytest.mark.parametrize("fails", [False, True])
def test_an_end_waits_until_what_is_flushed_is_taken(fails: bool) -> None:
    """Not only until it is flushed: without its position it would be sent again, and the ledger would not have it."""
    taken: list[int] = []
    failed: list[BaseException] = []

    async def end() -> None:
        loop = asyncio.get_running_loop()
        blocks: InOrder[int] = InOrder(lambda block, _: taken.append(block), failed.append)
        first, second = loop.create_future(), loop.create_future()
        blocks.add_block(1, first)
        blocks.add_block(2, second)
        loop.call_soon(first.set_result, PLACED)
        await asyncio.sleep(0)
        second.set_exception(StorageFault("full")) if fails else second.set_result(PLACED)
        assert not taken, "callbacks come in the next turn"
        await blocks.drain()
        assert not blocks

    asyncio.run(end())
    assert (taken, len(failed)) == (([1], 1) if fails else ([1, 2], 0))
