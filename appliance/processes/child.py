"""What every forked child does first: take its own name, signals and fate."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from typing import Final

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
GARBAGE_ALLOCATIONS: Final = 50_000
"""Requests make and drop many small objects but no cycles: looking for garbage every 700 of them finds none."""


def settle(name: str, supervisor_pid: int, death_signal: int = signal.SIGKILL) -> None:
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
    if os.getppid() != supervisor_pid:
        os._exit(0)
