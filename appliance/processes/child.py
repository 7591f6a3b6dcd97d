"""What every forked child does first: it takes its name, ignores signals, and ends with its supervisor."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import signal
from typing import ClassVar, Final

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
GARBAGE_ALLOCATIONS: Final = 50_000
"""Requests make and drop many small objects but no cycles: looking for garbage every 700 of them finds none."""

SLICE_NS: Final = 100_000
"""The shortest turn on a processor that Linux gives.  A process that asks for short turns gets no more of the time, but
gets it sooner: it interrupts one with long turns when it wakes up, which is what a reply waits for on a busy host."""
SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""The number of sched_setattr(2), for which the C library has no function."""


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


def become_child(name: str, supervisor_pid: int, death_signal: int = signal.SIGKILL) -> None:
    """Make this process a child that cannot outlive its supervisor.

    Signals from the terminal or the service manager are the supervisor's business: it stops its children in order
    over their control channels.

    Args:
        name: shown by ps, at most 15 bytes.
        supervisor_pid: exits at once when that process is already gone.
        death_signal: what the kernel sends when the supervisor dies; 0 leaves it to EOF on the control channel.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN if number != signal.SIGCHLD else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    gc.set_threshold(GARBAGE_ALLOCATIONS)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    _take_short_turns(libc)
    if os.getppid() != supervisor_pid:
        os._exit(0)


def give_back_memory() -> None:
    """Return to the system the pages that nothing in them uses any more; glibc alone can do it.

    Without it one burst of large requests shapes the heap for good: what is freed between two blocks that stay is kept.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _take_short_turns(libc: ctypes.CDLL) -> None:
    """Ask for SLICE_NS; threads started later inherit it.  A kernel that does not know it leaves all as it is."""
    number = SCHED_SETATTR.get(platform.machine())
    if number is not None and os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        wanted = _SchedAttr(size=ctypes.sizeof(_SchedAttr), nice=nice, runtime_ns=SLICE_NS)
        libc.syscall(number, 0, ctypes.byref(wanted), 0)
