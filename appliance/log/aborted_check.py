"""Compares the indexes of aborted transactions (:mod:`.transactions`) with the batches of a log, and mends them.

An index follows from the batches: a wrong one is no damage of data.  Until it is mended, readers of committed messages
get those of aborted transactions, or lack committed ones.

A hole (``records.holes``) may stand where a marker was.  So the batches seem to say that a transaction goes on which
has ended: there the index, which was written when the marker was there, knows better.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..durable_files import File, write_at
from ..records.batch import TRANSACTIONAL, BatchHeader, read_header
from ..records.holes import is_hole
from ..records.markers import MARKER_BYTES, is_marker, read_marker
from .files import log_path
from .index_check import open_to_mend
from .transactions import ENTRY_BYTES, Aborted, LogTransactions, aborted_path, read_aborted

PRODUCERS_MAX: Final = 100_000
"""Producers of which it is remembered where their last transaction has ended."""
HOLES_MAX: Final = 100_000
"""Stretches of holes that are told from each other: of more, the first ones count as one, with what is in between."""


class _Holes:
    """Where holes are: stretches that do not touch each other, ascending."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def note_hole(self, start: int, stop: int) -> None:
        if self._stops and self._stops[-1] == start:
            self._stops[-1] = stop
            return
        self._starts.append(start)
        self._stops.append(stop)
        if len(self._starts) > HOLES_MAX:
            del self._starts[1], self._stops[0]

    def are_in(self, start: int, stop: int) -> bool:
        """Whether a part of [start, stop) is in a hole."""
        number = bisect_right(self._stops, start)
        return start < stop and number < len(self._starts) and self._starts[number] < stop

    def cover(self, start: int, stop: int) -> bool:
        number = bisect_right(self._starts, start) - 1
        return number >= 0 and stop <= self._stops[number]


class _Abort(NamedTuple):
    """A marker of an abort.  ``after``: where the producer's marker before it ends; ``entry``: what the batches say.

    ``stable``: the last stable offset behind it, by the batches.
    """

    producer_id: int
    after: int
    entry: Aborted | None
    stable: int


class AbortedCheck:
    """Takes all batches of a log in order.  ``transactions``: those that are open behind the last one.

    The batches tell less than an index may know: retention and compaction take messages of aborted transactions, and
    leave the marker.
    """

    def __init__(self) -> None:
        self.transactions = LogTransactions()
        self._aborts: dict[int, _Abort] = {}
        self._ends: dict[int, int] = {}
        self._holes = _Holes()

    def batch(self, start: int, header: BatchHeader, data: memoryview) -> None:
        """Take the batch that begins at offset ``start``."""
        producer_id = header.producer_id
        if is_marker(header):
            stop = start + header.size
            after = self._ends.pop(producer_id, 0)
            aborts = not read_marker(data).committed
            entry = self.transactions.aborted(producer_id, stop) if aborts else None
            self.transactions.note_marker(producer_id, stop)
            stable = self.transactions.stable(stop)
            if aborts:
                self._aborts[stop - 1] = _Abort(producer_id, after, entry, stable)
            self._ends[producer_id] = stop
            if len(self._ends) > PRODUCERS_MAX:
                del self._ends[next(iter(self._ends))]
        elif is_hole(header):
            self._holes.note_hole(start, start + header.size)
        elif header.attributes & TRANSACTIONAL:
            self.transactions.note_batch(producer_id, start)

    def compare(self, path: Path, base: int, limit: int, *, is_last: bool) -> tuple[list[Aborted], list[Aborted]]:
        """What the index ``path`` of the segment [base, limit) says, and what it has to say.

        ``is_last``: the log ends at ``limit``, and an entry is written before its marker.
        """
        entries = [entry for entry in read_aborted(path) if not is_last or entry.last < limit]
        return entries, self.right(base, limit, entries)

    def right(self, base: int, limit: int, entries_there: Sequence[Aborted]) -> list[Aborted]:
        """What the index of the segment [base, limit) has to say, of which ``entries_there`` is there."""
        by_last = {entry.last: entry for entry in entries_there}
        entries: list[Aborted] = []
        for last, abort in self._aborts.items():
            if base <= last < limit:
                there = by_last.get(last)
                if there is not None and self._may_be(there, abort):
                    entries.append(there)
                elif abort.entry is not None:
                    entries.append(abort.entry)
        entries += [there for there in by_last.values() if base <= there.last < limit and self._lost(there, entries)]
        return sorted(entries, key=lambda entry: entry.last)

    def _may_be(self, there: Aborted, abort: _Abort) -> bool:
        """Whether an entry of the index may be right, by the batches and the holes between them."""
        first, last, stable = there.first, there.last, abort.stable
        latest = last if abort.entry is None else abort.entry.first
        begins = abort.after <= first <= latest or (latest < first < last and self._holes.are_in(latest, first))
        is_stable = there.stable <= stable or (there.stable <= last + 1 and self._holes.are_in(stable, there.stable))
        return there.producer_id == abort.producer_id and begins and is_stable

    def _lost(self, there: Aborted, entries: Sequence[Aborted]) -> bool:
        """Whether an entry may be that of a marker which has become a hole; ``entries``: those of the other markers."""
        stop = there.last + 1
        return (
            there.first < there.last
            and there.stable <= stop
            and self._holes.cover(stop - MARKER_BYTES, stop)
            and not any(
                other.producer_id == there.producer_id and other.first < stop and there.first <= other.last
                for other in entries
            )
        )

    def forget(self) -> None:
        """Forget the markers that have come: their indexes are compared."""
        self._aborts.clear()


