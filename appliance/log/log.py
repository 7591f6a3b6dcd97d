"""Writes one partition's log: append, flush, publish, roll, retire.  Each log has one writer.

Four offsets: ``start`` (log start offset), ``high_watermark``, ``flushed``, ``end_offset`` (log end offset).
``start <= high_watermark <= flushed <= end_offset`` when each group of batches is flushed before readers may read it.
In a topic that leaves flushing to the operating system, ``high_watermark`` may be ahead of ``flushed``.

Flushing takes three steps, so that writing continues during the sync::

    ticket = log.flush_begin()  # the writer's loop: lists what to sync
    ticket.sync()  # any thread: slow, releases the interpreter's lock, does not touch the log
    log.flush_done(ticket)  # either thread, in the order of flush_begin

A ticket covers everything that is written but not known to be flushed.  So a later ticket replaces one that was never
synced.  A failed sync is never tried again: the kernel may have dropped the pages and would then report success.  The
recovery point records the failure, so that recovery reads the disk and not the page cache.

A descriptor outlives the name of its file.  So each flush, after its sync, looks whether the path of the active segment
still leads to the file that was written, with all its bytes: nothing is acknowledged into a file that nobody will find.

Appending is all or nothing, also across a roll.  A full disk (:class:`DiskFull`) or a lack of descriptors for a roll
(:class:`OutOfResources`) leaves the log unchanged: try again later.  Any other failure of the disk is a
:class:`StorageFault`: this process writes no more to the log.

The order of writes to the disk, so that the log opens after a power loss at any moment::

    on the disk first                         before
    the recovery point                        the first append: it distinguishes a torn write from damage
    the removal of the clean-shutdown marker  the first append, and a move of the start
    a group of batches, the names of new      the flushed offset covers the group: the ticket has all of these
    files, and sealed indexes
    the start, and the names of the           the segments before the start are unlinked
    remaining segments

A clock that cannot be set (``steady_ms``) measures the ages of segments.  The time of day (``clock_ms``) only gives the
age of a segment when the log is opened.  So a jump of the time of day neither rolls a segment nor delays a roll.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..config import TopicSettings
from ..durable_files import DIRECTORY_MODE, SYSTEM, File, System, remove_file, sync_directory
from ..errors import LACKS, NO_ROOM, DiskFull, OutOfResources, StorageFault, disk_fault
from ..partition_states import DISK_FULL, OFFLINE, ONLINE
from ..records.batch import BatchHeader
from . import files
from .files import compacted_path, index_path, log_path
from .flush_ticket import FlushTicket, Unsynced
from .recovery import (
    MARKER_NAME,
    Boot,
    CleanMarker,
    Derived,
    LogSummary,
    RecoveryPoint,
    boot_id,
    check_kept,
    recover,
)
from .segment import Batches, Segment
from .segment_list import SegmentList
from .transactions import Aborted, AbortedIndex, LogTransactions

logger = logging.getLogger(__name__)

SEGMENTS_MAX: Final = 2000
"""Where no segment table shows the log, which has fewer rows."""


class Log:
    """One partition's log, open for writing, with all methods that change it.  ``settings`` may be replaced."""

    def __init__(
        self,
        path: Path,
        settings: TopicSettings,
        clock_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        segments_max: int,
        system: System,
        point: RecoveryPoint,
        boot: Boot,
    ) -> None:
        """See :meth:`open`."""
        self.path = path
        self.settings = settings
        self.state = ONLINE
        self.start = self.flushed = self.high_watermark = 0
        self.transactions = LogTransactions()
        """The open ones; whoever knows the log's producers puts them here, when the log has been opened."""
        self.aborted: AbortedIndex
        self._clock_ms, self._steady_ms = clock_ms, steady_ms
        self._segments_max = segments_max
        self._system = system
        self._point = point
        self._segments: SegmentList
        self._unsynced: Unsynced
        self._directory: File
        self._retired: list[int] = []  # bases of segments that readers may not read any more
        self._marked = False  # there is a clean-shutdown marker
        with self._disk():
            self._open(boot)

    @classmethod
    def open(
        cls,
        path: Path,
        settings: TopicSettings,
        clock_ms: Callable[[], int],
        segments_max: int = SEGMENTS_MAX,
        *,
        may_make: bool = True,
        steady_ms: Callable[[], int] | None = None,
        boot: Boot | None = None,
        system: System = SYSTEM,
    ) -> Log:
        """Open for writing, or make, the log in directory ``path``; whatever it then holds is on the disk.

        A log is made once: where it has been open before, a directory without one has lost it (``may_make=False``).

        Args:
            clock_ms: the time of day.
            steady_ms: a clock that cannot be set; by default ``clock_ms``.
            segments_max: with so many segments the active one grows on instead of being rolled.
            boot: which boot of the machine this is.

        Raises:
            CorruptLog: data below the high watermark, or flushed data, is damaged.
            StorageFault: the disk fails, or the log is lost.
            DiskFull: there is no room for the little that opening writes.
        """
        try:
            if not may_make:
                check_kept(path)
            if not path.is_dir():
                system.mkdir(path, DIRECTORY_MODE)
            point = RecoveryPoint(path, system)
            if not point.valid:  # never fully opened: the directory's name may not be on the disk
                sync_directory(path.parent, system)
        except OSError as error:
            raise disk_fault(error, path) from error
        return cls(path, settings, clock_ms, steady_ms or clock_ms, segments_max, system, point, boot or boot_id())

    def _open(self, boot: Boot) -> None:
        point = self._point
        # Stays open: a lack of descriptors must not look like a failed flush.
        self._directory = File(self.path, os.O_RDONLY | os.O_DIRECTORY, self._system)
        marker = CleanMarker.load(self.path)
        if marker is not None and marker.fits(self.path):
            bases, self.start, state = marker.bases, marker.start, marker.state
            self._marked = True
        else:
            interval_bytes = self.settings.index_interval_bytes
            recovered = recover(self.path, point, boot, interval_bytes, self._clock_ms(), self._system, marker)
            self._remove_marker()  # not before: a log that cannot be recovered keeps what says how it was
            for file in recovered.touched:
                self._system.fdatasync(file.fd)
            self._system.fsync(self._directory.fd)
            bases, self.start, state = recovered.bases, recovered.start, recovered.state
        self._unsynced = Unsynced(self._directory)
        self.aborted = AbortedIndex(self.path, self._system)
        self._segments = SegmentList(
            self.path,
            bases,
            Segment(self.path, bases[-1], state, self._system),
            directory=self._directory,
            unsynced=self._unsynced,
            point=point,
            system=self._system,
            clock_ms=self._clock_ms,
            steady_ms=self._steady_ms,
            segments_max=self._segments_max,
        )
        self.flushed = self.high_watermark = state.end
        point.begin(boot, state.end, self.start, state.born_ms)
        point.sync()

    @property
    def bases(self) -> list[int]:
        """Bases of the segments, ascending; the last one is active."""
        return self._segments.bases

    @property
    def end_offset(self) -> int:
        """Log end offset: the next batch starts here."""
        return self._segments.active.end

    @property
    def records(self) -> int:
        """Number of records written over the life of the log."""
        return self._segments.active.state.records

    @property
    def summary(self) -> LogSummary:
        """As readers may see it that read up to the end."""
        end = self.end_offset
        stable, has_aborted = self.transactions.stable(end), self.aborted.count > 0
        return LogSummary(tuple(self.bases), self.start, end, self.records, stable, has_aborted)

    @property
    def derived(self) -> Derived:
        """What this process knows of the log beside its batches."""
        state = self._segments.active.state
        return Derived(tuple(self.bases), self.start, self.high_watermark, self.flushed, state, tuple(self._retired))

    # ---- writing

    def append(self, batches: Batches) -> tuple[int, int]:
        """Append all of these checked batches, placed from ``end_offset`` on, or none; return their bytes and records.

        Raises:
            DiskFull, OutOfResources: try again when there is room.
            StorageFault: the disk fails.
        """
        if not batches:
            return 0, 0
        view, header = batches[0]
        assert int.from_bytes(view[:8], "big") == self._segments.active.end + header.size - header.span, "not placed"
        size = records = 0
        for _, header in batches:
            size += header[0]
            records += header[1]
        with self._disk():
            if self._marked:
                self._remove_marker()
            self._segments.append(batches, size, self.settings)
        self.state = ONLINE
        return size, records

    def append_marker(self, view: memoryview, header: BatchHeader, aborted: Aborted | None) -> bool:
        """Append a placed marker, and before it its entry in the index of ``aborted`` transactions.

        Returns:
            Whether there is another index now, for which readers have to look.

        Raises:
            DiskFull, OutOfResources: nothing has changed: try again when there is room.
            StorageFault: the disk fails.
        """
        with self._disk():
            if self._marked:
                self._remove_marker()
            self._segments.make_room(header.size, self.settings)
            base, is_first = self.bases[-1], False
            if aborted is not None:
                is_first = self.aborted.append(base, aborted)
            try:
                self._segments.active.append([(view, header)], self.settings.index_interval_bytes)
            except OSError:
                if aborted is not None:
                    self.aborted.take_back(base)
                raise
        self.state = ONLINE
        return is_first

    def roll(self) -> None:
        """Seal the active segment and start the next one.  An empty segment stays; its age restarts at 0.

        Raises:
            DiskFull, OutOfResources: nothing has changed.
            StorageFault: the disk fails.
        """
        with self._disk():
            self._roll()

    def _roll(self) -> None:
        active = self._segments.active
        if self._marked and active.end > active.base:
            self._remove_marker()
        self._segments.roll()

    def _remove_marker(self) -> None:
        if remove_file(self.path / MARKER_NAME, self._system) or self._marked:
            self._system.fsync(self._directory.fd)
        self._marked = False

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Turn errors of the operating system into the appliance's."""
        try:
            yield
        except OSError as error:
            raise self._failed(error) from error
        except StorageFault:
            self.state = OFFLINE
            raise

    def _failed(self, error: OSError) -> DiskFull | OutOfResources | StorageFault:
        if error.errno in LACKS - NO_ROOM:
            return OutOfResources(f"{error.filename or self.path}: {error.strerror}: try again")
        fault = disk_fault(error, self.path)
        if isinstance(fault, DiskFull):
            self.state = DISK_FULL
        else:
            self.state = OFFLINE
            self._point.set_faulted()
        return fault

    # ---- flushing and publishing

    def begin_write_back(self, size: int) -> None:
        """Let the disk begin with the last ``size`` bytes, which are about to be flushed."""
        active = self._segments.active
        start = max(0, active.end - active.base - size)
        self._system.begin_write_back(active.log.fd, start, size)

    def flush_begin(self) -> FlushTicket:
        """Make a ticket for everything written so far; any thread may sync it."""
        return self._unsynced.ticket(self._segments.active, self._point, self._system)

    def flush_done(self, ticket: FlushTicket) -> None:
        """Raise the flushed offset: ``ticket`` has been synced."""
        self._unsynced.on_synced(ticket)
        if ticket.end > self.flushed:
            self.flushed = ticket.end
            self._point.set_flushed(ticket.end)

    def flush(self) -> None:
        """Do all three steps of a flush in this thread."""
        ticket = self.flush_begin()
        try:
            ticket.sync()
        except StorageFault:
            self.state = OFFLINE
            raise
        self.flush_done(ticket)

    def check_named(self) -> None:
        """Check that what is written goes into the log's file, without waiting for a flush, which checks it, too.

        Raises:
            StorageFault: the file was removed, renamed, replaced or truncated: acknowledge nothing more.
        """
        active = self._segments.active
        try:
            active.check_named(active.end)
        except StorageFault:
            self.state = OFFLINE
            self._point.set_faulted()
            raise

    def raise_high_watermark(self, end: int) -> None:
        """Set the high watermark to ``end``; call it before readers see it."""
        assert self.high_watermark <= end <= self._segments.active.end
        self.high_watermark = end
        self._point.set_high_watermark(end)

    # ---- retention

    def first_base(self, start: int) -> int:
        """Base of the first segment that remains when the log starts at ``start``."""
        return start if start == self.end_offset else self.bases[max(0, bisect_right(self.bases, start) - 1)]

    def retire_before(self, offset: int) -> None:
        """Raise the log start offset to ``offset``, but not above the high watermark or the flushed offset.

        Removes whole segments before it from ``bases``.  When nothing remains, the active segment is rolled first, so
        that it can be removed too.  Without room for a new segment it stays and only the start moves.  Publish the new
        start to readers, then call :meth:`unlink_retired`.
        """
        start = max(self.start, min(offset, self.high_watermark, self.flushed))
        active = self._segments.active
        all_goes = offset >= start == active.end > active.base  # also when there was no room for that the last time
        if start > self.start or all_goes:
            with self._disk():
                self._remove_marker()
                if all_goes:
                    self._roll_if_room()
                self.start = start
                self._point.set_start(start)
                # Before files are unlinked: recovery must not take a missing segment for a lost one.
                self._point.sync()
        while len(self.bases) > 1 and self.bases[1] <= start:
            self._retired.append(self.bases.pop(0))

    def _roll_if_room(self) -> None:
        try:
            self._roll()
        except OSError as error:
            if error.errno not in NO_ROOM | LACKS:
                raise
            logger.warning("%s: the active segment stays: %s", self.path, error.strerror)

    @property
    def must_flush_to_unlink(self) -> bool:
        """Whether :meth:`unlink_retired` needs a flush first: names of the remaining segments may not be durable."""
        return self._unsynced.names_needed

    def unlink_retired(self) -> int:
        """Unlink the files of the segments that :meth:`retire_before` removed.  Returns the number of files."""
        assert not (self._retired and self.must_flush_to_unlink), "flush first"
        count = 0
        with self._disk():
            while self._retired:
                for path in (log_path(self.path, self._retired[0]), index_path(self.path, self._retired[0])):
                    count += remove_file(path, self._system)
                count += self.aborted.remove(self._retired[0])
                self._unsynced.on_unlinked()
                del self._retired[0]
        return count

    # ---- compaction

    def swap(self, base: int) -> bool:
        """Put the file that compaction has written in the place of a sealed segment (``compaction`` has the steps).

        Readers that have the old file open may read on in it.

        Returns:
            Whether that was done; False when retention has removed the segment meanwhile.

        Raises:
            DiskFull, OutOfResources: it may be half done: the next call goes on.
            StorageFault: the disk fails.
        """
        log, index = log_path(self.path, base), index_path(self.path, base)
        new_log, new_index = compacted_path(log), compacted_path(index)
        with self._disk():
            if base not in self.bases[:-1]:
                for path in (new_log, new_index):
                    remove_file(path, self._system)
                return False
            is_half_done = new_index.exists() and not new_log.exists() and not index.exists()
            if not is_half_done:
                if not (new_log.exists() and new_index.exists()):
                    return True  # asked again: it was done before, and a later pass may be writing
                following = self.bases[self.bases.index(base) + 1]
                if new_log.stat().st_size != following - base:
                    raise StorageFault(f"{new_log}: is not what belongs in the place of {log.name}")
                self._remove_marker()
                remove_file(index, self._system)
                self._system.fsync(self._directory.fd)
                self._system.rename(new_log, log)
            self._system.rename(new_index, index)
            self._system.fsync(self._directory.fd)
        return True

    # ---- closing

    def close(self, clean: bool = True) -> None:
        """Flush, and store the marker that lets the next open skip recovery; ``clean=False``: as a kill leaves it.

        Nothing is flushed to a disk that has failed.  Files are closed with their last references.

        Raises:
            StorageFault: the flush failed.  A marker that cannot be stored is only logged.
        """
        if clean and self.state != OFFLINE:
            if self._unsynced or self.flushed < self.end_offset:
                self.flush()
            self.raise_high_watermark(self.end_offset)
            if not self._marked:
                self._store_marker()
        self._point.close()

    def _store_marker(self) -> None:
        try:
            logs, indexes = files.sizes(self.path)
            is_gone = len(self.bases) > 1 and self.bases[1] <= self.start  # it was active for lack of room
            if is_gone or not list(logs) == list(indexes) == self.bases:
                return  # files of segments before the start are left: recovery removes them
            self.aborted.sync()  # the next open takes them as they are
            state, summary = self._segments.active.state, self.summary
            marker = CleanMarker(
                self.bases, list(indexes.values()), self.start, summary.stable, summary.has_aborted, state
            )
            self._system.fdatasync(self._segments.active.index.fd)
            marker.store(self.path, self._system)
        except OSError as error:  # the next open is slower: it recovers
            logger.warning("%s: not marked as cleanly stopped: %s", self.path, error.strerror)
        except StorageFault as error:
            logger.warning("%s: not marked as cleanly stopped: %s", self.path, error)
