"""What a log trusts when it is opened: the recovery point, the clean-shutdown marker, and the scan without it.

**Recovery point** (``recovery-point``): a mapped file of 4096 bytes, of which these native u64 cells are
used::

    0  MAGIC           layout and version, stored last
    1  BOOT_HIGH       boot of the machine that wrote HIGH_WATERMARK ...
    2  BOOT_LOW
    3  FLUSHED         the log up to here is on the disk
    4  HIGH_WATERMARK  readers may have read the log up to here
    5  START           first offset that still counts ...
    6  START_CHECK     ... and its complement
    7  BORN_MS         when the active segment was created
    8  FAULTED         1: the disk failed a write or a flush

A store into the mapping costs nothing and survives the death of the process, since it is in the page cache;
so does everything written.  It does not survive a power loss, which may bring back any older content down to
the last sync: then HIGH_WATERMARK says nothing, and an old FLUSHED is merely low.  The same holds after a failed
flush: the page cache has what the disk never got.  So the *trusted point* is max(FLUSHED, HIGH_WATERMARK) when the
boot is the same and no fault was seen, else FLUSHED.  It is synced when a log is opened, before anything is appended (a
log without a valid one could not tell a torn write from damage), and when START moves, before files vanish.

Damage to these cells must not cost data: a FLUSHED or HIGH_WATERMARK that is too low lets recovery check more and keep
as much, one that is too high is a log shorter than it should be, which is refused.  START hides what lies
before it, so it counts only if its complement agrees; otherwise the log starts at its first segment.

**Clean-shutdown marker** (``clean-shutdown``): one line of JSON with everything that opening needs, and its
CRC32C on the next.  It is believed if the names and sizes of the files are what it says.  It is removed,
durably, before the first change: one that came back after a power loss would undo a new START.

**Recovery** runs when there is no such marker: the index files of sealed segments are looked at (first and
last entry), the segments from the trusted point on, and the active one in any case, are read and checked
batch by batch.

* Below the trusted point every batch must be valid, else :class:`CorruptLog`: nothing is truncated, a person
  decides.
* Above it, a bad batch is where a write was torn: the log is truncated there.  Should anything valid follow, what
  is truncated is kept in ``<base>.log.cut-<position>``.
* Without a recovery point nothing tells where to trust, so a bad batch that is followed by a valid one is
  corruption.

Time and memory are bounded by one segment, however long the log is.
"""

from __future__ import annotations

import json
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

from crc32c import crc32c

from ..errors import CorruptLog
from . import files
from .files import SYSTEM, File, System, index_path, log_path, remove
from .index import Builder, Entry, ends
from .segment import Segment, State, find_valid, headers, scan

logger = logging.getLogger(__name__)

POINT_NAME: Final = "recovery-point"
MARKER_NAME: Final = "clean-shutdown"
POINT_BYTES: Final = 4096
MARKER_BYTES_MAX: Final = 1 << 20
MAGIC_V1: Final = 0x31_56_43_45_52_4C_50_41  # b"APLRECV1", read little-endian
MAGIC, BOOT_HIGH, BOOT_LOW, FLUSHED, HIGH_WATERMARK, START, START_CHECK, BORN_MS, FAULTED = range(9)
CELL_MASK: Final = (1 << 64) - 1

Boot = tuple[int, int]


class Cells(Protocol):
    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def boot_id() -> Boot:
    """Identifies this run of the operating system's kernel."""
    number = int(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""), 16)
    return number >> 64, number & CELL_MASK


class Point:
    """What the cells of a recovery point say; a plain list of them will do."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells

    @property
    def valid(self) -> bool:
        return self.cells[MAGIC] == MAGIC_V1

    def trusted(self, boot: Boot) -> int | None:
        """Up to where the log must be good; None when that is not known."""
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
        """First offset that counts; None when that is not known."""
        start = self.cells[START]
        return start if self.valid and start ^ CELL_MASK == self.cells[START_CHECK] else None

    @classmethod
    def read(cls, directory: Path) -> Point:
        """As it is now, without touching it."""
        try:
            data = (directory / POINT_NAME).read_bytes()
        except FileNotFoundError:
            data = b""
        return cls(array("Q", data if len(data) == POINT_BYTES else bytes(POINT_BYTES)))


class RecoveryPoint(Point):
    """The mapped cells; stored by the log's one writer, from both of its threads, each cell by itself."""

    def __init__(self, directory: Path, system: System = SYSTEM) -> None:
        """Map the file, which is made if it is missing or of the wrong size."""
        self._system = system
        file = File(directory / POINT_NAME, os.O_RDWR | os.O_CREAT, system)
        if os.fstat(file.fd).st_size != POINT_BYTES:
            system.ftruncate(file.fd, 0)
            files.write_at(file.fd, bytes(POINT_BYTES), 0, system)  # real blocks: a store must not meet a full disk
        self._map = mmap.mmap(file.fd, POINT_BYTES)
        self._view = memoryview(self._map).cast("Q")
        super().__init__(self._view)

    def begin(self, boot: Boot, end: int, start: int, born_ms: int) -> None:
        """All up to ``end`` is good and on the disk.  A crash between two of these stores leaves too little trust."""
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
        """Make the cells durable.  The file's name is the caller's to sync."""
        self._system.msync(self._map)

    def close(self) -> None:
        self._view.release()
        self._map.close()


