"""Prepares a forked child: sets its name, ignores signals, and lets it end with its supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import platform
import signal
import threading
from typing import ClassVar, Final

PR_SET_PDEATHSIG: Final = 1
GARBAGE_ALLOCATIONS: Final = 50_000
"""Requests make and drop many small objects but no cycles: a collection every 700 allocations would find nothing."""

SLICE_NS: Final = 100_000
"""The shortest time slice that Linux gives.  Short slices do not give a process more time, but give it sooner: when it
wakes up, it interrupts processes with longer slices.  On a busy host replies wait for that."""
SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""The number of sched_setattr(2), for which the C library has no function."""

_libc = ctypes.CDLL(None, use_errno=True)


class _SchedAttr(ctypes.Structure):
    """``struct sched_attr``; for SCHED_OTHER (0) the run time is the slice, from Linux 6.12 on."""

    _fields_: ClassVar = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    ]


def set_name(name: str) -> None:
    """Set the name that ps shows, at most 15 bytes."""
    fd = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, name.encode()[:15])
    finally:
        os.close(fd)


def become_child(name: str, supervisor_pid: int) -> None:
    """Make this process a child that cannot outlive its supervisor: the kernel kills it then.

    The child ignores signals from the terminal or the service manager: the supervisor stops its children in order, over
    their control channels.

    Args:
        name: shown by ps, at most 15 bytes.
        supervisor_pid: the child exits at once when that process is already gone.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN if number != signal.SIGCHLD else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    gc.set_threshold(GARBAGE_ALLOCATIONS)
    set_name(name)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _take_short_turns()
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


def give_back_memory() -> None:
    """Return the unused pages of the heap to the system; only glibc can do it.

    Without it one burst of large requests enlarges the heap for good: free memory between two used blocks is kept.
    """
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def _take_short_turns() -> None:
    """Set the time slice to SLICE_NS; threads started later inherit it.  Kernels before Linux 6.12 ignore it."""
    number = SCHED_SETATTR.get(platform.machine())
    if number is not None and os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        wanted = _SchedAttr(size=ctypes.sizeof(_SchedAttr), nice=nice, runtime_ns=SLICE_NS)
        _libc.syscall(number, 0, ctypes.byref(wanted), 0)
