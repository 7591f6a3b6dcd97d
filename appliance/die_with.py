"""Lets a program that a process begins end with that process, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


class DieWith:
    """Runs in the child before exec: sets the umask; the kernel kills the child when the parent ends, or has ended."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self) -> None:
        os.umask(0o077)
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._parent:
            os._exit(1)
