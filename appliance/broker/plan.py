"""Plans the replies to fetches and to requests about offsets.  Reads tables and indexes, sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from ..durable_files import File
from ..errors import (
    ApplianceError,
    CorruptLog,
    InvalidRecord,
    InvalidTimestamp,
    OffsetOutOfRange,
    StorageFault,
    TopicNotPermitted,
    UnknownPartition,
    UnreadableLog,
    WriterGone,
)
from ..log.files import offset_at
from ..log.page_cache import NotInMemory
from ..log.reader import LogReader
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

_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple
PARTS_GIVEN_MAX: Final = 500
"""Largest number of parts of a fetch that get data: finding it takes some 20 ms, in several turns."""
PARTS_AT_ONCE: Final = 16
"""Parts of a fetch that are looked at before the time is, with what all of them get some 0.6 ms."""
PART_BYTES: Final = 1024
"""Added for each part of a request about offsets to the bytes looked at."""
NOT_LOOKED_AT: Final = FetchResult(0, -1, -1, 0, ())
EMPTY_BATCH = InvalidRecord("a produce request without record batches")


class Readable(Protocol):
    """A partition that a network worker knows."""

    @property
    def table(self) -> SegmentTable: ...

    @property
    def reader(self) -> LogReader: ...

    @property
    def damaged(self) -> Sequence[tuple[int, int]]: ...

    def suspect(self, start: int, stop: int) -> None: ...


def snapshot_of(partition: Readable | None, part: FetchPart | OffsetsPart) -> TableSnapshot:
    """Take a snapshot of the partition of a part.

    Raises:
        ApplianceError: it cannot be read; the message says why.
    """
    if partition is None:
        raise UnknownPartition(f"{part.topic}-{part.partition} is not on this appliance: ask for metadata")
    state = partition.table.state
    if state == OPENING:
        raise WriterGone(f"{part.topic}-{part.partition} is being opened: try again")
    if state == OFFLINE and partition.table.high_watermark == 0:
        raise StorageFault(f"{part.topic}-{part.partition} is offline: see `appliance status`")
    return partition.table.snapshot()


class FetchPlan:
    """What the parts of a fetch get.  While the fetch waits, only the parts that have changed are looked at again.

    As in Kafka, the first batch found is returned whole, whatever the limits, so that a consumer always makes progress.
    All other batches keep to ``request.bytes_max``.  At most PARTS_GIVEN_MAX parts get data, or are ``cold``,
    since each needs a look into an index.  The others are answered as if there was no room.  The partitions of denied
    parts are None.

    ``results``: of every part.  ``size``: bytes of all together.  ``cold``: what has to be brought into memory before
    these parts can be looked at again; until then they get nothing.  ``unlooked``: the parts that are not looked at
    yet, because the turn of the loop was over meanwhile, as ``is_over`` says.  There is no reply before that.
    """

    __slots__ = (
        *("_failed", "_with_data", "_is_over", "_let_go", "_allowed_bytes"),
        *("cold", "unlooked", "partitions", "request", "results", "size"),
    )

    def __init__(
        self, request: Fetch, partitions: Sequence[Readable | None], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        self.request, self.partitions, self._is_over = request, partitions, is_over
        self.results = [NOT_LOOKED_AT] * len(partitions)
        self.size = 0
        self.cold: dict[int, FileRange] = {}
        self.unlooked: dict[int, None] = {}
        self._with_data: set[int] = set()
        self._failed: set[int] = set()
        self._let_go = False
        self._allowed_bytes = -1
        """What the parts may get if there is room; -1: not asked for yet."""
        self.plan_parts(range(len(partitions)))

    def plan_parts(self, parts: Iterable[int]) -> None:
        """Look at parts, for the first time or again; at PARTS_AT_ONCE at least."""
        request, results = self.request, self.results
        numbers = iter(parts)
        for looked, index in enumerate(numbers):
            if looked and not looked % PARTS_AT_ONCE and self._is_over():
                self.unlooked[index] = None
                self.unlooked.update(dict.fromkeys(numbers))
                return
            if results[index] is not NOT_LOOKED_AT or self.unlooked:
                self.forget(index)
            part = request.parts[index]
            bytes_left = request.bytes_max - self.size if len(self._with_data) + len(self.cold) < PARTS_GIVEN_MAX else 0
            partition, is_first = self.partitions[index], self.size == 0
            try:
                result = _fetch_part(part, partition, bytes_left, is_first, request.committed)
            except NotInMemory as missing:
                self.cold[index] = missing.cold
                result = _fetch_part(part, partition, 0, False, request.committed)
            results[index] = result
            if result.size:
                self._with_data.add(index)
                self.size += result.size
            elif result.error:
                self._failed.add(index)
                if index in request.denied:
                    results[index] = _empty_result(TopicNotPermitted.code)
                elif index in request.refused and result.error == OffsetOutOfRange.code:
                    results[index] = _empty_result(request.refused[index])

    def forget(self, index: int) -> None:
        """Take back what a part gets, that it has an error, and that it is to be looked at."""
        result = self.results[index]
        self.results[index] = NOT_LOOKED_AT
        self._failed.discard(index)
        self.cold.pop(index, None)
        self.unlooked.pop(index, None)
        if index in self._with_data:
            self._with_data.remove(index)
            self.size -= result.size

    def replace(self, index: int, part: FetchPart) -> None:
        """Put another part in the place of one."""
        self.forget(index)
        parts = self.request.parts
        if self._allowed_bytes >= 0:
            self._allowed_bytes += max(part.bytes_max, 0) - max(parts[index].bytes_max, 0)
        parts[index] = part

    @property
    def failed(self) -> bool:
        """Whether a part has an error."""
        return bool(self._failed)

    @property
    def is_enough(self) -> bool:
        """Whether to reply at once: there is an error, or enough, or all that the parts may get."""
        enough = self.request.bytes_enough
        if self._failed or self.size >= enough:
            return True
        parts = self.request.parts
        if not self._with_data:
            return not parts
        if self._allowed_bytes < 0:
            self._allowed_bytes = sum(max(part.bytes_max, 0) for part in parts)
        available = sum(self._available(index) for index in self._with_data)
        return available >= min(enough, self._allowed_bytes)

    def _available(self, index: int) -> int:
        """The bytes that count as available for a part with data: as in Kafka, whether or not batches end there."""
        part, result = self.request.parts[index], self.results[index]
        return max(result.size, min(self.readable(index) - part.offset, part.bytes_max))

    def readable(self, index: int) -> int:
        """The offset up to which a part may be read."""
        result = self.results[index]
        return result.stable if self.request.committed else result.high_watermark

    def let_go(self) -> None:
        """Hold no files while the fetch waits: retention may remove them, and there may be many."""
        self._let_go = bool(self._with_data)
        for index in self._with_data:
            self.results[index] = self.results[index]._replace(pieces=())

    def take_back(self) -> None:
        """Look again at the parts whose files it has let go of, as a reply needs them."""
        if self._let_go:
            self._let_go = False
            self.plan_parts(sorted(index for index in self._with_data if not self.results[index].pieces))


def _empty_result(error: int) -> FetchResult:
    return FetchResult(error, -1, -1, 0, ())


def _fetch_part(
    part: FetchPart, partition: Readable | None, bytes_left: int, first: bool, committed: bool
) -> FetchResult:
    """What a part gets of the ``bytes_left``; the ``first`` one gets a batch, whatever is left.

    Raises:
        NotInMemory: what has to be read for that must be brought first.
    """
    try:
        snapshot = snapshot_of(partition, part)
    except ApplianceError as error:
        return FetchResult(error.code, -1, -1, 0, ())
    assert partition is not None
    bases, start, end, stable = snapshot
    offset, readable = part.offset, stable if committed else end
    # Records acknowledged with acks=1 may be above the high watermark, as in Kafka.
    if offset < start or (offset > end and offset > partition.table.log_end_offset):
        return FetchResult(OffsetOutOfRange.code, start, end, 0, (), stable)
    nothing = _new(FetchResult, (0, start, end, 0, (), stable, ()))
    bytes_max = min(part.bytes_max, bytes_left)
    if offset >= readable or (bytes_max <= 0 and not first):
        return nothing
    try:
        limit = sound_end(partition.damaged, offset, readable) if partition.damaged else readable
        range_ = partition.reader.locate_kept(bases, limit, offset, max(bytes_max, 1))
        if range_ is None and limit < readable:  # only what compaction has emptied is before the damage
            raise StorageFault(f"the messages from offset {limit} on are damaged: see `appliance status`")
    except ApplianceError as error:
        _report(error, partition)
        return FetchResult(error.code, start, end, 0, (), stable)
    if range_ is None or (range_.count > bytes_left and not first):
        return nothing
    if partition.table.state == OFFLINE and not partition.reader.has(range_):
        return FetchResult(StorageFault.code, start, end, 0, (), stable)
    if committed and partition.reader.has_aborted(index_version := partition.table.aborted):
        return _result_with_aborted(nothing, partition, bases, index_version, range_)
    return _new(FetchResult, (0, start, end, range_.count, (range_,), stable, ()))


def _result_with_aborted(
    nothing: FetchResult, partition: Readable, bases: tuple[int, ...], index_version: int, range_: FileRange
) -> FetchResult:
    """A result with the aborted transactions that a range may have messages of."""
    assert isinstance(range_.file, File)
    begin = offset_at(range_.file.path, range_.position)
    assert begin is not None
    try:
        aborted = partition.reader.aborted(bases, index_version, begin, begin + range_.count)
    except ApplianceError as error:
        return nothing._replace(error=error.code)
    return nothing._replace(size=range_.count, pieces=(range_,), aborted=aborted)


def _report(error: ApplianceError, partition: Readable) -> None:
    """Report what cannot be read, so that somebody looks at it."""
    if isinstance(error, CorruptLog | UnreadableLog):
        offset = offset_at(error.path, error.position)
        if offset is not None:
            partition.suspect(offset, offset + 1)


def sound_end(damaged: Sequence[tuple[int, int]], offset: int, end: int) -> int:
    """The offset up to which batches can be served from ``offset`` on.

    Raises:
        StorageFault: ``offset`` itself is damaged.
    """
    for start, stop in damaged:
        if start <= offset < stop:
            raise StorageFault(f"the offsets {start} to {stop} are damaged: see `appliance status`")
        if offset < start:
            return min(start, end)
    return end


class OffsetLookup:
    """Answers a request about offsets in steps, each of which reads a bounded amount of data.

    ``results`` has the answers found so far, in the order of the parts.  ``cold``: what has to be brought into memory
    before the next part can be answered; None: nothing.
    """

    def __init__(self, request: Offsets, partitions: Sequence[Readable | None]) -> None:
        self.request = request
        self.results: list[OffsetsResult] = []
        self.cold: FileRange | None = None
        self._partitions = list(partitions)

    def forget(self, partition: Readable) -> None:
        """Answer later parts of a deleted partition as unknown."""
        self._partitions = [None if other is partition else other for other in self._partitions]

    def answer_parts(self, bytes_max: int) -> int:
        """Answer parts until all are answered (:attr:`done`), ``bytes_max`` bytes have been read, or it is ``cold``.

        Returns:
            The number of bytes read; the last part may exceed ``bytes_max``.
        """
        looked, self.cold = 0, None
        for index in range(len(self.results), len(self.request.parts)):
            part, partition = self.request.parts[index], self._partitions[index]
            before = 0 if partition is None else partition.reader.looked_bytes
            try:
                if index in self.request.denied:
                    self.results.append(OffsetsResult(TopicNotPermitted.code, -1, -1, -1))
                else:
                    self.results.append(offsets(part, partition, self.request.counted, self.request.committed))
            except NotInMemory as missing:
                self.cold = missing.cold
            looked += PART_BYTES if partition is None else PART_BYTES + partition.reader.looked_bytes - before
            if looked >= bytes_max or self.cold is not None:
                break
        return looked

    @property
    def done(self) -> bool:
        return len(self.results) == len(self.request.parts)


def offsets(
    part: OffsetsPart, partition: Readable | None, counted: bool = True, committed: bool = False
) -> OffsetsResult:
    """Answer one part of a request about offsets: earliest, latest, by time, or about a given offset."""
    try:
        snapshot = snapshot_of(partition, part)
        assert partition is not None
        if committed:
            snapshot = snapshot._replace(high_watermark=snapshot.stable)
        return _offsets(part, snapshot, partition, counted)
    except ApplianceError as error:
        if partition is not None:
            _report(error, partition)
        return OffsetsResult(error.code, -1, -1, -1)


def _offsets(part: OffsetsPart, snapshot: TableSnapshot, partition: Readable, counted: bool) -> OffsetsResult:
    bases, start, end, _ = snapshot
    reader = partition.reader
    if part.offset >= 0:
        offset = min(max(part.offset, start), end)
        timestamp, records = reader.time_and_count(bases, end, offset)
        return OffsetsResult(0, offset, timestamp, records)
    if part.timestamp == LATEST:
        return OffsetsResult(0, end, -1, reader.time_and_count(bases, end, end)[1] if counted else -1)
    if part.timestamp == EARLIEST:
        return OffsetsResult(0, start, -1, reader.time_and_count(bases, end, start)[1] if counted else -1)
    if part.timestamp == MAX_TIMESTAMP:
        batch = reader.max_timestamp(bases, end, start)
    elif part.timestamp >= 0:
        batch = reader.find_time(bases, end, part.timestamp, start)
    else:
        raise InvalidTimestamp(f"timestamp {part.timestamp}: must be ms >= 0, or -1 latest, -2 earliest, -3 largest")
    if batch is None:  # no record is that recent: Kafka answers without an offset
        return OffsetsResult(0, -1, -1, -1)
    batch_timestamp = part.timestamp if part.timestamp >= 0 else batch.timestamp
    return OffsetsResult(0, *reader.first_record(bases, end, batch, batch_timestamp, start))
