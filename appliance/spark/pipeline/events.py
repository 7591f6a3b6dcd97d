"""Converts a batch of records to events, with the parsers of its topic, and to dead letters.

Events have these columns, in this order, the same for every topic, so that they fit one table:

1. provenance: ``topic partition offset received parser``;
2. ``date`` and ``hour``, of the line's time, or of the record's when the line has none;
3. the common columns of the parsers, and all columns of all parsers of the pipeline;
4. when asked for: ``line``, ``column_errors`` (why columns are null whose fields were given), and, with multiline
   sources, ``lines`` (how many lines the event has);
5. the columns of lookups.

What a source redacts is replaced before anything else happens.  A line that no parser takes becomes a dead letter with
a reason.  No I/O, except for reading the lookup files in the constructor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ...errors import BadValue
from .columns import COMMON, LineParser
from .multiline import LINES
from .parsers import build
from .settings import Lookup, Settings, Source
from .table_files import directory
from .times import EPOCH, MICROS, MICROS_MAX, within
from .value_patterns import replaced

PROVENANCE: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "received": MICROS,
    "parser": pa.string(),
}
CALENDAR: Final = {"date": pa.string(), "hour": pa.int32()}
DAY_US: Final = 86_400_000_000
HOUR_US: Final = 3_600_000_000
NAME_BYTES_MAX: Final = 255
"""Of a file, on the file systems of Linux."""
REASON_CHARACTERS_MAX: Final = 200
COLUMN_ERRORS: Final = "column_errors"
ASKED_FOR: Final = {"line": pa.string(), COLUMN_ERRORS: pa.string(), LINES: pa.int32()}
BOM: Final = "\ufeff"
Faults = list[tuple[str, np.ndarray]]
"""Reasons why columns of lines are null, with the indices of the lines."""


class Outcome(NamedTuple):
    """Events and dead letters.

    ``dead``: the records as they were (but redacted), with a column ``reason``.  ``nulled``: a row for each field of
    an event that did not fit its column, with the columns topic, received, parser, reason.
    """

    events: pa.Table
    dead: pa.Table
    nulled: pa.Table


class Lines(NamedTuple):
    """All records of a batch, in their order, whether a parser takes them or not.

    ``batch``: the records, redacted.  ``columns``: by name, those of the events and ``line``; null in a line that no
    parser takes, except for the provenance.  ``good``: whether one does; ``reasons``: why not, null where one does.
    """

    batch: pa.RecordBatch
    columns: dict[str, pa.Array]
    good: pa.Array
    reasons: pa.Array
    faults: Faults


class Transform:
    """Converts the records of one pipeline.  Each task makes its own.

    Raises:
        BadValue: settings contradict each other; the message names the key.
    """

    def __init__(self, settings: Settings) -> None:
        self._sources: dict[str, tuple[Source, list[LineParser]]] = {}
        own: dict[str, pa.DataType] = {}
        for source in settings.source:
            parsers = [build(name, source, settings.parser) for name in source.parsers]
            for parser in parsers:
                _unite(own, parser.fields, parser.name)
            self._sources |= dict.fromkeys(source.topics, (source, parsers))
        columns = PROVENANCE | CALENDAR | COMMON | own | _asked_for(settings)
        self._redactions = {source: _Redaction(source) for source, _ in self._sources.values() if source.redact}
        self._parsed = {**COMMON, **own}
        self._lookups: list[_Lookup] = []
        for lookup in settings.lookup:
            self._lookups.append(_Lookup(lookup, columns))
            columns = columns | dict.fromkeys(self._lookups[-1].columns, pa.string())
        self.schema = pa.schema(list(columns.items()))
        _check_columns(settings, self.schema)
        # A file system's; an object store and the log of a Delta table name no directories.
        self._directories = settings.output.partition_by if settings.output.format == "parquet" else ()

    def run(self, batch: pa.RecordBatch) -> Outcome:
        """Convert records of one topic, with the columns key, value, topic, partition, offset, timestamp."""
        lines = self.parse(batch)
        dead = pa.Table.from_batches([lines.batch]).append_column("reason", lines.reasons)
        complete = pc.all(lines.good).as_py()
        dead = dead.slice(0, 0) if complete else dead.filter(pc.invert(lines.good))
        events = pa.table([lines.columns[name] for name in self.schema.names], schema=self.schema)
        return Outcome(events if complete else events.filter(lines.good), dead, _nulled(lines.faults, lines.columns))

    def parse(self, batch: pa.RecordBatch) -> Lines:
        """Parse records as :meth:`run` does, and keep those that no parser takes."""
        source, parsers = self._sources[batch.column("topic")[0].as_py()]
        if redaction := self._redactions.get(source):
            batch = redaction.apply(batch)
        lines, unreadable = _texts(batch.column("value"))
        received = batch.column("timestamp").cast(MICROS)
        # Not the latest: one timestamp from the future would change the year of lines that have none.
        micros = received.cast(pa.int64()).to_numpy(zero_copy_only=False)
        about = EPOCH + timedelta(microseconds=int(np.median(micros)))
        columns, names, reasons, faults = self._parse(parsers, lines, unreadable, about)
        columns["parser"] = names
        columns["received"] = received
        for name in ("topic", "partition", "offset"):
            columns[name] = batch.column(name).cast(PROVENANCE[name])
        columns["line"] = lines
        if LINES in self.schema.names:
            columns[LINES] = batch.column(LINES)
        if COLUMN_ERRORS in self.schema.names:
            columns[COLUMN_ERRORS] = _column_errors(faults, len(lines))
        self._finish(columns, source)
        good = pc.is_valid(names)
        for name in self._directories:
            if (long := _too_long(name, columns[name])) is not None:
                reasons = pc.if_else(long, f"{name} is too long for the name of a directory", reasons)
                good = pc.and_not(good, long)
        return Lines(batch, columns, good, reasons, faults)

    def _parse(
        self, parsers: list[LineParser], lines: pa.Array, unreadable: pa.Array | None, received: datetime
    ) -> tuple[dict[str, pa.Array], pa.Array, pa.Array, Faults]:
        """Columns, the name of the parser that took each line or the reason why none did, and columns in error."""
        count = len(lines)
        faults: Faults = []
        columns: dict[str, pa.Array] = {}
        names = pa.nulls(count, pa.string())
        reasons = pa.nulls(count, pa.string()) if unreadable is None else unreadable
        left = np.arange(count)
        for parser in parsers:
            whole = len(left) == count
            found = parser.parse(lines if whole else lines.take(pa.array(left)), received)
            matched = found.matched.to_numpy(zero_copy_only=False)
            if whole and matched.all():
                names = pa.array([parser.name]).take(pa.array(np.zeros(count, np.int8)))
                return (
                    {name: found.columns.get(name, pa.nulls(count, kind)) for name, kind in self._parsed.items()},
                    names,
                    reasons,
                    [(reason, np.flatnonzero(wrong)) for reason, wrong in found.nulled.items()],
                )
            faults += [(reason, left[wrong]) for reason, wrong in found.nulled.items()]
            place = _places(count, left, matched)
            for name, column in found.columns.items():
                taken = column.take(place)
                columns[name] = taken if name not in columns else pc.coalesce(columns[name], taken)
            names = pc.if_else(pc.is_valid(place), parser.name, names)
            if found.reasons is not None:
                reasons = pc.coalesce(reasons, found.reasons.take(_places(count, left, ~matched)))
            left = left[~matched]
            if not len(left):
                break
        tried = ", ".join(parser.name for parser in parsers)
        reasons = pc.coalesce(reasons, pa.scalar(f"not a line of {tried}"))
        reasons = pc.utf8_slice_codeunits(reasons, 0, REASON_CHARACTERS_MAX)
        return self._complete(columns, count), names, reasons, faults

    def _complete(self, columns: dict[str, pa.Array], count: int) -> dict[str, pa.Array]:
        """All columns; null where these parsers have none."""
        return {name: columns.get(name, pa.nulls(count, kind)) for name, kind in self._parsed.items()}

    def _finish(self, columns: dict[str, pa.Array], source: Source) -> None:
        """Add defaults, date and hour, and lookups."""
        for name in ("host", "service"):
            if default := getattr(source, name):
                columns[name] = pc.coalesce(columns[name], pa.scalar(default))
        columns["time"] = pc.coalesce(columns["time"], columns["received"])
        micros = columns["time"].cast(pa.int64()).to_numpy(zero_copy_only=False)
        columns["date"] = dates(micros)
        columns["hour"] = pa.array(((micros % DAY_US) // HOUR_US).astype(np.int32))
        for lookup in self._lookups:
            lookup.add(columns)


def _asked_for(settings: Settings) -> dict[str, pa.DataType]:
    wanted = {
        "line": settings.output.raw,
        COLUMN_ERRORS: settings.output.column_errors,
        LINES: any(source.multiline for source in settings.source),
    }
    return {name: ASKED_FOR[name] for name in ASKED_FOR if wanted[name]}


class _Redaction:
    """Replaces what the patterns of a source match, also in values that are no text."""

    def __init__(self, source: Source) -> None:
        self._rules = source.redact
        for rule in self._rules:
            try:
                replaced(pa.array([b""]), rule.pattern, rule.replacement)
            except pa.ArrowInvalid as error:
                raise BadValue(f"source.redact: pattern = {rule.pattern!r}: {error}") from None

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column("value")
        for rule in self._rules:
            values = replaced(values, rule.pattern, rule.replacement)
        return batch.set_column(batch.schema.get_field_index("value"), "value", values)


def _column_errors(faults: Faults, count: int) -> pa.Array:
    """For each line why columns are null, or null."""
    texts: dict[int, str] = {}
    for reason, lines in faults:
        for line in lines.tolist():
            texts[line] = f"{texts[line]}; {reason}" if line in texts else reason
    return pa.array([texts.get(line) for line in range(count)] if texts else pa.nulls(count), pa.string())


def _nulled(faults: Faults, columns: Mapping[str, pa.Array]) -> pa.Table:
    lines = np.concatenate([lines for _, lines in faults]) if faults else np.zeros(0, np.int64)
    reasons = [reason for reason, lines in faults for _ in lines]
    rows = {name: columns[name].take(pa.array(lines)) for name in ("topic", "received", "parser")}
    return pa.table({**rows, "reason": pa.array(reasons, pa.string())})


def _too_long(name: str, column: pa.Array) -> pa.Array | None:
    """Whether no directory can be named by a value; None if each can."""
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if 3 * longest + len(name) + 1 <= NAME_BYTES_MAX:  # each byte takes three at most
        return None
    encoded = column.cast(pa.string()).dictionary_encode()
    names = [directory({name: value}) for value in encoded.dictionary.to_pylist()]
    return pc.fill_null(
        pa.array([len(each) > NAME_BYTES_MAX for each in names], pa.bool_()).take(encoded.indices), False
    )


def _unite(known: dict[str, pa.DataType], fields: Mapping[str, pa.DataType], who: str) -> None:
    for name, kind in fields.items():
        if name in PROVENANCE or name in CALENDAR or name in ASKED_FOR:
            raise BadValue(f"parser {who}: column {name!r} is the pipeline's own; choose another name")
        if known.setdefault(name, kind) != kind:
            raise BadValue(f"parser {who}: column {name!r} is {kind}, but {known[name]} in another parser")


def _check_columns(settings: Settings, schema: pa.Schema) -> None:
    lower: dict[str, str] = {}
    for name in schema.names:
        if (other := lower.setdefault(name.lower(), name)) != name:
            raise BadValue(
                f"columns {other!r} and {name!r} differ by their case only, which Delta, Spark and SQL do not tell "
                "apart: give one of them another name, as columns = { other = { field = "
                f'"{name}" }} }}'
            )

    def check(name: str, where: str) -> None:
        if name not in schema.names:
            raise BadValue(f"{where}: there is no column {name!r}: there are {', '.join(schema.names)}")

    for name in settings.output.sort_by:
        check(name, "output.sort_by")
        if name in settings.output.partition_by:
            raise BadValue(f"output.sort_by: {name!r} is in partition_by: a file has one value of it")
    for name in settings.output.partition_by:
        check(name, "output.partition_by")
        if not pa.types.is_string(schema.field(name).type):
            raise BadValue(
                f"output.partition_by: {name!r} is {schema.field(name).type}: directories are named by texts"
            )
    for aggregate in settings.aggregate:
        where = f"aggregate {aggregate.name}"
        for name in (*aggregate.by, *filter(None, [aggregate.of])):
            check(name, where)
        if aggregate.kind == "percentiles" and not _is_number(schema.field(aggregate.of).type):
            raise BadValue(
                f"{where}: {aggregate.of!r} is {schema.field(aggregate.of).type}: percentiles are of numbers"
            )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _places(count: int, left: np.ndarray, chosen: np.ndarray) -> pa.Array:
    """For each line its index among the lines that a parser got; null where the parser did not take it."""
    index = np.full(count, -1, np.int64)
    index[left[chosen]] = np.flatnonzero(chosen)
    return pa.array(index, mask=index < 0)


def _texts(values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Values as texts, without byte order mark and line breaks at the end; null, with a reason, if they are no text."""
    try:
        texts, wrong = values.cast(pa.string()), None
    except pa.ArrowInvalid:
        decoded = [_text(value) for value in values.to_pylist()]
        texts = pa.array(decoded, pa.string())
        wrong = pc.if_else(
            pc.and_(pc.is_null(texts), pc.is_valid(values)), "not UTF-8 text", pa.scalar(None, pa.string())
        )
    if values.null_count:
        none = pc.if_else(pc.is_null(values), "no value", pa.scalar(None, pa.string()))
        wrong = none if wrong is None else pc.coalesce(wrong, none)
    if pc.any(pc.or_(pc.ends_with(texts, "\n"), pc.ends_with(texts, "\r"))).as_py():
        texts = pc.utf8_rtrim(texts, "\r\n")
    if pc.any(pc.starts_with(texts, BOM)).as_py():
        texts = pc.if_else(pc.starts_with(texts, BOM), pc.utf8_slice_codeunits(texts, 1), texts)
    return texts, wrong


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def dates(micros: np.ndarray) -> pa.Array:
    """``2026-11-20`` for each time."""
    days, index = np.unique(micros // DAY_US, return_inverse=True)
    names = [str(date(1970, 1, 1) + timedelta(days=int(day))) for day in days]
    return pa.array(names, pa.string()).take(pa.array(index))


class _Lookup:
    """Adds columns from a small file, looked up by a column of the event."""

    def __init__(self, settings: Lookup, events: Mapping[str, pa.DataType]) -> None:
        where = f"lookup {settings.file}"
        try:
            file = pyarrow.csv.read_csv(
                Path(settings.file),
                convert_options=pyarrow.csv.ConvertOptions(column_types=None, strings_can_be_null=True),
            )
        except (OSError, pa.ArrowInvalid) as error:
            raise BadValue(f"{where}: {error}") from None
        if settings.key not in file.column_names or settings.key not in events:
            raise BadValue(f"{where}: key {settings.key!r} must be a column of the file and of the events")
        self.columns = settings.columns or tuple(name for name in file.column_names if name != settings.key)
        for name in self.columns:
            if name not in file.column_names:
                raise BadValue(f"{where}: the file has no column {name!r}: it has {', '.join(file.column_names)}")
            if name in events:
                raise BadValue(f"{where}: events have a column {name!r} already: rename the file's")
        keys = file.column(settings.key).cast(pa.string()).combine_chunks()
        if pc.count_distinct(keys).as_py() != len(keys):
            raise BadValue(f"{where}: key {settings.key!r} is not unique")
        self._key = settings.key
        self._keys = keys
        self._values = {name: file.column(name).cast(pa.string()).combine_chunks() for name in self.columns}

    def add(self, columns: dict[str, pa.Array]) -> None:
        place = pc.index_in(columns[self._key].cast(pa.string()), self._keys, skip_nulls=True)
        columns.update({name: values.take(place) for name, values in self._values.items()})


def by_topic(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch with one topic each, usually the whole batch.

    Producers may set any timestamp: those before 1970 or after 9000 are replaced by these bounds.
    """
    place = batch.schema.get_field_index("timestamp")
    stamps = batch.column(place)
    if not within(stamps):
        micros = np.clip(stamps.cast(pa.int64()).to_numpy(zero_copy_only=False), 0, MICROS_MAX)
        batch = batch.set_column(place, "timestamp", pa.array(micros).cast(MICROS))
    topics = batch.column("topic").dictionary_encode()
    if len(topics.dictionary) <= 1:
        if batch.num_rows:
            yield batch
        return
    codes = topics.indices.to_numpy()
    for code in range(len(topics.dictionary)):
        yield batch.filter(pa.array(codes == code))
