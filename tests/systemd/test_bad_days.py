"""Every bad day, and the remedy that the doctor names for it, in a booted machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..support.booted import Machine

ROOT = Path(__file__).parents[2]
BAD_DAYS = ROOT / "tests/behaviour/test_bad_day.py"
IN_ORDER = ("-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
S_MAX = int(os.environ.get("BAD_DAYS_S_MAX", "1200"))


@pytest.mark.long
@pytest.mark.timeout(S_MAX + 120)
def test_every_bad_day_in_a_booted_machine(tmp_path: Path) -> None:
    """systemd is process 1, there is no other network than the loopback, and ``/tmp`` and ``/dev/shm`` are its own."""
    with Machine(tmp_path) as machine:
        pytest_command = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", *IN_ORDER]
        done = machine.run("env", "--chdir", str(ROOT), *pytest_command, str(BAD_DAYS), check=False, seconds_max=S_MAX)
        said = done.stdout[-3000:] + done.stderr[-1000:]
        assert done.returncode == 0 and " passed" in said and " skipped" not in said, said
