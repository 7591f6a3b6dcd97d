"""appliance.log.tools: dump and verify, on sound logs and on damaged ones."""

from __future__ import annotations

import dataclasses
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from appliance.log.files import index_path, log_path
from appliance.log.index import ENTRY_BYTES
from appliance.log.recovery import MARKER_NAME, POINT_NAME, CleanMarker
from appliance.log.repair import repair
from appliance.log.tools import CORRUPT, DERIVED, INDEX, TORN, Damage, DumpedBatch, dump, verify

from ..support.log_batches import (
    RAWS,
    SETTINGS,
    boundaries,
    contents,
    filled,
    kinds,
    open_log,
    overwrite,
    place_all,
    retire,
)

# ---- dump


def test_dump_shows_every_batch_in_its_place(path: Path) -> None:
    log = filled(path, RAWS)
    shown = [
        (part.path, part.position, part.offset, bytes(part.data))
        for part in dump(path)
        if isinstance(part, DumpedBatch)
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
    assert [part[:3] for part in shown if isinstance(part, Damage)] == [(log_path(path, 0), start, stop)]
    assert len(shown) == len(RAWS)
    overwrite(log_path(path, 0), start + 16, b"\1")
    assert len(list(dump(path, start + 1))) == len(RAWS)  # found by walking, which meets the damage


# ---- verify


def test_verify_a_sound_log(path: Path) -> None:
    log = filled(path, RAWS)
    records = sum(number % 3 + 1 for number in range(20))
    report = verify(path)
    assert report.sound
    assert report == (path, len(log.bases), 0, log.end_offset, len(RAWS), records, 0, [])
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
    assert verify(path) == (path, 1, 0, 0, 0, 0, 0, [])
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
    places = [(problem.path, problem.position) for problem in report.problems if problem.kind == CORRUPT]
    assert places == [expected[0], *expected[2:]]
    assert (report.batches, report.end) == (len(RAWS) - len(damaged), ends[1])


def test_verify_tells_a_torn_tail_from_corruption(path: Path) -> None:
    log = filled(path, RAWS[:3])
    end = log.end_offset
    log.append(place_all(end, RAWS[3:4]))
    log.close(clean=False)
    os.truncate(log_path(path, 0), log.end_offset - 5)
    assert kinds(path) == [TORN] and verify(path).sound
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


def test_verify_compares_what_was_known_at_the_last_stop(path: Path) -> None:
    """As an earlier release left it, or a bug: the marker is believed at the next start, so it has to be right."""
    log = filled(path, RAWS)
    log.close()
    marker = CleanMarker.load(path)
    assert marker is not None
    wrong = marker.state._replace(timestamp=marker.state.timestamp + 5)
    dataclasses.replace(marker, state=wrong).store(path)
    (problem,) = verify(path).problems
    assert (problem.kind, problem.path) == (DERIVED, path / MARKER_NAME) and "timestamp=" in problem.reason
    repair(path)
    assert verify(path).problems == [] and not (path / MARKER_NAME).exists()
    log = open_log(path)
    assert log.derived.state.timestamp == marker.state.timestamp


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bases": (0,)}, "the segments are"),
        ({"start": 1}, "start, high watermark"),
        ({"high_watermark": 1}, "start, high watermark"),
        ({"flushed": 7}, "flushed offset"),
        ({"records": 1}, "the state is"),
        ({"timestamp": 1}, "the state is"),
        ({"end": 1}, "the state is"),
        ({"last_entry": 0}, "the state is"),
    ],
    ids=lambda value: str(value),
)
def test_verify_names_what_a_writer_knows_otherwise(path: Path, change: dict[str, Any], says: str) -> None:
    log = filled(path, RAWS)
    derived = log.derived
    assert verify(path, derived, SETTINGS.index_interval_bytes).problems == []
    of_state = {name: value for name, value in change.items() if name in derived.state._fields}
    others = {name: value for name, value in change.items() if name not in of_state}
    wrong = derived._replace(state=derived.state._replace(**of_state), **others)
    problems = verify(path, wrong).problems
    assert {problem.kind for problem in problems} == {DERIVED}
    assert any(problem.reason.startswith(says) or says in problem.reason for problem in problems)


def test_verify_misses_index_entries_when_it_knows_their_distance(path: Path) -> None:
    log = filled(path, RAWS)
    file = index_path(path, 0)
    content = file.read_bytes()
    file.write_bytes(content[:ENTRY_BYTES] + content[2 * ENTRY_BYTES :])
    assert verify(path, log.derived).problems == []
    (problem,) = verify(path, log.derived, SETTINGS.index_interval_bytes).problems
    assert (problem.kind, problem.position) == (INDEX, ENTRY_BYTES)
