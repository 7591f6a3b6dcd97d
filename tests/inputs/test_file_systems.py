"""Files whose file system, clock, directory or link changes while an input reads them: each line once, and no gap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .file_system_cases import CASES
from .files_rig import Rig


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]] | None]:
    """What each case has lost, doubled and told, from one process with mounts of its own."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root that may make mount namespaces")
    base = tmp_path_factory.mktemp("mounts")
    words = ["unshare", "-m", sys.executable, "-m", "tests.inputs.file_system_cases", str(base)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    outcome: dict[str, list[list[str]] | None] = json.loads(ended.stdout)
    return outcome


@pytest.mark.parametrize("case", CASES)
def test_mounts_neither_lose_nor_double_lines(results: dict[str, list[list[str]] | None], case: str) -> None:
    if results[case] is None:
        pytest.skip("this file system cannot be part of an overlay")
    assert results[case] == [[], [], []]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, "*/app.log")
    made.path("one").mkdir()
    made.write("one/app.log", 3)
    made.look()
    yield made
    made.close()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_directory_that_is_renamed_with_its_files(rig: Rig, is_stopped: bool) -> None:
    if is_stopped:
        rig.stop()
    rig.path("one").rename(rig.path("two"))
    rig.write("two/app.log", 3)
    rig.path("one").mkdir()
    rig.write("one/app.log", 2)
    rig.settle()
    rig.write("two/app.log", 2)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_link_that_leads_to_another_file_and_back(rig: Rig, is_stopped: bool) -> None:
    """What the first one had when the link was moved is read; it goes on where it was when that comes back."""
    for day in ("monday", "tuesday"):
        rig.write(f"{day}.txt", 2)
    link = rig.path("two")
    link.mkdir()
    link /= "app.log"
    link.symlink_to(rig.path("monday.txt"))
    rig.look(20_000)
    for day in ("tuesday", "monday"):
        if is_stopped:
            rig.stop()
        else:
            rig.write("monday.txt", 1)
        link.unlink()
        link.symlink_to(rig.path(f"{day}.txt"))
        rig.settle()
    rig.write("monday.txt", 1)
    rig.settle()
    assert (rig.lost(), rig.doubled()) == ([], [])


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_clock_that_is_put_back(rig: Rig, is_stopped: bool) -> None:
    """By an hour: what rotation makes then is older than what was looked for last."""
    rig.put_clock_back(3_600_000)
    rig.write("one/app.log", 2)
    if is_stopped:
        rig.stop()
    rig.path("one/app.log").rename(rig.path("one/app.log.1"))
    rig.write("one/app.log", 2)
    rig.look(10)
    rig.write("one/app.log.1", 1)
    rig.settle()
    rig.path("one/app.log.1").rename(rig.path("one/app.log.2"))
    rig.write("one/app.log", 2)
    rig.path("one/app.log").rename(rig.path("one/app.log.1"))
    rig.write("one/app.log", 2)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
