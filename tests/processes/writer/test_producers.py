"""appliance.processes.writer.producers: the state of producers always follows from the log."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.broker.sequences import SNAPSHOT_NAME, ProducersSnapshot
from appliance.durable_files import SYSTEM, System, replace_file
from appliance.errors import DiskFull, OutOfOrderSequence, StorageFault
from appliance.log.files import compacted_path, index_path, log_path
from appliance.log.repair import repair
from appliance.processes.writer import producers
from appliance.processes.writer.writer import delete_before, swap_segment
from appliance.reserve import RESERVE_NAME

from ...support.log_batches import MEMORY
from ...support.long import LONG
from ...support.power_loss import Disk, plant
from ...support.producing import Partition, Promises, check_promises, count_of

BOOT = (1, 0)


def opened(path: Path, promises: Promises | None = None, system: System = SYSTEM) -> Partition:
    return Partition(path / "t-0", promises or Promises(), system, BOOT)


def known(partition: Partition) -> dict[int, tuple[int, int]]:
    """Next sequence and how many are known, by producer."""
    snapshot = partition.producers.sequences.snapshot(0)
    return {producer: (entry[1], entry[2]) for producer, entry in snapshot.entries}


def stored(partition: Partition) -> ProducersSnapshot | None:
    return ProducersSnapshot.decode((partition.log.path / SNAPSHOT_NAME).read_bytes())


def killed(partition: Partition) -> Partition:
    partition.log.close(clean=False)
    return Partition(partition.log.path, partition.promises, SYSTEM, BOOT)


def filled(path: Path, batches: int = 8) -> Partition:
    """Several segments, written by producers 1 and 2; nothing of producer 1 in the last ones."""
    partition = opened(path)
    for number in range(batches):
        partition.append(1 if number < batches // 2 else 2, size=450)
    partition.flush()
    return partition


def test_a_compacted_segment_takes_its_place_when_all_sealed_ones_are_flushed(tmp_path: Path) -> None:
    """Its messages may have gone for later ones in another segment, which a power loss must not take."""
    partition = opened(tmp_path)
    log = partition.log
    partition.append(1)
    log.roll()
    partition.flush()
    partition.producers.store_all()
    partition.append(1)
    log.roll()
    assert partition.producers.covers_to(log.bases[1]) and log.flushed < log.bases[-1]
    swap_segment(log, partition.producers, log.bases[0], partition.flush)
    assert log.flushed == log.bases[-1]


class FullDisk:
    """A disk without room for a snapshot, until the reserve is given up, if ``reserve`` is enough."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, reserve: bool) -> None:
        self.partition = opened(path)
        for _ in range(2):
            self.partition.append(1)
            self.partition.log.roll()
        (path / RESERVE_NAME).write_bytes(b"room")

        def replace(*arguments: Any, **options: Any) -> None:
            if (path / RESERVE_NAME).exists() or not reserve:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replace_file(*arguments, **options)

        monkeypatch.setattr(producers, "replace_file", replace)

    def delete(self) -> None:
        log, flush = self.partition.log, self.partition.flush
        delete_before(log, self.partition.producers, log.end_offset, flush, lambda: None)


def test_what_retention_must_store_takes_the_room_in_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(tmp_path, monkeypatch, reserve=True)
    disk.delete()
    assert not (tmp_path / RESERVE_NAME).exists() and known(killed(disk.partition)).keys() == {1}


def test_retention_makes_room_although_not_even_a_snapshot_can_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk(tmp_path, monkeypatch, reserve=False)
    disk.delete()
    assert len(list(disk.partition.log.path.glob("*.log"))) == 1 and "will be forgotten" in caplog.text


def test_no_compacted_segment_takes_its_place_before_its_producers_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(tmp_path, monkeypatch, reserve=False)
    log = disk.partition.log
    for path in (log_path(log.path, 0), index_path(log.path, 0)):
        shutil.copy(path, compacted_path(path))
    with pytest.raises(DiskFull):
        swap_segment(log, disk.partition.producers, 0, disk.partition.flush)
    assert len(list(log.path.glob("*.compacted"))) == 2


# ---- the table of cases


