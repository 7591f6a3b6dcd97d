"""The demo's end: its lines as tables, balanced, and nothing else stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from appliance.cli.demo.pipeline_step import AUDIT

LINES = 1500


@pytest.mark.long
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
    rows = DeltaTable(found["events"]).to_pyarrow_table(columns=["topic", "rejected"]).to_pylist()
    rejected = [row["rejected"] for row in rows if row["topic"] != AUDIT]
    assert (len(rejected), rejected.count(None)) == (LINES, LINES - 1), "every line is a row"
    assert Path(found["page"]).exists()
    assert [path.name for path in room.iterdir()] == [f"appliance-tables-{os.getuid()}"]
