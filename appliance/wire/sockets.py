"""Sets the options of sockets, at either end of a listener's connections.  The only I/O in this package."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

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