class WrongAborted(NamedTuple):
    """An index that was, or is, wrong: what it said, and what the batches say."""

    path: Path
    was: list[Aborted]
    right: list[Aborted]

    def __str__(self) -> str:
        return f"{self.path}: {self.was} instead of {self.right}"


class AbortedIndexCheck:
    """Call :meth:`on_batch` for each batch that a scrub reads, in the order of the log, then :meth:`finish`.

    What a marker ends may have begun in any segment before, so only a scrub of the whole log, without damage before a
    segment, says what its index has to be.  That of the active segment is the writer's, and left alone.

    Attributes:
        mended: the indexes of sealed segments that were wrong.
        wrong: that of the active segment, if it is.
    """

    def __init__(self, directory: Path, bases: Sequence[int], end: int, may_write: Callable[[], bool]) -> None:
        """``end``: the high watermark; ``may_write`` is asked before a file is changed."""
        self._directory, self._may_write = directory, may_write
        self._limits = dict(zip(bases, [*bases[1:], end], strict=True))
        self._active = bases[-1]
        self._files: dict[int, tuple[int, int]] = {}
        """Device and inode of the segments that were read, by base."""
        self._file: File | None = None
        self._base = self._next = bases[0]
        self._check = AbortedCheck()
        self.mended: list[WrongAborted] = []
        self.wrong: WrongAborted | None = None

    def on_batch(self, start: int, header: BatchHeader) -> None:
        """Note the batch that begins at offset ``start``.

        Raises:
            StorageFault, OSError: a file cannot be read or written.
        """
        if start != self._next:  # the scrub has begun here, or what is before it is damaged, or removed
            return
        if start in self._limits:
            self._base, self._file = start, None
            if (identity := self._identity(start)) is not None:
                self._files[start] = identity
        data = self._marker(start) if is_marker(header) else b""
        if data is None:
            self._next = -1
            return
        self._check.batch(start, header, memoryview(data))
        self._next = start + header.size
        if self._base != self._active and self._next == self._limits[self._base]:
            self._compare()

    def finish(self) -> None:
        """Raises as :meth:`on_batch`."""
        if self._base == self._active and self._next == self._limits[self._active]:
            self._compare()

    def _marker(self, start: int) -> bytes | None:
        """A marker; None if the segment was compacted or removed since."""
        if self._file is None:
            try:
                self._file = File(log_path(self._directory, self._base))
            except FileNotFoundError:
                return None
        data = os.pread(self._file.fd, MARKER_BYTES, start - self._base)
        return data if len(data) == MARKER_BYTES and is_marker(read_header(data, 0)) else None

    def _identity(self, base: int) -> tuple[int, int] | None:
        """Device and inode of a segment; None if retention has removed it."""
        try:
            status = log_path(self._directory, base).stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _compare(self) -> None:
        base, path = self._base, aborted_path(self._directory, self._base)
        limit = self._limits[base]
        entries, right = self._check.compare(path, base, limit, is_last=base == self._active)
        self._check.forget()
        if entries == right:
            return
        if any(self._identity(read_base) not in (identity, None) for read_base, identity in self._files.items()):
            self._next = -1  # compaction has put another file there: what was read does not belong together
        elif base == self._active:
            self.wrong = WrongAborted(path, entries, right)
        elif self._may_write() and (file := open_to_mend(path, log_path(self._directory, base))) is not None:
            # Readers may look at it now: it never becomes shorter than it has to be.
            write_at(file.fd, b"".join(entry.pack() for entry in right), 0)
            os.ftruncate(file.fd, len(right) * ENTRY_BYTES)
            os.fdatasync(file.fd)
            self.mended.append(WrongAborted(path, entries, right))
