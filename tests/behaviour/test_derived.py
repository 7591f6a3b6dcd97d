"""Derived is recovered: whatever happens to a partition, all that is known of it beside its batches follows from them.

Its index, counts, times, sizes, offsets, producers and table are compared with what recovery derives from the files,
and the answers to questions about times and numbers with what is plain to see in the batches.
``LOG_MODEL_RUNS=10000`` is the number of runs of the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.broker import plan
from appliance.broker.open_transactions import OpenTransactions
from appliance.config import TopicSettings
from appliance.durable_files import System
from appliance.errors import (
    DiskFull,
    DuplicateSequence,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    OutOfOrderSequence,
    OutOfResources,
    StaleProducerEpoch,
    StorageFault,
)
from appliance.log import FileCache, Log, LogReader
from appliance.log.files import index_path, log_path
from appliance.log.index_check import IndexCheck
from appliance.log.repair import repair
from appliance.log.scrub import scrub
from appliance.log.tools import DumpedBatch, dump
from appliance.partition_states import OFFLINE, ONLINE
from appliance.processes.writer import writer as appender_module
from appliance.processes.writer.producers import Producers
from appliance.processes.writer.writer import Appender, delete_before
from appliance.records.batch import CODECS, HEADER_BYTES, LOG_APPEND_TIME
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_batch
from appliance.shared.table import CELL_COUNT, SegmentTable
from appliance.wire.requests import MAX_TIMESTAMP, OffsetsPart

from ..support.derived import Opened, compare
from ..support.killed_calls import Killed, KilledCalls
from ..support.log_batches import MEMORY, Arena, labelled
from ..support.long import chosen_size
from ..support.power_loss import Disk, plant

RUNS = chosen_size("LOG_MODEL_RUNS", 20, 300)
IDS_MAX = 3
SEGMENTS_MAX = 6
NOW_MS = 1_700_000_000_000
REFUSED = {
    error.code for error in (DuplicateSequence, InvalidRecord, InvalidTimestamp, OutOfOrderSequence, StaleProducerEpoch)
}


@dataclasses.dataclass(frozen=True)
class Stored:
    """A batch of the log: where it begins and ends, and the times of its records."""

    start: int
    stop: int
    times: tuple[int, ...]

    @property
    def first(self) -> int:
        """Offset of its first record."""
        return self.stop - len(self.times)


class Held:
    """A partition as a worker knows it."""

    def __init__(self, path: Path, table: SegmentTable, files: FileCache) -> None:
        self.table, self.reader = table, LogReader(path, files)
        self.damaged: list[tuple[int, int]] = []


class Failing:
    """The system calls of a disk, one of which fails."""

    def __init__(self, disk: Disk) -> None:
        self.calls: dict[str, int] = {}
        """How many more calls succeed, by name."""
        self.error = errno.EIO
        self._disk, self._system = disk, disk.system()

    def system(self) -> System:
        names = ("writev", "pwrite", "fdatasync", "open", "fsync")
        return dataclasses.replace(self._system, **{name: self._guarded(name) for name in names})

    def _guarded(self, name: str) -> Any:
        call = getattr(self._system, name)

        def guarded(*arguments: Any) -> Any:
            if name in self.calls and (name != "open" or arguments[1] & os.O_CREAT):
                if not self.calls[name]:
                    del self.calls[name]
                    if name in ("fdatasync", "fsync"):
                        self._disk.fail_sync(arguments[0])
                    raise OSError(self.error, os.strerror(self.error))
                self.calls[name] -= 1
            return call(*arguments)

        return guarded


skews = st.sampled_from([None, -3_600_000, -500, -5, 0, 5, 7_200_000])
"""Of a client's clock in ms; None: its messages have no time."""
jitters = st.lists(st.integers(-40, 40), min_size=1, max_size=6)
lies = st.sampled_from(
    ["none", "none", "none", "no largest", "far future", "a little", "append time", "bits", "garbage"]
)
senders = st.sampled_from([None, None, None, 1, 2, 3, 4, 5])
batches = st.tuples(skews, jitters, st.sampled_from(CODECS), st.sampled_from([0, 30, 150, 700]), lies, senders)
faults = st.sampled_from([("room", 0)] + [(name, errno.EMFILE) for name in ("open",)])


