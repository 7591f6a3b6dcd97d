"""Appends to the active segment, and reads any segment batch by batch.

A segment file holds only record batches (``records.batch``), so ranges of it are sent unchanged.  A batch at position p
of the segment with base B has the base offset ``B + p + size - span``.  Bytes with another base offset are not a batch
of this log, even with a valid checksum: payloads of messages may contain forged batches.  Repair may have put holes
(``records.holes``) between them, which only readers of whole batches need to know.

Appending is all or nothing: when the disk is full, log and index are truncated to their former sizes.  The log is
written before its index, so after a crash the index may lag behind the log but is never ahead of it.

:func:`scan` reads all bytes and checks all checksums (recovery, verify).  :func:`headers` reads only from header to
header.  Both raise :class:`CorruptLog` with the position of the first bad batch.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from ..durable_files import File, System, remove_file, write_at
from ..errors import ClientFault, CorruptLog, StorageFault, UnreadableLog
from ..records.batch import (
    EMPTIED,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    check_stored,
    end_offset,
)
from ..records.holes import check_hole
from .files import index_path, log_path
from .index import ENTRY_BYTES, IndexEntry, pack

SIZE_MAX: Final = 1 << 31  # no limit here: a batch that is longer than the file is incomplete, not too large
BUFFERS_MAX: Final = 1024
"""IOV_MAX of Linux: largest number of buffers in one writev."""
SCAN_BYTES: Final = 1 << 20
HOP_BYTES_MIN: Final = 8 << 10
HOP_BYTES_MAX: Final = 256 << 10

_BASE_AND_LENGTH: Final = Struct(">qi")
assert _BASE_AND_LENGTH.size == LENGTH_END

Batches = Sequence[tuple[memoryview, BatchHeader]]

_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple


class SegmentState(NamedTuple):
    """The state that an append continues from.  All of it but ``born_ms`` follows from the files."""

    end: int  # log end offset
    timestamp: int  # largest in this segment, ms; -1: none
    records: int  # over the life of the log
    index_bytes: int
    last_entry: int  # offset of the last index entry
    born_ms: int  # when it was created


class Segment:
    """Writes the active segment."""

    __slots__ = ("_identity", "_path", "_system", "base", "end", "index", "log", "state", "was_cut")

    def __init__(self, directory: Path, base: int, state: SegmentState, system: System) -> None:
        self.base = base
        self.state = state
        self.end = state.end
        self.was_cut = False
        """Whether a failed write was taken back, which a power loss may undo before the file is synced."""
        self._system = system
        self.log = File(log_path(directory, base), os.O_RDWR | os.O_APPEND, system)
        self.index = File(index_path(directory, base), os.O_RDWR, system)
        self._path = str(self.log.path)
        status = os.fstat(self.log.fd)
        self._identity = status.st_dev, status.st_ino

    @classmethod
    def create(cls, directory: Path, base: int, records: int, born_ms: int, system: System) -> Segment:
        """Make an empty segment.  A failure leaves no files.

        The index is made first: a log file always has an index.
        """
        paths = index_path(directory, base), log_path(directory, base)
        try:
            index = File(paths[0], os.O_RDWR | os.O_CREAT | os.O_TRUNC, system)
            write_at(index.fd, pack([IndexEntry(base, -1, records)]), 0, system)
            File(paths[1], os.O_RDWR | os.O_CREAT | os.O_EXCL, system)
            return cls(directory, base, SegmentState(base, -1, records, ENTRY_BYTES, base, born_ms), system)
        except FileExistsError:
            raise
        except OSError:
            for path in paths:
                remove_file(path, system)
            raise

    def append(self, batches: Batches, interval_bytes: int) -> None:
        """Write whole batches, which are placed from ``end`` on.  An OSError leaves the segment unchanged."""
        end, timestamp, records, index_bytes, last_entry, born_ms = self.state
        start = end
        due = last_entry + interval_bytes
        entries: list[int] = []
        for _, (size, count, max_timestamp, _, _, _, _, _, _) in batches:
            if end >= due:
                entries += (end, timestamp, records)
                last_entry, due = end, end + interval_bytes
            end += size
            records += count
            if max_timestamp > timestamp:
                timestamp = max_timestamp
        try:
            self._write([view for view, _ in batches], end - start)
            if entries:
                write_at(self.index.fd, array("q", entries).tobytes(), index_bytes, self._system)
                index_bytes += 8 * len(entries)
        except OSError:
            self.restore(self.state)
            raise
        self.state = _new(SegmentState, (end, timestamp, records, index_bytes, last_entry, born_ms))
        self.end = end

    def _write(self, views: list[memoryview], size: int) -> None:
        written = 0
        while True:
            step = self._system.writev(self.log.fd, views[:BUFFERS_MAX])
            written += step
            if written == size:
                return
            while step >= len(views[0]):
                step -= len(views.pop(0))
            views[0] = views[0][step:]

    def check_named(self, end: int) -> None:
        """Check that the path of the file leads to what this process has written up to ``end``.  Any thread may.

        Raises:
            StorageFault: somebody has removed, renamed, replaced or truncated the file.
        """
        try:
            status = os.stat(self._path)  # noqa: PTH116 - twice as fast as a Path's
        except OSError as error:
            raise StorageFault(f"{self._path}: {error.strerror}: removed or renamed while it was written") from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise StorageFault(f"{self._path}: another file is in its place: replaced while it was written")
        if status.st_size < end - self.base:
            size = end - self.base
            raise StorageFault(f"{self._path}:{status.st_size}: has lost its end: {size} bytes were written")

    def seal(self) -> None:
        """Add the closing entry to the index, with the largest timestamp and the records up to the segment's end."""
        end, timestamp, records, index_bytes, last_entry, born_ms = self.state
        if last_entry == end:
            return
        try:
            write_at(self.index.fd, pack([IndexEntry(end, timestamp, records)]), index_bytes, self._system)
        except OSError:
            self.restore(self.state)
            raise
        self.state = SegmentState(end, timestamp, records, index_bytes + ENTRY_BYTES, end, born_ms)

    def restore(self, state: SegmentState) -> None:
        """Truncate log and index to an earlier state.

        Raises:
            StorageFault: truncating fails, so the content of the files is not known.
        """
        self.was_cut = True
        try:
            self._system.ftruncate(self.log.fd, state.end - self.base)
            self._system.ftruncate(self.index.fd, state.index_bytes)
        except OSError as error:
            raise StorageFault(f"{self.log.path}: cannot truncate a failed write: {error.strerror}") from error
        self.state = state
        self.end = state.end


