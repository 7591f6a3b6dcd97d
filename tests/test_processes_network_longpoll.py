"""appliance.processes.network.longpoll: the lowest END is asked for, nobody is forgotten, memory stays bounded."""

from __future__ import annotations

from typing import cast

from appliance.processes.network.connection import Connection, Pending
from appliance.processes.network.longpoll import STALE_MAX, LongPoll, Parked, Place, wants_of_fetch
from appliance.shared.table import ROWS, WAITS, SegmentTable
from appliance.wire.requests import Fetch, FetchPart

WORKER = 3


class Cells(list[int]):
    """A table's cells, and the wait cell of our worker in it."""

    @property
    def wait(self) -> int:
        return self[WAITS + WORKER]


def place(end: int = 0) -> tuple[Place, Cells, SegmentTable]:
    cells = Cells([0] * (ROWS + 4))
    table = SegmentTable(cells)
    table.publish([0], 0, end, 0)
    return Place(table), cells, table


def park(poll: LongPoll, one: Parked, request: Fetch, places: list[Place]) -> bool:
    """Park a fetch that has seen the ENDs as they are."""
    return poll.park(one, wants_of_fetch(request, places, [spot.table.end for spot in places]))


def fetch(*offsets: int, bytes_min: int = 1, wait_ms: int = 500) -> Fetch:
    parts = [FetchPart("t", number, offset, 1 << 20) for number, offset in enumerate(offsets)]
    return Fetch(None, wait_ms, bytes_min, 1 << 20, parts)


def parked(deadline_ms: int = 500) -> Parked:
    return Parked(Pending(cast(Connection, None), fetch(0)), deadline_ms)


def test_the_lowest_end_that_anybody_needs_is_asked_for() -> None:
    poll, (spot, cells, table) = LongPoll(WORKER), place(100)
    patient, eager = parked(), parked()
    assert park(poll, patient, fetch(100, bytes_min=50), [spot])
    assert park(poll, eager, fetch(100), [spot])
    assert cells.wait == 101
    table.publish_end(120, 0)
    assert poll.reached() == [eager]
    poll.unpark(eager)
    assert cells.wait == 150
    table.publish_end(150, 0)
    assert poll.reached() == [patient]
    poll.unpark(patient)
    assert cells.wait == 0 and poll.everybody() == []


def test_a_fetch_that_has_no_time_waits_for_anything() -> None:
    poll, (spot, cells, _) = LongPoll(WORKER), place(100)
    assert park(poll, parked(), fetch(100, bytes_min=50, wait_ms=0), [spot])
    assert cells.wait == 101


def test_an_end_that_has_come_meanwhile_is_not_waited_for() -> None:
    poll, (spot, cells, _) = LongPoll(WORKER), place(100)
    assert not park(poll, parked(), fetch(99), [spot])
    assert cells.wait == 0 and poll.everybody() == [] and poll.next_deadline_ms() is None


def test_a_fetch_of_several_waits_for_anything_new_in_one_of_them() -> None:
    poll, (one, one_cells, _), (two, two_cells, table) = LongPoll(WORKER), place(10), place(20)
    both = parked()
    assert park(poll, both, fetch(10, 5, bytes_min=1_000), [one, two])  # 15 bytes are there in the second already
    assert (one_cells.wait, two_cells.wait) == (11, 21)
    table.publish_end(21, 0)
    assert poll.reached() == [both]
    poll.unpark(both)
    assert (one_cells.wait, two_cells.wait) == (0, 0)


def test_what_has_come_to_one_of_several_since_it_was_looked_at_is_not_waited_for() -> None:
    poll, (one, _, _), (two, two_cells, table) = LongPoll(WORKER), place(10), place(20)
    table.publish_end(21, 0)
    assert not poll.park(parked(), wants_of_fetch(fetch(10, 20), [one, two], [10, 20]))
    assert two_cells.wait == 0


def test_what_has_not_come_yet_can_be_waited_for_again() -> None:
    poll, (one, _, one_table), (two, two_cells, table) = LongPoll(WORKER), place(10), place(20)
    question = parked()
    assert poll.park(question, [(one, 15), (two, 25)])
    one_table.publish_end(15, 0)
    assert poll.reached() == [question]
    missing = [(spot, end) for spot, end in poll.wants_of(question) if spot.table.end < end]
    poll.unpark(question)
    assert missing == [(two, 25)]
    assert poll.park(question, missing)
    table.publish_end(30, 0)
    assert poll.reached() == [question]
    poll.unpark(question)
    assert poll.wants_of(question) == [] and two_cells.wait == 0


def test_time_runs_out_in_order_of_deadlines() -> None:
    poll, (spot, _, _) = LongPoll(WORKER), place()
    late, early, answered = parked(300), parked(100), parked(50)
    for one in (late, early, answered):
        park(poll, one, fetch(0), [spot])
    poll.unpark(answered)
    assert poll.next_deadline_ms() == 100
    assert list(poll.expired(99)) == []
    assert list(poll.expired(300)) == [early, late]


def test_answered_fetches_behind_one_that_waits_long_are_not_kept() -> None:
    poll, (spot, _, _) = LongPoll(WORKER), place()
    park(poll, parked(1), fetch(0), [spot])
    for _ in range(10 * STALE_MAX):
        busy = parked(300_000)
        park(poll, busy, fetch(0), [spot])
        poll.unpark(busy)
    assert len(poll._deadlines) <= 2 * STALE_MAX
    assert len(spot._heap) <= 2 * STALE_MAX


def test_a_place_that_is_named_often_is_waited_at_once_for_the_lowest_end() -> None:
    poll, (spot, cells, table) = LongPoll(WORKER), place(10)
    first, second = parked(), parked()
    for one in (first, second):
        assert poll.park(one, [(spot, end) for end in range(4_000, 20, -1)])
    assert cells.wait == 21 and len(spot) == 2 and len(spot._heap) == 2
    poll.unpark(first)
    table.publish_end(21, 0)
    assert poll.reached() == [second]


def test_who_is_parked_again_and_again_has_one_deadline() -> None:
    poll, (spot, _, _) = LongPoll(WORKER), place()
    one = parked(300)
    for _ in range(10 * STALE_MAX):
        park(poll, one, fetch(0), [spot])
        poll.unpark(one)
    park(poll, one, fetch(0), [spot])
    assert len(poll._deadlines) == 1 and poll.next_deadline_ms() == 300
    assert list(poll.expired(300)) == [one]
