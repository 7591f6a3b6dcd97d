"""Knows which transactions of a log are open, and keeps the index of those that were aborted (KIP-98).

A transaction of a producer begins with its first transactional batch behind its last marker, and ends with the next
marker (``records.markers``).  Its *first offset* is where that batch begins.  The *last stable offset* is the lowest
first offset of the open ones: below it, it is decided what readers of committed messages get.  A transaction whose
marker is not below the high watermark is open to readers.

The index of a segment, ``<base>.txnindex``, has an entry for each transaction that was aborted by a marker in that
segment, in their order, big-endian as Kafka's::

    i16 version (0)   i64 producer id   i64 first offset   i64 offset of the marker   i64 last stable offset behind it

A segment without such a marker has no such file.  The entry is written before its marker.  It is on the disk before a
snapshot of the producers is that covers the marker (``processes.writer.producers``): whoever opens the log derives all
later entries from the batches again (:meth:`AbortedIndex.restore`).  An entry may outlive the messages of its
transaction, which compaction takes, and never its marker.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from ..durable_files import SYSTEM, File, System, remove_file, sync_directory, write_at
from ..errors import StorageFault
from ..records.batch import TRANSACTIONAL, BatchHeader, read_header
from ..records.markers import MARKER_BYTES, is_marker, read_marker
from .files import NAME_DIGITS, base_of, log_path

SUFFIX: Final = ".txnindex"
ENTRY: Final = Struct(">hqqqq")
ENTRY_BYTES: Final = ENTRY.size
assert ENTRY_BYTES == 34
VERSION: Final = 0
UNSYNCED_MAX: Final = 16
"""Index files that are open until they are flushed: for one more, all are."""


class Aborted(NamedTuple):
    """A transaction that was aborted: ``last`` is the offset of its marker, ``stable`` the last stable offset then."""

    producer_id: int
    first: int
    last: int
    stable: int

    def pack(self) -> bytes:
        return ENTRY.pack(VERSION, *self)


class LogTransactions:
    """The open transactions of a log.  Both threads of a writer use it."""

    def __init__(self, firsts: Iterable[tuple[int, int]] = ()) -> None:
        """``firsts``: the open ones, by producer id, with their first offsets."""
        self._lock = threading.Lock()
        self._open: OrderedDict[int, int] = OrderedDict(sorted(firsts, key=lambda transaction: transaction[1]))
        self._ended: deque[tuple[int, int]] = deque()
        """First offset and end of the marker of those that are open to readers only."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._open

    def note_batch(self, producer_id: int, first: int) -> None:
        """Note a transactional batch at ``first``; the first one of a transaction begins it."""
        with self._lock:
            self._open.setdefault(producer_id, first)

    def aborted(self, producer_id: int, stop: int) -> Aborted | None:
        """The entry for an abort by a marker that ends at ``stop``; None if nothing is open."""
        first = self._open.get(producer_id)
        if first is None:
            return None
        others = (other for open_id, other in self._open.items() if open_id != producer_id)
        return Aborted(producer_id, first, stop - 1, next(others, stop))

    def note_marker(self, producer_id: int, stop: int) -> None:
        """Note a marker that ends at ``stop``."""
        with self._lock:
            first = self._open.pop(producer_id, None)
            if first is not None:
                self._ended.append((first, stop))

    def stable(self, high_watermark: int) -> int:
        """The last stable offset of readers who read up to ``high_watermark``; that only grows."""
        with self._lock:
            while self._ended and self._ended[0][1] <= high_watermark:
                self._ended.popleft()
            firsts = [first for first, _ in self._ended]
            if self._open:
                firsts.append(next(iter(self._open.values())))
            return min([high_watermark, *firsts])


def aborted_path(directory: Path, base: int) -> Path:
    return directory / f"{base:0{NAME_DIGITS}d}{SUFFIX}"


