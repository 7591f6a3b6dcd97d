"""Compaction: what stays, where it stays, and that nothing else of the log notices."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config import TopicSettings
from appliance.durable_files import SYSTEM, File
from appliance.errors import DiskFull, OutOfResources
from appliance.log import FileCache, Log, LogReader, compaction
from appliance.log.compaction import CompactionState, PassCounts, Policy, run_pass
from appliance.log.files import compacted_path, index_path, log_path, offset_at
from appliance.log.reader import SegmentFile
from appliance.log.repair import repair
from appliance.log.segment import scan
from appliance.log.tools import DumpedBatch, dump, verify
from appliance.partition_states import ONLINE
from appliance.records.batch import LOG_APPEND_TIME, check_batch, read_header, restamp, walk
from appliance.records.decode import Record, decode_batch
from appliance.records.encode import encode_batch
from appliance.records.holes import is_hole

from ..support.log_batches import BOOT, MEMORY, filled, open_log, overwrite, place_all
from ..support.power_loss import Disk, Image, plant

SETTINGS = TopicSettings(segment_bytes=2048, index_interval_bytes=256)
NEVER = -1


class Written(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int = 1000


def raw(records: Sequence[Written], codec: str = "none", *, stamped: int | None = None) -> bytes:
    data = encode_batch([(record.key, record.value, (), record.timestamp) for record in records], codec=codec)
    if stamped is not None:
        view = memoryview(bytearray(data))
        info = check_batch(view, 0, len(view), 1 << 24)
        restamp(view, 0, info, stamped, info.attributes | LOG_APPEND_TIME)
        data = bytes(view)
    return data


def keyed(*pairs: tuple[bytes, bytes | None]) -> bytes:
    return raw([Written(*pair) for pair in pairs])


def compact(log: Log, *, tombstones_ms: int = NEVER, now_ms: int = 5000, keys_max: int = 1 << 20) -> PassCounts:
    policy = Policy(log.bases[-1], tombstones_ms, now_ms, 1 << 20, SETTINGS.index_interval_bytes)
    counts = run_pass(log.path, log.bases, log.end_offset, policy, log.swap, lambda _: None, keys_max=keys_max)
    assert not list(log.path.glob("*.compacted"))
    return counts


def rolled(path: Path, *raws: bytes) -> Log:
    """A log of these batches, each in a segment of its own, and an empty active one."""
    log = open_log(path, SETTINGS)
    for raw_batch in raws:
        log.append(place_all(log.end_offset, [raw_batch]))
        log.roll()
    log.flush()
    log.raise_high_watermark(log.end_offset)
    return log


def records_of(log: Log) -> list[Record]:
    """All records, in the order of the files."""
    records: list[Record] = []
    for base, stop in zip(log.bases, [*log.bases[1:], log.end_offset], strict=True):
        for _, info, data in scan(File(log_path(log.path, base)), base, 0, stop - base):
            if not is_hole(info):
                records += decode_batch(bytes(data))
    return records


def pairs_of(log: Log) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records_of(log)]


def served(log: Log, offset: int, bytes_max: int = 1 << 20) -> list[Record]:
    """What a consumer sees that reads on from an offset to the end, as one that goes on behind each batch."""
    reader, records = LogReader(log.path, FileCache()), []
    while (piece := reader.locate_kept(log.bases, log.end_offset, offset, bytes_max)) is not None:
        data = os.pread(piece.file.fd, piece.count, piece.position)
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            base = int.from_bytes(data[at : at + 8], "big")
            last_delta = int.from_bytes(data[at + 23 : at + 27], "big", signed=True)
            if not data[at + 22] & 0x20:
                records += [record for record in decode_batch(data, at) if record.offset >= offset]
            assert base + last_delta + 1 > offset, "a consumer would stand still"
            offset = base + last_delta + 1
            at += size
    return records


def served_by_position(log: Log, bytes_max: int) -> list[Record]:
    """What a consumer sees that reads on from the byte behind each answer, as that of ``appliance.client``."""
    reader, offset, records = LogReader(log.path, FileCache()), log.start, list[Record]()
    while (piece := reader.locate_kept(log.bases, log.end_offset, offset, bytes_max)) is not None:
        assert isinstance(piece.file, SegmentFile)
        start = offset_at(piece.file.path, piece.position)
        assert start is not None
        data = os.pread(piece.file.fd, piece.count, piece.position)
        for at, _, _ in walk(memoryview(data), 0, len(data)):
            if not is_hole(read_header(data, at)):
                records += [record for record in decode_batch(data, at) if record.offset >= offset]
        offset = start + piece.count
    return records


# ---- what stays


def test_the_last_message_of_each_key_stays_at_its_offset(path: Path) -> None:
    log = filled(path, [keyed((b"a", b"1"), (b"b", b"1")), keyed((b"a", b"2")), keyed((b"c", b"3"))], SETTINGS)
    offsets = {record.value: record.offset for record in records_of(log) if record.key != b"b"}
    log.roll()
    log.append(place_all(log.end_offset, [keyed((b"z", b"active"))]))
    compact(log)
    assert pairs_of(log) == [(b"b", b"1"), (b"a", b"2"), (b"c", b"3"), (b"z", b"active")]
    assert all(offsets[record.value] == record.offset for record in records_of(log) if record.value in (b"2", b"3"))
    assert verify(path).sound


def test_the_active_segment_stays_as_it_is(path: Path) -> None:
    log = filled(path, [keyed((b"a", b"1"))], SETTINGS)
    log.roll()
    log.append(place_all(log.end_offset, [keyed((b"a", b"2")), keyed((b"a", b"3"))]))
    compact(log)
    assert pairs_of(log) == [(b"a", b"1"), (b"a", b"2"), (b"a", b"3")], "what the active one has is not known yet"


def test_a_tombstone_goes_only_after_a_pass_has_seen_it_long_ago(path: Path) -> None:
    log = rolled(path, keyed((b"a", b"1")), keyed((b"a", None)), keyed((b"z", b"")))
    compact(log, now_ms=10_000)
    assert pairs_of(log) == [(b"a", None), (b"z", b"")]
    compact(log, now_ms=20_000, tombstones_ms=9_999)
    assert pairs_of(log) == [(b"a", None), (b"z", b"")]
    compact(log, now_ms=30_000, tombstones_ms=10_000)
    assert pairs_of(log) == [(b"z", b"")]


def test_tombstones_of_a_large_batch_are_counted(path: Path) -> None:
    """It is copied as it is; were they not counted, nobody would order the pass that removes them."""
    many = [(b"%d" % number * 4, None) for number in range(2_000)]
    log = rolled(path, keyed(*many), keyed((b"z", b"")))
    compact(log, now_ms=10_000)
    assert CompactionState.load(path).tombstones == len(pairs_of(log)) - 1 == len(many)
    compact(log, now_ms=30_000, tombstones_ms=10_000)
    assert pairs_of(log) == [(b"z", b"")] and CompactionState.load(path).tombstones == 0


def test_the_last_batch_of_the_log_stays(path: Path) -> None:
    """Readers that read to the end have to find a last message there."""
    log = rolled(path, keyed((b"a", b"1")), keyed((b"a", None)))
    for ms in (10_000, 20_000):
        compact(log, now_ms=ms, tombstones_ms=ms - 1)
    assert pairs_of(log) == [(b"a", None)]
    assert served(log, 0)[-1].offset + 1 == log.end_offset


def test_a_message_without_a_key_goes(path: Path) -> None:
    log = rolled(path, raw([Written(None, b"old")]), keyed((b"a", b"1")))
    compact(log)
    assert pairs_of(log) == [(b"a", b"1")]


def test_a_batch_that_cannot_be_read_stays_as_it_is(path: Path) -> None:
    garbage = bytearray(keyed((b"a", b"1"), (b"b", b"2")))
    garbage[61] = 0x7E  # the length of the first record
    garbage[17:21] = crc32c(bytes(garbage[21:])).to_bytes(4, "big")
    log = rolled(path, bytes(garbage), keyed((b"a", b"2"), (b"b", b"2")), keyed((b"a", b"3")))
    counts = compact(log)
    assert counts.unreadable == 1 and counts.removed == 1
    assert verify(path).sound


def test_a_tombstone_stays_behind_a_batch_that_cannot_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may read it: here it only unpacks to too much."""
    monkeypatch.setattr(compaction, "UNPACKED_BYTES_MAX", 1000)
    log = rolled(path, raw([Written(b"a", b"v" * 2000)], "zstd"), keyed((b"a", None)), keyed((b"z", b"")))
    for ms in (10_000, 20_000):
        compact(log, now_ms=ms, tombstones_ms=ms - 1)
    assert pairs_of(log)[1:] == [(b"a", None), (b"z", b"")]


