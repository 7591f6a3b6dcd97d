"""The writer, as the transaction coordinator speaks to it through the supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.broker import plan
from appliance.errors import InvalidTransactionState, StaleProducerEpoch, TransactionUnverified
from appliance.log.repair import repair
from appliance.log.tools import verify
from appliance.log.transactions import UNSYNCED_MAX, aborted_path, read_aborted
from appliance.processes.messages import (
    TransactionsSent,
)
from appliance.records.batch import CONTROL
from appliance.records.markers import MARKER_BYTES
from appliance.wire.requests import LATEST, OffsetsPart

from ...support.committed_reader import Held, read
from ...support.derived import Opened, compare
from ...support.log_batches import labelled
from ...support.transactions import T0, Coordinator, plain, produce, transactional
from ...support.writer_rig import Rig


def stable(rig: Rig) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    seen = rig.table.snapshot()
    return seen.stable, seen.high_watermark


UNVERIFIED, NOT_IN_ONE, STALE = TransactionUnverified.code, InvalidTransactionState.code, StaleProducerEpoch.code


def test_a_batch_is_admitted_between_the_beginning_of_its_transaction_and_its_marker(tmp_path: Path) -> None:
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        assert produce(rig, transactional([b"a"])) == UNVERIFIED
        rig.order(TransactionsSent(T0, 1))
        assert coordinator.open(8, 0) == ""
        assert produce(rig, transactional([b"a"])) == NOT_IN_ONE
        assert coordinator.open(7, 3) == ""
        assert produce(rig, transactional([b"a"], sequence=1)) == 45, "what was sent before was refused, to come again"
        assert produce(rig, transactional([b"a"])) == 0
        assert produce(rig, transactional([b"a"])) == 0, "a repeat"
        assert produce(rig, plain([b"a"], 7, 3, 1)) == NOT_IN_ONE
        assert produce(rig, transactional([b"b"], sequence=1, epoch=2)) == STALE
        assert produce(rig, transactional([b"b"], sequence=1)) == 0
        assert coordinator.end(7, 3) == ""
        assert produce(rig, transactional([b"c"], sequence=2)) == NOT_IN_ONE
        assert produce(rig, transactional([b"b"], sequence=1)) == 0, "a repeat, whose answer was lost"
        assert produce(rig, plain([b"c"], 7, 3, 2)) == 0
        assert produce(rig, transactional([b"d"], -1, -1)) == 87
        assert produce(rig, labelled(plain([b"d"]), attributes=CONTROL)) == 42


def test_readers_of_committed_messages_read_up_to_the_first_open_transaction(tmp_path: Path) -> None:
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        assert produce(rig, plain([b"before"])) == 0
        _, first = stable(rig)
        for producer_id in (7, 8):
            assert coordinator.open(producer_id, 0) == ""
            assert produce(rig, transactional([b"x"], producer_id, 0)) == 0
        assert produce(rig, plain([b"after"])) == 0
        assert stable(rig)[0] == first < stable(rig)[1]
        assert coordinator.end(8, 0, committed=False) == ""
        assert stable(rig)[0] == first
        end = stable(rig)[1]
        assert coordinator.end(7, 0) == ""
        assert stable(rig) == (end + MARKER_BYTES, end + MARKER_BYTES)
        (entry,) = read_aborted(aborted_path(tmp_path / "t-0", 0))
        assert (entry.producer_id, entry.last, entry.stable) == (8, end - 1, first)
        assert entry.first == first + len(transactional([b"x"])) and rig.table.aborted == 1


@pytest.mark.parametrize("messages", [0, 1, 1_000])
def test_a_marker_is_answered_when_it_is_flushed(tmp_path: Path, messages: int) -> None:
    with Rig(tmp_path, serves=False, flush_messages=messages) as rig:
        coordinator = Coordinator(rig)
        assert coordinator.open(7, 3) == ""
        rig.produce(transactional([b"a"]), acks=1)
        assert coordinator.end(7, 3) == ""
        log = rig.writer._log
        assert log.flushed == log.high_watermark == log.end_offset == stable(rig)[0]
        assert coordinator.end(7, 3) == "" and log.flushed == log.end_offset, "again: nothing is written"


def test_steps_are_done_again_and_those_of_others_are_refused(tmp_path: Path) -> None:
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        assert [coordinator.open(7, 3), coordinator.open(7, 3)] == ["", ""]
        assert [coordinator.open(7, 2), coordinator.end(7, 2)] == ["StaleProducerEpoch"] * 2
        assert produce(rig, transactional([b"a"])) == 0
        assert coordinator.end(7, 4, committed=False, coordinator_epoch=5) == "", "the next epoch fences this one"
        assert coordinator.open(7, 3) == "StaleProducerEpoch"
        assert produce(rig, transactional([b"b"], sequence=1)) == STALE
        assert coordinator.open(7, 4) == ""
        assert produce(rig, transactional([b"b"], epoch=4)) == 0
        assert coordinator.end(7, 4, coordinator_epoch=4) == "TransactionCoordinatorFenced"
        assert coordinator.end(7, 4, coordinator_epoch=5) == ""


def test_a_commit_of_an_earlier_coordinator_ends_no_later_transaction(tmp_path: Path) -> None:
    """A backup has ZooKeeper's state of a moment before its logs: there the next transaction has begun."""
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        for sequence in (0, 1):
            assert coordinator.open(7, 3) == ""
            assert produce(rig, transactional([b"x"], sequence=sequence)) == 0
            assert coordinator.end(7, 3, decided_ms=1_000, inherited=bool(sequence)) == ""
        assert stable(rig)[0] == stable(rig)[1]
        assert [entry.producer_id for entry in read_aborted(aborted_path(tmp_path / "t-0", 0))] == [7]
        for decided_ms, inherited in ((1_001, True), (900, False)):  # what this coordinator decides is always the last
            assert coordinator.open(7, 3) == ""
            assert produce(rig, transactional([b"x"], sequence=(sequence := sequence + 1))) == 0
            assert coordinator.end(7, 3, decided_ms=decided_ms, inherited=inherited) == ""
        assert len(read_aborted(aborted_path(tmp_path / "t-0", 0))) == 1


