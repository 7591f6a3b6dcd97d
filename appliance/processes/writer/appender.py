"""Checks the record batches of a turn, gives each its offset, and appends all with one ``writev``: group commit."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from ...errors import ApplianceError, ClientFault, DuplicateSequence, InvalidRecord, InvalidRequest, InvalidTimestamp
from ...log import Log
from ...records.batch import LOG_APPEND_TIME, NOT_FOR_CLIENTS, BatchInfo, check, place, restamp
from ...records.validation import check_records, unpacked_bytes_max
from ...shared.table import COUNT_DUPLICATES, COUNT_REFUSED, SegmentTable
from ..answers import FOR_ALL, Answer
from ..clock import wall_ms
from ..messages import AppendRow
from .producers import Producers
from .worker_link import ReadyAnswer, Source

FUTURE_MS_MAX: Final = 3_600_000
"""A header whose largest timestamp is further in the future is not believed without a look at the records."""
TEXTS_MAX: Final = 32
TEXT_CHARACTERS_MAX: Final = 400

_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple


class Appender:
    """Appends to one log.  Call :meth:`check`, then :meth:`append`; after an error of that, :meth:`refuse`."""

    def __init__(self, log: Log, producers: Producers, table: SegmentTable) -> None:
        self._log, self._table = log, table
        self._sequences = producers.sequences
        self._last_base = log.bases[-1]
        self._group: list[tuple[memoryview, BatchInfo]] = []
        self._bytes_max = 0
        """The maximum size of a batch in this turn."""
        self._append_ms = -1
        """The timestamp of all batches of this turn with LogAppendTime, else -1."""
        self._validates = True
        """Whether the records of all batches of this turn are checked."""
        self._future_ms = 0

    def check(self, arrived: list[tuple[Source, AppendRow]]) -> list[ReadyAnswer]:
        """Check and place all batches that have arrived; return the answers, valid after :meth:`append`."""
        group: list[tuple[memoryview, BatchInfo]] = []
        self._group = group
        ready: list[ReadyAnswer] = []
        refused = parts = 0
        settings = self._log.settings
        position = self._log.end_offset
        self._bytes_max = settings.max_message_bytes
        now_ms = wall_ms()
        self._append_ms = now_ms if settings.message_timestamp_type == "LogAppendTime" else -1
        self._validates, self._future_ms = settings.message_validate, now_ms + FUTURE_MS_MAX
        for source, (token, acks, positions) in arrived:
            arena = source.arena
            parts += len(positions) // 2
            results: list[int] = []
            messages: dict[int, str] = {}
            for index in range(0, len(positions), 2):
                try:
                    base, end, position = self._admit(arena, positions[index], positions[index + 1], position, group)
                    results += (0, base, end)
                except ClientFault as error:
                    if isinstance(error, DuplicateSequence):
                        self._table.count(COUNT_DUPLICATES, 1)
                    else:
                        refused += 1
                    results += (error.code, -1, -1)
                    if len(messages) < TEXTS_MAX:
                        messages[index // 2] = str(error)[:TEXT_CHARACTERS_MAX]
            answer: Answer = _new(Answer, (results, messages, self._append_ms))
            ready.append(_new(ReadyAnswer, (source, acks, token, answer)))
        self._table.count_parts(parts)
        if refused:
            self._table.count(COUNT_REFUSED, refused)
        return ready

    def append(self) -> tuple[int, int]:
        """Append the batches that :meth:`check` has placed, and publish the log end offset.

        Returns:
            The number of bytes and records that were appended.

        Raises:
            DiskFull, OutOfResources, StorageFault: nothing was appended.
        """
        group, self._group = self._group, []
        if not group:
            return 0, 0
        log, table = self._log, self._table
        size, records = log.append(group)
        self._sequences.commit()
        if log.bases[-1] != self._last_base:
            self.show_segments()
        table.set_log_end_offset(log.end_offset)
        table.count_group(len(group), size)
        return size, records

    def refuse(self, error: ApplianceError, ready: list[ReadyAnswer]) -> list[ReadyAnswer]:
        """Forget the placed batches; return refusals in place of the answers."""
        self._sequences.rollback()
        texts = {FOR_ALL: str(error)[:TEXT_CHARACTERS_MAX]}
        return [
            one._replace(answer=Answer([error.code, -1, -1] * (len(one.answer.numbers) // 3), texts, -1))
            for one in ready
        ]

    def _admit(
        self, arena: memoryview, start: int, stop: int, position: int, group: list[tuple[memoryview, BatchInfo]]
    ) -> tuple[int, int, int]:
        """Check one request's batches and add them to the group, all or none.

        Returns:
            Offset of the first record, offset after the last, and the offset of the next batch.

        Raises:
            ClientFault: the request is refused.
        """
        info = check(arena, start, stop, self._bytes_max)
        size, count, max_timestamp, first_timestamp, producer_id, epoch, sequence, attributes = info
        end = position + size
        if size < stop - start:
            return self._admit_several(arena, start, stop, position, group)
        if attributes & NOT_FOR_CLIENTS:
            raise _unsettable(attributes)
        if producer_id >= 0:
            if sequence < 0:
                raise InvalidRecord(f"producer {producer_id}: base sequence {sequence}")
            repeat = self._sequences.check(producer_id, epoch, sequence, count)
            if repeat is not None:
                self._table.count(COUNT_DUPLICATES, 1)
                return *repeat, position
        if self._validates or not first_timestamp <= max_timestamp <= self._future_ms:
            # Some clients leave the largest timestamp out (sarama).  Kafka corrects it, too.
            max_timestamp = check_records(arena, start, info, unpacked_bytes_max(self._bytes_max))
        if max_timestamp < -1:
            raise InvalidTimestamp(f"largest timestamp is {max_timestamp} ms: must be -1 (none) or later")
        if self._append_ms >= 0:
            info = restamp(arena, start, info, self._append_ms, attributes | LOG_APPEND_TIME)
        elif max_timestamp != info.max_timestamp:
            info = restamp(arena, start, info, max_timestamp, attributes)
        if producer_id >= 0:
            self._sequences.record(producer_id, epoch, sequence, count, end - count, end, info.max_timestamp)
        place(arena, start, position, size, count)
        group.append((arena[start:stop], info))
        return end - count, end, end

    def _admit_several(
        self, arena: memoryview, start: int, stop: int, position: int, group: list[tuple[memoryview, BatchInfo]]
    ) -> tuple[int, int, int]:
        """As :meth:`_admit`, for a request with several batches, which an idempotent producer never sends."""
        admitted: list[tuple[memoryview, BatchInfo]] = []
        first_base, at = -1, start
        while at < stop:
            info = check(arena, at, stop, self._bytes_max)
            if info.producer_id >= 0:
                raise InvalidRequest("an idempotent producer sends one batch per partition and request")
            _, end, position = self._admit(arena, at, at + info.size, position, admitted)
            if first_base < 0:
                first_base = end - info.count
            at += info.size
        group += admitted
        return first_base, position, position

    def show_segments(self) -> None:
        """Add the log's new segments to the table."""
        bases = self._log.bases
        for base in bases[bisect_right(bases, self._last_base) :]:
            self._table.add_segment(base)
            self._last_base = base


def _unsettable(attributes: int) -> InvalidTimestamp | InvalidRecord:
    """The error for attributes of a batch that a client must not set."""
    if attributes & LOG_APPEND_TIME:
        return InvalidTimestamp("a batch with LogAppendTime, which only a broker may set: send it with CreateTime")
    return InvalidRecord(f"a batch with attributes {attributes & 0xFFFF:#06x}, some of which mean nothing")
