"""Files of which the kernel has nothing, or some, in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from appliance import libc
from appliance.log.page_cache import LogFile

from .server import wait_for


def drop(paths: Iterable[Path]) -> None:
    """Let the kernel forget what it has of files.  Skips the test where it does not, as in a file system in memory."""
    for path in paths:
        file = LogFile(path)
        file.do_not_wait()
        os.fsync(file.fd)
        try:
            wait_for(lambda file=file: _forgets(file), "the kernel forgets", 3)  # a peer may not have acknowledged all
        except AssertionError:
            pytest.skip(f"the kernel does not forget {path}")


def _forgets(file: LogFile) -> bool:
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return libc.pages_counted(file.fd, 0, max(os.fstat(file.fd).st_size, 1)) <= 0


def read_bytes(pid: int, thread: int) -> int:
    """How many bytes the disk had to read for a thread of a process."""
    rows = Path(f"/proc/{pid}/task/{thread}/io").read_text().splitlines()
    return int(next(row.split()[1] for row in rows if row.startswith("read_bytes")))
