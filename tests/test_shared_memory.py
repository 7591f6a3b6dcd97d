"""appliance.shared.memory: what a killed instance leaves in /dev/shm is removed by the next start of any."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from appliance.shared import memory

from .server import Server

OWNING = """
import sys
from appliance.shared import memory
fd = memory.own(sys.argv[1])
for what in ("arena0", "table", "table"):
    memory.create(sys.argv[1], what, 4096)
print("made", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def instance() -> Iterator[str]:
    name = secrets.token_hex(6)
    yield name
    memory.unlink_all(name)


def names(instance: str) -> set[str]:
    prefix = memory.name_of(instance, "")[1:]
    return {f"/{path.name}" for path in memory.SHM_DIR.iterdir() if path.name.startswith(prefix)}


def test_what_nobody_owns_any_more_is_swept_and_nothing_else(instance: str) -> None:
    """Method: a process that owns an instance is killed; a living one, and objects without an owner, stand beside."""
    beside = secrets.token_hex(6)
    lone, _ = memory.create(beside, "table", 4096)
    command = [sys.executable, "-c", OWNING, instance]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "made\n"
        made = names(instance)
        assert len(made) == 4 and not made & set(memory.sweep())
        assert names(instance) == made
        process.kill()
        process.wait()
    assert made <= set(memory.sweep())
    assert not names(instance)
    assert names(beside) == {lone}, "an earlier release made no owners: its instances are left alone"
    memory.unlink(lone)


def test_an_instance_that_was_started_again_is_owned_by_the_new_process(instance: str) -> None:
    stale = memory.own(instance)
    os.close(stale)
    fd = memory.own(instance)
    table, _ = memory.create(instance, "table", 4096)
    assert not names(instance) & set(memory.sweep()) and table in names(instance)
    os.close(fd)
    assert table in memory.sweep()


def test_an_owner_that_is_swept_before_it_is_locked_is_made_again(
    instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start looks just between the creation of an owner and its lock."""
    locked = fcntl.flock
    swept: list[str] = []

    def flock(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not swept:
            swept.extend(memory.sweep())
        locked(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    fd = memory.own(instance)
    assert len(swept) >= 1 and len(names(instance)) == 1
    assert not names(instance) & set(memory.sweep())
    os.close(fd)


def test_an_appliance_sweeps_what_one_left_whose_directory_is_another_now(
    make_appliance: Callable[..., Server],
) -> None:
    """Goal: the documented restore of a backup leaves no memory taken until the next boot."""
    server = make_appliance()
    left = set(server.leftovers())
    assert len(left) > 4
    server.kill_supervisor()
    assert set(server.leftovers()) == left
    backup = server.data_dir.with_name("backup")
    shutil.copytree(server.data_dir, backup, ignore=shutil.ignore_patterns("*.sock"))
    shutil.rmtree(server.data_dir)
    backup.rename(server.data_dir)
    server.start()
    assert not left & {path.name for path in memory.SHM_DIR.iterdir()}
    assert server.stop() == 0 and server.leftovers() == []
