"""appliance.cli.demo.sandbox: nothing stays behind, not even of a demo that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.demo import sandbox as module
from appliance.cli.demo.sandbox import Sandbox, clear_abandoned, processes_in

KILLED_DEMO = """
import os, signal, sys
from appliance.cli.demo.sandbox import Sandbox
from appliance.shared import memory
sandbox = Sandbox()
child = sandbox.spawn("tests.support.idle", f"{sandbox.data}/", log="child", death_signal=0)
while not sandbox.output_of("child"):
    pass
name, _ = memory.create(memory.instance_of(sandbox.data), "x", 4096)
print(sandbox.path, name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", None)
    monkeypatch.setattr(module, "SETTLING_S", 0)
    yield tmp_path
    module.tempfile.tempdir = None


def test_closing_stops_children_and_removes_everything(own_tmp: Path) -> None:
    sandbox = Sandbox()
    child = sandbox.spawn("tests.support.idle", f"{sandbox.data}/", log="child")
    while not sandbox.output_of("child"):
        assert child.poll() is None, sandbox.log_end_of("child")
    assert list(processes_in(sandbox.path)) == [child.pid]
    assert sandbox.close() == []
    assert child.returncode == -signal.SIGTERM
    assert list(own_tmp.iterdir()) == []


def test_a_running_demo_is_left_alone() -> None:
    sandbox = Sandbox()
    assert clear_abandoned() == []
    assert sandbox.path.is_dir()
    sandbox.close()


def test_leftovers_of_a_killed_demo_are_removed_at_the_next_run(own_tmp: Path) -> None:
    """Goal: processes, shared memory and files go.  Method: SIGKILL a demo whose child ignores its death."""
    done = subprocess.run([sys.executable, "-c", KILLED_DEMO], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    path, name = done.stdout.split()
    directory = Path(path)
    (pid,) = processes_in(directory)
    assert Path(f"/dev/shm{name}").exists()
    assert clear_abandoned() == [str(directory), f"process {pid}", f"/dev/shm{name}"]
    assert not directory.exists() and not Path(f"/dev/shm{name}").exists()
    assert list(processes_in(directory)) == []
