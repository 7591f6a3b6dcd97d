"""The real logrotate, with the options that people set, while a program writes and all is killed: every line once.

Rotations come while the appliance is stopped in order, after the input was killed, and after all was killed at once.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from appliance.bench.local_appliance import LocalAppliance

from ..support.command_line import succeeding
from ..support.long import LONG
from ..support.server import Server, wait_for
from .test_files_process import Program, flushed, messages_of, rows_of, server_of

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
UNLIKE = ("olddir", "xz", "zstd", "bzip2")
LATER = pytest.mark.long
"""The engine's own tests have these names and kinds of compression, too."""
ROTATIONS = 200 if LONG else 4


def logrotate(base: Path, log: Path, options: list[str]) -> None:
    config = base / "logrotate.conf"
    text = "\n".join(["rotate 1000", "missingok", "su root root", *options])
    config.write_text(f"{log} {{\n{text}\n}}\n")
    config.chmod(0o644)
    program = shutil.which("logrotate") or "/usr/sbin/logrotate"
    subprocess.run([program, "--force", "--state", str(base / "state"), str(config)], check=True, capture_output=True)


@contextmanager
def load(program: Program, lock: threading.Lock) -> Iterator[None]:
    """The program writes all the time, but not while ``lock`` is held."""
    stopping = threading.Event()

    def write() -> None:
        while not stopping.wait(0.02):
            with lock:
                program.write(program.rng.randrange(1, 10))

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        stopping.set()
        writing.join()


def strike(server: Server, turn: int) -> bool:
    """Whether the appliance is away now."""
    if turn % 4 == 0:
        server.stop()
    elif turn % 4 == 1:
        server.kill(server.pid_of("input"))
    elif turn % 4 == 2:
        LocalAppliance.kill(server)
    return turn % 2 == 0


@pytest.mark.skipif(not shutil.which("logrotate", path="/usr/sbin:/usr/bin"), reason="needs logrotate")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=LATER if kind in UNLIKE else ()) for kind in OPTIONS])
def test_rotations_by_logrotate_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    """Each line is found by its file and number, too, where the topic has it."""
    program = Program(tmp_path / "logs", seed=7)
    (tmp_path / "logs/old").mkdir()
    tmp_path.chmod(0o755)
    with server_of(tmp_path, include=f"{tmp_path}/logs/app.log,{tmp_path}/logs/old/app.log*") as server:
        program.write(1)
        wait_for(lambda: len(messages_of(server, "disk")) == 1, "the first line")
        lock = threading.Lock()
        with load(program, lock):
            for turn in range(ROTATIONS):
                is_away = strike(server, turn)
                if kind == "dateext":  # names of one second are the same
                    second = int(time.time())
                    wait_for(lambda second=second: time.time() >= second + 1, "the next second")
                # A program that goes on in a file that is being compressed, or truncated, loses what it writes itself.
                with lock if kind != "delaycompress" else nullcontext():
                    logrotate(tmp_path, program.path, OPTIONS[kind])
                if is_away:
                    server.start()
                before = flushed(server)
                wait_for(lambda before=before: flushed(server) > before, "lines to come")
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
