"""appliance.log.reader: ranges, times and counts against a naive model that knows every batch."""

from __future__ import annotations

import gc
import os
import random
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config import TopicSettings
from appliance.errors import CorruptLog, OffsetOutOfRange, StorageFault, UnreadableLog
from appliance.log import FileCache, Log, LogReader
from appliance.log.files import index_path, log_path, offset_at
from appliance.log.index import IndexFile
from appliance.log.page_cache import LogFile
from appliance.log.reader import BOUNDARIES_MAX, RECORDS_MAX, TIMES_MAX, UNPACKED_BYTES_MAX, FoundBatch
from appliance.records.encode import encode_batch
from appliance.records.timestamps import BatchTimes
from appliance.wire.requests import FileRange

from ..support.log_batches import (
    MEMORY,
    SETTINGS,
    batch,
    filled,
    headers_of,
    log_range,
    open_log,
    place_all,
    placed,
    retire,
)


class Naive:
    """All batches of a log, by walking over its bytes from the start."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.bytes = b"".join(log_path(log.path, base).read_bytes() for base in log.bases)
        self.batches = [(stop - info.size, info, stop) for info, _, stop in headers_of(log, log.bases[0])]
        self.boundaries = [log.bases[0], *(stop for _, _, stop in self.batches)]

    def containing(self, offset: int) -> int:
        return self.boundaries[bisect_right(self.boundaries, offset) - 1]

    def at(self, offset: int) -> tuple[int, int]:
        records = 0
        for _, info, stop in self.batches:
            if stop > offset:
                return info.max_timestamp, records + max(0, offset - (stop - info.count))
            records += info.count
        return -1, records

    def by_time(self, timestamp: int) -> FoundBatch | None:
        records = 0
        for _, info, stop in self.batches:
            if info.max_timestamp >= timestamp:
                return FoundBatch(stop - info.count, info.max_timestamp, records)
            records += info.count
        return None


def read(range_: FileRange) -> bytes:
    return os.pread(range_.file.fd, range_.count, range_.position)


def forged(position: int) -> bytes:
    """A payload of batches that say of themselves that they belong where they stand."""
    raw = batch([b"forged"])
    return b"".join(bytes(placed(raw, position + 68 + shift)[0]) for shift in range(0, 5 * len(raw), len(raw)))


def mixed(path: Path, count: int, seed: int = 0) -> Log:
    """Batches of all sizes, times out of order, forged batches in payloads."""
    dice = random.Random(seed)
    log = open_log(path)
    for number in range(count):
        match dice.randrange(6):
            case 0:
                raw = batch([forged(log.end_offset)], dice.randrange(1000))
            case 1:
                raw = batch([b"x" * dice.randrange(3000)], dice.randrange(1000))
            case _:
                raw = batch([b"%d" % number * dice.randrange(1, 40)] * dice.randrange(1, 6), dice.randrange(1000))
        log.append(place_all(log.end_offset, [raw]))
    log.flush()
    log.raise_high_watermark(log.end_offset)
    return log


@pytest.fixture(scope="module")
def log() -> Iterator[Log]:
    with tempfile.TemporaryDirectory(prefix="log-", dir=MEMORY) as name:
        yield mixed(Path(name), 120)


@pytest.fixture(scope="module")
def naive(log: Log) -> Naive:
    return Naive(log)


def check_locate(naive: Naive, reader: LogReader, end: int, offset: int, bytes_max: int) -> None:
    log = naive.log
    range_ = reader.locate(log.bases, end, offset, bytes_max)
    if offset == end:
        assert range_ is None
        return
    assert range_ is not None
    start, stop = log_range(range_)
    limit = min([following for following in log.bases if following > start] + [end])
    assert start == naive.containing(offset)
    assert stop in naive.boundaries and start < stop <= limit
    following = naive.boundaries[naive.boundaries.index(start) + 1]
    assert stop == following or stop - start <= bytes_max
    assert stop == limit or stop - start > bytes_max - SETTINGS.index_interval_bytes - 3200
    assert read(range_) == naive.bytes[start:stop]


def test_locate_every_offset(log: Log, naive: Naive) -> None:
    for reader in (LogReader(log.path, FileCache(2)), LogReader(log.path, FileCache())):
        for offset in range(0, log.end_offset + 1, 7):
            check_locate(naive, reader, log.end_offset, offset, 1000)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_locate_with_any_end_and_limit(log: Log, naive: Naive, data: st.DataObject) -> None:
    reader = LogReader(log.path, FileCache())
    end = 0
    for _ in range(data.draw(st.integers(1, 6))):  # one reader, the log growing
        end = data.draw(st.sampled_from([boundary for boundary in naive.boundaries if boundary >= end]))
        offset = data.draw(st.integers(0, end))
        check_locate(naive, reader, end, offset, data.draw(st.integers(1, 5000)))


def test_a_sequential_consumer_gets_every_byte_once(log: Log, naive: Naive) -> None:
    for bytes_max in (1, 300, 1024, 1 << 20):
        reader, offset, data = LogReader(log.path, FileCache()), 0, b""
        while (range_ := reader.locate(log.bases, log.end_offset, offset, bytes_max)) is not None:
            data += read(range_)
            offset += range_.count
        assert data == naive.bytes


def test_a_caught_up_consumer_needs_no_index(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    cache = FileCache()
    reader = LogReader(tmp_path, cache)
    assert reader.locate(log.bases, 0, 0, 1000) is None
    for _ in range(10):
        offset = log.end_offset
        log.append(place_all(offset, [batch([b"x" * 50])]))
        range_ = reader.locate(log.bases, log.end_offset, offset, 1000)
        assert range_ is not None and range_.count == log.end_offset - offset
    assert cache.opened == 1  # the log, no index


def test_what_is_not_in_the_log_is_out_of_range(log: Log) -> None:
    reader = LogReader(log.path, FileCache())
    bases, end = log.bases[2:], log.bases[3]
    for offset in (-1, 0, bases[0] - 1, end + 1, log.end_offset):
        with pytest.raises(OffsetOutOfRange, match=f"{bases[0]} to {end}"):
            reader.locate(bases, end, offset, 1000)
        with pytest.raises(OffsetOutOfRange):
            reader.time_and_count(bases, end, offset)


def test_nothing_at_or_above_the_end_is_served(log: Log, naive: Naive) -> None:
    for end in naive.boundaries[1:40]:
        reader = LogReader(log.path, FileCache())
        for offset in range(max(0, end - 400), end):
            range_ = reader.locate(log.bases, end, offset, 1 << 20)
            assert range_ is not None
            assert log_range(range_)[1] <= end


def test_a_retired_segment_is_out_of_range_but_a_range_of_it_stays_readable(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 900])] * 8)
    bases, end = list(log.bases), log.end_offset
    reader = LogReader(tmp_path, FileCache(2))
    range_ = reader.locate(bases, end, 0, 1 << 20)
    assert range_ is not None
    before = read(range_)
    retire(log, bases[2])
    reader.forget()
    gc.collect()
    assert read(range_) == before
    for offset in (0, bases[1] + 5):  # with the view of a moment ago
        with pytest.raises(OffsetOutOfRange):
            reader.locate(bases, end, offset, 1000)
        with pytest.raises(OffsetOutOfRange):
            reader.time_and_count(bases, end, offset)
    found_later = reader.find_time(bases, end, 0)
    assert found_later is not None and found_later.offset >= bases[2]
    fd = range_.file.fd
    del range_
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_at_every_offset(log: Log, naive: Naive) -> None:
    reader = LogReader(log.path, FileCache())
    for offset in [*range(0, log.end_offset, 11), *naive.boundaries]:
        assert reader.time_and_count(log.bases, log.end_offset, offset) == naive.at(offset)


def test_records_are_counted_over_the_life_of_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 450] * 2)] * 8)
    reader = LogReader(tmp_path, FileCache())
    before = [
        reader.time_and_count(log.bases, log.end_offset, offset) for offset in range(log.bases[2], log.end_offset, 100)
    ]
    retire(log, log.bases[2])
    offsets = range(log.bases[0], log.end_offset, 100)
    assert [reader.time_and_count(log.bases, log.end_offset, offset) for offset in offsets] == before


def test_by_time_every_time(log: Log, naive: Naive) -> None:
    reader = LogReader(log.path, FileCache())
    for timestamp in [-5, *range(0, 1001, 3), 10**15]:
        assert reader.find_time(log.bases, log.end_offset, timestamp) == naive.by_time(timestamp)


def test_by_time_sees_nothing_above_the_end(log: Log, naive: Naive) -> None:
    reader = LogReader(log.path, FileCache())
    for end in naive.boundaries[::5]:
        for timestamp in range(0, 1000, 100):
            expected = naive.by_time(timestamp)
            if expected is not None and expected.offset >= end:
                expected = None
            assert reader.find_time(log.bases, end, timestamp) == expected


def test_max_timestamp(log: Log, naive: Naive) -> None:
    reader = LogReader(log.path, FileCache())
    assert reader.max_timestamp(log.bases, 0) is None
    for end in naive.boundaries[1::7]:
        largest = max(info.max_timestamp for _, info, stop in naive.batches if stop <= end)
        assert reader.max_timestamp(log.bases, end) == naive.by_time(largest)


def test_the_largest_time_is_not_one_of_a_record_that_was_deleted(tmp_path: Path) -> None:
    """The log starts inside a batch, behind the record with the largest time of its header."""
    raw = encode_batch([(None, b"v", (), time) for time in (9_000, 9_000, 8_999)])
    log = filled(tmp_path, [raw, batch([b"w"], 5_000)], TopicSettings())
    last_of_batch = len(raw) - 1
    reader, end = LogReader(tmp_path, FileCache()), log.end_offset
    for start, largest in ((last_of_batch - 2, 9_000), (last_of_batch, 8_999), (len(raw), 5_000)):
        batch_found = reader.max_timestamp(log.bases, end, start)
        assert batch_found is not None and batch_found.timestamp == largest
        record = reader.first_record(log.bases, end, batch_found, batch_found.timestamp, start)
        assert record.timestamp == largest
        assert record.offset == (start if start < len(raw) else end - 1)


def test_a_time_from_the_future_spoils_its_own_segment_only(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 400], 10**15 if number == 1 else number) for number in range(20)])
    reader = LogReader(tmp_path, FileCache())
    retire(log, log.bases[1])
    batch_found = reader.find_time(log.bases, log.end_offset, 15)
    assert batch_found is not None and batch_found.timestamp == 15


def times_batch(count: int, first: int = 5_000, codec: str = "zstd", size: int = 0) -> bytes:
    """A batch whose records are a millisecond apart."""
    return encode_batch([(None, bytes(size), (), first + number) for number in range(count)], codec=codec)


def test_a_batch_is_unpacked_once_however_often_it_is_asked_about(tmp_path: Path) -> None:
    """300 questions about one batch look at it once: work is counted in bytes, not in time."""
    log = filled(tmp_path, [times_batch(1_000, size=500)], TopicSettings())
    cache = FileCache()
    reader = LogReader(tmp_path, cache)
    batch_found = reader.find_time(log.bases, log.end_offset, 5_000)
    assert batch_found is not None
    for number in range(0, 1_000, 3):
        record = reader.first_record(log.bases, log.end_offset, batch_found, 5_000 + number)
        assert record == FoundBatch(batch_found.offset + number, 5_000 + number, number)
        if not number:
            looked = reader.looked_bytes
    assert reader.looked_bytes == looked > 500_000
    other = LogReader(tmp_path, cache)
    other.first_record(log.bases, log.end_offset, batch_found, 5_999)
    assert other.looked_bytes == 0, "nor does another reader of the same log"
    reader.forget()
    reader.first_record(log.bases, log.end_offset, batch_found, 5_999)
    assert reader.looked_bytes > looked


@pytest.mark.parametrize(
    "raw",
    [times_batch(RECORDS_MAX + 1), times_batch(20, size=UNPACKED_BYTES_MAX // 10)],
    ids=["records", "bytes"],
)
def test_a_bomb_is_answered_as_a_whole_and_once(tmp_path: Path, raw: bytes) -> None:
    log = filled(tmp_path, [raw], TopicSettings())
    reader = LogReader(tmp_path, FileCache())
    batch_found = reader.find_time(log.bases, log.end_offset, 5_007)
    assert batch_found is not None
    before = reader.looked_bytes
    for _ in range(50):
        assert reader.first_record(log.bases, log.end_offset, batch_found, 5_007) == batch_found
    assert reader.looked_bytes - before <= UNPACKED_BYTES_MAX + len(raw)


def test_remembered_times_are_bounded() -> None:
    cache = FileCache()
    for number in range(200):
        cache.remember_times("t", number, BatchTimes(array("q", range(1_500)), 0, array("q")))
        cache.remember_times("u", number, BatchTimes(array("q"), 0, array("q")))
    assert cache.times("t", 199) is not None and cache.times("t", 0) is None
    assert sum(len(times.times) + 64 for times in cache._times.values()) == cache._times_count <= TIMES_MAX
    cache.drop("t")
    cache.drop("u")
    assert cache._times_count == 0 and not cache._times


def test_an_empty_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    reader = LogReader(tmp_path, FileCache())
    assert reader.locate(log.bases, 0, 0, 10) is None
    assert reader.time_and_count(log.bases, 0, 0) == (-1, 0)
    assert reader.find_time(log.bases, 0, 0) is None
    assert reader.max_timestamp(log.bases, 0) is None
    with pytest.raises(OffsetOutOfRange):
        reader.time_and_count(log.bases, 0, 1)


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "shifted", "noise"])
def test_a_damaged_index_makes_reading_slower_not_wrong(tmp_path: Path, damage: str) -> None:
    log = mixed(tmp_path, 60, seed=3)
    naive = Naive(log)
    for base in log.bases:
        path = index_path(tmp_path, base)
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
            continue
        shifted = b"".join(
            data[:24] if not at else (int.from_bytes(data[at : at + 8], "little") + 1).to_bytes(8, "little")
            + data[at + 8 : at + 24]
            for at in range(0, len(data), 24)
        )  # fmt: skip
        noise = data[:24] + random.Random(1).randbytes(len(data) - 24)
        path.write_bytes({"empty": b"", "short": data[:30], "shifted": shifted, "noise": noise}[damage])
    reader = LogReader(tmp_path, FileCache())
    for offset in range(0, log.end_offset, 53):
        range_ = reader.locate(log.bases, log.end_offset, offset, 1000)
        assert range_ is not None
        start, stop = log_range(range_)
        assert start == naive.containing(offset)
        assert stop in naive.boundaries
    if damage in ("short", "shifted"):
        for offset in range(0, log.end_offset, 53):
            assert reader.time_and_count(log.bases, log.end_offset, offset) == naive.at(offset)


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 100])] * 3)
    size = log.end_offset // 3
    with log_path(tmp_path, 0).open("r+b") as file:
        file.seek(size + 16)
        file.write(b"\1")
    with pytest.raises(CorruptLog) as caught:
        LogReader(tmp_path, FileCache()).time_and_count(log.bases, log.end_offset, 2 * size - 1)
    assert (caught.value.path, caught.value.position) == (str(log_path(tmp_path, 0)), size)


def test_boundaries_are_bounded(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch()] * 2000, TopicSettings())
    reader, size = LogReader(tmp_path, FileCache()), len(batch())
    for offset in range(0, log.end_offset, size):
        reader.locate(log.bases, log.end_offset, offset, size)
    assert len(reader._young) + len(reader._old) <= 2 * BOUNDARIES_MAX


def test_a_new_log_under_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    cache = FileCache()
    reader, other = LogReader(path, cache), LogReader(tmp_path / "t-01", cache)
    for text in (b"old" * 30, b"new"):
        log = filled(path, [batch([text])] * 3)
        assert other._prefix.startswith(str(path))
        range_ = reader.locate(log.bases, log.end_offset, 5, 1 << 20)
        assert range_ is not None and text in read(range_)
        reader.forget()
        for file in path.iterdir():
            file.unlink()


def test_file_cache_is_bounded_and_keeps_the_last_used(tmp_path: Path) -> None:
    names = [str(tmp_path / str(number)) for number in range(4)]
    for name in names:
        Path(name).touch()
    cache = FileCache(2)
    first = cache.get(names[0], LogFile)
    cache.get(names[1], LogFile)
    assert cache.get(names[0], LogFile) is first
    cache.get(names[2], LogFile)
    assert len(cache) == 2
    assert cache.get(names[0], LogFile) is first
    cache.get(names[3], IndexFile)
    before = cache.opened
    cache.get(names[2], LogFile)
    assert cache.opened == before + 1


def test_a_file_that_cannot_be_opened_is_a_storage_fault(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(StorageFault, match="loop"):
        FileCache().get(str(tmp_path / "loop"), LogFile)
    with pytest.raises(FileNotFoundError):
        FileCache().get(str(tmp_path / "nothing"), LogFile)


def test_unlinked_files_are_let_go_of(tmp_path: Path) -> None:
    """As long as a cache keeps a retired segment open, the disk keeps its room."""
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    for file in (kept, gone):
        file.write_bytes(b"x")
    files = FileCache(4)
    for file in (kept, gone):
        files.get(str(file), LogFile)
    gone.unlink()
    files.drop_unlinked()
    assert len(files) == 1 and files.get(str(kept), LogFile).fd >= 0


def test_a_segment_that_cannot_be_opened_is_named_with_its_place(tmp_path: Path) -> None:
    """So that it is looked at: a file of another user, after a copy by root, is nowhere else seen by who only reads.

    Method: root may open every file, so here a link leads to itself.
    """
    path = log_path(tmp_path, 4_096)
    path.symlink_to(path.name)
    with pytest.raises(UnreadableLog) as caught:
        FileCache(2).get(str(path), LogFile)
    assert (caught.value.path, caught.value.position) == (str(path), 0)
    assert offset_at(caught.value.path, caught.value.position) == 4_096
