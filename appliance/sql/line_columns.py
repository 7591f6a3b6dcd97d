"""Makes columns of the lines of a topic with the parsers of the pipeline, and chooses a parser where nobody has.

A pipeline's file says which parsers its topics have.  For any other topic the newest messages are looked at: the
built-in parser that takes the most of them is used, if it takes nearly all.  The fields of JSON and logfmt that are
found in them become columns; a field that appears only later is still in ``value``.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..spark.pipeline.columns import COMMON
from ..spark.pipeline.events import ASKED_FOR, CALENDAR, PROVENANCE, REJECTION, Transform, by_topic
from ..spark.pipeline.logfmt_parser import split
from ..spark.pipeline.settings import BUILT_IN, Column, FieldType, Output, Parser, Pipeline, Settings, Source

MESSAGE: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
"""The columns that every topic has, in their order."""
GUESSED: Final = tuple(name for name in BUILT_IN if name != "plain")
SHARE_MIN: Final = 0.9
"""A parser is chosen if it takes this part of the sample."""
TRIED_ROWS: Final = 64
"""So many of the newest messages are given to each parser."""
FIELDS_MAX: Final = 200
"""Most fields of a sample that become columns."""
LOGFMT_PAIRS_MIN: Final = 2
_INTEGER = re.compile("-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}")
_TAKEN: Final = {*MESSAGE, *PROVENANCE, *REJECTION, *CALENDAR, *COMMON, *ASKED_FOR}


class LineColumns:
    """What a parser, or several, make of the lines of one topic: a column each, null in lines that none takes."""

    def __init__(self, settings: Settings, topic: str) -> None:
        """``settings``: of a pipeline that reads the topic, or of :func:`guessed`."""
        (source,) = (source for source in settings.source if topic in source.topics)
        alone = msgspec.structs.replace(source, topics=(topic,), multiline=None)  # one row for each message
        plain = msgspec.structs.replace(settings.output, partition_by=(), sort_by=(), raw=False)
        # What parsers make of lines, whatever rules say of it.
        self._transform = Transform(msgspec.structs.replace(settings, source=(alone,), output=plain, quality=()))
        self.parsers = source.parsers
        schema = self._transform.schema
        others = {*PROVENANCE, *REJECTION, *CALENDAR}
        self.fields = [schema.field(name) for name in schema.names if name not in others]
        self.fields.insert(0, schema.field("parser"))

    def parse(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns, by name, of records of the topic as :class:`~appliance.log_access.arrow.Decoder` yields them."""
        (within_bounds,) = by_topic(batch)
        return self._transform.parse(within_bounds).columns


class Guess(NamedTuple):
    """A choice, and what it rests on: ``taken`` of ``seen`` messages."""

    parser: str
    taken: int
    seen: int
    settings: Settings


def guessed(topic: str, sample: pa.RecordBatch | None, chosen: str = "") -> Guess | None:
    """The parser for the topic; None if none takes most of the ``sample``, or there is none.

    Args:
        chosen: the parser that is to be used, whatever it takes.
    """
    if sample is None and not chosen:
        return None
    newest = None if sample is None else sample.slice(max(0, len(sample) - TRIED_ROWS))
    tried = [_tried(topic, name, newest) for name in ([chosen] if chosen else GUESSED)]
    best = max(tried, key=lambda guess: guess.taken)
    if not chosen and best.taken < SHARE_MIN * best.seen:
        return None
    if best.parser not in ("json", "logfmt"):
        return best
    own = Parser(kind="json" if best.parser == "json" else "logfmt", columns=_fields(best.parser, sample))
    return best._replace(settings=msgspec.structs.replace(best.settings, parser={best.parser: own}))


def _tried(topic: str, name: str, sample: pa.RecordBatch | None) -> Guess:
    settings = Settings(
        Pipeline("sql"),
        source=(Source(topics=(topic,), parsers=(name,)),),
        output=Output("", partition_by=()),
    )
    if sample is None:
        return Guess(name, 0, 0, settings)
    (within_bounds,) = by_topic(sample)
    lines = Transform(settings).parse(within_bounds)
    taken = lines.good
    if name == "journald":  # any object is one of its lines
        taken = pc.and_(taken, pc.is_valid(lines.columns["message"]))
    elif name == "logfmt":  # any text with an equals sign somewhere is one
        pairs = np.bincount(split(lines.columns["line"]).lines, minlength=len(sample))
        taken = pc.and_(taken, pa.array(pairs >= LOGFMT_PAIRS_MIN))
    return Guess(name, pc.sum(taken).as_py() or 0, len(sample), settings)


def _fields(name: str, sample: pa.RecordBatch | None) -> dict[str, FieldType | Column]:
    """A column for each field of the sample's lines but those that all parsers have as a common column."""
    kinds: dict[str, FieldType | None] = {}
    read = _object if name == "json" else _pairs
    for value in [] if sample is None else sample.column("value").to_pylist():
        for field, inner in read(value or b"").items():
            if field in kinds or (len(kinds) < FIELDS_MAX and field and field not in COMMON):
                kinds[field] = _wider(kinds.get(field), _kind(inner))
    columns: dict[str, FieldType | Column] = {}
    taken = set(_TAKEN)  # DuckDB does not tell names by their case
    for field, kind in sorted(kinds.items()):
        column = field
        while column.lower() in taken:
            column += "_"
        taken.add(column.lower())
        columns[column] = Column(type=kind or "string", field=field)
    return columns


def _object(line: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _pairs(line: bytes) -> dict[str, Any]:
    pairs = split(pa.array([line.decode(errors="replace")]))
    return dict(zip(pairs.keys.to_pylist(), map(_number, pairs.values.to_pylist()), strict=True))


def _number(text: str) -> int | float | str:
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _kind(value: Any) -> FieldType | None:
    if value is None:
        return None
    kinds: dict[type, FieldType] = {bool: "bool", int: "int", float: "float"}
    return kinds.get(type(value), "string")


def _wider(one_kind: FieldType | None, other_kind: FieldType | None) -> FieldType | None:
    """The type that has the values of both."""
    if one_kind is None or other_kind is None or one_kind == other_kind:
        return one_kind or other_kind
    return "float" if {one_kind, other_kind} == {"int", "float"} else "string"
