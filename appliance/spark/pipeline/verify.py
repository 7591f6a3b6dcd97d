"""Compares events with the topics that they were read from: which lines are missing in the table, and which are twice.

Each line that was read is a row with its offset and time of arrival, so both can be counted exactly: from the offset at
which the last commit says that reading began, or the start of the log, to that up to which it has read.  Lines before
the start of the log cannot be compared any more; a partition of which nothing can be compared is named, with the
reason.  Memory is bounded: both sides are read in spans of :data:`SPAN_ROWS` records.

Rows that were deleted on purpose are missing, too.  Rows that are not in the log, within the offsets that are compared,
are of a topic that was created again or of a log that was restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from ...log_access.access import LogAccess
from ...log_access.arrow import Decoder
from ...log_access.ranges import Range
from ...names import TopicPartition
from .events import by_topic
from .multiline import LINES
from .resume import TopicLog
from .settings import Settings
from .tables import open_store
from .topic_logs import read_logs

SPAN_ROWS: Final = 1_000_000
FETCH_BYTES: Final = 4 * 1024 * 1024


class Compared(NamedTuple):
    """One partition.  ``first``, ``end``: the offsets that were compared; ``messages``: those that the log has there.

    ``rows``: of the table there.  ``missing``: messages without a row; ``twice``: rows of a message that has one more;
    ``unknown``: rows without a message.  ``left_out``: why nothing was compared, or "".
    """

    topic: str
    partition: int
    first: int
    end: int
    messages: int
    rows: int
    missing: int
    twice: int
    unknown: int
    left_out: str = ""

    @property
    def equal(self) -> bool:
        return not (self.missing or self.twice)


def verify(settings: Settings) -> Iterator[Compared]:
    """Compare each partition that the table has read.

    Raises:
        BadValue: there is no table.
        ApplianceError: the appliance cannot be reached.
    """
    record, events = open_store(settings).snapshot()
    if record is None:
        raise BadValue(
            f"there is no table of events in {settings.output.path}: `appliance pipeline run CONFIG.toml` makes it"
        )
    access = LogAccess(settings.pipeline.bootstrap, settings.input.retry_ms, "pipeline")
    joined = {topic for source in settings.source if source.multiline for topic in source.topics}
    try:
        logs = read_logs(access, [topic for source in settings.source for topic in source.topics])
        for (topic, partition), end in sorted(record.ends.items()):
            log, key = logs.get(topic), TopicPartition(topic, partition)
            if log is None or (why := _gone(log, record.read[topic].id, partition)):
                why = why if log is not None else "no topic of the sources, or there is no such topic"
                yield Compared(*key, end, end, 0, 0, 0, 0, 0, why)
                continue
            rows = _Rows(events, key, topic in joined)
            start, log_end = log.bounds[partition]
            first = max(start, record.since[topic][partition])
            yield _compare(access, key, rows, (first, min(end, log_end)), log_end)
    finally:
        access.close()


def _gone(log: TopicLog, read_id: str, partition: int) -> str:
    """Why the log does not have what the table has read, or ""."""
    if log.id != read_id:
        return "the topic was created again"
    return "" if partition in log.bounds else "there is no such partition any more"


class _Rows:
    """Questions about the rows that the table of events has of one partition."""

    def __init__(self, events: Any, key: TopicPartition, joined: bool) -> None:
        self._events = events
        self._of = (pc.field("topic") == key.topic) & (pc.field("partition") == key.partition)
        self.joined = joined and LINES in events.schema.names

    def between(self, first: int, end: int) -> pa.Table:
        """Offset, time and number of lines of those from ``first`` to before ``end``."""
        in_range = self._of & (pc.field("offset") >= first) & (pc.field("offset") < end)
        columns = ["offset", "received", *([LINES] if self.joined else [])]
        return self._events.to_table(columns=columns, filter=in_range)


def _compare(access: LogAccess, key: TopicPartition, rows: _Rows, bounds: tuple[int, int], log_end: int) -> Compared:
    compared = Compared(*key, *bounds, 0, 0, 0, 0, 0)
    begin = bounds[0]
    for messages, end in _spans(access, key, bounds, log_end):
        stored = rows.between(begin, end)
        have, want = (_identities(table) for table in (stored, messages))
        if rows.joined:  # an event has the offset of its first line only
            lines = int(pc.sum(stored.column(LINES)).as_py() or 0)
            missing, twice, unknown = max(0, len(messages) - lines), max(0, lines - len(messages)), 0
        else:
            distinct = np.unique(have)
            missing = len(np.setdiff1d(want, distinct))
            twice, unknown = len(have) - len(distinct), len(np.setdiff1d(distinct, want))
        compared = compared._replace(
            messages=compared.messages + len(messages),
            rows=compared.rows + len(stored),
            missing=compared.missing + missing,
            twice=compared.twice + twice,
            unknown=compared.unknown + unknown,
        )
        begin = end
    return compared


def _identities(rows: pa.Table) -> np.ndarray:
    """Of each row its offset and its time, as one value that can be compared."""
    pairs = np.empty(len(rows), [("offset", np.int64), ("received", np.int64)])
    pairs["offset"] = rows.column("offset").to_numpy()
    pairs["received"] = rows.column("received").cast(pa.int64()).to_numpy()
    return pairs


def _spans(
    access: LogAccess, key: TopicPartition, bounds: tuple[int, int], log_end: int
) -> Iterator[tuple[pa.Table, int]]:
    """The messages in spans, each with the offset at which it ends; the last one ends where the bounds do."""
    first, end = bounds
    decoder = Decoder(*key, first, end)
    waiting: list[pa.Table] = []
    for position, data in access.read(Range(*key, first, end, log_end), None, FETCH_BYTES, fail_on_data_loss=False):
        for mixed in decoder.decode(data, position):
            for batch in by_topic(mixed):
                read = pa.Table.from_batches([batch]).select(["offset", "timestamp"])
                waiting.append(read.rename_columns(["offset", "received"]))
        if sum(map(len, waiting)) >= SPAN_ROWS:
            together = pa.concat_tables(waiting)
            waiting = []
            yield together, int(pc.max(together.column("offset")).as_py()) + 1
    empty = pa.table({"offset": pa.array([], pa.int64()), "received": pa.array([], pa.timestamp("us", tz="UTC"))})
    yield pa.concat_tables([*waiting, empty], promote_options="permissive"), end
