"""The writer by itself: clocks that jump, a thread that dies, deleting all there is with a full table or disk."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.catalog import LEADER_EPOCH
from appliance.clock import wall_ms
from appliance.durable_files import System
from appliance.errors import InvalidRecord, OutOfResources, StorageFault
from appliance.libc import begin_write_back
from appliance.log import FlushTicket, Log
from appliance.log.compaction import Policy, run_pass
from appliance.log.files import index_path
from appliance.names import TopicPartition
from appliance.partition_states import ONLINE
from appliance.processes.messages import (
    FROM_WRITER,
    TO_SUPERVISOR,
    DeleteBefore,
    FlushNow,
    FlushSoon,
    Roll,
    SegmentSwapped,
    SwapSegment,
)
from appliance.processes.writer import producers, unflushed, writer
from appliance.processes.writer.producers import Producers
from appliance.processes.writer.unflushed import Unflushed
from appliance.processes.writer.worker_link import ReadyAnswer, send_answers
from appliance.records.batch import LEADER_EPOCH_AT
from appliance.records.encode import encode_batch, encode_values
from appliance.shared.table import ROWS

from ...support.log_batches import BOOT, batch, place_all
from ...support.log_batches import SETTINGS as SMALL
from ...support.server import wait_for
from ...support.writer_rig import Rig, jumping

PARTITION = TopicPartition("t", 0)

BATCH = encode_values([b"one", b"two"], 1_000)
HOUR_MS = 3_600_000


# ---- the time of day is set


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("settings", [{"flush_messages": 1000, "flush_ms": 50}, {}], ids=["rarely", "always"])
def test_a_clock_that_jumps_delays_no_flush(
    tmp_path: Path, jump_ms: int, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: acks=all and acks=1 alike are flushed in time while somebody sets the clock to and fro."""
    ahead_ms = [0]
    monkeypatch.setattr(writer, "wall_ms", jumping(wall_ms, ahead_ms))
    monkeypatch.setattr(writer, "wall_ms", jumping(wall_ms, ahead_ms))
    with Rig(tmp_path, **settings) as rig:
        for number in range(6):
            token = rig.produce(BATCH, acks=-1 if number % 2 else 1)
            expected = (number + 1) * len(BATCH)
            wait_for(lambda: rig.table.log_end_offset >= expected, "it to be written")  # noqa: B023
            ahead_ms[0] = jump_ms if number % 2 else 0
            assert rig.answer(token)[0] == 0
            wait_for(lambda: rig.table.high_watermark == rig.table.log_end_offset, "it to be flushed")


@pytest.mark.parametrize("years", [-10, 10])
def test_a_clock_that_jumps_neither_rolls_a_segment_nor_keeps_one(tmp_path: Path, years: int) -> None:
    steady, ahead = [10**6], [0]
    wall = lambda: steady[0] + ahead[0] + 10**12  # noqa: E731
    log = Log.open(tmp_path, SMALL, wall, boot=BOOT, steady_ms=lambda: steady[0])
    log.append(place_all(0, [batch()]))
    for jump_ms in (years * 365 * 24 * HOUR_MS, 0):
        ahead[0] = jump_ms
        log.append(place_all(log.end_offset, [batch()]))
        assert log.bases == [0]
    steady[0] += SMALL.segment_ms
    ahead[0] = years * 365 * 24 * HOUR_MS
    log.append(place_all(log.end_offset, [batch()]))
    assert len(log.bases) == 2  # as old as it may be
    for clean in (True, False):
        log.append(place_all(log.end_offset, [batch()]))
        log.close(clean)
        ahead[0] = 0  # set right again, perhaps to long before the segment was made
        log = Log.open(tmp_path, SMALL, wall, boot=BOOT, steady_ms=lambda: steady[0])
        count = len(log.bases)
        log.append(place_all(log.end_offset, [batch()]))
        steady[0] += SMALL.segment_ms
        log.append(place_all(log.end_offset, [batch()]))
        assert len(log.bases) > count


