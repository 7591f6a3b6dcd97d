"""Finds batches of a segment by offset or by time, in a sparse index file, and counts the records before them.

The file consists of entries of 24 bytes, native (little) endian, ascending::

    0   8   offset      start of a batch, or end of the segment
    8   8   timestamp   largest timestamp of the batches before it in this segment, ms; -1: none
   16   8   records     records before it, counted over the whole life of the log

The first entry is for the base of the segment.  The next ones are each for the first batch that starts at least
``index.interval.bytes`` after the entry before.  Sealing a segment adds a closing entry for its end.  So the index
gives the largest timestamp and the number of records of a sealed segment.  A segment of 1 GiB has 6 MiB of index.

Timestamps start again in each segment.  So one message from the future spoils searches by time in its own segment
only, until that is deleted.  Records are counted over all segments, so the difference between any two offsets is a
number of messages.

The index has no checksum.  Readers check each offset against the batch header in the log (see ``reader``), and recovery
rebuilds the index.  Readers use ``pread``, not ``mmap``: when recovery truncates the file, a mapped access ends in
SIGBUS and a read is only short.  Entries up to the high watermark are final.  Readers ignore the others.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ..durable_files import SYSTEM, File, System, write_at
from ..errors import CorruptLog
from .page_cache import LogFile

ENTRY: Final = struct.Struct("<Qqq")
ENTRY_BYTES: Final = 24
assert ENTRY.size == ENTRY_BYTES
CELLS: Final = ENTRY_BYTES // 8

ANY_INTERVAL: Final = 1 << 62
"""An interval that asks for no entries but the first and the closing one: others are compared, and none is missing."""
BLOCK_ENTRIES: Final = 1024
"""Entries that a reader keeps of each index: a sequential consumer reads the file once every few MiB."""


class IndexEntry(NamedTuple):
    offset: int
    timestamp: int
    records: int


def pack(entries: Iterable[IndexEntry]) -> bytes:
    return b"".join(ENTRY.pack(*entry) for entry in entries)


def entry_in(index: bytes, position: int) -> IndexEntry | None:
    """The entry at a position of an index; None at its end, or when only a part is there."""
    data = index[position : position + ENTRY_BYTES]
    return IndexEntry(*ENTRY.unpack(data)) if len(data) == ENTRY_BYTES else None


def ends(path: Path) -> tuple[IndexEntry, IndexEntry] | None:
    """The first and the last whole entry of an index file; None when it has none."""
    try:
        file = File(path)
    except FileNotFoundError:
        return None
    count = os.fstat(file.fd).st_size // ENTRY_BYTES
    if not count:
        return None
    first, last = (os.pread(file.fd, ENTRY_BYTES, number * ENTRY_BYTES) for number in (0, count - 1))
    return IndexEntry(*ENTRY.unpack(first)), IndexEntry(*ENTRY.unpack(last))


class Builder:
    """Builds the index of a segment from its batches, in order.

    Keeps the entries that are right already, so that readers see no change.
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
        self._due = self._look = base  # the next entry belongs at _due or later; compare batches from _look on

    @property
    def size(self) -> int:
        return (self._kept + len(self._new)) * 8

    @property
    def wrong_at(self) -> int | None:
        """First position at which the file differs from the index built; None when they are equal."""
        return 8 * self._kept if self._new or 8 * self._kept != self._old_bytes else None

    @property
    def rest(self) -> bytes:
        """What belongs from ``wrong_at`` on."""
        return self._new.tobytes()

    def batch(self, size: int, count: int, max_timestamp: int) -> None:
        """Add the next batch, of ``size`` bytes and ``count`` records."""
        if self.offset >= self._look:
            self._boundary(False)
        self.offset += size
        self.records += count
        if max_timestamp > self.timestamp:
            self.timestamp = max_timestamp

    def finish(self, sealed: bool) -> None:
        """End the index: there are no more batches."""
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
        elif old and old[0] <= self.offset:  # points into a batch, or is wrong
            del self._old[self._kept :]
        if self.last >= 0:
            self._due = self.last + self._interval_bytes
        self._look = self._due
        if self._kept < len(self._old):
            self._look = min(self._due, self._old[self._kept])

    def store(self, path: Path, system: System = SYSTEM, *, whole: bool = False) -> None:
        """Write the index to its file: what is wrong there, or, so that it is flushed, the ``whole``."""
        position = 8 * self._kept
        file = File(path, os.O_RDWR | os.O_CREAT, system)
        if self._old_bytes > position:
            system.ftruncate(file.fd, position)
        if whole:
            write_at(file.fd, self._old.tobytes(), 0, system)
        write_at(file.fd, self.rest, position, system)


class IndexFile(LogFile):
    """Reads an index file.  ``end`` is the high watermark: entries above it are neither used nor kept.

    Its methods raise :class:`CorruptLog` when the file cannot be used; the log itself may be whole.
    """

    __slots__ = ("_block", "_block_first")

    def __init__(self, path: Path, system: System = SYSTEM) -> None:
        super().__init__(path, system)
        self._block: array[int] = array("Q")  # offsets of consecutive entries, from number _block_first
        self._block_first = 0

    def count(self) -> int:
        return os.fstat(self.fd).st_size // ENTRY_BYTES

    def entry(self, number: int) -> IndexEntry:
        data = self._read(ENTRY_BYTES, number)
        if len(data) < ENTRY_BYTES:
            raise CorruptLog(str(self.path), number * ENTRY_BYTES, "the index became shorter while being read")
        return IndexEntry(*ENTRY.unpack(data))

    def _read(self, size: int, number: int) -> bytes | bytearray:
        """Up to ``size`` bytes from entry ``number`` on."""
        try:
            return self.read(size, number * ENTRY_BYTES)
        except OSError as error:
            raise CorruptLog(str(self.path), number * ENTRY_BYTES, f"cannot be read: {error.strerror}") from error

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
        """Load the block that contains ``offset``: try the next one, then an interpolated guess, then search."""
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
        """Load the block from entry ``first`` on.  Returns whether the last entry at or below ``offset`` is in it."""
        data = self._read(BLOCK_ENTRIES * ENTRY_BYTES, first)
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

    def count_up_to(self, end: int) -> int:
        """How many entries are at or below the offset ``end``."""
        return bisect_right(range(self.count()), end, key=lambda number: self.entry(number).offset)

    def reached(self, timestamp: int, count: int) -> int:
        """Number of the first of ``count`` entries with at least ``timestamp``; ``count`` when none has."""
        return bisect_left(range(count), timestamp, key=lambda number: self.entry(number).timestamp)
