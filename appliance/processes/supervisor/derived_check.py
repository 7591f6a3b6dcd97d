"""Compares what a log that is written to is known by with its batches, while the scrubber reads them.

What is derived on the way in has to be what recovery derives: the index of the active segment up to the high watermark,
the number of records up to there, which the table has, and the stored state of idempotent producers.  The scrubber
mends none of it: it is the writer's.  ``tests/support/derived.py`` compares more, of a log that stands still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...broker.sequences import ProducersSnapshot
from ...log.files import index_path
from ...log.index import ANY_INTERVAL, ENTRY_BYTES, Builder, entry_in
from ...log.recovery import read_index
from ...records.batch import CONTROL, SEQUENCE_MASK, BatchHeader

PRODUCERS_MAX: Final = 100_000
"""Producers whose last batch is remembered; of more, those that were silent longest are not compared."""


class Contradiction(NamedTuple):
    """Something that is known otherwise than the batches say, and what derives it again."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


class DerivedCheck:
    """Call :meth:`on_batch` for each batch, in the order of the log, then :meth:`contradictions`."""

    def __init__(self, directory: Path, bases: Sequence[int], end: int, stored: ProducersSnapshot | None) -> None:
        """``end``: the high watermark; ``stored``: the snapshot of producers, read before the batches."""
        self._directory, self._active, self._end, self._stored = directory, bases[-1], end, stored
        self._builder: Builder | None = None
        self._before: int | None = None
        self._last: dict[int, tuple[int, int, int | None]] = {}
        """Of each producer, where its last batch below the end of the snapshot stops, its epoch, the next sequence."""
        if self._active == end:
            self._begin()

    def on_batch(self, start: int, header: BatchHeader) -> None:
        """Note the batch that begins at offset ``start``."""
        if start == self._active:
            self._begin()
        builder, stop = self._builder, start + header.size
        if builder is not None and builder.offset == start:
            builder.batch(header.size, header.count, header.max_timestamp)
        if self._stored is not None and header.producer_id >= 0 and stop <= self._stored.end:
            self._last.pop(header.producer_id, None)
            following = (header.base_sequence + header.count) & SEQUENCE_MASK
            is_data = not header.attributes & CONTROL and header.base_sequence >= 0
            self._last[header.producer_id] = stop, header.producer_epoch, following if is_data else None
            if len(self._last) > PRODUCERS_MAX:
                del self._last[next(iter(self._last))]

    def _begin(self) -> None:
        """Begin the active segment with the entries of its index that are final."""
        index = read_index(self._directory, self._active)
        entries = [entry_in(index, at) for at in range(0, len(index) - ENTRY_BYTES + 1, ENTRY_BYTES)]
        final = max(
            (number + 1 for number, entry in enumerate(entries) if entry and entry.offset <= self._end), default=0
        )
        first = entries[0] if entries else None
        self._before = None if first is None or first.offset != self._active else first.records
        self._builder = Builder(index[: final * ENTRY_BYTES], self._active, self._before or 0, ANY_INTERVAL)

    def contradictions(self, records: int | None) -> Iterator[Contradiction]:
        """What is known otherwise than the batches say.

        Args:
            records: those up to the high watermark, by the table; None: the log has grown meanwhile.
        """
        builder = self._builder
        if builder is not None and builder.offset == self._end:
            builder.finish(sealed=False)
            path = index_path(self._directory, self._active)
            if builder.wrong_at is not None:
                text = f"{path}:{builder.wrong_at}: the index contradicts its segment"
                yield Contradiction(text, f"`appliance log repair {self._directory.name}` makes it anew")
            elif records is not None and self._before is not None and records != builder.records:
                text = f"it has {builder.records} records up to {self._end}, and is said to have {records}"
                yield Contradiction(text, "a restart counts them again")
        for producer_id, entry in () if self._stored is None else self._stored.entries:
            epoch, following, last = entry[0], entry[1], entry[5]
            stop, of_batch, next_one = self._last.get(producer_id, (last, epoch, following))
            differs = stop == last and (of_batch != epoch or next_one not in (None, following))
            if stop > last or differs:
                ours, theirs = (epoch, following, last), (of_batch, next_one, stop)
                text = f"producer {producer_id} is stored with epoch, next sequence and end {ours}, and wrote {theirs}"
                yield Contradiction(text, "a writer that ends stores them again")
