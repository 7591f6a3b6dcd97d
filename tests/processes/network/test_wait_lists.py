"""appliance.processes.network.wait_lists: the lowest awaited offset is stored, no wait is lost, memory is bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from appliance.processes.connection import Lifetime
from appliance.processes.network.wait_lists import (
    STALE_MAX,
    Awaited,
    DelayedRequest,
    PartitionWatch,
    WaitList,
    WaitLists,
)
from appliance.processes.network.worker_connection import Pending, WorkerConnection
from appliance.shared.table import ROWS, WAITS, SegmentTable
from appliance.wire.requests import Fetch

WORKER = 3
ALL = range(1_000)
"""All slots."""


class Cells(list[int]):
    """A table's cells, and the wait cell of our worker in it."""

    @property
    def wait(self) -> int:
        return self[WAITS + WORKER]


class Client(Lifetime):
    """A connection."""

    read_ns = 0


class Answers:
    """Owner of delayed requests: what it was told to do with them."""

    def __init__(self, lists: WaitLists) -> None:
        self._lists = lists
        self.retried: list[DelayedRequest] = []
        self.answered: list[DelayedRequest] = []

    def retry(self, one: DelayedRequest) -> None:
        self.retried.append(one)
        self._end(one)

    def answer_now(self, one: DelayedRequest) -> None:
        self.answered.append(one)
        self._end(one)

    def _end(self, one: DelayedRequest) -> None:
        watch = one.watch
        self._lists.end_wait(one)
        self._lists.release(watch)


def partition(high_watermark: int = 0, slot: int = 0) -> tuple[WaitList, Cells, SegmentTable]:
    cells = Cells([0] * (ROWS + 4))
    table = SegmentTable(cells)
    table.publish([0], 0, high_watermark, 0)
    return WaitList(table, slot), cells, table


def delayed(
    lists: WaitLists, awaited: list[Awaited], deadline_ms: int = 500, owner: Answers | None = None
) -> DelayedRequest:
    """A request that waits at these partitions."""
    pending = Pending(cast(WorkerConnection, Client()), Fetch(None, 500, 1, 1 << 20, []))
    one = DelayedRequest(pending, deadline_ms, owner or Answers(lists), PartitionWatch())
    lists.await_at(one.watch, awaited)
    lists.begin_wait(one)
    return one


def answer(one: DelayedRequest) -> None:
    one.owner.answer_now(one)


def test_the_lowest_high_watermark_that_anybody_awaits_is_asked_for() -> None:
    lists, (wait_list, cells, table) = WaitLists(WORKER, lambda: False), partition(100)
    owner = Answers(lists)
    patient, eager = (delayed(lists, [(wait_list, end)], owner=owner) for end in (150, 101))
    assert cells.wait == 101
    table.publish_high_watermark(120, 0)
    lists.retry_reached(ALL)
    assert owner.retried == [eager] and cells.wait == 150
    table.publish_high_watermark(150, 0)
    lists.retry_reached(ALL)
    assert owner.retried == [eager, patient] and cells.wait == 0 and lists.everything() == []


def test_a_high_watermark_that_has_come_meanwhile_is_not_awaited() -> None:
    lists, (one, one_cells, _), (two, two_cells, _) = WaitLists(WORKER, lambda: False), partition(100), partition(100)
    watch = PartitionWatch()
    lists.await_at(watch, [(one, 100), (two, 101)])
    assert (list(watch.moved), list(watch.lists)) == ([one], [two])
    assert (one_cells.wait, two_cells.wait) == (0, 101)


def test_where_it_has_moved_a_request_waits_no_more_and_everywhere_else_it_does() -> None:
    lists = WaitLists(WORKER, lambda: False)
    (one, one_cells, _), (two, two_cells, table) = partition(10), partition(20)
    both = delayed(lists, [(one, 11), (two, 21)])
    both.owner = cast(Answers, SimpleNamespace(retry=lambda _: 1))
    table.publish_high_watermark(21, 0)
    lists.retry_reached(ALL)
    assert (one_cells.wait, two_cells.wait) == (11, 0)
    assert (list(both.watch.lists), list(both.watch.moved)) == ([one], [two])
    both.watch.moved.clear()
    lists.await_at(both.watch, [(two, 30)])
    assert (one_cells.wait, two_cells.wait) == (11, 30) and lists.waiting == 2


def test_a_ring_looks_at_the_partitions_that_are_marked() -> None:
    """Goal: a message costs nothing at the other partitions, whose high watermarks are not even read."""
    lists = WaitLists(WORKER, lambda: False)
    places = [partition(10, slot) for slot in range(50)]
    one = delayed(lists, [(wait_list, 11) for wait_list, _, _ in places])
    for wait_list, _, _ in places[1:]:
        wait_list.table = cast(SegmentTable, None)
    places[0][2].publish_high_watermark(11, 0)
    one.owner = cast(Answers, SimpleNamespace(retry=lambda _: 1))
    lists.retry_reached([0])
    assert list(one.watch.moved) == [places[0][0]]


