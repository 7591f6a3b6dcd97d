"""Searching: every message once, each partition in its order, in bounded steps, in both directions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.client import EARLIEST, LATEST, Message
from appliance.console import message_search
from appliance.console.message_search import (
    UNPACKED_BYTES_MAX,
    Batch,
    Found,
    Query,
    Search,
    cursor_text,
    parse_cursor,
    shown,
)
from appliance.errors import InvalidRequest, UnknownPartition, WriterGone

GAP = 40
"""Offsets are bytes: each message of these logs has so many."""


class FakeLog:
    """Partitions of (timestamp, value), one message a batch; those in ``broken`` cannot be read."""

    damaged = too_large = unpacked_bytes = 0

    def __init__(
        self, *partitions: list[tuple[int, bytes]], broken: frozenset[int] = frozenset(), cost: int = 0
    ) -> None:
        """``cost``: what each message unpacks to."""
        self._broken, self._cost = broken, cost
        self._messages = [
            [
                Message("web", number, (at + 1) * GAP - 1, time, b"key", value, ())
                for at, (time, value) in enumerate(rows)
            ]
            for number, rows in enumerate(partitions)
        ]

    def partitions(self, topic: str) -> int:
        return len(self._messages)

    def offsets(self, topic: str, partitions: list[int], when: int) -> tuple[dict[int, int], dict[int, str]]:
        found = {}
        for number in partitions:
            rows = self._messages[number]
            end = len(rows) * GAP
            since = next((row.offset for row in rows if row.timestamp >= when), end)
            found[number] = {EARLIEST: 0, LATEST: end}.get(when, since)
        return found, {}

    def read(self, topic: str, partition: int, start: int, stop: int, *, newest_first: bool) -> Iterator[Batch]:
        if partition in self._broken:
            raise WriterGone("being restarted")
        rows = [row for row in self._messages[partition] if start <= row.offset and row.offset - GAP + 1 < stop]
        for row in reversed(rows) if newest_first else rows:
            self.unpacked_bytes += self._cost
            yield Batch([row], row.offset - GAP + 1, row.offset + 1)


def steps(log: FakeLog, **query: object) -> list[Found]:
    """All steps of a search."""
    found = [Search(Query(topic="web", **query), log, lambda: 0.0).step()]  # type: ignore[arg-type]
    while found[-1].cursor:
        found.append(Search(Query(topic="web", **query, cursor=found[-1].cursor), log, lambda: 0.0).step())  # type: ignore[arg-type]
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


def test_a_partition_that_cannot_be_read_is_named_and_the_others_go_on() -> None:
    (found,) = steps(FakeLog([(1, b"a")], [(2, b"b")], broken=frozenset({0})))
    assert [message.value for message in found.messages] == [b"b"]
    assert found.unreadable == {0: "being restarted"}


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
        ({"cursor": "o.0-1"}, "another search"),
        ({"cursor": "n.9-1"}, "another search"),
        ({"cursor": "n.0-1.0"}, "not a cursor"),
    ],
)
def test_queries_that_contradict_themselves(query: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        steps(FakeLog([], []), **query)


def test_a_partition_that_does_not_exist() -> None:
    with pytest.raises(UnknownPartition, match="partitions 0 to 0"):
        steps(FakeLog([]), partition=1)


@given(st.booleans(), st.dictionaries(st.integers(0, 999_999), st.integers(0, 2**63 - 1), min_size=1, max_size=512))
def test_a_cursor_is_read_as_it_was_written(newest: bool, left: dict[int, int]) -> None:
    assert parse_cursor(cursor_text(newest, left)) == left


def test_a_value_is_shown_as_text_or_hexadecimal_and_cut() -> None:
    def value(content: bytes | None) -> object:
        return shown(Message("web", 0, 1, 2, None, content, ()), 10)["value"]

    assert value(None) is None
    assert value("grün".encode()) == {"text": "grün", "bytes": 5}
    assert value(b"\xff\x00") == {"hex": "ff 00", "bytes": 2}
    assert value("012345678ü".encode()) == {"text": "012345678", "bytes": 11}, "cut inside of a character"
