"""Searching: every message once, each partition in its order, in bounded steps, in both directions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.client import EARLIEST, LATEST, Message
from appliance.console import message_search
from appliance.console.message_search import (
    STEP_MS_MAX,
    TOPIC,
    UNPACKED_BYTES_MAX,
    Places,
    Query,
    Search,
    SearchedBatch,
    StepResult,
    chosen_topics,
    cursor_text,
    parse_cursor,
    shown,
)
from appliance.console.value_decoding import MessageView
from appliance.errors import InvalidRequest, UnknownPartition, WriterGone
from appliance.names import TopicPartition

GAP = 40
"""Offsets are bytes: each message of these logs has so many."""
PLAIN = MessageView()
WEB = [TopicPartition("web", number) for number in range(3)]


class FakeLog:
    """Partitions of (timestamp, value), one message a batch; those in ``broken`` cannot be read."""

    damaged = too_large = unpacked_bytes = 0

    def __init__(
        self, *partitions: list[tuple[int, bytes]], broken: frozenset[int] = frozenset(), cost: int = 0, **others: Any
    ) -> None:
        """The partitions of ``web``, and of ``others`` by topic.

        ``broken``: partitions of any topic; ``cost``: what each message unpacks to.
        """
        self._broken, self._cost = broken, cost
        self._messages = {
            topic: [
                [
                    Message(topic, number, (at + 1) * GAP - 1, time, b"key", value, ())
                    for at, (time, value) in enumerate(rows)
                ]
                for number, rows in enumerate(given)
            ]
            for topic, given in {"web": partitions, **others}.items()
        }

    def topics(self) -> Iterable[str]:
        return self._messages

    def partitions(self, topic: str) -> int:
        return len(self._messages[topic])

    def _rows(self, part: TopicPartition) -> list[Message]:
        return self._messages[part.topic][part.partition]

    def offsets(self, parts: Sequence[TopicPartition], when: int) -> tuple[Places, dict[TopicPartition, str]]:
        found = {}
        for part in parts:
            rows = self._rows(part)
            end = len(rows) * GAP
            since = next((row.offset for row in rows if row.timestamp >= when), end)
            found[part] = {EARLIEST: 0, LATEST: end}.get(when, since)
        return found, {}

    def read(self, part: TopicPartition, start: int, stop: int, *, newest_first: bool) -> Iterator[SearchedBatch]:
        if part.partition in self._broken:
            raise WriterGone("being restarted")
        rows = [row for row in self._rows(part) if start <= row.offset and row.offset - GAP + 1 < stop]
        for row in reversed(rows) if newest_first else rows:
            self.unpacked_bytes += self._cost
            yield SearchedBatch([row], row.offset - GAP + 1, row.offset + 1)


def search(
    query: Query,
    log: FakeLog,
    clock: Callable[[], float] = lambda: 0.0,
    may_read: Callable[[str], bool] = lambda _: True,
    view: MessageView = PLAIN,
) -> Search:
    return Search(query, chosen_topics(query, log, may_read), log, clock, lambda _: view)


def steps(log: FakeLog, topics: str = "web", **query: object) -> list[StepResult]:
    """All steps of a search."""
    found: list[StepResult] = []
    while not found or found[-1].cursor:
        cursor = found[-1].cursor if found else query.get("cursor", "")
        found.append(search(Query(topics=topics, **query | {"cursor": cursor}), log).step())  # type: ignore[arg-type]
        assert len(found) < 10_000, "it does not end"
    return found


logs = st.lists(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from([b"yes", b"no"])), max_size=30), min_size=1, max_size=4
)


@given(
    *(logs, st.sampled_from(["newest", "oldest"]), st.integers(1, 7), st.sampled_from(["", "YES"])),
    *(st.integers(40, 500), st.integers(1, 5), st.sampled_from([0, UNPACKED_BYTES_MAX // 3, 2 * UNPACKED_BYTES_MAX])),
)
def test_every_message_is_found_once_and_in_order(
    rows: list[list[tuple[int, bytes]]], order: str, limit: int, text: str, window: int, times: int, cost: int
) -> None:
    """Also where timestamps go back, where a window ends inside of a message, and where messages unpack to much."""
    log = FakeLog(*rows, cost=cost)
    before = message_search.WINDOW_BYTES_MIN, message_search.WINDOW_BYTES_MAX, message_search.FIRST_BYTES
    message_search.WINDOW_BYTES_MIN = window
    message_search.WINDOW_BYTES_MAX = message_search.FIRST_BYTES = window * times
    try:
        found = steps(log, order=order, limit=limit, text=text)
    finally:
        message_search.WINDOW_BYTES_MIN, message_search.WINDOW_BYTES_MAX, message_search.FIRST_BYTES = before
    assert all(len(step.messages) <= limit for step in found)
    for number, partition in enumerate(rows):
        wanted = [(at + 1) * GAP - 1 for at, (_, value) in enumerate(partition) if not text or value == b"yes"]
        seen = [message.offset for step in found for message in step.messages if message.partition == number]
        assert seen == (wanted[::-1] if order == "newest" else wanted)


def test_partitions_are_merged_by_time() -> None:
    log = FakeLog([(1, b"a"), (4, b"d")], [(2, b"b"), (3, b"c")])
    (found,) = steps(log)
    assert [message.value for message in found.messages] == [b"d", b"c", b"b", b"a"]
    (found,) = steps(log, order="oldest", time_ms=2)
    assert [message.value for message in found.messages] == [b"b", b"c", b"d"]


@given(logs, st.sampled_from(["newest", "oldest"]), st.integers(1, 7), st.integers(0, 21), st.integers(0, 21))
def test_an_end_leaves_out_what_is_later(
    rows: list[list[tuple[int, bytes]]], order: str, limit: int, begin: int, end: int
) -> None:
    """Whatever the order, in steps of any size: up to the first message of a partition that is not before the end."""
    begin, end = sorted((begin, end))
    found = steps(
        FakeLog(*rows), order=order, limit=limit, until_ms=end, **{"time_ms": begin} if order == "oldest" else {}
    )
    for number, partition in enumerate(rows):
        times = [time for time, _ in partition]
        first = next((at for at, time in enumerate(times) if time >= begin), len(times)) if order == "oldest" else 0
        last = next((at for at, time in enumerate(times) if time >= end), len(times))
        wanted = [(at + 1) * GAP - 1 for at in range(first, last)]
        seen = [message.offset for step in found for message in step.messages if message.partition == number]
        assert seen == (wanted[::-1] if order == "newest" else wanted)


def test_an_end_holds_from_an_offset_and_where_times_go_back() -> None:
    log = FakeLog([(5, b"a"), (9, b"late"), (6, b"b")])
    (found,) = steps(log, until_ms=8, partition=0, offset=3 * GAP - 1)
    assert [message.value for message in found.messages] == [b"a"]
    (found,) = steps(log, until_ms=10, order="oldest", time_ms=6)
    assert [message.value for message in found.messages] == [b"late", b"b"]
    (found,) = steps(FakeLog([(9, b"late")], [(7, b"c")]), until_ms=8)
    assert [message.value for message in found.messages] == [b"c"]


def test_a_partition_that_cannot_be_read_is_named_and_the_others_go_on() -> None:
    (found,) = steps(FakeLog([(1, b"a")], [(2, b"b")], broken=frozenset({0})))
    assert [message.value for message in found.messages] == [b"b"]
    assert found.unreadable == {WEB[0]: "being restarted"}


def test_an_offset_and_a_partition_begin_in_the_middle() -> None:
    log = FakeLog([(1, b"a"), (2, b"b"), (3, b"c")], [])
    (found,) = steps(log, partition=0, offset=2 * GAP - 1, order="oldest")
    assert [message.value for message in found.messages] == [b"b", b"c"]
    (found,) = steps(log, partition=0, offset=2 * GAP - 1)
    assert [message.value for message in found.messages] == [b"b", b"a"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"offset": 3}, "choose the partition"),
        ({"cursor": "o,web:0-1"}, "another search"),
        ({"cursor": "n,web:9-1"}, "another search"),
        ({"cursor": "n,app:0-1"}, "another search"),
        ({"cursor": "n,web:0-1.0"}, "not a cursor"),
        ({"cursor": "n,:0-1"}, "not a cursor"),
        ({"cursor": "n,web:" + ".".join(f"{number}-1" for number in range(513))}, "not a cursor"),
        ({"topics": "web,app", "partition": 0}, "belongs to one topic"),
        ({"topics": "nothing-*"}, "no topic"),
        ({"until_ms": 4, "time_ms": 5, "order": "oldest"}, "end lies before"),
        ({"until_ms": 4, "follow": True, "order": "oldest"}, "has no end"),
        ({"topics": ",".join(f"t{number}" for number in range(21))}, "name 20 at most"),
    ],
)
def test_queries_that_contradict_themselves(query: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        steps(FakeLog([], [], app=[[]]), **query)


def test_a_partition_that_does_not_exist() -> None:
    with pytest.raises(UnknownPartition, match="partitions 0 to 0"):
        steps(FakeLog([]), partition=1)


parts = st.builds(TopicPartition, st.from_regex(rf"\A{TOPIC}\Z"), st.integers(0, 999_999))


@given(st.booleans(), st.dictionaries(parts, st.integers(0, 2**63 - 1), min_size=1, max_size=50))
def test_a_cursor_is_read_as_it_was_written(newest: bool, left: Places) -> None:
    """In its order: whose turn it is."""
    assert list(parse_cursor(cursor_text(newest, left)).items()) == list(left.items())


def test_a_value_is_shown_as_text_or_hexadecimal_and_cut() -> None:
    def value(content: bytes | None) -> object:
        return shown(Message("web", 0, 1, 2, None, content, ()), 10)["value"]

    assert value(None) is None
    assert value("grün".encode()) == {"text": "grün", "bytes": 5}
    assert value(b"\xff\x00") == {"hex": "ff 00", "bytes": 2}
    assert value("012345678ü".encode()) == {"text": "012345678", "bytes": 11}, "cut inside of a character"


class GrowingLog(FakeLog):
    """A log that somebody writes to between two steps."""

    def write(self, partition: int, time: int, value: bytes) -> None:
        rows = self._messages["web"][partition]
        rows.append(Message("web", partition, (len(rows) + 1) * GAP - 1, time, b"key", value, ()))


@given(
    before=st.lists(st.integers(0, 2), max_size=10),
    rounds=st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=6),
    limit=st.integers(1, 5),
)
def test_who_follows_gets_each_new_message_once(before: list[int], rounds: list[list[int]], limit: int) -> None:
    """From the ends of its first step on, in the order of each partition, however few a step may bring."""
    log = GrowingLog([], [], [])
    for number, partition in enumerate(before):
        log.write(partition, number, b"old")
    cursor, got = "", []
    written = 0
    for batch in [[], *rounds, []]:
        for partition in batch:
            log.write(partition, written, b"new %d" % written)
            written += 1
        for _ in range(len(batch) + 2):
            query = Query(topics="web", order="oldest", follow=True, limit=limit, cursor=cursor)
            found = search(query, log).step()
            cursor = found.cursor
            assert parse_cursor(cursor).keys() == set(WEB), "no partition is ever finished"
            got += found.messages
    assert sorted(message.value or b"" for message in got) == sorted(b"new %d" % number for number in range(written))
    for partition in range(3):
        offsets = [message.offset for message in got if message.partition == partition]
        assert offsets == sorted(offsets)


def test_a_partition_that_cannot_be_read_is_tried_again() -> None:
    log = GrowingLog([], [], broken=frozenset({1}))
    first = search(Query(topics="web", order="oldest", follow=True), log).step()
    log.write(0, 1, b"a")
    log.write(1, 1, b"b")
    second = search(Query(topics="web", order="oldest", follow=True, cursor=first.cursor), log).step()
    assert [message.value for message in second.messages] == [b"a"] and WEB[1] in second.unreadable
    log._broken = frozenset()
    third = search(Query(topics="web", order="oldest", follow=True, cursor=second.cursor), log).step()
    assert [message.value for message in third.messages] == [b"b"]


ROWS = [
    (0, b'{"status": 500, "http": {"method": "GET"}, "path": "/a"}'),
    (1, b'level=error status=500 msg="too late"'),
    (2, b"GET /b 500"),
    (3, b"\xff\xfe timeout"),
    (4, b""),
]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"match": "^GET /[a-z]"}, [2]),
        ({"match": "(?i)TIMEOUT|late"}, [1, 3]),
        ({"field": "status=500"}, [0, 1]),
        ({"field": "http.method=GET"}, [0]),
        ({"field": "msg=too late"}, [1]),
        ({"field": "status=500", "match": "path"}, [0]),
        ({"field": "status=500", "text": "LATE"}, [1]),
        ({"match": r"\xff"}, [3]),
    ],
)
def test_values_are_chosen_by_expression_and_field(query: dict[str, str], expected: list[int]) -> None:
    found = [message.timestamp for step in steps(FakeLog(ROWS), order="oldest", **query) for message in step.messages]
    assert found == expected


@pytest.mark.parametrize("query", [{"match": "("}, {"match": r"(a)\1"}, {"field": "status"}, {"field": "=x"}])
def test_what_is_no_filter_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        search(Query(topics="web", **query), FakeLog(ROWS))  # type: ignore[arg-type]


def test_no_expression_makes_a_search_slow() -> None:
    """One that takes a matcher with backtracking 2**5000 steps."""
    log = FakeLog([(0, b"a" * 5_000 + b"!")])
    assert not [one for step in steps(log, match="(a+)+$") for one in step.messages]


class OneBatchLog(FakeLog):
    """All messages of a partition are in one batch."""

    def read(self, part: TopicPartition, start: int, stop: int, *, newest_first: bool) -> Iterator[SearchedBatch]:
        rows = self._rows(part)
        if start < len(rows) * GAP and stop > 0:
            yield SearchedBatch(list(rows), 0, len(rows) * GAP)


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_an_expensive_expression_stops_a_step_within_a_batch(
    monkeypatch: pytest.MonkeyPatch, order: str, partitions: int
) -> None:
    """Goal: steps end in about their time, and together find each message once.  Method: a search takes 0.2 s."""
    passed_s = 0.0
    make_select = message_search.make_select

    def make_slow(*what: Any) -> Any:
        select = make_select(*what)
        assert select is not None

        def slow(values: Sequence[bytes | None]) -> list[int]:
            nonlocal passed_s
            passed_s += 0.2 * len(values)
            return select(values)

        return slow

    monkeypatch.setattr(message_search, "make_select", make_slow)
    rows = [(at, b"yes" if at % 3 else b"no") for at in range(20)]
    log = OneBatchLog(*[rows] * partitions)
    cursor, found = "", []
    for _ in range(1_000):
        since_s = passed_s
        step = search(Query(topics="web", order=order, match="^yes$", cursor=cursor), log, lambda: passed_s).step()  # type: ignore[arg-type]
        assert 0 < step.scanned <= 6 and passed_s - since_s < 2 * STEP_MS_MAX / 1000 + 0.25, "and one search more"
        found += [(message.partition, message.timestamp) for message in step.messages]
        cursor = step.cursor
        if not cursor:
            break
    wanted = [at for at, value in rows if value == b"yes"]
    for number in range(partitions):
        seen = [at for partition, at in found if partition == number]
        assert seen == (wanted[::-1] if order == "newest" else wanted)


@pytest.mark.parametrize(
    ("match", "too_costly"), [("[a-q].{200}[xyz]", 1), ("a.{300}x", 1), ("(?i)connection (refused|reset) by", 0)]
)
def test_a_large_value_takes_no_seconds_whatever_the_expression(match: str, too_costly: int) -> None:
    """A value of 1 MiB: an expression that would take seconds is not applied, and the answer counts that."""
    log = OneBatchLog([(0, b"a" * (1 << 20))])
    begun_s = time.thread_time()
    found = search(Query(topics="web", match=match), log, time.monotonic).step()
    assert (found.too_costly, found.scanned, found.messages) == (too_costly, 1, [])
    assert time.thread_time() - begun_s < 1
    assert search(Query(topics="web", match="a$"), log, time.monotonic).step().messages, "an expression of people"


@pytest.mark.parametrize("match", ["[a-q].{900}[xyz]{20}", "[^x]{1000}[^y]{900}"])
def test_an_expression_with_a_large_program_is_refused(match: str) -> None:
    with pytest.raises(InvalidRequest, match="no regular expression"):
        search(Query(topics="web", match=match), FakeLog(ROWS))


def test_who_follows_begins_at_the_oldest() -> None:
    with pytest.raises(InvalidRequest):
        search(Query(topics="web", follow=True), FakeLog(ROWS)).step()


def test_several_topics_are_one_search() -> None:
    """Merged by time, in both directions, and a pattern stands for those that are there and may be read."""
    log = FakeLog([(1, b"a"), (4, b"d")], app=[[(2, b"b")], [(3, b"c")]], secret=[[(5, b"s")]], other=[[(6, b"o")]])
    for order, values in (("oldest", b"abcd"), ("newest", b"dcba")):
        (found,) = steps(log, "web, app", order=order)
        assert b"".join(message.value or b"" for message in found.messages) == values
    (found,) = steps(log, "web,app,o*r", field="", order="oldest")
    assert [message.topic for message in found.messages] == ["web", "app", "app", "web", "other"]
    query = Query(topics="*e*")
    assert chosen_topics(query, log, lambda topic: topic != "secret") == ["other", "web"]
    assert chosen_topics(Query(topics="secret,w*"), log, lambda topic: topic == "web") == ["secret", "web"], (
        "checked by"
    )


def test_what_is_searched_is_chosen_once() -> None:
    """A topic that is made after the first step is not part of the search; those of the cursor are."""
    log = FakeLog([(at, b"w") for at in range(4)], app=[[(at, b"a") for at in range(4)]])
    first = search(Query(topics="*", limit=2), log).step()
    log._messages["late"] = [[Message("late", 0, GAP - 1, 0, b"key", b"l", ())]]
    query = Query(topics="*", limit=50, cursor=first.cursor)
    assert chosen_topics(query, log, lambda _: False) == ["app", "web"], "which the caller checks"
    second = search(query, log).step()
    assert sorted(message.value or b"" for message in first.messages + second.messages) == [b"a"] * 4 + [b"w"] * 4


def test_no_partition_waits_for_the_end_of_another() -> None:
    """Each step has time for one window; the next one reads on where nobody has read for the longest time."""
    window = message_search.WINDOW_BYTES_MAX
    rows = [(at, b"no") for at in range(3 * window // GAP)]
    log = FakeLog(rows, rows, app=[rows])
    seconds = itertools.count()
    cursor, turns = "", []
    for _ in range(6):
        step = search(Query(topics="web,app", text="yes", cursor=cursor), log, lambda: float(next(seconds))).step()
        before, cursor = parse_cursor(cursor) if cursor else {}, step.cursor
        turns += [part for part, at in parse_cursor(cursor).items() if before.get(part, len(rows) * GAP) != at]
    assert len(turns) == 6 and set(turns[:3]) == set(turns[3:]) == {*WEB[:2], TopicPartition("app", 0)}
