"""appliance.shared.memory: what is attached is shared, takes no descriptor, and stays when its name is gone."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterator

import pytest

from appliance.shared import memory

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
