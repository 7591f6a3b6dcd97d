"""The arena: where a network worker receives, and from where writers write, with no copy in between.

One arena per incarnation of a network worker.  The worker hands out *extents* of whole blocks to its connections and
``recv``s into them; a writer gets positions and reads the record batches where they lie.  An extent goes back to the
pool when the connection has moved on and every writer has answered for the positions in it.

Who stores what.  A byte of an extent is stored by the worker until it is described to a writer, then by that writer
alone (``baseOffset``), until the answer comes back.  A writer may be slow while the worker dies; the next incarnation
therefore gets a new arena, and the old one lives until its last writer has let go of it.

The pool is bounded: ``allocate`` answers None when there is no room, and the worker stops reading that connection.
"""

from __future__ import annotations

from typing import Final

BLOCK_BYTES: Final = 64 * 1024


class Extent:
    """A run of blocks, ``start`` to ``stop`` in the arena, shared by its connection and the requests within."""

    __slots__ = ("_arena", "_holders", "start", "stop")

    def __init__(self, arena: Arena, start: int, stop: int) -> None:
        self._arena = arena
        self.start, self.stop = start, stop
        self._holders = 1

    @property
    def shared(self) -> bool:
        """Whether anybody besides one holder still needs the bytes."""
        return self._holders > 1

    def hold(self) -> None:
        self._holders += 1

    def drop(self) -> None:
        self._holders -= 1
        assert self._holders >= 0
        if not self._holders:
            self._arena.free(self)


class Arena:
    """First fit over a byte per block; the C speed of ``bytes.find`` is the allocator."""

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