def test_a_partition_that_shares_a_slot_is_looked_at_and_waits_on() -> None:
    lists, (one, _, table), (two, cells, _) = WaitLists(WORKER, lambda: False), partition(10, 5), partition(10, 5)
    owner = Answers(lists)
    first, second = (delayed(lists, [(wait_list, 11)], owner=owner) for wait_list in (one, two))
    table.publish_high_watermark(11, 0)
    lists.retry_reached([5])
    assert owner.retried == [first] and lists.everything() == [second] and cells.wait == 11


def test_requests_at_a_partition_that_is_gone_are_answered() -> None:
    lists, (gone, cells, _), (left, left_cells, _) = WaitLists(WORKER, lambda: False), partition(10), partition(10)
    owner = Answers(lists)
    one = delayed(lists, [(gone, 11), (left, 11)], owner=owner)
    idle = PartitionWatch()
    lists.await_at(idle, [(gone, 11)])
    lists.drop(gone)
    assert owner.answered == [one] and list(idle.moved) == [gone]
    assert (cells.wait, left_cells.wait, lists.waiting) == (0, 0, 0)


def test_time_runs_out_in_order_of_deadlines() -> None:
    lists, (wait_list, _, _) = WaitLists(WORKER, lambda: False), partition()
    late, early, answered = (delayed(lists, [(wait_list, 1)], deadline_ms) for deadline_ms in (300, 100, 50))
    answer(answered)
    assert lists.next_deadline_ms() == 100
    assert list(lists.expired(99)) == []
    assert list(lists.expired(300)) == [early, late]


def test_requests_for_which_a_turn_has_no_time_come_in_the_next() -> None:
    """Goal: one at least comes in each.  Method: a turn is over when two have come since it was asked last."""
    seen = iter([False, True] * 5)
    lists, (wait_list, _, table) = WaitLists(WORKER, lambda: next(seen)), partition(10)
    owner = Answers(lists)
    waiting = [delayed(lists, [(wait_list, 11)], 500, owner) for _ in range(6)]
    table.publish_high_watermark(11, 0)
    lists.retry_reached(ALL)
    assert len(owner.retried) == 2 and lists.unfinished
    lists.answer_expired(500)
    assert len(owner.answered) == 2
    lists.retry_ready()
    assert len(owner.retried) == 4
    lists.retry_ready()
    assert not lists.unfinished and {*owner.retried, *owner.answered} == {*waiting}


def test_a_closed_connection_waits_no_more() -> None:
    lists, (wait_list, cells, _) = WaitLists(WORKER, lambda: False), partition(10)
    one = delayed(lists, [(wait_list, 11)])
    one.pending.connection.end()
    assert not one.waits and cells.wait == 0 and lists.everything() == []


def test_answered_fetches_behind_one_that_waits_long_are_not_kept() -> None:
    lists, (wait_list, _, _) = WaitLists(WORKER, lambda: False), partition()
    delayed(lists, [(wait_list, 1)], 1)
    for _ in range(10 * STALE_MAX):
        answer(delayed(lists, [(wait_list, 1)], 300_000))
    assert len(lists._deadlines) <= 2 * STALE_MAX
    assert len(wait_list._heap) <= 2 * STALE_MAX


def test_a_partition_that_is_named_often_is_waited_at_once_for_the_lowest_high_watermark() -> None:
    lists, (wait_list, cells, table) = WaitLists(WORKER, lambda: False), partition(10)
    owner = Answers(lists)
    first, second = (delayed(lists, [(wait_list, end) for end in range(4_000, 20, -1)], owner=owner) for _ in range(2))
    assert cells.wait == 21 and len(wait_list) == 2 and len(wait_list._heap) == 2
    answer(first)
    table.publish_high_watermark(21, 0)
    lists.retry_reached(ALL)
    assert owner.retried == [second]


class Counted(int):
    """A high watermark that counts how often any is compared with another."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


def wake_and_wait_again(consumers: int, partitions: int) -> float:
    """Comparisons per consumer and partition when all wait at all partitions, and a message comes to the first one."""
    lists, places = WaitLists(WORKER, lambda: False), [partition(4, slot) for slot in range(partitions)]
    awaited: list[Awaited] = [(wait_list, Counted(5)) for wait_list, _, _ in places]
    owner = Answers(lists)
    Counted.comparisons = 0
    waiting = [delayed(lists, awaited, owner=owner) for _ in range(consumers)]
    places[0][2].publish_high_watermark(5, 0)
    lists.retry_reached([0])
    assert owner.retried == waiting
    awaited[0] = (places[0][0], Counted(6))
    waiting = [delayed(lists, awaited, owner=owner) for _ in range(consumers)]
    for one in waiting[: consumers // 10]:
        one.pending.connection.end()
    return Counted.comparisons / (consumers * partitions)


def test_a_message_costs_in_proportion_to_the_consumers_that_wait_for_it() -> None:
    """Fan-out: it was their square.  The logarithm of a heap that is sixteen times as large is larger by four."""
    few, many = wake_and_wait_again(250, 1), wake_and_wait_again(4_000, 1)
    assert many < few + 60


def test_consumers_at_many_partitions_cost_in_proportion_to_the_partitions() -> None:
    few, many = wake_and_wait_again(100, 5), wake_and_wait_again(100, 200)
    assert many < 1.5 * few
