"""appliance.shared.memory: what is attached is shared, takes no descriptor, and stays when its name is gone.

What a killed instance leaves in /dev/shm is removed by the next start of any.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from appliance.shared import memory

from ..support.server import Server

OWNING = """
import sys
from appliance.shared import memory
fd = memory.own(sys.argv[1])
for what in ("arena0", "table", "table"):
    memory.create(sys.argv[1], what, 4096)
print("made", flush=True)
sys.stdin.read()
"""
SIZE = 3 * mmap.PAGESIZE
COUNT = 100


@pytest.fixture
def name() -> Iterator[str]:
    made, mapped = memory.create("memorytest", "table", SIZE)
    mapped.close()
    yield made
    memory.unlink(made)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("writable", [True, False])
def test_what_is_attached_takes_no_descriptor(name: str, writable: bool) -> None:
    before = descriptors()
    attached = [memory.attach(name, writable=writable) for _ in range(COUNT)]
    attached += [memory.attach_elsewhere(name, os.getpid())]
    assert descriptors() == before
    assert {len(one) for one in attached} == {SIZE}
    for one in attached:
        one.close()
    assert descriptors() == before


def test_what_is_stored_is_seen_by_all_also_in_another_process(name: str) -> None:
    storing, reading = memory.attach(name), memory.attach(name, writable=False)
    with memoryview(storing) as bytes_of_it, bytes_of_it.cast("Q") as cells, memoryview(reading) as seen:
        cells[1] = 7
        assert seen[8] == 7
        if (pid := os.fork()) == 0:
            cells[2] = 9
            os._exit(0)
        os.waitpid(pid, 0)
        assert seen[16] == 9
        memory.unlink(name)
        cells[3] = 5
        assert seen[24] == 5
    with pytest.raises(FileNotFoundError):
        memory.attach(name)


def test_what_is_attached_to_read_cannot_be_stored_to(name: str) -> None:
    reading = memory.attach(name, writable=False)
    with memoryview(reading) as seen:
        assert seen.readonly
    with pytest.raises(TypeError):
        reading[0] = 1


def test_what_is_still_used_is_not_unmapped(name: str) -> None:
    attached = memory.attach(name)
    view = memoryview(attached)
    with pytest.raises(BufferError):
        attached.close()
    del attached
    view[0] = 1
    assert view[0] == 1


def test_what_cannot_be_mapped_is_an_error_and_leaves_nothing(name: str) -> None:
    if (pid := os.fork()) == 0:
        before, failed = descriptors(), False
        resource.setrlimit(resource.RLIMIT_AS, (mmap.PAGESIZE, mmap.PAGESIZE))
        try:
            memory.attach(name)
        except OSError as error:
            failed = error.errno == errno.ENOMEM
        os._exit(0 if failed and descriptors() == before else 1)
    assert os.waitpid(pid, 0)[1] == 0


# ---- what killed instances leave


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
    backup = server.data_dir.with_name("backup")
    shutil.copytree(server.data_dir, backup, ignore=shutil.ignore_patterns("*.sock"))
    shutil.rmtree(server.data_dir)
    backup.rename(server.data_dir)
    server.start()
    assert not left & {path.name for path in memory.SHM_DIR.iterdir()}
    assert server.stop() == 0 and server.leftovers() == []
