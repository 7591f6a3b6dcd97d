"""Keeps the bytes that a connection has received until they are parsed into requests.

The bytes are in one of two places, never in both::

    in the arena       an extent, from ``recv`` until every writer has answered for the batches in it
    in private memory  an unfinished frame, or whole frames that have to wait, once others need the arena

An inbox holds an extent between two turns of the loop only while it has such bytes, and only until another inbox needs
it.  Then :meth:`Buffers.allocate` moves its bytes to private memory, first those of the inbox that has held an extent
longest.  An unfinished frame grows in private memory, and moves back into the arena when it is complete.  So slow
clients and large requests that come in pieces leave the arena to fast clients.

A frame that grows in private memory is admitted by its size, which its first four bytes say: memory for all of it is
reserved, or it is *parked* and not read, so that TCP slows its client down.  So a frame that has begun to grow can be
completed, whatever others send; work that is nearly done is never thrown away for work that has just begun.  Parked
frames are admitted in their order.  A part of the memory is for small frames only, so that they do not wait for large
ones.  A frame is admitted in any case when no other is, so there is no deadlock: it always moves back into the arena,
and then the next.  If its client does not send as fast as it must, the worker closes it (:meth:`Inbox.is_behind`).

Bounds: the arena; ``private_bytes_max`` of private memory, plus the bytes moved from the arena, and one frame.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from ...errors import FrameTooLarge
from ...shared.arena import BLOCK_BYTES, Arena, Extent
from ...wire.frames import SIZE_BYTES, frame_bytes, split

EXTENT_BYTES_MAX: Final = 1 << 20
"""The largest extent for a connection with large frames, so that one recv takes several."""
PRIVATE_BYTES_MIN: Final = 64
"""Memory for an unfinished frame whose size is not known yet."""
SMALL_BYTES: Final = BLOCK_BYTES
"""Frames up to this size may be admitted to all of the private memory, and before parked ones."""
SMALL_SHARE: Final = 8
"""One part in so many of the private memory is for small frames only."""
BEHIND_MS_MIN: Final = 2_000
"""A frame that has come for less time is not behind, since a network may stand still for a moment."""


class Buffers:
    """The memory that all inboxes of one worker share."""

    def __init__(self, memory: memoryview, private_bytes_max: int) -> None:
        self.memory = memory
        self.arena = Arena(len(memory))
        self.private_bytes = 0
        self.private_bytes_max = private_bytes_max
        self.reserved_bytes = 0
        """What private inboxes hold, or have been admitted to hold."""
        self.admitted = 0
        """Inboxes whose frame has been admitted to private memory."""
        self.parked: OrderedDict[Inbox, None] = OrderedDict()
        """Inboxes whose frame waits to be admitted, those that have waited longest first."""
        self.holders: OrderedDict[Inbox, None] = OrderedDict()
        """Inboxes that hold an extent between turns, those that have held longest first."""

    @property
    def used_up(self) -> bool:
        """Whether no more inboxes are moved out of the arena for new ones."""
        return self.private_bytes >= self.private_bytes_max

    def has_room(self, frame_bytes: int, more_bytes: int) -> bool:
        """Whether a frame of this size may be admitted, whose inbox needs so many more bytes than it has reserved."""
        kept_bytes = 0 if frame_bytes <= SMALL_BYTES else self.private_bytes_max // SMALL_SHARE
        return self.reserved_bytes + more_bytes <= self.private_bytes_max - kept_bytes

    @property
    def crowded(self) -> bool:
        """Whether half of the arena is taken."""
        return 2 * self.arena.used_bytes >= self.arena.size_bytes

    def allocate(self, size_bytes: int) -> Extent | None:
        """Take an extent, if need be from the inboxes that have held one longest; None while writers use them all."""
        extent = self.arena.allocate(size_bytes)
        while extent is None and self.holders:
            inbox, _ = self.holders.popitem(last=False)
            inbox.make_private()
            extent = self.arena.allocate(size_bytes)
        return extent


class Inbox:
    """The received bytes of one connection.

    ``starved``: no byte can be received or parsed until the arena has room.
    """

    __slots__ = (
        *("_admitted", "_buffers", "_parsed", "_private", "_reserved_bytes", "_extent_bytes"),
        *("extent", "filled", "frame_since_ms", "memory", "starved"),
    )

    def __init__(self, buffers: Buffers, received: bytes = b"") -> None:
        """``received``: bytes that a writer has received and not parsed."""
        self._buffers, self.memory = buffers, buffers.memory
        self.extent: Extent | None = None
        self._private: bytearray | None = None
        self._parsed = self.filled = 0
        self._extent_bytes = BLOCK_BYTES
        self.frame_since_ms = 0
        self.starved = self._admitted = False
        self._reserved_bytes = 0
        if received:
            self._hold(bytearray(received), len(received))

    def __len__(self) -> int:
        """The number of bytes that are not parsed yet."""
        return self.filled - self._parsed

    @property
    def wanted_bytes(self) -> int:
        """What it needs beside what it has: at least a block of the arena, if it has nothing."""
        if self._private is not None:
            return max(frame_bytes(self._private, 0, self.filled) - self._reserved_bytes, 0)
        return 0 if self.extent is not None else BLOCK_BYTES

    @property
    def parked(self) -> bool:
        """Whether its frame waits to be admitted, and must not be read."""
        return self in self._buffers.parked

    def room(self) -> memoryview | None:
        """See :meth:`.ReceivedBytes.room`; for lack of memory it sets ``starved``."""
        private = self._private
        if private is not None:
            if self.filled == len(private):
                return None  # whole, or without room: see frames()
            return memoryview(private)[self.filled :]
        extent = self.extent or self._allocate()
        if extent is None:
            self.starved = True
            return None
        if self.filled == extent.stop:
            return None  # whole frames that wait
        return self.memory[self.filled : extent.stop]

    def _allocate(self) -> Extent | None:
        buffers = self._buffers
        extent = buffers.arena.allocate(self._extent_bytes)
        if extent is None and not buffers.used_up:
            extent = buffers.allocate(BLOCK_BYTES)
        self.extent = extent
        if extent is not None:
            self._parsed = self.filled = extent.start
        return extent

    def frames(self, frame_bytes_max: int, first_bytes_max: int) -> list[tuple[int, int]]:
        """Return the whole frames that have arrived, as (start, stop) in the arena.

        Raises:
            FrameTooLarge: a frame is larger than its limit; that of the first frame may be another one.
        """
        if self._private is not None and not self._come_back(first_bytes_max):
            return []
        memory = self._buffers.memory
        frames, self._parsed = split(memory, self._parsed, self.filled, frame_bytes_max, first_bytes_max)
        return frames

    def _come_back(self, frame_bytes_max: int) -> bool:
        """Move private bytes into the arena; False while they are no whole frame, or the arena is full."""
        private, buffers = self._private, self._buffers
        assert private is not None
        need = frame_bytes(private, 0, self.filled)
        if need > SIZE_BYTES + frame_bytes_max:
            raise FrameTooLarge(need - SIZE_BYTES, frame_bytes_max)
        if self.filled < need:
            if self.filled == len(private):
                self._grow(need)
            else:
                self.starved = False
            return False
        extent = buffers.allocate(max(self.filled, BLOCK_BYTES))
        self.starved = extent is None
        if extent is None:
            return False
        buffers.memory[extent.start : extent.start + self.filled] = private[: self.filled]
        self._let_go()
        self.extent = extent
        self._parsed, self.filled = extent.start, extent.start + self.filled
        return True

    def _hold(self, private: bytearray, filled: int) -> None:
        """Keep the unparsed bytes in private memory."""
        self._private, self._parsed, self.filled = private, 0, filled
        self._buffers.private_bytes += len(private)
        self._reserve(len(private))

    def _let_go(self) -> None:
        """Release private memory, and what is reserved of it."""
        assert self._private is not None
        self._buffers.private_bytes -= len(self._private)
        self._private = None
        self._reserve(0)
        self._set_admitted(False)
        self._buffers.parked.pop(self, None)

    def _reserve(self, reserved_bytes: int) -> None:
        self._buffers.reserved_bytes += reserved_bytes - self._reserved_bytes
        self._reserved_bytes = reserved_bytes

    def _grow(self, need: int) -> None:
        """Double the memory of an unfinished frame, but not beyond ``need``, if it is, or can be, admitted."""
        private, buffers = self._private, self._buffers
        assert private is not None
        need = max(need, PRIVATE_BYTES_MIN)
        self.starved = False
        overtakes = bool(buffers.parked) and need > SMALL_BYTES
        if need > self._reserved_bytes and (overtakes or not self._admit(need)):
            self._set_admitted(False)
            buffers.parked.setdefault(self)
            return
        more = min(max(PRIVATE_BYTES_MIN, 2 * len(private)), need) - len(private)
        private.extend(bytes(more))
        buffers.private_bytes += more

    def _admit(self, need: int) -> bool:
        buffers = self._buffers
        alone = buffers.admitted == self._admitted
        if not alone and not buffers.has_room(need, need - self._reserved_bytes):
            return False
        self._set_admitted(True)
        self._reserve(need)
        return True

    def _set_admitted(self, admitted: bool) -> None:
        self._buffers.admitted += admitted - self._admitted
        self._admitted = admitted

    def admit(self, now_ms: int) -> bool:
        """Admit the parked frame, if there is room for it; its client has its time from now on."""
        assert self._private is not None
        if not self._admit(frame_bytes(self._private, 0, self.filled)):
            return False
        del self._buffers.parked[self]
        self.frame_since_ms = now_ms
        return True

    def is_behind(self, now_ms: int, frame_ms_max: int) -> bool:
        """Whether an unfinished frame comes so slowly that it will not be complete ``frame_ms_max`` after its start."""
        waited_ms = now_ms - self.frame_since_ms
        if not self.frame_since_ms or self.starved or self.parked or waited_ms < BEHIND_MS_MIN:
            return False
        source = self._buffers.memory if self._private is None else self._private
        return len(self) * frame_ms_max < frame_bytes(source, self._parsed, self.filled) * waited_ms

    def rewind(self, start: int) -> None:
        """Let the frame at ``start``, and all after it, wait."""
        self._parsed = start - SIZE_BYTES

    def release_parsed(self, now_ms: int, stalled: bool) -> None:
        """Give the extent back when all bytes are parsed, or keep it for the rest.

        Args:
            stalled: whole frames are left, so no frame needs more room.
        """
        extent, buffers = self.extent, self._buffers
        rest = self.filled - self._parsed
        if not rest or stalled:
            self.frame_since_ms = 0
        elif not self.frame_since_ms:
            self.frame_since_ms = now_ms
        if extent is None:
            return
        if not rest:
            self._drop()
            return
        buffers.holders.setdefault(self)
        if not stalled:
            self._make_room(extent, rest)

    def _make_room(self, extent: Extent, rest: int) -> None:
        """Move an unfinished frame that does not fit its extent to a larger one, or to private memory."""
        buffers, parsed, filled = self._buffers, self._parsed, self.filled
        need = frame_bytes(buffers.memory, parsed, self.filled)
        if parsed + need <= extent.stop and filled < extent.stop:
            return
        self._extent_bytes = min(max(need * 2, BLOCK_BYTES), EXTENT_BYTES_MAX)
        larger = buffers.arena.allocate(max(need, self._extent_bytes)) or buffers.arena.allocate(need)
        if larger is None:
            self.make_private()
            return
        buffers.memory[larger.start : larger.start + rest] = buffers.memory[parsed:filled]
        self.extent = larger
        self._parsed, self.filled = larger.start, larger.start + rest
        extent.drop()

    def make_private(self) -> None:
        """Move the unparsed bytes to private memory, so that others can have the extent."""
        buffers, extent = self._buffers, self.extent
        assert extent is not None
        rest = len(self)
        need = frame_bytes(buffers.memory, self._parsed, self.filled)
        private = bytearray(max(rest, min(need, PRIVATE_BYTES_MIN)))
        private[:rest] = buffers.memory[self._parsed : self.filled]
        self._drop()
        self._hold(private, rest)

    def copy(self) -> bytes:
        """A copy of the unparsed bytes, for the writer."""
        source = self._buffers.memory if self._private is None else memoryview(self._private)
        return bytes(source[self._parsed : self.filled])

    def _drop(self) -> None:
        assert self.extent is not None
        self._buffers.holders.pop(self, None)
        self.extent.drop()
        self.extent = None
        self._parsed = self.filled = 0

    def clear(self) -> None:
        """Release all memory."""
        self.frame_since_ms = 0
        if self.extent is not None:
            self._drop()
        if self._private is not None:
            self._let_go()
        self._parsed = self.filled = 0

    @property
    def buffer_bytes(self) -> int:
        """The size that a receive buffer should have, by the size of the frames that have come."""
        return self._extent_bytes