class LogSummary(NamedTuple):
    """What a cleanly stopped log is like."""

    bases: tuple[int, ...]
    start: int
    end: int
    records: int  # over its life


@dataclass(frozen=True, slots=True)
class Marker:
    bases: list[int]
    index_sizes: list[int]
    start: int
    state: State

    def store(self, directory: Path, system: System = SYSTEM) -> None:
        """Durably, or not at all."""
        fields = {"bases": self.bases, "index_sizes": self.index_sizes, "start": self.start}
        body = json.dumps(fields | self.state._asdict(), separators=(",", ":")).encode()
        files.replace(directory / MARKER_NAME, body + b"\n%08x\n" % crc32c(body), system)

    @classmethod
    def load(cls, directory: Path) -> Marker | None:
        """The marker, if there is one and it fits the files that are there now."""
        try:
            file = File(directory / MARKER_NAME)
        except FileNotFoundError:
            return None
        body, _, checksum = os.pread(file.fd, MARKER_BYTES_MAX, 0).partition(b"\n")
        if checksum != b"%08x\n" % crc32c(body):
            return None
        fields = json.loads(body)
        marker = cls(fields.pop("bases"), fields.pop("index_sizes"), fields.pop("start"), State(**fields))
        return marker if marker._fits(directory) else None

    def _fits(self, directory: Path) -> bool:
        logs, indexes = files.sizes(directory)
        stops = [*self.bases[1:], self.state.end]
        return logs == {base: stop - base for base, stop in zip(self.bases, stops, strict=True)} and indexes == dict(
            zip(self.bases, self.index_sizes, strict=True)
        )


def peek(directory: Path) -> LogSummary | None:
    """A cleanly stopped log, from names and sizes alone; None when it is in use or needs recovery."""
    try:
        marker = Marker.load(directory)
    except OSError:  # whoever opens it for writing finds out what is wrong
        return None
    if marker is None:
        return None
    return LogSummary(tuple(marker.bases), marker.start, marker.state.end, marker.state.records)


class Recovered(NamedTuple):
    bases: list[int]
    state: State
    start: int
    touched: list[File]  # what must be flushed before all of it can be trusted


def recover(
    directory: Path, point: RecoveryPoint, boot: Boot, interval_bytes: int, now_ms: int, system: System = SYSTEM
) -> Recovered:
    """Bring the files of a log that was not closed in order into a state to go on from.

    Truncating needs no room on the disk.  What does (an index that must be rebuilt, a copy of what is truncated) may
    fail with an OSError for lack of it; then all may be done again, from where it stopped.

    Raises:
        CorruptLog: what readers may have read, or what was flushed, is not there any more as it was.
        StorageFault: the disk does not do what it is asked.
    """
    trusted = point.trusted(boot)
    logs = _segments(directory, point.start, now_ms, trusted, system)
    bases = list(logs)
    first = len(bases) - 1
    if trusted is not None:
        first = max(0, min(first, bisect_right(bases, trusted) - 1))
    for base, following in pairwise(bases[: first + 1]):
        if logs[base] != following - base:
            path = str(log_path(directory, base))
            raise CorruptLog(path, logs[base], f"the file must have {following - base} bytes: the next starts there")
    scanner = _Scanner(directory, trusted, point.faulted, interval_bytes, system)
    records, rebuilt = _count_sealed(directory, bases[: first + 1], interval_bytes, system)
    for base, following in pairwise(bases[: first + 1]):
        if following > point.flushed or base in rebuilt:
            scanner.touched += (File(log_path(directory, base)), File(index_path(directory, base)))
    for number, base in enumerate(bases[first:], first):
        following_base = bases[number + 1] if number + 1 < len(bases) else None
        if not scanner.segment(base, logs[base], following_base, records):
            for later in bases[number + 1 :]:
                system.rename(log_path(directory, later), cut_path(directory, later, 0))
                remove(index_path(directory, later), system)
            del bases[number + 1 :]
            break
        records = scanner.builder.records
    builder = scanner.builder
    if trusted is not None and builder.offset < trusted:
        path, end = str(log_path(directory, bases[-1])), builder.offset
        raise CorruptLog(path, end - bases[-1], f"the log ends at offset {end}, but {trusted} had been reached")
    born_ms = min(point.cells[BORN_MS], now_ms) if point.valid else now_ms
    state = State(builder.offset, builder.timestamp, builder.records, builder.size, builder.last, born_ms)
    start = bases[0] if point.start is None else min(max(point.start, bases[0]), builder.offset)
    return Recovered(bases, state, start, scanner.touched)