def scan(file: File, base: int, position: int, stop: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yields every batch in [position, stop) with its position and bytes.  The next step may overwrite the bytes.

    Raises:
        CorruptLog: there is no whole, valid batch with the base offset of this position.
    """
    buffer = memoryview(bytearray(min(SCAN_BYTES, max(stop - position, HEADER_BYTES))))
    at, filled = position, 0
    while position < stop:
        start = position - at
        size = stored = 0
        for _ in range(3):  # at once; after reading the header; after reading a batch larger than the buffer
            if filled - start >= HEADER_BYTES:
                stored, length = _BASE_AND_LENGTH.unpack_from(buffer, start)
                size = min(length + LENGTH_END, stop - position)
                if size <= filled - start:
                    break
                if size > len(buffer):
                    buffer = memoryview(bytearray(size))
            at, start, filled = position, 0, read_into(file, buffer, position, stop)
        try:
            header = check_stored(buffer, start, filled, SIZE_MAX)
        except ClientFault as error:
            hole = check_hole(buffer, start, filled)
            if hole is None:
                raise CorruptLog(str(file.path), position, str(error)) from None
            header = hole
        size = header.size
        if stored != base + position + size - header.span and not _is_emptied(header, stored, base, position):
            reason = f"a batch with base offset {stored} where {base + position + size - header.span} belongs"
            raise CorruptLog(str(file.path), position, reason)
        yield position, header, buffer[start : start + size]
        position += size


def read_into(file: File, buffer: memoryview, position: int, stop: int) -> int:
    """Fill ``buffer`` from [position, stop) of the file.  Returns the number of bytes read.

    Raises:
        UnreadableLog: see there.
    """
    filled, size = 0, min(len(buffer), stop - position)
    while filled < size:
        try:
            step = os.preadv(file.fd, [buffer[filled:size]], position + filled)
        except OSError as error:
            raise UnreadableLog(str(file.path), position + filled, error) from error
        if not step:
            break
        filled += step
    return filled


def has_header(file: File, base: int, position: int, stop: int, *, joined: bool = True) -> bool:
    """Whether ``position`` has the header of a batch with the base offset of this position, ending by ``stop``.

    ``joined``: also of one whose first offsets lie in emptied bytes before it (``records.holes``).
    """
    if not 0 <= position <= stop - HEADER_BYTES:
        return False
    try:
        data = file.read(HEADER_BYTES, position)
    except OSError as error:
        raise UnreadableLog(str(file.path), position, error) from error
    if len(data) < HEADER_BYTES:
        return False
    stored, length, _, magic, _, attributes, last_delta, first_timestamp, *_ = HEADER.unpack_from(data)
    size = length + LENGTH_END
    return bool(
        magic == MAGIC
        and last_delta >= -1
        and HEADER_BYTES <= size <= stop - position
        and (stored + last_delta + 1 - size if attributes != EMPTIED else first_timestamp) == base + position
        and (joined or stored >= base + position)
    )


def _is_emptied(header: BatchHeader, stored: int, base: int, position: int) -> bool:
    """Whether a batch is emptied bytes, and belongs to this position (``records.holes``)."""
    at = base + position
    return header.attributes == EMPTIED and header.first_timestamp == at and base <= stored <= at


def headers(file: File, base: int, position: int, stop: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of every batch in [position, stop), without checking checksums.

    ``position`` must be the start of a batch.

    Raises:
        CorruptLog: there is no header of a batch with the base offset of its position.
        NotInMemory: it cannot go on without the disk.
    """
    window = HOP_BYTES_MIN
    data: bytes | bytearray = b""
    at = position
    while position < stop:
        start = position - at
        if len(data) - start < HEADER_BYTES:
            try:
                data, at, start = file.read(window, position), position, 0
            except OSError as error:
                raise UnreadableLog(str(file.path), position, error) from error
            window = min(2 * window, HOP_BYTES_MAX)
            if len(data) < HEADER_BYTES:
                raise CorruptLog(str(file.path), position, "the file ends inside a batch header")
        (
            stored, length, _, magic, _, attributes, last_delta, first_timestamp, max_timestamp,
            producer_id, producer_epoch, base_sequence, count,
        ) = HEADER.unpack_from(data, start)  # fmt: skip
        size = length + LENGTH_END
        fields = (
            size, count, max_timestamp, first_timestamp, producer_id, producer_epoch, base_sequence, attributes,
            last_delta + 1,
        )  # fmt: skip
        header = _new(BatchHeader, fields)
        if (
            magic != MAGIC
            or not HEADER_BYTES <= size <= stop - position
            or not 0 <= count <= last_delta + 1
            or (stored != base + position + size - last_delta - 1 and not _is_emptied(header, stored, base, position))
        ):
            raise CorruptLog(str(file.path), position, "no header of a batch that belongs here")
        yield position, header
        position += size


def find_valid(file: File, base: int, position: int, stop: int) -> int | None:
    """The first position in (position, stop) with a valid batch that has the base offset of its position; else None.

    So a batch inside the payload of another is not found.
    """
    window = memoryview(bytearray(SCAN_BYTES))
    position += 1
    while stop - position >= HEADER_BYTES:
        filled = read_into(file, window, position, stop)
        data = bytes(window[:filled])
        last = filled - HEADER_BYTES
        at = data.find(MAGIC, MAGIC_AT)
        while MAGIC_AT <= at <= last + MAGIC_AT:
            start = at - MAGIC_AT
            size = _BASE_AND_LENGTH.unpack_from(data, start)[1] + LENGTH_END
            if end_offset(data, start) == base + position + start + size:
                with contextlib.suppress(CorruptLog):
                    next(scan(file, base, position + start, stop))
                    return position + start
            at = data.find(MAGIC, at + 1)
        if filled < len(window):
            return None
        position += last + 1
    return None
