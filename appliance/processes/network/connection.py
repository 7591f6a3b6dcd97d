"""One client connection of a network worker: bytes in through the arena, replies out in the order of requests.

Receiving: a connection borrows an extent of the arena only while it has bytes in it.  Whole frames are handed up as
positions; an unfinished one stays, or moves to a larger extent once its size is known.

Sending: every request that wants a reply has a :class:`Pending` in ``requests``, oldest first.  A reply leaves when
all before it have left, also behind a fetch that waits: clients match replies by order.  Bytes go out with ``send``,
file ranges with ``sendfile``; ``MSG_MORE`` keeps a header and its batches in one segment.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from itertools import takewhile
from typing import Any, Final

from ...shared.arena import BLOCK_BYTES, Arena, Extent
from ...wire.frames import SIZE_BYTES, cut
from ...wire.requests import Codec, FileRange, Request

EXTENT_BYTES_MAX: Final = 1 << 20
"""A connection that sends large frames is given up to this much at once, so that one recv takes several."""
JOINED_BYTES_MAX: Final = 1 << 16
"""Replies are joined up to about so much: what is not sent is copied once more."""


class Pending:
    """A request that waits for its reply, or ``count`` joined ones.  ``reply`` is None until it is there."""

    __slots__ = ("connection", "count", "missing", "reply", "request", "results")

    def __init__(self, connection: Connection, request: Request, count: int = 1) -> None:
        self.connection = connection
        self.request = request
        self.count = count
        self.results: list[Any] = []
        self.missing = 0
        self.reply: list[bytes | FileRange] | None = None


class Connection:
    """State of one socket; the worker decides when to read and write."""

    __slots__ = (
        "_filled",
        "_parsed",
        "_wanted",
        "active_ms",
        "closed",
        "codec",
        "door",
        "events",
        "extent",
        "frame_since_ms",
        "hang_up",
        "listener",
        "out",
        "out_bytes",
        "peer",
        "requests",
        "sock",
        "starved",
        "unanswered",
    )

    def __init__(self, sock: socket.socket, door: str, listener: str, peer: str, codec: Codec) -> None:
        self.sock = sock
        self.door, self.listener, self.peer, self.codec = door, listener, peer, codec
        self.extent: Extent | None = None
        self._filled = self._parsed = 0
        self._wanted = BLOCK_BYTES
        self.requests: deque[Pending] = deque()
        self.unanswered = 0
        self.out: deque[bytes | FileRange] = deque()
        self.out_bytes = 0
        self.events = 0
        self.active_ms = 0
        self.frame_since_ms = 0
        self.starved = False
        self.closed = False
        self.hang_up = False

    # ---- receiving

    def receive(self, memory: memoryview, arena: Arena, frame_bytes_max: int) -> list[tuple[int, int]] | None:
        """Read once from the socket.

        Returns:
            The whole frames that have arrived, as (start, stop) in the arena; None at the end of the stream.
            ``starved`` is set when the arena has no room: nothing was read.

        Raises:
            FrameTooLarge: the peer announced more than the limit.
        """
        extent = self.extent
        if extent is None:
            extent = arena.allocate(self._wanted) or arena.allocate(BLOCK_BYTES)
            if extent is None:
                self.starved = True
                return []
            self.extent = extent
            self._filled = self._parsed = extent.start
        try:
            count = self.sock.recv_into(memory[self._filled : extent.stop])
        except BlockingIOError:
            count = -1
        except OSError:
            return None
        if count == 0:
            return None
        self._filled += max(count, 0)
        frames, self._parsed = cut(memory, self._parsed, self._filled, frame_bytes_max)
        return frames

    def settle(self, memory: memoryview, arena: Arena, now_ms: int) -> None:
        """After the frames of :meth:`receive` are dealt with: give the extent back, or make room for the rest."""
        extent = self.extent
        if extent is None:
            return
        parsed, filled = self._parsed, self._filled
        rest = filled - parsed
        if not rest:
            self.frame_since_ms = 0
            self.extent = None
            extent.drop()
            return
        self.frame_since_ms = self.frame_since_ms or now_ms
        need = SIZE_BYTES
        if rest >= SIZE_BYTES:
            need += int.from_bytes(memory[parsed : parsed + SIZE_BYTES], "big")
        if parsed + need <= extent.stop and filled < extent.stop:
            return
        self._wanted = min(max(need * 2, BLOCK_BYTES), EXTENT_BYTES_MAX)
        larger = arena.allocate(max(need, self._wanted)) or arena.allocate(need)
        if larger is None:
            self.starved = True
            return
        memory[larger.start : larger.start + rest] = memory[parsed:filled]
        self.extent = larger
        self._parsed, self._filled = larger.start, larger.start + rest
        extent.drop()

    # ---- sending

    def expect(self, pending: Pending) -> None:
        """A reply will have to leave after those of all requests before."""
        self.requests.append(pending)
        self.unanswered += pending.count

    def collect(self) -> None:
        """Move the replies that are next in order to the output."""
        requests = self.requests
        while requests and requests[0].reply is not None:
            pending = requests.popleft()
            self.unanswered -= pending.count
            for piece in pending.reply or ():
                self.out.append(piece)
                self.out_bytes += len(piece) if isinstance(piece, bytes) else piece[2]

    def give_up(self, kind: type) -> None:
        """Forget the first unanswered request of this kind, and all behind it: they could not leave before it."""
        requests = takewhile(lambda one: one.reply is not None or not isinstance(one.request, kind), self.requests)
        self.requests = deque(requests)
        self.unanswered = sum(one.count for one in self.requests)

    def send(self) -> None:
        """Write what the socket takes.

        Raises:
            OSError: the connection is gone.
        """
        out = self.out
        try:
            while out:
                piece = out[0]
                if isinstance(piece, bytes):
                    self._send_bytes()
                else:
                    self._send_file(piece)
        except BlockingIOError:
            return

    def _send_bytes(self) -> None:
        out = self.out
        chunks: list[bytes] = []
        size = 0
        for piece in out:
            if not isinstance(piece, bytes) or size >= JOINED_BYTES_MAX:
                break
            chunks.append(piece)
            size += len(piece)
        more = socket.MSG_MORE if len(out) > len(chunks) else 0
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)  # cheaper than sendmsg
        sent = self.sock.send(data, more)
        self.out_bytes -= sent
        for _ in chunks:
            out.popleft()
        if sent < size:
            out.appendleft(data[sent:])

    def _send_file(self, piece: FileRange) -> None:
        sent = os.sendfile(self.sock.fileno(), piece.file.fd, piece.position, piece.count)
        if sent == 0:  # the file is shorter than its table says: only a fault of the disk can do that
            raise OSError("segment file ends early")
        self.out_bytes -= sent
        if sent < piece.count:
            self.out[0] = piece._replace(position=piece.position + sent, count=piece.count - sent)
        else:
            self.out.popleft()

    def close(self) -> None:
        self.closed = True
        self.sock.close()
        self.out.clear()
        self.requests.clear()
        if self.extent is not None:
            self.extent.drop()
            self.extent = None
