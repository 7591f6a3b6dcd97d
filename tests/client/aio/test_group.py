"""appliance.client.aio.group: streams that tasks read, who may be cancelled; a group of a real appliance."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.client import Admin
from appliance.client import Producer as BlockingProducer
from appliance.client.aio import GroupConsumer, MessageStream, Producer
from appliance.errors import InvalidRequest

from ...support.cancelled_steps import Steps, turns
from ...support.owned_partitions import PART, Room
from ...support.server import Server

TIMEOUT_S = 60
QUIET_S = 0.02
LOST_S = 5.0
PAGES = Path(__file__).parents[3]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


def test_a_message_is_processed_when_the_next_one_is_asked_for() -> None:
    room = Room()
    room.put(PART)

    async def main() -> None:
        messages = aiter(MessageStream(room.stream))
        first = await anext(messages)
        assert room.owned.uncommitted(in_hand=True) == {PART: first.offset + 1}
        assert room.owned.uncommitted(in_hand=False) == {}
        second = await anext(messages)
        assert room.owned.uncommitted(in_hand=False) == {PART: second.offset}

    run(main())


def test_a_reader_that_works_on_a_message_keeps_its_partition_from_others() -> None:
    """For the time that it is waited for; a reader that is gone, or that waits for more, does not."""
    room = Room()
    room.put(PART)

    async def main() -> None:
        stream = MessageStream(room.stream)
        async for _ in stream:
            revoking = asyncio.create_task(asyncio.to_thread(room.owned.revoke, [PART], TIMEOUT_S))
            done, _ = await asyncio.wait({revoking}, timeout=QUIET_S)
            assert not done
            break
        assert await revoking == {}, "it has not finished"

    run(main())


class Reader(Steps):
    def __init__(self, stream: MessageStream) -> None:
        super().__init__()
        self._stream = stream

    async def _messages(self) -> None:
        async for message in self._stream:
            self.values.append(message.value)
            await turns(1)

    async def _briefly(self) -> None:
        async for message in self._stream.messages(0.0):
            self.values.append(message.value)

    async def _batches(self) -> None:
        async for batch in self._stream.batches():
            self.values += batch.values
            await turns(1)


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.sampled_from(("messages", "briefly", "batches")), st.integers(0, 20)), max_size=30),
)
@settings(max_examples=50, deadline=None)
def test_who_is_cancelled_loses_no_message_and_gets_none_twice(counts: list[int], steps: list[tuple[str, int]]) -> None:
    room = Room()
    room.put(PART, counts)
    values = [b"%d-%d-%d" % (0, batch, index) for batch, count in enumerate(counts) for index in range(count)]

    async def main() -> None:
        stream = MessageStream(room.stream)
        reader = Reader(stream)
        for way, patience in steps:
            await reader.step(way, patience)
        if len(reader.values) < len(values):
            async for message in stream.messages(LOST_S):
                reader.values.append(message.value)
                if len(reader.values) == len(values):
                    break
        assert reader.values == values
        room.owned.finish()
        stream.end()
        assert [message async for message in stream] == []

    run(main())


def test_closing_ends_iterators_and_trouble_is_raised() -> None:
    room, refused = Room(), Room()

    async def main() -> None:
        stream = MessageStream(room.stream)
        waiting = asyncio.create_task(anext(aiter(stream), None))
        await turns(3)
        room.owned.finish()
        assert await waiting is None
        refused.owned.finish(InvalidRequest("a group of the other listener"))
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="other listener"):
                await anext(MessageStream(refused.stream).batches())

    run(main())


# ---- with an appliance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("aio") / "data", **{"zookeeper.nodes": 1}) as running:
        running.wait_for_zookeeper()
        yield running


def test_members_share_partitions_and_the_next_one_goes_on(server: Server, topic: str) -> None:
    with Admin(server.native) as admin:
        admin.create_topic(topic, 4)
    with BlockingProducer(server.native) as producer:
        for partition in range(4):
            producer.send(topic, b"%d" % partition, partition=partition).result(TIMEOUT_S)

    async def main() -> None:
        async with GroupConsumer(server.native, topic, auto_commit=False) as consumer:
            streams = (await consumer.create_message_streams({topic: 2}))[topic]
            read = await asyncio.gather(*(first_two(stream) for stream in streams))
            assert sorted(value for values in read for value in values) == [b"0", b"1", b"2", b"3"]
            assert len(consumer.owned) == 4 and not consumer.troubles() and consumer.group == topic
            await consumer.commit()
        with pytest.raises(InvalidRequest, match="closed"):
            await consumer.commit()
        async with GroupConsumer(server.native, topic) as consumer, Producer(server.native) as producer:
            (stream,) = await consumer.create_message_streams_by_filter(topic)
            await producer.send_and_wait(topic, b"new", partition=3)
            assert (await anext(stream.messages())).value == b"new", "the others are committed"
            await consumer.close()
            assert [message async for message in stream] == []

    async def first_two(stream: MessageStream) -> list[bytes | None]:
        messages = stream.messages()
        return [(await anext(messages)).value for _ in range(2)]

    run(main())


def test_what_is_read_in_a_transaction_is_copied_once(server: Server, topic: str) -> None:
    """Aborted by a cancellation, and done again."""
    copies = f"{topic}-copies"
    with Admin(server.native) as admin:
        for name in (topic, copies):
            admin.create_topic(name, 1)
    with BlockingProducer(server.native) as filler:
        filler.send_many(topic, [b"%d" % number for number in range(20)])

    async def main() -> None:
        group = GroupConsumer(server.native, topic, auto_commit=False, isolation="read_committed")
        async with group as consumer, Producer(server.native, transactional_id=topic) as producer:
            (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
            copied = asyncio.Event()

            async def copy(count: int, *, stays: bool) -> None:
                async with producer.transaction(consumer):
                    messages = stream.messages()
                    for _ in range(count):
                        await producer.send(copies, (await anext(messages)).value)
                    await messages.aclose()
                    copied.set()
                    if stays:
                        await asyncio.Event().wait()

            await copy(5, stays=False)
            copied.clear()
            task = asyncio.create_task(copy(7, stays=True))
            await copied.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await copy(15, stays=False)
        async with GroupConsumer(server.native, f"{topic}-check", isolation="read_committed") as check:
            (stream,) = (await check.create_message_streams({copies: 1}))[copies]
            messages = stream.messages()
            assert [(await anext(messages)).value for _ in range(20)] == [b"%d" % number for number in range(20)]

    run(main())


def python_on(page: str, after: str) -> str:
    """The first block of Python on a page behind a text."""
    found = re.search(r"```python\n(.*?)```", (PAGES / page).read_text().split(after, 1)[1], re.DOTALL)
    assert found
    return found[1]


EXAMPLES = {
    "threads": ("README.md", "From Python,"),
    "event loop": ("tests/clients/README.md", "## From an event loop"),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_pages_print_what_was_sent(server: Server, topic: str, example: str) -> None:
    """As they are there, against a real appliance: they print each message for ever."""
    code = python_on(*EXAMPLES[example])
    for old, new in {"127.0.0.1:9091": server.native, '"web"': f'"{topic}"', '"reports"': f'"{topic}"'}.items():
        assert old in code
        code = code.replace(old, new)
    process = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("b'GET /'" in line for line in lines)
    finally:
        process.kill()
        process.communicate()
