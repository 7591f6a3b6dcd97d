"""appliance.processes.network.fetching: a fetch waits for enough, looks at what has moved, and is flushed for soon."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

import pytest

from appliance.errors import UnknownPartition
from appliance.processes.network.wait_lists import WaitLists, Watch

from ...support.fetching_worker import WORKER, WORKERS, Log, Worker

WRITTEN = 10


class Moments(WaitLists):
    """Calls ``reach`` before a watch is stored, and after it."""

    reach: Callable[[int], None] = staticmethod(lambda _: None)

    def await_at(self, watch: Watch, awaited: Any) -> None:
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
    wait_lists = Moments(WORKER)
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
    wait_lists = Moments(WORKER)
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
    worker.fetching.answer(delayed)
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
    worker.fetching.answer(delayed)
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
    worker.wait_lists.forget(worker.client)
    worker.logs[0].grow(2_000)
    worker.ring(0)
    assert worker.client.answers == [] and worker.wait_lists.waiting == 0
