"""Sets the options of sockets, at either end of a listener's connections.  The only I/O in this package, with
:mod:`.transport`.

Linux takes Unix sockets with a path of up to 107 bytes; :func:`short_path` reaches the others.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOCAL_SOCKET: Final = "native.sock"
"""The native listener in the data directory, for commands on this host."""

UNPACED: Final = b"reno"
"""A congestion control that every Linux has and every process may choose."""


def set_options(sock: socket.socket, peer_host: str) -> None:
    """Set the options of a socket that is connected or connecting to ``peer_host``."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sock.getsockname()[0] == peer_host:
        # On one host pacing is useless.  BBR, the default of many hosts, paces with a timer per socket: that takes half
        # of the CPU time of large fetches, and a third of the rate of large batches.
        with contextlib.suppress(OSError):  # a kernel without it: keep the default
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name of a Unix socket that ``bind`` and ``connect`` take, however long its path is.

    Raises:
        OSError: its directory cannot be opened.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
