"""Control messages between the supervisor and its children, and between workers and writers.

A :class:`Channel` is one end of a ``SOCK_SEQPACKET`` socketpair.  One message (:mod:`.messages`) is one msgpack array
of at most ``MESSAGE_BYTES_MAX`` bytes, optionally with file descriptors (SCM_RIGHTS).  Neither end ever blocks:
messages that the kernel does not take wait in a queue of at most ``QUEUE_BYTES_MAX`` bytes.  A dead peer is an EOF:
``closed`` becomes true.  When the queue is full, the peer counts as dead, and learns it by an EOF: what it has sent and
we have not received is dropped, since we could not answer.

A receiver that has no room for the descriptors of a message gets :class:`~.messages.Unreceivable` with the message, and
sends that back.  A sender that has no room gets the OSError, and nothing is sent.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec import ValidationError
from msgspec.msgpack import Decoder, Encoder

from .messages import ProcessMessage, UnknownMessage, Unreceivable

MESSAGE_BYTES_MAX: Final = 128 * 1024
"""A sequenced packet must fit the socket buffer as a whole (net.core.wmem_default is 208 KiB)."""
QUEUE_BYTES_MAX: Final = 64 << 20
"""Room for the names of 100,000 tables (about 360 bytes each) for a new worker that has not read the first yet."""
RECEIVED_MAX: Final = 1_000
"""Messages received at once.  More than the kernel keeps, so that only a sender that goes on meanwhile reaches it."""
QUEUE_OVERHEAD_BYTES: Final = 256
"""Memory of a queued message besides its bytes."""
FDS_MAX: Final = 8
INT_BYTES: Final = array("i").itemsize
FDS_BYTES: Final = socket.CMSG_SPACE(FDS_MAX * INT_BYTES)

TRUNCATED: Final = int(socket.MSG_CTRUNC)
"""As a number: an operation of an enum's member takes longer than all else that receives a message."""
SHOWN_BYTES: Final = 200
"""Of a message that its receiver does not take, in the error."""
NOT_NOW: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)
"""The kernel takes no message at the moment; any other error means that the peer is gone."""

logger = logging.getLogger(__name__)

_encode = Encoder().encode
_buffer = memoryview(bytearray(MESSAGE_BYTES_MAX))
"""Receives one message at a time; each forked child has its own copy."""

T = TypeVar("T")
"""What a process takes; see the unions of :mod:`.messages`."""


class Channel:
    """One end of a control socket.  Register ``fileno()`` with epoll; ask for EPOLLOUT while ``pending``."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._queue_bytes = 0
        self.closed = self._is_cut = False

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Raises OSError: no descriptor is left."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        return Channel(near), Channel(far)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        return bool(self._queue)

    def send(self, message: ProcessMessage, fds: Sequence[int] = ()) -> None:
        """Send a message, or queue it if the kernel does not take it.  The caller may close its descriptors.

        A message to a closed channel is dropped: the peer is dead, and the reader of ``closed`` handles that.

        Raises:
            OSError: the machine has no room for the descriptors; nothing is sent.
        """
        if self.closed:
            return
        packed = _encode(message)
        assert len(packed) <= MESSAGE_BYTES_MAX, f"{type(message).__name__} of {len(packed)} bytes"
        if self._queue or not self._sent(packed, fds, may_raise=bool(fds)):
            self._enqueue(packed, fds)

    def flush(self) -> None:
        """Send queued messages until the kernel takes no more."""
        while self._queue:
            packed, fds = self._queue[0]
            if not self._sent(packed, fds):
                return
            if self._queue:  # not closed meanwhile
                self._queue.popleft()
                self._queue_bytes -= len(packed) + QUEUE_OVERHEAD_BYTES
                _close_all(fds)

    def _sent(self, packed: bytes, fds: Sequence[int], may_raise: bool = False) -> bool:
        """Whether nothing is left to do for this message: the kernel has it, or the peer is gone."""
        try:
            if fds:
                socket.send_fds(self._socket, [packed], list(fds))
            else:
                self._socket.send(packed)
        except OSError as error:
            if error.errno in NOT_NOW:
                if may_raise and error.errno != errno.EAGAIN:
                    raise
                return False
            self._give_up()
        return True

    def _enqueue(self, packed: bytes, fds: Sequence[int]) -> None:
        size = len(packed) + QUEUE_OVERHEAD_BYTES
        if self._queue_bytes + size > QUEUE_BYTES_MAX:
            logger.warning("a process does not take its messages: %d bytes wait for it; given up", self._queue_bytes)
            self._cut_off()
            return
        copies: list[int] = []
        try:
            for fd in fds:
                copies.append(os.dup(fd))
        except OSError:
            _close_all(copies)
            raise
        self._queue.append((packed, tuple(copies)))
        self._queue_bytes += size

    def take_message(self, decoder: Decoder[T]) -> tuple[T, list[int]] | None:
        """Receive one message, at the least cost; None when none has come.  Else as :meth:`receive`."""
        if self._is_cut:
            return None
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into([_buffer], FDS_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # once, when the peer has closed with messages of ours unread: its own follow
            return self.take_message(decoder)
        except OSError:
            size, ancillary, flags = 0, [], 0
        if not size:
            self._give_up()
            return None
        fds: list[int] = []
        for _, _, data in ancillary:
            fds += array("i", data[: len(data) - len(data) % INT_BYTES])
        try:
            message = decoder.decode(_buffer[:size])
        except ValidationError as error:
            _close_all(fds)
            raise UnknownMessage(f"{bytes(_buffer[: min(size, SHOWN_BYTES)])!r}: {error}") from error
        if flags & TRUNCATED:
            _close_all(fds)
            return Unreceivable(message), []  # type: ignore[arg-type, return-value]  # all unions of receivers have it
        return message, fds

    def receive(self, decoder: Decoder[T], rest: bool = False) -> list[tuple[T, list[int]]]:
        """Receive messages that have arrived, at most RECEIVED_MAX; set ``closed`` at EOF.

        The caller owns the descriptors.  It polls again for what comes meanwhile, and serves others in between.

        ``rest``: the peer has ended; receive all of its last messages, also after a message to it has failed.  Those of
        a peer that was given up are not received: it could not be answered.

        Raises:
            UnknownMessage: a bug.
        """
        messages: list[tuple[T, list[int]]] = []
        while rest or (not self.closed and len(messages) < RECEIVED_MAX):
            taken = self.take_message(decoder)
            if taken is None:
                break
            messages.append(taken)
        return messages

    def detach(self) -> int:
        return self._socket.detach()

    def close(self) -> None:
        self._give_up()
        with contextlib.suppress(OSError):
            self._socket.close()

    def _cut_off(self) -> None:
        """Give up a peer that may live: nothing goes to it or comes from it any more, and both ends see an EOF."""
        self._give_up()
        self._is_cut = True
        with contextlib.suppress(OSError):
            # Not SHUT_RDWR: epoll would show a hang-up, by which the supervisor knows that a process has ended.
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(1):  # one message each; the kernel closes its descriptors
                pass

    def _give_up(self) -> None:
        self.closed = True
        queue, self._queue = self._queue, deque()  # first, since two threads may notice the end
        self._queue_bytes = 0
        for _, fds in queue:
            _close_all(fds)


def tell(fd: int, message: ProcessMessage) -> None:
    """Send one message on the descriptor of a channel, at the least cost.

    It is lost when the kernel does not take it, or the peer is gone.
    """
    try:
        os.write(fd, _encode(message))
    except OSError:
        pass


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
