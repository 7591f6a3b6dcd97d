"""Compares the index files of sealed segments with the batches that a scrub reads, and mends them.

An index follows from the batches of its segment: a wrong one is no damage of data.  Until it is mended, searches by
offset are slower, searches by time find other messages, and numbers of messages are wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from ..durable_files import File, remove_file, write_at
from ..records.batch import BatchHeader
from .files import index_path, log_path
from .index import ANY_INTERVAL, Builder, IndexEntry, ends, entry_in
from .recovery import check_retired, read_index
from .segment import headers

INTERVAL_BYTES: Final = 4096
"""The interval of entries in an index that is made anew: that of its topic is not known here."""


class MendedIndex(NamedTuple):
    """An index that was wrong: the first entry that was, None: missing, and what it has to be, None: nothing."""

    path: Path
    position: int
    was: IndexEntry | None
    is_now: IndexEntry | None

    def __str__(self) -> str:
        return f"{self.path}:{self.position}: {self.was} instead of {self.is_now}"


class IndexCheck:
    """Call :meth:`on_batch` for each batch, in the order of the log, then :meth:`finish`.  The index of a segment is
    compared when all its batches have come.  That of the active segment is the writer's, and left alone.
    """

    def __init__(
        self, directory: Path, bases: Sequence[int], may_write: Callable[[], bool], pace: Callable[[int], None]
    ) -> None:
        """``may_write`` is asked before a file is changed; ``pace`` is told how many bytes more were read."""
        self._directory, self._bases = directory, bases
        self._stops = dict(pairwise(bases))
        self._may_write, self._pace = may_write, pace
        self._base = self._before = 0
        self._index = b""
        self._builder: Builder | None = None
        self._counts: dict[int, int] = {}
        """Numbers of records of the segments all of whose batches have come, by base."""
        self.mended: list[MendedIndex] = []

    def on_batch(self, start: int, header: BatchHeader) -> None:
        """Note the batch that begins at offset ``start``.

        Raises:
            StorageFault, OSError: a file cannot be read or written.
        """
        if self._builder is None or start != self._builder.offset:
            self._begin(start)
        builder = self._builder
        if builder is None:
            return
        builder.batch(header.size, header.count, header.max_timestamp)
        if builder.offset == self._stops[self._base]:
            self._builder = None
            self._counts[self._base] = builder.records - self._before
            builder.finish(sealed=True)
            if builder.wrong_at is not None:
                self._mend(self._base, self._before)

    def note_count(self, base: int, count: int) -> None:
        """Note the number of records of a segment, holes included, in place of its batches."""
        self._counts[base] = count

    def _begin(self, start: int) -> None:
        """Begin a segment, if one begins there."""
        self._builder = None
        if start in self._stops:
            first = _first_entry(self._directory, start)
            self._base, self._before = start, 0 if first is None else first.records
            self._builder = Builder(read_index(self._directory, start), start, self._before, ANY_INTERVAL)

    def finish(self) -> None:
        """Let the records be counted on from segment to segment, up to the active one, whose writer counts on.

        Raises:
            StorageFault, OSError: a file cannot be read or written.
        """
        for base, following in reversed(list(pairwise(self._bases))):
            first, next_one = _first_entry(self._directory, base), _first_entry(self._directory, following)
            count = self._counts.get(base)
            if first is not None and next_one is not None and count is not None:
                before = next_one.records - count
                if first.records != before:
                    self._mend(base, before)

    def _mend(self, base: int, before: int) -> None:
        """Make an index anew, with ``before`` records before it, unless retention removes its segment."""
        index, path = read_index(self._directory, base), index_path(self._directory, base)
        log = log_path(self._directory, base)
        try:
            segment = File(log)
        except FileNotFoundError:
            check_retired(log, self._stops[base])
            return
        builder = Builder(index, base, before, INTERVAL_BYTES)
        for _, header in headers(segment, base, 0, self._stops[base] - base):
            builder.batch(header.size, header.count, header.max_timestamp)
            self._pace(header.size)
        builder.finish(sealed=True)
        if builder.wrong_at is None or not self._may_write() or (file := open_to_mend(path, log)) is None:
            return
        # Readers have the file open, and may look at it now: it never becomes shorter than it has to be.
        write_at(file.fd, builder.rest, builder.wrong_at)
        os.ftruncate(file.fd, builder.size)
        os.fdatasync(file.fd)
        at = builder.wrong_at
        self.mended.append(MendedIndex(path, at, entry_in(index, at), entry_in(builder.rest, 0)))


def open_to_mend(path: Path, log: Path) -> File | None:
    """Open or make a file that follows from the segment in ``log``; None if retention has removed that meanwhile.

    Retention unlinks the segment first, then this file.  One that was made behind it is removed here.
    """
    try:
        return File(path, os.O_RDWR)
    except FileNotFoundError:
        file = File(path, os.O_RDWR | os.O_CREAT)
    if log.exists():
        return file
    remove_file(path)
    return None


def _first_entry(directory: Path, base: int) -> IndexEntry | None:
    """The first entry of the index of a segment, if it is for its base."""
    entries = ends(index_path(directory, base))
    return entries[0] if entries is not None and entries[0].offset == base else None
