"""Holds what all parsers share: the common columns, the result of parsing, and conversions of fields to column types.

A field that does not fit its column's type is null there.  Conversions return such fields too, so that the parser can
count them, or give up the line: see ``on_error`` in ``settings``.

Conversions that people expect are made: a number, a truth value or an object as text; a number or a truth value that is
written as text; 200.0 as a whole number.  NaN and the infinities are no numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .settings import Column, FieldType, Parser
from .text_slices import Lines
from .times import MICROS

FOR_FIELD: Final = " for the field "
BYTE: Final = r" \(byte \d+\)"
"""A position in a line, in a reason why it is refused."""
VARYING: Final = f"{BYTE}|{FOR_FIELD}.*$"
"""What differs between lines in reasons: without it there are few different ones."""
COMMON: Final = {
    "time": MICROS,
    "host": pa.string(),
    "service": pa.string(),
    "level": pa.string(),
    "message": pa.string(),
}
TYPES: Final[dict[FieldType, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
ERRORS: Final = pa.array(["emerg", "alert", "crit", "error"])
"""Levels that count as errors."""
SEVERITIES: Final = pa.array(["emerg", "alert", "crit", "error", "warning", "notice", "info", "debug"])
LEVELS: Final = {
    "err": "error",
    "severe": "error",
    "warn": "warning",
    "information": "info",
    "log": "info",
    "config": "debug",
    "trace": "debug",
    "fine": "debug",
    "finer": "debug",
    "finest": "debug",
    "critical": "crit",
    "fatal": "crit",
    "emergency": "emerg",
    "panic": "emerg",
    # Numbers: those of syslog and journald, then those of pino and bunyan.
    **{str(number): name for number, name in enumerate(SEVERITIES.to_pylist())},
    **{"10": "debug", "20": "debug", "30": "info", "40": "warning", "50": "error", "60": "crit"},
}
MAP: Final = pa.map_(pa.string(), pa.string())
UNKNOWN: Final = "unknown fields"
"""Where a parser puts the map of fields that become columns: a name that no column can have."""
PART_MAX: Final = 4096
INT_MAX: Final = (1 << 63) - 1
INTEGER_DIGITS_MAX: Final = 18
ZERO, NINE = b"09"
_INTEGER = re.compile(r"[+-]?\d{1,18}(\.0+)?")
_FLOAT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Parsed(NamedTuple):
    """The result for the given lines.  ``columns`` are null where a line is not matched.

    ``reasons``: why lines are not matched, if the parser knows more than that.  ``nulled``: by reason, whether a field
    of a matched line did not fit its column.
    """

    matched: pa.Array
    columns: dict[str, pa.Array]
    reasons: pa.Array | None = None
    nulled: Mapping[str, np.ndarray] = {}


def in_parts(lines: pa.Array, parse: Callable[[pa.Array], Parsed]) -> Parsed:
    """Parse PART_MAX lines at a time: what is made for so many stays in the processor's cache."""
    parts = [parse(lines.slice(first, PART_MAX)) for first in range(0, max(len(lines), 1), PART_MAX)]
    if len(parts) == 1:
        return parts[0]
    columns = {name: pa.concat_arrays([part.columns[name] for part in parts]) for name in parts[0].columns}
    reasons = None
    if any(part.reasons is not None for part in parts):
        text = pa.string()
        reasons_by_part = [
            pa.nulls(len(part.matched), text) if part.reasons is None else part.reasons for part in parts
        ]
        reasons = pa.concat_arrays(reasons_by_part)
    nulled = {
        reason: np.concatenate([part.nulled.get(reason, np.zeros(len(part.matched), bool)) for part in parts])
        for reason in dict.fromkeys(reason for part in parts for reason in part.nulled)
    }
    return Parsed(pa.concat_arrays([part.matched for part in parts]), columns, reasons, nulled)


class LineParser(Protocol):
    name: str
    fields: Mapping[str, pa.DataType]
    """The columns that it adds to the common ones."""

    def parse(self, lines: pa.Array, received: datetime) -> Parsed: ...


class Converted(NamedTuple):
    """A column, and whether a field was given that does not fit it; None: all fit."""

    column: pa.Array
    wrong: np.ndarray | None = None


