"""appliance.log_access.access: the same bytes from the listener and the files, and what happens when neither works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.errors import BrokerAway, CorruptBatch, OffsetOutOfRange
from appliance.log_access.access import Home, LogAccess, start_offset
from appliance.log_access.arrow import Decoder
from appliance.log_access.ranges import Range
from appliance.records.batch import place
from appliance.records.encode import encode_batch, encode_values
from appliance.wire.requests import EARLIEST, LATEST

from ..support.server import Server, wait_for
from ..support.topics import Topics
from ..support.transactions import COMMITTED, give


@pytest.fixture
def access_to() -> Iterator[Callable[..., LogAccess]]:
    made: list[LogAccess] = []

    def make(address: str, retry_timeout_ms: int = 5000) -> LogAccess:
        made.append(LogAccess(address, retry_timeout_ms, "test"))
        return made[-1]

    yield make
    for access in made:
        access.close()


def whole(access: LogAccess, topic: str) -> Range:
    key = (topic, 0)
    end = access.offsets({key: LATEST})[key]
    return Range(topic, 0, access.offsets({key: EARLIEST})[key], end, end)


def values(access: LogAccess, wanted: Range, home: Home | None, fails: bool = True) -> list[bytes]:
    decoder = Decoder(wanted.topic, wanted.partition, wanted.first, wanted.end)
    found: list[bytes] = []
    for start, data in access.read(wanted, home, 3000, fails):
        for batch in decoder.decode(data, start):
            found += batch.column("value").to_pylist()
    return found


def test_files_and_listener_give_the_same(
    make_appliance: Callable[..., Server],
    topics_of: Callable[[Server], Topics],
    topic: str,
    access_to: Callable[..., LogAccess],
) -> None:
    """Over several segments; the second home is that of somebody else, so the listener is taken."""
    topics = topics_of(make_appliance())
    topics.create(topic, segment_bytes=16384)
    lines = [b"%06d" % number for number in range(5000)]
    topics.write(topic, [encode_values(lines[at : at + 50], 5) for at in range(0, len(lines), 50)])
    access = access_to(topics.server.native)
    wanted = whole(access, topic)
    home = access.home(topic, 0)
    assert home == Home(str(topics.server.data_dir), topics.server.state["pid"]) and home.here()
    stranger = home._replace(pid=os.getpid())
    assert not stranger.here()
    for where in (None, home, stranger, home._replace(data_dir="/nowhere")):
        assert values(access, wanted, where) == lines


def test_a_compacted_topic_has_all_that_stayed_wherever_a_range_is_cut(
    make_appliance: Callable[..., Server],
    topics_of: Callable[[Server], Topics],
    topic: str,
    access_to: Callable[..., LogAccess],
) -> None:
    """Through the listener, which leaves out what was emptied, and from the files."""
    topics = topics_of(make_appliance(**{"disk.check_ms": 100}))
    topics.create(topic, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_bytes=16384)
    numbers = range(3000)
    keys = [b"%d" % (number if number % 400 == 0 else number % 7) for number in numbers]
    fields = [(key, b"%06d" % number, (), 5) for key, number in zip(keys, numbers, strict=True)]
    topics.write(topic, [encode_batch(fields[at : at + 20]) for at in range(0, len(fields), 20)])
    access = access_to(topics.server.native)
    wanted = whole(access, topic)
    home = access.home(topic, 0)
    assert home is not None

    def is_compacted() -> bool:
        row = topics.server.state.get("compaction", {}).get(f"{topic}-0", {})
        return bool(row.get("compacted_to") and not row["dirty_bytes"] and not topics.server.processes("compactor"))

    wait_for(is_compacted, "it is compacted")
    every = values(access, wanted, home)
    assert len(every) < len(fields) / 5 and {b"%06d" % number for number in numbers[400::400]} < set(every)
    assert every == sorted(every)
    for where in (None, home):
        assert values(access, wanted, where) == every
        for cut in range(1, wanted.end, wanted.end // 40):
            parts = Range(topic, 0, 0, cut, wanted.end), Range(topic, 0, cut, wanted.end, wanted.end)
            assert [value for part in parts for value in values(access, part, where)] == every


def test_what_retention_took_meanwhile(
    make_appliance: Callable[..., Server],
    topics_of: Callable[[Server], Topics],
    topic: str,
    access_to: Callable[..., LogAccess],
) -> None:
    """Between planning and reading; through the listener and from the files."""
    retention_bytes = 32768
    topics = topics_of(make_appliance(**{"disk.check_ms": 100}))
    topics.create(topic, segment_bytes=16384, retention_bytes=retention_bytes)
    lines = [b"%06d" % number for number in range(10_000)]
    topics.write(topic, [encode_values(lines[at : at + 500], 5) for at in range(0, len(lines), 500)])
    access = access_to(topics.server.native)

    def nothing_is_left_to_delete() -> bool:
        sizes = []
        for file in sorted((topics.server.data_dir / f"{topic}-0").glob("*.log")):
            with suppress(FileNotFoundError):  # just deleted
                sizes.append(file.stat().st_size)
        return sum(sizes[1:]) < retention_bytes

    wait_for(nothing_is_left_to_delete, "retention")
    wanted = whole(access, topic)
    planned_before = Range(topic, 0, 0, wanted.end, wanted.log_end)
    for home in (None, access.home(topic, 0)):
        with pytest.raises(OffsetOutOfRange, match=rf"{topic}-0: offset 0 is gone, .* meanwhile$"):
            values(access, planned_before, home)
        kept = values(access, planned_before, home, fails=False)
        assert 0 < len(kept) < len(lines) and kept == lines[-len(kept) :]


def test_files_of_a_topic_that_was_created_again_are_not_called_damaged(
    make_appliance: Callable[..., Server],
    topics_of: Callable[[Server], Topics],
    topic: str,
    access_to: Callable[..., LogAccess],
) -> None:
    """Between planning and reading: its log is shorter, so it seems to end inside a batch."""
    topics = topics_of(make_appliance())
    topics.create(topic)
    topics.write(topic, [encode_values([b"%06d" % number], 5) for number in range(100)])
    access = access_to(topics.server.native)
    wanted, home = whole(access, topic), access.home(topic, 0)
    topics.cluster.admin("delete_topic", {"name": topic})
    topics.create(topic)
    topics.write(topic, [encode_values([b"again"], 5)])
    rest = Range(topic, 0, wanted.end // 2, wanted.end, wanted.log_end)
    with pytest.raises(OffsetOutOfRange, match=r"created again meanwhile$"):  # what to do is for the reader to say
        values(access, rest, home)


@pytest.mark.parametrize("through", ["listener", "files"])
@pytest.mark.parametrize("fails", [True, False])
def test_retention_in_the_middle_of_a_read(
    make_appliance: Callable[..., Server],
    topics_of: Callable[[Server], Topics],
    topic: str,
    access_to: Callable[..., LogAccess],
    through: str,
    fails: bool,
) -> None:
    """What was read stays read, what is left comes after it, in order; the gap is an error or is stepped over."""
    topics = topics_of(make_appliance(**{"disk.check_ms": 100}))
    topics.create(topic, segment_bytes=16384)
    lines = [b"%06d" % number for number in range(10_000)]
    topics.write(topic, [encode_values(lines[at : at + 500], 5) for at in range(0, len(lines), 500)])
    access = access_to(topics.server.native)
    wanted = whole(access, topic)
    decoder = Decoder(wanted.topic, wanted.partition, wanted.first, wanted.end)
    found: list[bytes] = []

    def take(start: int, data: memoryview) -> None:
        for batch in decoder.decode(data, start):
            found.extend(batch.column("value").to_pylist())

    reading = access.read(wanted, access.home(topic, 0) if through == "files" else None, 3000, fails)
    take(*next(reading))
    topics.cluster.admin("alter_topic", {"name": topic, "settings": {"retention.bytes": "32768"}})
    wait_for(lambda: access.offsets({(topic, 0): EARLIEST})[topic, 0] > wanted.end // 2, "retention")
    if fails:
        with pytest.raises(OffsetOutOfRange, match=rf"{topic}-0: offset \d+ is gone"):
            for start, data in reading:
                take(start, data)
        assert found == lines[: len(found)]
    else:
        for start, data in reading:
            take(start, data)
        missing = len(lines) - len(found)
        gap = next(number for number, line in enumerate(found) if line != lines[number])
        assert missing > 0 and gap >= 500 and found[gap:] == lines[gap + missing :]


def test_an_appliance_that_is_away_is_named(access_to: Callable[..., LogAccess]) -> None:
    with pytest.raises(BrokerAway, match=r"gave up after 0.05 s.*127\.0\.0\.1:1"):
        access_to("127.0.0.1:1", 50).offsets({("logs", 0): LATEST})


def test_where_fetched_bytes_start_is_checked() -> None:
    """The first batch says it; when that was damaged, the last one; when both were, nobody is believed."""
    data = bytearray()
    for _ in range(3):
        batch = memoryview(bytearray(encode_values([b"abc"] * 5, 5)))
        place(batch, 0, 700 + len(data), len(batch), 5)
        data += batch
    size = len(data) // 3
    wanted = Range("logs", 0, 0, 10_000, 10_000)
    for position in (700, 700 + size - 1, 699):  # what is before it may have been emptied
        assert start_offset(memoryview(data), wanted, position) == 700
    with pytest.raises(CorruptBatch, match="contradict each other"):
        start_offset(memoryview(data), wanted, 700 + size)
    assert start_offset(memoryview(data), wanted, 699) == 700, "something was emptied"
    assert start_offset(memoryview(data), wanted, 650, at_start=True) == 700
    data[6] ^= 1
    assert start_offset(memoryview(data), wanted, 710) == 700
    for position in (650, 700):
        assert start_offset(memoryview(data), wanted, position, at_start=True) == position
    data[2 * size + 6] ^= 1
    with pytest.raises(CorruptBatch, match="logs-0: around offset 710"):
        start_offset(memoryview(data), wanted, 710)
    data[8:12] = b"\0\0\0\1"
    with pytest.raises(CorruptBatch, match="logs-0: around offset 710"):
        start_offset(memoryview(data), wanted, 710)


def test_what_is_not_committed_is_left_out(
    make_appliance: Callable[..., Server],
    topics_of: Callable[[Server], Topics],
    topic: str,
    access_to: Callable[..., LogAccess],
    tmp_path: Path,
) -> None:
    """From the listener and from the files."""
    server = make_appliance()
    topics_of(server).create(topic)
    server.stop()
    access = access_to(give(server, topic, tmp_path).native)
    wanted = whole(access, topic)
    for home in (None, access.home(topic, 0)):
        assert values(access, wanted, home) == COMMITTED
