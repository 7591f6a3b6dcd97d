"""Converts a batch of records to rows of the table ``events``, with the parsers of its topic, and to dead letters.

Each line is one row, so the table is the record of what was read.  Its columns, in this order, are the same for every
topic:

1. provenance: ``topic partition offset received parser``;
2. ``rejected``: why no parser took the line, null if one did, ``raw`` and ``raw_key``: the bytes of a line that was
   rejected, and its key;
   ``column_errors``: why columns of an event are null whose fields were given;
3. ``date`` and ``hour``, of the line's time, or of the record's when the line has none;
4. the common columns of the parsers, and all columns of all parsers of the pipeline;
5. when asked for: ``line``, and, with multiline sources, ``lines`` (how many lines the event has) and, with an audit,
   ``arrivals`` (when they arrived, if there are several);
6. the columns of lookups, and, with rules that warn, ``unexpected`` (see ``quality``).

What a source redacts is replaced before anything else happens.  A line that no parser takes is a row without what
parsers, defaults and lookups give, at the time of its record; it becomes a dead letter, too.  No I/O, except for
reading the lookup files in the constructor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from .columns import COMMON, UNKNOWN, LineParser
from .lookups import ColumnLookup, build_lookup
from .multiline import ARRIVALS, LINES
from .parsers import build
from .quality import UNEXPECTED, Rules, is_dropped
from .schema_changes import conform
from .settings import Settings, Source
from .times import EPOCH, MICROS, MICROS_MAX, within
from .value_patterns import replaced

PROVENANCE: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "received": MICROS,
    "parser": pa.string(),
}
REJECTED: Final = "rejected"
RAW: Final = "raw"
COLUMN_ERRORS: Final = "column_errors"
RAW_KEY: Final = "raw_key"
REJECTION: Final = {REJECTED: pa.string(), RAW: pa.binary(), RAW_KEY: pa.binary(), COLUMN_ERRORS: pa.string()}
CALENDAR: Final = {"date": pa.string(), "hour": pa.int32()}
GROUPS_MAX: Final = 64
DAY_US: Final = 86_400_000_000
HOUR_US: Final = 3_600_000_000
REASON_CHARACTERS_MAX: Final = 200
ASKED_FOR: Final = {"line": pa.string(), LINES: pa.int32(), ARRIVALS: pa.list_(MICROS)}
BOM: Final = "\ufeff"
Faults = list[tuple[str, np.ndarray]]
"""Reasons why columns of lines are null, with the indices of the lines."""


_Parsed = tuple[dict[str, pa.Array], pa.Array, pa.Array, Faults]


class Outcome(NamedTuple):
    """What became of the lines of a batch.

    ``rows``: a row of the table for each line, in the order of the lines.  ``dead``: the records of those that were
    rejected and not dropped, as they were (but redacted), with a column ``reason``.  ``unknown``: of each line, the map
    of fields that are to become columns (see ``unknown_fields``); None if no parser has such.
    """

    rows: pa.Table
    dead: pa.Table
    unknown: pa.Array | None = None

    @property
    def events(self) -> pa.Table:
        """The rows of the lines that a parser took."""
        return parsed(self.rows)


def rejected(dead: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of the table for records that are no lines of a source, with a column ``reason``."""
    columns = {name: dead.column(name) for name in ("topic", "partition", "offset")}
    columns |= {REJECTED: dead.column("reason"), RAW: dead.column("value"), RAW_KEY: dead.column("key")}
    columns |= dict.fromkeys(("time", "received"), dead.column("timestamp"))
    return conform(pa.table(columns | calendar(dead.column("timestamp"))), schema)


