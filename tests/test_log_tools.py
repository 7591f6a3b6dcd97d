"""appliance.log.tools: dump, verify and repair, on sound logs and on damaged ones."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import CorruptLog, InvalidRequest
from appliance.log import tools
from appliance.log.files import index_path, log_path
from appliance.log.recovery import POINT_NAME
from appliance.log.tools import CORRUPT, INDEX, TORN, Batch, Damage, Problem, dump, flipped_bit, mended, repair, verify
from appliance.records.batch import LEADER_EPOCH_AT, MAGIC_AT

from .log_batches import SETTINGS, batch, contents, filled, open_log, place_all, placed, retire

MEMORY = Path("/dev/shm")
RAWS = [batch([b"%d" % number * 60] * (number % 3 + 1), number) for number in range(20)]


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="log-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def boundaries(raws: list[bytes]) -> list[int]:
    ends = [0]
    for raw in raws:
        ends.append(ends[-1] + len(raw))
    return ends


def kinds(path: Path) -> list[str]:
    return [problem.kind for problem in verify(path).problems]


# ---- dump


def test_dump_shows_every_batch_in_its_place(path: Path) -> None:
    log = filled(path, RAWS)
    shown = [
        (found.path, found.position, found.offset, bytes(found.data))
        for found in dump(path)
        if isinstance(found, Batch)
    ]
    ends = boundaries(RAWS)
    assert b"".join(data for *_, data in shown) == contents(path)
    for start, stop, (file, position, offset, data) in zip(ends, ends[1:], shown, strict=False):
        base = max(base for base in log.bases if base <= start)
        assert (file, position) == (log_path(path, base), start - base)
        assert offset + int.from_bytes(data[57:61], "big") == stop


def test_dump_from_an_offset(path: Path) -> None:
    filled(path, RAWS)
    ends = boundaries(RAWS)
    for index, (start, stop) in enumerate(pairwise(ends)):
        for offset in (start, start + 1, stop - 1):
            shown = list(dump(path, offset))
            assert len(shown) == len(RAWS) - index
    assert list(dump(path, ends[-1])) == []


def test_dump_goes_on_after_damage(path: Path) -> None:
    filled(path, RAWS)
    start, stop = boundaries(RAWS)[2:4]
    overwrite(log_path(path, 0), start + 70, b"\0\0\0\0")
    shown = list(dump(path))
    assert [found[:3] for found in shown if isinstance(found, Damage)] == [(log_path(path, 0), start, stop)]
    assert len(shown) == len(RAWS)
    overwrite(log_path(path, 0), start + 16, b"\1")
    assert len(list(dump(path, start + 1))) == len(RAWS)  # found by walking, which meets the damage


# ---- verify


def test_verify_a_sound_log(path: Path) -> None:
    log = filled(path, RAWS)
    records = sum(number % 3 + 1 for number in range(20))
    report = verify(path)
    assert report.sound
    assert report == (path, len(log.bases), 0, log.end_offset, len(RAWS), records, [])
    log.append(place_all(log.end_offset, RAWS))  # while it is written
    assert verify(path).problems == []
    log.raise_high_watermark(log.end_offset)
    retire(log, log.bases[2])
    report = verify(path)
    assert report.problems == [] and report.start == log.start
    log.close()
    assert verify(path).problems == []


def test_verify_an_empty_log(path: Path) -> None:
    log = open_log(path)
    assert verify(path) == (path, 1, 0, 0, 0, 0, [])
    log.close(clean=False)
    with pytest.raises(FileNotFoundError):
        verify(path / "nothing")


def test_verify_changes_nothing(path: Path) -> None:
    filled(path, RAWS).close(clean=False)
    overwrite(log_path(path, 0), 100, b"\0\0\0\0")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    verify(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_verify_names_every_damaged_batch(path: Path) -> None:
    log = filled(path, RAWS)
    ends = boundaries(RAWS)
    damaged = (1, 2, 6, 13)
    expected = []
    for index in damaged:
        base = max(base for base in log.bases if base <= ends[index])
        overwrite(log_path(path, base), ends[index] - base + 80, b"\0\0\0\0\0")
        expected.append((log_path(path, base), ends[index] - base))
    report = verify(path)
    assert not report.sound
    # Neighbours are one stretch of damage: nothing tells where the first of them ends.
    found = [(problem.path, problem.position) for problem in report.problems if problem.kind == CORRUPT]
    assert found == [expected[0], *expected[2:]]
    assert (report.batches, report.end) == (len(RAWS) - len(damaged), ends[1])


def test_verify_tells_a_torn_tail_from_corruption(path: Path) -> None:
    log = filled(path, RAWS[:3])
    end = log.end_offset
    log.append(place_all(end, RAWS[3:4]))
    log.close(clean=False)
    os.truncate(log_path(path, 0), log.end_offset - 5)
    assert kinds(path) == [TORN] and verify(path).sound
    with pytest.raises(InvalidRequest, match="nothing to repair"):
        repair(path)
    os.truncate(log_path(path, 0), end - 5)
    assert kinds(path) == [CORRUPT]
    (path / POINT_NAME).unlink()
    assert kinds(path) == [TORN]


@pytest.mark.parametrize("where", ["first entry", "middle", "closing entry", "missing", "short"])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_verify_index_files(path: Path, where: str, number: int) -> None:
    log = filled(path, RAWS)
    file = index_path(path, log.bases[number])
    size = file.stat().st_size
    before = {base: index_path(path, base).read_bytes() for base in log.bases}
    log.close(clean=False)
    if where == "missing":
        file.unlink()
    elif where == "short":
        os.truncate(file, size - 24)
    else:
        overwrite(file, {"first entry": 0, "middle": size // 48 * 24, "closing entry": size - 24}[where] + 16, b"\xfe")
    if number == -1 and where == "short":
        return  # the active one has none that must be there
    problems = verify(path).problems
    assert problems[0][:2] == (INDEX, file) and all(problem.kind == INDEX for problem in problems)
    repaired = repair(path, SETTINGS.index_interval_bytes)
    assert verify(path).problems == [] and repaired.end == log.end_offset
    if number != 0 or where != "first entry":
        assert {base: index_path(path, base).read_bytes() for base in log.bases} == before


def test_verify_missing_segments(path: Path) -> None:
    log = filled(path, RAWS)
    bases = log.bases
    assert len(bases) == 3
    log.close(clean=False)
    for base in bases:
        moved = path / "moved"
        log_path(path, base).rename(moved)
        assert CORRUPT in kinds(path)
        moved.rename(log_path(path, base))
    assert kinds(path) == []


# ---- repair


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
        assert repaired.end == len(whole)
        kept = log_path(path, 0).with_name(log_path(path, 0).name + ".broken")
        assert kept.read_bytes() == flipped
        kept.unlink()
        assert verify(path).problems == []
    log = open_log(path)
    assert (log.end_offset, log.records) == (len(whole), 4)


def test_repair_cuts_what_cannot_be_mended_and_keeps_it(path: Path) -> None:
    log = filled(path, RAWS)
    bases, ends = list(log.bases), boundaries(RAWS)
    log.close(clean=False)
    index = next(index for index, end in enumerate(ends) if end > bases[1]) + 1
    whole = log_path(path, bases[1]).read_bytes()
    damaged = bytearray(whole)
    at = ends[index] - bases[1]
    damaged[at + 64 : at + 90] = b"\xa5" * 26
    log_path(path, bases[1]).write_bytes(damaged)
    assert kinds(path) == [CORRUPT]
    repaired = repair(path)
    assert repaired.end == ends[index]
    assert log_path(path, bases[1]).read_bytes() == whole[:at]
    assert (path / f"{bases[1]:020d}.log.broken").read_bytes() == damaged
    assert (path / f"{bases[2]:020d}.log.broken").exists()
    assert any("truncated at" in action for action in repaired.actions)
    assert verify(path).problems == []
    log = open_log(path)
    assert (log.end_offset, log.bases, log.start) == (ends[index], bases[:2], 0)
    assert log.records == sum(number % 3 + 1 for number in range(index))


def test_repair_accepts_a_log_that_became_shorter(path: Path) -> None:
    filled(path, RAWS[:3]).close(clean=False)
    end = boundaries(RAWS)[2]
    os.truncate(log_path(path, 0), end)
    with pytest.raises(CorruptLog):
        open_log(path)
    assert [problem.reason for problem in verify(path).problems] == [
        f"the log ends at offset {end}, but was valid up to {boundaries(RAWS)[3]}"
    ]
    assert repair(path).end == end
    assert open_log(path).end_offset == end


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_repair_goes_on_without_a_missing_segment(path: Path, missing: int) -> None:
    log = filled(path, RAWS)
    bases = list(log.bases)
    log.close(clean=False)
    log_path(path, bases[missing]).unlink()
    repaired = repair(path)
    expected = (bases[1], log.end_offset) if missing == 0 else (0, bases[missing])
    assert (repaired.start, repaired.end) == expected
    log = open_log(path)
    assert (log.start, log.end_offset) == expected
    log.append(place_all(log.end_offset, RAWS))


def test_repair_when_nothing_is_left_keeps_offsets_ascending(path: Path) -> None:
    log = filled(path, RAWS)
    end = log.end_offset
    log.close(clean=False)
    for file in [*path.glob("*.log"), *path.glob("*.index")]:
        file.unlink()
    repaired = repair(path)
    assert (repaired.start, repaired.end) == (end, end)
    assert open_log(path).end_offset == end


def test_repair_cuts_a_segment_that_runs_into_the_next(path: Path) -> None:
    log = filled(path, RAWS)
    log.close(clean=False)
    with log_path(path, 0).open("ab") as file:
        file.write(b"more")
    assert kinds(path) == [CORRUPT]
    repair(path)
    assert verify(path).problems == [] and open_log(path).end_offset == log.end_offset


def test_repair_keeps_the_start_of_a_retired_log(path: Path) -> None:
    log = filled(path, RAWS)
    retire(log, log.bases[1] + 10)
    log.close(clean=False)
    overwrite(log_path(path, log.bases[0]), 90, b"\0\0\0\0\0\0")
    repaired = repair(path)
    assert repaired.start == repaired.end == log.bases[0]


def test_kept_copies_are_never_overwritten(path: Path) -> None:
    filled(path, RAWS[:2]).close(clean=False)
    for _ in range(3):
        overwrite(log_path(path, 0), 70, bytes([log_path(path, 0).read_bytes()[70] ^ 4]))
        repair(path)
    name = log_path(path, 0).name
    assert {file.name for file in path.glob("*.broken*")} == {f"{name}.broken", f"{name}.broken-2", f"{name}.broken-3"}


# ---- finding a flipped bit


@given(data=st.binary(min_size=1, max_size=300), at=st.integers(0, 1 << 20))
def test_flipped_bit(data: bytes, at: int) -> None:
    at %= 8 * len(data)
    damaged = bytearray(data)
    damaged[at // 8] ^= 1 << at % 8
    assert flipped_bit(crc32c(data) ^ crc32c(damaged), len(data)) == divmod(at, 8)


def test_two_flipped_bits_are_not_taken_for_one() -> None:
    dice = random.Random(5)
    raw = bytes(placed(batch([b"x" * 100]), 0)[0])
    for _ in range(200):
        damaged = bytearray(raw)
        for at in dice.sample(range(8 * 21, 8 * len(raw)), 2):
            damaged[at // 8] ^= 1 << at % 8
        assert not mended(memoryview(damaged), 0)


def test_a_batch_too_large_to_search_is_not_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(placed(batch([b"x" * 100]), 0)[0])
    raw[100] ^= 8
    monkeypatch.setattr(tools, "MEND_BYTES_MAX", 100)
    assert not mended(memoryview(raw), 0)
    assert Problem(CORRUPT, Path(), 0, "").kind == "corrupt"
