"""appliance.log.log: append, flush, roll, retire, and every way to be interrupted, against a model."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import subprocess
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.config import TopicSettings
from appliance.durable_files import System
from appliance.errors import DiskFull, OutOfResources, StorageFault
from appliance.log import FileCache, FlushTicket, Log, LogReader, peek
from appliance.log.index import ENTRY_BYTES
from appliance.log.recovery import POINT_NAME

from ..support.log_batches import (
    BOOT,
    MEMORY,
    SETTINGS,
    Group,
    batch,
    contents,
    filled,
    headers_of,
    log_range,
    open_log,
    place_all,
    placed,
    retire,
)
from ..support.long import LONG


class Killed(BaseException):
    """The process dies here: nothing of ours runs any more."""


@dataclass
class Faults:
    """A disk that works until told otherwise; then after so many bytes or calls."""

    bytes_left: int | None = None
    calls_left: int | None = None
    error: BaseException = field(default_factory=Killed)
    step_max: int = 1 << 30
    syncs: int = 0

    def system(self) -> System:
        return System(self.writev, self.pwrite, self.fdatasync)

    def _call(self) -> None:
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise self.error
            self.calls_left -= 1

    def _allowance(self, size: int) -> int:
        self._call()
        size = min(size, self.step_max)
        if self.bytes_left is not None:
            if self.bytes_left == 0:
                raise self.error
            size = min(size, self.bytes_left)
            self.bytes_left -= size
        return size

    def writev(self, fd: int, views: Sequence[memoryview]) -> int:
        return os.write(fd, b"".join(views)[: self._allowance(sum(map(len, views)))])

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        return os.pwrite(fd, memoryview(data)[: self._allowance(len(data))], position)

    def fdatasync(self, fd: int) -> None:
        """What is written has its room already."""
        self._call()
        self.syncs += 1

    def heal(self) -> None:
        self.bytes_left = self.calls_left = None


def no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# ---- one behaviour at a time


def test_a_new_log_is_empty(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    assert (log.start, log.end_offset, log.flushed, log.records, log.bases) == (0, 0, 0, 0, [0])
    assert log.flush_begin().end == 0


def test_append_writes_the_bytes_as_they_are_placed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    group = place_all(0, [batch([b"a", b"b"]), batch([b"c" * 100])])
    log.append(group)
    log.append([])
    assert contents(tmp_path) == b"".join(view for view, _ in group)
    assert (log.end_offset, log.records, log.flushed) == (len(contents(tmp_path)), 3, 0)


def test_batches_that_are_not_placed_are_a_bug(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(place_all(0, [batch()]))
    with pytest.raises(AssertionError):
        log.append(place_all(0, [batch()]))


def test_more_batches_than_one_writev_takes(tmp_path: Path) -> None:
    log = open_log(tmp_path, TopicSettings())
    raws = [batch([b"%d" % number]) for number in range(3000)]
    log.append(place_all(0, raws))
    assert log.end_offset == len(contents(tmp_path)) == sum(map(len, raws))


@pytest.mark.parametrize("step", [1, 7, 60, 61, 1000])
def test_short_writes_are_gone_on_with(tmp_path: Path, step: int) -> None:
    log = Log.open(tmp_path, SETTINGS, lambda: 0, boot=BOOT, system=Faults(step_max=step).system())
    group = place_all(0, [batch([b"x" * size]) for size in (1, 50, 200, 3)])
    log.append(group)
    assert contents(tmp_path) == b"".join(view for view, _ in group)


def test_rolls_before_a_batch_that_does_not_fit_and_splits_the_group(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    raws = [batch([b"x" * 400])] * 11
    log.append(place_all(0, raws))
    size = len(raws[0])
    fit = SETTINGS.segment_bytes // size
    assert log.bases == list(range(0, 11 * size, fit * size))
    assert all(file.stat().st_size <= SETTINGS.segment_bytes for file in tmp_path.glob("*.log"))


def test_a_batch_larger_than_a_segment_gets_one_for_itself(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    small, large = batch(), batch([b"x" * 5000])
    log.append(place_all(0, [large, small, large, small]))
    assert log.bases == [0, len(large), len(large + small), len(large + small + large)]


def test_rolls_by_age_counted_from_the_first_batch(tmp_path: Path) -> None:
    now = [0]
    log = Log.open(tmp_path, SETTINGS, lambda: now[0], boot=BOOT)
    now[0] = 5 * SETTINGS.segment_ms
    log.append(place_all(0, [batch()]))
    now[0] += SETTINGS.segment_ms - 1
    log.append(place_all(log.end_offset, [batch()]))
    assert log.bases == [0]
    log.close(clean=False)
    log = Log.open(tmp_path, SETTINGS, lambda: now[0], boot=BOOT)  # its age survives
    now[0] += 1
    end = log.end_offset
    log.append(place_all(end, [batch()]))
    assert log.bases == [0, end]


def test_grows_the_active_segment_when_there_are_as_many_as_can_be(tmp_path: Path) -> None:
    log = Log.open(tmp_path, SETTINGS, lambda: 0, segments_max=3, boot=BOOT)
    log.append(place_all(0, [batch([b"x" * 1500])] * 10))
    assert len(log.bases) == 3
    log.retire_before(log.bases[1])
    assert log.start == 0  # not exposed yet
    log.raise_high_watermark(log.end_offset)
    retire(log, log.bases[1])
    log.append(place_all(log.end_offset, [batch()]))
    assert len(log.bases) == 3


def test_flush_tickets(tmp_path: Path) -> None:
    """Goal: a ticket covers what was written when it was begun, also when another one was dropped meanwhile."""
    faults = Faults()
    log = Log.open(tmp_path, SETTINGS, lambda: 0, boot=BOOT, system=faults.system())
    log.append(place_all(0, [batch()]))
    dropped = log.flush_begin()
    log.append(place_all(log.end_offset, [batch([b"x" * 1000])] * 3))  # rolls
    sealed = log.bases[1]
    ticket = log.flush_begin()
    end = log.end_offset
    log.append(place_all(log.end_offset, [batch()]))
    before = faults.syncs
    ticket.sync()
    assert faults.syncs == before + 2 * len(log.bases)  # all logs, and all indexes: the active one is new
    assert log.flushed == 0
    log.flush_done(ticket)
    assert (log.flushed, dropped.end < sealed < end) == (end, True)
    log.flush()
    assert faults.syncs == before + 2 * len(log.bases) + 1  # those that are on the disk are left alone
    assert log.flushed == log.end_offset


def test_flushing_in_another_thread_while_appending_and_rolling(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    tickets: list[FlushTicket | None] = []

    def sync() -> None:
        for ticket in iter(tickets.pop, None):
            ticket.sync()
            log.flush_done(ticket)

    for _ in range(20):
        log.append(place_all(log.end_offset, [batch([b"x" * 300])] * 4))
        tickets[:] = [None, log.flush_begin()]
        thread = threading.Thread(target=sync)
        thread.start()
        end = log.end_offset
        log.append(place_all(log.end_offset, [batch([b"x" * 300])] * 4))
        thread.join()
        assert log.flushed == end
    log.flush()
    log.close(clean=False)
    assert open_log(tmp_path).end_offset == log.end_offset


def test_a_failed_flush_is_a_storage_fault_and_recovery_then_trusts_the_disk_only(tmp_path: Path) -> None:
    faults = Faults()
    log = Log.open(tmp_path, SETTINGS, lambda: 0, boot=BOOT, system=faults.system())
    log.append(place_all(0, [batch()]))
    log.flush()
    flushed = log.flushed
    log.append(place_all(flushed, [batch()]))
    log.raise_high_watermark(log.end_offset)
    faults.calls_left, faults.error = 0, OSError(errno.EIO, "Input/output error")
    ticket = log.flush_begin()
    with pytest.raises(StorageFault, match="cannot be flushed"):
        ticket.sync()
    os.truncate(tmp_path / f"{0:020d}.log", flushed)  # what the disk has
    again = open_log(tmp_path)
    assert again.end_offset == flushed


def test_a_write_that_fails_is_a_storage_fault(tmp_path: Path) -> None:
    faults = Faults(error=OSError(errno.EIO, "Input/output error"))
    log = Log.open(tmp_path, SETTINGS, lambda: 0, boot=BOOT, system=faults.system())
    faults.bytes_left = 10
    with pytest.raises(StorageFault, match="Input/output"):
        log.append(place_all(0, [batch()]))
    assert log.state == 2


@pytest.mark.parametrize("marked", [False, True])
def test_a_full_disk_at_any_byte_leaves_everything_as_it_was(path: Path, marked: bool) -> None:
    """Method: a group that rolls twice, on a disk that takes so many bytes more, for every number of them."""
    faults = Faults(error=no_room())
    log = Log.open(path, SETTINGS, lambda: 0, boot=BOOT, system=faults.system())
    log.append(place_all(0, [batch([b"x" * 500])] * 2))
    if marked:
        log.close()
        log = Log.open(path, SETTINGS, lambda: 0, boot=BOOT, system=faults.system())
    before = snapshot(path)
    group = place_all(log.end_offset, [batch([b"y" * 500])] * 8)
    needed = 0
    while True:
        faults.bytes_left = needed
        try:
            log.append(group)
        except DiskFull as error:
            assert "No space left" in str(error)
            assert error.retriable
        else:
            break
        assert snapshot(path) == before, needed
        assert (log.state, log.end_offset, log.bases) == (3, group_start(group), [0])
        needed += 1
    assert log.state == 1
    assert len(log.bases) == 4
    assert needed > sum(len(view) for view, _ in group)
    faults.heal()
    log.flush()
    log.raise_high_watermark(log.end_offset)
    log.close(clean=False)
    assert open_log(path).end_offset == log.end_offset


def test_what_was_deleted_without_room_for_a_new_segment_is_gone_after_a_stop(path: Path) -> None:
    """As after a kill: the segment was active when all of it was deleted, and has been rolled since."""
    faults = Faults(error=no_room())
    log = Log.open(path, SETTINGS, lambda: 0, boot=BOOT, system=faults.system())
    log.append(place_all(0, [batch()]))
    log.flush()
    log.raise_high_watermark(log.end_offset)
    deleted = log.end_offset
    faults.bytes_left = 0
    log.retire_before(deleted)
    assert (log.bases, log.start) == ([0], deleted), "it stays, and is not read"
    faults.heal()
    log.roll()
    log.close()
    log = open_log(path)
    assert (log.bases, log.start) == ([deleted], deleted)
    assert sorted(path.glob("*.log")) == [path / f"{deleted:020}.log"]


def test_a_lack_of_descriptors_in_a_roll_leaves_everything_as_it_was(path: Path) -> None:
    """Method: a group that rolls several times, with so many opens that succeed, for every number of them."""
    opens_left = [1000]

    def open_(path: Path | str, flags: int, mode: int) -> int:
        if not opens_left[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opens_left[0] -= 1
        return os.open(path, flags, mode)

    log = Log.open(path, SETTINGS, lambda: 0, boot=BOOT, system=System(open=open_))
    log.append(place_all(log.end_offset, [batch([b"x" * 500])] * 2))
    log.flush()
    group = place_all(log.end_offset, [batch([b"y" * 500])] * 8)
    before, end = snapshot(path), log.end_offset
    for opens in range(20):
        opens_left[0] = opens
        try:
            log.append(group)
        except OutOfResources as error:
            assert error.retriable
            assert (snapshot(path), log.end_offset, log.bases, log.state) == (before, end, [0], 1), opens
        else:
            break
    assert opens == 4 * (len(log.bases) - 1)  # two files, opened twice each, for each new segment
    opens_left[0] = 1000
    log.flush()
    log.close(clean=False)
    assert open_log(path).end_offset == log.end_offset


def group_start(group: Group) -> int:
    view = group[0][0]
    return int.from_bytes(view[:8], "big") + 1 - len(view)


def snapshot(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".index")}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_full_file_system(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip(mounted.stderr.decode())
    try:
        reserve = tmp_path / "reserve"
        reserve.write_bytes(bytes(100_000))
        log = open_log(tmp_path / "t-0", TopicSettings())
        raw = batch([b"x" * 10_000])
        with pytest.raises(DiskFull):
            while True:
                log.append(place_all(log.end_offset, [raw] * 3))
        end = log.end_offset
        assert end > 800_000 and contents(tmp_path / "t-0") and end == len(contents(tmp_path / "t-0"))
        log.flush()
        log.raise_high_watermark(end)
        reader = LogReader(log.path, FileCache())
        assert reader.locate(log.bases, end, 0, 1 << 20) is not None
        filler = tmp_path / "filler"
        with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(DiskFull):
            open_log(tmp_path / "u-0")
        with pytest.raises(DiskFull):
            log.append(place_all(end, [raw]))
        assert (log.end_offset, log.state) == (end, 3)
        filler.unlink()
        reserve.unlink()
        log.append(place_all(end, [raw]))
        assert log.state == 1
        log.close()
        log = open_log(tmp_path / "t-0", TopicSettings())
        assert log.end_offset == end + len(raw)
        open_log(tmp_path / "u-0")
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_retire_drops_whole_segments_and_never_what_readers_have_not_seen(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(place_all(0, [batch([b"x" * 900])] * 8))
    bases = list(log.bases)
    assert len(bases) == 4
    log.raise_high_watermark(bases[2])
    log.retire_before(log.end_offset)
    assert log.start == 0  # nothing of it is on the disk
    log.flush()
    log.retire_before(log.end_offset)
    assert (log.start, log.bases) == (bases[2], bases[2:])
    assert len(list(tmp_path.glob("*.log"))) == 4
    assert log.unlink_retired() == 4
    assert len(list(tmp_path.glob("*.log"))) == 2
    log.retire_before(bases[2])
    assert log.unlink_retired() == 0
    middle = bases[2] + 100
    log.raise_high_watermark(log.end_offset)
    log.retire_before(middle)
    assert log.unlink_retired() == 0  # starts in the middle of a segment, which stays
    assert (log.start, log.bases[0]) == (middle, bases[2])


def test_what_goes_is_removed_only_when_what_stays_is_on_the_disk(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch()] * 5)
    log.retire_before(log.end_offset)
    with pytest.raises(AssertionError, match="flush first"):
        log.unlink_retired()
    assert log.must_flush_to_unlink
    log.flush()
    assert log.unlink_retired() == 2


def test_retire_everything(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch()] * 5)
    end, records = log.end_offset, log.records
    retire(log, end)
    assert (log.start, log.bases, log.records) == (end, [end], records)
    log.close(clean=False)
    log = open_log(tmp_path)
    assert (log.start, log.bases, log.records) == (end, [end], records)
    log.close()
    summary = peek(tmp_path)
    assert summary is not None and (summary.start, summary.end, summary.records) == (end, end, records)


def test_retired_but_not_unlinked_when_killed(tmp_path: Path) -> None:
    log = filled(tmp_path, [batch([b"x" * 900])] * 8)
    bases = list(log.bases)
    log.retire_before(bases[2])
    log.close(clean=False)
    log = open_log(tmp_path)
    assert (log.start, log.bases) == (bases[2], bases[2:])
    assert len(list(tmp_path.glob("*.log"))) == 2


def test_headers_of_everything_from_an_offset_on(tmp_path: Path) -> None:
    raws = [batch([b"x" * 300] * (number % 3 + 1)) for number in range(12)]
    log = filled(tmp_path, raws)
    ends = []
    end = 0
    for raw in raws:
        end += len(raw)
        ends.append(end)
    for index, start in enumerate([0, *ends]):
        for offset in (start, start + 1) if start < end else (end,):
            seen = [(base, stop, info.count) for info, base, stop in headers_of(log, offset)]
            assert [stop for _, stop, _ in seen] == ends[index:]
            assert all(base == stop - count for base, stop, count in seen)
    log.retire_before(log.bases[2] + 7)
    assert [stop for _, _, stop in headers_of(log, 0)] == [stop for stop in ends if stop > log.bases[0]]


# ---- everything against a model


@dataclass
class Model:
    """What must be there: batches with the offset each starts at."""

    starts: list[int] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.starts[-1] + len(self.batches[-1]) if self.starts else 0

    def cut(self, end: int) -> None:
        while self.starts and self.starts[-1] >= end:
            for column in (self.starts, self.batches, self.counts, self.timestamps):
                column.pop()


def forged(position: int) -> bytes:
    """A payload that holds a batch which says of itself that it belongs right there."""
    raw = batch([b"forged"])
    return b"".join(bytes(placed(raw, position + 70 + shift)[0]) for shift in range(0, 300, len(raw)))


kinds = st.sampled_from(["plain", "forged", "large"])
shapes = st.lists(st.tuples(kinds, st.integers(1, 400), st.integers(1, 5), st.integers(0, 99)), min_size=1, max_size=9)


class LogMachine(RuleBasedStateMachine):
    """Goal: whatever happens to it, the log is what was appended, as far as it was promised.

    Method: rules append, flush, expose, roll and retire; kill the process between or inside any write; reboot with
    what was not flushed torn and the recovery point of an earlier time.  After each step everything readable is read
    back and compared.
    """

    @initialize()
    def begin(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="log-", dir=MEMORY))
        self.model = Model()
        self.now_ms = 1_000
        self.boot = (1, 1)
        self.faults = Faults()
        self.files = FileCache(2)
        self.reader = LogReader(self.path, self.files)
        self.log = self.open()
        self.old_point = self.point()

    def teardown(self) -> None:
        if hasattr(self, "path"):
            shutil.rmtree(self.path)
        self.__dict__.pop("log", None)
        gc.collect()  # a machine is full of cycles, and each log in it holds files open

    def open(self) -> Log:
        return Log.open(self.path, SETTINGS, lambda: self.now_ms, 6, boot=self.boot, system=self.faults.system())

    def point(self) -> bytes:
        return (self.path / POINT_NAME).read_bytes()

    def group(self, given: list[tuple[str, int, int, int]]) -> Group:
        position = self.log.end_offset
        group: Group = []
        for kind, size, count, timestamp in given:
            values = [bytes([97 + size % 26]) * size] * count
            if kind == "forged":
                values = [forged(position)]
            elif kind == "large":
                values = [b"L" * 2500]
            group.append(placed(batch(values, timestamp), position))
            position += len(group[-1][0])
        return group

    def appended(self, group: Group) -> None:
        for view, info in group:
            self.model.starts.append(self.model.end)
            self.model.batches.append(bytes(view))
            self.model.counts.append(info.count)
            self.model.timestamps.append(info.max_timestamp)

    @rule(given=shapes)
    def append(self, given: list[tuple[str, int, int, int]]) -> None:
        group = self.group(given)
        self.log.append(group)
        self.appended(group)

    @rule(given=shapes, room=st.integers(0, 3000))
    def append_to_a_full_disk(self, given: list[tuple[str, int, int, int]], room: int) -> None:
        self.faults.bytes_left, self.faults.error = room, no_room()
        group = self.group(given)
        before = snapshot(self.path)
        try:
            self.log.append(group)
            self.appended(group)
        except DiskFull:
            assert snapshot(self.path) == before
        self.faults.heal()

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(given=shapes)
    def flush_while_appending(self, given: list[tuple[str, int, int, int]]) -> None:
        ticket = self.log.flush_begin()
        self.append(given)
        ticket.sync()
        self.log.flush_done(ticket)
        assert self.log.flushed == ticket.end

    @rule()
    def expose_flushed(self) -> None:
        self.log.raise_high_watermark(max(self.log.flushed, self.log.high_watermark))

    @rule()
    def expose_written(self) -> None:
        self.log.raise_high_watermark(self.log.end_offset)

    @rule()
    def roll(self) -> None:
        if len(self.log.bases) < 6:
            self.log.roll()

    @rule(milliseconds=st.integers(1, SETTINGS.segment_ms))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(data=st.data(), finish=st.booleans())
    def retire(self, data: st.DataObject, finish: bool) -> None:
        offset = data.draw(st.integers(self.log.start, self.log.high_watermark))
        self.log.flush()
        if finish:
            retire(self.log, offset)
        else:
            self.log.retire_before(offset)
        assert self.log.start == offset
        self.old_point = self.point()

    @rule()
    def keep_recovery_point(self) -> None:
        self.old_point = self.point()

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        summary = peek(self.path)
        if summary is not None:
            assert summary == self.log.summary
        before = self.log.bases, self.log.start, self.log.end_offset, self.log.records
        self.log = self.open()
        assert (self.log.bases, self.log.start, self.log.end_offset, self.log.records) == before
        assert self.log.flushed == self.log.end_offset
        self.old_point = self.point()

    @rule()
    def kill(self) -> None:
        exposed = self.log.high_watermark
        self.log = self.open()
        assert self.log.end_offset == self.model.end >= exposed

    @rule(given=shapes, size=st.integers(0, 3000))
    def kill_while_appending(self, given: list[tuple[str, int, int, int]], size: int) -> None:
        self.faults.bytes_left, self.faults.error = size, Killed()
        group = self.group(given)
        exposed = self.log.high_watermark
        with contextlib.suppress(Killed):
            self.log.append(group)
        self.faults.heal()
        self.appended(group)
        self.log = self.open()
        assert self.log.end_offset in [*self.model.starts, self.model.end] and self.log.end_offset >= exposed
        self.model.cut(self.log.end_offset)

    @precondition(lambda self: self.model.starts)
    @rule(data=st.data(), zeros=st.booleans())
    def reboot(self, data: st.DataObject, zeros: bool) -> None:
        """Only what was flushed is sure; the rest of the files has any length, or zeros where data should be."""
        flushed, written = self.log.flushed, self.log.end_offset
        bases = self.log.bases
        cut = data.draw(st.integers(max(flushed, bases[0]), written))
        keep = bisect_right(bases, cut) - 1
        for base in bases[keep + 1 :]:
            (self.path / f"{base:020d}.log").unlink()
        active = self.path / f"{bases[keep]:020d}.log"
        content = active.read_bytes()
        os.truncate(active, cut - bases[keep])
        if zeros:
            os.truncate(active, len(content))
            lost = content[cut - bases[keep] :]
            cut += len(lost) - len(lost.lstrip(b"\0"))  # zeros in the place of zeros lose nothing
        for base in bases[max(0, bisect_right(bases, flushed) - 1) :]:
            index = self.path / f"{base:020d}.index"
            if index.exists():
                least = ENTRY_BYTES if base == bases[0] else 0  # created long ago, on the disk since
                os.truncate(index, data.draw(st.integers(least, index.stat().st_size)))
        (self.path / POINT_NAME).write_bytes(self.old_point)
        self.boot = (self.boot[0] + 1, self.boot[1])
        self.log = self.open()
        self.reader.forget()  # whoever had read before is gone with the reboot
        assert flushed <= self.log.end_offset <= cut
        assert self.log.end_offset in [*self.model.starts, self.model.end]
        self.model.cut(self.log.end_offset)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log, model = self.log, self.model
        assert (log.end_offset, log.records) == (model.end, sum(model.counts))
        assert log.bases[0] <= log.start <= log.high_watermark <= log.end_offset and log.bases == sorted(set(log.bases))
        assert len(log.bases) <= 6
        bases, end = tuple(log.bases), log.high_watermark
        everything = b"".join(model.batches)
        offset = log.start
        first = True
        while (range_ := self.reader.locate(bases, end, offset, 700)) is not None:
            data = os.pread(range_.file.fd, range_.count, range_.position)
            start, _ = log_range(range_)
            assert start <= offset and (first or start == offset)
            assert data == everything[start : start + range_.count]
            offset, first = start + range_.count, False
        assert offset == end
        if end > bases[0]:
            middle = (log.start + end) // 2
            index = bisect_right(model.starts, middle) - 1
            if middle < end:
                stop = model.starts[index] + len(model.batches[index])
                before = sum(model.counts[:index]) + max(0, middle - (stop - model.counts[index]))
                assert self.reader.time_and_count(bases, end, middle) == (model.timestamps[index], before)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=200 if LONG else 30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
