"""appliance.log.recovery: what a crash leaves behind, and damage of every kind."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.config import TopicSettings
from appliance.durable_files import File
from appliance.errors import CorruptLog, StorageFault
from appliance.log import FileCache, Log, LogReader, files, peek, recovery
from appliance.log.files import index_path, log_path
from appliance.log.recovery import (
    FLUSHED,
    HIGH_WATERMARK,
    MAGIC,
    MARKER_NAME,
    POINT_NAME,
    START,
    RecoveryPoint,
    boot_id,
)
from appliance.log.tools import verify
from appliance.records.batch import LEADER_EPOCH_AT, MAGIC_AT

from ..support.log_batches import BOOT, SETTINGS, batch, contents, filled, open_log, place_all
from ..support.power_loss import Disk, Image, plant

RAWS = [batch([b"one", b"two"], 10), batch([b"three"], 30), batch([b"x" * 200], 20), batch([b"last"] * 3, 40)]


def kill(log: Log) -> None:
    """As a dead process leaves it: nothing closed in order, everything in the page cache."""
    log.close(clean=False)


def served(log: Log) -> bytes:
    """What a reader gets of all that is exposed."""
    reader, data, offset = LogReader(log.path, FileCache()), b"", log.start
    while (range_ := reader.locate(log.bases, log.high_watermark, offset, 300)) is not None:
        data += os.pread(range_.file.fd, range_.count, range_.position)
        offset += range_.count
    return data


def save(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def restore(path: Path, saved: dict[str, bytes]) -> None:
    for file in path.iterdir():
        if file.name not in saved:
            file.unlink()
    for name, data in saved.items():
        (path / name).write_bytes(data)


# ---- a torn tail is cut


@pytest.mark.parametrize("exposed", [0, 3], ids=["nothing exposed", "all but the last exposed"])
def test_a_torn_write_at_every_byte_of_the_last_batch(path: Path, exposed: int) -> None:
    log = filled(path, RAWS[:exposed])
    log.append(place_all(log.end_offset, RAWS[exposed:]))
    kill(log)
    whole = contents(path)
    start = len(whole) - len(RAWS[-1])
    for size in range(start, len(whole)):
        log_path(path, 0).write_bytes(whole[:size])
        log = open_log(path)
        assert (log.end_offset, log.records) == (start, sum((2, 1, 1)))
        assert contents(path) == whole[:start]
        assert served(log) == whole[:start]
        kill(log)
        with RecoveryPointOf(path) as point:  # as it was before this recovery
            point.set_high_watermark(sum(map(len, RAWS[:exposed])))
            point.set_flushed(sum(map(len, RAWS[:exposed])))


class RecoveryPointOf:
    def __init__(self, path: Path) -> None:
        self.point = RecoveryPoint(path)

    def __enter__(self) -> RecoveryPoint:
        return self.point

    def __exit__(self, *_: Any) -> None:
        self.point.close()


def test_writing_goes_on_where_the_tail_was_cut(path: Path) -> None:
    log = filled(path, RAWS[:2])
    end = log.end_offset
    log.append(place_all(end, RAWS[2:]))
    kill(log)
    with log_path(path, 0).open("r+b") as file:
        file.truncate(end + 100)
    log = open_log(path)
    assert log.end_offset == end
    log.append(place_all(end, [RAWS[3]]))
    log.flush()
    log.raise_high_watermark(log.end_offset)
    assert served(log) == contents(path) and log.records == 2 + 1 + 3


def test_valid_batches_after_a_torn_one_are_kept_aside(path: Path) -> None:
    """After a power loss pages may be missing in the middle of what was never flushed."""
    log = filled(path, RAWS[:1])
    flushed = log.end_offset
    log.append(place_all(flushed, RAWS[1:]))
    kill(log)
    whole = contents(path)
    with log_path(path, 0).open("r+b") as file:
        file.seek(flushed + 62)
        file.write(bytes(5))
    log = open_log(path)
    assert log.end_offset == flushed
    aside = path / f"{0:020d}.log.cut-{flushed}"
    assert aside.read_bytes()[:62] == whole[flushed : flushed + 62]
    assert aside.read_bytes()[len(RAWS[1]) :] == whole[flushed + len(RAWS[1]) :]
    kill(log)
    assert open_log(path).end_offset == flushed  # and the file beside does not disturb


def test_segments_after_a_torn_one_are_kept_aside(path: Path) -> None:
    log = filled(path, RAWS[:1])
    flushed = log.end_offset
    log.append(place_all(flushed, [batch([b"x" * 900])] * 6))
    bases = list(log.bases)
    assert len(bases) > 2
    kill(log)
    with log_path(path, bases[1]).open("r+b") as file:
        file.truncate(50)
    log = open_log(path)
    assert (log.end_offset, log.bases) == (bases[1], bases[:2])
    assert {name for name in save(path) if "cut" in name} == {f"{base:020d}.log.cut-0" for base in bases[1:]}
    log.append(place_all(log.end_offset, RAWS))
    log.flush()
    log.raise_high_watermark(log.end_offset)
    assert served(log) == b"".join(log_path(path, base).read_bytes() for base in log.bases)


# ---- what is written is not believed, what was shown is not given up


def test_a_kill_keeps_what_was_written_and_not_flushed(path: Path) -> None:
    log = open_log(path)
    log.append(place_all(0, RAWS))
    kill(log)
    log = open_log(path)
    assert (log.end_offset, log.flushed) == (sum(map(len, RAWS)),) * 2


def test_after_a_reboot_only_what_was_flushed_must_be_there(path: Path) -> None:
    log = filled(path, RAWS[:2])
    flushed = log.end_offset
    log.append(place_all(flushed, RAWS[2:]))
    log.raise_high_watermark(log.end_offset)  # flushing is left to the system
    kill(log)
    with log_path(path, 0).open("r+b") as file:
        file.truncate(flushed + 7)
    with pytest.raises(CorruptLog) as caught:
        open_log(path)
    assert caught.value.position == flushed
    log = Log.open(path, SETTINGS, lambda: 0, boot=(BOOT[0], BOOT[1] + 1))
    assert log.end_offset == flushed


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_log_shorter_than_it_was_shown_goes_offline(path: Path, size: int) -> None:
    kill(filled(path, RAWS))
    with log_path(path, 0).open("r+b") as file:
        file.truncate(size)
    with pytest.raises(CorruptLog) as caught:
        open_log(path)
    assert caught.value.path == str(log_path(path, 0))
    assert log_path(path, 0).stat().st_size == size  # nothing is touched


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_segment_goes_offline(path: Path, missing: int) -> None:
    log = filled(path, [batch([b"x" * 900])] * 6)
    bases = list(log.bases)
    assert len(bases) == 3
    kill(log)
    log_path(path, bases[missing]).unlink()
    with pytest.raises(CorruptLog):
        open_log(path)


def test_all_segments_missing_goes_offline(path: Path) -> None:
    kill(filled(path, RAWS))
    log_path(path, 0).unlink()
    with pytest.raises(CorruptLog, match="missing"):
        open_log(path)


def test_a_sealed_segment_of_the_wrong_size_goes_offline(path: Path) -> None:
    log = filled(path, [batch([b"x" * 900])] * 6)
    bases = list(log.bases)
    kill(log)
    os.truncate(log_path(path, bases[0]), bases[1] - 1)
    with pytest.raises(CorruptLog) as caught:
        open_log(path)
    assert (caught.value.path, caught.value.position) == (str(log_path(path, bases[0])), bases[1] - 1)


def test_without_a_recovery_point_a_bad_batch_in_the_middle_is_no_torn_tail(path: Path) -> None:
    kill(filled(path, RAWS))
    (path / POINT_NAME).unlink()
    with log_path(path, 0).open("r+b") as file:
        file.seek(len(RAWS[0]) + 70)
        file.write(b"\xff")
    with pytest.raises(CorruptLog) as caught:
        open_log(path)
    assert caught.value.position == len(RAWS[0])
    with log_path(path, 0).open("r+b") as file:
        file.truncate(len(RAWS[0]) + 90)  # nothing valid follows any more
    assert open_log(path).end_offset == len(RAWS[0])


def test_a_forged_batch_in_the_torn_tail_is_not_taken_for_what_follows(path: Path) -> None:
    """A payload may hold whole batches, but none that says of itself that it stands just there by chance."""
    log = filled(path, RAWS[:1])
    end = log.end_offset
    log.append(place_all(end, [batch([RAWS[1] * 3])]))
    kill(log)
    (path / POINT_NAME).unlink()
    os.truncate(log_path(path, 0), len(contents(path)) - 1)
    assert open_log(path).end_offset == end
    assert not list(path.glob("*.cut-*"))


# ---- single damaged bits


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every byte with one bit flipped, another bit from byte to byte; and every bit of the first 61 bytes."""
    for index in range(len(data)):
        for bit in range(8) if index < 61 else [index % 8]:
            flipped = bytearray(data)
            flipped[index] ^= 1 << bit
            yield index, bytes(flipped)


