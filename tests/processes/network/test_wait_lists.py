"""appliance.processes.network.wait_lists: the lowest awaited offset is stored, no wait is lost, memory is bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from appliance.processes.network.connection_state import Connection, Pending
from appliance.processes.network.fetching import awaited_by
from appliance.processes.network.wait_lists import PARTS_PER_TURN, STALE_MAX, DelayedRequest, WaitList, WaitLists
from appliance.shared.table import ROWS, WAITS, SegmentTable
from appliance.wire.requests import Fetch, FetchPart

WORKER = 3


class Cells(list[int]):
    """A table's cells, and the wait cell of our worker in it."""

    @property
    def wait(self) -> int:
        return self[WAITS + WORKER]


class Answers:
    """Owner of delayed requests: what it was told to do with them."""

    def __init__(self, lists: WaitLists) -> None:
        self._lists = lists
        self.retried: list[DelayedRequest] = []
        self.answered: list[DelayedRequest] = []

    def retry(self, one: DelayedRequest) -> None:
        self._lists.remove(one)
        self.retried.append(one)

    def answer(self, one: DelayedRequest) -> None:
        self._lists.remove(one)
        self.answered.append(one)


def partition(high_watermark: int = 0) -> tuple[WaitList, Cells, SegmentTable]:
    cells = Cells([0] * (ROWS + 4))
    table = SegmentTable(cells)
    table.publish([0], 0, high_watermark, 0)
    return WaitList(table), cells, table


def delay(lists: WaitLists, one: DelayedRequest, request: Fetch, at: list[WaitList]) -> bool:
    """Delay a fetch that has seen the high watermarks as they are."""
    return lists.delay(one, awaited_by(request, at, [wait_list.table.high_watermark for wait_list in at]))


def fetch(*offsets: int, bytes_min: int = 1, wait_ms: int = 500) -> Fetch:
    parts = [FetchPart("t", number, offset, 1 << 20) for number, offset in enumerate(offsets)]
    return Fetch(None, wait_ms, bytes_min, 1 << 20, parts)


def delayed(deadline_ms: int = 500, owner: Answers | None = None, request: Fetch | None = None) -> DelayedRequest:
    pending = Pending(cast(Connection, SimpleNamespace(delayed=None, read_ns=0)), request or fetch(0))
    return DelayedRequest(pending, deadline_ms, cast(Answers, owner))


def test_the_lowest_high_watermark_that_anybody_awaits_is_asked_for() -> None:
    lists, (wait_list, cells, table) = WaitLists(WORKER), partition(100)
    patient, eager = delayed(), delayed()
    assert delay(lists, patient, fetch(100, bytes_min=50), [wait_list])
    assert delay(lists, eager, fetch(100), [wait_list])
    assert cells.wait == 101
    table.publish_high_watermark(120, 0)
    assert lists.reached() == [eager]
    lists.remove(eager)
    assert cells.wait == 150
    table.publish_high_watermark(150, 0)
    assert lists.reached() == [patient]
    lists.remove(patient)
    assert cells.wait == 0 and lists.everything() == []


def test_a_fetch_that_has_no_time_waits_for_anything() -> None:
    lists, (wait_list, cells, _) = WaitLists(WORKER), partition(100)
    assert delay(lists, delayed(), fetch(100, bytes_min=50, wait_ms=0), [wait_list])
    assert cells.wait == 101


def test_a_high_watermark_that_has_come_meanwhile_is_not_awaited() -> None:
    lists, (wait_list, cells, _) = WaitLists(WORKER), partition(100)
    assert not delay(lists, delayed(), fetch(99), [wait_list])
    assert cells.wait == 0 and lists.everything() == [] and lists.next_deadline_ms() is None


def test_a_fetch_of_several_waits_for_anything_new_in_one_of_them() -> None:
    lists, (one, one_cells, _), (two, two_cells, table) = WaitLists(WORKER), partition(10), partition(20)
    both = delayed()
    assert delay(lists, both, fetch(10, 5, bytes_min=1_000), [one, two])  # 15 bytes are there in the second already
    assert (one_cells.wait, two_cells.wait) == (11, 21)
    table.publish_high_watermark(21, 0)
    assert lists.reached() == [both]
    lists.remove(both)
    assert (one_cells.wait, two_cells.wait) == (0, 0)


def test_what_has_come_to_one_of_several_since_it_was_looked_at_is_not_awaited() -> None:
    lists, (one, _, _), (two, two_cells, table) = WaitLists(WORKER), partition(10), partition(20)
    table.publish_high_watermark(21, 0)
    assert not lists.delay(delayed(), awaited_by(fetch(10, 20), [one, two], [10, 20]))
    assert two_cells.wait == 0