def test_a_snapshot_is_of_what_is_flushed_and_stored_only_then(tmp_path: Path) -> None:
    partition = opened(tmp_path)
    partition.append(1)
    partition.producers.freeze()
    end = partition.log.end_offset
    partition.append(1)
    assert partition.producers.take_snapshot() is None and not (tmp_path / "t-0" / SNAPSHOT_NAME).exists()
    partition.flush()
    snapshot = stored(partition)
    assert snapshot is not None and snapshot.end == end == partition.promises.batches[0].end
    assert known(killed(partition)) == known(partition)


def test_without_a_snapshot_the_whole_log_tells(tmp_path: Path) -> None:
    partition = filled(tmp_path)
    again = killed(partition)
    assert known(again) == known(partition)


@pytest.mark.parametrize("content", [None, b"", b"\0" * 40, b"\x12\x34\x56\x78\x93\x00\xc2\x90"])
def test_without_a_snapshot_and_without_the_beginning_of_the_log_producers_are_forgotten(
    tmp_path: Path, content: bytes | None
) -> None:
    """Goal: a live producer of which retention took everything goes on; nothing it had sent is taken for written."""
    partition = filled(tmp_path)
    sequence = partition.next_sequence(1)
    partition.delete_before(partition.log.bases[-1])
    path = tmp_path / "t-0" / SNAPSHOT_NAME
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    again = killed(partition)
    assert list(known(again)) == [2]
    sequences = again.producers.sequences
    assert sequences.check_sequence(1, 0, sequence, 1) is None
    assert again.append(1)
    earlier = sequence - count_of(1, 0)
    with pytest.raises(OutOfOrderSequence):
        sequences.check_sequence(1, 0, earlier, 1)


def test_retention_takes_a_producers_batches_and_it_goes_on(tmp_path: Path) -> None:
    partition = filled(tmp_path)
    last = [batch for batch in partition.promises.batches if batch.producer == 1][-1]
    partition.delete_before(partition.log.end_offset)
    again = killed(partition)
    sequences = again.producers.sequences
    assert sequences.check_sequence(1, 0, last.sequence, last.count) == (last.end - last.count, last.end)
    assert again.append(1)


def test_a_snapshot_beyond_the_log_is_removed_before_the_log_grows_up_to_it(tmp_path: Path) -> None:
    partition = filled(tmp_path)
    partition.close()
    damaged = partition.log.path / f"{partition.log.bases[1]:020d}.log"
    data = bytearray(damaged.read_bytes())
    data[100:110] = bytes(10)
    damaged.write_bytes(data)
    cut = repair(partition.log.path, cut=True).end
    assert cut < partition.promises.flushed
    again = opened(tmp_path)
    assert again.log.end_offset == cut and not (again.log.path / SNAPSHOT_NAME).exists()
    assert {producer for producer in known(again)} <= {1}
    again.promises.come_back(again.log)
    for _ in range(8):
        again.append(3, size=450)
    again.flush()
    assert again.log.end_offset > partition.promises.flushed
    assert 2 not in known(killed(again))


def test_a_snapshot_beyond_the_log_that_cannot_be_removed_keeps_the_partition_closed(tmp_path: Path) -> None:
    partition = opened(tmp_path)
    partition.append(1)
    partition.close()
    (partition.log.path / SNAPSHOT_NAME).write_bytes(ProducersSnapshot(10_000, ()).encode())

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(StorageFault, match="Input/output"):
        opened(tmp_path, system=System(unlink=fail))


def test_a_snapshot_from_before_what_retention_took_is_not_believed(tmp_path: Path) -> None:
    """There was no room for a newer one: what stood between may have changed any producer."""
    partition = opened(tmp_path)
    partition.append(1)
    partition.flush()
    partition.producers.store_all()
    for _ in range(6):
        partition.append(1, size=450)
    partition.flush()
    old = (partition.log.path / SNAPSHOT_NAME).read_bytes()
    sequence = partition.next_sequence(1)
    partition.delete_before(partition.log.end_offset)
    (partition.log.path / SNAPSHOT_NAME).write_bytes(old)
    again = killed(partition)
    assert known(again) == {}
    assert again.producers.sequences.check_sequence(1, 0, sequence, 1) is None


