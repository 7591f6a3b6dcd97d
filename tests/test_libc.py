"""appliance.libc: what a process frees goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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