# ---- a flush ends otherwise than it should


def broken(*_: object) -> None:
    raise RuntimeError(f"a bug in thread {threading.current_thread().name}")


def guarded(rig: Rig) -> None:
    """Let the loop make the next flush, if it may."""
    assert rig.answer(rig.produce(BATCH))[0] == 0
    rig.wait_for_guard()


@pytest.mark.parametrize("here", [False, True], ids=["thread", "loop"])
@pytest.mark.parametrize(
    ("owner", "method"),
    [(FlushTicket, "sync"), (Log, "flush_done"), (Unflushed, "_publish"), (Producers, "take_snapshot")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_unexpected_error_in_a_flush_ends_the_writer(
    tmp_path: Path, owner: type, method: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody waits for ever for an answer that a dead thread owes.  The first flush is never the loop's."""
    monkeypatch.setattr(unflushed, "HERE_NS_MAX", 10**18 if here else -1)
    with Rig(tmp_path) as rig:
        if here:
            guarded(rig)
        monkeypatch.setattr(owner, method, broken)
        rig.produce(BATCH)
        error = rig.ended()
        assert isinstance(error, RuntimeError)
        assert str(error).endswith("writer") == here


@pytest.mark.parametrize("here", [False, True], ids=["thread", "loop"])
def test_a_failed_flush_is_not_tried_again(tmp_path: Path, here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: fsync reports what is lost once; the next one succeeds, and must not be believed."""
    monkeypatch.setattr(unflushed, "HERE_NS_MAX", 10**18 if here else -1)
    sync, faults = FlushTicket.sync, [StorageFault("the disk")]

    def fails_once(ticket: FlushTicket) -> None:
        if faults:
            raise faults.pop()
        sync(ticket)

    with Rig(tmp_path) as rig:
        guarded(rig)
        published = rig.table.high_watermark
        monkeypatch.setattr(FlushTicket, "sync", fails_once)
        rig.produce(BATCH)
        assert isinstance(rig.ended(), StorageFault)
        assert rig.table.high_watermark == published and not rig.worker.receive(FROM_WRITER)


@pytest.mark.parametrize(
    ("constants", "thread"),
    [
        ({}, "writer"),
        ({"HERE_BYTES_MAX": len(BATCH) - 1}, "flusher"),
        ({"HERE_NS_MAX": -1}, "flusher"),
        ({"SNAPSHOT_BYTES": -1}, "flusher"),
    ],
    ids=["little", "much", "a slow disk", "a snapshot of the producers follows"],
)
def test_who_flushes(tmp_path: Path, constants: dict[str, int], thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the loop flushes what is quickly done, and nothing else."""
    for name, value in ({"HERE_NS_MAX": 10**18} | constants).items():
        monkeypatch.setattr(producers if name == "SNAPSHOT_BYTES" else unflushed, name, value)
    sync, names = FlushTicket.sync, []

    def noted(ticket: FlushTicket) -> None:
        names.append("writer" if threading.current_thread().name == "writer" else "flusher")
        sync(ticket)

    with Rig(tmp_path) as rig:
        guarded(rig)
        monkeypatch.setattr(FlushTicket, "sync", noted)
        assert rig.answer(rig.produce(BATCH))[0] == 0
        assert names == [thread]


def test_answers_without_new_bytes_are_sent_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a repeat is answered although its writer ends between two looks of the loop."""
    monkeypatch.setattr(unflushed, "HERE_NS_MAX", 10**18)
    record = (None, b"once", (), 1_000)
    batch = encode_batch([record], producer_id=5, producer_epoch=0, base_sequence=0)
    with Rig(tmp_path, serves=False) as rig:
        rig.writer.turn(1)
        first = rig.produce(batch)
        rig.writer.turn(1)
        rig.wait_for_guard()
        again = rig.produce(batch)
        rig.writer.turn(1)
        rig.writer.close()
        assert rig.answer(again) == rig.answer(first)


def test_a_flush_that_fails_while_all_is_deleted_ends_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise StorageFault("the disk is gone")

    with Rig(tmp_path, flush_messages=1000, flush_ms=60_000) as rig:
        rig.answer(rig.produce(BATCH, acks=1))
        monkeypatch.setattr(FlushTicket, "sync", fails)
        rig.order(DeleteBefore(PARTITION, rig.table.log_end_offset))
        assert isinstance(rig.ended(), StorageFault)
        assert rig.table.start == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
def test_a_writer_goes_on_that_has_no_room_to_put_a_compacted_segment_in_its_place(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nothing: the compactor asks again."""
    renames: list[Path] = []

    def refused(path: Path, target: Path) -> None:
        renames.append(target)
        if len(renames) == 2:  # that of the index
            raise OSError(number, os.strerror(number))
        path.rename(target)

    with Rig(tmp_path) as rig:
        monkeypatch.setattr(rig.writer._log, "_system", System(rename=refused))
        for value in (b"old", b"new"):
            assert rig.answer(rig.produce(encode_batch([(b"key", value, (), 1_000)])))[0] == 0
            rig.order(Roll(PARTITION))
            wait_for(lambda: rig.table.snapshot().bases[-1] == rig.table.high_watermark, "the roll")

        rig.supervisor.receive(TO_SUPERVISOR)

        def swap(base: int) -> bool:
            rig.order(SwapSegment(PARTITION, base))
            wait_for(lambda: len(renames) == 2, "the refusal")
            assert rig.answer(rig.produce(BATCH))[0] == 0 and not rig.supervisor.receive(TO_SUPERVISOR)
            rig.order(SwapSegment(PARTITION, base))
            ((message, _),) = wait_for(lambda: rig.supervisor.receive(TO_SUPERVISOR), "its answer")
            assert message == SegmentSwapped(PARTITION, base, True)
            return True

        seen = rig.table.snapshot()
        policy = Policy(seen.bases[-1], -1, 0, 1 << 20, 4096)
        assert run_pass(rig.path / "t-0", seen.bases, seen.high_watermark, policy, swap, lambda _: None).removed == 1
        assert renames[2:] == [index_path(rig.path / "t-0", 0)] and renames[2].exists()


# ---- a reader that waits, or has just waited


def test_little_is_flushed_for_a_reader_that_has_just_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a reader gets acks=1 without asking while it sends its next fetch; no one else makes a flush come sooner.

    Method: nothing is flushed because of its age here.
    """
    for name in ("FLUSH_DELAY_MS", "HERE_NS_MAX", "READER_MS"):
        monkeypatch.setattr(unflushed, name, 10**18)
    with Rig(tmp_path, flush_ms=10**9) as rig:
        flushed = lambda: rig.table.high_watermark  # noqa: E731
        written = rig.answer(rig.produce(BATCH, acks=1))[2]
        assert flushed() == 0
        rig.table.set_wait(0, written)
        rig.answer(rig.produce(BATCH, acks=1))
        wait_for(lambda: flushed() == 2 * len(BATCH), "a flush by the thread: a reader waits")
        rig.table.set_wait(0, 0)
        rig.wait_for_guard()
        rig.answer(rig.produce(BATCH, acks=1))
        wait_for(lambda: flushed() == 3 * len(BATCH), "a flush by the loop: a reader has just waited")
        monkeypatch.setattr(unflushed, "READER_MS", 0)
        for _ in range(3):
            rig.answer(rig.produce(BATCH, acks=1))
        assert flushed() == 3 * len(BATCH), "flushed for nobody"
        rig.worker.send(FlushSoon())
        wait_for(lambda: flushed() == 6 * len(BATCH), "a flush that a reader has asked for")


def test_the_disk_begins_with_little_for_a_reader_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: acks=1 is answered while the disk works; nothing is begun for nobody, or for the thread."""
    monkeypatch.setattr(unflushed, "FLUSH_DELAY_MS", 10**18)
    monkeypatch.setattr(unflushed, "HERE_NS_MAX", 10**18)
    calls: list[object] = []

    def begin(fd: int, position: int, size: int) -> None:
        calls.append(("begin", position, size))
        begin_write_back(fd, position, size)

    def answer(ready: list[ReadyAnswer]) -> None:
        if ready:
            calls.append("answer")
            send_answers(ready)

    def sync(fd: int) -> None:
        calls.append("sync")
        os.fdatasync(fd)

    real, system = Log.open, System(begin_write_back=begin, fdatasync=sync)
    monkeypatch.setattr(writer.Log, "open", lambda *a, **k: real(*a, **k, system=system))
    monkeypatch.setattr(unflushed, "send_answers", answer)
    size = len(BATCH)
    with Rig(tmp_path, flush_ms=10**9) as rig:
        guarded(rig)
        for _ in range(2):
            rig.answer(rig.produce(BATCH, acks=1))
        rig.worker.send(FlushNow())
        wait_for(lambda: rig.table.high_watermark == 3 * size, "a flush")
        rig.wait_for_guard()
        assert not [call for call in calls if "begin" in call], "begun for nobody"
        calls.clear()
        rig.table.set_wait(0, 1 << 40)
        rig.answer(rig.produce(BATCH, acks=1))
        wait_for(lambda: rig.table.high_watermark == 4 * size, "a flush by the loop")
        assert calls == [("begin", 3 * size, size), "answer", "sync"]
        monkeypatch.setattr(unflushed, "HERE_NS_MAX", -1)
        calls.clear()
        rig.answer(rig.produce(BATCH, acks=1))
        wait_for(lambda: rig.table.high_watermark == 5 * size, "a flush by the thread")
        assert calls[0] == "answer"


def test_a_flush_that_was_decided_is_made_when_its_reader_is_gone_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the loop does not turn for nothing.  Method: the reader goes while the loop looks again."""
    monkeypatch.setattr(unflushed, "FLUSH_DELAY_MS", 10**18)
    monkeypatch.setattr(unflushed, "HERE_NS_MAX", 10**18)
    with Rig(tmp_path, flush_ms=10**9) as rig:
        rig.answer(rig.produce(BATCH))
        rig.wait_for_guard()
        asked = iter([True])
        monkeypatch.setattr(Unflushed, "_has_reader", lambda *_: next(asked, False))
        rig.answer(rig.produce(BATCH, acks=1))
        wait_for(lambda: rig.table.high_watermark == 2 * len(BATCH), "it to be flushed")


@settings(max_examples=40, deadline=None)
@given(
    flush_ms=st.integers(1, 40),
    flush_messages=st.integers(1, 5),
    flush_bytes=st.sampled_from([0, 1, 10_000]),
    produced=st.lists(st.tuples(st.sampled_from([1, -1]), st.integers(0, 30)), min_size=1, max_size=5),
    reader=st.booleans(),
)
def test_a_flush_comes_in_time_and_the_loop_never_turns_for_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    flush_ms: int,
    flush_messages: int,
    flush_bytes: int,
    produced: list[tuple[int, int]],
    reader: bool,
) -> None:
    """Goal: when the loop does not wait, it flushes, or looks once at what has arrived meanwhile.

    Method: a clock of the test, which only goes on while the loop waits.
    """
    clock_ms = [1_000_000]
    policy = {"flush_ms": flush_ms, "flush_messages": flush_messages, "flush_bytes": flush_bytes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unflushed, "now_ms", lambda: clock_ms[0])
        patch.setattr(writer, "now_ms", lambda: clock_ms[0])
        with Rig(tmp_path_factory.mktemp("log"), serves=False, **policy) as rig:
            rig.writer.turn(1)
            pending = rig.writer._unflushed
            if reader:
                rig.table.set_wait(0, 1 << 40)
            for acks, pause_ms in produced:
                rig.produce(BATCH, acks)
                rig.writer.turn(1)
                until_ms = clock_ms[0] + pause_ms
                at_once = 0
                while pending.since_ms and clock_ms[0] < until_ms:
                    assert clock_ms[0] <= pending.since_ms + flush_ms
                    wait_ms = min(pending.due_in_ms(clock_ms[0]), until_ms - clock_ms[0])
                    at_once = 0 if wait_ms else at_once + 1
                    assert at_once <= 2, "it turns for nothing"
                    clock_ms[0] += wait_ms
                    rig.writer.turn(0)
                clock_ms[0] = until_ms


# ---- deleting all there is


def test_deleting_up_to_the_end_with_as_many_segments_as_there_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a table with few rows; what it can hold follows from its size."""
    rows = 10
    monkeypatch.setattr(writer, "SEGMENTS_MAX", rows - 1)
    directory = tmp_path / "t-0"
    with Rig(tmp_path, table_bytes=8 * (ROWS + rows), segment_bytes=1024) as rig:
        for _ in range(rows + 5):
            rig.answer(rig.produce(encode_values([b"x" * 900], 1_000)))
        end = rig.table.high_watermark
        assert len(rig.table.snapshot().bases) == rows - 1
        rig.order(DeleteBefore(PARTITION, end))
        wait_for(lambda: rig.table.start == end, "all to be deleted")
        wait_for(lambda: len(list(directory.glob("*.log"))) == 1, "the files to go")
        assert rig.answer(rig.produce(BATCH))[:3] == [0, end + len(BATCH) - 2, end + len(BATCH)]
        assert rig.table.snapshot()[:3] == ((end,), end, end + len(BATCH))


@pytest.mark.parametrize("beyond", [0, 1 << 40])
def test_deleting_what_is_written_and_not_flushed_flushes_it_first(tmp_path: Path, beyond: int) -> None:
    with Rig(tmp_path, flush_messages=1000, flush_ms=60_000) as rig:
        rig.answer(rig.produce(BATCH, acks=1))
        token = rig.produce(BATCH, acks=-1)
        wait_for(lambda: rig.table.log_end_offset == 2 * len(BATCH), "both to be written")
        assert rig.table.high_watermark == 0
        rig.order(DeleteBefore(PARTITION, rig.table.log_end_offset + beyond))
        wait_for(lambda: rig.table.start == 2 * len(BATCH), "all to be deleted")
        assert rig.answer(token)[0] == 0
        assert rig.table.high_watermark == rig.table.log_end_offset == 2 * len(BATCH)


def test_deleting_all_on_a_full_disk_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for a new segment, so the active one stays, behind the start; the others go."""
    full = [False]

    def open_(path: Path | str, flags: int, mode: int) -> int:
        if full[0] and flags & os.O_CREAT:
            raise OSError(28, "No space left on device")
        return os.open(path, flags, mode)

    real = Log.open
    monkeypatch.setattr(writer.Log, "open", lambda *a, **k: real(*a, **k, system=System(open=open_)))
    with Rig(tmp_path, segment_bytes=1024) as rig:
        for _ in range(4):
            rig.answer(rig.produce(encode_values([b"x" * 900], 1_000)))
        end, bases = rig.table.high_watermark, rig.table.snapshot().bases
        full[0] = True
        rig.order(DeleteBefore(PARTITION, end))
        wait_for(lambda: rig.table.start == end, "the start to move")
        assert rig.table.snapshot().bases == bases[-1:]
        wait_for(lambda: len(list((tmp_path / "t-0").glob("*.log"))) == 1, "the other files to go")
        assert rig.answer(rig.produce(BATCH))[0] != 0
        full[0] = False
        assert rig.answer(rig.produce(BATCH))[0] == 0
        rig.order(DeleteBefore(PARTITION, rig.table.high_watermark))
        wait_for(lambda: rig.table.snapshot().bases == (rig.table.high_watermark,), "the last one to go, too")


def test_a_lack_of_descriptors_is_refused_and_not_taken_for_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = [False]

    def open_(path: Path | str, flags: int, mode: int) -> int:
        if lacking[0]:
            raise OSError(24, "Too many open files")
        return os.open(path, flags, mode)

    real = Log.open
    monkeypatch.setattr(writer.Log, "open", lambda *a, **k: real(*a, **k, system=System(open=open_)))
    with Rig(tmp_path, segment_bytes=1200) as rig:
        large = encode_values([b"x" * 900], 1_000)
        assert rig.answer(rig.produce(large))[0] == 0
        lacking[0] = True
        assert rig.answer(rig.produce(large))[0] == OutOfResources.code
        assert rig.answer(rig.produce(encode_values([b"small"], 1_000)))[0] == 0  # needs no new segment
        rig.order(DeleteBefore(PARTITION, rig.table.high_watermark))
        wait_for(lambda: rig.table.start == rig.table.high_watermark or rig.error, "the start to move")
        lacking[0] = False
        assert rig.answer(rig.produce(large))[0] == 0
        assert rig.error is None and rig.table.state == ONLINE


def test_a_segment_that_is_sealed_on_order_can_go(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        for _ in range(2):
            rig.answer(rig.produce(BATCH))
            end = rig.table.high_watermark
            rig.order(Roll(PARTITION))
            wait_for(lambda: rig.table.snapshot().bases[-1] == end, "a new segment")  # noqa: B023
        rig.order(Roll(PARTITION))  # an empty one stays
        rig.order(DeleteBefore(PARTITION, len(BATCH)))
        wait_for(lambda: rig.table.snapshot().bases == (len(BATCH), 2 * len(BATCH)), "the first one to go")
        assert rig.answer(rig.produce(BATCH))[0] == 0
    Log.open(tmp_path / "t-0", SMALL, lambda: 0).close()


# ---- producers


def test_a_producer_is_served_on_after_retention_has_taken_all_its_batches(tmp_path: Path) -> None:
    def batch_of(producer: int, sequence: int) -> bytes:
        return encode_batch(
            [(None, b"x" * 500, (), 1_000)], producer_id=producer, producer_epoch=0, base_sequence=sequence
        )

    with Rig(tmp_path, segment_bytes=1024) as rig:
        placed = [rig.answer(rig.produce(batch_of(7, sequence))) for sequence in range(5)]
        rig.order(DeleteBefore(PARTITION, rig.table.high_watermark))
        wait_for(lambda: rig.table.start == rig.table.high_watermark, "all to be deleted")
    with Rig(tmp_path, segment_bytes=1024) as rig:  # the first one was killed, as it were: not closed in order
        assert rig.answer(rig.produce(batch_of(7, 4))) == placed[4]
        assert rig.answer(rig.produce(batch_of(7, 5)))[0] == 0
        assert rig.answer(rig.produce(batch_of(8, 3)))[0] == 0, "one that the log does not know may start anywhere"


def test_a_negative_sequence_is_refused(tmp_path: Path) -> None:
    raw = bytearray(encode_batch([(None, b"x", (), 1_000)], producer_id=7, producer_epoch=0, base_sequence=0))
    from crc32c import crc32c

    raw[53:57] = (-3).to_bytes(4, "big", signed=True)
    raw[17:21] = crc32c(raw[21:]).to_bytes(4, "big")
    with Rig(tmp_path) as rig:
        assert rig.answer(rig.produce(bytes(raw)))[0] == InvalidRecord.code


# ---- what a batch is stored with


def test_a_stored_batch_has_the_partitions_leader_epoch(tmp_path: Path) -> None:
    raw = bytearray(BATCH)
    raw[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4] = (-1).to_bytes(4, "big", signed=True)
    with Rig(tmp_path) as rig:
        assert rig.answer(rig.produce(bytes(raw)))[0] == 0
        stored = (tmp_path / "t-0" / f"{0:020d}.log").read_bytes()
    assert int.from_bytes(stored[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4], "big", signed=True) == LEADER_EPOCH
    assert stored[LEADER_EPOCH_AT + 4 :] == BATCH[LEADER_EPOCH_AT + 4 :]
