"""The options of sockets, at either end of a listener's connections.  The only I/O in this package."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

UNPACED: Final = b"reno"
"""The congestion control that every Linux has and every process may choose."""


def set_options(sock: socket.socket, peer_host: str) -> None:
    """Once it is known who the peer is: a socket that is connected, or connecting."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sock.getsockname()[0] == peer_host:
        # On one host there is no wire to share, but BBR, the default of many hosts, paces all the same: with a timer
        # per socket, which takes half of the CPU of large fetches and a third of the rate of large batches.
        with contextlib.suppress(OSError):  # a kernel without it: then as it comes
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
