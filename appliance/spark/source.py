"""The data source "appliance": ``spark.read``, ``spark.readStream`` and their sinks.

Columns and options are those of Spark's Kafka connector (``options`` lists them).  All Spark objects here are thin:
``stream_offsets`` computes offsets, ``log_access.access`` makes requests, ``log_access.arrow`` converts bytes to rows.

The driver resolves the start and the end, splits the range into tasks, and sends each task its part.  A stream's reader
lives in one process of the driver for as long as the query; a task gets a pickled copy of it.  Spark requests the
latest offsets of an idle stream many times a second, so they are cached for HEADS_AGE_S_MAX.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..errors import BadValue, ConfigFault, CorruptBatch, UnknownPartition
from ..log_access.access import Home, LogAccess
from ..log_access.arrow import Decoder
from ..log_access.ranges import Positions, Range
from ..names import TopicPartition
from ..wire.requests import EARLIEST, LATEST
from .even_batches import even
from .options import Bound, SourceOptions, sink_options, source_options
from .python_workers import spare_collector
from .sink import BatchWriter, StreamWriter
from .stream_offsets import (
    SPLIT_BYTES_MIN,
    advance,
    from_json,
    initial,
    is_initial,
    pack,
    ranges,
    saying_how_to_continue,
    split,
    to_json,
)

HEADS_AGE_S_MAX: Final = 0.1
COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
logger = logging.getLogger(__name__)


@dataclass
class LogPartition(InputPartition):
    """The ranges of one task, each with the place of its files, if on this host."""

    ranges: tuple[tuple[Range, Home | None], ...]


class Planner:
    """Plans and reads ranges, for a batch or a stream.  Both readers have one and pickle it to tasks."""

    def __init__(self, options: SourceOptions, cores: int) -> None:
        self.options = options
        self._cores = cores
        self.access = LogAccess(options.bootstrap, options.retry_timeout_ms, "spark")

    def keys(self) -> list[TopicPartition]:
        """The partitions that are selected.

        Raises:
            UnknownPartition: a topic or partition that was named does not exist.
        """
        return self.access.patiently(self._keys)

    def _keys(self) -> list[TopicPartition]:
        selection, cluster = self.options.selection, self.access.cluster
        named = {*selection.topics, *(topic for topic, _ in selection.assigned)}
        listed = cluster.refresh(named or None).topics
        topics = {name: topic for name, topic in listed.items() if not topic.error and name in (named or listed)}
        for name in sorted(named):
            if name not in topics:
                there = sorted(name for name, topic in cluster.refresh(None).topics.items() if not topic.error)
                raise UnknownPartition(f"no topic {name!r}: there are {', '.join(there) or 'none at all'}")
        keys = [
            TopicPartition(name, partition)
            for name, topic in sorted(topics.items())
            for partition in range(len(topic.leaders))
            if selection.wants(name, partition)
        ]
        for topic, partition in selection.assigned:
            if (topic, partition) not in keys:
                raise UnknownPartition(f"there is no partition {topic}-{partition}")
        return keys

    def heads(self, keys: Sequence[TopicPartition]) -> Positions:
        return self.access.offsets(dict.fromkeys(keys, LATEST))

    def earliest(self, keys: Sequence[TopicPartition]) -> Positions:
        return self.access.offsets(dict.fromkeys(keys, EARLIEST))

    def resolve(self, bound: Bound, keys: Sequence[TopicPartition], name: str) -> Positions:
        """The offsets that ``bound`` means now.

        Raises:
            BadValue: it omits a partition, or a time is later than every record.
        """
        if bound.special is not None:
            return self.access.offsets(dict.fromkeys(keys, bound.special))
        if bound.offsets is not None:
            _complete(bound.offsets, keys, name)
            special = {key: bound.offsets[key] for key in keys if bound.offsets[key] < 0}
            return {**{key: bound.offsets[key] for key in keys}, **self.access.offsets(special)}
        times = bound.timestamps if bound.timestamps is not None else dict.fromkeys(keys, bound.timestamp or 0)
        _complete(times, keys, name)
        offsets = self.access.offsets({key: times[key] for key in keys})
        later = [key for key, offset in offsets.items() if offset < 0]
        if later and not bound.latest_if_later:
            topic, partition = later[0]
            raise BadValue(
                f"{name}: {topic}-{partition} has no record at or after {times[later[0]]} ms; "
                "use an earlier time, or startingOffsetsByTimestampStrategy=latest"
            )
        return {**offsets, **self.heads(later)}

    def tasks(self, spans: list[Range], bytes_min: int = SPLIT_BYTES_MIN) -> list[LogPartition]:
        """The ranges of each task, which has so many bytes at least, if there are as many."""
        options, bytes_max = self.options, self.options.partition_bytes_max
        parts = spans
        if options.split_partitions:
            parts = split(spans, options.min_partitions, self._cores, bytes_min, bytes_max)
        groups = (
            [(part,) for part in parts] if options.min_partitions else pack(parts, self._cores, bytes_min, bytes_max)
        )
        return [LogPartition(tuple((part, self._home(part)) for part in group)) for group in groups]

    def _home(self, part: Range) -> Home | None:
        return self.access.home(part.topic, part.partition) if self.options.short_circuit else None

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task, in batches of even size."""
        if not isinstance(task, LogPartition):
            return  # pyspark 4.3 makes one of its own where there is nothing to read
        spare_collector()
        try:
            yield from even(batch for part, home in task.ranges for batch in self._read(part, home))
        finally:
            self.access.close()

    def _read(self, part: Range, home: Home | None) -> Iterator[pa.RecordBatch]:
        options = self.options
        decoder = Decoder(
            part.topic,
            part.partition,
            part.first,
            part.end,
            headers=options.include_headers,
            on_corrupt=partial(self._on_corrupt, part),
        )
        pieces = self.access.read(
            part, home, options.fetch_bytes_max, options.fail_on_data_loss, partial(self._on_corrupt, part)
        )
        with saying_how_to_continue():
            for start, data in pieces:
                yield from decoder.decode(data, start)

    def _on_corrupt(self, part: Range, offset: int, error: CorruptBatch) -> None:
        self.access.report_damage(part.topic, part.partition, offset)
        if not self.options.skip_corrupt:
            raise error
        logger.warning("skipped: %s", error)