def parsed(rows: pa.Table) -> pa.Table:
    """Those rows of the table that were not rejected."""
    return rows.filter(pc.is_null(rows.column(REJECTED)))


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
        named = {name: kind for name, kind in own.items() if name != UNKNOWN}
        columns = PROVENANCE | REJECTION | CALENDAR | COMMON | named | _asked_for(settings)
        self._redactions = {source: _Redaction(source) for source, _ in self._sources.values() if source.redact}
        self._parsed = {**COMMON, **own}
        self._lookups: list[ColumnLookup] = []
        self._looked_up: list[str] = []
        for lookup in settings.lookup:
            self._lookups.append(build_lookup(lookup, columns))
            _check_own(self._lookups[-1].columns, f"lookup {lookup.file}")
            self._looked_up += self._lookups[-1].columns
            columns = columns | dict.fromkeys(self._lookups[-1].columns, pa.string())
        judged = {name: kind for name, kind in columns.items() if name not in REJECTION}
        self._rules = Rules(settings.quality, judged) if settings.quality else None
        if any(rule.on_failure == "warn" for rule in settings.quality):
            columns = columns | {UNEXPECTED: pa.string()}
        self.schema = pa.schema(list(columns.items()))
        _check_columns(settings, self.schema)

    def run(self, batch: pa.RecordBatch) -> Outcome:
        """Convert records of one topic, with the columns key, value, topic, partition, offset, timestamp."""
        lines = self.parse(batch)
        if self._rules is not None:
            lines = _judged(self._rules, lines)
        columns = lines.columns
        dead = pa.Table.from_batches([lines.batch]).append_column("reason", lines.reasons)
        if pc.all(lines.good).as_py():
            dead = dead.slice(0, 0)
            columns |= {name: pa.nulls(len(lines.good), REJECTION[name]) for name in (REJECTED, RAW, RAW_KEY)}
        else:
            dead = dead.filter(pc.and_not(pc.invert(lines.good), is_dropped(lines.reasons)))
            self._reject(lines)
        rows = pa.table([columns[name] for name in self.schema.names], schema=self.schema)
        return Outcome(rows, dead, columns.get(UNKNOWN))

    def _reject(self, lines: Lines) -> None:
        """Add the columns of the rejection, and take from rejected lines what they have only as parsed ones."""
        columns, good = lines.columns, lines.good
        for name in (*self._parsed, *self._looked_up, "parser", COLUMN_ERRORS):
            columns[name] = pc.if_else(good, columns[name], pa.scalar(None, columns[name].type))
        columns["time"] = pc.if_else(good, columns["time"], columns["received"])
        columns |= calendar(columns["time"])
        columns[REJECTED] = pc.if_else(good, None, lines.reasons).cast(pa.string())
        dropped = is_dropped(columns[REJECTED])
        columns["line"] = pc.if_else(dropped, pa.scalar(None, pa.string()), columns["line"])
        without = pc.or_(good, dropped)
        columns[RAW] = pc.if_else(without, None, lines.batch.column("value")).cast(pa.binary())
        columns[RAW_KEY] = pc.if_else(without, None, lines.batch.column("key")).cast(pa.binary())

    def parse(self, batch: pa.RecordBatch) -> Lines:
        """Parse records as :meth:`run` does, and keep those that no parser takes."""
        source, parsers = self._sources[batch.column("topic")[0].as_py()]
        if source.encoding != "utf-8":
            batch = _in_utf8(batch, source.encoding)
        if redaction := self._redactions.get(source):
            batch = redaction.apply(batch)
        lines, unreadable = _texts(batch.column("value"))
        received = batch.column("timestamp").cast(MICROS)
        micros = received.cast(pa.int64()).to_numpy(zero_copy_only=False)
        columns, names, reasons, faults = self._parse(parsers, lines, unreadable, micros)
        columns["parser"] = names
        columns["received"] = received
        for name in ("topic", "partition", "offset"):
            columns[name] = batch.column(name).cast(PROVENANCE[name])
        columns["line"] = lines
        for name in (LINES, ARRIVALS):
            if name in self.schema.names:
                columns[name] = batch.column(name)
        columns[COLUMN_ERRORS] = _column_errors(faults, len(lines))
        self._finish(columns, source)
        good = pc.is_valid(names)
        return Lines(batch, columns, good, reasons, faults)

    def _parse(
        self, parsers: list[LineParser], lines: pa.Array, unreadable: pa.Array | None, micros: np.ndarray
    ) -> _Parsed:
        """Parse lines that arrived at these times: a time without a year, or a day, is near that of its own record."""
        groups = near(micros)
        parts = []
        for rows in groups:
            about = EPOCH + timedelta(microseconds=int(micros[rows].max()) if len(rows) else 0)
            if len(groups) == 1:
                return self._parse_together(parsers, lines, unreadable, about)
            place = pa.array(rows)
            missing = None if unreadable is None else unreadable.take(place)
            parts.append(self._parse_together(parsers, lines.take(place), missing, about))
        back = pa.array(np.argsort(np.concatenate(groups), kind="stable"))

        def whole(pieces: Iterable[pa.Array]) -> pa.Array:
            return pa.concat_arrays(list(pieces)).take(back)

        columns = {name: whole(part[0][name] for part in parts) for name in self._parsed}
        names, reasons = (whole(part[place] for part in parts) for place in (1, 2))
        faults = [(why, rows[wrong]) for rows, part in zip(groups, parts, strict=True) for why, wrong in part[3]]
        return columns, names, reasons, faults

    def _parse_together(
        self, parsers: list[LineParser], lines: pa.Array, unreadable: pa.Array | None, received: datetime
    ) -> _Parsed:
        """Columns, the name of the parser that took each line or the reason why none did, and columns in error."""
        count = len(lines)
        faults: Faults = []
        columns: dict[str, pa.Array] = {}
        names = pa.nulls(count, pa.string())
        reasons = pa.nulls(count, pa.string()) if unreadable is None else unreadable
        unparsed = np.arange(count)
        for parser in parsers:
            whole = len(unparsed) == count
            parsed = parser.parse(lines if whole else lines.take(pa.array(unparsed)), received)
            matched = parsed.matched.to_numpy(zero_copy_only=False)
            if whole and matched.all():
                names = pa.array([parser.name]).take(pa.array(np.zeros(count, np.int8)))
                return (
                    {name: parsed.columns.get(name, pa.nulls(count, kind)) for name, kind in self._parsed.items()},
                    names,
                    reasons,
                    [(reason, np.flatnonzero(wrong)) for reason, wrong in parsed.nulled.items()],
                )
            faults += [(reason, unparsed[wrong]) for reason, wrong in parsed.nulled.items()]
            place = _places(count, unparsed, matched)
            for name, column in parsed.columns.items():
                taken = column.take(place)
                columns[name] = taken if name not in columns else pc.coalesce(columns[name], taken)
            names = pc.if_else(pc.is_valid(place), parser.name, names)
            if parsed.reasons is not None:
                reasons = pc.coalesce(reasons, parsed.reasons.take(_places(count, unparsed, ~matched)))
            unparsed = unparsed[~matched]
            if not len(unparsed):
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
        columns |= calendar(columns["time"])
        for lookup in self._lookups:
            lookup.add(columns)


