"""What inputs take in: lines a second, and processor time and memory of their process, with acks=all.

    python perf/inputs.py [--lines 1000000] [--files 1000] [--rounds 3] [--smoke]

Lines of 200 bytes are there before the appliance starts, and are counted until all are flushed.  The rate by processor
time is what a core of its own would give; the other one has writer and workers on the same cores.  At rest: what an
input of so many files uses of a core while nothing is written.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from appliance.bench.local_appliance import LocalAppliance

LINE_BYTES = 200
REST_S = 20
TICKS = 100  # of /proc/PID/stat, a second


class Figures(NamedTuple):
    """``rate``: lines a second on the clock; ``core_rate``: by processor time of the input."""

    rate: float
    core_rate: float
    memory_mb: float


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def write_lines(path: Path, count: int) -> None:
    text = b"x" * (LINE_BYTES - 10)
    with path.open("wb") as file:
        for start in range(0, count, 1000):
            file.writelines(b"%08d %b\n" % (start + at, text) for at in range(min(1000, count - start)))


def pid_of_input(state: dict[str, Any]) -> int:
    return next((row["pid"] for row in state["processes"] if row["role"] == "input"), 0)


def read_files(lines: int) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        logs = Path(name) / "logs"
        logs.mkdir()
        write_lines(logs / "a.log", lines)
        given = {"inputs.disk.type": "files", "inputs.disk.include": f"{logs}/*.log", "inputs.disk.topic": "disk"}
        began: tuple[float, int] | None = None
        with LocalAppliance(Path(name) / "data", **given) as appliance:
            while True:
                state = appliance.state
                done = state["inputs"]["disk"]["lines"]
                if done and began is None:
                    began = time.monotonic(), done
                if done >= lines:
                    break
                time.sleep(0.02)
            assert began is not None
            pid = pid_of_input(state)
            rate = (lines - began[1]) / max(0.001, time.monotonic() - began[0])
            return Figures(rate, lines / processor_s(pid), memory_mb(pid))


def rest(files: int, seconds: float) -> float:
    """Percent of a core."""
    with tempfile.TemporaryDirectory() as name:
        logs = Path(name) / "logs"
        logs.mkdir()
        for number in range(files):
            (logs / f"{number}.log").write_bytes(b"a line\n")
        given = {"inputs.disk.type": "files", "inputs.disk.include": f"{logs}/*.log", "inputs.disk.topic": "disk"}
        with LocalAppliance(Path(name) / "data", **given) as appliance:
            while appliance.state["inputs"]["disk"]["lines"] < files:
                time.sleep(0.1)
            time.sleep(2)  # the last commits
            pid = pid_of_input(appliance.state)
            before = processor_s(pid)
            time.sleep(seconds)
            return 100 * (processor_s(pid) - before) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="a small size, to see that it works")
    options = parser.parse_args()
    lines, files, rounds, rest_s = options.lines, options.files, options.rounds, float(REST_S)
    if options.smoke:
        lines, files, rounds, rest_s = 20_000, 20, 1, 1.0
    figures = [read_files(lines) for _ in range(rounds)]
    for name in Figures._fields:
        values = [getattr(one, name) for one in figures]
        print(f"files {name:10} median {statistics.median(values):,.0f}  ({min(values):,.0f} to {max(values):,.0f})")
    print(f"files at rest    {files:,} files: {rest(files, rest_s):.2f} % of a core")


if __name__ == "__main__":
    main()
