"""Recovers a log that was not closed in order, from the recovery point, the clean-shutdown marker and a scan.

**Recovery point** (``recovery-point``): a mapped file of 4096 bytes, with these native u64 cells::

    0  MAGIC           layout and version, stored last
    1  BOOT_HIGH       boot of the machine in which HIGH_WATERMARK was stored
    2  BOOT_LOW
    3  FLUSHED         the log up to here is on the disk
    4  HIGH_WATERMARK  readers may have read the log up to here
    5  START           log start offset
    6  START_CHECK     complement of START
    7  BORN_MS         creation time of the active segment
    8  FAULTED         1: the disk failed a write or a flush

A store into the mapping is cheap.  It is in the page cache, like everything written, so it survives the death of the
process.  It does not survive a power loss, which may restore any content since the last sync.  Then HIGH_WATERMARK
means nothing, and FLUSHED may be too low.  The same holds after a failed flush: the page cache may hold data that the
disk does not.  So the *trusted point* is max(FLUSHED, HIGH_WATERMARK) in the same boot without a fault, else FLUSHED.

After a failed flush the kernel takes the pages for written, and the next flush would succeed without them.  So recovery
writes all batches behind FLUSHED again, and the index files of their segments, before it flushes them.  It does not
matter which of them are read from the page cache and which from the disk.

The recovery point is synced when a log is opened, before the first append: without it, recovery could not distinguish a
torn write from damage.  It is also synced when START moves, before files are unlinked.

Damage to these cells must not lose data.  With a FLUSHED or HIGH_WATERMARK that is too low, recovery checks more and
keeps as much.  With one that is too high, the log is shorter than expected and is refused.  START hides the data before
it, so it is used only if its complement agrees.  Otherwise the log starts at its first segment.

**Clean-shutdown marker** (``clean-shutdown``): one line of JSON with everything that opening needs, and a line with its
CRC32C.  It is used only if the files have the names and sizes in it.  It is removed, durably, before the first change:
a marker that came back after a power loss would undo a new START.  So where the files differ from it, somebody else has
changed them, and recovery trusts it as it trusts the recovery point.

**Recovery** runs when there is no valid marker.  It checks the first and last index entry of the sealed segments.  It
reads the segments from the trusted point on, and always the active one, and checks them batch by batch.

* Below the trusted point every batch must be valid, else :class:`CorruptLog`: nothing is truncated, a person
  decides.
* Above it, a bad batch is a torn write: the log is truncated there.  If a valid batch follows, the truncated bytes are
  kept in ``<base>.log.cut-<position>``.
* Without a recovery point there is no trusted point.  Then a bad batch followed by a valid one is corruption.

In the same boot, recovery reads about one segment and the ends of the other index files, however long the log is.  Its
memory is bounded by one segment.
"""

from __future__ import annotations

import functools
import logging
import mmap
import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec
from crc32c import crc32c

from ..durable_files import SYSTEM, File, System, copy_range, remove_file, replace_file, sync_directory, write_at
from ..errors import CorruptLog, SegmentMissing, StorageFault
from . import files
from .files import COMPACTION_STATE, LOG_SUFFIX, base_of, index_path, log_path
from .index import Builder, IndexEntry, ends
from .segment import Segment, SegmentState, find_valid, headers, scan

logger = logging.getLogger(__name__)

POINT_NAME: Final = "recovery-point"
MARKER_NAME: Final = "clean-shutdown"
POINT_BYTES: Final = 4096
MARKER_BYTES_MAX: Final = 1 << 20
MAGIC_V1: Final = 0x31_56_43_45_52_4C_50_41  # b"APLRECV1", read little-endian
MAGIC, BOOT_HIGH, BOOT_LOW, FLUSHED, HIGH_WATERMARK, START, START_CHECK, BORN_MS, FAULTED = range(9)
CELL_MASK: Final = (1 << 64) - 1
NOTHING: Final = 1 << 63
"""An offset behind any log."""

Boot = tuple[int, int]


class PointCells(Protocol):
    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


@functools.cache
def boot_id() -> Boot:
    """The id of the kernel's current boot."""
    number = int(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""), 16)
    return number >> 64, number & CELL_MASK


