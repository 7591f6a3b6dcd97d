"""Finds the messages of rows whose bytes the table does not have, in the topics that still have them.

A row says at which offset of its topic its line is, and when that arrived.  An event of several lines has the offset of
its first one and their number: the lines that follow are those behind it in the partition.  What retention has removed,
or what is of a topic that was created again, is not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...log_access.access import LogAccess
from ...log_access.arrow import Decoder
from ...log_access.ranges import Range
from ...names import TopicPartition
from .batch_record import BatchRecord
from .events import by_topic
from .multiline import LINES, joined, without_breaks
from .resume import is_same
from .settings import Settings
from .startup import ASK_MS
from .topic_logs import read_logs

FETCH_BYTES: Final = 4 * 1024 * 1024
BYTES: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp")


class Messages(NamedTuple):
    """``found``: of which rows there are messages; ``keys``, ``values``: of these, in the order of the rows."""

    found: np.ndarray
    keys: pa.Array
    values: pa.Array


class TopicLines:
    """The messages of the topics of a pipeline; ``record``: what its table has read.

    Raises:
        ApplianceError: the appliance cannot be reached.
    """

    def __init__(self, settings: Settings, record: BatchRecord) -> None:
        self._access = LogAccess(settings.pipeline.bootstrap, ASK_MS, "pipeline")
        logs = read_logs(self._access, [topic for source in settings.source for topic in source.topics])
        read = record.read
        self._logs = {topic: log for topic, log in logs.items() if topic in read and is_same(read[topic].id, log.id)}

    def close(self) -> None:
        self._access.close()

    def of(self, rows: pa.Table) -> Messages:
        """The messages of these rows of the table."""
        ones = pa.array(np.ones(len(rows), np.int32))
        counts = pc.fill_null(rows.column(LINES), 1) if LINES in rows.column_names else ones
        places = rows.select(["topic", "partition", "offset", "received"]).append_column(LINES, counts)
        places = places.append_column("row", pa.array(np.arange(len(rows)))).sort_by("offset")
        numbers, parts = [np.empty(0, np.int64)], [BYTES.empty_table()]
        for group in places.group_by(["topic", "partition"]).aggregate([]).to_pylist():
            key = TopicPartition(group["topic"], group["partition"])
            of = (pc.field("topic") == key.topic) & (pc.field("partition") == key.partition)
            number, messages = self._of_partition(key, places.filter(of))
            numbers.append(number)
            parts.append(messages.select(BYTES.names).cast(BYTES))
        taken = np.concatenate(numbers)
        order = pa.array(np.argsort(taken))
        messages = pa.concat_tables(parts).take(order).combine_chunks()
        found = np.zeros(len(rows), bool)
        found[taken] = True
        return Messages(found, *(messages.column(name).combine_chunks() for name in BYTES.names))

    def _of_partition(self, key: TopicPartition, places: pa.Table) -> tuple[np.ndarray, pa.Table]:
        """The numbers of rows that have one, and their messages."""
        offsets, counts = (places.column(name).to_numpy() for name in ("offset", LINES))
        read = [*self._read(key, offsets, counts)]
        if not read:
            return np.empty(0, np.int64), BYTES.empty_table()
        lines = pa.concat_tables(read)
        there = lines.column("offset").to_numpy()
        firsts = np.searchsorted(there, offsets)
        ends = np.append(np.searchsorted(there, offsets[1:]), len(lines))
        whole = (firsts < len(lines)) & (ends - firsts == counts)
        whole[whole] = there[firsts[whole]] == offsets[whole]
        stamps = lines.column("timestamp").cast(pa.int64()).to_numpy()
        whole[whole] = stamps[firsts[whole]] == places.column("received").cast(pa.int64()).to_numpy()[whole]
        if not whole.any():
            return np.empty(0, np.int64), BYTES.empty_table()
        chosen = np.concatenate([np.arange(first, end) for first, end in zip(firsts[whole], ends[whole], strict=True)])
        bounds = np.append(0, np.cumsum(counts[whole])).astype(np.int64)
        lines = lines.take(pa.array(chosen)).combine_chunks()
        if (counts > 1).any():
            lines = lines.set_column(lines.column_names.index("value"), "value", without_breaks(lines.column("value")))
        events = joined(lines, bounds[:-1], int(bounds[-1]))
        return places.column("row").to_numpy()[whole], pa.Table.from_batches([events])

    def _read(self, key: TopicPartition, offsets: np.ndarray, counts: np.ndarray) -> Iterator[pa.Table]:
        """The messages at these offsets, and as many behind each as it has lines; in their order."""
        bounds = self._logs[key.topic].bounds.get(key.partition) if key.topic in self._logs else None
        if bounds is None or offsets[-1] < bounds[0] or bounds[1] <= offsets[0]:
            return
        first, end = max(int(offsets[0]), bounds[0]), bounds[1]
        decoder = Decoder(*key, first, end)
        span, following = Range(*key, first, end, end), 0
        for position, data in self._access.read(span, None, FETCH_BYTES, fail_on_data_loss=False):
            for mixed in decoder.decode(data, position):
                for batch in by_topic(mixed):
                    there = batch.column("offset").to_numpy()
                    at = np.searchsorted(there, offsets)
                    hit = (at < len(there)) & (there[np.minimum(at, len(there) - 1)] == offsets)
                    starts, stops = np.append(0, at[hit]), np.append(following, at[hit] + counts[hit])
                    following = max(0, int(stops.max()) - len(there))
                    marks = np.zeros(len(there) + 1, np.int64)
                    np.add.at(marks, starts, 1)
                    np.add.at(marks, np.minimum(stops, len(there)), -1)
                    wanted = np.cumsum(marks[:-1]) > 0
                    if wanted.any():
                        yield pa.Table.from_batches([batch]).select(COLUMNS).filter(pa.array(wanted))
                    if there[-1] >= offsets[-1] and not following:
                        return