def test_a_flipped_bit_anywhere_in_the_log_is_never_served_nor_cut(path: Path) -> None:
    """Goal: after a kill, damage to exposed data takes the partition offline and leaves the file as it is.

    The only bytes that may change unnoticed are ``partitionLeaderEpoch``: outside the checksum, and used by nobody.
    """
    kill(filled(path, RAWS))
    saved = save(path)
    whole = contents(path)
    starts = [0, len(RAWS[0]), len(RAWS[0] + RAWS[1]), len(b"".join(RAWS[:3]))]
    harmless = {start + LEADER_EPOCH_AT + byte for start in starts for byte in range(MAGIC_AT - LEADER_EPOCH_AT)}
    for index, flipped in flips(whole):
        restore(path, saved)
        log_path(path, 0).write_bytes(flipped)
        if index in harmless:
            kill(open_log(path))
            continue
        with pytest.raises(CorruptLog) as caught:
            open_log(path)
        assert caught.value.path == str(log_path(path, 0))
        assert caught.value.position == max(start for start in starts if start <= index)
        assert contents(path) == flipped


@pytest.mark.parametrize("name", [POINT_NAME, f"{0:020d}.index"])
def test_a_flipped_bit_beside_the_log_costs_nothing(path: Path, name: str) -> None:
    """Goal: damage to what stands beside the log loses and alters nothing; at worst it is refused aloud."""
    log = filled(path, [batch([b"%d" % number * 30], number) for number in range(12)], TopicSettings(**SMALL))
    log.append(place_all(log.end_offset, RAWS))  # written, never shown
    kill(log)
    saved = save(path)
    exposed, whole = log.high_watermark, contents(path)
    data = saved[name][:128] if name == POINT_NAME else saved[name]
    refused = 0
    for _, flipped in flips(data):
        restore(path, saved)
        (path / name).write_bytes(flipped + saved[name][len(data) :])
        try:
            log = open_log(path)
        except CorruptLog:
            refused += 1
            assert contents(path) == whole
            continue
        assert (log.start, log.end_offset, log.high_watermark >= exposed) == (0, len(whole), True)
        assert served(log) == whole and log.records == 12 + 7
        kill(log)
        if name != POINT_NAME:
            assert save(path)[name] == saved[name]
    assert refused < 200 if name == POINT_NAME else refused == 0