def _complete(values: Mapping[TopicPartition, int], keys: Sequence[TopicPartition], name: str) -> None:
    for topic, partition in keys:
        if (topic, partition) not in values:
            raise BadValue(f"{name}: give a value for every partition that is read, also for {topic}-{partition}")
    for topic, partition in values:
        if (topic, partition) not in keys:
            raise BadValue(f"{name}: {topic}-{partition} is not among the partitions that are read")


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, cores: int) -> None:
        self._planner = Planner(options, cores)

    def partitions(self) -> Sequence[LogPartition]:
        try:
            return self._planner.tasks(self._ranges())
        finally:
            self._planner.access.close()

    def _ranges(self) -> list[Range]:
        planner = self._planner
        options, keys = planner.options, planner.keys()
        start = planner.resolve(options.starting, keys, "startingOffsets")
        end = planner.resolve(options.ending, keys, "endingOffsets")
        earliest, latest = planner.earliest(keys), planner.heads(keys)
        for key in keys:
            if max(start[key], end[key]) > latest[key]:
                raise BadValue(
                    f"{key[0]}-{key[1]} ends at offset {latest[key]}, which is before the offset "
                    f"{max(start[key], end[key])} of the options"
                )
        # A start beyond the end is an empty read, not a loss: the user has given both.
        end = {key: max(start[key], offset) for key, offset in end.items()}
        return ranges(start, end, earliest, latest, options.fail_on_data_loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.read(partition)


class FilteringReader(BatchReader):
    """Reads only the ranges in which filters on topic, partition, offset and timestamp may hold.

    It is a class of its own because Spark fails every read of a reader with ``pushFilters`` while the setting
    ``spark.sql.python.filterPushdown.enabled`` is off, which is the default.
    """

    def __init__(self, options: SourceOptions, cores: int) -> None:
        super().__init__(options, cores)
        self._first = 0
        self._end = 1 << 63
        self._only: dict[str, set[Any]] = {}
        self._since_ms: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for condition in filters:
            if not self._take(condition):
                yield condition

    def _take(self, condition: Filter) -> bool:
        """Use a filter.  True if Spark need not evaluate it again."""
        match condition:
            case EqualTo(("topic" | "partition" as name,), value):
                self._keep(name, {value})
            case In(("topic" | "partition" as name,), values):
                self._keep(name, set(values))
            case EqualTo(("offset",), int(value)):
                self._first, self._end = max(self._first, value), min(self._end, value + 1)
            case GreaterThanOrEqual(("offset",), int(value)):
                self._first = max(self._first, value)
            case GreaterThan(("offset",), int(value)):
                self._first = max(self._first, value + 1)
            case LessThan(("offset",), int(value)):
                self._end = min(self._end, value)
            case LessThanOrEqual(("offset",), int(value)):
                self._end = min(self._end, value + 1)
            case GreaterThanOrEqual(("timestamp",), datetime() as value) | GreaterThan(
                ("timestamp",), datetime() as value
            ):
                # Records before the first batch that reaches this time are older.  Later records may be older,
                # too, so Spark evaluates the filter again.
                self._since_ms = max(self._since_ms or 0, int(_utc(value).timestamp() * 1000))
                return False
            case IsNotNull(("topic" | "partition" | "offset" | "timestamp",)):
                pass  # they never are
            case _:
                return False
        return True

    def _keep(self, name: str, values: set[Any]) -> None:
        self._only[name] = self._only.get(name, values) & values

    def _ranges(self) -> list[Range]:
        spans = [
            Range(span.topic, span.partition, max(span.first, self._first), min(span.end, self._end), span.log_end)
            for span in super()._ranges()
            if span.topic in self._only.get("topic", {span.topic})
            and span.partition in self._only.get("partition", {span.partition})
        ]
        if self._since_ms is not None:
            times = {span.key: self._since_ms for span in spans}
            since = self._planner.access.offsets(times)
            bounds = {key: offset if offset >= 0 else 1 << 63 for key, offset in since.items()}
            spans = [
                Range(
                    span.topic,
                    span.partition,
                    max(span.first, bounds[span.key]),
                    span.end,
                    span.log_end,
                )
                for span in spans
            ]
        return [span for span in spans if span.first < span.end]


def _utc(value: datetime) -> datetime:
    """Spark gives times without a zone in UTC."""
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, cores: int) -> None:
        self._planner = Planner(options, cores)
        self._initial: dict[str, Any] | None = None
        self._heads: tuple[float, Positions] = (0.0, {})
        self._target: Positions | None = None

    # ---- planning, in one long-lived process of the driver

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            keys = self._planner.keys()
            options = self._planner.options
            self._initial = initial(self._planner.resolve(options.starting, keys, "startingOffsets"))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._planner.options.trigger_bytes_max
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.heads(self._planner.keys())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        positions, _ = from_json(start)
        heads = self._target if self._target is not None else self._current_heads()
        fresh = [key for key in heads if key not in positions]
        begun = self._planner.earliest(fresh)
        reached = {**positions, **begun}
        end = advance(reached, heads, bytes_of(limit))
        if is_initial(start):
            return to_json(end, reached)
        if end == positions:
            return start
        return to_json(end, begun or None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._current_heads())

    def _current_heads(self) -> Positions:
        seen_s, heads = self._heads
        if time.monotonic() - seen_s > HEADS_AGE_S_MAX:
            heads = self._planner.heads(self._planner.keys())
            self._heads = time.monotonic(), heads
        return heads

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LogPartition]:
        first, _ = from_json(start)
        last, begun = from_json(end)
        # Partitions that were begun in this micro-batch start where they were planned to, also in a replay.
        if is_initial(start):
            first = begun or first
        elif begun:
            first = {**begun, **first}
        keys = self._planner.keys()
        there = [key for key in last if key in keys]
        earliest, latest = self._planner.earliest(there), self._planner.heads(there)
        loss_fails = self._planner.options.fail_on_data_loss
        return self._planner.tasks(ranges(first, last, earliest, latest, loss_fails))

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint keeps the offsets.  Spark calls it late, and not for the last batch."""

    def stop(self) -> None:
        self._planner.access.close()

    # ---- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.read(partition)


def bytes_of(limit: ReadLimit) -> int:
    """0: no limit.  Rows are offsets to Spark, and offsets are bytes here."""
    if isinstance(limit, ReadMaxBytes):
        return limit.max_bytes
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    return 0


class ApplianceSource(DataSource):
    cores: ClassVar[int] = os.cpu_count() or 1
    """Tasks that run at a time.  :func:`~appliance.spark.register` sets it to what the cluster has."""

    @classmethod
    def name(cls) -> str:
        return "appliance"

    def schema(self) -> StructType:
        """The columns.

        ``load()`` asks for them, so the options are checked here: an error in the reader comes when a query runs, and
        of a stream's Spark shows another one.

        Raises:
            BadValue, UnknownKey: an option is wrong, both for a batch and for a stream.
        """
        try:
            source_options(self.options, streaming=True)
        except ConfigFault:
            source_options(self.options, streaming=False)
        has_headers = self.options.get("includeHeaders", "").lower() == "true"
        return StructType([*COLUMNS.fields, StructField("headers", HEADERS)]) if has_headers else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        options = source_options(self.options, streaming=False)
        return FilteringReader(options, self.cores) if options.push_filters else BatchReader(options, self.cores)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(schema)
        return StreamReader(source_options(self.options, streaming=True), self.cores)

    def _check(self, schema: StructType) -> None:
        """Raises BadValue if the user gives another schema: nothing here converts bytes to other columns."""
        columns = self.schema()
        if schema.simpleString() != columns.simpleString():
            raise BadValue(
                f"the columns are {columns.simpleString()}, not {schema.simpleString()}: "
                "load without a schema and convert with select and cast"
            )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _only_append(overwrite)
        return BatchWriter(sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        _only_append(overwrite)
        return StreamWriter(sink_options(self.options), schema)


def _only_append(overwrite: bool) -> None:
    if overwrite:
        raise BadValue("a log is only appended to: write with mode('append')")
