"""Compares what inputs say they have sent, in their ledger, with the rows of the table ``events``.

A block of the ledger is a number of messages at consecutive offsets of a partition.  Each of these is a row, whatever
the parsers made of it, once the table has read so far; so the bytes of a file can be followed to the rows of the table.
Messages from before the offset at which the pipeline began are none of its rows: they are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from ...names import TopicPartition
from .expiry import expired
from .multiline import LINES
from .output_files import OutputFiles
from .settings import Settings
from .tables import open_store

REJECTED: Final = "rejected"
Key = TypeVar("Key")


class Block(NamedTuple):
    """Messages of an input at ``offset`` and those that follow."""

    topic: str
    partition: int
    offset: int
    messages: int


class Rows(NamedTuple):
    """What became of messages in the table.

    ``before``: from before the pipeline began; ``unread``: of topics, or behind offsets, that it has not read;
    ``rows``: lines that it has, of which ``rejected`` no parser took, or a rule did not let pass; ``expired``: messages
    without a row, up to the last one that has expired; ``missing``, ``twice``: others that it has read without a row,
    and rows too many.
    """

    before: int = 0
    unread: int = 0
    rows: int = 0
    rejected: int = 0
    expired: int = 0
    missing: int = 0
    twice: int = 0


def audit(settings: Settings, sent: Mapping[Key, Iterable[Block]]) -> dict[Key, Rows]:
    """Of each source of logs, what became of its blocks; each block is counted once.

    Raises:
        BadValue: there is no table.
    """
    record, events = open_store(settings).snapshot()
    if record is None:
        raise BadValue(
            f"there is no table of events in {settings.output.path}: `appliance pipeline run CONFIG.toml` makes it"
        )
    gone = expired(OutputFiles(settings.output))
    of_partition: dict[TopicPartition, list[tuple[Block, Key]]] = defaultdict(list)
    for key, blocks in sent.items():
        for block in set(blocks):
            of_partition[TopicPartition(*block[:2])].append((block, key))
    rows = dict.fromkeys(sent, Rows())
    for part, pairs in of_partition.items():
        begun = record.since.get(part.topic, {}).get(part.partition, 0)
        first = max(begun, min(block.offset for block, _ in pairs))
        counts = _Counts(events, part, (first, record.ends.get(part, 0)), gone.last_of(part) + 1)
        for block, key in pairs:
            rows[key] = Rows(*map(sum, zip(rows[key], counts.of(block), strict=True)))
    return rows


class _Counts:
    """The rows of a partition between two offsets, added up so that those of a block are a difference."""

    def __init__(self, events: Any, part: TopicPartition, bounds: tuple[int, int], expired: int) -> None:
        """``bounds``: the offsets that it has read; ``expired``: before which rows have expired."""
        first, end = self._first, self._end = bounds
        self._expired = expired
        in_range = (pc.field("topic") == part.topic) & (pc.field("partition") == part.partition)
        in_range &= (pc.field("offset") >= first) & (pc.field("offset") < end)
        has_lines = LINES in events.schema.names
        rows = events.to_table(columns=["offset", REJECTED, *([LINES] if has_lines else [])], filter=in_range)
        rows = rows.sort_by("offset")
        self._offsets = rows.column("offset").to_numpy()
        lines = pc.fill_null(rows.column(LINES), 1) if has_lines else pa.array(np.ones(len(rows), np.int64))
        self._lines = _sums(lines.cast(pa.int64()).to_numpy())
        self._rejected = _sums(pc.is_valid(rows.column(REJECTED)).cast(pa.int64()).to_numpy())

    def of(self, block: Block) -> Rows:
        before = min(block.messages, max(0, self._first - block.offset))
        unread = min(block.messages - before, max(0, block.offset + block.messages - max(self._first, self._end)))
        bounds = np.searchsorted(self._offsets, [block.offset, block.offset + block.messages])
        rows, rejected = (int(sums[bounds[1]] - sums[bounds[0]]) for sums in (self._lines, self._rejected))
        read = block.messages - before - unread
        old = min(read, max(0, self._expired - max(block.offset, self._first)))
        kept = np.searchsorted(self._offsets, [block.offset, min(block.offset + block.messages, self._expired)])
        expired = max(0, old - max(0, int(self._lines[kept[1]] - self._lines[kept[0]])))
        missing = max(0, read - rows - expired)
        return Rows(before, unread, rows, rejected, expired, missing, max(0, rows + expired - read))


def _sums(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(values)])
