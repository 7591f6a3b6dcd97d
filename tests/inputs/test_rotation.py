"""Names that rotation gives, found among thousands."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.clock import file_clock_ns
from appliance.inputs import rotation
from appliance.inputs.rotation import Directories, LikeNames, is_like

from ..support.server import wait_for
from .files_rig import Rig

NAMES = st.lists(st.sampled_from(["app", ".log", ".", "-", "1", "20261125", ".gz", "old", "/"]), min_size=1, max_size=6)


@given(st.lists(NAMES.map("".join), max_size=12), st.data())
def test_the_names_of_an_index_are_those_that_are_alike(names: list[str], data: st.DataObject) -> None:
    index: LikeNames[int] = LikeNames()
    for at, name in enumerate(names):
        index.add(at, name)
    gone = data.draw(st.sets(st.sampled_from(range(len(names))))) if names else set()
    for at in gone:
        index.discard(at)
    for path in names:
        expected = [at for at, name in enumerate(names) if at not in gone and is_like(path, name)]
        assert index.like(path) == expected


def test_a_directory_is_as_it_is_now_however_soon_a_name_changes(tmp_path: Path) -> None:
    directories, log = Directories(), tmp_path / "app.log"
    log.touch()
    (tmp_path / "other.log").touch()
    for at in range(200):
        older = tmp_path / f"app.log.{at}"
        (tmp_path / f"app.log.{at - 1}" if at else log).rename(older)
        log.touch()
        assert {path for path, _ in directories.beside(str(log))} == {str(log), str(older)}


def test_a_settled_directory_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.log.1").touch()
    directories = Directories()
    monkeypatch.setattr(rotation, "file_clock_ns", lambda: file_clock_ns() + 10 * rotation.NAMES_SETTLE_NS)
    assert len(list(directories.beside(f"{tmp_path}/app.log.1"))) == 1
    monkeypatch.setattr(os, "listdir", None)
    assert len(list(directories.beside(f"{tmp_path}/app.log.1"))) == 1


@pytest.mark.parametrize("count", [50, 200])
def test_after_a_start_each_rotated_file_is_compared_with_few_others(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, "*.log")
    for at in range(count):
        rig.write(f"app{at}.log", 1)
    rig.settle()
    for at in range(count):
        rig.path(f"app{at}.log").rename(rig.path(f"app{at}.log.1"))
        rig.write(f"app{at}.log", 1)
    wait_for(lambda: rig.directory.stat().st_mtime_ns + rotation.NAMES_SETTLE_NS < file_clock_ns(), "a settled time")
    rig.commit()
    rig.kill()
    compared, listed = itertools.count(), itertools.count()
    monkeypatch.setattr(rotation, "is_like", lambda *names: (next(compared), is_like(*names))[1])
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (next(listed), listdir(path))[1])
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    assert next(compared) < 50 * count and next(listed) < 50
    rig.close()


def test_a_scan_that_takes_long_shows_that_the_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the supervisor ends it, again and again, and it never reads."""
    rig = Rig(tmp_path)
    cells = rig.heart._cells
    monkeypatch.setattr(rig.heart, "beat_ms", 1)

    async def run() -> None:
        running = asyncio.create_task(rig.engine.run())
        monkeypatch.setattr(rig.engine, "scan", lambda: (wait_for(lambda: cells[0] > 2, "beats"), running.cancel()))
        with suppress(asyncio.CancelledError):
            await running

    rig.run(run())
    assert cells[0] > 2
    rig.close()
