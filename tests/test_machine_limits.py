"""appliance.machine_limits: which limit an error is about, and what it is at the moment."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from appliance.errors import DiskFull, OutOfResources, StorageFault, disk_fault
from appliance.machine_limits import (
    ADVICE,
    BY_ERRNO,
    DESCRIPTORS,
    DISK,
    MEMORY,
    OPEN_FILES,
    PROCESSES,
    SHARED_MEMORY,
    limit_of,
    measure,
)


def error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([path] if path else []))


@pytest.mark.parametrize(
    ("cause", "limit"),
    [
        (error(errno.EMFILE), DESCRIPTORS),
        (error(errno.ENFILE), OPEN_FILES),
        (error(errno.EAGAIN), PROCESSES),
        (error(errno.ENOMEM), MEMORY),
        (MemoryError(), MEMORY),
        (error(errno.ENOSPC, "/data/x"), DISK),
        (error(errno.ENOSPC, "/dev/shm"), SHARED_MEMORY),
        (error(errno.ENOSPC), ""),  # the kernel's word for inotify watches, among others
        (error(errno.EIO, "/data/x"), ""),
        (StorageFault("rotten"), ""),
    ],
    ids=str,
)
def test_an_error_is_about_its_limit_also_as_a_cause(cause: BaseException, limit: str) -> None:
    assert limit_of(cause) == limit
    outer = OutOfResources("one partition is offline")
    outer.__cause__ = cause
    assert limit_of(outer) == limit


def test_a_disk_without_room_is_the_limit_behind_the_fault(tmp_path: Path) -> None:
    cause = error(errno.ENOSPC)  # of a write, which names no file
    with pytest.raises(DiskFull) as caught:
        raise disk_fault(cause, tmp_path) from cause
    assert limit_of(caught.value) == DISK


def test_every_limit_can_be_looked_at_and_has_advice(tmp_path: Path) -> None:
    for limit in {*BY_ERRNO.values(), SHARED_MEMORY}:
        value, in_use = measure(limit, tmp_path)
        assert (value is None or value > 0) and (in_use is None or in_use >= 0), limit
        assert ADVICE[limit]


def test_descriptors_are_those_of_this_process(tmp_path: Path) -> None:
    value, in_use = measure(DESCRIPTORS, tmp_path)
    assert value == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert in_use is not None
    with (tmp_path / "x").open("w"):
        assert measure(DESCRIPTORS, tmp_path).in_use == in_use + 1


def test_what_cannot_be_looked_at_is_not_known(tmp_path: Path) -> None:
    assert measure(DISK, tmp_path / "gone") == (None, None)