def test_times_that_are_out_of_all_reason_do_not_end_a_pass(path: Path) -> None:
    """Until a topic is compacted, nobody looks at the times of records."""
    latest = (1 << 63) - 1
    late = bytearray(raw([Written(b"a", b"1", 0), Written(b"b", b"1", latest), Written(b"c", b"1", 0)]))
    late[27:35] = (1000).to_bytes(8, "big")  # the base timestamp
    late[17:21] = crc32c(bytes(late[21:])).to_bytes(4, "big")
    far = raw([Written(b"d", b"1", latest), Written(b"e", b"1", -latest), Written(b"c", b"1", 0)])
    log = rolled(path, bytes(late), far, keyed((b"c", b"2")), keyed((b"c", b"3")))
    counts = compact(log)
    assert (counts.unreadable, counts.removed) == (2, 1)


def test_a_large_key_is_known_by_its_digest(path: Path) -> None:
    log = rolled(path, keyed((b"k" * 100, b"1")), keyed((b"k" * 99 + b"j", b"1")), keyed((b"k" * 100, b"2")))
    compact(log)
    assert [value for _, value in pairs_of(log)] == [b"1", b"2"]


def test_a_pass_with_too_many_keys_goes_on_in_the_next(path: Path) -> None:
    raws = [keyed((b"%d" % (number % 7), b"%d" % number)) for number in range(40)]
    log = rolled(path, *raws)
    seen = []
    while (start := CompactionState.load(path).dirty_start) < log.bases[-1]:
        compact(log, keys_max=2)
        seen.append(start)
    assert len(seen) > 5
    assert sorted(pairs_of(log)) == sorted((b"%d" % (n % 7), b"%d" % n) for n in range(33, 40))


