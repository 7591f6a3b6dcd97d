"""Moves the wall clock of a Python process by as many nanoseconds as the file SKEW_FILE says (8 bytes, little-endian).

With this directory on PYTHONPATH it is imported before anything else, so that all that asks for the wall clock later
asks here; a process that is forked maps the same file.  The monotonic clock is left alone, as on a real machine.
"""

import mmap
import os
import time

_fd = os.open(os.environ["SKEW_FILE"], os.O_RDONLY)
_skew = mmap.mmap(_fd, 8, prot=mmap.PROT_READ)
os.close(_fd)
_time_ns, _gettime_ns = time.time_ns, time.clock_gettime_ns


def _skewed_ns() -> int:
    return _time_ns() + int.from_bytes(_skew[:], "little", signed=True)


def _clock_gettime_ns(clock: int) -> int:
    return _skewed_ns() if clock == time.CLOCK_REALTIME else _gettime_ns(clock)


time.time_ns = _skewed_ns
time.time = lambda: _skewed_ns() / 1e9
time.clock_gettime_ns = _clock_gettime_ns
time.clock_gettime = lambda clock: _clock_gettime_ns(clock) / 1e9
