"""The tables of a pipeline, and ``live``: its events, and behind them the lines that it has not read yet.

The tables are ``events`` as of the last commit, and those of views as they are.  The record of the commit says up to
which offsets it has read each partition; from there on the lines of the topics are parsed here, by the pipeline's own
parsers, into the same columns.  So ``live`` has each line once, also while the pipeline commits, and is as new as the
topics are.  Lines that no parser takes are in both, with the reason in the column ``rejected``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from ..log_access.access import LogAccess
from ..log_access.ranges import Range
from ..names import TopicPartition
from ..spark.pipeline.events import Transform, by_topic
from ..spark.pipeline.multiline import Joiner
from ..spark.pipeline.resume import decide
from ..spark.pipeline.settings import Settings
from ..spark.pipeline.table_files import EVENTS
from ..spark.pipeline.tables import open_store
from ..spark.pipeline.topic_logs import read_logs
from ..spark.pipeline.unknown_fields import AddedColumns, adds_columns
from ..spark.pipeline.view_table import stored_views
from .topic_table import LogTable, Reading

LIVE = "live"


class Tables(NamedTuple):
    """``stored``: the tables by name, as data sets of Arrow; ``unread``: the events behind them."""

    stored: Mapping[str, Any]
    unread: UnreadEvents


def tables_of(settings: Settings, reading: Reading, access: LogAccess) -> Tables:
    """The tables as they are now.

    Raises:
        BadValue: the output is not this pipeline's, or cannot be read.
        ApplianceError: the appliance cannot be reached, or refuses.
    """
    store = open_store(settings)
    record, events = store.snapshot()
    stored = {**stored_views(settings.output), **({} if events is None else {EVENTS: events})}
    topics = [topic for source in settings.source for topic in source.topics]
    logs = read_logs(access, topics)
    begun = decide(record, logs, settings.input.starting == "latest").begun.ends
    ends = {TopicPartition(name, number): end for name, log in logs.items() for number, (_, end) in log.bounds.items()}
    ranges = [Range(*key, begun[key], end, end) for key, end in ends.items() if begun[key] < end]
    columns = AddedColumns(store.stored_schema or Transform(settings).schema, Transform(settings).schema, most=0)
    return Tables(stored, UnreadEvents(reading, ranges, settings, columns))


class UnreadEvents(LogTable):
    """The events of ranges of the pipeline's topics, with the columns that its table of events has."""

    def __init__(self, reading: Reading, ranges: Sequence[Range], settings: Settings, columns: AddedColumns) -> None:
        adds = adds_columns(settings)
        super().__init__(reading, ranges, columns.schema if adds else Transform(settings).schema, "received")
        self._settings = settings
        self._added = columns

    def _narrowed(self, access: LogAccess, filter: Any) -> Sequence[Range]:
        # An event of several lines is parsed with all of them.
        joins = any(source.multiline for source in self._settings.source)
        return self._ranges if joins else super()._narrowed(access, filter)

    def _rows(self, records: Iterator[pa.RecordBatch], reads: pa.Schema) -> Iterator[pa.RecordBatch]:
        transform, joiner = Transform(self._settings), Joiner(self._settings)

        def joined() -> Iterator[pa.RecordBatch]:
            for mixed in records:
                for batch in by_topic(mixed):
                    yield from joiner.add(batch)
            yield from joiner.rest()

        for batch in joined():
            rows, _, unknown = transform.run(batch)
            if unknown is not None:
                rows = self._added.spread(rows, unknown)
            yield from rows.select(reads.names).to_batches()
