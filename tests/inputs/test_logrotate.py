"""The real logrotate, with the options that people set, while the input is killed: every line once, or in a gap."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from ..support.command_line import succeeding
from ..support.long import LONG
from ..support.server import wait_for
from .test_files_process import Program, messages_of, rows_of, server_of, strike

OPTIONS = {
    "compress": ["compress"],
    "delaycompress": ["compress", "delaycompress"],
    "olddir": ["compress", "olddir old"],
    "dateext": ["compress", "dateext", "dateformat -%Y%m%d-%s"],
    "copytruncate": ["compress", "copytruncate"],
    "xz": ["compress", "compresscmd /usr/bin/xz", "compressext .xz"],
    "zstd": ["compress", "compresscmd /usr/bin/zstd", "compressoptions --rm", "compressext .zst"],
    "bzip2": ["compress", "compresscmd /usr/bin/bzip2", "compressext .bz2"],
}
ROTATIONS = 200 if LONG else 5


def logrotate(base: Path, log: Path, options: list[str]) -> None:
    config = base / "logrotate.conf"
    text = "\n".join(["rotate 1000", "missingok", "su root root", *options])
    config.write_text(f"{log} {{\n{text}\n}}\n")
    config.chmod(0o644)
    program = shutil.which("logrotate") or "/usr/sbin/logrotate"
    subprocess.run([program, "--force", "--state", str(base / "state"), str(config)], check=True, capture_output=True)


@pytest.mark.skipif(not shutil.which("logrotate", path="/usr/sbin:/usr/bin"), reason="needs logrotate")
@pytest.mark.parametrize("kind", OPTIONS)
def test_rotations_by_logrotate_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    """Each line is found by its file and number, too, where the topic has it."""
    program = Program(tmp_path / "logs", seed=7)
    (tmp_path / "logs/old").mkdir()
    tmp_path.chmod(0o755)
    with server_of(tmp_path, include=f"{tmp_path}/logs/app.log,{tmp_path}/logs/old/app.log*") as server:
        program.write(1)
        wait_for(lambda: len(messages_of(server, "disk")) == 1, "the first line")
        for turn in range(ROTATIONS):
            program.write(program.rng.randrange(1, 200))
            program.generations.append([])
            is_stopped = turn % 2 == 0
            if is_stopped:
                server.stop()
                program.write(50)
            if kind == "dateext":  # names of one second are the same
                second = int(time.time())
                wait_for(lambda second=second: time.time() >= second + 1, "the next second")
            logrotate(tmp_path, program.path, OPTIONS[kind])
            if is_stopped:
                server.start()
            strike(server, 1)
        program.write(1)
        wait_for(lambda: len(messages_of(server, "disk")) >= len(program.lines), "all lines", 120)
        messages = messages_of(server, "disk")
        counts = Counter(value for _, value, _ in messages)
        assert [line for line in program.lines if counts[line] != 1] == []
        server.stop()
        server.start()
        rows = rows_of(server)
        assert sum(row.lines for row in rows) == len(program.lines)
        assert {gap.stop for row in rows for gap in row.gaps} <= {None}, "at most what is not known"
        values = {offset: value for offset, value, _ in messages}
        at = ("--data", str(server.data_dir), "--json")
        for name in {row.source for row in rows}:
            for place in succeeding("inputs", "find", name, "--line", "1", *at).json:
                said = succeeding("consume", place["topic"], "--from", str(place["offset"]), "--max", "1", *at[:2])
                assert said.out.encode().rstrip(b"\n") == values[place["offset"]]
