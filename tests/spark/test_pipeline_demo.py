"""The demo's end: its lines as tables, balanced, and nothing else stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset

LINES = 1500


def test_the_demo_ends_with_tables(tmp_path: Path) -> None:
    room = tmp_path / "tmp"
    room.mkdir()
    log = tmp_path / "a.log"
    lines = [f"Nov 20 10:{number // 60 % 60:02d}:{number % 60:02d} web-1 sshd[{number}]: hi" for number in range(LINES)]
    log.write_text("\n".join([*lines[:-1], "no line of any program"]) + "\n")
    words = [sys.executable, "-m", "appliance", "demo", str(log), "--lines", str(LINES), "--json"]
    done = subprocess.run(
        words, env=os.environ | {"TMPDIR": str(room)}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["pipeline"]
    assert (found["parsed"], sum(found["dead"].values())) == (LINES - 1, 1)
    assert (found["lost"], found["doubled"]) == (0, 0)
    assert found["talkers"] == {"sshd": LINES - 1}
    assert pyarrow.dataset.dataset(found["events"], format="parquet").count_rows() == LINES - 1
    assert Path(found["page"]).exists()
    assert [path.name for path in room.iterdir()] == [f"appliance-tables-{os.getuid()}"]