# ---- what it costs


def test_small_batches_far_apart_free_their_blocks(path: Path) -> None:
    """Of 200 bytes a message, one in ten stays: about so much of the disk is taken then."""
    large = TopicSettings(segment_bytes=4 << 20, index_interval_bytes=4096)
    raws = [keyed((b"%d" % (number % 2000), bytes(100) + b"%d" % number)) for number in range(20_000)]
    log = filled(path, raws, large)
    log.roll()
    before = log_path(path, log.bases[0]).stat().st_blocks
    counts = compact(log)
    assert counts.removed == 18_000 and counts.kept_back == 0
    after = sum(log_path(path, base).stat().st_blocks for base in log.bases)
    assert after < 0.15 * before
    assert SegmentFile(log_path(path, log.bases[0])).holed
    assert len(served(log, 0)) == 2000


# ---- what readers see


def test_readers_find_times_in_a_compacted_log(path: Path) -> None:
    records = [Written(b"%d" % (number % 5), b"%d" % number, 1000 + number) for number in range(60)]
    log = rolled(path, *[raw(records[at : at + 6]) for at in range(0, 60, 6)])
    compact(log)
    kept = records_of(log)
    reader = LogReader(path, FileCache())
    for timestamp in range(990, 1070):
        batch_found = reader.find_time(log.bases, log.end_offset, timestamp)
        expected = next((record for record in kept if record.timestamp >= timestamp), None)
        if batch_found is None:
            assert expected is None
        else:
            exact = reader.first_record(log.bases, log.end_offset, batch_found, timestamp)
            assert expected is not None and (exact.offset, exact.timestamp) == (expected.offset, expected.timestamp)


def test_a_message_at_the_first_byte_of_a_gap_is_seen(path: Path) -> None:
    """A batch of as many records as bytes: its first offset is its position, and that of the hole before what stays."""
    filler = random.Random(1)
    records = [Written(b"k%d" % (number % 2 if number else 999), b"") for number in range(2500)]
    sized = (
        raw([*records[:5], Written(b"k1", filler.randbytes(size % 60)), *records[6:]], "zstd") for size in range(600)
    )
    whole = next(raw_batch for raw_batch in sized if len(raw_batch) == len(records))
    large = TopicSettings(segment_bytes=1 << 20, index_interval_bytes=4096)
    log = filled(path, [keyed((b"before", b"")), whole, keyed((b"z", b""))], large)
    log.roll()
    compact(log)
    assert b"k999" in [record.key for record in served(log, 0)]
    assert served(log, 0) == records_of(log)


