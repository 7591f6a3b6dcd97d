"""Delivers hostile frames in every way that TCP allows: whole, in bursts, a byte at a time, cut off, never read.

An attacker sends a few frames over one connection; then it waits a moment for replies, or does not, and goes away
politely, by reset, or in the middle of a frame, or it stays: the last CONNECTIONS_MAX of these are open at any time.
Everything follows from the seed.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple

CONNECT_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 0.1
TRICKLED_BYTES_MAX = 300
"""Sent a byte at a time; what follows comes at once."""
REPLY_BYTES_MAX = 4 << 20
CONNECTIONS_MAX = 40


class Target(NamedTuple):
    """A listener: where it is, how to write one frame, and what a client sends first (b"" = nothing).

    ``tls``: the connection makes a TLS handshake first; frames are sent inside of it.
    """

    name: str
    address: str
    frame: Callable[[Random], bytes]
    hello: bytes = b""
    tls: ssl.SSLContext | None = None


class Attacker:
    """``close`` it, or use it as a context."""

    def __init__(self, targets: list[Target], seed: int) -> None:
        self._targets = targets
        self._rng = Random(seed)
        self.sent = 0
        """Frames that have left in whole or in part."""
        self.replied_bytes = 0
        self._open: deque[socket.socket] = deque()

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._open:
            sock.close()

    def run(self, requests: int) -> None:
        """Send about so many requests."""
        stop = self.sent + requests
        while self.sent < stop:
            self._connection(self._rng.choice(self._targets))

    def _connection(self, target: Target) -> None:
        rng = self._rng
        host, port = target.address.rsplit(":", 1)
        sock = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
        self._open.append(sock)
        with suppress(OSError):
            if target.tls is not None:
                sock = self._open[-1] = target.tls.wrap_socket(sock, server_hostname=host)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.hello and rng.random() < 0.9:
                sock.sendall(target.hello)
            frames = [target.frame(rng) for _ in range(rng.choice((1, 1, 3, 10, 30)))]
            self.sent += len(frames)
            manner = rng.choice((self._whole, self._whole, self._burst, self._trickle, self._halves))
            sock.settimeout(REPLY_TIMEOUT_S * 20)
            manner(sock, frames)
            if rng.random() < 0.2:
                self._stay()
                return
            self._leave(sock)
        self._open.pop().close()

    def _stay(self) -> None:
        if len(self._open) > CONNECTIONS_MAX:
            self._open.popleft().close()

    def _whole(self, sock: socket.socket, frames: list[bytes]) -> None:
        for frame in frames:
            sock.sendall(frame)
            if self._rng.random() < 0.5:
                self._read(sock)

    def _burst(self, sock: socket.socket, frames: list[bytes]) -> None:
        sock.sendall(b"".join(frames))

    def _trickle(self, sock: socket.socket, frames: list[bytes]) -> None:
        data = b"".join(frames)
        for at in range(min(len(data), TRICKLED_BYTES_MAX)):
            sock.sendall(data[at : at + 1])
        sock.sendall(data[TRICKLED_BYTES_MAX:])

    def _halves(self, sock: socket.socket, frames: list[bytes]) -> None:
        """The last frame stays unfinished."""
        data = b"".join(frames)
        sock.sendall(data[: len(data) - self._rng.randint(min(1, len(frames[-1])), len(frames[-1]))])

    def _read(self, sock: socket.socket) -> None:
        sock.settimeout(REPLY_TIMEOUT_S)
        left = REPLY_BYTES_MAX
        with suppress(TimeoutError):
            while left > 0 and (data := sock.recv(1 << 16)):
                self.replied_bytes += len(data)
                left -= len(data)
                if len(data) < 1 << 16:
                    break
        sock.settimeout(REPLY_TIMEOUT_S * 20)

    def _leave(self, sock: socket.socket) -> None:
        match self._rng.randrange(4):
            case 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case 1:
                sock.shutdown(socket.SHUT_WR)
                self._read(sock)
            case 2:
                self._read(sock)