# ---- from texts


def integers(texts: pa.Array) -> pa.Array:
    """Converts to whole numbers; null for other texts."""
    if _only_digits(texts):
        return texts.cast(pa.int64())
    whole = pc.if_else(pc.match_substring_regex(texts, r"^[+-]?\d{1,18}(\.0+)?$"), texts, None)
    if pc.any(pc.match_substring(whole, ".")).as_py():
        whole = pc.replace_substring_regex(whole, r"\.0+$", "")
    return _without_plus(whole).cast(pa.int64())


def _only_digits(texts: pa.Array) -> bool:
    """Whether each text is 1 to 18 digits, or null.  A regular expression takes four times as long."""
    lengths = pc.min_max(pc.binary_length(texts))
    if not lengths["min"].is_valid or lengths["min"].as_py() < 1 or lengths["max"].as_py() > INTEGER_DIGITS_MAX:
        return False
    data = Lines(texts).bytes  # also those of null, which may be any: then they cost time, no more
    return bool(data.min() >= ZERO and data.max() <= NINE)


def floats(texts: pa.Array) -> pa.Array:
    fits = pc.match_substring_regex(texts, r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$")
    return _finite(_without_plus(pc.if_else(fits, texts, None)).cast(pa.float64()))


def _without_plus(numbers: pa.Array) -> pa.Array:
    """Arrow raises an error for a number with a plus before it."""
    if not pc.any(pc.starts_with(numbers, "+")).as_py():
        return numbers
    return pc.replace_substring_regex(numbers, r"^\+", "")


def booleans(texts: pa.Array) -> pa.Array:
    lower = pc.utf8_lower(texts)
    yes, no = (pa.array([text for text in _TRUTH if _TRUTH[text] is kind]) for kind in (True, False))
    return pc.if_else(pc.is_in(lower, yes), True, pc.if_else(pc.is_in(lower, no), False, pa.scalar(None, pa.bool_())))


FROM_TEXTS: Final[dict[FieldType, Callable[[pa.Array], pa.Array]]] = {
    "string": lambda texts: texts,
    "int": integers,
    "float": floats,
    "bool": booleans,
}


def from_texts(texts: pa.Array, kind: FieldType) -> Converted:
    """Converts texts to a column; null and the empty text are no fields."""
    column = FROM_TEXTS[kind](texts)
    if column.null_count == texts.null_count:
        return Converted(column)
    has_text = pc.and_(pc.is_valid(texts), pc.not_equal(texts, ""))
    return Converted(column, as_mask(pc.and_(pc.is_null(column), has_text)))


def no_dash(texts: pa.Array) -> pa.Array:
    """Null for "-" and for the empty text."""
    shortest = pc.min(pc.binary_length(texts))
    if not shortest.is_valid or shortest.as_py() > 1:
        return texts  # there is none
    return pc.if_else(pc.is_in(texts, pa.array(["-", ""])), None, texts)


def levels(texts: pa.Array, more: Mapping[str, str] = {}) -> pa.Array:
    """Converts levels to one spelling each; ``more``: spellings that win over LEVELS."""
    encoded = pc.utf8_lower(texts).dictionary_encode()
    spelled = [more.get(text) or LEVELS.get(text, text) for text in encoded.dictionary.to_pylist()]
    return pa.array(spelled, pa.string()).take(encoded.indices)


# ---- from values of JSON


def from_values(values: Sequence[Any], kind: FieldType) -> Converted:
    """Converts values of JSON to a column."""
    try:
        column = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _one_by_one(values, kind)  # of several types
    fits = {TYPES[kind], pa.null(), *({pa.int64()} if kind in ("float", "string") else ())}
    if column.type not in fits:
        return _one_by_one(values, kind)
    try:
        column = column.cast(TYPES[kind])
    except pa.ArrowInvalid:
        return _one_by_one(values, kind)  # whole numbers that no double has
    finite = kind != "float" or pc.all(pc.is_finite(column)).as_py() is not False
    return Converted(column) if finite else _one_by_one(values, kind)


def _one_by_one(values: Sequence[Any], kind: FieldType) -> Converted:
    convert = FROM_VALUE[kind]
    converted = [None if value is None else convert(value) for value in values]
    wrong = [value is not None and made is None for value, made in zip(values, converted, strict=True)]
    return Converted(pa.array(converted, TYPES[kind]), np.array(wrong, bool))


def text_of(value: Any) -> str:
    """A value of JSON as text: a text as it is, others as JSON writes them."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # JSON may hold halves of surrogate pairs, which are no text
    if isinstance(value, float) and math.isfinite(value):
        return repr(value) if "e" not in repr(value) else f"{value:f}"
    try:
        return msgspec.json.encode(value).decode()
    except (UnicodeEncodeError, RecursionError, OverflowError):
        return str(value).encode(errors="replace").decode()


def _int_of(value: Any) -> int | None:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value.partition(".")[0])
    if isinstance(value, float) and value.is_integer() and abs(value) < INT_MAX:
        return int(value)
    return value if type(value) is int and -INT_MAX <= value <= INT_MAX else None


def _float_of(value: Any) -> float | None:
    if type(value) in (int, float) or (isinstance(value, str) and _FLOAT.fullmatch(value)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None
    return None


def _bool_of(value: Any) -> bool | None:
    return _TRUTH.get(text_of(value).lower()) if isinstance(value, str | bool | int) else None


FROM_VALUE: Final[dict[FieldType, Callable[[Any], Any]]] = {
    "string": text_of,
    "int": _int_of,
    "float": _float_of,
    "bool": _bool_of,
}


# ---- lines whose fields do not fit


def as_mask(booleans_: pa.Array) -> np.ndarray:
    """Whether each is true, as numpy has it; null is false."""
    return np.asarray(pc.fill_null(booleans_, False).to_numpy(zero_copy_only=False))


def _finite(numbers: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_finite(numbers), numbers, None)


def map_of_others(settings: Parser) -> str:
    """The column for the map of all fields that have none; "" if there is no such map."""
    return UNKNOWN if settings.unknown == "add" else settings.rest


def no_column(parser: str, field: str) -> str:
    """Why a line is refused that has an unknown field.  :data:`VARYING` finds the field's name in it."""
    return f"{parser}: no column{FOR_FIELD}{field!r}"


def own_columns(settings: Parser) -> dict[str, Column]:
    """The columns of a parser of one's own, each with its field and what happens on an error."""
    columns = {}
    for name, setting in settings.columns.items():
        column = Column(type=setting) if isinstance(setting, str) else setting
        on_error = column.on_error or settings.on_error
        columns[name] = msgspec.structs.replace(column, field=column.field or name, on_error=on_error)
    return columns


def sources(settings: Parser) -> dict[str, str]:
    """Common column → field that it is taken from."""
    return {name: getattr(settings, name) for name in COMMON}


class Faults:
    """Collects the fields that do not fit, and decides which lines are not matched for that."""

    def __init__(self, parser: str, count: int) -> None:
        self._parser = parser
        self._nulled: dict[str, np.ndarray] = {}
        self._dead: list[tuple[str, np.ndarray]] = []
        self._count = count

    def add(self, what: str, wrong: np.ndarray | None, dead: bool) -> None:
        """``wrong``: the lines; ``dead``: whether they are given up."""
        if wrong is None or not wrong.any():
            return
        reason = f"{self._parser}: {what}"
        if dead:
            self._dead.append((reason, wrong))
        else:
            self._nulled[reason] = wrong

    def parsed(self, matched: np.ndarray, columns: dict[str, pa.Array], reasons: pa.Array | None = None) -> Parsed:
        """The result; ``matched`` and ``reasons`` before the faults are considered."""
        for reason, wrong in self._dead:
            lost = matched & wrong
            if reasons is None:
                reasons = pa.nulls(self._count, pa.string())
            reasons = pc.if_else(pa.array(lost), reason, reasons)
            matched = matched & ~wrong
        nulled = {reason: wrong & matched for reason, wrong in self._nulled.items()}
        kept = pa.array(matched)
        if not matched.all():
            columns = {name: pc.if_else(kept, column, None) for name, column in columns.items()}
        return Parsed(kept, columns, reasons, nulled)