def test_what_nobody_will_end_is_aborted_and_the_rest_stays_open(tmp_path: Path) -> None:
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        ends = []
        for producer_id in (7, 8):
            assert coordinator.open(producer_id, 3) == ""
            assert produce(rig, transactional([b"x"], producer_id)) == 0
            ends.append(stable(rig)[1])
    with Rig(tmp_path, serves=False) as rig:  # what it was told is forgotten, what is in the log is open
        coordinator = Coordinator(rig)
        assert coordinator.abort_hanging([8]) == ""
        assert stable(rig) == (ends[0], ends[1] + MARKER_BYTES)
        assert produce(rig, transactional([b"y"], 8, 3, 1)) == 0, "that of a known one goes on"
        assert produce(rig, transactional([b"y"], 7, 3, 1)) == UNVERIFIED
        assert coordinator.abort_hanging([]) == coordinator.abort_hanging([]) == ""
        assert stable(rig)[0] == stable(rig)[1]
        assert [entry.producer_id for entry in read_aborted(aborted_path(tmp_path / "t-0", 0))] == [7, 8]


def test_a_writer_that_is_started_again_knows_what_is_open_in_the_log(tmp_path: Path) -> None:
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        for producer_id in (7, 8):
            assert coordinator.open(producer_id, 3) == ""
        assert produce(rig, plain([b"before"])) == 0
        first = stable(rig)[0]
        assert produce(rig, transactional([b"a"])) == 0
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        assert stable(rig)[0] == first < stable(rig)[1]
        assert produce(rig, transactional([b"b"], sequence=1)) == 0
        assert produce(rig, transactional([b"a"], 8)) == UNVERIFIED
        assert coordinator.end(7, 3, committed=False) == ""
        assert stable(rig)[0] == stable(rig)[1]
        assert produce(rig, transactional([b"c"], sequence=2)) == UNVERIFIED
    with Rig(tmp_path, serves=False) as rig:
        assert stable(rig)[0] == stable(rig)[1] and rig.table.aborted
        assert produce(rig, transactional([b"c"], sequence=2)) == UNVERIFIED
        assert Coordinator(rig).end(7, 2) == "StaleProducerEpoch"