def test_what_has_not_come_yet_can_be_awaited_again() -> None:
    lists, (one, _, one_table), (two, two_cells, table) = WaitLists(WORKER), partition(10), partition(20)
    question = delayed()
    assert lists.delay(question, [(one, 15), (two, 25)])
    one_table.publish_high_watermark(15, 0)
    assert lists.reached() == [question]
    missing = [(one, end) for one, end in lists.awaited_by(question) if one.table.high_watermark < end]
    lists.remove(question)
    assert missing == [(two, 25)]
    assert lists.delay(question, missing)
    table.publish_high_watermark(30, 0)
    assert lists.reached() == [question]
    lists.remove(question)
    assert lists.awaited_by(question) == [] and two_cells.wait == 0


def test_time_runs_out_in_order_of_deadlines() -> None:
    lists, (wait_list, _, _) = WaitLists(WORKER), partition()
    late, early, answered = delayed(300), delayed(100), delayed(50)
    for one in (late, early, answered):
        delay(lists, one, fetch(0), [wait_list])
    lists.remove(answered)
    assert lists.next_deadline_ms() == 100
    assert list(lists.expired(99)) == []
    assert list(lists.expired(300)) == [early, late]


def test_a_turn_looks_at_a_bounded_number_of_parts() -> None:
    """Goal: who is left over comes in the next turn.  Method: five requests of half of a turn's parts each."""
    lists, (wait_list, _, table) = WaitLists(WORKER), partition(10)
    owner, request = Answers(lists), fetch(*[10] * (PARTS_PER_TURN // 2))
    waiting = [delayed(500, owner, request) for _ in range(5)]
    for one in waiting:
        assert lists.delay(one, [(wait_list, 11)])
    table.publish_high_watermark(11, 0)
    lists.retry_reached()
    assert len(owner.retried) == 2 and lists.unfinished
    lists.answer_expired(500)
    assert len(owner.answered) == 2
    lists.retry_reached()
    assert len(owner.retried) == 3 and not lists.unfinished
    assert {*owner.retried, *owner.answered} == {*waiting}


def test_a_closed_connection_waits_no_more() -> None:
    lists, (wait_list, cells, _) = WaitLists(WORKER), partition(10)
    one = delayed()
    assert lists.delay(one, [(wait_list, 11)])
    assert one.pending.connection.delayed is one
    lists.forget(one.pending.connection)
    assert one.pending.connection.delayed is None and cells.wait == 0 and lists.everything() == []


def test_answered_fetches_behind_one_that_waits_long_are_not_kept() -> None:
    lists, (wait_list, _, _) = WaitLists(WORKER), partition()
    delay(lists, delayed(1), fetch(0), [wait_list])
    for _ in range(10 * STALE_MAX):
        busy = delayed(300_000)
        delay(lists, busy, fetch(0), [wait_list])
        lists.remove(busy)
    assert len(lists._deadlines) <= 2 * STALE_MAX
    assert len(wait_list._heap) <= 2 * STALE_MAX


def test_a_partition_that_is_named_often_is_waited_at_once_for_the_lowest_high_watermark() -> None:
    lists, (wait_list, cells, table) = WaitLists(WORKER), partition(10)
    first, second = delayed(), delayed()
    for one in (first, second):
        assert lists.delay(one, [(wait_list, end) for end in range(4_000, 20, -1)])
    assert cells.wait == 21 and len(wait_list) == 2 and len(wait_list._heap) == 2
    lists.remove(first)
    table.publish_high_watermark(21, 0)
    assert lists.reached() == [second]


def test_a_request_that_is_delayed_again_and_again_has_one_deadline() -> None:
    lists, (wait_list, _, _) = WaitLists(WORKER), partition()
    one = delayed(300)
    for _ in range(10 * STALE_MAX):
        delay(lists, one, fetch(0), [wait_list])
        lists.remove(one)
    delay(lists, one, fetch(0), [wait_list])
    assert len(lists._deadlines) == 1 and lists.next_deadline_ms() == 300
    assert list(lists.expired(300)) == [one]


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


def wake_and_delay_again(consumers: int, partitions: int) -> float:
    """Comparisons per consumer and partition when all wait at all partitions, and a message comes to the first one."""
    lists, places = WaitLists(WORKER), [partition(4) for _ in range(partitions)]
    awaited = [(wait_list, Counted(5)) for wait_list, _, _ in places]
    waiting = [delayed() for _ in range(consumers)]
    Counted.comparisons = 0
    for one in waiting:
        assert lists.delay(one, awaited)
    places[0][2].publish_high_watermark(5, 0)
    awaited[0] = (places[0][0], Counted(6))
    assert lists.reached() == waiting
    for one in waiting:
        lists.remove(one)
        assert lists.delay(one, awaited)
    for one in waiting[: consumers // 10]:
        lists.forget(one.pending.connection)
    return Counted.comparisons / (consumers * partitions)


def test_a_message_costs_in_proportion_to_the_consumers_that_wait_for_it() -> None:
    """Fan-out: it was their square.  The logarithm of a heap that is sixteen times as large is larger by four."""
    few, many = wake_and_delay_again(250, 1), wake_and_delay_again(4_000, 1)
    assert many < few + 60


def test_consumers_at_many_partitions_cost_in_proportion_to_the_partitions() -> None:
    few, many = wake_and_delay_again(100, 5), wake_and_delay_again(100, 200)
    assert many < 1.5 * few