SMALL: dict[str, Any] = {"segment_bytes": 1 << 20, "index_interval_bytes": 256}


def test_a_flipped_bit_in_a_retired_start_brings_data_back_rather_than_hide_it(path: Path) -> None:
    log = filled(path, RAWS)
    log.retire_before(len(RAWS[0]))
    kill(log)
    saved = save(path)
    for bit in range(64):
        restore(path, saved)
        with RecoveryPointOf(path) as point:
            point.cells[START] ^= 1 << bit
        log = open_log(path)
        assert log.start == 0
        kill(log)
    restore(path, saved)
    assert open_log(path).start == len(RAWS[0])


# ---- the index files


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "torn", "noise"])
def test_index_files_are_rebuilt(path: Path, damage: str) -> None:
    log = filled(path, [batch([b"%d" % number * 40], number) for number in range(40)])
    bases = list(log.bases)
    assert len(bases) > 2
    kill(log)
    expected = {base: index_path(path, base).read_bytes() for base in bases}
    for base in bases:
        file = index_path(path, base)
        data = file.read_bytes()
        if damage == "missing":
            file.unlink()
        else:
            half = len(data) // 48 * 24
            file.write_bytes(
                {"empty": b"", "short": data[:half], "torn": data[: half + 7], "noise": os.urandom(len(data))}[damage]
            )
    log = open_log(path)
    assert {base: index_path(path, base).read_bytes() for base in bases} == expected
    assert log.records == 40
    kill(log)