def cut_path(directory: Path, base: int, position: int) -> Path:
    path = log_path(directory, base)
    return path.with_name(f"{path.name}.cut-{position}")


def _segments(directory: Path, start: int | None, now_ms: int, trusted: int | None, system: System) -> dict[int, int]:
    """Sizes of the segment files by base, after finishing what making or removing one has left half done."""
    logs, indexes = files.sizes(directory)
    for base in indexes.keys() - logs.keys():
        remove(index_path(directory, base), system)
    if not logs:
        if trusted:
            raise CorruptLog(str(directory), 0, f"its segment files are gone, but offset {trusted} had been reached")
        Segment.create(directory, 0, 0, now_ms, system)
        return {0: 0}
    if start is None:
        return logs
    for base, following in pairwise(list(logs)):
        if following <= start:
            remove(log_path(directory, base), system)
            remove(index_path(directory, base), system)
            del logs[base]
    if min(logs) > start:
        path = str(log_path(directory, min(logs)))
        raise CorruptLog(path, 0, f"the log starts at offset {start}: the segment before this one is missing")
    return logs


def _count_sealed(directory: Path, bases: Sequence[int], interval_bytes: int, system: System) -> tuple[int, set[int]]:
    """Bring the index files of all but the last segment in order.

    Where two neighbours contradict each other the log itself is asked, going through the headers of the first.

    Returns:
        The records before the last one, and the bases of those that had to be rebuilt.
    """
    found = {base: ends(index_path(directory, base)) for base in bases}
    records, rebuilt = 0, set()
    own = found[bases[0]]
    if bases[0] and own is not None and own[0].offset == bases[0]:
        records = own[0].records
    for base, following in pairwise(bases):
        own, after = found[base], found[following]
        if (
            own is not None
            and own[0] == Entry(base, -1, records)
            and own[1].offset == following
            and (after is None or after[0] == Entry(following, -1, own[1].records))
        ):
            records = own[1].records
            continue
        logger.warning("%s: rebuilding the index", index_path(directory, base))
        builder = Builder(read_index(directory, base), base, records, interval_bytes)
        for _, info in headers(File(log_path(directory, base)), base, 0, following - base):
            builder.batch(info.size, info.count, info.max_timestamp)
        builder.finish(sealed=True)
        builder.store(index_path(directory, base), system)
        rebuilt.add(base)
        records = builder.records
    return records, rebuilt


def read_index(directory: Path, base: int) -> bytes:
    try:
        return index_path(directory, base).read_bytes()
    except FileNotFoundError:
        return b""


class _Scanner:
    """Goes through the segments that must be checked, in order; truncates a torn tail."""

    def __init__(
        self, directory: Path, trusted: int | None, faulted: bool, interval_bytes: int, system: System
    ) -> None:
        self._system = system
        self._directory = directory
        self._trusted = trusted
        self._faulted = faulted
        self._interval_bytes = interval_bytes
        self.touched: list[File] = []
        self.builder: Builder
        """The index of the last segment."""

    def segment(self, base: int, size: int, following: int | None, records: int) -> bool:
        """Check the segment at ``base``; false when it was truncated, so that nothing may come after it."""
        file = File(log_path(self._directory, base), os.O_RDWR, self._system)
        if self._faulted:  # what the disk refused is still in the page cache
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        builder = self.builder = Builder(read_index(self._directory, base), base, records, self._interval_bytes)
        torn: CorruptLog | None = None
        try:
            for _, info, _ in scan(file, base, 0, size):
                builder.batch(info.size, info.count, info.max_timestamp)
        except CorruptLog as error:
            torn = error
        if torn is None and following is not None and size != following - base:
            torn = CorruptLog(str(file.path), size, f"the next segment starts at {following - base}")
            if size > following - base:
                raise torn
        if torn is not None:
            self._cut(file, base, size, torn, following is not None)
        builder.finish(sealed=following is not None and torn is None)
        builder.store(index_path(self._directory, base), self._system)
        self.touched += (file, File(index_path(self._directory, base)))
        return torn is None

    def _cut(self, file: File, base: int, size: int, torn: CorruptLog, more: bool) -> None:
        """Truncate a torn write, or raise ``torn`` when it is no such thing."""
        position = torn.position
        if self._trusted is not None and base + position < self._trusted:
            raise torn
        follows = more or find_valid(file, base, position, size) is not None
        if follows and self._trusted is None:
            raise torn
        logger.warning("%s: cut at %d, %d bytes less: %s", file.path, position, size - position, torn.reason)
        if follows and position < size:
            files.copy(file, position, size, cut_path(self._directory, base, position), self._system)
            files.sync_directory(self._directory, self._system)
        self._system.ftruncate(file.fd, position)
