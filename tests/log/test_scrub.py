"""appliance.log.scrub: every damaged batch below the high watermark is found, and no range outlives its damage."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config import TopicSettings
from appliance.log import Log
from appliance.log import scrub as scrub_module
from appliance.log.files import log_path
from appliance.log.repair import repair
from appliance.log.scrub import DamagedRange, joined, look_again, place_of, scrub
from appliance.log.tools import verify
from appliance.owners import acting_as_owner

from ..support.log_batches import RAWS, batch, boundaries, filled, open_log, place_all, retire

RANGES_MAX = 4


def damage(path: Path, bases: Sequence[int], offset: int, count: int = 1) -> None:
    base = max(base for base in bases if base <= offset)
    with log_path(path, base).open("r+b") as file:
        file.seek(offset - base)
        data = file.read(count)
        file.seek(offset - base)
        file.write(bytes(byte ^ 0x55 for byte in data))


def found(log: Log, start: int = 0, stop: int | None = None, paces: list[int] | None = None) -> list[DamagedRange]:
    pace = (lambda size: None) if paces is None else paces.append
    end = log.high_watermark
    return list(scrub(log.path, log.bases, end, start, end if stop is None else stop, pace))


def again(log: Log, known: Sequence[DamagedRange]) -> list[DamagedRange]:
    return look_again(log.path, log.bases, log.start, log.high_watermark, known)


@given(data=st.data())
def test_every_damaged_batch_is_found_and_no_other(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = filled(tmp_path_factory.mktemp("log"), RAWS)
    numbers = data.draw(st.lists(st.integers(0, len(RAWS) - 1), unique=True, max_size=4))
    for number in numbers:
        damage(log.path, log.bases, boundaries()[number] + data.draw(st.sampled_from([16, 18, 40, 70])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scrub_module, "WINDOW_BYTES", data.draw(st.sampled_from([1, 500, 1 << 20])))
        paces: list[int] = []
        ranges = found(log, paces=paces)
    harmed = set(numbers)
    for number, (start, stop) in enumerate(pairwise(boundaries())):
        assert any(range_.start <= start and stop <= range_.stop for range_ in ranges) == (number in harmed)
    assert sum(paces) == log.end_offset
    # Where damage hides the begin of a range behind it, a part of it is found again.
    assert [range_[:2] for range_ in joined(again(log, ranges), 9)] == [range_[:2] for range_ in joined(ranges, 9)]
    log.close(clean=False)


@given(data=st.data())
def test_a_look_from_any_offset_to_any_other_finds_the_batches_that_contain_them(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = filled(tmp_path_factory.mktemp("log"), RAWS)
    damage(log.path, log.bases, boundaries()[data.draw(st.integers(0, len(RAWS) - 1))] + 70)
    (whole,) = found(log)
    start = data.draw(st.integers(0, log.end_offset - 1))
    stop = data.draw(st.integers(start + 1, log.end_offset))
    assert found(log, start, stop) == ([whole] if start < whole.stop and whole.start < stop else [])
    log.close(clean=False)


@contextmanager
def unreadable(start: int, stop: int) -> Iterator[None]:
    """A disk that cannot read the bytes [start, stop) of files."""
    preadv, pread = os.preadv, os.pread

    def fails(position: int, size: int) -> int:
        """How much of it can be read."""
        if start <= position < stop:
            raise OSError(errno.EIO, "Input/output error")
        return min(size, start - position) if position < start else size

    def read_into(fd: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
        size = fails(position, len(buffers[0]))
        return preadv(fd, [memoryview(buffers[0])[:size]], position, flags)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", read_into)
        patch.setattr(os, "pread", lambda fd, size, position: pread(fd, fails(position, size), position))
        yield


def test_what_the_disk_cannot_read_is_damaged_as_far_as_it_cannot(tmp_path: Path) -> None:
    """Goal: the batches before and behind bad sectors are served, and all of them once the disk can read them."""
    raws = [batch([random.Random(number).randbytes(900)]) for number in range(100)]
    log = filled(tmp_path, raws, TopicSettings())
    ends = boundaries(raws)
    with unreadable(40_960, 49_152):
        (range_,) = found(log)
        assert again(log, [range_]) == [range_]
    assert range_.start == max(end for end in ends if end <= 40_960)
    assert min(end for end in ends if end >= 49_152) <= range_.stop <= 49_152 + 2 * 4096 + len(raws[0])
    assert range_.stop in ends and range_.reason == "cannot be read: Input/output error"
    assert again(log, [range_]) == []
    log.close(clean=False)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def become_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (Path.unlink, "the file is missing"),
        (rename, "the file is missing"),
        (become_a_loop, "cannot be opened: Too many levels of symbolic links"),
        (become_a_directory, "cannot be read: Is a directory"),
        (shorten, "the file has 1814 of its 1914 bytes"),
        (lambda path: os.truncate(path, 0), "the file has 0 of its 1914 bytes"),
    ],
    ids=["unlinked", "renamed", "unopenable", "directory", "shortened", "emptied"],
)
def test_a_lost_file_is_damage_and_one_that_retention_has_removed_is_not(
    tmp_path: Path, harm: Callable[[Path], object], reason: str
) -> None:
    log = filled(tmp_path, RAWS)
    bases, end = list(log.bases), log.end_offset
    _, second, third = bases
    harm(log_path(tmp_path, second))
    (range_,) = found(log)
    assert second <= range_.start < range_.stop == third and range_.reason == reason
    (part,) = found(log, third - 6, third - 5)
    assert range_.start <= part.start and part.stop == range_.stop
    if harm is become_a_directory:
        log_path(tmp_path, second).rmdir()  # else retention cannot remove it
    retire(log, third)
    assert again(log, [range_]) == []
    assert list(scrub(tmp_path, bases, end, 0, end, lambda _: None)) == []  # with the view of a moment ago
    log.close(clean=False)


def test_where_an_offset_is(tmp_path: Path) -> None:
    log = filled(tmp_path, RAWS)
    first, second, _ = log.bases
    assert place_of(log.bases, second - 1) == (log_path(tmp_path, first).name, second - 1)
    assert place_of(log.bases, second) == (log_path(tmp_path, second).name, 0)
    log.close(clean=False)


# ---- ranges that become one


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 40), st.sampled_from("ab")), max_size=40),
    st.integers(1, 5),
)
def test_joined_ranges_cover_all_damage_and_are_few(drawn: list[tuple[int, int, str]], count_max: int) -> None:
    ranges = [DamagedRange(start, start + size, reason) for start, size, reason in drawn]
    few = joined(ranges, count_max)
    assert len(few) <= count_max
    assert all(before.stop < after.start for before, after in pairwise(few))
    assert all(any(few_.start <= range_.start and range_.stop <= few_.stop for few_ in few) for range_ in ranges)
    assert {range_.start for range_ in few} <= {range_.start for range_ in ranges}
    if len(few) < count_max:  # nothing sound is in them
        covered = {offset for range_ in ranges for offset in range(range_.start, range_.stop)}
        assert sum(range_.stop - range_.start for range_ in few) == len(covered)


def test_the_nearest_become_one() -> None:
    ranges = [DamagedRange(start, start + 10, f"at {start}") for start in (0, 100, 112, 300)]
    assert joined(ranges, 3) == [ranges[0], DamagedRange(100, 122, "at 100, and more behind it"), ranges[3]]


# ---- no range outlives its damage


def _repair(path: Path) -> None:
    repair(path)


def _cut_and_write_on(path: Path) -> None:
    repair(path, cut=True)
    log = open_log(path)
    for number in range(40):
        log.append(place_all(log.end_offset, [batch([b"other" * (number % 5 + 1)])]))
    log.flush()
    log.raise_high_watermark(log.end_offset)
    log.close()


def _make_again(path: Path) -> None:
    shutil.rmtree(path)
    filled(path, [batch([b"another topic" * (number % 7 + 1)]) for number in range(60)]).close()


def _delete(path: Path) -> None:
    log = open_log(path)
    retire(log, log.end_offset)
    log.close()


def _put_back(path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(path.with_name("whole"), path)


MENDS = {"repair": _repair, "cut": _cut_and_write_on, "made again": _make_again, "put back": _put_back}


@pytest.mark.parametrize("mend", MENDS)
@settings(max_examples=15)
@given(data=st.data())
def test_after_a_mend_one_look_finds_nothing(
    mend: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Goal: sound data is not kept out of service, however many ranges were known, in however many segments.

    Method: more ranges than are kept apart; what is known is what a look at the damaged log has found, joined.
    """
    path = tmp_path_factory.mktemp("logs") / "t-0"
    filled(path, RAWS).close()
    shutil.copytree(path, path.with_name("whole"))
    log = open_log(path)
    numbers = data.draw(st.lists(st.integers(0, len(RAWS) - 1), unique=True, min_size=1, max_size=len(RAWS)))
    for number in numbers:
        damage(path, log.bases, boundaries()[number] + 61, data.draw(st.integers(1, 40)))
    for base in data.draw(st.lists(st.sampled_from(log.bases), unique=True, max_size=2)):
        log_path(path, base).unlink()
    known = joined(found(log), data.draw(st.integers(1, RANGES_MAX)))
    assert known
    log.close(clean=False)
    MENDS[mend](path)
    assert verify(path).sound
    log = open_log(path)
    log.raise_high_watermark(log.end_offset)
    assert again(log, known) == []
    log.close(clean=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have files of two users")
def test_a_segment_of_another_user_is_named_as_such(tmp_path: Path) -> None:
    """As after a copy by root: it is no damage, and no repair helps, but the remedy that the reason has."""
    log = filled(tmp_path, RAWS)
    os.chown(tmp_path, 54_321, 54_321)
    first = log_path(tmp_path, log.bases[0])
    first.chmod(0o600)
    with acting_as_owner(tmp_path):
        range_ = next(scrub(tmp_path, log.bases, log.end_offset, 0, log.end_offset, lambda _: None))
    assert range_.start == 0 and range_.reason.startswith(f"{first}: not permitted"), range_
