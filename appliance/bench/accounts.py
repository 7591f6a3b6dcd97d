"""Measures CPU time and memory of processes, from /proc, and kills them with all their descendants."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process, its threads and the children that it has reaped, in s; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or while it was read
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS_PER_SECOND


def tree(pid: int) -> list[int]:
    """The pids of a process and of all its descendants."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
    children: list[int] = []
    for task in tasks:
        # A thread that ends meanwhile says nothing of the others: a JVM always has one that does.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, (task / "children").read_text().split())
    return [pid, *(descendant for child in children for descendant in tree(child))]


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all its descendants; returns when all of them have ended."""
    handles = []
    for descendant in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(descendant))
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    for handle in handles:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        ended.poll()
        os.close(handle)


def pss_bytes(pid: int) -> int:
    """Proportional set size: memory with each page divided by the number of processes that share it."""
    return _smaps_bytes(pid, "Pss:")


def private_bytes(pid: int) -> int:
    """Memory that no other process has."""
    return _smaps_bytes(pid, "Private_Clean:") + _smaps_bytes(pid, "Private_Dirty:")


def _smaps_bytes(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
