"""Parses lines again that the table has, after parsers have changed: those that were rejected, or all.

The bytes of a rejected line are in its row (``raw``), unless a rule has dropped it; those of a parsed one with
``output.raw`` (``line``), or else in its topic as long as that has them (``topic_lines``).  Each file with such rows is
written again, and one transaction exchanges all of them.  A process that is killed before it has changed nothing, and
what it has written goes with the next vacuum; afterwards a repetition finds nothing to change.  Views follow with their
next refresh.  Dead letters that were sent stay as they are.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from .compaction import EventFile
from .events import RAW, RAW_KEY, REJECTED, Transform, by_topic
from .file_statistics import file_statistics
from .multiline import ARRIVALS, LINES
from .output_files import OutputFiles
from .quality import is_dropped
from .schema_changes import compare, conform
from .settings import Settings
from .startup import output_lock
from .table_files import EVENTS, split
from .tables import open_store, owner_of
from .times import MICROS_MAX
from .topic_lines import TopicLines
from .unknown_fields import AddedColumns, schema_of

BATCH_ROWS: Final = 32_768
REPARSED_KEY: Final = "appliance.reparsed"
PLACE: Final = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending"), ("received", "ascending")]


class Reparsed(NamedTuple):
    """Numbers: of ``lines`` that were parsed again, ``taken`` were rejected before, and ``lost`` are rejected now only.

    ``without``: lines whose bytes neither the table has nor a topic; ``files``: those that were written again.
    """

    lines: int
    taken: int
    lost: int
    without: int
    files: int

    def and_also(self, other: Reparsed) -> Reparsed:
        return Reparsed(*(count + more for count, more in zip(self, other, strict=True)))


NOTHING: Final = Reparsed(0, 0, 0, 0, 0)


def reparse(settings: Settings, *, every: bool = False, since_us: int = 0, until_us: int = MICROS_MAX + 1) -> Reparsed:
    """Parse lines again that arrived from the first to before the second time.  ``every``: also those that were parsed.

    Raises:
        AlreadyRunning: the pipeline is running.
        BadValue: there is no table, or its columns do not fit the configuration.
        ApplianceError: the appliance, whose topics have lines that the table has not, cannot be reached.
    """
    from deltalake.exceptions import CommitFailedError

    with output_lock(settings):
        try:
            return _Reparsing(settings, every, (since_us, until_us)).run()
        except CommitFailedError as error:
            raise BadValue(f"somebody else has changed the table meanwhile, and nothing of this: {error}") from None


class _Reparsing:
    def __init__(self, settings: Settings, every: bool, bounds: tuple[int, int]) -> None:
        from .compaction import DeltaEvents

        self._settings = settings
        self._every = every
        self._bounds = bounds
        self._files = OutputFiles(settings.output)
        self._transform = Transform(settings)
        self._topics = [topic for source in settings.source for topic in source.topics]
        self._columns = AddedColumns(_extended(settings, self._transform.schema), self._transform.schema)
        self._there = DeltaEvents(settings.output).event_files()
        self._topic_lines: TopicLines | None = None

    def run(self) -> Reparsed:
        try:
            return self._run()
        finally:
            if self._topic_lines is not None:
                self._topic_lines.close()

    def _run(self) -> Reparsed:
        from deltalake import CommitProperties

        table = self._files.delta_table(EVENTS)
        partition_by = list(self._settings.output.partition_by)
        total, actions = NOTHING, list[Any]()
        for file in self._there:
            counts, changed = self._of_file(file)
            total = total.and_also(counts)
            if changed is not None:
                actions += self._exchanged(file, changed)
                total = total.and_also(NOTHING._replace(files=1))
        if actions:
            self._extend(table)
            done = CommitProperties(custom_metadata={REPARSED_KEY: json.dumps(total._asdict())})
            table.create_write_transaction(
                actions, "append", self._columns.schema, partition_by, commit_properties=done
            )
        return total

    def _extend(self, table: Any) -> None:
        """Add the columns of unknown fields to the table, as it was when its files were listed."""
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError

        if self._columns.fresh:
            before = table.version()
            table.alter.add_columns(list(Schema.from_arrow(schema_of(self._columns.fresh)).fields))
            if table.version() != before + 1:
                raise CommitFailedError("another commit has come before that of new columns")

    def _of_file(self, file: EventFile) -> tuple[Reparsed, pa.Table | None]:
        """What was found in a file, and its rows if they have changed."""
        rows = self._files.open_table(f"{EVENTS}/{file.path}").read()
        for name, value in json.loads(file.partition).items():
            rows = rows.append_column(name, pa.array([value] * len(rows), pa.string()))
        rows = conform(rows, self._columns.schema)
        chosen, rejected = self._wanted(rows), pc.is_valid(rows.column(REJECTED))
        bytes_of = self._bytes_of(rows)
        kept = pc.and_not(rejected, is_dropped(rows.column(REJECTED)))
        there = pc.or_(kept, pc.is_valid(bytes_of))  # a rejected line may have no value at all
        keys = rows.column(RAW_KEY)
        lacking = pc.and_(pc.and_not(chosen, there), pc.invert(rejected))
        if self._every and pc.any(lacking).as_py():
            there, keys, bytes_of = self._with_topics(rows, lacking, (there, keys, bytes_of))
        old = rows.filter(pc.and_(chosen, there))
        without = int(pc.sum(pc.and_(chosen, pc.invert(there))).as_py() or 0)
        if not len(old):
            return NOTHING._replace(without=without), None
        keys, values = (column.filter(pc.and_(chosen, there)) for column in (keys, bytes_of))
        fresh = pa.concat_tables(self._parsed(old, keys, values), promote_options="default")
        rows, old, fresh = (conform(table, self._columns.schema) for table in (rows, old, fresh))
        before, after = (table.column(REJECTED).null_count for table in (old, fresh))
        gone = _count_in(old, fresh, REJECTED)
        counts = Reparsed(len(old), after - before + gone, gone, without, 0)
        if fresh.sort_by(PLACE).equals(old.sort_by(PLACE)):
            return counts, None
        return counts, pa.concat_tables([rows.filter(pc.invert(pc.and_(chosen, there))), fresh])

    def _wanted(self, rows: pa.Table) -> Any:
        received = rows.column("received").cast(pa.int64())
        chosen = pc.and_(pc.greater_equal(received, self._bounds[0]), pc.less(received, self._bounds[1]))
        chosen = pc.and_(chosen, pc.is_in(rows.column("topic"), pa.array(self._topics)))
        return chosen if self._every else pc.and_(chosen, pc.is_valid(rows.column(REJECTED)))

    def _bytes_of(self, rows: pa.Table) -> Any:
        if "line" not in rows.column_names:
            return rows.column(RAW)
        return pc.if_else(pc.is_valid(rows.column(REJECTED)), rows.column(RAW), rows.column("line").cast(pa.binary()))

    def _with_topics(self, rows: pa.Table, lacking: Any, columns: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        """Which rows have bytes, their keys and their bytes, with those that topics have."""
        if self._topic_lines is None:
            record = open_store(self._settings).recorded()
            assert record is not None, "the table has rows"
            self._topic_lines = TopicLines(self._settings, record)
        numbers = np.flatnonzero(lacking.to_numpy())
        messages = self._topic_lines.of(rows.take(pa.array(numbers)))
        found = np.zeros(len(rows), bool)
        found[numbers[messages.found]] = True
        there, keys, bytes_of = columns
        put = (
            pc.replace_with_mask(pa.chunked_array(column).combine_chunks(), pa.array(found), fresh)
            for column, fresh in ((keys, messages.keys), (bytes_of, messages.values))
        )
        return (pc.or_(there, pa.array(found)), *(pa.chunked_array([column]) for column in put))

    def _parsed(self, old: pa.Table, keys: pa.ChunkedArray, values: pa.ChunkedArray) -> Iterator[pa.Table]:
        columns = {name: old.column(name) for name in ("topic", "partition", "offset")}
        columns |= {"key": keys, "value": values, "timestamp": old.column("received")}
        if LINES in self._transform.schema.names:
            columns[LINES] = pc.fill_null(old.column(LINES), 1)
        if ARRIVALS in self._transform.schema.names:
            columns[ARRIVALS] = old.column(ARRIVALS)
        records = pa.table(columns).sort_by(
            [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
        )
        for mixed in records.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
            for batch in by_topic(mixed):
                outcome = self._transform.run(batch)
                if outcome.unknown is None:
                    yield conform(outcome.rows, self._columns.schema)
                else:
                    yield self._columns.spread(outcome.rows, outcome.unknown)

    def _exchanged(self, file: EventFile, rows: pa.Table) -> Iterator[Any]:
        """The actions that put these rows in place of a file's."""
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = int(time.time() * 1000)
        yield RemoveAction(file.path, True, now_ms, file.bytes, partition_values=json.loads(file.partition))
        for partition, part in split(rows, self._settings.output.partition_by):
            if self._settings.output.sort_by:
                part = part.sort_by([(name, "ascending") for name in self._settings.output.sort_by])
            name = f"{uuid.uuid4().hex}.parquet"
            size, footer = self._files.write_table(f"{EVENTS}/{name}", part)
            yield AddAction(name, size, partition, now_ms, True, file_statistics(footer))


def _count_in(old: pa.Table, fresh: pa.Table, name: str) -> int:
    """How many rows have a value in this column that had none before."""
    was, now = (pc.is_valid(table.sort_by(PLACE).column(name)) for table in (old, fresh))
    return int(pc.sum(pc.and_(now, pc.invert(was))).as_py() or 0)


def _extended(settings: Settings, schema: pa.Schema) -> pa.Schema:
    """The columns of the table, with those that new parsers add."""
    owner = owner_of(settings)
    store = open_store(settings)
    stored = store.stored_schema
    if owner is None or stored is None:
        raise BadValue(
            f"there is no table of events in {settings.output.path}: `appliance pipeline run CONFIG.toml` makes it"
        )
    change = compare(stored, schema)
    if stops := [*change.refused, *change.widened]:
        raise BadValue(f"{EVENTS}: {stops[0]}: `appliance pipeline check CONFIG.toml` says what to do")
    store.extend(change.schema)
    return change.schema
