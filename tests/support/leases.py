"""Holds a process at a file that it opens."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(files: list[Path]) -> Iterator[None]:
    """Whoever opens one of these files waits until the block ends (or Linux's lease-break-time is over, 45 s)."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which asks for the lease
    handles = [os.open(file, os.O_RDWR) for file in files]
    try:
        for handle in handles:
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        for handle in handles:
            os.close(handle)
        signal.signal(signal.SIGIO, before)
