"""The sparse index beside a segment: byte offset and time to batch, and how many records came before.

A file of entries of 24 bytes, native (little) endian, ascending::

    0   8   offset      where a batch starts, or where the segment ends
    8   8   timestamp   largest timestamp of the batches before it in this segment, ms; -1: none
   16   8   records     records before it, counted over the whole life of the log

The first entry stands at the segment's base, then one at the first batch that starts ``index.interval.bytes``
or more after the entry before; when the segment is sealed, a closing entry at its end.  So a sealed segment
tells its largest timestamp and its number of records without being read.  A segment of 1 GiB has 6 MiB of
index.

Timestamps start again in each segment, so that one message from the future spoils searches by time in its own
segment only, and no longer than that one is kept.  Records are counted on, so that the difference between any
two offsets is a number of messages.

It carries no checksum: whatever it says is looked up again in the log (a batch header must stand there, see
``reader``), and recovery rebuilds it.  Readers use ``pread``, not ``mmap``: a mapped file that recovery
shortens is a SIGBUS, a read of it is merely short.  Entries up to the high watermark are final;
readers ignore the others.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import CorruptLog
from .files import SYSTEM, File, System, write_at

ENTRY: Final = struct.Struct("<Qqq")
ENTRY_BYTES: Final = 24
assert ENTRY.size == ENTRY_BYTES
CELLS: Final = ENTRY_BYTES // 8

BLOCK_ENTRIES: Final = 1024
"""Entries that a reader keeps of each index: enough for a sequential consumer to look once every few MiB."""


class Entry(NamedTuple):
    offset: int
    timestamp: int
    records: int


def pack(entries: Iterable[Entry]) -> bytes:
    return b"".join(ENTRY.pack(*entry) for entry in entries)


def ends(path: Path) -> tuple[Entry, Entry] | None:
    """First and last whole entry of an index file, None when there is none."""
    try:
        file = File(path)
    except FileNotFoundError:
        return None
    count = os.fstat(file.fd).st_size // ENTRY_BYTES
    if not count:
        return None
    first, last = (os.pread(file.fd, ENTRY_BYTES, number * ENTRY_BYTES) for number in (0, count - 1))
    return Entry(*ENTRY.unpack(first)), Entry(*ENTRY.unpack(last))


class Builder:
    """Brings the index of a segment in line with its batches, which are shown to it in order.

    What is already there is kept as far as it is right, so that nothing changes under the eyes of readers.
    """

    def __init__(self, old: bytes, base: int, records: int, interval_bytes: int) -> None:
        self._old = array("q", old[: len(old) - len(old) % ENTRY_BYTES])
        self._old_bytes = len(old)
        self._kept = 0  # cells of _old that are right
        self._new = array("q")
        self._interval_bytes = interval_bytes
        self.offset, self.timestamp, self.records = base, -1, records
        self.last = -1
        """Offset of the last entry."""
        self._due = self._look = base  # the next entry belongs here or later; look closer from here on

    @property
    def size(self) -> int:
        return (self._kept + len(self._new)) * 8

    @property
    def wrong_at(self) -> int | None:
        """Position in the file from which on it is not what was built; None when it is."""
        return 8 * self._kept if self._new or 8 * self._kept != self._old_bytes else None

    def batch(self, size: int, count: int, max_timestamp: int) -> None:
        """The next batch has ``size`` bytes and ``count`` records."""
        if self.offset >= self._look:
            self._boundary(False)
        self.offset += size
        self.records += count
        if max_timestamp > self.timestamp:
            self.timestamp = max_timestamp

    def finish(self, sealed: bool) -> None:
        """There are no more batches."""
        if sealed or self.last < 0 or self._old[self._kept : self._kept + CELLS] == self._here():
            self._boundary(True)
        del self._old[self._kept :]

    def _here(self) -> array[int]:
        return array("q", (self.offset, self.timestamp, self.records))

    def _boundary(self, required: bool) -> None:
        here = self._here()
        old = self._old[self._kept : self._kept + CELLS]
        if old == here:
            self._kept += CELLS
            self.last = self.offset
        elif required or self.offset >= self._due:
            del self._old[self._kept :]
            self._new += here
            self.last = self.offset
        elif old and old[0] <= self.offset:  # points into a batch, or says what is not so
            del self._old[self._kept :]
        if self.last >= 0:
            self._due = self.last + self._interval_bytes
        self._look = self._due
        if self._kept < len(self._old):
            self._look = min(self._due, self._old[self._kept])

    def store(self, path: Path, system: System = SYSTEM) -> None:
        """Make the file what was built."""
        position = 8 * self._kept
        file = File(path, os.O_RDWR | os.O_CREAT, system)
        if self._old_bytes > position:
            system.ftruncate(file.fd, position)
        write_at(file.fd, self._new.tobytes(), position, system)


class IndexFile(File):
    """The reading side.  ``end`` is always what readers may see: nothing above it is looked at or kept."""

    __slots__ = ("_block", "_block_first")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._block: array[int] = array("Q")  # offsets of consecutive entries, from number _block_first
        self._block_first = 0

    def count(self) -> int:
        return os.fstat(self.fd).st_size // ENTRY_BYTES

    def entry(self, number: int) -> Entry:
        data = os.pread(self.fd, ENTRY_BYTES, number * ENTRY_BYTES)
        if len(data) < ENTRY_BYTES:
            raise CorruptLog(str(self.path), number * ENTRY_BYTES, "the index became shorter while being read")
        return Entry(*ENTRY.unpack(data))

    def floor(self, offset: int, end: int) -> tuple[int, int]:
        """Number and offset of the last entry at or below ``offset``; number -1 when there is none."""
        block = self._block
        if not (block and block[0] <= offset < block[-1]):
            self._find_block(offset, end)
            block = self._block
        number = bisect_right(block, offset) - 1
        if number < 0:
            return -1, -1
        return self._block_first + number, block[number]

    def _find_block(self, offset: int, end: int) -> None:
        """Keep the block that ``offset`` belongs to: the next one, or where even spacing puts it, or a search."""
        block = self._block
        if block and offset >= block[-1] and self._load(self._block_first + len(block) - 1, end, offset):
            return
        last = self.count() - 1
        guess = 0
        if last >= BLOCK_ENTRIES:
            low, high = self.entry(0).offset, self.entry(last).offset
            if low <= offset < high:
                guess = max(0, (offset - low) * last // (high - low) - BLOCK_ENTRIES // 2)
        if not self._load(guess, end, offset):
            self._load(self._search(offset), end, offset)

    def _load(self, first: int, end: int, offset: int) -> bool:
        """Keep the block from entry ``first`` on; whether that settles where ``offset`` belongs."""
        data = os.pread(self.fd, BLOCK_ENTRIES * ENTRY_BYTES, first * ENTRY_BYTES)
        cells = array("Q", data[: len(data) - len(data) % ENTRY_BYTES])
        offsets = cells[::CELLS]
        complete = len(offsets) < BLOCK_ENTRIES
        if offsets and offsets[-1] > end:
            del offsets[bisect_right(offsets, end) :]
            complete = True
        self._block, self._block_first = offsets, first
        return bool(offsets) and offsets[0] <= offset and (complete or offset < offsets[-1])

    def _search(self, offset: int) -> int:
        """Number of the last entry at or below ``offset``, else 0."""
        numbers = range(self.count())
        return max(0, bisect_right(numbers, offset, key=lambda number: self.entry(number).offset) - 1)

    def before(self, end: int) -> int:
        """How many entries stand at or below ``end``."""
        return bisect_right(range(self.count()), end, key=lambda number: self.entry(number).offset)

    def reached(self, timestamp: int, count: int) -> int:
        """The first of ``count`` entries before which ``timestamp`` was reached, or ``count``."""
        return bisect_left(range(count), timestamp, key=lambda number: self.entry(number).timestamp)