def test_a_wrong_count_in_one_index_does_not_spread(path: Path) -> None:
    log = filled(path, [batch([b"%d" % number * 40], number) for number in range(40)])
    bases = list(log.bases)
    kill(log)
    expected = save(path)
    for base in bases[:-1]:
        for at in (16, index_path(path, base).stat().st_size - 8):
            with index_path(path, base).open("r+b") as file:
                file.seek(at)
                file.write(b"\x77")
            kill(open_log(path))
            for other in bases:
                assert index_path(path, other).read_bytes() == expected[index_path(path, other).name]


def test_an_index_without_its_segment_is_removed(path: Path) -> None:
    kill(filled(path, RAWS))
    index_path(path, 123456).write_bytes(bytes(24))
    kill(open_log(path))
    assert not index_path(path, 123456).exists()


def test_a_changed_index_interval_is_no_damage(path: Path) -> None:
    kill(filled(path, [batch([b"x" * 100])] * 10, TopicSettings(index_interval_bytes=4096)))
    log = open_log(path, TopicSettings(index_interval_bytes=256))
    assert log.end_offset == len(contents(path))
    assert index_path(path, 0).stat().st_size > 24


# ---- a clean stop


def test_a_clean_stop_is_believed_once(path: Path) -> None:
    log = filled(path, RAWS)
    log.close()
    assert peek(path) == ((0,), 0, log.end_offset, 7, log.end_offset, False)
    log = open_log(path)
    assert peek(path) is not None  # nothing written yet
    log.append(place_all(log.end_offset, RAWS))
    assert peek(path) is None


@pytest.mark.parametrize("change", ["longer", "shorter", "another", "index", "marker"])
def test_a_marker_that_does_not_fit_is_not_believed(path: Path, change: str) -> None:
    filled(path, RAWS).close()
    match change:
        case "longer":
            with log_path(path, 0).open("ab") as file:
                file.write(b"\0")
        case "shorter":
            os.truncate(log_path(path, 0), 100)
        case "another":
            log_path(path, 4096).touch()
        case "index":
            index_path(path, 0).unlink()
        case "marker":
            data = bytearray((path / MARKER_NAME).read_bytes())
            data[20] ^= 1
            (path / MARKER_NAME).write_bytes(data)
    assert peek(path) is None


def test_every_flipped_bit_in_the_marker_is_noticed(path: Path) -> None:
    filled(path, RAWS).close()
    data = (path / MARKER_NAME).read_bytes()
    for _, flipped in flips(data):
        (path / MARKER_NAME).write_bytes(flipped)
        assert peek(path) is None


def test_no_log_is_no_clean_log(path: Path) -> None:
    assert peek(path) is None
    assert peek(path / "nothing") is None


