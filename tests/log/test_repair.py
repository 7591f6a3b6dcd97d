"""appliance.log.repair: whatever is damaged, everything else is kept, with its offsets."""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import CorruptLog, InvalidRequest
from appliance.log import repair as repair_module
from appliance.log.files import index_path, log_path
from appliance.log.recovery import POINT_NAME
from appliance.log.repair import repair
from appliance.log.tools import CORRUPT, INDEX, DumpedBatch, dump, verify
from appliance.records.batch import LEADER_EPOCH_AT, MAGIC_AT
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_batch
from appliance.records.holes import reason_of

from ..support.log_batches import (
    MEMORY,
    RAWS,
    SETTINGS,
    batch,
    boundaries,
    contents,
    filled,
    kinds,
    open_log,
    overwrite,
    place_all,
    retire,
)

TOMBSTONE = encode_batch([(None, None, (), 5)])
"""The smallest batch that a client makes: too small for a hole with a text."""


class Content(NamedTuple):
    """What a log holds: its messages by offset, and the bytes [start, stop) without messages."""

    messages: dict[int, bytes | None]
    holes: list[tuple[int, int]]
    reasons: list[str]


def content(path: Path) -> Content:
    messages: dict[int, bytes | None] = {}
    holes, reasons = [], []
    for part in dump(path):
        assert isinstance(part, DumpedBatch), part
        if part.is_hole:
            start = int(part.path.stem) + part.position
            holes.append((start, start + part.header.size))
            reasons.append(reason_of(part.data))
        else:
            messages |= {record.offset: record.value for record in decode_batch(part.data)}
    return Content(messages, holes, reasons)


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


# ---- holes


class Harm(NamedTuple):
    """A way to damage a file: bytes overwritten, cut off at the end, or all of them gone."""

    kind: str
    file: int
    at: int
    size: int
    byte: int

    def do(self, path: Path, bases: list[int]) -> None:
        file = log_path(path, bases[self.file % len(bases)])
        if not file.exists() or not file.stat().st_size:
            return
        size = file.stat().st_size
        at = self.at % size
        match self.kind:
            case "overwritten":
                data = file.read_bytes()[at : at + self.size]
                overwrite(file, at, bytes(byte ^ self.byte for byte in data))
            case "cut off":
                os.truncate(file, at)
            case "lost":
                file.unlink()


HARMS = st.lists(
    st.builds(
        Harm,
        st.sampled_from(["overwritten", "overwritten", "overwritten", "cut off", "lost"]),
        st.integers(0, 2),
        st.integers(0, 1 << 12),
        st.integers(1, 300),
        st.sampled_from([1, 0xFF, 0x40, 0xA5]),
    ),
    min_size=1,
    max_size=3,
)


@given(harms=HARMS, closed=st.booleans())
def test_all_that_is_not_damaged_is_kept_with_its_offsets(harms: list[Harm], closed: bool) -> None:
    raws = [TOMBSTONE if number % 5 == 4 else raw for number, raw in enumerate(RAWS)]
    with tempfile.TemporaryDirectory(prefix="log-", dir=MEMORY) as name:
        path = Path(name) / "log"
        log = filled(path, raws)
        bases, end = list(log.bases), log.end_offset
        log.close(clean=closed)
        before, whole = content(path).messages, contents(path)
        for harm in harms:
            harm.do(path, bases)
        # The batches that are whole on the disk: byte by byte at their places.
        sound = [
            (start, stop)
            for start, stop in pairwise(boundaries(raws))
            if _bytes_at(path, bases, start, stop) == whole[start:stop]
        ]
        if verify(path).sound:
            return
        shown = repair(path, dry_run=True)
        untouched = files_of(path)
        repaired = repair(path, SETTINGS.index_interval_bytes)
        assert (shown.start, shown.end, shown.hole_bytes) == (repaired.start, repaired.end, repaired.hole_bytes)
        kept_names = [action for action in repaired.actions if "are kept as" in action]
        assert shown.actions == [action for action in repaired.actions if action not in kept_names]
        assert {name for name in untouched if ".log" in name} <= files_of(path).keys()

        assert repaired.end == end and repaired.cut_bytes == 0
        after = content(path)
        for start, stop in sound:
            mine = {offset: value for offset, value in before.items() if start <= offset < stop}
            assert mine.items() <= after.messages.items(), (start, stop)
        assert after.messages.items() <= before.items()  # nothing is made up
        for start, stop in after.holes:
            assert all(start >= kept_stop or stop <= kept_start for kept_start, kept_stop in sound)
        assert verify(path).problems == []
        reopened = open_log(path)
        assert (reopened.start, reopened.end_offset) == (repaired.start, end)
        reopened.append(place_all(end, RAWS[:2]))
        reopened.close()
        assert verify(path).problems == []


