"""appliance.cli.demo.scenario, whole: the accounts are right, and nothing stays behind, also after Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.shared import memory

LINES = 3000


class RunningDemo:
    """A demo of a small file, with a directory for temporary files of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "tmp"
        self.directory.mkdir()
        log = tmp_path / "a.log"
        log.write_text("".join(f"line {number} of a log\n" for number in range(LINES // 2)))
        words = [sys.executable, "-m", "appliance", "demo", str(log), "--lines", str(LINES), "--json", "--no-pipeline"]
        self.process = subprocess.Popen(
            words,
            env=os.environ | {"TMPDIR": str(self.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def wait_until_it_says(self, start: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(start):
                break
        (data,) = self.directory.glob("*/data")
        self.prefix = memory.name_of(memory.instance_of(data), "")[1:]

    def left_behind(self) -> list[str]:
        done = subprocess.run(["pgrep", "-f", f"{self.directory}/"], capture_output=True, text=True, check=False)
        names = [path.name for path in memory.SHM_DIR.iterdir() if path.name.startswith(self.prefix)]
        return done.stdout.split() + names + [str(path) for path in self.directory.iterdir()]


def test_every_line_is_accounted_for(tmp_path: Path) -> None:
    demo = RunningDemo(tmp_path)
    demo.wait_until_it_says("topics")
    out, err = demo.process.communicate(timeout=100)
    assert demo.process.returncode == 0, err
    report = json.loads(out)
    assert (report["lines"], report["lag"], report["faults"]) == (LINES, 0, [])
    assert "2 times over" in report["remark"]
    assert all(row["checksum_in"] == row["checksum_out"] for row in report["partitions"])
    assert sum(row["messages"] for row in report["partitions"]) == LINES
    shares = {row["consumer"]: row["messages"] for row in report["consumers"]}
    assert set(shares) == {"first", "second", "successor"} and all(shares.values())
    repeats = sum(row["repeats"] for row in report["partitions"])
    assert sum(shares.values()) == LINES + repeats
    assert demo.left_behind() == []


@pytest.mark.parametrize("after", ["starting", "topics"])
def test_interrupted(tmp_path: Path, after: str) -> None:
    demo = RunningDemo(tmp_path)
    demo.wait_until_it_says(after)
    demo.process.send_signal(signal.SIGINT)
    out, err = demo.process.communicate(timeout=60)
    assert (demo.process.returncode, out) == (130, ""), err
    assert demo.left_behind() == []
