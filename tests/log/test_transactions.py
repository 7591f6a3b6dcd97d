"""appliance.log.transactions: the index of aborted transactions is on the disk before anybody relies on it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from appliance.durable_files import SYSTEM
from appliance.log.transactions import Aborted, AbortedIndex, aborted_path, read_aborted

ENTRY = Aborted(producer_id=7, first=0, last=177, stable=178)


def test_what_a_dead_writer_wrote_is_flushed_with_the_rest(tmp_path: Path) -> None:
    """It may have died between its write and a flush: a snapshot that covers the marker must not be without it."""
    flushed: list[str] = []
    system = replace(SYSTEM, fdatasync=lambda fd: flushed.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    AbortedIndex(tmp_path).append(0, ENTRY)
    again = AbortedIndex(tmp_path, system)
    again.restore([0], 178, 0, [ENTRY])
    again.sync()
    assert flushed == [str(aborted_path(tmp_path, 0))] and read_aborted(aborted_path(tmp_path, 0)) == [ENTRY]


def test_a_flush_in_another_thread_just_before_the_write_is_not_the_last(tmp_path: Path) -> None:
    flushed: list[int] = []

    def pwrite(fd: int, data: bytes | memoryview, position: int) -> int:
        index.sync()
        return os.pwrite(fd, data, position)

    index = AbortedIndex(tmp_path, replace(SYSTEM, pwrite=pwrite, fdatasync=flushed.append))
    index.append(0, ENTRY)
    before = len(flushed)
    index.sync()
    assert len(flushed) == before + 1