def _bytes_at(path: Path, bases: list[int], start: int, stop: int) -> bytes:
    base = max(base for base in bases if base <= start)
    file = log_path(path, base)
    return file.read_bytes()[start - base : stop - base] if file.exists() else b""


def test_a_dry_run_changes_nothing(path: Path) -> None:
    log = filled(path, RAWS)
    log.close(clean=False)
    overwrite(log_path(path, 0), 80, b"\0\0\0\0")
    os.truncate(log_path(path, log.bases[1]), 30)
    log_path(path, log.bases[2]).unlink()
    before = files_of(path)
    for cut in (False, True):
        assert repair(path, dry_run=True, cut=cut).actions
        assert files_of(path) == before


def test_a_hole_says_what_is_missing_and_why(path: Path) -> None:
    filled(path, RAWS).close(clean=False)
    start, stop = boundaries(RAWS)[2:4]
    whole = log_path(path, 0).read_bytes()
    overwrite(log_path(path, 0), start + 70, b"\0\0\0\0")
    damaged = log_path(path, 0).read_bytes()
    repaired = repair(path)
    assert repaired.hole_bytes == stop - start
    (reason,) = content(path).reasons
    assert reason.startswith("record batch of ")
    assert f"{log_path(path, 0)}: {stop - start} bytes at {start} become a hole: " in repaired.actions[0]
    assert log_path(path, 0).read_bytes()[:start] == whole[:start]
    assert log_path(path, 0).read_bytes()[stop:] == whole[stop:]
    kept = path / f"{0:020d}.log.damaged-{start}"
    assert kept.read_bytes() == damaged[start:stop]
    report = verify(path)
    assert (report.holes, report.batches, report.sound) == (1, len(RAWS), True)
    assert report.records == sum(number % 3 + 1 for number in range(20) if number != 2)
    with pytest.raises(InvalidRequest, match="nothing to repair"):
        repair(path)


def test_a_hole_that_is_damaged_becomes_a_hole_again(path: Path) -> None:
    filled(path, RAWS).close(clean=False)
    start = boundaries(RAWS)[2]
    for at in (70, 62):
        overwrite(log_path(path, 0), start + at, b"\1\2\3\4\5")
        assert repair(path).hole_bytes == len(RAWS[2])
    assert verify(path).holes == 1


def test_a_missing_segment_is_a_hole_of_any_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path, RAWS)
    bases, end = list(log.bases), log.end_offset
    log.close(clean=False)
    log_path(path, bases[1]).unlink()
    monkeypatch.setattr(repair_module, "MISSING_BYTES_MAX", bases[2] - bases[1] - 1)
    with pytest.raises(InvalidRequest, match="put the missing files back, or end the log there with --cut"):
        repair(path)
    monkeypatch.undo()
    repaired = repair(path)
    assert (repaired.start, repaired.end, repaired.hole_bytes) == (0, end, bases[2] - bases[1])
    assert content(path).holes == [(bases[1], bases[2])]
    assert open_log(path).bases == [bases[0], bases[2]]