def test_a_wrong_index_of_aborted_transactions_is_found_and_written_again(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with Rig(tmp_path, serves=False) as rig:
        coordinator = Coordinator(rig)
        for number in range(2):
            assert coordinator.open(7, 3) == ""
            assert produce(rig, plain([b"between"])) == 0
            assert produce(rig, transactional([b"a"], sequence=number)) == 0
            assert coordinator.end(7, 3, committed=False) == ""
        opened = Opened(rig.writer._log, rig.writer._producers, rig.table)
        assert compare(directory, opened) == []
        path = aborted_path(directory, 0)
        entries = read_aborted(path)
        for wrong in (
            entries[:1],
            entries[::-1],
            [*entries, entries[1]],
            [entries[0], entries[1]._replace(first=entries[0].first)],
            [entries[0], entries[1]._replace(producer_id=8)],
            [entries[0]._replace(stable=1 << 40), entries[1]],
        ):
            path.write_bytes(b"".join(entry.pack() for entry in wrong))
            assert [problem.path for problem in verify(directory, opened.log.derived).problems] == [path]
    assert repair(directory).actions == [f"{path}: is written again"]
    assert read_aborted(path) == entries and verify(directory).sound


def test_readers_get_what_is_committed_and_others_all(tmp_path: Path) -> None:
    """Method: as Kafka's consumer reads it, whole and in pieces of one batch."""
    with Rig(tmp_path, serves=False, segment_bytes=1024) as rig:
        coordinator = Coordinator(rig)
        held = Held(tmp_path / "t-0", rig.table)
        values: dict[bytes, bool] = {}
        for number in range(30):
            producer_id, sequence = number % 3, number // 3
            value = b"%d" % number * 40
            assert coordinator.open(producer_id, 0) == ""
            assert produce(rig, transactional([value], producer_id, 0, sequence)) == 0
            values[value] = number % 4 < 2
            assert produce(rig, plain([b"plain %d" % number])) == 0
            values[b"plain %d" % number] = True
            if number > 1:
                assert coordinator.end((number - 2) % 3, 0, (number - 2) % 4 < 2) == ""
        open_from = stable(rig)[0]
        for bytes_max in (1, 400, 1 << 20):
            everything, end = read(held, False, bytes_max)
            assert [value for _, value in everything] == list(values) and end == stable(rig)[1]
            committed, end = read(held, True, bytes_max)
            wanted = [one for one in everything if one[0] < open_from and values[one[1]]]
            assert committed == wanted and end == open_from
        assert len(rig.table.snapshot().bases) > 3
        latest = OffsetsPart("t", 0, LATEST)
        ends = [plan.offsets(latest, held, committed=asked).offset for asked in (True, False)]
        assert ends == [open_from, stable(rig)[1]]


def test_few_indexes_of_aborted_transactions_are_open_however_many_segments_have_one(tmp_path: Path) -> None:
    with Rig(tmp_path, serves=False, segment_bytes=1024) as rig:
        coordinator = Coordinator(rig)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(4 * UNSYNCED_MAX):
            assert coordinator.open(7, 3) == ""
            assert produce(rig, transactional([b"x" * 900], sequence=number)) == 0
            assert coordinator.end(7, 3, committed=False) == ""
        assert len(list((tmp_path / "t-0").glob("*.txnindex"))) >= 2 * UNSYNCED_MAX
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= 2 * UNSYNCED_MAX
