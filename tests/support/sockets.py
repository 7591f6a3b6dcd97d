"""Reads from /proc which sockets of TCP there are, and which files a process has open."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

LISTENING, ESTABLISHED, CLOSE_WAIT = "0A", "01", "08"
"""States of a socket.  CLOSE_WAIT: the other side has closed."""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as an address of a socket, and of one for IPv6 too."""


class TcpSocket(NamedTuple):
    """One end of a connection, or a listener.  ``file``: as :func:`open_files` has it."""

    address: str
    port: int
    peer_port: int
    state: str
    file: str


def tcp_sockets() -> list[TcpSocket]:
    """All of this network namespace."""
    sockets = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, remote, state, *rest = line.split()
            address, _, port = local.partition(":")
            peer_port = int(remote.partition(":")[2], 16)
            sockets.append(TcpSocket(address, int(port, 16), peer_port, state, f"socket:[{rest[5]}]"))
    return sockets


def open_files(pid: int) -> list[str]:
    """What each descriptor of a process stands for; nothing if it has ended."""
    files = []
    with contextlib.suppress(FileNotFoundError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed in this moment
                files.append(str(link.readlink()))
    return files
