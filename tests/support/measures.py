"""Measures what a process uses, from /proc."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import appliance

FRAMES = 8
"""For ``tracemalloc.start``: a dict's rows are allocated by msgspec and the standard library, called by ours."""


def memory_bytes(pid: int, kind: str = "Private_Dirty") -> int:
    """Memory of a kind, by default what the process holds for itself alone; the kinds are those of smaps."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {kind} of {pid}")


def kept_by_appliance() -> int:
    """Bytes that our code has allocated and not freed, and not what other threads of the suite have meanwhile."""
    ours = tracemalloc.Filter(True, f"{Path(appliance.__file__).parent}/*", all_frames=True)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)


def cpu_s(pid: int) -> float:
    """User and system time of a process with its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Activity(NamedTuple):
    """What a process has done since its start: how often it has waited, and its processor time, of all its threads."""

    wake_ups: int
    cpu_ns: int


def activity(pid: int) -> Activity:
    """A process that turns without waiting shows in its processor time only; see :func:`system_calls`."""
    wake_ups = cpu_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            lines = (task / "status").read_text().splitlines()
            wake_ups += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
            cpu_ns += int((task / "schedstat").read_text().split()[0])
    return Activity(wake_ups, cpu_ns)


def system_calls(pids: Iterable[int], seconds: float) -> Counter[int]:
    """How many system calls each process makes in a time, by pid; needs strace."""
    thread_of = {int(task.name): pid for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()}
    with tempfile.NamedTemporaryFile() as log:
        attached = [word for pid in thread_of for word in ("-p", str(pid))]
        command = [
            "timeout",
            "--preserve-status",
            "-s",
            "INT",
            str(seconds),
            "strace",
            "-qq",
            "-o",
            log.name,
            *attached,
        ]
        subprocess.run(command, check=False, capture_output=True)
        lines = [line.split(maxsplit=1) for line in log.read().decode(errors="replace").splitlines()]
    return Counter(thread_of[int(thread)] for thread, call in lines if not call.startswith("<... "))
