"""Waits for a descriptor with poll(2): select(2) knows none above 1023, and a long run of tests has as many open.

Waits for a forked child, too, with a bound: a test that fails must not wait for ever while it cleans up.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

END_S_MAX = 60


def reap(pid: int) -> int:
    """The exit status of a child, negative for a signal; one that does not end is killed after a minute."""
    pidfd = os.pidfd_open(pid)
    try:
        if not readable(pidfd, END_S_MAX):
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def readable(source: Any, timeout_s: float = 0) -> bool:
    """Whether something can be read, or the end has come, within a time."""
    return _ready(source, select.POLLIN, timeout_s)


def writable(source: Any, timeout_s: float = 0) -> bool:
    """Whether something can be written within a time."""
    return _ready(source, select.POLLOUT, timeout_s)


def _ready(source: Any, events: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(source, events)
    return bool(poll.poll(timeout_s * 1000))


def free_port() -> int:
    """A port of this host that nobody uses now, of TCP or UDP, for a program that has to be told one.

    It is none of those that the kernel gives to connections, of which others make many meanwhile.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(lowest // 2, lowest)  # hypothesis seeds the other one
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram, suppress(OSError):
            stream.bind(("127.0.0.1", port))
            datagram.bind(("127.0.0.1", port))
            return port
