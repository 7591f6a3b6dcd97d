"""appliance.inputs.ledger: whatever was lost or refused is published, in rows that the topic takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.config import TopicsSection
from appliance.errors import MessageTooLarge
from appliance.inputs import ledger as module
from appliance.inputs.journal_blocks import REMOVED
from appliance.inputs.ledger import (
    GAPS_MAX,
    MORE,
    SOURCE_GAPS_MAX,
    TROUBLES_MAX,
    Gap,
    Ledger,
    LedgerRow,
    PlacedBlock,
    decode_row,
    once,
)
from appliance.inputs.positions import PositionStore, Source, Span

MESSAGE_BYTES_MAX = TopicsSection().max_message_bytes
HIGH = 2**64 - 2 * GAPS_MAX - 2
"""So that numbers are as long as they can be."""


class Topic:
    """Takes rows as the topic does: one beyond ``max.message.bytes`` is refused."""

    def __init__(self) -> None:
        self.rows: list[LedgerRow] = []
        self.is_made = False

    def partitions(self, topic: str) -> range:
        self.is_made = True
        return range(1)

    def send(self, topic: str, value: bytes, *, key: bytes, on_delivery: Any) -> None:
        if len(value) + len(key) > MESSAGE_BYTES_MAX:
            on_delivery(MessageTooLarge(f"{len(value)} bytes"))
        else:
            self.rows.append(decode_row(value))
            on_delivery(None)


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def ledger(tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setattr(module, "wall_s", lambda: 1_795_219_200.0)  # the minute does not end within a test
    store = PositionStore(tmp_path / "positions")
    yield Ledger("hosts", "web-1", "ledger", store, topic, "127.0.0.1:1")  # type: ignore[arg-type]
    store.close()


def lose(ledger: Ledger, count: int, source: str = "10.0.0.7", **how: bool) -> list[Gap]:
    gaps = [Gap(HIGH + 2 * at, HIGH + 2 * at + 1, "sequence numbers", REMOVED) for at in range(count)]
    for gap in gaps:
        ledger.note_gap(1, source, *msgspec.structs.astuple(gap), **how)
    return gaps


def test_as_many_gaps_as_may_wait_are_published_in_rows_that_the_topic_takes(ledger: Ledger, topic: Topic) -> None:
    """Each once and in order, and the refusals beside them once."""
    gaps = lose(ledger, SOURCE_GAPS_MAX, is_one_of_many=True)
    for number in range(1, GAPS_MAX // SOURCE_GAPS_MAX):
        lose(ledger, SOURCE_GAPS_MAX, f"10.0.1.{number}", is_one_of_many=True)
    ledger.note_refused(1, "10.0.0.7", "no host", 3)
    asyncio.run(ledger.publish(everything=True))
    mine = [row for row in topic.rows if row.source == "10.0.0.7"]
    assert sorted((gap for row in mine for gap in row.gaps), key=lambda gap: gap.start) == gaps
    assert [row.refused for row in topic.rows if row.refused] == [{"no host": 3}]
    asyncio.run(ledger.publish(everything=True))
    assert sum(len(row.gaps) for row in topic.rows) == GAPS_MAX, "none is published twice"


def test_the_topic_is_made_when_there_is_something_to_tell(tmp_path: Path, topic: Topic) -> None:
    """Not with the first row, since an ordered end, which has little time, may be what brings that."""
    store = PositionStore(tmp_path / "positions")
    store.add_partition("web", 0, 0)
    ledger = Ledger("hosts", "web-1", "ledger", store, topic, "127.0.0.1:1")  # type: ignore[arg-type]

    async def begin() -> None:
        assert not topic.is_made
        await ledger.begin_partition("web", 0)
        async with asyncio.timeout(60):
            while not topic.is_made:
                await asyncio.sleep(0)

    asyncio.run(begin())
    assert not topic.rows
    store.close()


def test_two_that_begin_a_partition_together_note_its_end_before_the_block_of_either(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery after a kill reads from there on: a later end would leave out what the first one has sent meanwhile."""
    ends = iter([5, 9])
    monkeypatch.setattr(module, "ends_of", lambda _, parts: {part: next(ends) for part in parts})

    async def begin() -> None:
        await asyncio.gather(*(ledger.begin_partition("web", 0) for _ in range(3)))

    asyncio.run(begin())
    assert ledger._store.partitions() == [("web", 0, 5)]


