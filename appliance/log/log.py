"""One partition's log, as its one writer uses it: append, flush, publish, roll, retire.

Four offsets: ``start`` (log start offset), ``high_watermark``, ``flushed``, ``end_offset`` (log end offset).
``start <= high_watermark <= flushed <= end_offset`` when every group of batches is flushed before readers may read it.
In a topic that leaves flushing to the operating system, ``high_watermark`` may be ahead of ``flushed``.

Flushing takes three steps, so that writing goes on meanwhile::

    ticket = log.flush_begin()  # the writer's loop: what is to be synced, up to where
    ticket.sync()  # another thread: slow, without the interpreter's lock, touches nothing of the log
    log.flush_done(ticket)  # either thread, in the order of beginning

A ticket covers everything that is written but not known to be flushed, so one that was begun and never synced may be
dropped for a later one.  A sync that fails is never tried again: the kernel may have dropped the pages and would report
success the next time.  The failure is noted in the recovery point, so that recovery reads the disk and not the page
cache.

Appending is all or nothing, also across a roll.  A full disk (:class:`DiskFull`) leaves the log as it was, to try again
later, and so does a lack of descriptors (:class:`OutOfResources`) that a roll would need.  Any other failure of the
disk is a :class:`StorageFault`: no more is written by this process.

What must be on the disk before what, so that a power loss at any moment leaves a log that opens:

    on the disk first                         before
    the recovery point                        the first append: it distinguishes a torn write from damage
    the removal of the clean-shutdown marker  the first append, and a move of the start
    a group of batches, the names of new      the flushed offset covers the group: all of these are in the ticket
    files, and sealed indexes
    the start, and the names of the segments  the segments before the start are unlinked
    that stay

Ages of segments are measured by a clock that cannot be set (``steady_ms``).  The time of day (``clock_ms``) counts only
for the age that a segment has when the log is opened, so a jump of it neither rolls a segment nor keeps one.
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
from ..errors import LACKS, NO_ROOM, DiskFull, OutOfResources, StorageFault, disk_fault
from ..partition_states import DISK_FULL, OFFLINE, ONLINE
from ..records.batch import BatchInfo
from . import files
from .files import SYSTEM, File, System, index_path, log_path, remove
from .flush_ticket import FlushTicket, Unsynced
from .reader import FileCache, LogReader
from .recovery import MARKER_NAME, Boot, Marker, RecoveryPoint, boot_id, recover
from .segment import Batches, Segment, headers
from .segment_list import SegmentList

logger = logging.getLogger(__name__)

SEGMENTS_MAX: Final = 2000


class Log:
    """Open one with :meth:`open`; ``settings`` may be replaced at any time."""

    def __init__(
        self,
        path: Path,
        settings: TopicSettings,
        clock_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        segments_max: int,
        system: System,
        point: RecoveryPoint,
    ) -> None:
        self.path = path
        self.settings = settings
        self.state = ONLINE
        self.start = self.flushed = self.high_watermark = 0
        self._clock_ms, self._steady_ms = clock_ms, steady_ms
        self._segments_max = segments_max
        self._system = system
        self._point = point
        self._segments: SegmentList
        self._unsynced: Unsynced
        self._directory: File
        self._retired: list[int] = []  # bases of segments that readers may not read any more
        self._marked = False  # there is a clean-shutdown marker

    @classmethod
    def open(
        cls,
        path: Path,
        settings: TopicSettings,
        clock_ms: Callable[[], int],
        segments_max: int = SEGMENTS_MAX,
        *,
        steady_ms: Callable[[], int] | None = None,
        boot: Boot | None = None,
        system: System = SYSTEM,
    ) -> Log:
        """Open for writing, or make, the log in directory ``path``; whatever it then holds is on the disk.

        Args:
            clock_ms: the time of day.
            steady_ms: a clock that cannot be set; by default ``clock_ms``.
            segments_max: with so many segments the active one grows on instead of being rolled.
            boot: which boot of the machine this is.

        Raises:
            CorruptLog: data below the high watermark, or flushed data, is damaged.
            StorageFault: the disk fails.
            DiskFull: there is no room for the little that opening writes.
        """
        try:
            if not path.is_dir():
                system.mkdir(path, files.DIRECTORY_MODE)
            point = RecoveryPoint(path, system)
            if not point.valid:  # never opened to the end: nobody knows whether the directory's name is on the disk
                files.sync_directory(path.parent, system)
        except OSError as error:
            raise disk_fault(error, path) from error
        log = cls(path, settings, clock_ms, steady_ms or clock_ms, segments_max, system, point)
        with log._disk():
            log._open(boot or boot_id())
        return log

    def _open(self, boot: Boot) -> None:
        point = self._point
        # Kept open: that no descriptor is left must not look like a flush that failed.
        self._directory = File(self.path, os.O_RDONLY | os.O_DIRECTORY, self._system)
        marker = Marker.load(self.path)
        if marker is not None:
            bases, self.start, state = marker.bases, marker.start, marker.state
            self._marked = True
        else:
            self._remove_marker()
            found = recover(self.path, point, boot, self.settings.index_interval_bytes, self._clock_ms(), self._system)
            for file in found.touched:
                self._system.fdatasync(file.fd)
            self._system.fsync(self._directory.fd)
            bases, self.start, state = found.bases, found.start, found.state
        self._unsynced = Unsynced(self._directory)
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
        """Offset where the next batch goes."""
        return self._segments.active.end

    @property
    def records(self) -> int:
        """Records written over the life of the log."""
        return self._segments.active.state.records

    # ---- writing

    def append(self, batches: Batches) -> None:
        """Append checked batches, placed one after the other from ``end_offset`` on: all of them or none.

        Raises:
            DiskFull, OutOfResources: try again when there is room.
            StorageFault: the disk fails.
        """
        if not batches:
            return
        view, info = batches[0]
        assert int.from_bytes(view[:8], "big") == self._segments.active.end + info.size - info.count, "not placed"
        size = 0
        for _, info in batches:
            size += info.size
        try:
            if self._marked:
                self._remove_marker()
            self._segments.append(batches, size, self.settings)
        except OSError as error:
            raise self._failed(error) from error
        except StorageFault:
            self.state = OFFLINE
            raise
        self.state = ONLINE

    def roll(self) -> None:
        """Seal the active segment and start the next one; an empty one stays, its age counted from now.

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
        if remove(self.path / MARKER_NAME, self._system) or self._marked:
            self._system.fsync(self._directory.fd)
        self._marked = False

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Give the operating system's errors the names of ours."""
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

    def flush_begin(self) -> FlushTicket:
        """What another thread must sync so that all that is written now is on the disk."""
        active = self._segments.active
        return self._unsynced.ticket(active.end, active.log, self._point, self._system)

    def flush_done(self, ticket: FlushTicket) -> None:
        """``ticket`` has been synced."""
        self._unsynced.on_synced(ticket)
        if ticket.end > self.flushed:
            self.flushed = ticket.end
            self._point.set_flushed(ticket.end)

    def flush(self) -> None:
        """All three steps, here and now."""
        ticket = self.flush_begin()
        try:
            ticket.sync()
        except StorageFault:
            self.state = OFFLINE
            raise
        self.flush_done(ticket)

    def raise_high_watermark(self, end: int) -> None:
        """Set the high watermark to ``end``; call it before readers see it."""
        assert self.high_watermark <= end <= self._segments.active.end
        self.high_watermark = end
        self._point.set_high_watermark(end)

    # ---- retention

    def first_base(self, start: int) -> int:
        """Base of the first segment of the log once it starts at ``start``."""
        return start if start == self.end_offset else self.bases[max(0, bisect_right(self.bases, start) - 1)]

    def retire_before(self, offset: int) -> None:
        """Let the log start at ``offset``, or at the high watermark or the flushed offset if that is less.

        Whole segments before it leave ``bases``; when nothing is left the active one is rolled first, so that
        it can leave too.  Without room for a new one it stays, and only the start moves.  The files are for
        :meth:`unlink_retired`, once the new start is published to readers.
        """
        start = min(offset, self.high_watermark, self.flushed)
        if start <= self.start:
            return
        with self._disk():
            self._remove_marker()
            if start == self._segments.active.end:
                self._roll_if_room()
            self.start = start
            self._point.set_start(start)
            # Before files vanish: a log that starts late must not look like one that has lost some.
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
        """Whether the names of the segments that stay are not known to be on the disk."""
        return self._unsynced.names_needed

    def unlink_retired(self) -> int:
        """Remove the files of what :meth:`retire_before` took; returns how many."""
        assert not (self._retired and self.must_flush_to_unlink), "flush first"
        count = 0
        with self._disk():
            while self._retired:
                for path in (log_path(self.path, self._retired[0]), index_path(self.path, self._retired[0])):
                    count += remove(path, self._system)
                self._unsynced.on_unlinked()
                del self._retired[0]
        return count

    # ---- reading back, closing

    def headers(self, offset: int) -> Iterator[tuple[BatchInfo, int, int]]:
        """Header, base offset and end of every batch from the one that contains ``offset`` on."""
        offset = max(offset, self.bases[0])
        found = LogReader(self.path, FileCache(2)).locate(self.bases, self.end_offset, offset, 1)
        first = 0 if found is None else found.position
        for base, following in zip(self.bases, [*self.bases[1:], self.end_offset], strict=True):
            if following > offset:
                file = File(log_path(self.path, base))
                for position, info in headers(file, base, first if base <= offset else 0, following - base):
                    end = base + position + info.size
                    yield info, end - info.count, end

    def close(self, clean: bool = True) -> None:
        """Flush and leave a marker so that the next one need not recover; ``clean=False`` just lets go."""
        if clean and self.state != OFFLINE:
            if self._unsynced or self.flushed < self.end_offset:
                self.flush()
            self.raise_high_watermark(self.end_offset)
            if not self._marked:
                self._store_marker()
        self._point.close()

    def _store_marker(self) -> None:
        logs, indexes = files.sizes(self.path)
        if not list(logs) == list(indexes) == self.bases:
            return  # retired segments that nobody has unlinked: the next one does, when it recovers
        marker = Marker(self.bases, list(indexes.values()), self.start, self._segments.active.state)
        try:
            self._system.fdatasync(self._segments.active.index.fd)
            marker.store(self.path, self._system)
        except OSError as error:  # then the next one recovers: slower, no worse
            logger.warning("%s: not marked as cleanly stopped: %s", self.path, error.strerror)