def test_no_room_for_a_snapshot_stops_neither_retention_nor_producers(tmp_path: Path) -> None:
    room = [True]

    def pwrite(fd: int, data: bytes | memoryview, position: int) -> int:
        if not room[0] and SNAPSHOT_NAME in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(28, "No space left on device")
        return os.pwrite(fd, data, position)

    partition = opened(tmp_path, system=System(pwrite=pwrite))
    for _ in range(6):
        partition.append(1, size=450)
    partition.flush()
    room[0] = False
    partition.delete_before(partition.log.bases[2])
    assert len(list(partition.log.path.glob("*.log"))) == len(partition.log.bases)
    again = killed(partition)
    assert again.append(1)


def test_a_long_log_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "SNAPSHOT_BYTES", 1000)
    partition = filled(tmp_path)
    again = killed(partition)
    snapshot = stored(again)
    assert snapshot is not None and snapshot.end == again.log.end_offset
    assert not again.producers.due
    for _ in range(3):
        again.append(2, size=450)
    assert again.producers.due


# ---- everything against what was promised


class ProducersMachine(RuleBasedStateMachine):
    """Goal: what is acknowledged as a repeat is in the log, or was removed after having been there; no live producer is
    refused; nothing flushed is missing.

    Method: rules append, flush, snapshot and remove; fill the disk; kill the process; lose the power, with what was not
    synced dropped, torn and reordered; lose the snapshot; stop and start in order.
    """

    @initialize()
    def begin(self) -> None:
        self.room = Path(tempfile.mkdtemp(prefix="producers-", dir=MEMORY))
        self.root = self.room / "0"
        self.root.mkdir()
        self.boot = 1
        self.promises = Promises()
        self.disk = Disk(self.root)
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.disk.close()
            self.__dict__.pop("partition", None)
            shutil.rmtree(self.room)
            gc.collect()  # each log holds files open

    def open(self) -> None:
        self.partition = Partition(self.root / "t-0", self.promises, self.disk.system(), (self.boot, 0), 6)

    @rule(producer=st.integers(1, 4), size=st.sampled_from([5, 60, 450, 1200]))
    def append(self, producer: int, size: int) -> None:
        assert self.partition.append(producer, size)

    @rule(producer=st.integers(1, 4), size=st.sampled_from([60, 450, 1200]), room=st.integers(0, 1500))
    def append_to_a_full_disk(self, producer: int, size: int, room: int) -> None:
        self.disk.room = room
        self.partition.append(producer, size)
        self.disk.room = None

    @rule()
    def flush(self) -> None:
        self.partition.flush()

    @rule()
    def snapshot(self) -> None:
        self.partition.producers.freeze()

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        log = self.partition.log
        offset = data.draw(st.integers(log.start, log.end_offset) | st.sampled_from([*log.bases, log.end_offset]))
        self.partition.delete_before(offset)

    @rule()
    def stop_and_start(self) -> None:
        self.partition.close()
        self.open()

    @rule()
    def kill(self) -> None:
        self.partition.log.close(clean=False)
        self.open()

    @rule()
    def lose_the_snapshot(self) -> None:
        """Somebody deletes it."""
        self.promises.lacked_room = True
        self.partition.log.close(clean=False)
        with contextlib.suppress(FileNotFoundError):
            self.disk.system().unlink(self.root / "t-0" / SNAPSHOT_NAME)
        self.open()

    @rule(seed=st.integers(0, 1 << 16))
    def lose_power(self, seed: int) -> None:
        random_ = random.Random(seed)
        tree = random_.choice(list(self.disk.image().states(random_, 6)))
        self.disk.close()
        shutil.rmtree(self.root)
        self.boot += 1
        self.root = self.room / str(self.boot)
        plant(tree, self.root)
        self.disk = Disk(self.root)
        self.open()

    @invariant()
    def keeps_what_was_promised(self) -> None:
        if hasattr(self, "partition"):
            if self.partition.log.flushed == self.partition.log.end_offset:
                check_promises(self.promises, self.partition)
            self.promises.come_back(self.partition.log)


TestProducersMachine = ProducersMachine.TestCase
TestProducersMachine.settings = settings(
    max_examples=200 if LONG else 15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
