"""appliance.client.aio.producer: against a peer that stalls on command; who is cancelled leaves nothing half done."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from appliance.client.aio import Producer
from appliance.errors import (
    BufferFull,
    InvalidRequest,
    InvalidTransactionState,
    MessageTooLarge,
    RequestTimedOut,
    UnknownPartition,
    WriterGone,
)
from appliance.records.decode import decode_batch

from ...support.client_peer import Peer

TIMEOUT_S = 60


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer({"t": 1, "wide": 8}) as running:
        yield running


def make(peer: Peer, **options: Any) -> Producer:
    return Producer(peer.address, **{"retry_backoff_ms": 2, "retry_backoff_ms_max": 20} | options)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


class Stall:
    """A fault of a peer: no produce request is answered until it is over."""

    def __init__(self) -> None:
        self.begun, self._over = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        assert self._over.wait(TIMEOUT_S)

    def __enter__(self) -> Stall:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    async def begins(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, TIMEOUT_S)


def values(peer: Peer, topic: str = "t") -> list[bytes | None]:
    return peer.log(topic, 0).values()


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_what_is_sent_in_each_way_is_delivered_in_order(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer, linger_ms=60_000) as producer:
            first = await producer.send("t", b"0")
            sent = await producer.send_and_wait("t", b"1", key=b"k", headers=[("h", b"x")], timestamp=5)
            assert first.done() and (await first).offset == sent.offset - 1
            assert sent[:2] == ("t", 0) == (first.topic, first.partition)
            rest = await producer.send_many("t", [b"%d" % number for number in range(2, 30_000)])
            assert len(rest) > 2, "several batches"
            assert [(await delivery).topic for delivery in rest] == ["t"] * len(rest)
            await producer.send("t", b"30000")
            await producer.flush(TIMEOUT_S)
            assert producer.delivered == 30_001
            assert await producer.partitions("wide") == range(8)
            await producer.send("t", b"at the end")

    run(main())
    assert values(peer) == [*(b"%d" % number for number in range(30_001)), b"at the end"]
    records = [record for at in peer.log("t", 0).batches for record in decode_batch(peer.log("t", 0).data, at)]
    assert records[1].key == b"k" and records[1].timestamp == 5 and records[1].headers == (("h", b"x"),)


def test_tasks_that_send_in_one_turn_of_the_loop_share_a_batch(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer, linger_ms=60_000) as producer:
            await producer.send_and_wait("t", b"known")
            await asyncio.gather(*(producer.send_and_wait("t", b"%d" % number) for number in range(500)))

    run(main())
    assert values(peer) == [b"known", *(b"%d" % number for number in range(500))]
    assert len(peer.log("t", 0).batches) == 2


def test_sending_waits_for_room_and_who_is_cancelled_meanwhile_has_not_sent(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer, batch_bytes_max=1024, buffer_bytes_max=4096, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"known")
            with Stall() as stall:
                peer.faults.append(stall)
                sent = [await producer.send("t", b"x" * 900)]
                await stall.begins()
                waiting: list[asyncio.Task[Any]] = []
                while not waiting:
                    task = asyncio.create_task(producer.send("t", b"x" * 900))
                    done, _ = await asyncio.wait({task}, timeout=0.05)
                    if done:
                        sent.append(await task)
                    else:
                        waiting.append(task)
                assert 1 < len(sent) < 5, "the buffer bounds what is on its way"
                behind = asyncio.create_task(producer.send("t", b"behind"))
                many = asyncio.create_task(producer.send_many("t", [b"of many"] * 3))
                lost = asyncio.create_task(producer.send_and_wait("t", b"nobody waits for it"))
                await asyncio.sleep(0)
                await cancel(waiting[0])
                peer.faults.clear()
            await behind
            await asyncio.gather(*await many, *sent)
            await lost
            assert values(peer).count(b"x" * 900) == len(sent)

    run(main())
    assert {b"behind", b"of many", b"nobody waits for it"} < set(values(peer))


def test_who_does_not_wait_for_a_delivery_any_more_has_sent_and_others_still_wait(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer) as producer:
            await producer.send_and_wait("t", b"known")
            with Stall() as stall:
                peer.faults.append(stall)
                tasks = [asyncio.create_task(producer.send_and_wait("t", b"%d" % number)) for number in range(3)]
                await stall.begins()
                await cancel(tasks[1])
                peer.faults.clear()
            assert (await tasks[0]).offset < (await tasks[2]).offset

    run(main())
    assert values(peer) == [b"known", b"0", b"1", b"2"]


def test_a_full_buffer_is_an_error_when_its_time_is_up(peer: Peer) -> None:
    async def main() -> None:
        options = {"batch_bytes_max": 1024, "buffer_bytes_max": 1024, "linger_ms": 0, "block_ms_max": 20}
        async with make(peer, **options) as producer:
            await producer.send_and_wait("t", b"known")
            with Stall() as stall:
                peer.faults.append(stall)
                with pytest.raises(BufferFull, match="buffer_bytes_max"):
                    for _ in range(10):
                        await producer.send("t", b"x" * 900)
                peer.faults.clear()

    run(main())


def test_errors_come_at_the_call_or_with_the_delivery(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer, delivery_timeout_ms=300) as producer:
            await producer.send_and_wait("t", b"known")
            for refusal, work in {
                MessageTooLarge: producer.send("t", b"x" * 2_000_000),
                UnknownPartition: producer.send("t", b"x", partition=7),
                InvalidRequest: producer.send("t", "text"),  # type: ignore[arg-type]
            }.items():
                with pytest.raises(refusal):
                    await work
            peer.faults.append(lambda *_: WriterGone.code)
            failing = await producer.send("t", b"x")
            for _ in range(2):
                with pytest.raises(RequestTimedOut):
                    await failing
            assert [str(trouble.topic_partition) for trouble in producer.troubles()] in ([], ["('t', 0)"])
            peer.faults.clear()

    run(main())


def test_a_topic_that_is_not_known_yet_keeps_only_its_own_senders_waiting(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer, block_ms_max=60_000) as producer:
            await producer.send_and_wait("t", b"known")
            peer.answering = False
            unknown = asyncio.create_task(producer.send("wide", b"x", partition=0))
            await asyncio.sleep(0)
            sent = await producer.send("t", b"goes on")
            await cancel(unknown)
            peer.answering = True
            peer.hang_up()
            await sent

    run(main())
    assert values(peer) == [b"known", b"goes on"] and values(peer, "wide") == []


def test_a_closed_producer_is_refused_by_name_and_its_waiting_tasks_end(peer: Peer) -> None:
    async def main() -> None:
        producer = make(peer)
        await producer.send_and_wait("t", b"known")
        with Stall() as stall:
            peer.faults.append(stall)
            waiting = asyncio.create_task(producer.send_and_wait("t", b"x"))
            await stall.begins()
            await producer.close(0.01)
            with pytest.raises(RequestTimedOut):
                await waiting
            peer.faults.clear()
        await producer.close()
        for work in (producer.send("t", b"x"), producer.send("new", b"x"), producer.flush(), producer.partitions("t")):
            with pytest.raises(InvalidRequest, match="closed"):
                await work

    run(main())


def test_a_transaction_is_committed_by_its_block_and_aborted_by_an_exception(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer, transactional_id="x") as producer:
            with pytest.raises(InvalidRequest, match="GroupConsumer"):
                producer.transaction(5)  # type: ignore[arg-type]
            async with producer.transaction():
                await producer.send("t", b"committed")
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait("t", b"aborted")
                    raise ZeroDivisionError
            with pytest.raises(InvalidRequest, match="sends in transactions"):
                await producer.send("t", b"outside")

    run(main())
    assert peer.ends == [True] and values(peer) == [b"committed", b"aborted"]


def test_the_end_of_a_transaction_is_waited_for_by_who_is_cancelled(peer: Peer) -> None:
    """The end of its block says what became of it, not the cancellation; a cancelled block aborts."""

    async def main() -> None:
        async with make(peer, transactional_id="x") as producer:
            for cancelled_in_block in (False, True):
                inside = asyncio.Event()

                async def work(cancelled_in_block: bool = cancelled_in_block, inside: asyncio.Event = inside) -> None:
                    async with producer.transaction():
                        await producer.send("t", b"x")
                        inside.set()
                        if cancelled_in_block:
                            await asyncio.Event().wait()

                with Stall() as stall:
                    peer.faults.append(stall)
                    task = asyncio.create_task(work())
                    await inside.wait()
                    if not cancelled_in_block:
                        await stall.begins()
                    task.cancel()
                    done, _ = await asyncio.wait({task}, timeout=0.02)
                    assert not done or cancelled_in_block
                    peer.faults.clear()
                with pytest.raises(asyncio.CancelledError):
                    await task

    run(main())
    assert peer.ends == [True]


def test_who_is_cancelled_twice_before_a_transaction_leaves_none_open(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer, transactional_id="x") as producer:
            peer.refusals["init_transactions"] = WriterGone.code
            task = asyncio.create_task(producer.transaction().__aenter__())
            await asyncio.sleep(0)
            for _ in range(2):
                task.cancel()
                await asyncio.wait({task}, timeout=0.02)
            with pytest.raises(asyncio.CancelledError):
                await task
            peer.refusals.clear()
            async with producer.transaction():
                await producer.send("t", b"next")

    run(main())
    assert peer.ends == [True] and values(peer) == [b"next"]


def test_a_commit_that_fails_is_told_to_who_was_cancelled_meanwhile(peer: Peer) -> None:
    async def main() -> None:
        async with make(peer, transactional_id="x") as producer:
            with Stall() as stall:
                peer.refusals["end_transaction"] = InvalidTransactionState.code

                async def work() -> None:
                    async with producer.transaction():
                        await producer.send("t", b"x")

                peer.faults.append(stall)
                task = asyncio.create_task(work())
                await stall.begins()
                task.cancel()
                await asyncio.wait({task}, timeout=0.02)
                peer.faults.clear()
            with pytest.raises(InvalidTransactionState):
                await task
            peer.refusals.clear()

    run(main())
    assert peer.ends == []


def test_a_program_that_closes_nothing_delivers_what_it_has_sent_and_ends(peer: Peer) -> None:
    code = f"""
import asyncio
from appliance.client.aio import Consumer, Producer

async def main():
    producer, consumer = Producer("{peer.address}", linger_ms=60_000), Consumer("{peer.address}")
    await consumer.assign([("t", 0)])
    assert await consumer.poll(0.01) == []
    await producer.send("t", b"x")

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)
    assert values(peer) == [b"x"]


def test_a_client_is_of_one_event_loop_while_it_waits_for_something(peer: Peer) -> None:
    with Stall() as stall:
        producer = make(peer, transactional_id="x")

        async def begin() -> None:
            async with producer.transaction():
                await producer.send("t", b"x")

        async def again() -> None:
            with pytest.raises(InvalidRequest, match="event loop"):
                await producer.flush()

        loop = asyncio.new_event_loop()
        try:
            peer.faults.append(stall)
            task = loop.create_task(begin())
            loop.run_until_complete(stall.begins())
            run(again())
            peer.faults.clear()
            stall.__exit__()
            loop.run_until_complete(task)
            loop.run_until_complete(producer.close())
        finally:
            loop.close()