class Point:
    """Reads the cells of a recovery point, which may be a plain list."""

    def __init__(self, cells: PointCells) -> None:
        self.cells = cells

    @property
    def valid(self) -> bool:
        return self.cells[MAGIC] == MAGIC_V1

    def trusted(self, boot: Boot) -> int | None:
        """Offset up to which the log must be valid; None when it is not known."""
        cells = self.cells
        if not self.valid:
            return None
        if self.faulted or (cells[BOOT_HIGH], cells[BOOT_LOW]) != boot:
            return self.flushed
        return max(self.flushed, cells[HIGH_WATERMARK])

    @property
    def flushed(self) -> int:
        return self.cells[FLUSHED] if self.valid else 0

    @property
    def faulted(self) -> bool:
        return self.valid and self.cells[FAULTED] != 0

    @property
    def start(self) -> int | None:
        """Log start offset; None when it is not known."""
        start = self.cells[START]
        return start if self.valid and start ^ CELL_MASK == self.cells[START_CHECK] else None

    @classmethod
    def read(cls, directory: Path) -> Point:
        """Read the file without changing it; a missing one gives cells of 0."""
        try:
            data = (directory / POINT_NAME).read_bytes()
        except FileNotFoundError:
            data = b""
        return cls(array("Q", data if len(data) == POINT_BYTES else bytes(POINT_BYTES)))


def is_retired(directory: Path, end: int) -> bool:
    """Whether retention has removed the segment that ends at ``end``: the start is stored before files are unlinked."""
    try:
        start = Point.read(directory).start
    except OSError:
        return False
    return start is not None and start >= end


def check_retired(path: Path | str, end: int) -> None:
    """Tell a segment file that retention has removed from one that is lost.

    Args:
        path: of the file, which is not there.
        end: of the segment.

    Raises:
        SegmentMissing: it is lost.
    """
    if not is_retired(Path(path).parent, end):
        raise SegmentMissing(str(path))


class RecoveryPoint(Point):
    """Stores the mapped cells.  Only the log's writer does, from both of its threads, one cell at a time."""

    def __init__(self, directory: Path, system: System = SYSTEM) -> None:
        """Map the file.  Make it if it is missing or has the wrong size."""
        self._system = system
        file = File(directory / POINT_NAME, os.O_RDWR | os.O_CREAT, system)
        if os.fstat(file.fd).st_size != POINT_BYTES:
            system.ftruncate(file.fd, 0)
            write_at(file.fd, bytes(POINT_BYTES), 0, system)  # real blocks: a store must not meet a full disk
        self._map = mmap.mmap(file.fd, POINT_BYTES)
        self._view = memoryview(self._map).cast("Q")
        super().__init__(self._view)

    def begin(self, boot: Boot, end: int, start: int, born_ms: int) -> None:
        """Store that the log is on the disk up to ``end``.  A crash between these stores leaves too little trusted."""
        cells = self.cells
        cells[HIGH_WATERMARK], cells[FLUSHED] = end, end
        self.set_start(start)
        cells[BORN_MS] = born_ms
        cells[FAULTED] = 0
        cells[BOOT_HIGH], cells[BOOT_LOW] = boot
        cells[MAGIC] = MAGIC_V1

    def set_flushed(self, offset: int) -> None:
        self.cells[FLUSHED] = offset

    def set_high_watermark(self, offset: int) -> None:
        self.cells[HIGH_WATERMARK] = offset

    def set_born_ms(self, born_ms: int) -> None:
        self.cells[BORN_MS] = born_ms

    def set_faulted(self) -> None:
        self.cells[FAULTED] = 1

    def set_start(self, start: int) -> None:
        self.cells[START], self.cells[START_CHECK] = start, start ^ CELL_MASK

    def sync(self) -> None:
        """Make the cells durable.  The caller syncs the file's name."""
        self._system.msync(self._map)

    def close(self) -> None:
        self._view.release()
        self._map.close()


