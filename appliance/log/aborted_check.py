"""Compares the indexes of aborted transactions (:mod:`.transactions`) with the batches of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..records.batch import TRANSACTIONAL, BatchInfo
from ..records.markers import is_marker, read_marker
from .transactions import Aborted, Transactions


class _Abort(NamedTuple):
    """A marker of an abort.  ``after``: where the producer's marker before it ends; ``entry``: what the batches say."""

    producer_id: int
    after: int
    entry: Aborted | None


class AbortedCheck:
    """Takes all batches of a log in order.  ``transactions``: those that are open behind the last one.

    The batches tell less than an index may know: retention and compaction take messages of aborted transactions, and
    leave the marker.
    """

    def __init__(self) -> None:
        self.transactions = Transactions()
        self._aborts: dict[int, _Abort] = {}
        self._ends: dict[int, int] = {}

    def batch(self, start: int, info: BatchInfo, data: memoryview) -> None:
        """Take the batch that begins at offset ``start``."""
        producer_id = info.producer_id
        if is_marker(info):
            stop = start + info.size
            if not read_marker(data).committed:
                entry = self.transactions.aborted(producer_id, stop)
                self._aborts[stop - 1] = _Abort(producer_id, self._ends.get(producer_id, 0), entry)
            self.transactions.end(producer_id, stop)
            self.transactions.stable(stop)
            self._ends[producer_id] = stop
        elif info.attributes & TRANSACTIONAL:
            self.transactions.begin(producer_id, start)

    def right(self, base: int, limit: int, found: Sequence[Aborted]) -> list[Aborted]:
        """What the index of the segment [base, limit) has to say, of which ``found`` is there."""
        by_last = {entry.last: entry for entry in found}
        entries: list[Aborted] = []
        for last, (producer_id, after, entry) in self._aborts.items():
            if base <= last < limit:
                there = by_last.get(last)
                latest = last if entry is None else entry.first
                if there is not None and there.producer_id == producer_id and after <= there.first <= latest:
                    entries.append(there)
                elif entry is not None:
                    entries.append(entry)
        return entries
