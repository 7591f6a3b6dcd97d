"""appliance.cli.demo_room: nothing stays behind, not even of a demo that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli import demo_room
from appliance.cli.demo_room import Room, clear_abandoned, processes_in

KILLED_DEMO = """
import os, signal, sys
from appliance.cli.demo_room import Room
from appliance.shared import memory
room = Room()
child = room.spawn("tests.idle", f"{room.data}/", log="child", death_signal=0)
while not room.said("child"):
    pass
name, _ = memory.create(memory.instance_of(room.data), "x", 4096)
print(room.path, name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(demo_room.tempfile, "tempdir", None)
    monkeypatch.setattr(demo_room, "SETTLING_S", 0)
    yield tmp_path
    demo_room.tempfile.tempdir = None


def test_closing_stops_children_and_removes_everything(own_tmp: Path) -> None:
    room = Room()
    child = room.spawn("tests.idle", f"{room.data}/", log="child")
    while not room.said("child"):
        assert child.poll() is None, room.complaint("child")
    assert list(processes_in(room.path)) == [child.pid]
    assert room.close() == []
    assert child.returncode == -signal.SIGTERM
    assert list(own_tmp.iterdir()) == []


def test_a_running_demo_is_left_alone() -> None:
    room = Room()
    assert clear_abandoned() == []
    assert room.path.is_dir()
    room.close()


def test_leftovers_of_a_killed_demo_are_removed_at_the_next_run(own_tmp: Path) -> None:
    """Goal: processes, shared memory and files go.  Method: SIGKILL a demo whose child ignores its death."""
    done = subprocess.run([sys.executable, "-c", KILLED_DEMO], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    path, name = done.stdout.split()
    room = Path(path)
    (pid,) = processes_in(room)
    assert Path(f"/dev/shm{name}").exists()
    assert clear_abandoned() == [str(room), f"process {pid}", f"/dev/shm{name}"]
    assert not room.exists() and not Path(f"/dev/shm{name}").exists()
    assert list(processes_in(room)) == []
