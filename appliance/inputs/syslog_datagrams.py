"""Reads datagrams of syslog, over UDP and Unix sockets, and tells what the kernel has dropped of them."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

from ..clock import now_ms
from .machinery import Machinery
from .positions import Source
from .syslog_format import Frames, split_message, without_terminator

DATAGRAMS_MAX: Final = 512
"""Read before others have their turn."""
DATAGRAM_BYTES_MAX: Final = 64 * 1024
UNIX_DATAGRAM_BYTES_MAX: Final = 1 << 20
"""Above what net.core.wmem_max usually lets senders send."""
LOCAL: Final = "local"
"""The source of what comes over a Unix socket."""
LOSSES_MS: Final = 60_000
SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("9I")
_DROPS: Final = 8  # SK_MEMINFO_DROPS


def read_datagrams(sock: socket.socket, message_bytes_max: int) -> dict[str, list[Frames]]:
    """What the kernel holds, up to DATAGRAMS_MAX, by the address of its sender."""
    by_sender: dict[str, list[Frames]] = {}
    receive = sock.recvfrom
    try:
        for _ in range(DATAGRAMS_MAX):
            data, address = receive(DATAGRAM_BYTES_MAX)
            frames = by_sender.get(address[0])
            if frames is None:
                frames = by_sender[address[0]] = [Frames([])]
            if data[-1:] > b"\n" and len(data) <= message_bytes_max:
                frames[-1].values.append(data)
            else:
                _add(frames, data, message_bytes_max)
    except BlockingIOError:
        pass
    return by_sender


def read_local(sock: socket.socket, message_bytes_max: int) -> dict[str, list[Frames]]:
    """As :func:`read_datagrams`, of a Unix socket: all come from LOCAL."""
    frames = [Frames([])]
    by_sender: dict[str, list[Frames]] = {}
    try:
        for _ in range(DATAGRAMS_MAX):
            data = sock.recv(UNIX_DATAGRAM_BYTES_MAX)
            by_sender[LOCAL] = frames
            _add(frames, data, message_bytes_max)
    except BlockingIOError:
        pass
    return by_sender


def _add(frames: list[Frames], data: bytes, message_bytes_max: int) -> None:
    """Add the message of a datagram; ``frames`` ends with whole ones."""
    value = without_terminator(data)
    if len(value) > message_bytes_max:
        frames += [*split_message(value, message_bytes_max), Frames([])]
    elif value:
        frames[-1].values.append(value)


class Losses:
    """What the kernel drops of a socket, since it was bound: datagrams for which its buffer had no room.

    SO_MEMINFO has the counter that SO_RXQ_OVFL puts beside datagrams; it also tells of a loss that no datagram follows.
    How many were told is a position of the store, so neither a restart of this process forgets any, nor tells twice.
    """

    def __init__(self, text: str, sock: socket.socket, machinery: Machinery) -> None:
        self._text, self._sock, self._store, self._ledger = text, sock, machinery.store, machinery.ledger
        row = next(row for row in self._store.sources() if row.name == text)
        self._number = row.number
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._identity = f"{boot} {os.fstat(sock.fileno()).st_ino}".encode()
        self._told = row.position if row.identity == self._identity else 0
        self._told_ms = now_ms() - LOSSES_MS

    def look(self, *, is_last: bool = False) -> float | None:
        """Tell what was dropped, at most every LOSSES_MS; return in how many seconds there is something to tell."""
        counters = self._sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO.size)
        count = (_MEMINFO.unpack(counters)[_DROPS] - self._told) & 0xFFFFFFFF  # the kernel counts in 32 bits
        if not count:
            return None
        left_ms = self._told_ms + LOSSES_MS - now_ms()
        if left_ms > 0 and not is_last:
            return left_ms / 1000
        start, self._told, self._told_ms = self._told, self._told + count, now_ms()
        reason = "the receive buffer of the socket was full"
        self._ledger.note_gap(self._number, self._text, start, self._told, "messages", reason)
        self._store.note(Source(self._number, self._text, self._told, 1, self._identity, False))
        return None