def indexed(directory: Path) -> dict[int, int]:
    """Bases of the segments that have an index of aborted transactions, and its size in bytes, ascending."""
    offsets: dict[int, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            base = base_of(entry.name, SUFFIX)
            if base is not None:
                offsets[base] = entry.stat().st_size
    return dict(sorted(offsets.items()))


def read_aborted(path: Path) -> list[Aborted]:
    """The whole entries of an index file; none without one."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return list(unpack(data))


def unpack(data: bytes | bytearray) -> Iterator[Aborted]:
    for _, *fields in ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_BYTES]):
        yield Aborted(*fields)


class Outcomes:
    """How the transactions ended that have batches in the segment [start, stop) of a log, which is stable."""

    def __init__(self, directory: Path, start: int, stop: int) -> None:
        """Raises OSError: an index cannot be read."""
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for base in indexed(directory):
            for entry in read_aborted(aborted_path(directory, base)) if base >= start else ():
                if entry.first < stop:
                    self._aborted.setdefault(entry.producer_id, []).append((entry.last, entry.first))
                if entry.stable >= stop:
                    return

    def is_aborted(self, header: BatchHeader, start: int) -> bool:
        """Whether the batch at offset ``start`` is part of an aborted transaction."""
        if not header.attributes & TRANSACTIONAL or is_marker(header):
            return False
        spans = self._aborted.get(header.producer_id, [])
        number = bisect_left(spans, (start, 0))
        return number < len(spans) and spans[number][1] <= start


class AbortedIndex:
    """Writes the index files of one log; its writer does."""

    def __init__(self, directory: Path, system: System = SYSTEM) -> None:
        self._directory, self._system = directory, system
        self._lock = threading.Lock()
        self._unsynced: dict[int, File] = {}
        self._names_unsynced = False
        self.count = sum(indexed(directory).values()) // ENTRY_BYTES
        """Entries when the log was opened, and those written since."""

    def append(self, base: int, entry: Aborted) -> bool:
        """Add an entry to the index of the active segment; whether it is the first one there.

        Raises:
            OSError: nothing has changed, unless it cannot be undone.
            StorageFault: it cannot.
        """
        size = self._size(base)
        file = self._open(base)
        try:
            write_at(file.fd, entry.pack(), size, self._system)
        except OSError:
            self.cut(base, size)
            raise
        with self._lock:  # another thread may have flushed it before it was written
            self._unsynced[base] = file
        self.count += 1
        return size == 0

    def take_back(self, base: int) -> None:
        """Remove the last entry: its marker could not be written.

        Raises:
            StorageFault: the disk fails.
        """
        self.count -= 1
        self.cut(base, self._size(base) - ENTRY_BYTES)

    def cut(self, base: int, size: int) -> None:
        try:
            self._system.ftruncate(self._open(base).fd, size)
        except OSError as error:
            path = aborted_path(self._directory, base)
            raise StorageFault(f"{path}: cannot truncate a failed write: {error.strerror}") from error

    def _size(self, base: int) -> int:
        try:
            return aborted_path(self._directory, base).stat().st_size
        except FileNotFoundError:
            return 0

    def _open(self, base: int) -> File:
        path = aborted_path(self._directory, base)
        if base not in self._unsynced and len(self._unsynced) >= UNSYNCED_MAX:
            self.sync()
        with self._lock:
            self._names_unsynced |= not path.exists()
            file = self._unsynced.get(base)
            if file is None:
                file = File(path, os.O_RDWR | os.O_CREAT, self._system)
                self._unsynced[base] = file
            return file

    def sync(self) -> None:
        """Make all entries durable.  Any thread may.

        Raises:
            StorageFault: the disk fails; nothing that was written since the last call is sure to be on it.
        """
        with self._lock:
            unsynced, self._unsynced = self._unsynced, {}
            names, self._names_unsynced = self._names_unsynced, False
        try:
            for file in unsynced.values():
                self._system.fdatasync(file.fd)
            if names:
                sync_directory(self._directory, self._system)
        except OSError as error:
            raise StorageFault(f"{self._directory}: an index cannot be flushed: {error.strerror}") from error

    def remove(self, base: int) -> bool:
        """Remove the index of a segment, if it has one; whether it had."""
        with self._lock:
            self._unsynced.pop(base, None)
        return remove_file(aborted_path(self._directory, base), self._system)

    def _durable(self, base: int, stop: int, entries: Sequence[Aborted]) -> list[Aborted]:
        """The entries of markers before ``stop``.  What follows them may be anything, after a power loss."""
        kept: list[Aborted] = []
        for entry in entries:
            after = kept[-1].last if kept else base
            if not (after < entry.last < stop and entry.first < entry.last):
                break
            kept.append(entry)
        if kept and not self._has_marker(base, kept[-1]):  # a torn one, of a later marker
            kept.pop()
        return kept

    def _has_marker(self, base: int, entry: Aborted) -> bool:
        file = File(log_path(self._directory, base))
        data = os.pread(file.fd, MARKER_BYTES, max(0, entry.last + 1 - MARKER_BYTES - base))
        return (
            len(data) == MARKER_BYTES
            and is_marker(header := read_header(data, 0))
            and header.producer_id == entry.producer_id
            and not read_marker(data).committed
        )

    def restore(self, bases: Sequence[int], end: int, start: int, derived: Sequence[Aborted]) -> None:
        """Make the files say what they said of markers before ``start``, and from there on what was derived.

        Args:
            bases: of the log's segments; ``end``: its log end offset.

        Raises:
            OSError: the disk fails, or is full.
        """
        there, count = indexed(self._directory), 0
        for base in set(there) - set(bases):
            self.remove(base)
        for base, limit in pairwise([*bases, max(end, bases[-1]) + 1]):
            entries = read_aborted(aborted_path(self._directory, base)) if base in there else []
            kept = self._durable(base, min(start, limit), entries)
            new = [entry for entry in derived if base <= entry.last < limit]
            count += len(kept) + len(new)
            if kept + new != entries or there.get(base, 0) % ENTRY_BYTES:
                file = self._open(base)
                self._system.ftruncate(file.fd, len(kept) * ENTRY_BYTES)
                data = b"".join(entry.pack() for entry in new)
                write_at(file.fd, data, len(kept) * ENTRY_BYTES, self._system)
            elif new:
                self._open(base)  # whoever wrote it may have died before it was flushed
        self._names_unsynced |= bool(derived)
        self.count = count
