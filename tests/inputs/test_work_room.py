"""Bodies in work are bounded, and none waits for ever."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from appliance.inputs.work_room import WorkRoom

BYTES_MAX = 10


@given(st.lists(st.tuples(st.integers(0, 15), st.booleans()), max_size=20))
def test_bodies_come_in_order_and_within_the_bound_also_when_some_give_up(bodies: list[tuple[int, bool]]) -> None:
    async def run() -> None:
        room, inside, entered = WorkRoom(BYTES_MAX), 0, []

        async def work(number: int, size: int) -> None:
            nonlocal inside
            await room.enter(size)
            entered.append(number)
            inside += size
            assert inside <= BYTES_MAX or inside == size
            await asyncio.sleep(0)
            inside -= size
            room.leave(size)

        tasks = [asyncio.create_task(work(number, size)) for number, (size, _) in enumerate(bodies)]
        await asyncio.sleep(0)
        for task, (_, gives_up) in zip(tasks, bodies, strict=True):
            if gives_up and tasks.index(task) not in entered:
                task.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait(tasks) if tasks else None
        assert entered == sorted(entered) and inside == 0
        staying = {number for number, (_, gives_up) in enumerate(bodies) if not gives_up}
        assert staying <= set(entered)
        async with asyncio.timeout(60):
            await room.enter(BYTES_MAX)

    asyncio.run(run())
