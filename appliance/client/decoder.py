"""Turns fetched chunks into messages or values, steps over holes and markers, and decides about damaged batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from ..errors import ClientFault, CorruptBatch, MessageTooLarge
from ..records.batch import HEADER_BYTES, LENGTH_AT, LENGTH_END, end_offset, read_header
from ..records.decode import BYTES_MAX, DecodeMeter, Record, decode_batch, decode_values
from ..records.holes import check_hole
from ..records.markers import check_marker
from .arguments import check_least, check_one_of, check_truth
from .damage_reports import DamageReports
from .fetcher import Chunk

T = TypeVar("T")
U = TypeVar("U")
Select = Callable[[Sequence[bytes | None]], Sequence[int]]
"""Which values of a batch are wanted, as indexes in ascending order."""


class Message(NamedTuple):
    """One message.  ``timestamp``: ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


_message = tuple.__new__  # twice as fast as the constructor of a NamedTuple


class Values(NamedTuple):
    """The values of consecutive messages; ``next_offset`` is the offset from which to read on."""

    topic: str
    partition: int
    values: Sequence[bytes | None]
    next_offset: int


class ChunkDecoder:
    """Decodes chunks, one batch in each step.

    A damaged batch, or one that unpacks to more than ``unpacked_bytes_max``, raises; with ``on_corrupt="skip"`` it is
    stepped over, and counted in ``corrupt_batches`` or ``large_batches``.  Damage is told to ``reports`` either way.

    With ``select``, :meth:`messages` returns the selected ones.  Only batches that have some are decoded to messages.
    """

    def __init__(
        self,
        reports: DamageReports,
        unpacked_bytes_max: int = BYTES_MAX,
        *,
        check_crc: bool,
        on_corrupt: str,
        select: Select | None = None,
    ) -> None:
        check_one_of(("raise", "skip"), on_corrupt=on_corrupt)
        check_least(0, unpacked_bytes_max=unpacked_bytes_max)
        check_truth(check_crc=check_crc)
        self._reports = reports
        self._check_crc = check_crc
        self._skip = on_corrupt == "skip"
        self._select = select
        self._bytes_max = unpacked_bytes_max
        self._meter = DecodeMeter()
        self.corrupt_batches = self.large_batches = 0

    @property
    def unpacked_bytes(self) -> int:
        """What all batches so far have unpacked to, those that were stepped over, too."""
        return self._meter.unpacked_bytes

    def values(self, chunk: Chunk) -> Values | None:
        """The next batch of the chunk, without values if it was stepped over; None when there is none left."""
        decoded = self._next(chunk, self._requested_values, ())
        if decoded is None:
            return None
        values, next_offset = decoded or ((), chunk.start_offset + chunk.at)
        return Values(*chunk.fetched.topic_partition, values, next_offset)

    def messages(self, chunk: Chunk) -> list[Message] | None:
        """The next batch of the chunk, [] if nothing in it is selected, or it was stepped over; None at the end."""
        records = self._next(chunk, self._records if self._select is None else self._selected, [])
        if records is None:
            return None
        topic, partition = chunk.fetched.topic_partition
        requested = chunk.requested_offset
        if records and records[0].offset < requested:
            records = [record for record in records if record.offset >= requested]
        place = topic, partition
        return [_message(Message, place + record) for record in records]

    def _requested_values(self, chunk: Chunk) -> tuple[Sequence[bytes | None], int]:
        """The values of the messages that are wanted, and the offset after the batch."""
        values, next_offset = self._values(chunk)
        span = read_header(chunk.data, chunk.at).span
        unwanted = chunk.requested_offset - (next_offset - span)
        if unwanted <= 0:
            return values, next_offset
        if span == len(values):
            return values[unwanted:], next_offset
        records = decode_batch(chunk.data, chunk.at, check_crc=False, bytes_max=self._bytes_max)  # it was compacted
        return [record.value for record in records if record.offset >= chunk.requested_offset], next_offset

    def _values(self, chunk: Chunk) -> tuple[Sequence[bytes | None], int]:
        return decode_values(
            chunk.data, chunk.at, check_crc=self._check_crc, bytes_max=self._bytes_max, meter=self._meter
        )

    def _records(self, chunk: Chunk) -> list[Record]:
        return decode_batch(
            chunk.data, chunk.at, check_crc=self._check_crc, bytes_max=self._bytes_max, meter=self._meter
        )

    def _selected(self, chunk: Chunk) -> list[Record]:
        assert self._select is not None
        values, _ = self._values(chunk)
        chosen = self._select(values)
        if not chosen:
            return []
        records = decode_batch(chunk.data, chunk.at, check_crc=False, bytes_max=self._bytes_max, meter=self._meter)
        return [records[index] for index in chosen]

    def _next(self, chunk: Chunk, decode: Callable[[Chunk], T], nothing: U) -> T | U | None:
        """What is next in the chunk; ``nothing`` for a batch that was stepped over, so that the caller can stop."""
        data, stop = chunk.data, len(chunk.data)
        while chunk.at < stop:
            start = chunk.at
            size = _size_at(data, start)
            if start + chunk.start_offset in chunk.aborted:
                chunk.at = start + size
                continue
            sane = HEADER_BYTES <= size <= stop - start
            try:
                if not sane or not _is_in_place(chunk, start, size):
                    raise CorruptBatch("its header contradicts its place in the log")
                decoded = decode(chunk)
            except ClientFault as error:
                if sane and (check_hole(data, start, stop) is not None or check_marker(data, start, stop)):
                    chunk.at = start + size
                    continue
                # A damaged header does not show where the next batch begins.
                after = start + size if sane else stop
                is_large = isinstance(error, MessageTooLarge)
                topic, partition = chunk.fetched.topic_partition
                if not is_large:
                    self._reports.report(topic, partition, chunk.start_offset + start, chunk.start_offset + after)
                if not self._skip:
                    what, remedy = (
                        ("batch", "give a larger unpacked_bytes_max, or ") if is_large else ("damaged batch", "")
                    )
                    raise CorruptBatch(
                        f"{topic}-{partition}: {what} at {chunk.start_offset + start}: {error}; "
                        f"{remedy}seek to {chunk.start_offset + after} to continue behind it"
                    ) from None
                self.large_batches += is_large
                self.corrupt_batches += not is_large
                chunk.at = after
                return nothing
            chunk.at = start + size
            return decoded
        return None


def single_batches(chunk: Chunk) -> Iterator[Chunk]:
    """Yields each batch that is not decoded yet as a chunk, so that readers can choose their order.

    Behind a damaged length the next batch is not found: the rest is one chunk.
    """
    start, stop = chunk.at, len(chunk.data)
    while start < stop:
        size = _size_at(chunk.data, start)
        end = start + size if HEADER_BYTES <= size <= stop - start else stop
        yield Chunk(
            chunk.fetched, chunk.data[start:end], chunk.requested_offset, chunk.start_offset + start, chunk.aborted
        )
        start = end


def _size_at(data: memoryview, start: int) -> int:
    """The size that the header of the batch at ``start`` declares."""
    return int.from_bytes(data[start + LENGTH_AT : start + LENGTH_END], "big") + LENGTH_END


def _is_in_place(chunk: Chunk, start: int, size: int) -> bool:
    """Whether the base offset, which no checksum covers, agrees with the batch's place in the log."""
    return end_offset(chunk.data, start) == chunk.start_offset + start + size
