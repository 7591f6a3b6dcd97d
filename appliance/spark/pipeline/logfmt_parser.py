r"""Parses logfmt: ``key=value key="a value with blanks" key='another'``.

Fields are split in all lines of a batch at once: quotes, blanks and equals signs are searched in their bytes, and each
field goes to its column by its key.  Lines with backslashes, apostrophes or odd quotes are split by a regular
expression, one by one.  A quote that a cut line does not close goes to its end.  Words without an equals sign are no
fields.  Of fields with one key the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .columns import (
    MAP,
    TYPES,
    Faults,
    Parsed,
    from_texts,
    in_parts,
    levels,
    map_of_others,
    no_column,
    own_columns,
    sources,
)
from .settings import Parser
from .text_slices import Lines
from .times import Times

QUOTE, BLANK, EQUALS, BACKSLASH, APOSTROPHE, TAB, NEWLINE = b"\" =\\'\t\n"
_PAIRS = re.compile(
    r"""(?<![^ \t\n])(?:"([^"=]+)"|([^ \t\n="']+))="""
    r"""("[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|'[^'\\]*(?:\\.[^'\\]*)*(?:'|\\?\Z)|[^ \t\n"]*)""",
    re.DOTALL,
)
_CLOSED = re.compile(r"""(["'])(?:[^\\]|\\.)*\1""", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_MEANT: Final = {"n": "\n", "t": "\t", "r": "\r"}


class Pairs(NamedTuple):
    """Fields of many lines, in their order; ``lines``: the index of each one's line."""

    lines: np.ndarray[Any, np.dtype[np.int64]]
    keys: pa.Array
    values: pa.Array


@dataclass
class Logfmt:
    name: str
    settings: Parser
    times: Times

    def __post_init__(self) -> None:
        self._columns = own_columns(self.settings)
        self._common = {name: key for name, key in sources(self.settings).items() if name not in self._columns}
        self.fields: Mapping[str, pa.DataType] = {name: TYPES[column.type] for name, column in self._columns.items()}
        self._others = map_of_others(self.settings)
        if self._others:
            self.fields = {**self.fields, self._others: MAP}
        keys = [*self._common.values(), *(column.field for column in self._columns.values())]
        self._wanted = pa.array(dict.fromkeys(keys), pa.string())

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        return in_parts(lines, lambda part: self._part(part, received))

    def _part(self, lines: pa.Array, received: datetime) -> Parsed:
        count = len(lines)
        pairs = split(lines)
        numbers = pc.index_in(pairs.keys, self._wanted).fill_null(-1).to_numpy()
        values = {
            key: self._column(count, pairs, numbers == number) for number, key in enumerate(self._wanted.to_pylist())
        }
        faults, columns = Faults(self.name, count), {}
        for name, key in self._common.items():
            texts = values[key]
            columns[name] = levels(texts, self.settings.levels) if name == "level" else texts
        if "time" in self._common:
            columns["time"] = self._time(values[self._common["time"]], received, faults)
        for name, column in self._columns.items():
            made = from_texts(values[column.field], column.type)
            columns[name] = made.column
            faults.add(f"{name} is not of its type ({column.type})", made.wrong, column.on_error == "dead_letter")
        if self._others:
            columns[self._others] = _rest(count, pairs, numbers < 0)
        matched = np.bincount(pairs.lines, minlength=count) > 0
        why = pc.if_else(pa.array(matched), pa.scalar(None, pa.string()), f"{self.name}: no key=value")
        if self.settings.unknown == "fail":
            unknown = self._unknown(count, pairs, numbers < 0)
            matched, why = matched & pc.is_null(unknown).to_numpy(zero_copy_only=False), pc.coalesce(why, unknown)
        return faults.parsed(matched, columns, None if matched.all() else why)

    def _unknown(self, count: int, pairs: Pairs, chosen: np.ndarray) -> pa.Array:
        """For each line why it is refused: one of these fields; or null."""
        place = np.full(count, -1, np.int64)
        place[pairs.lines[chosen]] = np.flatnonzero(chosen)
        names = pairs.keys.take(pa.array(place, mask=place < 0)).to_pylist()
        return pa.array([None if name is None else no_column(self.name, name) for name in names], pa.string())

    def _column(self, count: int, pairs: Pairs, chosen: np.ndarray) -> pa.Array:
        place = np.full(count, -1, np.int64)
        places = np.flatnonzero(chosen)
        place[pairs.lines[places]] = places  # of several ones of a line numpy stores the last
        return pairs.values.take(pa.array(place, mask=place < 0))

    def _time(self, texts: pa.Array, received: datetime, faults: Faults) -> pa.Array:
        column = self.times.parse(texts, received)
        if column.null_count > texts.null_count:
            wrong = pc.and_(pc.is_null(column), pc.is_valid(texts)).to_numpy(zero_copy_only=False)
            faults.add(f"{self.settings.time} is not a time", wrong, self.settings.time_on_error == "dead_letter")
        return column


def _rest(count: int, pairs: Pairs, chosen: np.ndarray) -> pa.Array:
    """The chosen fields of each line as a map; of those with one key the last."""
    places = np.flatnonzero(chosen)
    names = pairs.keys.dictionary_encode().indices.to_numpy()[places]
    _, last = np.unique((pairs.lines[places] * (int(names.max(initial=0)) + 1) + names)[::-1], return_index=True)
    places = places[np.sort(len(places) - 1 - last)]
    offsets = np.append(0, np.cumsum(np.bincount(pairs.lines[places], minlength=count))).astype(np.int32)
    keys, values = (texts.take(pa.array(places)) for texts in (pairs.keys, pairs.values))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, values).cast(MAP)


