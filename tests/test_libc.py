"""appliance.libc: what a process frees goes back to the system, and which file is which."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.clock import file_clock_ns
from appliance.libc import file_numbers

PROGRAM = """
from appliance.libc import give_back_memory
from tests.support.measures import memory_bytes
import os

blocks = [bytes(600) for _ in range(200_000)]
kept = blocks[::500]
del blocks
before = memory_bytes(os.getpid())
give_back_memory()
print(before, memory_bytes(os.getpid()))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back what they like")
def test_freed_memory_is_given_back_although_something_in_between_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 100 << 20 and after < before // 3


def test_files_are_told_apart_by_their_birth(tmp_path: Path) -> None:
    before = file_clock_ns()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    with (tmp_path / "file").open() as file:
        device, inode, born_ns = file_numbers(file.fileno())
    status = (tmp_path / "file").stat()
    assert (device, inode) == (status.st_dev, status.st_ino)
    (tmp_path / "later").touch()
    assert before * (born_ns > 0) <= born_ns <= file_numbers(path=str(tmp_path / "later"))[2]
    os.utime(tmp_path / "file", ns=(0, 0))
    assert file_numbers(path=str(tmp_path / "file")) == (device, inode, born_ns)
    assert file_numbers(path=str(tmp_path / "link"))[1] == (tmp_path / "link").lstat().st_ino != inode
    with pytest.raises(FileNotFoundError):
        file_numbers(path=str(tmp_path / "none"))