class PartitionMachine(RuleBasedStateMachine):
    """Goal: what is derived on the way in is what recovery derives, after anything that can happen to a partition.

    Method: rules send what clients may and may not send, flush, publish, roll, delete, change settings, stop, kill,
    fill the disk, let calls fail, lose power, harm files and repair or scrub them.  After each, everything is compared:
    with the files, with a recovery of a copy of them, and with a model that knows every batch.
    """

    @initialize(
        segment=st.sampled_from([1024, 2500, 6000]),
        interval=st.sampled_from([256, 300, 1000]),
        append_time=st.booleans(),
        validates=st.booleans(),
        flushes=st.booleans(),
    )
    def begin(self, segment: int, interval: int, append_time: bool, validates: bool, flushes: bool) -> None:
        self.room = Path(tempfile.mkdtemp(prefix="derived-", dir=MEMORY))
        self.root = self.room / "0"
        self.root.mkdir()
        self.settings = TopicSettings(
            segment_bytes=segment,
            index_interval_bytes=interval,
            message_timestamp_type="LogAppendTime" if append_time else "CreateTime",
            message_validate=validates,
            flush_messages=int(flushes),
            segment_ms=50_000,
        )
        self.interval: int | None = interval
        self.now_ms = NOW_MS
        self.boot = 1
        self.stored: list[Stored] = []
        self.refused: list[Stored] = []
        """Batches that were written in vain, which a power loss may bring back."""
        self.sequences: dict[int, tuple[int, int]] = {}
        """Epoch and next sequence of each idempotent producer, as it knows them."""
        self.arena = Arena()
        self.random = random.Random(0)
        self.disk = Disk(self.root)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(appender_module, "wall_ms", lambda: self.now_ms)
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.disk.close()
            self.patch.undo()
            for name in ("log", "producers", "held", "appender", "failing"):
                self.__dict__.pop(name, None)
            shutil.rmtree(self.room)
            gc.collect()  # each log holds files open

    @property
    def path(self) -> Path:
        return self.root / "t-0"

    def open(self) -> None:
        self.failing = Failing(self.disk)
        self.killed = KilledCalls(self.failing.system())
        self.start()

    def start(self) -> None:
        """Recover the partition, as a writer that begins."""
        system = self.killed.system
        self.log = self._open_log(self.path, system)
        self.producers = Producers(self.log, IDS_MAX, system)
        self.table = SegmentTable([0] * CELL_COUNT)
        self.appender = Appender(self.log, self.producers, self.table, OpenTransactions(IDS_MAX))
        log = self.log
        self.table.publish(*log.summary)
        self.table.set_log_end_offset(log.end_offset)
        self.table.set_state(ONLINE)
        self.held = Held(self.path, self.table, FileCache(4))
        there = list(self.read_back())  # by other calls
        assert set(there) <= {*self.stored, *self.refused}
        assert log.end_offset == (there[-1].stop if there else log.bases[0])
        self.stored, self.refused = there, []

    def _open_log(self, path: Path, system: System) -> Log:
        clock = lambda: self.now_ms  # noqa: E731
        return Log.open(path, self.settings, clock, SEGMENTS_MAX, boot=(self.boot, 0), system=system)

    def kill(self) -> None:
        self.come_back(max(self.log.high_watermark, self.log.flushed))

    def come_back(self, end: int) -> None:
        """The writer is dead, and the next one begins: what was written is there, flushed or not."""
        written = self.stored
        self.log.close(clean=False)
        self.open()
        assert self.log.end_offset >= end
        assert {batch for batch in written if batch.start >= self.log.bases[0]} <= set(self.stored)

    # ---- produce

    def raw(self, given: Any) -> tuple[bytes, tuple[int, ...], str]:
        """The bytes that a client sends, the times of its records, and what is wrong with them."""
        skew, jitter, codec, size, lie, sender = given
        if lie in ("a little", "garbage") and not self.settings.message_validate:
            lie = "none"  # nobody looks
        times = tuple(-1 if skew is None else self.now_ms + skew + number for number in jitter)
        identity = {}
        if sender is not None:
            epoch, sequence = self.sequences.get(sender, (0, 0))
            identity = {"producer_id": sender, "producer_epoch": epoch, "base_sequence": sequence}
        values = [bytes([97 + number % 26]) * (size + number) for number in range(len(times))]
        raw = encode_batch([(None, value, (), time) for value, time in zip(values, times, strict=True)], codec=codec,
                           **identity)  # fmt: skip
        if lie == "no largest":
            raw = labelled(raw, largest=-1)
        elif lie == "far future":
            raw = labelled(raw, largest=(1 << 63) - 1)
        elif lie == "a little":
            raw = labelled(raw, largest=max(times) + 3)
        elif lie == "append time":
            raw = labelled(raw, attributes=LOG_APPEND_TIME)
        elif lie == "bits":
            raw = labelled(raw, attributes=0x80)
        elif lie == "garbage":
            raw = labelled(raw[:HEADER_BYTES] + b"\xff" * len(raw[HEADER_BYTES:]))
        return raw, times, lie

    def send(self, given: list[Any]) -> None:
        """Send some batches in one turn; what is acknowledged is stored.

        Raises:
            ApplianceError: none of them is.
        """
        arrived, sent = [], []
        senders: set[int] = set()
        position = 0
        for one in given:
            if one[-1] in senders:
                continue  # a producer's next batch needs the answer to this one
            senders |= set() if one[-1] is None else {one[-1]}
            raw, times, lie = self.raw(one)
            self.arena.arena[position : position + len(raw)] = raw
            arrived.append((self.arena, (len(arrived), 1, [position, position + len(raw)])))
            sent.append((one[-1], times, lie))
            position += len(raw) + 3
        before = self.log.end_offset
        ready = self.appender.admit_batches(arrived)
        admitted = list(self.admitted(before, ready, sent))
        try:
            self.appender.append()
        except Killed:
            self.refused += admitted
            raise
        except (DiskFull, OutOfResources, StorageFault) as error:
            refused = self.appender.refuse(error, ready)
            assert all(answer.answer.numbers[0] == error.code for answer in refused)
            self.refused += admitted
            raise
        self.stored += admitted
        for answer, (sender, times, _) in zip(ready, sent, strict=True):
            self.on_answer(sender, len(times), answer.answer.numbers[0])

    def admitted(self, start: int, ready: list[Any], sent: list[Any]) -> Iterator[Stored]:
        """The batches that are to be appended from ``start`` on."""
        append_time = self.settings.message_timestamp_type == "LogAppendTime"
        for answer, (sender, times, lie) in zip(ready, sent, strict=True):
            code, _, end = answer.answer.numbers
            wrong = lie in ("append time", "bits", "garbage")
            assert not code or (code in REFUSED and (wrong or sender is not None))
            assert code or not wrong
            if not code and end > start:  # no repeat of one before
                yield Stored(start, end, (self.now_ms,) * len(times) if append_time else times)
                start = end

    def on_answer(self, sender: int | None, count: int, code: int) -> None:
        """What a producer does with an answer: go on, or begin anew with the next epoch."""
        if sender is None:
            return
        epoch, sequence = self.sequences.get(sender, (0, 0))
        if not code:
            self.sequences[sender] = epoch, sequence + count
        elif code != InvalidRecord.code and code != InvalidTimestamp.code:
            self.sequences[sender] = epoch + 1, 0

    @rule(given=st.lists(batches, min_size=1, max_size=5), later_ms=st.integers(0, 2_000))
    def produce(self, given: list[Any], later_ms: int) -> None:
        self.now_ms += later_ms
        self.send(given)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """A producer that has had no answer."""
        sender = data.draw(st.sampled_from(sorted(self.sequences)))
        epoch, sequence = self.sequences[sender]
        self.sequences[sender] = epoch, max(0, sequence - data.draw(st.integers(1, 3)))
        before = self.sequences[sender]
        self.send([(0, [1], "none", 10, "none", sender)])
        if self.sequences[sender] == (before[0], before[1] + 1):
            self.sequences[sender] = epoch, max(sequence, before[1] + 1)

    @rule(given=st.lists(batches, min_size=1, max_size=5), room=st.integers(0, 3_000))
    def produce_to_a_full_disk(self, given: list[Any], room: int) -> None:
        self.disk.room = room
        with contextlib.suppress(DiskFull):
            self.send(given)
        self.disk.room = None

    @rule(
        given=st.lists(batches, min_size=3, max_size=5),
        name=st.sampled_from(["open", "writev", "pwrite", "fsync"]),
        calls=st.integers(0, 3),
        error=st.sampled_from([errno.EMFILE, errno.EIO]),
    )
    def produce_while_a_call_fails(self, given: list[Any], name: str, calls: int, error: int) -> None:
        self.failing.calls, self.failing.error = {name: calls}, error
        with contextlib.suppress(OutOfResources, StorageFault):
            self.send(given)
        self.failing.calls = {}
        if self.log.state == OFFLINE:  # the process ends, and another one opens the partition
            self.kill()

    # ---- flush, publish, roll, delete

    def flush(self) -> None:
        self.log.flush()
        self.publish()
        snapshot = self.producers.take_snapshot()
        if snapshot is not None:
            self.producers.store(snapshot)

    def publish(self) -> None:
        self.log.raise_high_watermark(self.log.end_offset)
        end = self.log.end_offset
        self.table.publish_high_watermark(end, self.log.records, self.log.transactions.stable(end))

    @rule()
    def flush_and_publish(self) -> None:
        self.flush()

    @precondition(lambda self: not self.settings.flush_messages)
    @rule()
    def publish_without_a_flush(self) -> None:
        self.publish()

    @rule(
        calls=st.integers(0, 2),
        name=st.sampled_from(["fdatasync", "fsync"]),
        then=st.none() | st.integers(0, 1 << 16),
    )
    def a_flush_fails(self, calls: int, name: str, then: int | None) -> None:
        """And, once the partition is open again, the power."""
        self.failing.calls, self.failing.error = {name: calls}, errno.EIO
        try:
            self.flush()
        except StorageFault:
            assert self.log.state == OFFLINE
            self.failing.calls = {}
            self.kill()
            if then is not None:
                self.lose_power(then)
        self.failing.calls = {}

    @rule()
    def freeze_producers(self) -> None:
        self.producers.freeze()

    @precondition(lambda self: len(self.log.bases) < SEGMENTS_MAX)
    @rule(fails=st.booleans())
    def roll(self, fails: bool) -> None:
        self.disk.room = 0 if fails else None
        with contextlib.suppress(DiskFull):
            self.log.roll()
        self.disk.room = None
        self.appender.show_segments()

    def show(self) -> None:
        self.table.retire_before(self.log.start)
        self.appender.show_segments()
        self.table.retire_before(self.log.start)

    @rule(data=st.data(), fails=st.booleans())
    def delete(self, data: st.DataObject, fails: bool) -> None:
        offsets = st.integers(self.log.start, self.log.end_offset)
        offset = data.draw(offsets | st.sampled_from([*self.log.bases, self.log.end_offset]))
        self.disk.room = 0 if fails else None
        with contextlib.suppress(DiskFull):
            delete_before(self.log, self.producers, offset, self.flush, self.show)
        self.disk.room = None

    # ---- settings, clocks, stops, faults

    @rule(
        append_time=st.booleans(),
        validates=st.booleans(),
        interval=st.sampled_from([None, 256, 1000]),
        segment=st.sampled_from([1024, 6000]),
    )
    def change_settings(self, append_time: bool, validates: bool, interval: int | None, segment: int) -> None:
        changed: dict[str, Any] = {
            "message_timestamp_type": "LogAppendTime" if append_time else "CreateTime",
            "message_validate": validates,
            "segment_bytes": segment,
        }
        if interval is not None and interval != self.settings.index_interval_bytes:
            changed["index_interval_bytes"] = interval
            self.interval = None
        fields = {field: getattr(self.settings, field) for field in TopicSettings.__struct_fields__}
        self.settings = self.log.settings = TopicSettings(**(fields | changed))

    @rule(milliseconds=st.sampled_from([-86_400_000, -10, 10, 60_000, 86_400_000]))
    def set_the_clock(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def stop(self) -> None:
        self.flush()
        self.producers.store_all()
        self.log.close(clean=True)

    @rule()
    def stop_and_start(self) -> None:
        self.stop()
        assert compare(self.path, interval_bytes=self.interval or 1 << 62, ids_max=IDS_MAX) == []
        self.open()

    @rule()
    def kill_and_start(self) -> None:
        self.kill()

    @rule(
        name=st.sampled_from(["send", "flush", "roll", "delete", "freeze", "stop", "recover"]),
        given=st.lists(batches, min_size=1, max_size=5),
        share=st.floats(0, 1),
        calls=st.integers(0, 20),
        torn_bytes=st.sampled_from([0, 1, 60, 300]),
    )
    def killed_at_a_call(self, name: str, given: list[Any], share: float, calls: int, torn_bytes: int) -> None:
        """In the middle of an operation, a recovery among them; ``share``: how much of the log a deletion takes."""
        log = self.log
        start, end = log.start, max(log.high_watermark, log.flushed)
        offset = start + int(share * (log.end_offset - start))
        operations = {
            "send": lambda: self.send(given),
            "flush": self.flush,
            "roll": log.roll if len(log.bases) < SEGMENTS_MAX else self.flush,
            "delete": lambda: delete_before(log, self.producers, offset, self.flush, self.show),
            "freeze": lambda: (self.producers.freeze(), self.flush()),
            "stop": self.stop,
            "recover": lambda: (log.close(clean=False), self.start()),
        }
        self.killed.kill_before(calls, torn_bytes)
        with contextlib.suppress(Killed):
            operations[name]()
        self.killed.spare()
        self.come_back(end)
        assert start <= self.log.start <= (offset if name == "delete" else start)

    @rule(seed=st.integers(0, 1 << 16))
    def lose_power(self, seed: int) -> None:
        flushed = self.log.flushed
        random_ = random.Random(seed)
        tree = random_.choice(list(self.disk.image().states(random_, 6)))
        self.log.close(clean=False)
        self.move(tree)
        self.boot += 1
        self.open()
        assert self.log.end_offset >= flushed

    def move(self, tree: Any = None) -> None:
        """Go on on a new disk, with these files, or with the same."""
        self.disk.close()
        if tree is not None:
            shutil.rmtree(self.root)
            self.root = self.room / str(int(self.root.name) + 1)
            plant(tree, self.root)
        self.disk = Disk(self.root)

    # ---- damage

    @precondition(lambda self: self.log.end_offset > self.log.bases[0])
    @rule(data=st.data(), closed=st.booleans(), cut=st.booleans())
    def harm_and_repair(self, data: st.DataObject, closed: bool, cut: bool) -> None:
        self.flush()
        if closed:
            self.producers.store_all()
        self.log.close(clean=closed)
        files = [path for base in self.log.bases for path in (log_path(self.path, base), index_path(self.path, base))]
        for _ in range(data.draw(st.integers(1, 3))):
            flip(data.draw(st.sampled_from(files)), data.draw(st.integers(0, 1 << 20)), data.draw(st.integers(0, 7)))
        with contextlib.suppress(InvalidRequest):  # the same bit was flipped twice, or what is flipped is nothing yet
            repair(self.path, self.settings.index_interval_bytes, cut=cut)
        self.move()
        self.stored = list(self.read_back())  # holes among it
        self.open()

    def read_back(self) -> Iterator[Stored]:
        """What is in the files, holes among it."""
        for found in dump(self.path):
            if isinstance(found, DumpedBatch):
                times: tuple[int, ...] = (-1,) * found.header.count
                if not found.is_hole:
                    times = tuple(record.timestamp for record in decode_batch(bytes(found.data)))
                start = found.offset + found.header.count - found.header.size
                yield Stored(start, start + found.header.size, times)

    @precondition(lambda self: len(self.log.bases) > 1)
    @rule(data=st.data(), lost=st.booleans())
    def harm_an_index_and_scrub(self, data: st.DataObject, lost: bool) -> None:
        path = index_path(self.path, data.draw(st.sampled_from(self.log.bases[:-1])))
        before = path.read_bytes()
        if lost:
            os.truncate(path, data.draw(st.integers(0, len(before) - 1)))
        else:
            flip(path, data.draw(st.integers(0, 1 << 20)), data.draw(st.integers(0, 7)))
        bases, end = tuple(self.log.bases), self.log.end_offset
        check = IndexCheck(self.path, bases, lambda: True, lambda size: None)
        assert list(scrub(self.path, bases, end, bases[0], end, lambda size: None, check.on_batch)) == []
        check.finish()
        assert check.mended
        self.interval = None  # what was made anew has entries at another distance
        self.held.reader.forget()
        self.disk.settle()

    # ---- what holds

    @invariant()
    def derived_is_recovered(self) -> None:
        if not hasattr(self, "log"):
            return
        opened = Opened(self.log, self.producers, self.table)
        assert compare(self.path, opened, interval_bytes=self.interval or 1 << 62, ids_max=IDS_MAX) == []
        self.check_a_recovered_copy()

    def check_a_recovered_copy(self) -> None:
        """Recover a copy of the files, as after a kill at this moment."""
        copy = self.room / "copy" / "t-0"
        shutil.copytree(self.path, copy)
        try:
            log = self._open_log(copy, System(fdatasync=lambda fd: None, fsync=lambda fd: None))
            producers = Producers(log, IDS_MAX)
            ours, theirs, end = self.log.derived, log.derived, log.end_offset
            left = tuple(base for base, stop in zip_longest(ours.bases, ours.bases[1:]) if (stop or end) > ours.start)
            assert (theirs.bases, theirs.start) == (left or ours.bases[-1:], ours.start)
            assert (log.end_offset, log.records) == (self.log.end_offset, self.log.records)
            assert theirs.state.timestamp == ours.state.timestamp
            if self.interval is not None:
                assert theirs.state._replace(born_ms=0) == ours.state._replace(born_ms=0)
                for base in theirs.bases:
                    assert index_path(copy, base).read_bytes() == index_path(self.path, base).read_bytes()
            if self.producers.stored_end >= theirs.bases[0] or theirs.bases[0] == 0:
                assert producers.sequences.snapshot(end) == self.producers.sequences.snapshot(end)
            log.close(clean=False)
        finally:
            shutil.rmtree(copy.parent)

    @invariant()
    def answers_are_plain_to_see(self) -> None:
        if not hasattr(self, "log"):
            return
        log, end = self.log, self.log.high_watermark
        live = [batch for batch in self.stored if log.start < batch.stop <= end]
        records = [
            (batch.first + number, time)
            for batch in live
            for number, time in enumerate(batch.times)
            if batch.first + number >= log.start
        ]
        times = sorted({time for _, time in records})
        some = self.random.sample(times, min(3, len(times)))
        for time in {0, NOW_MS, *(time + step for time in some for step in (-1, 0, 1))}:
            if time >= 0:
                expected = next(((offset, own) for offset, own in records if own >= time), (-1, -1))
                assert self.ask(timestamp=time)[:2] == expected, f"first from {log.start} on with {time}"
        largest = max((time for _, time in records), default=None)
        if largest is not None:
            assert self.ask(timestamp=MAX_TIMESTAMP)[:2] == next(one for one in records if one[1] == largest)
        in_all = self.ask(offset=end)[2]
        for offset in {log.start, end, self.random.randint(log.start, end)}:
            left = sum(max(0, min(len(batch.times), batch.stop - offset)) for batch in live)
            assert in_all - self.ask(offset=offset)[2] == left, f"records from {offset} to {end}"

    def ask(self, timestamp: int = -1, offset: int = -1) -> tuple[int, int, int]:
        """Offset, timestamp and number of records before, as a worker answers."""
        error, *answer = plan.offsets(OffsetsPart("t", 0, timestamp, offset), self.held)
        assert error == 0
        return tuple(answer)  # type: ignore[return-value]


def flip(path: Path, position: int, bit: int) -> None:
    """Flip a bit, as a disk does; nothing where there is no byte."""
    data = bytearray(path.read_bytes())
    if data:
        data[position % len(data)] ^= 1 << bit
        path.write_bytes(data)


TestPartitionMachine = PartitionMachine.TestCase
TestPartitionMachine.settings = settings(
    max_examples=RUNS, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("room", [100, 900])
@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_power_loss_brings_back_nothing_that_was_taken_back_before_a_roll(is_flushed: bool, room: int) -> None:
    """A failed write is taken back, the next segment begins where it had begun, and nothing was flushed between."""
    for seed in range(12):
        machine = PartitionMachine()
        machine.begin(segment=6000, interval=256, append_time=False, validates=False, flushes=True)
        try:
            machine.produce([(None, [1, 2], "none", 150, "none", None)], 0)
            if is_flushed:
                machine.flush()
            machine.produce_to_a_full_disk([(None, [3], "none", 700, "none", None)] * 3, room)
            machine.roll(fails=False)
            machine.lose_power(seed)
            machine.produce([(None, [4], "none", 30, "none", None)], 0)
            machine.derived_is_recovered()
            machine.answers_are_plain_to_see()
        finally:
            machine.teardown()
