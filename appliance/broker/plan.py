"""From a request to what the reply holds, for one partition or many.  Reads tables and indexes, sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from ..errors import (
    ApplianceError,
    CorruptBatch,
    InvalidTimestamp,
    OffsetOutOfRange,
    StorageFault,
    UnknownPartition,
    WriterGone,
)
from ..log.reader import Found
from ..partition_states import OFFLINE, OPENING
from ..shared.table import SegmentTable, TableSnapshot
from ..wire.requests import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Fetch,
    FetchPart,
    FetchResult,
    FileRange,
    Offsets,
    OffsetsPart,
    OffsetsResult,
)

PARTS_GIVEN_MAX: Final = 500
"""Parts of a fetch that get something, in some 20 ms."""
PART_BYTES: Final = 1024
"""What a part of a request about offsets counts as, besides what is looked at for it."""
EMPTY_BATCH = CorruptBatch("a produce request without record batches")


class Reader(Protocol):
    """``appliance.log.LogReader``: the read side of one partition's files."""

    looked_bytes: int

    def locate(self, bases: tuple[int, ...], end: int, offset: int, bytes_max: int) -> FileRange | None: ...

    def by_time(self, bases: tuple[int, ...], end: int, timestamp: int) -> Found | None: ...

    def max_timestamp(self, bases: tuple[int, ...], end: int) -> Found | None: ...

    def first_record(self, bases: tuple[int, ...], end: int, batch: Found, timestamp: int) -> Found: ...

    def at(self, bases: tuple[int, ...], end: int, offset: int) -> tuple[int, int]: ...


class Readable(Protocol):
    """A partition as a network worker holds it."""

    @property
    def table(self) -> SegmentTable: ...

    @property
    def reader(self) -> Reader: ...


def snapshot_of(partition: Readable | None, name: str) -> TableSnapshot:
    """What can be read of the partition now.

    Raises:
        ApplianceError: nothing can; the message says why."""
    if partition is None:
        raise UnknownPartition(f"{name} is not on this appliance: ask for metadata")
    state = partition.table.state
    if state == OPENING:
        raise WriterGone(f"{name} is being opened: try again")
    if state == OFFLINE and partition.table.high_watermark == 0:
        raise StorageFault(f"{name} is offline: see `appliance status`")
    return partition.table.snapshot()


def fetch(request: Fetch, partitions: Sequence[Readable | None]) -> tuple[list[FetchResult], int]:
    """What every part of a fetch gets now, and how many bytes that is in all; -1 when a part has an error.

    As Kafka does: the first batch of the first part that has one is given whole whatever the limits say, so that a
    consumer always gets on; after that nothing goes beyond ``request.bytes_max``.  Nor are more than PARTS_GIVEN_MAX
    parts given anything: each takes a look into an index.  The others are answered as when there is no more room.
    """
    results: list[FetchResult] = []
    left, total, failed = request.bytes_max, 0, False
    given = 0
    for part, partition in zip(request.parts, partitions, strict=True):
        result = _fetch_part(part, partition, left, total == 0)
        results.append(result)
        total += result.size
        left -= result.size
        if result.size:
            given += 1
            if given == PARTS_GIVEN_MAX:
                left = 0
        failed = failed or result.error != 0
    return results, -1 if failed else total


def _fetch_part(part: FetchPart, partition: Readable | None, left: int, first: bool) -> FetchResult:
    try:
        snapshot = snapshot_of(partition, f"{part.topic}-{part.partition}")
    except ApplianceError as error:
        return FetchResult(error.code, -1, -1, 0, ())
    assert partition is not None
    bases, start, end = snapshot
    offset = part.offset
    # What acks=1 has acknowledged may be written but not readable yet, as behind Kafka's high watermark.
    if offset < start or (offset > end and offset > partition.table.log_end_offset):
        return FetchResult(OffsetOutOfRange.code, start, end, 0, ())
    bytes_max = min(part.bytes_max, left)
    if offset >= end or (bytes_max <= 0 and not first):
        return FetchResult(0, start, end, 0, ())
    try:
        found = partition.reader.locate(bases, end, offset, max(bytes_max, 1))
    except ApplianceError as error:
        return FetchResult(error.code, start, end, 0, ())
    if found is None or (found.count > left and not first):
        return FetchResult(0, start, end, 0, ())
    return FetchResult(0, start, end, found.count, (found,))


class Lookup:
    """Answers a request about offsets, in slices: each looks at a bounded amount of data, whatever is asked.

    ``results`` has an answer for each part that has had its turn.
    """

    def __init__(self, request: Offsets, partitions: Sequence[Readable | None]) -> None:
        self.request = request
        self.results: list[OffsetsResult] = []
        self._partitions = list(partitions)

    def forget(self, partition: Readable) -> None:
        """The partition is deleted: it is unknown from now on, whatever its files hold."""
        self._partitions = [None if one is partition else one for one in self._partitions]

    def look(self, bytes_max: int) -> int:
        """Answer parts until all are answered (:attr:`done`) or ``bytes_max`` have been looked at.

        Returns:
            How many bytes that were; the last part may have gone beyond what was allowed, by a batch.
        """
        looked = 0
        for index in range(len(self.results), len(self.request.parts)):
            part, partition = self.request.parts[index], self._partitions[index]
            before = 0 if partition is None else partition.reader.looked_bytes
            self.results.append(offsets(part, partition, self.request.counted))
            looked += PART_BYTES if partition is None else PART_BYTES + partition.reader.looked_bytes - before
            if looked >= bytes_max:
                break
        return looked

    @property
    def done(self) -> bool:
        return len(self.results) == len(self.request.parts)


def offsets(part: OffsetsPart, partition: Readable | None, counted: bool = True) -> OffsetsResult:
    """Answer one question about offsets: by place, by time, or about a known offset."""
    try:
        view = snapshot_of(partition, f"{part.topic}-{part.partition}")
        assert partition is not None
        return _offsets(part, view, partition, counted)
    except ApplianceError as error:
        return OffsetsResult(error.code, -1, -1, -1)


def _offsets(part: OffsetsPart, view: TableSnapshot, partition: Readable, counted: bool) -> OffsetsResult:
    bases, start, end = view
    reader = partition.reader
    if part.offset >= 0:
        offset = min(max(part.offset, start), end)
        timestamp, records = reader.at(bases, end, offset)
        return OffsetsResult(0, offset, timestamp, records)
    if part.timestamp == LATEST:
        return OffsetsResult(0, end, -1, reader.at(bases, end, end)[1] if counted else -1)
    if part.timestamp == EARLIEST:
        return OffsetsResult(0, start, -1, reader.at(bases, end, start)[1] if counted else -1)
    if part.timestamp == MAX_TIMESTAMP:
        found = reader.max_timestamp(bases, end)
    elif part.timestamp >= 0:
        found = reader.by_time(bases, end, part.timestamp)
    else:
        raise InvalidTimestamp(f"timestamp {part.timestamp}: must be ms >= 0, or -1 latest, -2 earliest, -3 largest")
    if found is None:  # nothing that young: Kafka answers with no offset
        return OffsetsResult(0, -1, -1, -1)
    wanted = part.timestamp if part.timestamp >= 0 else found.timestamp
    offset, timestamp, records = reader.first_record(bases, end, found, wanted)
    return OffsetsResult(0, max(offset, start), timestamp, records)