def _judged(rules: Rules, lines: Lines) -> Lines:
    """The lines, of which those are not good any more that a rule drops or rejects."""
    judgement = rules.judge(lines.columns, lines.good)
    good = pc.and_(lines.good, pc.is_null(judgement.reasons))
    columns = lines.columns | {UNEXPECTED: judgement.unexpected}
    return lines._replace(columns=columns, good=good, reasons=pc.coalesce(judgement.reasons, lines.reasons))


def near(micros: np.ndarray) -> list[np.ndarray]:
    """The indices of times that are of one hour, or of a longer time if there were more than :data:`GROUPS_MAX`."""
    if not len(micros) or micros.max() // HOUR_US == micros.min() // HOUR_US:
        return [np.arange(len(micros))]
    for unit_us in (HOUR_US, DAY_US, 30 * DAY_US):
        units, index = np.unique(micros // unit_us, return_inverse=True)
        if len(units) <= GROUPS_MAX:
            return [np.flatnonzero(index == number) for number in range(len(units))]
    return [np.arange(len(micros))]


def calendar(times: pa.Array | pa.ChunkedArray) -> dict[str, pa.Array]:
    micros = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return {"date": dates(micros), "hour": pa.array(((micros % DAY_US) // HOUR_US).astype(np.int32))}


def _asked_for(settings: Settings) -> dict[str, pa.DataType]:
    joins = any(source.multiline for source in settings.source)
    is_asked = {"line": settings.output.raw, LINES: joins, ARRIVALS: joins and bool(settings.audit.topic)}
    return {name: ASKED_FOR[name] for name in ASKED_FOR if is_asked[name]}


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
    if not faults:
        return pa.nulls(count, pa.string())
    texts: dict[int, str] = {}
    for reason, lines in faults:
        for line in lines.tolist():
            texts[line] = f"{texts[line]}; {reason}" if line in texts else reason
    errors = np.full(count, None, object)
    errors[list(texts)] = list(texts.values())
    return pa.array(errors, pa.string())


def _unite(kinds: dict[str, pa.DataType], fields: Mapping[str, pa.DataType], who: str) -> None:
    _check_own(fields, f"parser {who}")
    for name, kind in fields.items():
        if kinds.setdefault(name, kind) != kind:
            raise BadValue(f"parser {who}: column {name!r} is {kind}, but {kinds[name]} in another parser")


def _check_own(names: Iterable[str], who: str) -> None:
    for name in names:
        if name in {*PROVENANCE, *REJECTION, *CALENDAR, *ASKED_FOR, UNEXPECTED}:
            raise BadValue(f"{who}: column {name!r} is the pipeline's own; choose another name")


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
        if name == REJECTED:
            raise BadValue(f"output.partition_by: {name!r} is any text: directories are named by few different ones")
        if not pa.types.is_string(schema.field(name).type):
            raise BadValue(
                f"output.partition_by: {name!r} is {schema.field(name).type}: directories are named by texts"
            )


def _places(count: int, unparsed: np.ndarray, chosen: np.ndarray) -> pa.Array:
    """For each line its index among the lines that a parser got; null where the parser did not take it."""
    index = np.full(count, -1, np.int64)
    index[unparsed[chosen]] = np.flatnonzero(chosen)
    return pa.array(index, mask=index < 0)


def _in_utf8(batch: pa.RecordBatch, encoding: str) -> pa.RecordBatch:
    """The records with values in UTF-8; one that is no text in the encoding either stays as it is.

    What is UTF-8 stays, too: such lines come among the others, and what is parsed again is UTF-8 already.
    """
    values = batch.column("value")
    with suppress(pa.ArrowInvalid):
        values.cast(pa.string())
        return batch

    def converted(value: bytes | None) -> bytes | None:
        if value is None or _text(value) is not None:
            return value
        text = _text(value, encoding)
        return value if text is None else text.encode()

    at = batch.schema.get_field_index("value")
    return batch.set_column(at, "value", pa.array(map(converted, values.to_pylist()), pa.binary()))


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


def _text(value: bytes | None, encoding: str = "utf-8") -> str | None:
    try:
        return None if value is None else value.decode(encoding)
    except UnicodeDecodeError:
        return None


def dates(micros: np.ndarray) -> pa.Array:
    """``2026-11-20`` for each time."""
    days, index = np.unique(micros // DAY_US, return_inverse=True)
    names = [str(date(1970, 1, 1) + timedelta(days=int(day))) for day in days]
    return pa.array(names, pa.string()).take(pa.array(index))


def by_topic(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch with one topic each, usually the whole batch.

    Producers may set any timestamp: those before 1970 or after 9000 are replaced by these bounds.
    """
    place = batch.schema.get_field_index("timestamp")
    stamps = batch.column(place)
    if not within(stamps, 0):
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
