"""Prepares a forked child: sets its name, ignores signals, and lets it end with its supervisor.

A fork has the command line of its parent, so ``ps`` and ``systemctl status`` would show a hundred times the same.  The
kernel reads it from the memory of the process: what stands there can be written over.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from .. import libc

GARBAGE_ALLOCATIONS: Final = 50_000
"""Requests make and drop many small objects but no cycles: a collection every 700 allocations would find nothing."""

SLICE_NS: Final = 100_000
"""The shortest time slice that Linux gives.  Short slices do not give a process more time, but give it sooner: when it
wakes up, it interrupts processes with longer slices.  On a busy host replies wait for that."""


def set_name(name: str) -> None:
    """Set the name of this process, of which ``top`` shows 15 bytes, and its command line to it and its directory."""
    fd = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, name.encode()[:15])
    finally:
        os.close(fd)
    start, size = _arguments()
    if size:
        where = _data_dir()
        title = f"appliance: {name}".encode()[: max(0, size - 1 - len(where))] + where
        libc.write_memory(start, title[: size - 1].ljust(size, b"\0"))


@functools.cache
def _arguments() -> tuple[int, int]:
    """Where the kernel reads the arguments of this process and of its forks, and how many bytes; (0, 0): unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), behind pid and name
        shown = Path("/proc/self/cmdline").read_bytes()
        if start and len(shown) == end - start and libc.read_memory(start, end - start) == shown:
            return start, end - start
    return 0, 0


@functools.cache
def _data_dir() -> bytes:
    """``--data`` and what the command line has behind it: who looks for the processes of a directory finds it there."""
    words = sys.argv
    for at, word in enumerate(words):
        if word == "--data" and at + 1 < len(words):
            return b"\0--data\0" + os.fsencode(words[at + 1])
        if word.startswith("--data="):
            return b"\0--data\0" + os.fsencode(word.removeprefix("--data="))
    return b""


def become_child(name: str, supervisor_pid: int) -> None:
    """Make this process a child that cannot outlive its supervisor: the kernel kills it then.

    The child ignores signals from the terminal or the service manager: the supervisor stops its children in order, over
    their control channels.

    Args:
        name: see :func:`set_name`.
        supervisor_pid: the child exits at once when that process is already gone.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN if number != signal.SIGCHLD else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    gc.set_threshold(GARBAGE_ALLOCATIONS)
    set_name(name)
    libc.end_with_parent()
    libc.set_time_slice(SLICE_NS)
    if os.getppid() != supervisor_pid:
        os._exit(0)


def lower_priority_of_thread(niceness: int) -> None:
    """Let this thread have what others leave of a busy core; never a higher priority than the process has."""
    thread = threading.get_native_id()
    with contextlib.suppress(PermissionError):  # a container may forbid it
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))


def set_log_level(level: str) -> None:
    """Write events from this level on; ``level`` is a value of ``log.level``."""
    logging.getLogger().setLevel(level.upper())