def test_no_answer_ends_behind_bytes_in_which_the_next_batch_has_offsets(path: Path) -> None:
    """What stays of two batches is one at the end, and its first message lies in the gap before it."""
    gone = (b"x", bytes(400))
    raws = [keyed((b"a", bytes(300))), keyed(gone, (b"p", b"")), keyed(gone, (b"q", b"")), keyed((b"x", b""))]
    log = filled(path, raws, SETTINGS)
    log.roll()
    compact(log)
    remaining = records_of(log)
    assert [record.key for record in remaining] == [b"a", b"p", b"q", b"x"]
    for bytes_max in range(1, log.end_offset + 1, 7):
        assert served_by_position(log, bytes_max) == remaining, bytes_max


def test_a_reader_with_the_old_file_reads_on_and_finds_the_new_one_later(path: Path) -> None:
    log = rolled(path, *[keyed((b"k", b"%d" % number), (b"j", b"%d" % number)) for number in range(9)])
    reader = LogReader(path, FileCache())
    old = reader.locate(log.bases, log.end_offset, 0, 1 << 20)
    assert old is not None
    before = os.pread(old.file.fd, old.count, old.position)
    compact(log)
    assert os.pread(old.file.fd, old.count, old.position) == before
    assert reader.locate(log.bases, log.end_offset, 0, 1 << 20) == old
    reader.forget()
    again = reader.locate(log.bases, log.end_offset, 0, 1 << 20)
    assert again is not None and os.pread(again.file.fd, again.count, again.position) != before


def test_a_log_opens_after_a_pass(path: Path) -> None:
    """In order, and after a kill: what recovery derives is what there was."""
    log = rolled(path, *[keyed((b"k", b"%d" % number), (b"j", b"%d" % number)) for number in range(9)])
    compact(log)
    records, derived = records_of(log), log.derived
    for ordered in (True, False):
        log.close(clean=ordered)
        log = open_log(path, SETTINGS)
        assert records_of(log) == records and log.derived.state.records == derived.state.records
        assert log.bases == list(derived.bases) and log.end_offset == derived.state.end
    assert verify(path).sound


def test_a_segment_that_retention_has_removed_is_not_put_back(path: Path) -> None:
    log = rolled(path, *[keyed((b"k", b"%d" % number)) for number in range(5)])
    policy = Policy(log.bases[-1], NEVER, 0, 1 << 20, 256)

    def swap(base: int) -> bool:
        log.retire_before(log.bases[2] if len(log.bases) > 4 else log.start)
        log.unlink_retired()
        return log.swap(base)

    run_pass(path, list(log.bases), log.end_offset, policy, swap, lambda _: None)
    assert sorted(int(file.stem) for file in path.glob("*.log")) == log.bases
    assert not list(path.glob("*.compacted"))
    assert verify(path).sound


@pytest.mark.parametrize("number", range(3))
def test_damage_in_a_gap_hides_no_message_behind_it(path: Path, number: int) -> None:
    """The offsets of the batch behind a gap lie in it.  In the last case a message is damaged as well."""
    large = TopicSettings(segment_bytes=8 << 20, index_interval_bytes=256)
    stays = [number in (0, 20, 40, 59) for number in range(60)]
    keys = [b"%d" % number if stays[number] else b"" for number in range(60)]
    raws = [keyed((key, b"v" * (70_000 if not key or key == b"0" else 10))) for key in keys]
    log = filled(path, raws, large)
    log.roll()
    log.append(place_all(log.end_offset, [keyed((b"z", b""))]))
    log.raise_high_watermark(log.end_offset)
    compact(log)
    kept = records_of(log)
    log.close()
    file = log_path(path, log.bases[0])
    batches = [batch for batch in dump(path) if isinstance(batch, DumpedBatch) and batch.path == file]
    gap = [batch for batch in batches if batch.is_emptied and batch.position > 0][:2]
    assert gap[1].position == gap[0].position + gap[0].header.size, "a gap of several holes"
    before = batches[batches.index(gap[0]) - 1]
    assert not before.is_emptied
    assert before.header.count == 1
    places = [gap[1:], gap, [before, *gap]][number]
    for place in places:
        overwrite(file, place.position + 64, b"xy")
    assert not verify(path).sound
    repair(path)
    log = open_log(path, large)
    assert verify(path).sound
    lost = [before.offset] if before in places else []
    assert served(log, 0) == records_of(log) == [record for record in kept if record.offset not in lost]


