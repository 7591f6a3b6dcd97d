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
from appliance.durable_files import File
from appliance.errors import CorruptLog, OffsetOutOfRange, StorageFault
from appliance.log import FileCache, Log, LogReader
from appliance.log.files import index_path, log_path
from appliance.log.index import IndexFile
from appliance.log.reader import BOUNDARIES_MAX, RECORDS_MAX, TIMES_MAX, UNPACKED_BYTES_MAX, Found
from appliance.records.encode import encode_batch
from appliance.records.timestamps import Times
from appliance.wire.requests import FileRange

from ..support.log_batches import MEMORY, SETTINGS, batch, filled, log_range, open_log, place_all, placed, retire


class Naive:
    """All batches of a log, by walking over its bytes from the start."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.bytes = b"".join(log_path(log.path, base).read_bytes() for base in log.bases)
        self.batches = [(stop - info.size, info, stop) for info, _, stop in log.headers(log.bases[0])]
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

    def by_time(self, timestamp: int) -> Found | None:
        records = 0
        for _, info, stop in self.batches:
            if info.max_timestamp >= timestamp:
                return Found(stop - info.count, info.max_timestamp, records)
            records += info.count
        return None


def read(found: FileRange) -> bytes:
    return os.pread(found.file.fd, found.count, found.position)


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
    found = reader.locate(log.bases, end, offset, bytes_max)
    if offset == end:
        assert found is None
        return
    assert found is not None
    start, stop = log_range(found)
    limit = min([following for following in log.bases if following > start] + [end])
    assert start == naive.containing(offset)
    assert stop in naive.boundaries and start < stop <= limit
    following = naive.boundaries[naive.boundaries.index(start) + 1]
    assert stop == following or stop - start <= bytes_max
    assert stop == limit or stop - start > bytes_max - SETTINGS.index_interval_bytes - 3200
    assert read(found) == naive.bytes[start:stop]


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
        while (found := reader.locate(log.bases, log.end_offset, offset, bytes_max)) is not None:
            data += read(found)
            offset += found.count
        assert data == naive.bytes


def test_a_caught_up_consumer_needs_no_index(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    cache = FileCache()
    reader = LogReader(tmp_path, cache)
    assert reader.locate(log.bases, 0, 0, 1000) is None
    for _ in range(10):
        offset = log.end_offset
        log.append(place_all(offset, [batch([b"x" * 50])]))
        found = reader.locate(log.bases, log.end_offset, offset, 1000)
        assert found is not None and found.count == log.end_offset - offset
    assert cache.opened == 1  # the log, no index


def test_what_is_not_in_the_log_is_out_of_range(log: Log) -> None:
    reader = LogReader(log.path, FileCache())
    bases, end = log.bases[2:], log.bases[3]
    for offset in (-1, 0, bases[0] - 1, end + 1, log.end_offset):
        with pytest.raises(OffsetOutOfRange, match=f"{bases[0]} to {end}"):
            reader.locate(bases, end, offset, 1000)
        with pytest.raises(OffsetOutOfRange):
            reader.at(bases, end, offset)


def test_nothing_at_or_above_the_end_is_served(log: Log, naive: Naive) -> None:
    for end in naive.boundaries[1:40]:
        reader = LogReader(log.path, FileCache())
        for offset in range(max(0, end - 400), end):
            found = reader.locate(log.bases, end, offset, 1 << 20)
            assert found is not None
            assert log_range(found)[1] <= end


def test_a_retired_segment_is_out_of_range_but_a_range_of_it_stays_readable(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 900])] * 8)
    bases, end = list(log.bases), log.end_offset
    reader = LogReader(tmp_path, FileCache(2))
    found = reader.locate(bases, end, 0, 1 << 20)
    assert found is not None
    before = read(found)
    retire(log, bases[2])
    reader.forget()
    gc.collect()
    assert read(found) == before
    for offset in (0, bases[1] + 5):  # with the view of a moment ago
        with pytest.raises(OffsetOutOfRange):
            reader.locate(bases, end, offset, 1000)
        with pytest.raises(OffsetOutOfRange):
            reader.at(bases, end, offset)
    found_later = reader.by_time(bases, end, 0)
    assert found_later is not None and found_later.offset >= bases[2]
    fd = found.file.fd
    del found
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_at_every_offset(log: Log, naive: Naive) -> None:
    reader = LogReader(log.path, FileCache())
    for offset in [*range(0, log.end_offset, 11), *naive.boundaries]:
        assert reader.at(log.bases, log.end_offset, offset) == naive.at(offset)


def test_records_are_counted_over_the_life_of_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 450] * 2)] * 8)
    reader = LogReader(tmp_path, FileCache())
    before = [reader.at(log.bases, log.end_offset, offset) for offset in range(log.bases[2], log.end_offset, 100)]
    retire(log, log.bases[2])
    offsets = range(log.bases[0], log.end_offset, 100)
    assert [reader.at(log.bases, log.end_offset, offset) for offset in offsets] == before


def test_by_time_every_time(log: Log, naive: Naive) -> None:
    reader = LogReader(log.path, FileCache())
    for timestamp in [-5, *range(0, 1001, 3), 10**15]:
        assert reader.by_time(log.bases, log.end_offset, timestamp) == naive.by_time(timestamp)


def test_by_time_sees_nothing_above_the_end(log: Log, naive: Naive) -> None:
    reader = LogReader(log.path, FileCache())
    for end in naive.boundaries[::5]:
        for timestamp in range(0, 1000, 100):
            expected = naive.by_time(timestamp)
            if expected is not None and expected.offset >= end:
                expected = None
            assert reader.by_time(log.bases, end, timestamp) == expected


def test_max_timestamp(log: Log, naive: Naive) -> None:
    reader = LogReader(log.path, FileCache())
    assert reader.max_timestamp(log.bases, 0) is None
    for end in naive.boundaries[1::7]:
        largest = max(info.max_timestamp for _, info, stop in naive.batches if stop <= end)
        assert reader.max_timestamp(log.bases, end) == naive.by_time(largest)


def test_a_time_from_the_future_spoils_its_own_segment_only(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 400], 10**15 if number == 1 else number) for number in range(20)])
    reader = LogReader(tmp_path, FileCache())
    retire(log, log.bases[1])
    found = reader.by_time(log.bases, log.end_offset, 15)
    assert found is not None and found.timestamp == 15


def times_batch(count: int, first: int = 5_000, codec: str = "zstd", size: int = 0) -> bytes:
    """A batch whose records are a millisecond apart."""
    return encode_batch([(None, bytes(size), (), first + number) for number in range(count)], codec=codec)


def test_a_batch_is_unpacked_once_however_often_it_is_asked_about(tmp_path: Path) -> None:
    """300 questions about one batch look at it once: work is counted in bytes, not in time."""
    log = filled(tmp_path, [times_batch(1_000, size=500)], TopicSettings())
    cache = FileCache()
    reader = LogReader(tmp_path, cache)
    found = reader.by_time(log.bases, log.end_offset, 5_000)
    assert found is not None
    for number in range(0, 1_000, 3):
        record = reader.first_record(log.bases, log.end_offset, found, 5_000 + number)
        assert record == Found(found.offset + number, 5_000 + number, number)
        if not number:
            looked = reader.looked_bytes
    assert reader.looked_bytes == looked > 500_000
    other = LogReader(tmp_path, cache)
    other.first_record(log.bases, log.end_offset, found, 5_999)
    assert other.looked_bytes == 0, "nor does another reader of the same log"
    reader.forget()
    reader.first_record(log.bases, log.end_offset, found, 5_999)
    assert reader.looked_bytes > looked


@pytest.mark.parametrize(
    "raw",
    [times_batch(RECORDS_MAX + 1), times_batch(20, size=UNPACKED_BYTES_MAX // 10)],
    ids=["records", "bytes"],
)
def test_a_bomb_is_answered_as_a_whole_and_once(tmp_path: Path, raw: bytes) -> None:
    log = filled(tmp_path, [raw], TopicSettings())
    reader = LogReader(tmp_path, FileCache())
    found = reader.by_time(log.bases, log.end_offset, 5_007)
    assert found is not None
    before = reader.looked_bytes
    for _ in range(50):
        assert reader.first_record(log.bases, log.end_offset, found, 5_007) == found
    assert reader.looked_bytes - before <= UNPACKED_BYTES_MAX + len(raw)


def test_remembered_times_are_bounded() -> None:
    cache = FileCache()
    for number in range(200):
        cache.remember_times("t", number, Times(array("q", range(1_500)), 0, array("q")))
        cache.remember_times("u", number, Times(array("q"), 0, array("q")))
    assert cache.times("t", 199) is not None and cache.times("t", 0) is None
    assert sum(len(times.times) + 64 for times in cache._times.values()) == cache._times_count <= TIMES_MAX
    cache.drop("t")
    cache.drop("u")
    assert cache._times_count == 0 and not cache._times


def test_an_empty_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    reader = LogReader(tmp_path, FileCache())
    assert reader.locate(log.bases, 0, 0, 10) is None
    assert reader.at(log.bases, 0, 0) == (-1, 0)
    assert reader.by_time(log.bases, 0, 0) is None
    assert reader.max_timestamp(log.bases, 0) is None
    with pytest.raises(OffsetOutOfRange):
        reader.at(log.bases, 0, 1)


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
        found = reader.locate(log.bases, log.end_offset, offset, 1000)
        assert found is not None
        start, stop = log_range(found)
        assert start == naive.containing(offset)
        assert stop in naive.boundaries
    if damage in ("short", "shifted"):
        for offset in range(0, log.end_offset, 53):
            assert reader.at(log.bases, log.end_offset, offset) == naive.at(offset)


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 100])] * 3)
    size = log.end_offset // 3
    with log_path(tmp_path, 0).open("r+b") as file:
        file.seek(size + 16)
        file.write(b"\1")
    with pytest.raises(CorruptLog) as caught:
        LogReader(tmp_path, FileCache()).at(log.bases, log.end_offset, 2 * size - 1)
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
        found = reader.locate(log.bases, log.end_offset, 5, 1 << 20)
        assert found is not None and text in read(found)
        reader.forget()
        for file in path.iterdir():
            file.unlink()


def test_file_cache_is_bounded_and_keeps_the_last_used(tmp_path: Path) -> None:
    names = [str(tmp_path / str(number)) for number in range(4)]
    for name in names:
        Path(name).touch()
    cache = FileCache(2)
    first = cache.get(names[0], File)
    cache.get(names[1], File)
    assert cache.get(names[0], File) is first
    cache.get(names[2], File)
    assert len(cache) == 2
    assert cache.get(names[0], File) is first
    cache.get(names[3], IndexFile)
    before = cache.opened
    cache.get(names[2], File)
    assert cache.opened == before + 1


def test_a_file_that_cannot_be_opened_is_a_storage_fault(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(StorageFault, match="loop"):
        FileCache().get(str(tmp_path / "loop"), File)
    with pytest.raises(FileNotFoundError):
        FileCache().get(str(tmp_path / "nothing"), File)


def test_unlinked_files_are_let_go_of(tmp_path: Path) -> None:
    """As long as a cache keeps a retired segment open, the disk keeps its room."""
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    for each in (kept, gone):
        each.write_bytes(b"x")
    files = FileCache(4)
    for each in (kept, gone):
        files.get(str(each), File)
    gone.unlink()
    files.drop_unlinked()
    assert len(files) == 1 and files.get(str(kept), File).fd >= 0
