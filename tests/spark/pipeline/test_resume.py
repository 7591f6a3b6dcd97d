"""Every state in which tables, plan and log can be to each other, and what is decided for it."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue
from appliance.spark.pipeline.batch_record import BEGINNING, BatchRecord, TopicRead, decode_record
from appliance.spark.pipeline.resume import (
    Resumption,
    TopicLog,
    decide,
    floors_now,
    lines_before,
    next_back,
    next_batch,
)


def record(batch: int, first: int, end: int, id: str = "A", run: str = "r", topic: str = "t") -> BatchRecord:
    return BatchRecord(batch, run, {topic: TopicRead(id, {0: (first, end)})}, since={topic: {0: first}})


def log(start: int, end: int, id: str = "A") -> dict[str, TopicLog]:
    return {"t": TopicLog(id, {0: (start, end)})}


def resumed(found: Resumption) -> int:
    return found.begun.ends["t", 0]


@pytest.mark.parametrize(("latest", "at"), [(False, 10), (True, 50)])
def test_a_first_run_begins_where_the_settings_say(latest: bool, at: int) -> None:
    found = decide(None, log(10, 50), latest)
    assert found.first and not found.conflicts
    assert found.begun == record(BEGINNING, at, at, run="")


def test_what_was_not_read_before_is_read_from_its_start() -> None:
    logs = {"t": TopicLog("A", {0: (0, 90), 1: (5, 70)}), "new": TopicLog("N", {0: (3, 9)})}
    found = decide(record(4, 10, 30), logs, True)
    assert found.begun.ends == {("t", 0): 30, ("t", 1): 5, ("new", 0): 3} and not found.first
    assert found.begun.read["new"].id == "N" and not found.conflicts
    assert found.begun.since == {"t": {0: 10, 1: 5}, "new": {0: 3}}
    again = decide(
        msgspec.structs.replace(found.begun, since={"t": {0: 7, 1: 5}, "new": {0: 3}, "gone": {0: 1}}), logs, True
    ).begun
    assert again.since == {"t": {0: 7, 1: 5}, "new": {0: 3}, "gone": {0: 1}}, "it stays as long as the log does"
    other = decide(again, logs | {"t": TopicLog("B", {0: (2, 9)})}, True).begun
    assert other.since["t"] == {0: 2}


def test_a_topic_that_is_no_source_now_keeps_its_place() -> None:
    found = decide(
        BatchRecord(
            4, "r", record(4, 10, 30).read | record(4, 0, 7, topic="old").read, since={"t": {0: 10}, "old": {0: 0}}
        ),
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
        found = decide(record(2, 0, stored, stored_id), log(start, end, log_id), False)
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
        assert found.begun.batch == 2


def test_a_partition_or_a_topic_that_is_gone() -> None:
    for logs in ({"t": TopicLog("A", {})}, {"t": TopicLog("", {})}):
        found = decide(record(2, 0, 7), logs, False)
        assert [each.what for each in found.conflicts] == ["there is no such partition any more"]
        assert resumed(found) == 0
    assert not decide(record(2, 0, 0), {"t": TopicLog("", {})}, False).conflicts, "nothing of it was read"


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=4), st.integers(0, 300))
def test_plans_follow_each_other_until_everything_is_read(sizes: list[tuple[int, int]], bytes_max: int) -> None:
    logs = {"t": TopicLog("A", {part: (start, start + size) for part, (start, size) in enumerate(sizes)})}
    heads = {("t", part): start + size for part, (start, size) in enumerate(sizes)}
    last, read = decide(None, logs, False).begun, 0
    while (plan := next_batch(last, heads, bytes_max, "run")) is not None:
        assert plan.batch == last.batch + 1 and 0 < plan.bytes <= (bytes_max or plan.bytes)
        assert {key: first for key, (first, _) in plan.ranges()} == last.ends
        last, read = plan, read + plan.bytes
        if not bytes_max:
            assert next_batch(last, heads, 0, "run") is None
    assert read == sum(size for _, size in sizes) and last.ends == heads


Extents = st.lists(st.tuples(*[st.integers(0, 100)] * 3).map(sorted), min_size=1, max_size=4)


@given(Extents, Extents, st.integers(0, 300))
def test_older_lines_come_back_once_the_newest_first(
    lines: list[list[int]], counts: list[list[int]], bytes_max: int
) -> None:
    """Of each partition where its log starts, where the table begins and where it ends; counts come last."""
    topics = {"t": lines, "counts": counts}
    logs = {name: TopicLog(name, {p: (of[0], of[2]) for p, of in enumerate(parts)}) for name, parts in topics.items()}
    read = {name: TopicRead(name, {p: (of[2], of[2]) for p, of in enumerate(parts)}) for name, parts in topics.items()}
    since = {name: {p: of[1] for p, of in enumerate(parts)} for name, parts in topics.items()}
    last = decide(BatchRecord(7, "r", read, since=since), logs, False).begun
    before = lines_before(last, logs)
    there = {(name, p): (of[0], of[1]) for name, parts in topics.items() for p, of in enumerate(parts)}
    assert before == {key: (first, end) for key, (first, end) in there.items() if first < end}
    floors = {key: first for key, (first, _) in before.items()}
    ends, waiting = last.ends, sum(of[1] - of[0] for of in lines)
    while (plan := next_back(last, floors, bytes_max, "run", "counts")) is not None:
        assert (plan.batch, plan.ends) == (last.batch + 1, ends) and 0 < plan.bytes <= (bytes_max or plan.bytes)
        for key, (first, end) in plan.spans().items():
            assert end == last.beginnings[key] and first == plan.beginnings[key] >= floors[key]
            assert key.topic != "counts" or not waiting
        waiting -= sum(end - first for key, (first, end) in plan.spans().items() if key.topic == "t")
        last = plan
    assert lines_before(decide(last, logs, False).begun, logs) == {}


def test_what_retention_has_removed_meanwhile_is_not_gone_back_to() -> None:
    since = {"t": {0: 50, 1: 50}}
    before = lines_before(BatchRecord(1, since=since), {"t": TopicLog("A", {0: (20, 90), 1: (60, 90)})})
    assert floors_now({"t": {0: 10, 1: 10, 2: 0}}, before) == {("t", 0): 20}
    assert floors_now({"t": {0: 30}}, before) == {("t", 0): 30} and floors_now({}, before) == {}


def test_a_log_that_has_lost_its_end_to_before_the_beginning_begins_there() -> None:
    found = decide(record(4, 50, 70), log(0, 40), False)
    assert (resumed(found), found.begun.since) == (40, {"t": {0: 40}}), "from 40 on lines come as new ones"


def test_a_record_that_does_not_say_since_when_is_none() -> None:
    """Its backfill would read again what the table has."""
    whole = record(4, 50, 70).encode()
    assert decode_record(whole, "events") == record(4, 50, 70)
    for lacks in (whole.replace('"since":{"t":{"0":50}}', '"since":{}'), whole.replace('{"0":50}', "{}"), "{", "[]"):
        assert lacks != whole
        with pytest.raises(BadValue, match="events: what a commit says of the offsets that were read cannot be used"):
            decode_record(lacks, "events")
