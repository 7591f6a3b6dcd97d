"""Parses JSON objects: fields by path to typed columns, and all other fields to a map when asked for.

Only the wanted members of a line are decoded.  What the decoder refuses and Python's own, slower reader takes is kept:
NaN, Infinity, numbers that are too large, halves of surrogate pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .columns import (
    MAP,
    TYPES,
    Faults,
    Parsed,
    from_values,
    in_parts,
    levels,
    map_of_others,
    no_column,
    own_columns,
    sources,
    text_of,
)
from .settings import Column, Parser
from .times import Times

TOGETHER_MAX: Final = 256
"""Lines that are decoded before their members are collected: so many stay in the processor's cache."""
JOURNALD: Final = Parser(
    kind="json",
    columns={"pid": Column(type="int", field="_PID"), "unit": Column(field="_SYSTEMD_UNIT")},
    time="__REALTIME_TIMESTAMP",
    time_formats=("epoch_us",),
    host="_HOSTNAME",
    service="SYSLOG_IDENTIFIER",
    level="PRIORITY",
    message="MESSAGE",
)
"""The output of ``journalctl -o json``."""
DOCKER: Final = Parser(kind="json", columns={"stream": Column()}, message="log", time_formats=("iso",))
"""What Docker's json-file driver writes to /var/lib/docker/containers."""
Row = Any
"""A struct with the wanted members of a line, None where there is none."""