class Derived(NamedTuple):
    """All that is known of a log beside its batches.  It follows from them: recovery derives the same from the files.

    ``retired``: bases of segments that are no part of the log any more, but whose files may be there.
    """

    bases: tuple[int, ...]
    start: int
    high_watermark: int
    flushed: int
    state: SegmentState
    retired: tuple[int, ...] = ()


class LogSummary(NamedTuple):
    """What readers are told of a log: segments, start, end, last stable offset."""

    bases: tuple[int, ...]
    start: int
    end: int
    records: int  # over its life
    stable: int  # last stable offset
    has_aborted: bool  # whether there are indexes of aborted transactions


@dataclass(frozen=True, slots=True)
class CleanMarker:
    bases: list[int]
    index_sizes: list[int]
    start: int
    stable: int
    """Last stable offset."""
    has_aborted: bool
    """Whether there are indexes of aborted transactions."""
    state: SegmentState

    def store(self, directory: Path, system: System = SYSTEM) -> None:
        """Write the file durably, or not at all."""
        body = msgspec.json.encode(self)
        replace_file(directory / MARKER_NAME, body + b"\n%08x\n" % crc32c(body), system=system)

    @classmethod
    def load(cls, directory: Path) -> CleanMarker | None:
        """The marker, whole and in this form; None if there is none."""
        try:
            file = File(directory / MARKER_NAME)
        except FileNotFoundError:
            return None
        body, _, checksum = os.pread(file.fd, MARKER_BYTES_MAX, 0).partition(b"\n")
        if checksum != b"%08x\n" % crc32c(body):
            return None
        try:
            return _MARKER.decode(body)
        except msgspec.MsgspecError:
            return None

    def fits(self, directory: Path) -> bool:
        """Whether the files have the names and sizes that they had when the log was stopped."""
        logs, indexes = files.sizes(directory)
        stops = [*self.bases[1:], self.state.end]
        return logs == {base: stop - base for base, stop in zip(self.bases, stops, strict=True)} and indexes == dict(
            zip(self.bases, self.index_sizes, strict=True)
        )


_MARKER: Final = msgspec.json.Decoder(CleanMarker)
"""Made here, so that no writer makes its own: that would touch 300 KiB of what it shares with the nursery."""


def peek(directory: Path) -> LogSummary | None:
    """Summarize a cleanly stopped log, from its marker, names and sizes; None when it is in use or needs recovery."""
    try:
        marker = CleanMarker.load(directory)
        if marker is None or not marker.fits(directory):
            return None
    except OSError:  # opening the log for writing will report it
        return None
    state = marker.state
    bases = tuple(marker.bases)
    return LogSummary(bases, marker.start, state.end, state.records, marker.stable, marker.has_aborted)