def test_a_log_that_became_shorter_does_not_give_its_offsets_again(path: Path) -> None:
    filled(path, RAWS[:3]).close(clean=False)
    _, _, end, whole = boundaries(RAWS[:3])
    os.truncate(log_path(path, 0), end)
    with pytest.raises(CorruptLog):
        open_log(path)
    assert [problem.reason for problem in verify(path).problems] == [
        f"the log ends at offset {end}, but was valid up to {whole}"
    ]
    assert repair(path).end == whole
    assert content(path).holes == [(end, whole)]
    assert open_log(path).end_offset == whole


def test_repair_when_nothing_is_left_keeps_offsets_ascending(path: Path) -> None:
    log = filled(path, RAWS)
    end = log.end_offset
    log.close(clean=False)
    for file in [*path.glob("*.log"), *path.glob("*.index")]:
        file.unlink()
    repaired = repair(path)
    assert (repaired.start, repaired.end) == (end, end)
    assert open_log(path).end_offset == end


def test_a_segment_that_runs_into_the_next_loses_what_is_too_much(path: Path) -> None:
    log = filled(path, RAWS)
    log.close(clean=False)
    before = content(path)
    size = log_path(path, 0).stat().st_size
    with log_path(path, 0).open("ab") as file:
        file.write(b"more")
    assert kinds(path) == [CORRUPT]
    repair(path)
    assert (path / f"{0:020d}.log.cut-{size}").read_bytes() == b"more"
    assert verify(path).problems == [] and content(path) == before


@pytest.mark.parametrize("cut", [False, True])
def test_files_that_a_backup_shares_are_not_changed(path: Path, cut: bool) -> None:
    log = filled(path, RAWS)
    log.close(clean=False)
    overwrite(log_path(path, 0), boundaries(RAWS)[2] + 70, b"\0\0\0\0")
    os.truncate(log_path(path, log.bases[1]), 100)
    shared = {file.name: file.read_bytes() for file in [*path.glob("*.log"), *path.glob("*.index")]}
    backup = path / "backup"
    backup.mkdir()
    for name in shared:
        (backup / name).hardlink_to(path / name)
    repair(path, SETTINGS.index_interval_bytes, cut=cut)
    assert verify(path).sound
    assert {name: (backup / name).read_bytes() for name in shared if name.endswith(".log")} == {
        name: data for name, data in shared.items() if name.endswith(".log")
    }


def test_repair_keeps_the_start_of_a_retired_log(path: Path) -> None:
    log = filled(path, RAWS)
    start, end = log.bases[1] + 10, log.end_offset
    retire(log, start)
    log.close(clean=False)
    overwrite(log_path(path, log.bases[0]), 90, b"\0\0\0\0\0\0")
    repaired = repair(path)
    assert (repaired.start, repaired.end) == (start, end)


def test_kept_copies_are_never_overwritten(path: Path) -> None:
    filled(path, RAWS[:2]).close(clean=False)
    for _ in range(3):
        overwrite(log_path(path, 0), 70, bytes([log_path(path, 0).read_bytes()[70] ^ 4]))
        repair(path)
    name = f"{log_path(path, 0).name}.damaged-0"
    assert {file.name for file in path.glob("*.damaged*")} == {name, f"{name}-2", f"{name}-3"}


# ---- bits, indexes


def test_repair_mends_a_flipped_bit_anywhere(path: Path) -> None:
    """Goal: every single flipped bit that takes a partition offline is put back, with nothing lost."""
    raws = [batch([b"one", b"two"]), batch([b"x" * 40]), batch([b"last"])]
    filled(path, raws).close(clean=False)
    whole = log_path(path, 0).read_bytes()
    epochs = [start + byte for start in boundaries(raws)[:-1] for byte in range(LEADER_EPOCH_AT, MAGIC_AT)]
    for position in range(len(whole)):
        if position in epochs:
            continue
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        log_path(path, 0).write_bytes(flipped)
        report = verify(path)
        assert [problem.kind for problem in report.problems] == [CORRUPT]
        repaired = repair(path)
        assert log_path(path, 0).read_bytes() == whole, position
        assert (repaired.end, repaired.hole_bytes) == (len(whole), 0)
        (kept,) = path.glob("*.damaged-*")
        at = int(kept.name.rpartition("-")[2])
        assert kept.read_bytes() == flipped[at : at + kept.stat().st_size] and at <= position
        kept.unlink()
        assert verify(path).problems == []
    log = open_log(path)
    assert (log.end_offset, log.records) == (len(whole), 4)


