"""Measures what a process uses, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def memory_bytes(pid: int, kind: str = "Private_Dirty") -> int:
    """Memory of a kind, by default what the process holds for itself alone; the kinds are those of smaps."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {kind} of {pid}")


def cpu_s(pid: int) -> float:
    """User and system time of a process with its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
