"""Reads a log: finds the bytes for a fetch, and offsets by time.  For processes that serve many logs.

A reader gets the ``bases`` of the segments and the ``end`` up to which it may read.  It finds ranges of whole batches
in the segment files and does not read the records.  An offset may lie anywhere inside a batch, and the payload of a
batch may hold forged batches.  So the reader searches only from offsets at which a batch is known to start: the base of
a segment, a published end, the end of an earlier range, or an index entry.  These *boundaries* are final.  The reader
keeps some of them, so a consumer that reads on needs no index for its start.

An offset from an index is checked against the batch header in the log.  An index that is wrong, missing or unreadable
only makes fetching slower: the search begins at an earlier entry, or at the base of the segment.  Times and counts of
records are not checked here; recovery and scrubbing check them (``index_check``).

A segment file that is not there has been removed by retention, if the recovery point has its end behind the log start
offset: that is stored before files are unlinked.  Then the reader raises :class:`OffsetOutOfRange`, as it would a
moment later.  Else the file is lost, and it raises :class:`~.errors.SegmentMissing`.

The cost of a look-up depends on how much of the log it reads, not on the size of the request.  Each reader counts these
bytes (:attr:`LogReader.looked_bytes`), so that a process with many clients can pause a long look-up.
"""

from __future__ import annotations

import errno
import os
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ..durable_files import SYSTEM, File, System
from ..errors import ClientFault, CorruptLog, OffsetOutOfRange, StorageFault, UnreadableLog, is_lack
from ..records.batch import ATTRIBUTES_AT, EMPTIED
from ..wire.requests import FileRange
from .files import INDEX_SUFFIX, LOG_SUFFIX, NAME_DIGITS
from .index import IndexEntry, IndexFile
from .page_cache import LogFile, NamesInMemory
from .recovery import check_retired
from .segment import has_header, headers
from .transactions import ENTRY_BYTES as ABORTED_BYTES
from .transactions import Aborted, aborted_path, indexed, unpack

if TYPE_CHECKING:
    from ..records.timestamps import BatchTimes  # a worker imports it, with the codecs, only when it needs it

FILES_MAX: Final = 1024
BOUNDARIES_MAX: Final = 512
"""Boundaries in each of two generations."""
STEPS_BACK_MAX: Final = 8
"""Wrong index entries to pass over before reading the segment from its base."""

# A look-up by time unpacks one batch.  A batch with more bytes or records than this is answered with its first record.
UNPACKED_BYTES_MAX: Final = 16 << 20
RECORDS_MAX: Final = 50_000
TIMES_MAX: Final = 4 * RECORDS_MAX
"""Record times to remember, of batches unpacked before: one request often needs the same batch again."""
TIMES_OVERHEAD: Final = 64
"""Added to the number of times, for each remembered batch."""
QUESTION_BYTES: Final = 16 * 1024
"""Added to ``looked_bytes`` for each look-up: it opens files and searches an index."""
RECORD_BYTES: Final = 64
"""Added to ``looked_bytes`` for each record whose time is read."""

ABORTED_AT_ONCE: Final = 64
"""Entries of an index of aborted transactions that are read at a time."""

AnyFile = TypeVar("AnyFile", bound=LogFile)
_EMPTIED: Final = EMPTIED.to_bytes(2, "big")


class SegmentFile(LogFile):
    """The file of a segment.  ``holed``: parts of it take no room on the disk (``compaction``)."""

    __slots__ = ("holed", "number")

    def __init__(self, path: Path | str, system: System = SYSTEM) -> None:
        super().__init__(path, system)
        status = os.fstat(self.fd)
        self.holed = self.hole_from(0) < status.st_size
        self.number = status.st_ino
        """Which file it is.  Numbers of inodes return, but not with the time of the last change, in a file at rest."""
        if self.holed:
            self.number = status.st_ino << 64 | status.st_ctime_ns

    def hole_from(self, position: int) -> int:
        """The first position from ``position`` on that takes no room on the disk; at the end of the file none does."""
        try:
            return os.lseek(self.fd, position, os.SEEK_HOLE)
        except OSError:  # it is empty, or the file system has no such question
            return 1 << 63


