"""Allocates the arena: shared memory that a network worker receives into and writers write from, without a copy.

Each incarnation of a network worker has one arena.  The worker allocates *extents* of whole blocks for its connections
and receives into them.  A writer gets positions and reads the record batches in place.  An extent is free again when
its connection uses another one and writers have answered all append requests in it.

Each byte of an extent has one storing process: the worker until it sends the position to a writer, then that writer
(which stores base offsets) until its answer.  A writer may still use the arena of a worker that died.  So the next
incarnation of the worker gets a new arena, and the old one exists until its last writer has unmapped it.

The pool is bounded: ``allocate`` returns None without room, and the worker stops reading that connection.
"""

from __future__ import annotations

from typing import Final

BLOCK_BYTES: Final = 64 * 1024


class Extent:
    """Blocks ``start`` to ``stop`` of the arena, held by a connection and by the requests in them."""

    __slots__ = ("_arena", "_holders", "start", "stop")

    def __init__(self, arena: Arena, start: int, stop: int) -> None:
        self._arena = arena
        self.start, self.stop = start, stop
        self._holders = 1

    @property
    def shared(self) -> bool:
        """Whether more than one holder needs the bytes."""
        return self._holders > 1

    def hold(self) -> None:
        self._holders += 1

    def drop(self) -> None:
        self._holders -= 1
        assert self._holders >= 0
        if not self._holders:
            self._arena.free(self)


class Arena:
    """Allocates extents by first fit, with one byte per block and the speed of ``bytes.find``."""

    def __init__(self, size_bytes: int) -> None:
        self._blocks = bytearray(size_bytes // BLOCK_BYTES)
        self.size_bytes = len(self._blocks) * BLOCK_BYTES
        self.used_bytes = 0

    def allocate(self, size_bytes: int) -> Extent | None:
        count = -(-size_bytes // BLOCK_BYTES)
        index = self._blocks.find(bytes(count))
        if index < 0:
            return None
        self._blocks[index : index + count] = b"\1" * count
        self.used_bytes += count * BLOCK_BYTES
        return Extent(self, index * BLOCK_BYTES, (index + count) * BLOCK_BYTES)

    def free(self, extent: Extent) -> None:
        first, last = extent.start // BLOCK_BYTES, extent.stop // BLOCK_BYTES
        assert 0 not in self._blocks[first:last], "extent freed twice"
        self._blocks[first:last] = bytes(last - first)
        self.used_bytes -= extent.stop - extent.start