@pytest.mark.parametrize("number", [0, 1])
def test_a_wrong_index_is_built_again(path: Path, number: int) -> None:
    log = filled(path, RAWS)
    before = {base: index_path(path, base).read_bytes() for base in log.bases}
    log.close(clean=False)
    file = index_path(path, log.bases[number])
    overwrite(file, file.stat().st_size - 8, b"\xfe")
    assert kinds(path) == [INDEX]
    repaired = repair(path, SETTINGS.index_interval_bytes)
    assert verify(path).problems == [] and repaired.end == log.end_offset
    assert {base: index_path(path, base).read_bytes() for base in log.bases} == before


@pytest.mark.parametrize("bits", [1, 9])
def test_a_wrong_index_of_a_damaged_segment_is_built_again(path: Path, bits: int) -> None:
    """Whether its batch is mended or becomes a hole: the index of such a segment is not compared before."""
    log = filled(path, RAWS)
    log.close(clean=False)
    file = index_path(path, log.bases[0])
    overwrite(file, file.stat().st_size - 16, b"\xfe")
    overwrite(log_path(path, 0), 70, (b"0"[0] ^ bits).to_bytes(1, "big"))
    repair(path, SETTINGS.index_interval_bytes)
    assert verify(path).problems == []


# ---- cut


def test_cut_ends_the_log_at_the_damage_and_keeps_the_rest_beside_it(path: Path) -> None:
    log = filled(path, RAWS)
    bases, ends = list(log.bases), boundaries(RAWS)
    log.close(clean=False)
    index = next(index for index, end in enumerate(ends) if end > bases[1]) + 1
    whole = log_path(path, bases[1]).read_bytes()
    damaged = bytearray(whole)
    at = ends[index] - bases[1]
    damaged[at + 64 : at + 90] = b"\xa5" * 26
    log_path(path, bases[1]).write_bytes(damaged)
    repaired = repair(path, cut=True)
    assert (repaired.end, repaired.hole_bytes, repaired.cut_bytes) == (ends[index], 0, ends[-1] - ends[index])
    assert log_path(path, bases[1]).read_bytes() == whole[:at]
    assert (path / f"{bases[1]:020d}.log.cut-{at}").read_bytes() == damaged[at:]
    assert (path / f"{bases[2]:020d}.log.cut-0").exists()
    assert verify(path).problems == []
    log = open_log(path)
    assert (log.end_offset, log.bases, log.start) == (ends[index], bases[:2], 0)
    assert log.records == sum(number % 3 + 1 for number in range(index))


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_cut_goes_on_without_a_missing_segment(path: Path, missing: int) -> None:
    log = filled(path, RAWS)
    bases = list(log.bases)
    log.close(clean=False)
    log_path(path, bases[missing]).unlink()
    repaired = repair(path, cut=True)
    expected = (bases[1], log.end_offset) if missing == 0 else (0, bases[missing])
    assert (repaired.start, repaired.end) == expected
    log = open_log(path)
    assert (log.start, log.end_offset) == expected
    log.append(place_all(log.end_offset, RAWS))


def test_without_a_recovery_point_a_bad_end_is_a_torn_write(path: Path) -> None:
    filled(path, RAWS[:3]).close(clean=False)
    (path / POINT_NAME).unlink()
    overwrite(log_path(path, 0), boundaries(RAWS)[2] + 70, b"\0\0\0\0")
    assert verify(path).sound