def test_a_deleted_key_stays_deleted_where_a_log_was_cut_and_has_grown_again(path: Path) -> None:
    """A pass had seen what was cut, not what stands there now."""
    log = rolled(path, *[keyed((b"%d" % number, b"x" * 100)) for number in range(8)])
    compact(log, now_ms=10_000)
    place = log.bases[2]
    log.close()
    overwrite(log_path(path, place), 70, b"xyxy")
    assert repair(path, cut=True).end == place < CompactionState.load(path).ended_ms
    log = open_log(path, SETTINGS)
    for raw_batch in (keyed((b"0", None)), keyed((b"z", b"")), keyed((b"z", b""))):
        log.append(place_all(log.end_offset, [raw_batch]))
        log.roll()
    log.raise_high_watermark(log.end_offset)
    compact(log, now_ms=20_000, tombstones_ms=19_000)
    assert [pair for pair in pairs_of(log) if pair[0] == b"0"] == [(b"0", None)]


def test_a_late_request_leaves_a_file_alone_that_is_not_finished(path: Path) -> None:
    """The pass that has asked is over: it got no answer in time, and the next one writes the same segment."""
    log = rolled(path, *[keyed((b"k", b"%d" % number), (b"j", b"%d" % number)) for number in range(3)])
    records = records_of(log)
    compacted_path(log_path(path, 0)).write_bytes(bytes(log.bases[1]))
    assert log.swap(0) and log.state == ONLINE
    assert records_of(log) == records


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
def test_a_swap_that_the_machine_refuses_at_any_step_is_gone_on_with_when_asked_again(path: Path, number: int) -> None:
    """Method: of the calls that change the directory, each fails once.  A file system may need room for any of them."""
    steps_left = 0

    def step(call: Callable[..., None]) -> Callable[..., None]:
        def refused(*arguments: object) -> None:
            nonlocal steps_left
            steps_left -= 1
            if steps_left == 0:
                raise OSError(number, os.strerror(number))
            call(*arguments)

        return refused

    system = replace(SYSTEM, rename=step(os.rename), unlink=step(os.unlink), fsync=step(os.fsync))
    steps_refused = 0

    def swap(base: int) -> bool:
        nonlocal steps_left, steps_refused
        for attempt in itertools.count(1):
            steps_left = attempt
            try:
                is_done = log.swap(base)
            except (DiskFull, OutOfResources):
                steps_refused += 1
            else:
                assert log_path(path, base).exists() and index_path(path, base).exists()
                return is_done
        raise AssertionError

    rolled(path, *[keyed((b"k", b"%d" % number), (b"j", b"%d" % number)) for number in range(5)]).close()
    log = Log.open(path, SETTINGS, lambda: 5000, boot=BOOT, system=system)
    counts = run_pass(
        path, log.bases, log.end_offset, Policy(log.bases[-1], NEVER, 0, 1 << 20, 256), swap, lambda _: None
    )
    assert counts.segments == 4 and steps_refused >= 5 * counts.segments
    assert not list(path.glob("*.compacted")) and verify(path).sound
    assert pairs_of(log) == [(b"k", b"4"), (b"j", b"4")]


# ---- power loss


