"""appliance.log.index_check: a scrub finds wrong index files of sealed segments, and mends them while they are read."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import TopicSettings
from appliance.log import FileCache, Log, LogReader
from appliance.log import scrub as scrub_module
from appliance.log.files import index_path, log_path, sizes
from appliance.log.index import ENTRY, ENTRY_BYTES, IndexEntry
from appliance.log.index_check import IndexCheck, MendedIndex
from appliance.log.scrub import scrub
from appliance.log.tools import verify

from ..support.harmed_files import harm
from ..support.log_batches import batch, filled, headers_of, log_range, retire

RAWS = [batch([b"%d" % number * 30] * (number % 3 + 1), 1_000 + number) for number in range(24)]


def checked(log: Log, start: int = 0, may_write: bool = True) -> list[MendedIndex]:
    """Scrub from an offset on, as the scrubber does; what was mended."""
    bases = tuple(log.bases)
    check = IndexCheck(log.path, bases, lambda: may_write, lambda size: None)
    list(scrub(log.path, bases, log.high_watermark, start, log.high_watermark, lambda size: None, check.on_batch))
    check.finish()
    return check.mended


def entries(log: Log, base: int) -> list[IndexEntry]:
    data = index_path(log.path, base).read_bytes()
    return [IndexEntry(*ENTRY.unpack_from(data, at)) for at in range(0, len(data), ENTRY_BYTES)]


def store(log: Log, base: int, given: list[IndexEntry]) -> None:
    index_path(log.path, base).write_bytes(b"".join(ENTRY.pack(*entry) for entry in given))


def as_read(log: Log) -> list[list[IndexEntry]]:
    """The index of each sealed segment without the entries that nobody needs: the first and the last one."""
    return [[entries(log, base)[0], entries(log, base)[-1]] for base in log.bases[:-1]]


@given(data=st.data())
def test_whatever_is_wrong_in_an_index_is_mended(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = filled(tmp_path_factory.mktemp("log"), RAWS)
    assert checked(log) == []
    before, active = as_read(log), entries(log, log.bases[-1])
    for _ in range(data.draw(st.integers(1, 3))):
        path = index_path(log.path, data.draw(st.sampled_from(log.bases[:-1])))
        harm(path, data, ENTRY_BYTES)
    problems = verify(log.path).problems
    mended = checked(log)
    assert bool(mended) == bool(problems)
    assert verify(log.path).sound and as_read(log) == before and entries(log, log.bases[-1]) == active
    assert checked(log) == []
    log.close(clean=False)


def test_what_was_wrong_is_said(tmp_path: Path) -> None:
    log = filled(tmp_path, RAWS)
    right = entries(log, 0)
    store(log, 0, [*right[:2], right[2]._replace(timestamp=7), *right[3:]])
    (mended,) = checked(log)
    path = index_path(tmp_path, 0)
    assert (mended.path, mended.position) == (path, 2 * ENTRY_BYTES)
    assert str(mended).startswith(f"{path}:48: IndexEntry(offset={right[2].offset}, timestamp=7, ")


def test_records_are_counted_on_to_the_active_segment(tmp_path: Path) -> None:
    """Goal: numbers of messages between any two offsets are right, whichever number was wrong.

    The writer counts on from what the active segment says, so what is before it follows it.
    """
    log = filled(tmp_path, RAWS, TopicSettings(segment_bytes=1024))
    assert len(log.bases) > 3
    before = as_read(log)
    for base in log.bases[:2]:  # as if a segment had been counted wrongly, and all behind it from there
        store(log, base, [entry._replace(records=entry.records + 5) for entry in entries(log, base)])
    assert len(checked(log)) == 2
    assert as_read(log) == before


def test_the_active_segment_is_left_to_its_writer(tmp_path: Path) -> None:
    log = filled(tmp_path, RAWS)
    path = index_path(tmp_path, log.bases[-1])
    content = path.read_bytes()
    path.write_bytes(content[:ENTRY_BYTES] + bytes(ENTRY_BYTES))
    assert checked(log) == []
    assert path.read_bytes() == content[:ENTRY_BYTES] + bytes(ENTRY_BYTES)


def test_nothing_is_written_while_the_log_is_repaired(tmp_path: Path) -> None:
    log = filled(tmp_path, RAWS)
    index_path(tmp_path, 0).unlink()
    assert checked(log, may_write=False) == []
    assert not index_path(tmp_path, 0).exists()


def test_a_segment_that_was_not_read_in_whole_is_left_alone(tmp_path: Path) -> None:
    """A scrub that goes on in the middle of a segment, and one that is damaged."""
    log = filled(tmp_path, RAWS)
    second = log.bases[1]
    for base in (0, second):
        index_path(tmp_path, base).unlink()
    with log_path(tmp_path, second).open("r+b") as file:
        file.seek(80)
        file.write(b"\xff\xff")
    assert checked(log, start=len(RAWS[0])) == []
    assert [mended.path for mended in checked(log)] == [index_path(tmp_path, 0)]


def test_a_reader_that_knew_the_index_reads_right_after_it_was_mended(tmp_path: Path) -> None:
    """Goal: an entry that stands at another place than the reader remembers is not taken for the one before.

    Method: the reader keeps offsets of entries; the index is made anew with fewer, so that a number names a later one.
    """
    log = filled(tmp_path, [batch([b"x" * 200]) for _ in range(60)], TopicSettings(index_interval_bytes=256))
    reader = LogReader(tmp_path, FileCache())
    log.roll()
    end, bases = log.end_offset, tuple(log.bases)
    assert reader.locate(bases, end, 10_000, 1) is not None
    right = entries(log, 0)
    store(log, 0, [right[0], right[1]._replace(records=99), *right[2:]])
    assert checked(log)
    assert len(entries(log, 0)) < len(right)
    ends = [stop for _, _, stop in headers_of(log, 0)]
    for offset in range(0, end, 131):
        range_ = reader.locate(bases, end, offset, 1)
        assert range_ is not None and log_range(range_)[1] == next(stop for stop in ends if stop > offset)


def test_retention_at_any_moment_is_no_fault_and_nothing_of_what_it_removes_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: of a scrub of two wrong indexes, batch by batch, each step once has retention before it."""
    monkeypatch.setattr(scrub_module, "WINDOW_BYTES", 1)
    for steps in itertools.count(1):
        log = filled(tmp_path / str(steps), RAWS)
        bases, steps_left = tuple(log.bases), steps
        for base in bases[:2]:
            index_path(log.path, base).unlink()

        def step(size: int = 0) -> bool:
            nonlocal steps_left
            steps_left -= 1
            if steps_left == 0:
                retire(log, bases[-1])  # noqa: B023
            return True

        check = IndexCheck(log.path, bases, step, step)
        end = log.high_watermark
        assert list(scrub(log.path, bases, end, 0, end, step, check.on_batch)) == []
        check.finish()
        if steps_left > 0:
            assert len(check.mended) >= 2
            return
        logs, indexes = sizes(log.path)
        assert list(logs) == list(indexes) == log.bases == [bases[-1]]
