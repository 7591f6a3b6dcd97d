"""appliance.client.aio.consumer: each message once and in order, whoever is cancelled; positions and pauses hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.client.aio import EARLIEST, LATEST, Consumer, Message
from appliance.errors import CorruptBatch, InvalidRequest, OffsetOutOfRange
from appliance.records.encode import encode_values

from ...support.cancelled_steps import Steps, turns
from ...support.client_peer import Partition, Peer

TIMEOUT_S = 60
QUIET_S = 0.5
LOST_S = 5.0
PART, OTHER = ("t", 0), ("t", 1)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer({"t": 2}) as running:
        yield running


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


def fill(log: Partition, counts: list[int], first: int = 0) -> list[bytes]:
    values = [b"%d" % (first + number) for number in range(sum(counts))]
    at = 0
    for count in counts:
        log.append(encode_values(values[at : at + count], 1000))
        at += count
    return values


async def read(consumer: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        messages += await consumer.poll(TIMEOUT_S, count - len(messages))
    return messages


def test_reads_everything_in_order_in_each_way(peer: Peer) -> None:
    values = fill(peer.log(*PART), [1, 5, 100])

    async def main() -> None:
        async with Consumer(peer.address) as consumer:
            await consumer.assign([PART])
            assert [message.value for message in await read(consumer, 106)] == values
            assert consumer.position(*PART) == len(peer.log(*PART).data)
            await consumer.rewind()
            assert [message.value async for message in consumer.messages(QUIET_S)] == values
            await consumer.seek_to_beginning(PART)
            batches = []
            while len(batches) < 3:
                batches += await consumer.fetch_batches(TIMEOUT_S)
            assert [len(batch.values) for batch in batches] == [1, 5, 100]
            assert consumer.positions() == await consumer.ends() == {PART: batches[-1].next_offset}
            assert await consumer.offsets_at(LATEST) == consumer.positions()
            assert await consumer.poll(0) == await consumer.poll(0.01) == []

    run(main())


class Reader(Steps):
    def __init__(self, consumer: Consumer) -> None:
        super().__init__()
        self._consumer = consumer

    async def _poll(self) -> None:
        self.values += [message.value for message in await self._consumer.poll(TIMEOUT_S, 3)]

    async def _briefly(self) -> None:
        self.values += [message.value for message in await self._consumer.poll(0.0)]

    async def _messages(self) -> None:
        async for message in self._consumer.messages():
            self.values.append(message.value)
            await turns(1)

    async def _batches(self) -> None:
        for batch in await self._consumer.fetch_batches():
            self.values += batch.values

    async def _pause(self) -> None:
        await self._consumer.pause(PART)
        await self._consumer.resume(PART)

    async def _seek(self) -> None:
        await self._consumer.seek(*PART, self._consumer.position(*PART))


WAYS = ("poll", "briefly", "messages", "batches", "pause", "seek")


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.sampled_from(WAYS), st.integers(0, 40)), max_size=40),
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_who_is_cancelled_loses_no_message_and_gets_none_twice(
    peer: Peer, counts: list[int], steps: list[tuple[str, int]]
) -> None:
    log = peer.logs[PART] = Partition()
    values = fill(log, counts)

    async def main() -> None:
        async with Consumer(peer.address, partition_bytes_max=256) as consumer:
            await consumer.assign([PART])
            reader = Reader(consumer)
            for way, patience in steps:
                await reader.step(way, patience)
            await consumer.resume()
            while len(reader.values) < len(values):
                rest = await consumer.poll(LOST_S)
                assert rest, f"nothing comes behind {reader.values}"
                reader.values += [message.value for message in rest]
            assert reader.values == values
            assert consumer.position(*PART) == len(log.data)

    run(main())


def test_a_seek_ends_what_waits_and_the_next_reader_is_at_its_place(peer: Peer) -> None:
    values = fill(peer.log(*PART), [5])

    async def main() -> None:
        async with Consumer(peer.address) as consumer:
            await consumer.assign({PART: LATEST})
            waiting = asyncio.create_task(consumer.poll())
            done, _ = await asyncio.wait({waiting}, timeout=0.05)
            assert not done
            await consumer.seek(*PART, EARLIEST)
            assert [message.value for message in await waiting] == values

    run(main())


def test_a_pause_of_another_task_holds_at_once(peer: Peer) -> None:
    """Also while messages of the partition are decoded already, of which the reader takes one in each turn."""
    fill(peer.log(*PART), [1000])

    async def main() -> None:
        async with Consumer(peer.address) as consumer:
            await consumer.assign([PART])
            seen: list[int] = []

            async def reads() -> None:
                async for message in consumer:
                    seen.append(message.offset)
                    await turns(1)

            reading = asyncio.create_task(reads())
            while len(seen) < 10:
                await turns(1)
            await consumer.pause(PART)
            before = len(seen)
            done, _ = await asyncio.wait({reading}, timeout=0.05)
            assert not done and len(seen) == before < 1000 and await consumer.paused() == {PART}
            await consumer.resume()
            while len(seen) < 1000:
                await turns(1)
            assert seen == list(range(seen[0], seen[0] + 1000))
            reading.cancel()

    run(main())


def test_damage_is_raised_until_the_reader_is_behind_it(peer: Peer) -> None:
    log = peer.log(*PART)
    fill(log, [2, 2, 2])
    log.data[log.batches[2] - 1] ^= 1

    async def main() -> None:
        async with Consumer(peer.address) as consumer:
            await consumer.assign([PART])
            assert len(await read(consumer, 2)) == 2
            for _ in range(2):
                with pytest.raises(CorruptBatch):
                    await consumer.poll(TIMEOUT_S)
            await consumer.seek(*PART, log.batches[2])
            assert [message.value for message in await read(consumer, 2)] == [b"4", b"5"]
        async with Consumer(peer.address, on_out_of_range="raise") as consumer:
            await consumer.assign({PART: 10_000})
            with pytest.raises(OffsetOutOfRange):
                await consumer.poll(TIMEOUT_S)

    run(main())


def test_closing_ends_those_who_wait(peer: Peer) -> None:
    async def main() -> None:
        consumer = Consumer(peer.address)
        with pytest.raises(InvalidRequest, match="nothing is assigned"):
            await consumer.poll(0.1)
        await consumer.assign([PART, OTHER])
        waiting = asyncio.create_task(anext(aiter(consumer)))
        await turns(5)
        peer.answering = False
        await consumer.close()
        await consumer.close()
        for work in (waiting, consumer.poll(), consumer.assign([PART])):
            with pytest.raises(InvalidRequest, match="closed"):
                await work

    run(main())


def test_messages_that_nobody_takes_are_not_fetched_without_end(peer: Peer) -> None:
    """One batch is decoded ahead; the thread does nothing until it is taken."""
    log = peer.log(*PART)
    for number in range(100):
        fill(log, [10], first=10 * number)

    async def main() -> None:
        async with Consumer(peer.address, partition_bytes_max=256, buffer_bytes_max=512) as consumer:
            await consumer.assign([PART])
            messages: AsyncGenerator[Message, None] = consumer.messages()
            assert (await anext(messages)).value == b"0"
            before = peer.requests
            await asyncio.sleep(0.1)
            assert peer.requests - before <= 1
            assert [(await anext(messages)).value for _ in range(999)] == [b"%d" % number for number in range(1, 1000)]

    run(main())