def test_starting_after_a_clean_stop_costs_the_same_however_long_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: count the files opened and the bytes read, with no segments and with 50 sparse ones of 1 GiB."""
    opened: list[str] = []
    read: list[int] = []

    def counting(call: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            result = call(*arguments)
            note((arguments, result))
            return result

        return counted

    costs = []
    for segments in (0, 50):
        directory = path / f"t-{segments}"
        filled(directory, RAWS).close()
        if segments:
            grow(directory, segments)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", counting(os.open, lambda seen: opened.append(str(seen[0][0]))))
            patch.setattr(os, "pread", counting(os.pread, lambda seen: read.append(len(seen[1]))))
            patch.setattr(os, "preadv", counting(os.preadv, lambda seen: read.append(seen[1])))
            summary = peek(directory)
            log = open_log(directory, TopicSettings())
        assert summary is not None
        assert log.end_offset == summary.end
        assert (log.end_offset > 50 << 30) == (segments == 50)
        costs.append((len(opened), sum(read) - (directory / MARKER_NAME).stat().st_size * 2))
        opened.clear()
        read.clear()
    assert costs[0] == costs[1]
    assert costs[0][1] == 0


def grow(directory: Path, segments: int) -> None:
    """Put sparse segments of 1 GiB under a cleanly stopped log, as if it had grown so long."""
    marker = recovery.CleanMarker.load(directory)
    assert marker is not None
    shift = segments << 30
    data, index = log_path(directory, 0).read_bytes(), index_path(directory, 0).read_bytes()
    for number in range(segments):
        os.truncate(File(log_path(directory, number << 30), os.O_RDWR | os.O_CREAT).path, 1 << 30)
        index_path(directory, number << 30).write_bytes(b"")
    log_path(directory, shift).write_bytes(data)
    index_path(directory, shift).write_bytes(index)
    logs, indexes = files.sizes(directory)
    state = marker.state._replace(end=marker.state.end + shift, last_entry=marker.state.last_entry + shift)
    recovery.CleanMarker(list(logs), list(indexes.values()), 0, state.end, False, state).store(directory)


# ---- the recovery point


def test_recovery_point_cells(path: Path) -> None:
    point = RecoveryPoint(path)
    assert point.trusted(BOOT) is None and point.start is None and not point.faulted
    point.begin(BOOT, 100, 40, 7)
    point.set_high_watermark(300)
    assert (path / POINT_NAME).stat().st_size == 4096
    again = RecoveryPoint(path)
    assert (again.trusted(BOOT), again.trusted((0, 0)), again.start) == (300, 100, 40)
    again.set_flushed(200)
    assert point.trusted((0, 0)) == 200
    point.set_faulted()
    assert again.trusted(BOOT) == 200
    point.sync()


def test_a_crash_between_any_two_stores_of_beginning_never_trusts_too_much(path: Path) -> None:
    """Method: the recovery point of an older, longer life is overwritten store by store, and read after each."""

    class Watched:
        def __init__(self, cells: Any) -> None:
            self.cells = cells

        def __getitem__(self, index: int) -> int:
            return int(self.cells[index])

        def __setitem__(self, index: int, value: int) -> None:
            self.cells[index] = value
            trusted = RecoveryPoint(path).trusted(new_boot)
            assert trusted is None or trusted <= 500, index
            start = RecoveryPoint(path).start
            assert start in (None, 40, 50)

    new_boot = (9, 9)
    point = RecoveryPoint(path)
    point.begin(BOOT, 400, 40, 7)
    point.set_high_watermark(900)  # published, but gone with the reboot
    point.cells = Watched(point.cells)
    point.begin(new_boot, 500, 50, 8)
    assert RecoveryPoint(path).trusted(new_boot) == 500


@pytest.mark.parametrize("size", [0, 1, 4095, 5000])
def test_a_recovery_point_of_the_wrong_size_is_made_anew(path: Path, size: int) -> None:
    (path / POINT_NAME).write_bytes(b"\xaa" * size)
    point = RecoveryPoint(path)
    assert not point.valid
    assert (point.cells[MAGIC], point.cells[FLUSHED], point.cells[HIGH_WATERMARK]) == (0, 0, 0)


def test_boot_id_is_that_of_the_running_system() -> None:
    assert boot_id() == boot_id()
    assert all(0 <= half < 1 << 64 for half in boot_id())


# ---- what is on the disk


@pytest.mark.parametrize("is_clean", [False, True])
def test_the_index_of_a_segment_that_was_sealed_when_all_was_flushed_is_on_the_disk(path: Path, is_clean: bool) -> None:
    """Its last entry is written when the next batch comes, whose flush would sync it: a killed process does not."""
    root = path / "0"
    root.mkdir()
    disk = Disk(root)
    log = Log.open(root / "t-0", SETTINGS, lambda: 5000, boot=BOOT, system=disk.system())
    log.append(place_all(0, RAWS))
    log.flush()
    log.roll()
    log.append(place_all(log.end_offset, [batch([b"after"])]))
    log.close(clean=False)
    log = Log.open(root / "t-0", SETTINGS, lambda: 5000, boot=BOOT, system=disk.system())
    content = contents(log.path)
    log.close(clean=is_clean)
    image = disk.image()
    disk.close()
    check_after_power_loss(image, path, content)


@pytest.mark.parametrize(
    ("rolled", "synced"), [("", 0), ("behind", 0), ("behind", 1), ("at", 0), ("at", 1), ("at", 2), ("at", 3)]
)
def test_what_is_kept_after_a_failed_flush_is_on_the_disk(path: Path, rolled: str, synced: int) -> None:
    """Goal: recovery after a failed flush never calls durable what only the page cache has.

    Method: a flush fails, after which the kernel says that all is written; the log recovers, is written to no more, and
    loses power in every way that the disk allows.  Segments are rolled behind what was flushed before, or just there.
    So many files are synced before the one that fails.
    """
    root = path / "0"
    root.mkdir()
    disk = Disk(root)

    calls = itertools.count()

    def fdatasync(fd: int) -> None:
        if next(calls) < synced:
            return disk.system().fdatasync(fd)
        disk.fail_sync(fd)
        raise OSError(errno.EIO, "Input/output error")

    log = Log.open(root / "t-0", SETTINGS, lambda: 5000, boot=BOOT, system=disk.system())
    log.append(place_all(0, RAWS))
    log.flush()
    if rolled == "at":
        log.roll()
    raws = RAWS if rolled != "behind" else [batch([b"y" * 700]) for _ in range(6)]
    log.append(place_all(log.end_offset, raws))
    assert (len(log.bases) > 2) == (rolled == "behind")
    failing = dataclasses.replace(disk.system(), fdatasync=fdatasync)
    ticket = log.flush_begin()
    ticket._system = failing
    with pytest.raises(StorageFault):
        ticket.sync()
    log.close(clean=False)
    log = Log.open(root / "t-0", SETTINGS, lambda: 5000, boot=BOOT, system=disk.system())
    end, content = log.flushed, contents(log.path)
    assert end == log.end_offset == len(content) == sum(map(len, [*RAWS, *raws]))
    recovered = disk.image()
    log.close()
    stopped = disk.image()
    disk.close()
    check_after_power_loss(recovered, path / "recovered", content)
    check_after_power_loss(stopped, path / "stopped", content)


def check_after_power_loss(image: Image, room: Path, content: bytes) -> None:
    """Whatever the disk may have then: the log opens with all of its content, and its indexes are right."""
    room.mkdir(exist_ok=True)
    for number, tree in enumerate(image.states(random.Random(1), 50)):
        plant(tree, room / f"after-{number}")
        again = Log.open(room / f"after-{number}" / "t-0", SETTINGS, lambda: 5000, boot=(18, 4))
        assert contents(again.path) == content
        assert verify(again.path, again.derived, SETTINGS.index_interval_bytes).problems == []
        again.close(clean=False)