def test_a_power_loss_at_any_step_leaves_a_log_that_opens(path: Path) -> None:
    """Whatever each file and directory then holds, nothing is lost that was to stay, and no deleted key is back."""
    root = path / "log"
    rolled(root, *[keyed((b"k", b"%d" % n), (b"%d" % n, None if n % 2 else b"x" * 400)) for n in range(6)]).close()
    log = open_log(root, SETTINGS)
    written = {record.offset: record for record in records_of(log)}
    log.close()
    images: list[Image] = []
    disk = Disk(root, lambda: images.append(disk.image()))
    log = Log.open(root, SETTINGS, lambda: 5000, boot=BOOT, system=disk.system())
    first = len(images)
    policy = Policy(log.bases[-1], NEVER, 5000, 1 << 20, 256)
    counts = run_pass(root, log.bases, log.end_offset, policy, log.swap, lambda _: None, system=disk.system())
    assert counts.segments > 2 and len(images) - first > 20
    random_ = random.Random(7)
    seen = set()
    for number, image in enumerate(images[first:]):
        for tree in image.states(random_, 6):
            place = path / "after"
            plant(tree, place)
            after = open_log(place, SETTINGS)
            check_promises(after, written, 0)
            seen.add(tuple(record.offset for record in records_of(after)))
            after.close(clean=False)
            shutil.rmtree(place)
        assert number < 2000
    assert len(seen) > 2, "states in the middle were seen"
    disk.close()


# ---- any log


KEYS_OF_ALL = [b"a", b"b", b"c", b"a key of which more is written than a digest has", None]
KEYS = st.sampled_from(KEYS_OF_ALL)
VALUES = st.one_of(st.none(), st.binary(max_size=40))
RECORDS = st.lists(st.builds(Written, KEYS, VALUES, st.integers(0, 10**13)), min_size=1, max_size=12)
BATCHES = st.tuples(
    RECORDS, st.sampled_from(["none", "gzip", "lz4", "zstd", "snappy"]), st.none() | st.integers(0, 9999)
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(BATCHES, min_size=1, max_size=6)),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("compact"), st.tuples(st.integers(1, 6), st.booleans())),
        st.tuples(st.just("reopen"), st.booleans()),
        st.tuples(st.just("damage state"), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_any_log_keeps_what_compaction_promises(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        path, now = Path(name), 1000
        log = open_log(path, SETTINGS)
        written: dict[int, Record] = {}
        for step, argument in steps:
            now += 1000
            match step:
                case "append":
                    raws = [raw(records, codec, stamped=ms) for records, codec, ms in argument]
                    before = log.end_offset
                    log.append(place_all(before, raws))
                    log.flush()
                    log.raise_high_watermark(log.end_offset)
                    written |= {record.offset: record for record in records_of(log) if record.offset >= before}
                case "roll":
                    log.roll()
                case "compact":
                    keys_max, old = argument
                    counts = compact(log, now_ms=now, tombstones_ms=now if old else NEVER, keys_max=keys_max)
                    state = CompactionState.load(path)
                    check_promises(log, written, state.dirty_start if not counts.kept_back else 0)
                    left = sum(record.value is None for record in records_of(log) if record.offset < log.bases[-1])
                    if state.passes and state.passes[-1][0] == log.bases[-1]:
                        assert state.tombstones >= min(left, 1), "no pass would look for them"
                    if not counts.kept_back and keys_max >= len(KEYS_OF_ALL):
                        assert state.tombstones == left
                case "reopen":
                    log.close(clean=bool(argument))
                    log = open_log(path, SETTINGS)
                case "damage state":
                    (path / "compaction").write_bytes(b"{")
        check_promises(log, written, 0)
        log.close()


def check_promises(log: Log, written: dict[int, Record], compacted_up_to: int) -> None:
    kept = records_of(log)
    offsets = [record.offset for record in kept]
    assert offsets == sorted(set(offsets))
    assert all(written[record.offset] == record for record in kept), "a message is another one now"
    last = {record.key: record.offset for record in written.values() if record.key is not None}
    present = set(offsets)
    for key, offset in last.items():
        if written[offset].value is not None:
            assert offset in present, f"the last message of {key!r} is gone"
        elif offset not in present:
            assert not any(record.key == key for record in kept), "a deleted key is back"
    if log.end_offset:
        assert offsets[-1] + 1 == log.end_offset, "no message at the end"
    if compacted_up_to:
        below = [
            record.key for record in kept if record.offset < compacted_up_to and record.offset + 1 < log.end_offset
        ]
        assert len(below) - len(set(below)) <= 1, "a key twice"
    for start in {0, *offsets[::3], log.end_offset // 2}:
        assert served(log, start, 1 + start % 300) == [record for record in kept if record.offset >= start]
    for bytes_max in (1, 150, 400, 1000, 1 << 20):
        assert served_by_position(log, bytes_max) == kept
    report = verify(log.path)
    assert report.sound, report.problems
