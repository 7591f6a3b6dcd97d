"""Messages of senders become blocks in their order; what waits is bounded; a topic that is known stays usable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import MessageTooLarge, ZooKeeperAway
from appliance.inputs import intake as module
from appliance.inputs.intake import InputMessage, Intake
from appliance.inputs.outlet import ORIGIN_BYTES, Placed
from appliance.inputs.positions import PositionStore

BLOCK_BYTES_MAX = 300


class Ledger:
    """Of which only what the intake calls."""

    def note(self, span: Any) -> None: ...
    def note_sources(self, count: int) -> None: ...
    def minute(self) -> int:
        return 0

    async def begin_partition(self, topic: str, partition: int) -> None: ...


class Outlet:
    """Keeps blocks until the test lets them be flushed."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.blocks: list[tuple[int, list[bytes], Sequence[bytes] | None]] = []
        self.flushes: list[asyncio.Future[Placed]] = []
        self.is_away = False
        self.asked = 0

    async def learn(self, topic: str) -> int:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise ZooKeeperAway("no session")
        return BLOCK_BYTES_MAX + ORIGIN_BYTES

    def lasting_trouble(self, topic: str, lasting_s: float) -> None:
        return None

    def partition_of(self, topic: str, key: bytes) -> int:
        return sum(key) % self.partitions

    def send(
        self, topic: str, partition: int, values: list[bytes], tails: Any, *, keys: Sequence[bytes] | None
    ) -> asyncio.Future[Placed]:
        self.blocks.append((partition, values, keys))
        self.flushes.append(asyncio.get_running_loop().create_future())
        return self.flushes[-1]

    def flush(self) -> None:
        flushes, self.flushes = self.flushes, []
        for flush in flushes:
            flush.set_result(Placed("t", 0, 0, 1))

    async def flush_all(self, tasks: Sequence[asyncio.Future[Any]]) -> None:
        while not all(task.done() for task in tasks):
            self.flush()
            await asyncio.sleep(0)


class Machinery:
    def __init__(self, directory: Path, outlet: Outlet) -> None:
        self.store = PositionStore(directory / "store.sqlite")
        self.outlet, self.ledger = outlet, Ledger()


def run(directory: Path, outlet: Outlet, test: Any) -> None:
    async def main() -> None:
        machinery = Machinery(directory, outlet)
        try:
            await asyncio.wait_for(test(Intake(machinery)), 60)  # type: ignore[arg-type]
        finally:
            machinery.store.close()

    asyncio.run(main())


_messages = st.lists(st.tuples(st.integers(0, 100), st.sampled_from([None, None, b"k", b"l"])), min_size=1, max_size=20)


@given(puts=st.lists(_messages, max_size=8), partitions=st.integers(1, 2))
def test_each_partition_has_the_order_of_the_calls(
    tmp_path_factory: pytest.TempPathFactory, puts: list[list[tuple[int, bytes | None]]], partitions: int
) -> None:
    outlet = Outlet(partitions)
    numbers = iter(range(1_000))
    calls = [[InputMessage(b"%d %b" % (next(numbers), b"x" * size), b"\0", key) for size, key in put] for put in puts]

    async def test(intake: Intake) -> None:
        done = [await intake.begin("s", "t", call) for call in calls]
        await outlet.flush_all(done)
        await intake.drain()

    run(tmp_path_factory.mktemp("intake"), outlet, test)
    for partition in range(partitions):
        found = [
            (value, keys[index] if keys is not None else None)
            for number, values, keys in outlet.blocks
            for index, value in enumerate(values)
            if number == partition
        ]
        wanted = [
            (one.value, one.key)
            for call in calls
            for one in call
            if outlet.partition_of("t", b"s" if one.key is None else one.key) == partition
        ]
        assert found == wanted
    assert all(sum(map(len, values)) <= BLOCK_BYTES_MAX for _, values, _ in outlet.blocks)


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever its lane: blocks that are on their way, and those that wait behind them."""
    monkeypatch.setattr(module, "TAKEN_BYTES_MAX", 2_000)
    outlet = Outlet()

    async def test(intake: Intake) -> None:
        begun: list[asyncio.Task[Any]] = []
        for number in range(100):
            begun.append(asyncio.create_task(intake.begin(f"s{number % 10}", "t", [InputMessage(b"x" * 100, b"\0")])))
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(task.done() for task in begun) <= 2_000 // 100 + 1
        assert not intake.has_room
        await outlet.flush_all(begun)
        await outlet.flush_all([task.result() for task in begun])
        assert intake.has_room

    run(tmp_path, outlet, test)


def test_a_message_that_no_block_takes_is_refused_before_any_is_sent(tmp_path: Path) -> None:
    outlet = Outlet()

    async def test(intake: Intake) -> None:
        with pytest.raises(MessageTooLarge):
            await intake.put("s", "t", [InputMessage(b"x", b"\0"), InputMessage(b"x" * 301, b"\0")])
        assert not outlet.blocks

    run(tmp_path, outlet, test)


def test_a_topic_that_is_known_is_used_while_nobody_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEARN_S", -1.0)
    outlet = Outlet()

    async def test(intake: Intake) -> None:
        await intake.begin("s", "t", [InputMessage(b"1", b"\0")])
        outlet.is_away = True
        for _ in range(5):
            await intake.begin("s", "t", [InputMessage(b"2", b"\0")])
            await asyncio.sleep(0)
        assert outlet.asked > 1
        assert len(outlet.blocks) == module.LANE_BLOCKS_MAX
        with pytest.raises(ZooKeeperAway):
            await intake.begin("s", "new", [InputMessage(b"3", b"\0")])

    run(tmp_path, outlet, test)


def test_a_topic_is_asked_once_by_all_that_wait(tmp_path: Path) -> None:
    outlet = Outlet()

    async def test(intake: Intake) -> None:
        await asyncio.gather(*(intake.begin(f"s{number}", "t", [InputMessage(b"1", b"\0")]) for number in range(50)))
        assert outlet.asked == 1

    run(tmp_path, outlet, test)