def loss_of(directory: Path) -> str:
    """What is lost of a log that was opened in this directory, if it is the whole log; else "".

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        kept = any(base_of(name, LOG_SUFFIX) is not None for name in os.listdir(directory))  # noqa: PTH208 - names
        return "" if kept or Point.read(directory).valid or CleanMarker.load(directory) else "its log is missing"
    except FileNotFoundError:
        return "the directory is missing"
    except NotADirectoryError:
        return "is no directory"


def check_kept(directory: Path) -> None:
    """Check that a directory in which a log has been opened before still has files of one.

    Raises:
        StorageFault: it is lost; the message has what can be done.
        OSError: the directory cannot be read.
    """
    if what := loss_of(directory):
        raise StorageFault(
            f"{directory}: {what}: put it back, or `appliance log repair {directory.name}` begins an empty log"
        )


DISPLACED_SUFFIX: Final = ".no-index"
"""What stands in the place of an index and is no file gets this suffix."""


class Recovered(NamedTuple):
    bases: list[int]
    state: SegmentState
    start: int
    touched: list[File]  # to be flushed before the log can be trusted


def recover(
    directory: Path,
    point: RecoveryPoint,
    boot: Boot,
    interval_bytes: int,
    now_ms: int,
    system: System = SYSTEM,
    stopped: CleanMarker | None = None,
) -> Recovered:
    """Repair the files of a log that was not closed in order, so that it can be appended to.

    ``stopped``: a marker that the files do not fit.

    Truncating needs no space on the disk.  Rebuilding an index and copying truncated bytes do: without space they raise
    OSError, and recovery may run again.

    Raises:
        CorruptLog: data that was flushed, or that readers may have read, is missing or damaged.
        StorageFault: the disk fails.
    """
    trusted, known_start = point.trusted(boot), point.start
    if stopped is not None:
        trusted = max(trusted or 0, stopped.state.end)
        known_start = stopped.start if known_start is None else known_start
    logs = _segments(directory, known_start, now_ms, trusted, system)
    bases = list(logs)
    first = len(bases) - 1
    if trusted is not None:
        first = max(0, min(first, bisect_right(bases, trusted) - 1))
    for base, following in pairwise(bases[: first + 1]):
        if logs[base] != following - base:
            path = str(log_path(directory, base))
            raise CorruptLog(path, logs[base], f"must have {following - base} bytes: the next segment starts there")
    rewritten_from = point.flushed if point.faulted else NOTHING
    scanner = _Scanner(directory, trusted, rewritten_from, interval_bytes, system)
    records, rebuilt = _count_sealed(directory, bases[: first + 1], rewritten_from, interval_bytes, system)
    for base, following in pairwise(bases[: first + 1]):
        # One that was sealed when all of it was flushed got the last entry of its index after that.
        if following >= point.flushed or base in rebuilt:
            scanner.touched += (File(log_path(directory, base)), File(index_path(directory, base)))
    for number, base in enumerate(bases[first:], first):
        following_base = bases[number + 1] if number + 1 < len(bases) else None
        builder, whole = scanner.scan_segment(base, logs[base], following_base, records)
        records = builder.records
        if not whole:
            for later in bases[number + 1 :]:
                system.rename(log_path(directory, later), truncated_path(directory, later, 0))
                remove_file(index_path(directory, later), system)
            del bases[number + 1 :]
            break
    if trusted is not None and builder.offset < trusted:
        path, end = str(log_path(directory, bases[-1])), builder.offset
        raise CorruptLog(path, end - bases[-1], f"the log ends at offset {end}, but was valid up to {trusted}")
    born_ms = min(point.cells[BORN_MS], now_ms) if point.valid else now_ms
    state = SegmentState(builder.offset, builder.timestamp, builder.records, builder.size, builder.last, born_ms)
    start = bases[0] if known_start is None else min(max(known_start, bases[0]), builder.offset)
    return Recovered(bases, state, start, scanner.touched)


def truncated_path(directory: Path, base: int, position: int) -> Path:
    path = log_path(directory, base)
    return path.with_name(f"{path.name}.cut-{position}")


def _segments(directory: Path, start: int | None, now_ms: int, trusted: int | None, system: System) -> dict[int, int]:
    """Sizes of the segment files by base.  First completes an interrupted creation or removal of a segment."""
    logs, indexes = files.sizes(directory)
    for base, size in indexes.items():
        index = index_path(directory, base)
        if size < 0:  # it is made anew from the log; what stands there may be somebody's, and is kept
            system.rename(index, index.with_name(f"{index.name}{DISPLACED_SUFFIX}"))
        elif base not in logs:
            remove_file(index, system)
    if not logs:
        if trusted:
            raise CorruptLog(str(directory), 0, f"its segment files are missing, it was valid up to {trusted}")
        Segment.create(directory, 0, 0, now_ms, system)
        return {0: 0}
    if start is None:
        return logs
    for base, following in pairwise(list(logs)):
        if following <= start:
            remove_file(log_path(directory, base), system)
            remove_file(index_path(directory, base), system)
            del logs[base]
    if min(logs) > start:
        path = str(log_path(directory, min(logs)))
        raise CorruptLog(path, 0, f"the log starts at offset {start}: the segment before this one is missing")
    return logs


def _count_sealed(
    directory: Path, bases: Sequence[int], rewritten_from: int, interval_bytes: int, system: System
) -> tuple[int, set[int]]:
    """Count the records of all but the last segment by their index files, and rebuild wrong index files.

    When the index files of two neighbours contradict each other, the first is rebuilt from the batch headers.  That of
    a segment which ends at ``rewritten_from`` or later is written again.

    Returns:
        The number of records before the last segment, and the bases of the rebuilt index files.
    """
    entries_of = {base: ends(index_path(directory, base)) for base in bases}
    records, rebuilt = 0, set()
    own = entries_of[bases[0]]
    if own is not None and own[0].offset == bases[0] and counts_before(directory, bases[0]):
        records = own[0].records
    for base, following in pairwise(bases):
        own, after = entries_of[base], entries_of[following]
        is_right = (
            own is not None
            and own[0] == IndexEntry(base, -1, records)
            and own[1].offset == following
            and (after is None or after[0] == IndexEntry(following, -1, own[1].records))
        )
        if own is not None and is_right and following < rewritten_from:
            records = own[1].records
            continue
        if not is_right:
            logger.warning("%s: rebuilding the index", index_path(directory, base))
        builder = Builder(read_index(directory, base), base, records, interval_bytes)
        for _, header in headers(File(log_path(directory, base)), base, 0, following - base):
            builder.batch(header.size, header.count, header.max_timestamp)
        builder.finish(sealed=True)
        builder.store(index_path(directory, base), system, whole=following >= rewritten_from)
        rebuilt.add(base)
        records = builder.records
    return records, rebuilt


def counts_before(directory: Path, base: int) -> bool:
    """Whether the index of the first segment, which begins at ``base``, may have records before it.

    Retention has removed them, or compaction (``compaction``), which leaves the log its first offset.
    """
    return base > 0 or (directory / COMPACTION_STATE).exists()


def read_index(directory: Path, base: int) -> bytes:
    try:
        return index_path(directory, base).read_bytes()
    except FileNotFoundError:
        return b""


class _Scanner:
    """Checks segments in order, and truncates a torn tail."""

    def __init__(
        self,
        directory: Path,
        trusted: int | None,
        rewritten_from: int,
        interval_bytes: int,
        system: System,
    ) -> None:
        """``rewritten_from``: the offset from which on all batches are written again, to be flushed."""
        self._system = system
        self._directory = directory
        self._trusted = trusted
        self._rewritten_from = rewritten_from
        self._interval_bytes = interval_bytes
        self.touched: list[File] = []

    def scan_segment(self, base: int, size: int, following: int | None, records: int) -> tuple[Builder, bool]:
        """Check the segment at ``base``; return its index, and False when it was truncated: then none may follow."""
        file = File(log_path(self._directory, base), os.O_RDWR, self._system)
        builder = Builder(read_index(self._directory, base), base, records, self._interval_bytes)
        torn: CorruptLog | None = None
        try:
            for position, header, data in scan(file, base, 0, size):
                builder.batch(header.size, header.count, header.max_timestamp)
                if base + position >= self._rewritten_from:
                    write_at(file.fd, data, position, self._system)
        except CorruptLog as error:
            torn = error
        if torn is None and following is not None and size != following - base:
            torn = CorruptLog(str(file.path), size, f"the next segment starts at {following - base}")
            if size > following - base:
                raise torn
        if torn is not None:
            self._truncate(file, base, size, torn, following is not None)
        builder.finish(sealed=following is not None and torn is None)
        whole = builder.offset > self._rewritten_from
        builder.store(index_path(self._directory, base), self._system, whole=whole)
        self.touched += (file, File(index_path(self._directory, base)))
        return builder, torn is None

    def _truncate(self, file: File, base: int, size: int, torn: CorruptLog, more: bool) -> None:
        """Truncate a torn write.  Raises ``torn`` when it is damage instead."""
        position = torn.position
        if self._trusted is not None and base + position < self._trusted:
            raise torn
        follows = more or find_valid(file, base, position, size) is not None
        if follows and self._trusted is None:
            raise torn
        logger.warning("%s: truncated at %d, %d bytes removed: %s", file.path, position, size - position, torn.reason)
        if follows and position < size:
            copy_range(file, position, size, truncated_path(self._directory, base, position), self._system)
            sync_directory(self._directory, self._system)
        self._system.ftruncate(file.fd, position)