def test_refusals_without_gaps_have_one_row(ledger: Ledger, topic: Topic) -> None:
    ledger.note_refused(1, "10.0.0.7", "no host", 3)
    asyncio.run(ledger.publish(everything=True))
    assert [(row.refused, row.gaps) for row in topic.rows] == [({"no host": 3}, [])]


def test_gaps_that_follow_each_other_are_one(ledger: Ledger, topic: Topic) -> None:
    for start in range(0, 100, 10):
        ledger.note_gap(1, "app.log", start, start + 10, "bytes", "NUL bytes")
    ledger.note_gap(1, "app.log", 100, 110, "bytes", "removed")
    ledger.note_gap(1, "app.log", 120, None, "bytes", "removed")
    assert ledger.stats().gaps == 3
    ledger._store.commit()
    asyncio.run(ledger.publish(everything=True))
    assert [(gap.start, gap.stop) for row in topic.rows for gap in row.gaps] == [(0, 100), (100, 110), (120, None)]


def test_gaps_beyond_those_that_may_wait_are_counted_in_the_last_one(
    ledger: Ledger, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason says so once, however many they are."""
    monkeypatch.setattr(module, "GAPS_MAX", 2)
    gaps = lose(ledger, 50)
    asyncio.run(ledger.publish(everything=True))
    merged = Gap(gaps[1].start, gaps[-1].stop, "sequence numbers", REMOVED + MORE)
    assert [gap for row in topic.rows for gap in row.gaps] == [gaps[0], merged]


@pytest.mark.parametrize("others", [1, GAPS_MAX // SOURCE_GAPS_MAX + 1])
def test_gaps_of_a_sender_hide_those_of_no_other_source(ledger: Ledger, topic: Topic, others: int) -> None:
    """Also one whose end is not known is in the ledger, and in the store."""
    for number in range(others):
        lose(ledger, GAPS_MAX, f"10.0.1.{number}", is_one_of_many=True)
    ledger.note_gap(2, "app.log", 0, 1_000, "bytes", "truncated")
    ledger.note_gap(3, "b.log", 0, None, "bytes", "removed")
    ledger.note_gap(4, "c.log", 0, 10, "bytes", "truncated")
    ledger.note_gap(4, "c.log", 50, None, "bytes", "removed")
    ledger._store.commit()
    asyncio.run(ledger.publish(everything=True))
    told = {row.source: [(gap.start, gap.stop) for gap in row.gaps] for row in topic.rows}
    assert (told["app.log"], told["b.log"]) == ([(0, 1_000)], [(0, None)])
    assert told["c.log"] == [(0, 10), (50, None)] if others == 1 else [(0, None)]


def test_a_sender_of_many_gaps_has_one_warning_a_minute(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(ledger, 5, is_one_of_many=True)
    lose(ledger, 5, "10.0.0.8", is_one_of_many=True)
    monkeypatch.setattr(module, "wall_s", lambda: 1_795_219_260.0)
    lose(ledger, 5, is_one_of_many=True)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["10.0.0.7", "10.0.0.8", "10.0.0.7"]
    assert ledger.stats().gaps == 15
    lose(ledger, 2, "app.log")
    assert len(caplog.records) == 5, "files say each of theirs"


def test_trouble_has_a_line_a_minute_for_each_reason_however_many_a_sender_makes(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: reasons that name what a sender has sent, such as an application."""
    now_ms = 1_000.0
    monkeypatch.setattr(module, "now_ms", lambda: now_ms)
    for _ in range(2):
        for at in range(1_000):
            ledger.note_trouble(0, "10.0.0.7", f"topic logs-{at}: too many")
        assert ledger.stats().trouble == "10.0.0.7: topic logs-999: too many"
        assert len(caplog.records) == TROUBLES_MAX + 1
        caplog.clear()
        now_ms += 60_000
    for _ in range(3):
        ledger.note_trouble(0, "10.0.0.7", "no topic")
    now_ms += 60_000
    ledger.note_trouble(0, "10.0.0.7", "no topic")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["10.0.0.7 waits: no topic", "10.0.0.7 waits: no topic (2 times more in the last minute)"]


def test_refusals_count_for_five_minutes(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 600_000.0
    monkeypatch.setattr(module, "now_ms", lambda: now_ms)
    ledger.note_refused(0, "10.0.0.7", "malformed", 7)
    now_ms += 60_000
    ledger.note_turned_away("10.0.0.8", "not in allow")
    assert (ledger.stats().refused, ledger.stats().refused_lately) == (7, 8)
    now_ms += 239_999
    assert ledger.stats().refused_lately == 8
    now_ms += 1
    assert ledger.stats().refused_lately == 1 and ledger.stats().refusing == "10.0.0.8: not in allow"
    now_ms += 60_000
    assert (ledger.stats().refused, ledger.stats().refused_lately, ledger.stats().refusing) == (7, 0, "")


def test_a_source_whose_name_is_no_utf_8_has_rows_with_its_bytes_escaped(tmp_path: Path, topic: Topic) -> None:
    name = "/logs/b\udcff.log"
    store = PositionStore(tmp_path / "positions")
    ledger = Ledger("hosts", "web-1", "ledger", store, topic, "127.0.0.1:1")  # type: ignore[arg-type]
    (number,) = store.add_sources([(name, 0, 1, b"")])
    store.note(Source(number, name, 4, 2, b"", False), Span(number, "disk", 0, 0, 1, 0, 4, 1, 1, 4, ledger.minute()))
    ledger.note_gap(number, name, 4, 8, "bytes", f"compressed to {name}.gz before it was read")
    ledger.note_refused(number, name, "why", 1)
    ledger.note_trouble(number, name, f"no topic for {name}")
    ledger.note_unread(f"{name}: is no regular file")
    msgspec.json.encode(ledger.stats())
    store.commit()
    assert store.names() == {number: name}
    asyncio.run(ledger.publish(everything=True))
    store.close()
    assert {row.source for row in topic.rows} == {r"/logs/b\xff.log"}
    assert [len(row.spans) + len(row.gaps) for row in topic.rows] == [1, 1]


def test_what_was_published_twice_is_counted_once() -> None:
    """A row that was published before a kill comes again with what the process after it has added."""
    spans = [PlacedBlock("t", 0, 100, 2, 0, 20, 1, 2, 20), PlacedBlock("t", 0, 200, 3, 20, 50, 3, 3, 30)]
    first = LedgerRow("disk", "web-1", "app.log", 1, "store", 60, 2, 20, 2, spans[:1])
    both = LedgerRow("disk", "web-1", "app.log", 1, "store", 60, 5, 50, 5, spans)
    lost = LedgerRow("disk", "web-1", "app.log", 1, "store", 60, gaps=[Gap(50, 60, "bytes", "gone")])
    again = LedgerRow("disk", "web-1", "app.log", 2, "store", 60, 2, 20, 2, spans[:1])
    rows = list(once([first, lost, both, lost, again, first]))
    assert [(row.number, row.lines, row.bytes, row.messages, len(row.gaps)) for row in rows] == [
        (1, 2, 20, 2, 0), (1, 0, 0, 0, 1), (1, 3, 30, 3, 0), (2, 2, 20, 2, 0),
    ]  # fmt: skip


def test_what_was_told_is_published_by_the_next_process_after_a_kill(tmp_path: Path, topic: Topic) -> None:
    """Once it is in the store with the position behind it, which no process reads again."""
    path = tmp_path / "positions"
    store = PositionStore(path)
    killed = Ledger("hosts", "web-1", "ledger", store, topic, "127.0.0.1:1")  # type: ignore[arg-type]
    gaps = lose(killed, 3)
    killed.note_refused(1, "10.0.0.7", "no host", 3)
    killed.note_refused(1, "10.0.0.7", "no host", 2)
    store.commit()
    store.close()
    store = PositionStore(path)
    after = Ledger("hosts", "web-1", "ledger", store, topic, "127.0.0.1:1")  # type: ignore[arg-type]
    asyncio.run(after.publish(everything=True))
    assert [(row.gaps, row.refused) for row in topic.rows] == [(gaps, {"no host": 5})]
    store.close()
    store = PositionStore(path)
    again = Ledger("hosts", "web-1", "ledger", store, topic, "127.0.0.1:1")  # type: ignore[arg-type]
    asyncio.run(again.publish(everything=True))
    assert len(topic.rows) == 1, "none is published twice"
    store.close()


def test_what_was_published_before_it_was_stored_is_not_published_again(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    lose(ledger, 1)
    asyncio.run(ledger.publish(everything=True))
    ledger._store.commit()
    assert ledger._store.told() == []
