"""Finds the lines of a source that have a text, in the messages that the ledger says are its.

The blocks of the source are read in the order of their offsets; what lies between two of them is skipped if it is much.
A block whose first message is not of this source, as in a topic that was made again, is left out.

Bounds: BLOCKS_MAX blocks, the last ones; ``matches_max``; ``until_ms``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from ..client import Consumer
from ..client.decoder import Message
from ..clock import now_ms
from ..errors import ApplianceError
from ..wire.requests import EARLIEST, LATEST
from .ledger import LedgerRow, PlacedBlock
from .line_search import FETCH_S
from .positions import BlockOrigin

BLOCKS_MAX: Final = 200_000
NEAR_BYTES: Final = 1 << 20
"""Offsets count bytes: what lies between two blocks is read and dropped if it is less."""


class SourceBlock(NamedTuple):
    """A block, and the life of the source that it is of; ``minute``: when it was flushed, s since 1970."""

    block: PlacedBlock
    store: str
    life: int
    minute: int


class TextMatch(NamedTuple):
    """``line``: its number; of an event of several lines that of the block's first one."""

    block: SourceBlock
    line: int
    offset: int
    value: bytes


class TextSearch:
    """Takes the rows of one source, and then reads its messages.

    ``is_cut``: not all could be read, for there was too much, or a topic is not there or gives no answer.
    """

    def __init__(self, text: str, topics: Container[str], matches_max: int, until_ms: float) -> None:
        self._text, self._topics = text.encode("utf-8", "surrogateescape"), topics
        self._matches_max, self._until_ms = matches_max, until_ms
        self._blocks: deque[SourceBlock] = deque(maxlen=BLOCKS_MAX)
        self.is_cut = False

    def add(self, row: LedgerRow) -> None:
        self.is_cut |= len(self._blocks) + len(row.spans) > BLOCKS_MAX
        self._blocks.extend(SourceBlock(block, row.store, row.number, row.minute) for block in row.spans)

    def matches(self, consumer: Consumer) -> list[TextMatch]:
        """In the order of their partitions and offsets."""
        by_part: dict[tuple[str, int], dict[int, SourceBlock]] = {}
        for row in self._blocks:  # one that was published twice is one
            by_part.setdefault((row.block.topic, row.block.partition), {})[row.block.offset] = row
        found: list[TextMatch] = []
        for part in sorted(by_part):
            blocks = [row for _, row in sorted(by_part[part].items())]
            if part[0] not in self._topics:
                self.is_cut = True
                continue
            try:
                for match in self._of_partition(consumer, part, blocks):
                    found.append(match)
                    if len(found) >= self._matches_max:
                        return found
            except ApplianceError:  # the topic was deleted in this moment
                self.is_cut = True
        return found

    def _of_partition(
        self, consumer: Consumer, part: tuple[str, int], blocks: list[SourceBlock]
    ) -> Iterator[TextMatch]:
        first_offset, end = (consumer.offsets_at(which, [part])[part] for which in (EARLIEST, LATEST))
        there = deque(row for row in blocks if first_offset <= row.block.offset < end)
        self.is_cut |= len(there) < len(blocks)
        if not there:
            return
        consumer.assign({part: there[0].block.offset})
        is_own = False
        while there:
            messages = consumer.poll(timeout=FETCH_S, messages_max=10_000)
            is_at_end = not messages and consumer.position(*part) >= end  # what is missing was compacted
            if is_at_end or now_ms() >= self._until_ms:
                self.is_cut = True
                return
            for message in messages:
                while there and message.offset >= there[0].block.offset + there[0].block.messages:
                    there.popleft()  # its last messages were compacted
                if not there:
                    return
                row = there[0]
                if message.offset < row.block.offset:
                    continue
                if message.offset == row.block.offset:
                    is_own = _is_of(message, row)
                if is_own and self._text in (message.value or b""):
                    yield TextMatch(row, _line_of(row.block, message.offset), message.offset, message.value or b"")
                if message.offset == row.block.offset + row.block.messages - 1:
                    there.popleft()
                    if not there:  # nothing may follow
                        return
            if there and there[0].block.offset > consumer.position(*part) + NEAR_BYTES:
                consumer.seek(*part, there[0].block.offset)


def _is_of(message: Message, row: SourceBlock) -> bool:
    origin = BlockOrigin.read(message.headers)
    return origin is not None and origin[:3] == (row.store, row.life, row.block.start)


def _line_of(block: PlacedBlock, offset: int) -> int:
    return block.first_line + (offset - block.offset if block.messages == block.lines else 0)