def split(lines: pa.Array) -> Pairs:
    """The fields of all lines."""
    whole = Lines(lines)
    fast, strange = _split_at_once(whole)
    for byte in (BACKSLASH, APOSTROPHE):
        if len(places := whole.find(byte)):
            strange |= whole.first_at(places)[1] > 0
    if not strange.any():
        return fast
    rest = np.flatnonzero(strange)
    slow = _split_each(lines.take(pa.array(rest)).to_pylist())
    kept = np.flatnonzero(~strange[fast.lines])
    numbers = np.concatenate((fast.lines[kept], rest[slow.lines]))
    order = np.argsort(numbers, kind="stable")
    place = pa.array(np.append(kept, len(fast.lines) + np.arange(len(slow.lines)))[order])
    keys, values = (
        pa.concat_arrays(parts).take(place) for parts in ((fast.keys, slow.keys), (fast.values, slow.values))
    )
    return Pairs(numbers[order], keys, values)


def _split_at_once(whole: Lines) -> tuple[Pairs, np.ndarray]:
    """The fields of lines whose quotes all surround values, and which lines are others: their fields may be any.

    A field ends at a blank outside of quotes, and its key at its first equals sign.
    """
    data = whole.bytes
    marks = np.flatnonzero((data <= QUOTE) | (data == EQUALS)).astype(np.int32)
    kinds = data.take(marks)
    signs, quotes = kinds == EQUALS, kinds == QUOTE
    blanks = (kinds == BLANK) | (kinds == TAB) | (kinds == NEWLINE)
    first, count = whole.first_at(marks)
    owner = np.repeat(np.arange(len(whole)), count)
    seen = np.append(0, np.cumsum(quotes, dtype=np.int32))
    # From an opening quote on, up to before the closing one.
    inside = (seen[1:] - np.repeat(seen[first], count)) & 1 > 0
    is_gap = blanks & ~inside
    gaps = marks.compress(is_gap)
    at, lines, behind = (numbers.compress(signs) for numbers in (marks, owner, np.cumsum(is_gap, dtype=np.int32)))
    starts = np.maximum(np.append(np.int32(-1), gaps).take(behind) + 1, whole.starts.take(lines))
    stops = np.minimum(np.append(gaps, np.int32(len(data))).take(behind), whole.stops.take(lines))
    initial = np.append(True, starts[1:] != starts[:-1])[: len(starts)]  # others are within values
    strange = (seen[first + count] - seen[first]) & 1 > 0
    real = initial & (at > starts)  # with a key
    if seen[-1]:
        # Quotes have to open after a field's equals sign, and to close before a blank or the line's end.
        assigns = np.zeros(len(marks) + 1, bool)
        assigns[:-1][signs] = real
        number = np.flatnonzero(quotes)
        position, whose = marks[number], owner[number]
        opened = assigns[number - 1] & (marks[number - 1] == position - 1) & (owner[number - 1] == whose)
        following = np.minimum(number + 1, len(marks) - 1)
        closed = (position + 1 == whole.stops[whose]) | (blanks[following] & (marks[following] == position + 1))
        strange[whose[~np.where(inside[number], opened, closed)]] = True
    starts, at, stops, lines = (numbers.compress(real) for numbers in (starts, at, stops, lines))
    begun = at + 1
    quoted = (begun < stops) & (data.take(begun, mode="clip") == QUOTE) if len(at) else np.zeros(0, bool)
    begun += quoted
    values = whole.cut(begun, np.maximum(stops - quoted, begun))
    return Pairs(lines, whole.cut(starts, at), values), strange


def _split_each(lines: Sequence[str | None]) -> Pairs:
    numbers: list[int] = []
    keys: list[str] = []
    values: list[str] = []
    for number, line in enumerate(lines):
        for pair in _PAIRS.finditer(line or ""):
            numbers.append(number)
            keys.append(pair[1] or pair[2])
            values.append(_unquoted(pair[3]))
    return Pairs(np.array(numbers, np.int64), pa.array(keys, pa.string()), pa.array(values, pa.string()))


def _unquoted(text: str) -> str:
    if text[:1] in ('"', "'"):
        closed = _CLOSED.fullmatch(text)
        return _ESCAPED.sub(_meant, text[1:-1] if closed else text[1:])
    return text


def _meant(escape: re.Match[str]) -> str:
    text = escape[1]
    if len(text) == 5:
        return chr(int(text[1:], 16)).encode(errors="replace").decode()
    return _MEANT.get(text, text)