@dataclass
class Json:
    name: str
    settings: Parser
    times: Times
    needs: str = ""
    """A field without which an object is not one of this format; "" for none."""

    def __post_init__(self) -> None:
        self._columns = own_columns(self.settings)
        self._common = {name: path for name, path in sources(self.settings).items() if name not in self._columns}
        self.fields: Mapping[str, pa.DataType] = {name: TYPES[column.type] for name, column in self._columns.items()}
        self._others = map_of_others(self.settings)
        if self._others:
            self.fields = {**self.fields, self._others: MAP}
        paths = [*self._common.values(), *(column.field for column in self._columns.values())]
        keys = dict.fromkeys(key for path in paths for key in (path, path.partition(".")[0]))
        self._attributes = {key: f"f{number}" for number, key in enumerate(keys)}
        members = [(attribute, Any, None) for attribute in self._attributes.values()]
        renamed = {attribute: key for key, attribute in self._attributes.items()}
        self._shape = msgspec.defstruct("Line", members, rename=renamed, gc=False)
        self._nothing = self._shape()
        self._decode = msgspec.json.Decoder(self._shape).decode
        self._getters = {path: self._getter(path) for path in dict.fromkeys(paths)}

    def _getter(self, path: str) -> Callable[[Sequence[Row]], list[Any]]:
        whole = attrgetter(self._attributes[path])
        head, *rest = path.split(".")
        if not rest:
            return lambda rows: list(map(whole, rows))
        top = attrgetter(self._attributes[head])

        def get(row: Row) -> Any:
            literal = whole(row)  # a member may have dots in its name, as ECS has
            return value_at(top(row), rest) if literal is None else literal

        return lambda rows: list(map(get, rows))

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        return in_parts(lines, lambda part: self._part(part, received))

    def _part(self, lines: pa.Array, received: datetime) -> Parsed:
        texts = lines.to_pylist()
        values: dict[str, list[Any]] = {path: [] for path in self._getters}
        reasons: dict[int, str] = {}
        for first in range(0, len(texts), TOGETHER_MAX):
            chunk = texts[first : first + TOGETHER_MAX]
            rows = self._rows(chunk, first, reasons)
            for path, get in self._getters.items():
                values[path] += get(rows)
        if self.needs:
            missing = (number for number, value in enumerate(values[self.needs]) if value is None)
            for number in missing:
                reasons.setdefault(number, f"{self.name}: there is no {self.needs}")
        faults, columns = Faults(self.name, len(texts)), {}
        for name, path in self._common.items():
            columns[name] = self._common_column(name, path, values[path], received, faults)
        for name, column in self._columns.items():
            made = from_values(values[column.field], column.type)
            columns[name] = made.column
            faults.add(f"{name} is not of its type ({column.type})", made.wrong, column.on_error == "dead_letter")
        if self._others:
            columns[self._others] = self._rest(texts, reasons)
        if self.settings.unknown == "fail":
            self._refuse(texts, reasons)
        if not reasons:
            return faults.parsed(np.ones(len(texts), bool), columns)
        why = pa.array([reasons.get(number) for number in range(len(texts))], pa.string())
        return faults.parsed(np.asarray(pc.is_null(why).to_numpy(zero_copy_only=False)), columns, why)

    def _rows(self, texts: Sequence[str | None], first: int, reasons: dict[int, str]) -> list[Row]:
        """A row for each line; without members, and with a reason, for one that is no object."""
        try:
            return list(map(self._decode, texts))  # type: ignore[arg-type]
        except (msgspec.DecodeError, UnicodeEncodeError, TypeError, RecursionError):
            rows = []
            for number, text in enumerate(texts, first):
                row, reason = self._one(text)
                rows.append(self._nothing if row is None else row)
                if row is None:
                    reasons[number] = f"{self.name}: {reason}"
            return rows

    def _one(self, text: str | None) -> tuple[Row, str]:
        """A line's row, or None and why there is none."""
        if text is None:
            return None, "no value"
        try:
            return self._decode(text), ""
        except RecursionError:
            return None, "nested too deeply"
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            fields = _lenient(text)
            if fields is None:
                return None, str(error)
            return self._shape(**{attribute: fields.get(key) for key, attribute in self._attributes.items()}), ""

    def _common_column(self, name: str, path: str, values: list[Any], received: datetime, faults: Faults) -> pa.Array:
        if name == "message":
            values = [_octets(value) if type(value) is list else value for value in values]
        texts = from_values(values, "string").column
        if name == "message" and pc.any(pc.ends_with(texts, "\n")).as_py():  # as Docker keeps that of the line
            texts = pc.replace_substring_regex(texts, r"\r?\n\z", "")
        if name == "level":
            return levels(texts, self.settings.levels)
        if name != "time":
            return texts
        column = self.times.parse(texts, received)
        if column.null_count > texts.null_count:
            wrong = pc.and_(pc.is_null(column), pc.is_valid(texts)).to_numpy(zero_copy_only=False)
            faults.add(f"{path} is not a time", wrong, self.settings.time_on_error == "dead_letter")
        return column

    def _refuse(self, texts: Sequence[str | None], reasons: dict[int, str]) -> None:
        """Add a reason for each line with a field that no column takes, whole or in parts."""
        for number, text in enumerate(texts):
            fields = None if number in reasons else _lenient(text or "")
            if unknown := next((key for key in fields or () if key not in self._attributes), None):
                reasons[number] = no_column(self.name, text_of(unknown))

    def _rest(self, texts: Sequence[str | None], reasons: Mapping[int, str]) -> pa.Array:
        """All fields that no column takes as a whole."""
        taken = self._getters.keys()
        maps: list[list[tuple[str, str | None]] | None] = []
        for number, text in enumerate(texts):
            fields = None if number in reasons else _lenient(text or "")
            maps.append(
                None
                if fields is None
                else [
                    (text_of(key), None if value is None else text_of(value))
                    for key, value in fields.items()
                    if key not in taken
                ]
            )
        return pa.array(maps, MAP)


def _lenient(text: str) -> dict[str, Any] | None:
    """The object, as Python's own reader takes it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def value_at(value: Any, path: Sequence[str]) -> Any:
    """What stands at names and numbers of objects and lists, one in the other; None without it."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _octets(value: list[Any]) -> Any:
    """The text of a list of bytes, as journald writes messages that are not printable; else the list."""
    try:
        return bytes(value).decode(errors="replace")
    except (TypeError, ValueError):
        return value
