"""appliance.processes.network.fetches: a fetch waits for enough, looks at what has moved, and is flushed for soon."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from typing import Any

import pytest

from appliance.broker.plan import PARTS_AT_ONCE
from appliance.errors import UnknownPartition
from appliance.log.page_cache import Brought, LogFile
from appliance.processes.network.cold_reads import ColdReads
from appliance.processes.network.wait_lists import PartitionWatch, WaitLists
from appliance.wire.requests import FileRange, SessionStep

from ...support.fetching_worker import WORKER, WORKERS, Client, Log, Worker

WRITTEN = 10


class Moments(WaitLists):
    """Calls ``reach`` before a watch is stored, and after it."""

    reach: Callable[[int], None] = staticmethod(lambda _: None)

    def await_at(self, watch: PartitionWatch, awaited: Any) -> None:
        self.reach(1)
        super().await_at(watch, awaited)
        self.reach(2)


@pytest.mark.parametrize("again", [False, True], ids=["a new fetch", "a fetch that waits again"])
@pytest.mark.parametrize("readable", [0, 5], ids=["nothing", "too little"])
@pytest.mark.parametrize("moments", list(combinations_with_replacement(range(4), 2)), ids=str)
def test_a_writer_sees_who_waits_or_is_asked(moments: tuple[int, int], readable: int, again: bool) -> None:
    """Goal: in every order of their steps, what is written is not flushed late because neither has seen the other.

    Method: the writer stores what it has written, and looks for waiting workers, at ``moments`` of the worker: 0,
    before it looks for what can be read; 1, before it stores its wait; 2, before it looks for what is written; 3, after
    that.
    """
    wait_lists = Moments(WORKER, lambda: False)
    worker = Worker([Log(0 if again else readable)] + [Log(0)] * again, wait_lists)
    table = worker.logs[0].table
    now, seen = 0, False

    def reach(moment: int) -> None:
        nonlocal now, seen
        while now <= moment:
            if moments[0] == now:
                table.set_log_end_offset(readable + WRITTEN)
            if moments[1] == now:
                seen = table.anybody_waits(WORKERS)
            now += 1

    if again:
        worker.fetch([0, 0], 100)
        worker.logs[0].grow(readable or 1)
        wait_lists.reach = reach
        reach(0)
        worker.ring(0)
    else:
        wait_lists.reach = reach
        reach(0)
        worker.fetch([0], 100)
    reach(3)
    assert worker.client.delayed is not None
    assert seen or worker.asked == [False]


def test_a_fetch_of_several_partitions_waits_for_what_they_have_together() -> None:
    worker = Worker([Log(10), Log(0), Log(0)])
    worker.fetch([0, 0, 0], 100)
    for number, size in ((1, 30), (2, 30), (1, 20)):
        worker.logs[number].grow(size)
        worker.ring(number)
        assert worker.client.answers == []
    worker.logs[0].grow(10)
    worker.ring(0)
    assert worker.client.sizes == [[20, 50, 30]]
    assert worker.client.delayed is None and worker.wait_lists.waiting == 0


def test_min_bytes_holds_while_messages_come_between_a_look_and_its_wait() -> None:
    """Goal: a fetch is not answered early because a writer is quicker.  Method: it writes before each wait."""
    wait_lists = Moments(WORKER, lambda: False)
    worker = Worker([Log(0), Log(0)], wait_lists)
    wait_lists.reach = lambda moment: worker.logs[1].grow(7) if moment == 1 else None
    worker.fetch([0, 0], 100)
    assert worker.client.sizes == [[0, 105]]


def test_a_message_makes_a_fetch_look_at_its_partition_only() -> None:
    worker = Worker([Log(0) for _ in range(50)])
    worker.logs[3].grow(5)
    worker.fetch([0] * 50, 1_000)
    before = [log.looks for log in worker.logs.values()]
    for _ in range(20):
        worker.logs[7].grow(10)
        worker.ring(7)
    looked = [log.looks - count for log, count in zip(worker.logs.values(), before, strict=True)]
    assert looked == [20 * (number == 7) for number in range(50)] and worker.client.answers == []
    (delayed,) = worker.wait_lists.everything()
    worker.fetches.answer_now(delayed)
    assert worker.client.sizes == [[5 * (number == 3) + 200 * (number == 7) for number in range(50)]]
    results, _ = worker.client.answers[0]
    assert all(result.pieces for result in results if result.size)


def test_a_fetch_that_waits_holds_no_files() -> None:
    """Goal: retention may remove them, and their number is bounded elsewhere."""
    worker = Worker([Log(5), Log(0)])
    worker.fetch([0, 0], 1_000)
    watch: Any = worker.client.delayed.watch
    assert [result.pieces for result in watch.plan.results] == [(), ()]


def test_a_fetch_waits_for_no_more_than_its_parts_may_get() -> None:
    worker = Worker([Log(0), Log(0)])
    worker.fetch([0, 0], 1_000, part_bytes=50)
    for number, answers in ((0, []), (1, [[50, 50]])):
        worker.logs[number].grow(60)
        worker.ring(number)
        assert worker.client.sizes == answers


def test_a_fetch_of_one_partition_is_answered_in_the_end_with_what_is_there() -> None:
    """What has come rings no doorbell while it is less than the min bytes."""
    worker = Worker([Log(0)])
    worker.fetch([0], 100)
    worker.logs[0].grow(20)
    worker.ring(0)
    assert worker.client.answers == []
    (delayed,) = worker.wait_lists.expired(500)
    worker.fetches.answer_now(delayed)
    assert worker.client.sizes == [[20]]


def test_a_deleted_partition_ends_the_wait() -> None:
    worker = Worker([Log(0), Log(0)])
    worker.fetch([0, 0], 1_000)
    wait_list = worker.by_key["t", 1].wait_list
    worker.drop(1)
    results, _ = worker.client.answers[0]
    assert [result.error for result in results] == [0, UnknownPartition.code]
    assert worker.wait_lists.waiting == 0 and len(wait_list) == 0


def test_a_fetch_without_time_asks_for_a_flush_of_what_is_written() -> None:
    worker = Worker([Log(0), Log(0)])
    worker.logs[1].table.set_log_end_offset(WRITTEN)
    worker.fetch([0, 0], 1_000, wait_ms=0)
    assert worker.asked == [True, False] and worker.client.answers == []
    worker.logs[1].grow(WRITTEN)
    worker.ring(1)
    assert worker.client.sizes == [[0, WRITTEN]]


def test_a_request_of_a_closed_connection_is_forgotten() -> None:
    worker = Worker([Log(0), Log(0)])
    worker.fetch([0, 0], 1_000)
    worker.client.end()
    worker.logs[0].grow(2_000)
    worker.ring(0)
    assert worker.client.answers == [] and worker.wait_lists.waiting == 0


# ---- what is not in memory

ON_DISK = FileRange(LogFile(__file__), 0, 10)


class Disk(ColdReads):
    """Reads what is asked for when it is told to."""

    def __init__(self) -> None:
        super().__init__(threads_max=0)

    def read(self, *logs: Log) -> None:
        """What these logs need is in memory now; whoever has asked is called."""
        for log in logs:
            log.cold = None
        while self._queue:
            asked, stretch = self.take_stretch()
            self.put(asked, stretch.file, Brought(0, stretch.count, stretch.count, None))
        if self._brought:
            self.on_event()


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    os.close(disk.fd)


def cold_worker(disk: Disk, *readable: int, **settings: Any) -> Worker:
    """A worker with logs of which it cannot look into the first without the disk."""
    worker = Worker([Log(size) for size in readable], cold_reads=disk, **settings)
    worker.logs[0].cold = ON_DISK
    return worker


@pytest.mark.parametrize("enough", [1, 15, 1_000], ids=["no wait", "a part is enough", "a wait"])
def test_a_fetch_brings_what_it_needs_before_it_is_answered_or_waits(disk: Disk, enough: int) -> None:
    """A part is brought, too, when the others have enough: else a busy partition would starve a cold one."""
    worker = cold_worker(disk, 10, 20)
    worker.fetch([0, 0], enough)
    assert worker.client.answers == [] and worker.client.delayed is None and disk.waiting == 1
    worker.turn.now_ms = 100
    disk.read()
    assert worker.client.answers == [] and disk.waiting == 1, "the kernel has dropped it: it is brought once more"
    disk.read(worker.logs[0])
    if enough == 1_000:
        assert worker.client.answers == [] and worker.client.delayed.deadline_ms == 500
        worker.logs[1].grow(1_000)
        worker.ring(1)
    assert worker.client.sizes == [[10, 20 + 1_000 * (enough == 1_000)]]


def test_a_fetch_whose_time_is_up_meanwhile_gets_what_it_has_waited_for(disk: Disk) -> None:
    worker = cold_worker(disk, 10)
    worker.fetch([0], 1_000)
    worker.turn.now_ms = 501
    disk.read(worker.logs[0])
    assert worker.client.sizes == [[10]] and worker.client.delayed is None


def test_a_connection_that_is_closed_meanwhile_is_not_answered(disk: Disk) -> None:
    worker = cold_worker(disk, 10)
    worker.fetch([0], 1)
    worker.client.end()
    disk.read(worker.logs[0])
    assert worker.client.answers == [] and disk.waiting == 0


def test_a_topic_that_is_deleted_and_made_again_meanwhile_is_looked_up_anew(disk: Disk) -> None:
    worker = cold_worker(disk, 10, 20, 30)
    worker.fetch([0, 0, 0], 1)
    worker.drop(0)
    worker.drop(2)
    worker.add(2, Log(5))
    disk.read()
    (results, _) = worker.client.answers[0]
    assert [result.error for result in results] == [UnknownPartition.code, 0, 0]
    assert worker.client.sizes == [[0, 20, 5]]


def test_news_that_cannot_be_looked_at_ends_the_wait_and_the_next_fetch_brings_it(disk: Disk) -> None:
    """Goal: a fetch that waits does not turn in the loop for what is not in memory."""
    worker = Worker([Log(0), Log(0)], cold_reads=disk)
    worker.fetch([0, 0], 100)
    worker.logs[0].cold = ON_DISK
    worker.logs[0].grow(200)
    worker.ring(0)
    assert worker.client.sizes == [[0, 0]] and disk.waiting == 0 and worker.wait_lists.waiting == 0
    worker.fetch([0, 0], 100)
    disk.read(worker.logs[0])
    assert worker.client.sizes == [[0, 0], [200, 0]]


def test_what_is_dropped_while_a_fetch_waits_comes_with_the_next(disk: Disk) -> None:
    worker = Worker([Log(50), Log(0)], cold_reads=disk)
    worker.fetch([0, 0], 100)
    worker.logs[0].cold = ON_DISK
    worker.logs[1].grow(70)
    worker.ring(1)
    assert worker.client.sizes == [[0, 70]]


@pytest.mark.parametrize("count", [2, 20], ids=["few", "many"])
def test_a_session_knows_what_it_could_not_look_at(disk: Disk, count: int) -> None:
    worker = cold_worker(disk, *[10] * count)
    client = Client()
    worker.start(client, worker.parts([0] * count), session=SessionStep(0, 0, []))
    disk.read(worker.logs[0])
    assert client.sizes == [[10] * count]
    session = client.answers[0][1].id
    worker.logs[0].cold = ON_DISK
    worker.start(client, [], session=SessionStep(session, 1, []))
    assert len(client.answers) == 1 and disk.waiting == 1
    disk.read(worker.logs[0])
    assert client.sizes[1] == [10] * count, "all have something, as before"


def test_a_session_that_has_to_go_meanwhile_answers_its_fetch(disk: Disk) -> None:
    worker = cold_worker(disk, 10, 0, sessions_max=1)
    first, second = Client(), Client()
    worker.start(first, worker.parts([0, 0]), 100, session=SessionStep(0, 0, []))
    worker.turn.now_ms = 10 * 60_000
    worker.start(second, worker.parts([0, 0])[1:], session=SessionStep(0, 0, []))
    assert len(worker.sessions) == 1 and first.answers == []
    disk.read(worker.logs[0])
    assert first.sizes == [[10, 0]] and first.delayed is None


# ---- turns


MANY = 10 * PARTS_AT_ONCE


def looks(worker: Worker) -> int:
    return sum(log.looks for log in worker.logs.values())


@pytest.mark.parametrize("moment", ["at once", "after a wait", "at the deadline"])
def test_a_large_fetch_takes_many_turns_and_a_small_one_is_answered_between(moment: str) -> None:
    """Goal: no turn looks at more parts than it has time for, and nothing of the answer is different."""
    worker = Worker([Log(0 if moment == "after a wait" else 10) for _ in range(MANY)])
    worker.busy = moment == "at once"
    worker.fetch([0] * MANY, 1 if moment == "at once" else 10 * MANY + 1 * (moment == "at the deadline"))
    worker.busy = True
    if moment == "after a wait":
        for log in worker.logs.values():
            log.grow(10)
        worker.ring(*range(MANY))
    elif moment == "at the deadline":
        worker.expire(worker.client)
    turns = 0
    while not worker.client.answers:
        light, before = Client(), looks(worker)
        worker.start(light, worker.parts([0]))
        worker.step()
        turns += 1
        assert light.sizes == [[10]] and looks(worker) - before <= PARTS_AT_ONCE + 1
    assert worker.client.sizes == [[10] * MANY] and turns >= MANY // PARTS_AT_ONCE - 1
    assert worker.finish() <= 1 and worker.wait_lists.waiting == 0


def test_a_client_that_has_gone_is_not_looked_for_any_more() -> None:
    worker = Worker([Log(10) for _ in range(MANY)])
    worker.busy = True
    worker.fetch([0] * MANY, 1)
    worker.client.end()
    before = looks(worker)
    assert worker.finish() == 1 and looks(worker) == before and worker.client.answers == []


@pytest.mark.parametrize("number", [0, MANY - 1], ids=["looked at", "left"])
def test_a_topic_that_is_made_again_between_two_turns_is_looked_up_anew(number: int) -> None:
    worker = Worker([Log(10) for _ in range(MANY)])
    worker.busy = True
    worker.fetch([0] * MANY, 1)
    worker.drop(number)
    worker.add(number, Log(7))
    worker.finish()
    assert worker.client.sizes == [[7 if index == number else 10 for index in range(MANY)]]