class FileCache:
    """Keeps the last used segment and index files of any number of logs open, at most ``files_max``.

    ``waits``: opening and reading them waits for the disk, as everybody can who is no loop.  Else only what is in
    memory is read, and nothing is opened of which names are not.
    """

    def __init__(self, files_max: int = FILES_MAX, waits: bool = True) -> None:
        assert files_max >= 2
        self._files_max, self._waits = files_max, waits
        self._system = SYSTEM if waits else System(open=NamesInMemory().open)
        self._files: OrderedDict[str, LogFile] = OrderedDict()
        self._times: OrderedDict[tuple[str, int], BatchTimes] = OrderedDict()
        self._times_count = 0
        self.opened = 0
        """Number of files opened so far."""

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str, kind: type[AnyFile]) -> AnyFile:
        """The file at ``path``, opened if necessary.  The caller may keep it: the last reference closes it.

        Raises:
            FileNotFoundError: there is no such file.
            NotInMemory: its names must be looked up first.
            StorageFault: it cannot be opened: :class:`UnreadableLog`, unless something is lacking only now.
        """
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
        else:
            try:
                file = self._open(path, kind)
            except FileNotFoundError:
                raise
            except OSError as error:
                if is_lack(error):
                    raise StorageFault(f"{path}: cannot be opened: {error.strerror}") from error
                raise UnreadableLog(path, 0, error) from error
            if not self._waits:
                file.do_not_wait()
            self.opened += 1
            self._files[path] = file
            if len(self._files) > self._files_max:
                self._files.popitem(last=False)
        assert isinstance(file, kind)
        return file

    def _open(self, path: str, kind: type[AnyFile]) -> AnyFile:
        """Open a file, if need be in the place of half of the others: they can be opened again.

        Raises:
            OSError: it cannot be opened.
        """
        while True:
            try:
                return kind(path, self._system)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                    raise
            for _ in range(len(self._files) // 2 + 1):
                if self._files:
                    self._files.popitem(last=False)

    def drop_unlinked(self) -> None:
        """Close the files that retention has unlinked, so that the disk can free their space."""
        for path in [path for path, file in self._files.items() if not os.fstat(file.fd).st_nlink]:
            del self._files[path]

    def drop(self, prefix: str) -> None:
        """Forget the files whose path starts with ``prefix``, and the times of batches in them."""
        for path in [path for path in self._files if path.startswith(prefix)]:
            del self._files[path]
        for batch in [batch for batch in self._times if batch[0] == prefix]:
            self._times_count -= _weight(self._times.pop(batch))

    def times(self, prefix: str, offset: int) -> BatchTimes | None:
        """The times of the batch at ``offset``, if :meth:`remember_times` has kept them."""
        return self._times.get((prefix, offset))

    def remember_times(self, prefix: str, offset: int, times: BatchTimes) -> None:
        """Keep the times of the batch at ``offset``.  The last TIMES_MAX times of all batches are kept."""
        self._times[prefix, offset] = times
        self._times_count += _weight(times)
        while self._times_count > TIMES_MAX:
            self._times_count -= _weight(self._times.popitem(last=False)[1])


class FoundBatch(NamedTuple):
    """A batch or a record: its (first) offset, its (largest) timestamp in ms, and the number of records before it."""

    offset: int
    timestamp: int
    records: int


class LogReader:
    """Reads one log, through a cache of files shared with other readers.

    ``bases`` and ``end`` come from one consistent snapshot of the log, ``bases[0] <= end``.  Call :meth:`forget` when
    the log was repaired, or created again under the same name.

    Every method may raise :class:`CorruptLog` and :class:`~.errors.UnreadableLog`, with file and position,
    :class:`StorageFault`, and :class:`~.page_cache.NotInMemory` where files are not waited for: it can be called again
    then.
    """

    def __init__(self, path: Path | str, files: FileCache) -> None:
        self._directory = Path(path)
        self._prefix = f"{path}/"
        self._files = files
        self._young: set[int] = set()
        self._old: set[int] = set()
        self._numbers: dict[int, int] = {}
        """The files, by base, to which the boundaries belong."""
        self._peaks: dict[tuple[int, int], int] = {}
        """Largest timestamps of sealed segments, by base and by the offset from which on messages count."""
        self._aborted_bases: list[int] = []
        """The segments that have an index of aborted transactions, and the number for which that is known."""
        self._aborted_version = 0
        self.looked_bytes = 0
        """Bytes of the log that look-ups of offsets have read so far."""

    def forget(self) -> None:
        """Forget files and boundaries."""
        self._files.drop(self._prefix)
        self._young, self._old, self._numbers, self._peaks = set(), set(), {}, {}
        self._aborted_version = -1

    # ---- fetch

    def locate(self, bases: Sequence[int], end: int, offset: int, bytes_max: int) -> FileRange | None:
        """Find whole batches of one segment, from the one that contains ``offset`` on and below ``end``.

        Returns:
            At most about ``bytes_max`` bytes, but at least one batch; None when ``offset`` is ``end``.

        Raises:
            OffsetOutOfRange: retired, or not written yet.
        """
        last = bases[-1]
        if offset >= last:
            base, limit = last, end
        else:
            number = bisect_right(bases, offset) - 1
            if number < 0:
                raise self._out_of_range(offset, bases, end)
            base, limit = bases[number], min(bases[number + 1], end)
        if offset >= limit:
            if offset == end:
                self._remember(end)
                return None
            raise self._out_of_range(offset, bases, end)
        try:
            log = self._log(base, limit)
            if self._numbers.get(base) != log.number:
                self._on_file(base, log)
            if offset == base or offset in self._young or offset in self._old:
                start = offset
            else:
                start = self._start(log, base, limit, offset)
            stop = limit if limit - start <= bytes_max else self._stop(log, base, limit, start, bytes_max)
        except FileNotFoundError:
            raise self._out_of_range(offset, bases, end) from None
        if stop not in self._young:
            self._remember(stop)
        return FileRange(log, start - base, stop - start)

    def locate_kept(self, bases: Sequence[int], end: int, offset: int, bytes_max: int) -> FileRange | None:
        """As :meth:`locate`, without what compaction has emptied: the range may begin behind ``offset``.

        Returns:
            None when nothing but that is left.
        """
        while True:
            piece = self.locate(bases, end, offset, bytes_max)
            if offset >= bases[-1] or piece is None:  # the active segment is never compacted
                return piece
            log = piece.file
            assert isinstance(log, SegmentFile)
            if log.read(2, piece.position + ATTRIBUTES_AT) != _EMPTIED:
                return self._up_to_hole(log, bases[bisect_right(bases, offset) - 1], piece) if log.holed else piece
            number = bisect_right(bases, offset) - 1
            offset = self._behind_emptied(log, bases[number], min(bases[number + 1], end), piece.position)
            self._remember(offset)

    def _behind_emptied(self, log: File, base: int, limit: int, position: int) -> int:
        """Where the first batch from ``position`` on begins that is not emptied; ``limit`` without one."""
        for at, header in headers(log, base, position, limit - base):
            if header.attributes != EMPTIED:
                return base + at
        return limit

    def _up_to_hole(self, log: SegmentFile, base: int, piece: FileRange) -> FileRange:
        """The part of a range, which begins with a message, before the first emptied bytes that take no room."""
        stop = piece.position + piece.count
        if log.hole_from(piece.position) < stop:
            for at, header in headers(log, base, piece.position, stop):
                if header.attributes == EMPTIED:
                    self._remember(base + at)
                    return FileRange(log, piece.position, at - piece.position)
        return piece

    def has_aborted(self, index_version: int) -> bool:
        """Whether there is an index of aborted transactions.

        Args:
            index_version: another number when there may be another one (:attr:`.SegmentTable.aborted`).
        """
        if self._aborted_version != index_version:
            self._aborted_bases, self._aborted_version = list(indexed(self._directory)), index_version
        return bool(self._aborted_bases)

    def aborted(self, bases: Sequence[int], index_version: int, offset: int, stop: int) -> list[tuple[int, int]]:
        """The aborted transactions that may have messages in the batches from ``offset`` to ``stop``.

        Args:
            index_version: as for :meth:`has_aborted`.

        Returns:
            Producer id and first offset, by ascending offset of their markers.
        """
        if not self.has_aborted(index_version):
            return []
        aborted: list[tuple[int, int]] = []
        first = bases[bisect_right(bases, offset) - 1]
        for base in self._aborted_bases[bisect_left(self._aborted_bases, first) :]:
            for entry in self._aborted_in(base, offset):
                if entry.first < stop:
                    aborted.append((entry.producer_id, entry.first))
                if entry.stable >= stop:
                    return aborted
        return aborted

    def _aborted_in(self, base: int, offset: int) -> Iterator[Aborted]:
        """Yields the entries of a segment whose markers are not before ``offset``."""
        try:
            file = self._files.get(str(aborted_path(self._directory, base)), LogFile)
            count = os.fstat(file.fd).st_size // ABORTED_BYTES
            numbers = range(count)
            first = bisect_left(numbers, offset, key=lambda number: self._last_of(file, number, offset))
            for number in range(first, count, ABORTED_AT_ONCE):
                yield from self._aborted_at(file, number, ABORTED_AT_ONCE)
        except FileNotFoundError:  # retention has removed it
            return
        except OSError as error:
            raise StorageFault(f"{aborted_path(self._directory, base)}: {error.strerror}") from error

    def _last_of(self, file: LogFile, number: int, offset: int) -> int:
        """The offset of the marker of an entry; ``offset``, if the entry was taken back meanwhile."""
        entries = self._aborted_at(file, number, 1)
        return entries[0].last if entries else offset

    def _aborted_at(self, file: LogFile, number: int, count: int) -> list[Aborted]:
        return list(unpack(file.read(count * ABORTED_BYTES, number * ABORTED_BYTES)))

    def has(self, piece: FileRange) -> bool:
        """Whether the file is as long as a range of it: ask in an offline partition, whose files nobody looks at."""
        assert isinstance(piece.file, File)
        return os.fstat(piece.file.fd).st_size >= piece.position + piece.count

    def _out_of_range(self, offset: int, bases: Sequence[int], end: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(f"offset {offset} is not in the log, which has {bases[0]} to {end}: seek")

    def _on_file(self, base: int, log: SegmentFile) -> None:
        """Note the file of a segment.  In one that was compacted since, batches begin elsewhere."""
        if base in self._numbers:
            self.forget()
        elif len(self._numbers) >= FILES_MAX:
            self._numbers.clear()
            self._young, self._old = set(), set()
        self._numbers[base] = log.number

    def _remember(self, boundary: int) -> None:
        self._young.add(boundary)
        if len(self._young) >= BOUNDARIES_MAX:
            self._old, self._young = self._young, set()

    def _log(self, base: int, limit: int) -> SegmentFile:
        """The file of the segment [base, limit).

        Raises:
            FileNotFoundError: retention has removed it.
            SegmentMissing: somebody else has.
        """
        path = f"{self._prefix}{base:0{NAME_DIGITS}d}{LOG_SUFFIX}"
        try:
            return self._files.get(path, SegmentFile)
        except FileNotFoundError:
            check_retired(path, limit)
            raise

    def _index(self, base: int) -> IndexFile | None:
        """The index of a segment; None without one that can be opened."""
        try:
            return self._files.get(f"{self._prefix}{base:0{NAME_DIGITS}d}{INDEX_SUFFIX}", IndexFile)
        except (FileNotFoundError, StorageFault):
            return None

    def _start(self, log: File, base: int, limit: int, offset: int) -> int:
        """Offset at which the batch starts that contains ``offset``."""
        entry = self._entry(log, base, limit, offset)
        for position, header in headers(log, base, entry.offset - base, limit - base):
            start = base + position
            if start + header.size > offset:
                return start
        raise AssertionError("headers() ends at the limit, which lies beyond the offset")

    def _stop(self, log: File, base: int, limit: int, start: int, bytes_max: int) -> int:
        """A boundary at most ``bytes_max`` bytes after ``start``, but not before the end of the first batch.

        It is not behind emptied bytes of which the next batch has the offsets: whoever goes on there, as one who counts
        bytes does, would take these offsets for read.
        """
        index = self._index(base)
        if index is not None:
            try:
                _, stop = index.floor(start + bytes_max, limit)
            except CorruptLog:
                stop = start
            if stop > start and (stop == limit or has_header(log, base, stop - base, limit - base, joined=False)):
                return stop
        stop = start
        try:
            for position, header in headers(log, base, start - base, limit - base):
                following = base + position + header.size
                if following - start > bytes_max and stop > start:
                    break
                if header.attributes != EMPTIED or following == limit or stop == start:
                    stop = following
        except StorageFault:
            if stop == start:  # else what stands before the damage is served
                raise
        return stop

    # ---- offsets by time and lag

    def find_time(self, bases: Sequence[int], end: int, timestamp: int, start: int = 0) -> FoundBatch | None:
        """The first batch from offset ``start`` on with a timestamp of at least ``timestamp`` ms; None without one.

        ``start`` may lie in a batch: then those of its records count that are not before it.
        """
        self.looked_bytes += QUESTION_BYTES
        for base, limit in _segments(bases, end):
            try:
                if limit <= start or self._peak(base, limit, base, sealed=limit in bases) < timestamp:
                    continue
                batch = self._search(base, limit, timestamp, start)
            except FileNotFoundError:
                continue  # just retired
            if batch is not None:
                return batch
        return None

    def max_timestamp(self, bases: Sequence[int], end: int, start: int = 0) -> FoundBatch | None:
        """The first batch from ``start`` on with the largest timestamp of all; None when there is no batch.

        Its ``timestamp`` is the largest of the records from ``start`` on, which its header may exceed.
        """
        largest = None
        for base, limit in _segments(bases, end):
            if limit <= start:
                continue
            try:
                peak = self._peak(base, limit, max(base, start), sealed=limit in bases)
            except FileNotFoundError:
                continue
            largest = peak if largest is None else max(largest, peak)
        if largest is None or (batch := self.find_time(bases, end, largest, start)) is None:
            return None
        return batch._replace(timestamp=largest)

    def first_record(
        self, bases: Sequence[int], end: int, batch: FoundBatch, timestamp: int, start: int = 0
    ) -> FoundBatch:
        """The first record from ``start`` on with at least ``timestamp`` ms, in a batch that :meth:`find_time` found.

        Returns the first one that counts when the batch cannot be unpacked or is too large to unpack.
        """
        skipped = max(0, start - batch.offset)
        times = self._times_from(bases, end, batch.offset, skipped)
        number = bisect_left(times.times, timestamp)
        if number == len(times.times):
            return FoundBatch(batch.offset + skipped, batch.timestamp, batch.records + times.first)
        return FoundBatch(batch.offset + times.delta(number), times.times[number], batch.records + times.first + number)

    def _times_from(self, bases: Sequence[int], end: int, offset: int, skipped: int) -> BatchTimes:
        """As :func:`.largest_times` for the batch with this base offset, without what is at its first offsets."""
        times = self._files.times(self._prefix, offset + skipped)
        if times is None:
            piece = self.locate_kept(bases, end, offset, 1)
            if piece is None:
                return _unknown(skipped)
            times = self._times(piece, skipped)
            self._files.remember_times(self._prefix, offset + skipped, times)
        return times

    def _times(self, piece: FileRange, skipped: int) -> BatchTimes:
        """As :func:`~.timestamps.largest_times` for the one batch in ``piece``; empty when it is not unpacked."""
        from ..records.timestamps import largest_times

        if piece.count > UNPACKED_BYTES_MAX:
            return _unknown(skipped)
        data = bytes(piece.file.read(piece.count, piece.position))
        self.looked_bytes += len(data)
        try:
            times, unpacked_bytes = largest_times(
                data, bytes_max=UNPACKED_BYTES_MAX, records_max=RECORDS_MAX, skipped=skipped
            )
        except ClientFault:
            self.looked_bytes += UNPACKED_BYTES_MAX  # at most: the exact number is not known
            return _unknown(skipped)
        self.looked_bytes += unpacked_bytes + RECORD_BYTES * len(times.times)
        return times

    def time_and_count(self, bases: Sequence[int], end: int, offset: int) -> tuple[int, int]:
        """Largest timestamp (ms) of the batch that contains ``offset``, and the number of records before ``offset``.

        The timestamp is -1 at ``end``, where there is no batch.

        Raises:
            OffsetOutOfRange: retired, or not written yet.
        """
        self.looked_bytes += QUESTION_BYTES
        number = bisect_right(bases, min(offset, end - 1)) - 1 if end > bases[0] else 0
        if number < 0 or offset > end:
            raise self._out_of_range(offset, bases, end)
        base = bases[number]
        limit = min(bases[number + 1], end) if number + 1 < len(bases) else end
        try:
            log = self._log(base, limit)
            entry = self._entry(log, base, limit, offset)
            records = entry.records
            for position, header in headers(log, base, entry.offset - base, limit - base):
                following = base + position + header.size
                self.looked_bytes += header.size
                if following > offset:
                    return header.max_timestamp, records + min(header.count, max(0, offset - (following - header.span)))
                records += header.count
        except FileNotFoundError:
            raise self._out_of_range(offset, bases, end) from None
        return -1, records

    # ---- from an index entry on

    def _entry(self, log: File, base: int, limit: int, offset: int) -> IndexEntry:
        """The last index entry at or below ``offset`` that is the start of a batch in the log."""
        index = self._index(base)
        records = 0
        if index is not None:
            with suppress(CorruptLog):
                number, _ = index.floor(offset, limit)
                for candidate in range(number, max(-1, number - STEPS_BACK_MAX), -1):
                    with suppress(CorruptLog):  # it was mended since its offsets were kept, and has fewer entries
                        entry = index.entry(candidate)
                        # Likewise the entry of this number may be another one now.
                        if entry.offset <= offset and (
                            entry.offset == limit or has_header(log, base, entry.offset - base, limit - base)
                        ):
                            return entry
                records = index.entry(0).records if number >= 0 else 0
        return IndexEntry(base, -1, records)

    def _peak(self, base: int, limit: int, start: int, sealed: bool) -> int:
        """The largest timestamp in the segment below ``limit``, of the messages from ``start`` on."""
        peak = self._peaks.get((base, start)) if sealed else None
        if peak is not None:
            return peak
        self.looked_bytes += QUESTION_BYTES
        log = self._log(base, limit)
        last = self._entry(log, base, limit, limit)
        if start > base:
            peak, position = self._peak_behind(log, base, limit, start, last)
        else:
            peak, position = last.timestamp, last.offset - base
        for _, header in headers(log, base, position, limit - base):
            peak = max(peak, header.max_timestamp)
            self.looked_bytes += header.size
        if sealed:
            if len(self._peaks) >= 2 * FILES_MAX:
                self._peaks.clear()
            self._peaks[base, start] = peak
        return peak

    def _peak_behind(self, log: File, base: int, limit: int, start: int, last: IndexEntry) -> tuple[int, int]:
        """The largest timestamp from ``start``, inside the segment, up to a position; and that position.

        The ``last`` entry of the index has the largest timestamp of all before it, of which a part is deleted.  So it
        tells something only if nothing before ``start`` has as large a one.
        """
        entry = self._entry(log, base, limit, start)
        gone = entry.timestamp
        for position, header in headers(log, base, entry.offset - base, limit - base):
            self.looked_bytes += header.size
            stop = position + header.size
            if base + stop > start:
                break
            gone = max(gone, header.max_timestamp)
        peak, offset = header.max_timestamp, base + stop - header.span
        if offset < start:
            gone = max(gone, peak)
            peak = self._largest(base, limit, offset, start - offset, peak)
        if last.timestamp > gone and last.offset - base >= stop:
            return max(peak, last.timestamp), last.offset - base
        return peak, stop

    def _largest(self, base: int, limit: int, offset: int, skipped: int, otherwise: int) -> int:
        """The largest timestamp of the batch at ``offset`` without its first records, if it can be unpacked."""
        times = self._times_from((base,), limit, offset, skipped).times
        return times[-1] if times else otherwise

    def _search(self, base: int, limit: int, timestamp: int, start: int) -> FoundBatch | None:
        """The first batch of the segment that has at least ``timestamp`` from ``start`` on."""
        log, index = self._log(base, limit), self._index(base)
        entry = IndexEntry(base, -1, 0)
        if index is not None:
            with suppress(CorruptLog):
                reached = index.reached(timestamp, index.count_up_to(limit))
                offset = index.entry(reached - 1).offset if reached else base
                entry = self._entry(log, base, limit, max(offset, start))
        records = entry.records
        for position, header in headers(log, base, entry.offset - base, limit - base):
            self.looked_bytes += header.size
            batch = FoundBatch(base + position + header.size - header.span, header.max_timestamp, records)
            records += header.count
            skipped = start - batch.offset
            if batch.timestamp < timestamp or skipped >= header.span:
                continue
            if skipped <= 0 or self._largest(base, limit, batch.offset, skipped, batch.timestamp) >= timestamp:
                return batch
        return None


def _weight(times: BatchTimes) -> int:
    """The memory of an entry, in numbers: an entry without times takes some, too."""
    return len(times.times) + len(times.deltas) + TIMES_OVERHEAD


def _unknown(skipped: int) -> BatchTimes:
    """For a batch that is not unpacked."""
    from ..records.timestamps import BatchTimes

    return BatchTimes(array("q"), skipped, array("q"))


def _segments(bases: Sequence[int], end: int) -> Iterator[tuple[int, int]]:
    """Yields base and limit of each segment that has bytes below ``end``."""
    for number, base in enumerate(bases):
        limit = min(bases[number + 1], end) if number + 1 < len(bases) else end
        if base < limit:
            yield base, limit
