"""One client connection of a network worker: bytes in through the arena, replies out in the order of requests.

Receiving: a connection borrows an extent of the arena only while it has bytes in it.  Whole frames are handed up as
positions; an unfinished one stays, or moves to a larger extent once its size is known.

Lending: a connection that does nothing but produce to one partition goes to that partition's writer, and comes back
(:mod:`appliance.processes.writer.loan`).  Meanwhile its socket and its extent are the writer's.

Sending: every request that wants a reply has a :class:`Pending` in ``requests``, oldest first.  A reply leaves when
all before it have left, also behind a fetch that waits: clients match replies by order.  Bytes go out with ``send``,
file ranges with ``sendfile``; ``MSG_MORE`` keeps a header and its batches in one segment.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from itertools import takewhile
from typing import Any, Final, Protocol

from ...shared.arena import BLOCK_BYTES, Arena, Extent
from ...wire.frames import SIZE_BYTES, cut
from ...wire.requests import Codec, FileRange, Request
from ..control import Channel

EXTENT_BYTES_MAX: Final = 1 << 20
"""A connection that sends large frames is given up to this much at once, so that one recv takes several."""
JOINED_BYTES_MAX: Final = 1 << 16
"""Replies are joined up to about so much: what is not sent is copied once more."""
LENT_BYTES: Final = 256 * 1024
"""A connection is lent with so much of the arena at least: what one recv takes is written and flushed together."""
TURNS_TO_LEND: Final = 32
HABIT_MS: Final = 1_000
"""A connection is worth lending when it has brought produce requests, and nothing else, so often in this time."""


class Borrower(Protocol):
    """The link to a writer (``links.WriterLink``), as far as lending is concerned."""

    channel: Channel | None

    @property
    def may_lend(self) -> bool: ...

    def lend(self, connection: Connection, extent: tuple[int, int, int, int]) -> None: ...


class Habit:
    """What a connection has done lately: nothing but produce to one partition, always with the same acks?"""

    __slots__ = ("acks", "link", "since_ms", "turns")

    def __init__(self) -> None:
        self.link: Borrower | None = None
        self.acks = self.turns = self.since_ms = 0

    def is_formed(self, link: Borrower, acks: int, now_ms: int) -> bool:
        """Count produce requests that have come together."""
        if link is not self.link or acks != self.acks or now_ms - self.since_ms > HABIT_MS:
            self.link, self.acks, self.turns, self.since_ms = link, acks, 0, now_ms
        self.turns += 1
        return self.turns >= TURNS_TO_LEND


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
        "borrower",
        "closed",
        "codec",
        "door",
        "events",
        "extent",
        "frame_since_ms",
        "habit",
        "hang_up",
        "lent",
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
        self.habit = Habit()
        self.borrower: Borrower | None = None
        self.lent = False

    # ---- receiving

    def receive(self, memory: memoryview, arena: Arena) -> bool:
        """Read once from the socket; False at the end of the stream.

        ``starved`` is set when the arena has no room: nothing was read.
        """
        extent = self.extent or self._allocate(arena, self._wanted)
        if extent is None:
            self.starved = True
            return True
        try:
            count = self.sock.recv_into(memory[self._filled : extent.stop])
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._filled += count
        return count > 0

    def _allocate(self, arena: Arena, size_bytes: int) -> Extent | None:
        extent = self.extent = arena.allocate(size_bytes) or arena.allocate(BLOCK_BYTES)
        if extent is not None:
            self._filled = self._parsed = extent.start
        return extent

    def frames(self, memory: memoryview, frame_bytes_max: int) -> list[tuple[int, int]]:
        """The whole frames that have arrived, as (start, stop) in the arena.

        Raises:
            FrameTooLarge: the peer announced more than the limit.
        """
        frames, self._parsed = cut(memory, self._parsed, self._filled, frame_bytes_max, self.codec.first_bytes_max)
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

    # ---- lending

    def lend(self, arena: Arena) -> tuple[int, int, int, int] | None:
        """From now on the writer's: the extent, start to stop, and what is parsed and filled of it; None: no room."""
        extent = self.extent or self._allocate(arena, max(self._wanted, LENT_BYTES))
        if extent is None:
            return None
        self.lent = True
        return extent.start, extent.stop, self._parsed, self._filled

    def forget_habit(self) -> None:
        self.habit.turns = 0
        self.borrower = None

    @property
    def extent_bytes(self) -> int:
        return 0 if self.extent is None else self.extent.stop - self.extent.start

    def take_back(self, parsed: int, filled: int) -> None:
        """Ours again, as the writer has left it."""
        self.lent = False
        self.forget_habit()
        self._parsed, self._filled = parsed, filled

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
                self.put(piece)

    def put(self, piece: bytes | FileRange) -> None:
        """Queue a part of a reply."""
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
