"""Every state in which tables, plan and log can be to each other, and what is decided for it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline.batch_record import BEGINNING, BatchRecord, TopicRead
from appliance.spark.pipeline.resume import Resumption, TopicLog, decide, next_plan


def record(batch: int, first: int, end: int, id: str = "A", run: str = "r", topic: str = "t") -> BatchRecord:
    return BatchRecord(batch, run, 0, {topic: TopicRead(id, {0: (first, end)})})


def log(start: int, end: int, id: str = "A") -> dict[str, TopicLog]:
    return {"t": TopicLog(id, {0: (start, end)})}


def resumed(found: Resumption) -> int:
    return found.begun.ends["t", 0]


@pytest.mark.parametrize(("latest", "at"), [(False, 10), (True, 50)])
def test_a_first_run_begins_where_the_settings_say(latest: bool, at: int) -> None:
    found = decide(None, None, None, log(10, 50), latest)
    assert found.first and not found.conflicts and found.begun == record(BEGINNING, at, at, run="")


def test_what_was_not_read_before_is_read_from_its_start() -> None:
    logs = {"t": TopicLog("A", {0: (0, 90), 1: (5, 70)}), "new": TopicLog("N", {0: (3, 9)})}
    found = decide(record(4, 10, 30), None, None, logs, True)
    assert found.begun.ends == {("t", 0): 30, ("t", 1): 5, ("new", 0): 3} and not found.first
    assert found.begun.read["new"].id == "N" and not found.conflicts


def test_a_topic_that_is_no_source_now_keeps_its_place() -> None:
    found = decide(
        BatchRecord(4, "r", 0, record(4, 10, 30).read | record(4, 0, 7, topic="old").read),
        None,
        None,
        log(0, 40),
        False,
    )
    assert found.begun.read["old"] == TopicRead("A", {0: (7, 7)}) and not found.conflicts


@pytest.mark.parametrize("ids", [("A", "A"), ("", "A"), ("A", ""), ("A", "B")])
def test_every_order_of_the_stored_offset_and_the_bounds_of_the_log(ids: tuple[str, str]) -> None:
    """All of 0 to 3 as start, end and stored offset."""
    stored_id, log_id = ids
    for start, end, stored in product(range(4), repeat=3):
        if start > end:
            continue
        found = decide(record(2, 0, stored, stored_id), None, None, log(start, end, log_id), False)
        said = [str(each) for each in found.conflicts]
        if ids == ("A", "B"):
            assert resumed(found) == start and "created again (its id was A, now it is B)" in said[0]
            assert found.begun.read["t"].id == "B"
        elif stored < start:
            assert resumed(found) == start and f"retention has deleted {stored} to {start}" in said[0]
        elif end < stored:
            assert resumed(found) == end and f"the log has lost {end} to {stored}" in said[0]
        else:
            assert (resumed(found), said) == (stored, [])
            assert found.begun.read["t"].id == "A"
        assert all(f"up to offset {stored}, its log has {start} to {end}" in text for text in said)
        assert found.acceptable and found.begun.batch == 2


def test_a_partition_or_a_topic_that_is_gone() -> None:
    for logs in ({"t": TopicLog("A", {})}, {"t": TopicLog("", {})}):
        found = decide(record(2, 0, 7), None, None, logs, False)
        assert [each.what for each in found.conflicts] == ["there is no such partition any more"]
        assert resumed(found) == 0
    assert not decide(record(2, 0, 0), None, None, {"t": TopicLog("", {})}, False).conflicts, "nothing of it was read"


@pytest.mark.parametrize(
    ("plan", "logs", "repeated"),
    [
        (record(5, 30, 60), log(0, 60), True),
        (record(5, 30, 60), log(30, 99), True),
        (record(5, 30, 60, id=""), log(0, 60), True),
        (record(4, 30, 60), log(0, 60), False),  # committed already
        (record(6, 30, 60), log(0, 60), False),  # of tables that were newer
        (record(5, 20, 60), log(0, 60), False),  # of other tables
        (record(5, 30, 60), log(0, 59), False),  # the log has lost its end
        (record(5, 30, 60), log(31, 99), False),  # retention was faster
        (record(5, 30, 60, id="B"), log(0, 60), False),
        (record(5, 30, 60, id="B"), log(0, 60, "B"), False),  # of the topic that was created again
        (record(5, 30, 60), {}, False),  # the topic is no source now
        (record(5, 1, 9, topic="u"), log(0, 60) | {"u": TopicLog("A", {0: (0, 9)})}, True),  # new in the plan
        (record(5, 1, 9, topic="u"), log(0, 60) | {"u": TopicLog("A", {0: (2, 9)})}, False),
    ],
)
def test_a_plan_is_repeated_if_it_follows_the_tables(
    plan: BatchRecord, logs: dict[str, TopicLog], repeated: bool
) -> None:
    found = decide(record(4, 10, 30), plan, None, logs, False)
    assert (found.replay is not None) == repeated
    if found.replay is not None:
        ((key, bounds),) = [each for each in plan.ranges() if each[1][0] < each[1][1]]
        assert dict(found.replay.ranges())[key] == bounds and found.replay.run == plan.run
        assert set(found.replay.ends) == set(found.begun.ends), "also what it does not read has its place"
    unfinished = decide(record(4, 10, 30), None, plan, logs, False)
    assert (unfinished.replay is not None) == repeated
    if not repeated:
        assert not unfinished.acceptable and "restore all tables" in str(unfinished.conflicts[-1])


def test_a_plan_does_not_bring_back_what_was_accepted() -> None:
    """The plan has an empty range of a topic that has been created again since."""
    plan = BatchRecord(5, "r", 0, record(5, 30, 60).read | {"u": TopicRead("A", {0: (7, 7)})})
    stored = BatchRecord(4, "r", 0, record(4, 10, 30).read | {"u": TopicRead("A", {0: (0, 7)})})
    logs = log(0, 90) | {"u": TopicLog("B", {0: (0, 50)})}
    found = decide(stored, plan, None, logs, False)
    assert [each.topic for each in found.conflicts] == ["u"] and found.replay is not None
    assert found.replay.read["u"] == TopicRead("B", {0: (0, 0)})
    accepted = decide(found.begun, plan, None, logs, False)
    assert not accepted.conflicts and accepted.replay == found.replay


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=4), st.integers(0, 300))
def test_plans_follow_each_other_until_everything_is_read(sizes: list[tuple[int, int]], bytes_max: int) -> None:
    logs = {"t": TopicLog("A", {part: (start, start + size) for part, (start, size) in enumerate(sizes)})}
    heads = {("t", part): start + size for part, (start, size) in enumerate(sizes)}
    last, read = decide(None, None, None, logs, False).begun, 0
    while (plan := next_plan(last, heads, bytes_max, "run")) is not None:
        assert plan.batch == last.batch + 1 and 0 < plan.bytes <= (bytes_max or plan.bytes)
        assert {key: first for key, (first, _) in plan.ranges()} == last.ends
        assert decide(last, plan, None, logs, False).replay == plan
        last, read = plan, read + plan.bytes
        if not bytes_max:
            assert next_plan(last, heads, 0, "run") is None
    assert read == sum(size for _, size in sizes) and last.ends == heads
