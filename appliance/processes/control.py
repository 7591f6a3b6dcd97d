"""Control messages between the supervisor and its children, and between workers and writers.

A :class:`Channel` is one end of a ``SOCK_SEQPACKET`` socketpair.  One message is one msgpack array of at most
``MESSAGE_BYTES_MAX`` bytes, optionally with file descriptors (SCM_RIGHTS).  Neither end ever blocks: what the kernel
does not take waits in a queue of at most ``QUEUE_MAX`` messages.  A dead peer is an EOF: ``closed`` becomes true.
"""

from __future__ import annotations

import contextlib
import os
import socket
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgpack

MESSAGE_BYTES_MAX: Final = 128 * 1024
"""A sequenced packet must fit the socket buffer (net.core.wmem_default is 208 KiB) whole."""
QUEUE_MAX: Final = 65_536
FDS_MAX: Final = 8
FDS_BYTES: Final = socket.CMSG_SPACE(FDS_MAX * array("i").itemsize)

_pack = msgpack.Packer().pack
_buffer = memoryview(bytearray(MESSAGE_BYTES_MAX))
"""Where one message at a time is received; a forked child has a copy of its own."""


class Channel:
    """One end of a control socket.  Register ``fileno()`` with epoll; ask for EPOLLOUT while ``pending``."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.closed = False

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        return Channel(left), Channel(right)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        return bool(self._queue)

    def send(self, message: Sequence[Any], fds: Sequence[int] = ()) -> None:
        """Queue a message and send what the kernel takes.  Descriptors are duplicated: the caller may close its own.

        A message to a closed channel is dropped: the peer is dead and whoever reads ``closed`` acts on that.
        """
        if self.closed:
            return
        packed = _pack(message)
        assert len(packed) <= MESSAGE_BYTES_MAX, f"control message of {len(packed)} bytes"
        if not fds and not self._queue:
            try:
                self._socket.send(packed)
                return
            except BlockingIOError:
                pass
            except OSError:
                self.closed = True
                return
        assert len(self._queue) < QUEUE_MAX, "control queue is full"
        self._queue.append((packed, tuple(os.dup(fd) for fd in fds)))
        self.flush()

    def flush(self) -> None:
        """Send queued messages until the kernel takes no more."""
        while self._queue and not self.closed:
            packed, fds = self._queue[0]
            try:
                if fds:
                    socket.send_fds(self._socket, [packed], list(fds))
                else:
                    self._socket.send(packed)
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                break
            self._queue.popleft()
            for fd in fds:
                os.close(fd)
        if self.closed:
            self._drop_queue()

    def take(self) -> tuple[list[Any] | None, list[int]]:
        """One message, the cheapest way; None when none has come.  Sets ``closed`` at EOF, else as :meth:`receive`."""
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([_buffer], FDS_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None, []
        except OSError:
            size, ancillary = 0, []
        if not size:
            self.closed = True
            self._drop_queue()
            return None, []
        message: list[Any] = msgpack.unpackb(_buffer[:size], strict_map_key=False)
        return message, [fd for _, _, fds in ancillary for fd in array("i", fds)]

    def receive(self) -> list[tuple[list[Any], list[int]]]:
        """All messages that have arrived; sets ``closed`` at EOF.  The caller owns the descriptors."""
        messages: list[tuple[list[Any], list[int]]] = []
        while not self.closed:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES_MAX, FDS_MAX, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except OSError:
                data, fds = b"", []
            if not data:
                self.closed = True
                self._drop_queue()
                break
            messages.append((msgpack.unpackb(data, strict_map_key=False), list(fds)))
        return messages

    def detach(self) -> int:
        return self._socket.detach()

    def close(self) -> None:
        self.closed = True
        self._drop_queue()
        with contextlib.suppress(OSError):
            self._socket.close()

    def _drop_queue(self) -> None:
        for _, fds in self._queue:
            for fd in fds:
                os.close(fd)
        self._queue.clear()
