"""Turns fetched chunks into messages or values, steps over holes, and decides about damaged batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ..errors import BadValue, ClientFault, CorruptBatch
from ..records.batch import COUNT_AT, HEADER_BYTES, LENGTH_AT, LENGTH_END
from ..records.decode import Record, decode_batch, decode_values
from ..records.holes import check_hole
from .fetcher import Chunk

T = TypeVar("T")
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


class Values(NamedTuple):
    """The values of consecutive messages; ``next_offset`` is the offset after the last one."""

    topic: str
    partition: int
    values: Sequence[bytes | None]
    next_offset: int


class Decoder:
    """Decodes chunks.  A damaged batch raises or, with ``on_corrupt="skip"``, is counted in ``corrupt_batches``.

    With ``select``, :meth:`messages` returns the selected ones.  Only batches that have some are decoded to messages.
    """

    def __init__(self, *, check_crc: bool, on_corrupt: str, select: Select | None = None) -> None:
        if on_corrupt not in ("raise", "skip"):
            raise BadValue(f"on_corrupt={on_corrupt!r}: give 'raise' or 'skip'")
        self._check_crc = check_crc
        self._skip = on_corrupt == "skip"
        self._select = select
        self.corrupt_batches = 0

    def values(self, chunk: Chunk) -> Values | None:
        """The next batch of the chunk; None when there is none left."""
        found = self._next(chunk, self._values)
        if found is None:
            return None
        values, next_offset = found
        unwanted = chunk.wanted - (next_offset - len(values))
        return Values(*chunk.fetched.topic_partition, values[unwanted:] if unwanted > 0 else values, next_offset)

    def messages(self, chunk: Chunk) -> list[Message] | None:
        """The next batch of the chunk, [] if nothing in it is selected; None when there is none left."""
        records = self._next(chunk, self._records if self._select is None else self._selected)
        if records is None:
            return None
        topic, partition = chunk.fetched.topic_partition
        wanted = chunk.wanted
        if records and records[0].offset < wanted:
            records = [record for record in records if record.offset >= wanted]
        return [Message(topic, partition, *record) for record in records]

    def _values(self, chunk: Chunk) -> tuple[Sequence[bytes | None], int]:
        return decode_values(chunk.data, chunk.at, check_crc=self._check_crc)

    def _records(self, chunk: Chunk) -> list[Record]:
        return decode_batch(chunk.data, chunk.at, check_crc=self._check_crc)

    def _selected(self, chunk: Chunk) -> list[Record]:
        assert self._select is not None
        values, _ = self._values(chunk)
        chosen = self._select(values)
        if not chosen:
            return []
        records = decode_batch(chunk.data, chunk.at, check_crc=False)
        return [records[index] for index in chosen]

    def _next(self, chunk: Chunk, decode: Callable[[Chunk], T]) -> T | None:
        data, stop = chunk.data, len(chunk.data)
        while chunk.at < stop:
            start = chunk.at
            size = int.from_bytes(data[start + LENGTH_AT : start + LENGTH_END], "big") + LENGTH_END
            sane = HEADER_BYTES <= size <= stop - start
            try:
                if not sane or not _in_place(chunk, start, size):
                    raise CorruptBatch("its header contradicts its place in the log")
                decoded = decode(chunk)
            except ClientFault as error:
                if sane and check_hole(data, start, stop) is not None:
                    chunk.at = start + size
                    continue
                # A damaged header does not show where the next batch begins.
                after = start + size if sane else stop
                if not self._skip:
                    topic, partition = chunk.fetched.topic_partition
                    raise CorruptBatch(
                        f"{topic}-{partition}: damaged batch at {chunk.start_offset + start}: {error}; "
                        f"seek to {chunk.start_offset + after} to continue behind it"
                    ) from None
                self.corrupt_batches += 1
                chunk.at = after
                continue
            chunk.at = start + size
            return decoded
        return None


def _in_place(chunk: Chunk, start: int, size: int) -> bool:
    """Whether the base offset, which no checksum covers, agrees with the batch's place in the log."""
    data = chunk.data
    base = int.from_bytes(data[start : start + LENGTH_AT], "big", signed=True)
    count = int.from_bytes(data[start + COUNT_AT : start + HEADER_BYTES], "big")
    return base + count == chunk.start_offset + start + size
