"""Parses lines with a regular expression: its named groups become columns.

Regular expressions run in RE2: linear time, so that no line can stall a task, in C++, for all lines of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from .columns import FROM_TEXTS, TYPES, Faults, Parsed, as_mask, from_texts, levels, no_dash, own_columns, sources
from .settings import Parser
from .times import Times

Groups = dict[str, pa.Array]
Extract = Callable[[pa.Array], tuple[pa.Array, Groups]]
"""As :func:`extract_groups`, for one format."""


def extract_groups(lines: pa.Array, pattern: str) -> tuple[pa.Array, Groups]:
    """Whether each line matches, and the texts of the groups, which mean nothing where it does not."""
    matches = pc.extract_regex(lines, pattern)
    # Children of a struct do not know which of its rows are null.
    return pc.is_valid(matches), {
        group.name: pc.struct_field(matches, [index]) for index, group in enumerate(matches.type)
    }


@dataclass
class Regex:
    """Converts groups to columns.  ``after`` completes columns that do not follow from one group each."""

    name: str
    extract: Extract
    times: Times
    convert: Mapping[str, Callable[[pa.Array], pa.Array]] = field(default_factory=dict)
    fields: Mapping[str, pa.DataType] = field(default_factory=dict)
    after: Callable[[Groups], Groups] = lambda columns: columns
    wrong: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with texts of fields that are converted to null."""

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        matched, texts = self.extract(lines)
        columns: Groups = {}
        if not matched.true_count:
            return Parsed(matched, columns)
        faults = Faults(self.name, len(lines))
        for name, group in texts.items():
            if name == "time":
                columns[name] = self.times.parse(no_dash(group), received)
                # The time is part of the format, so this may be a line of another one.
                faults.add("time is not a time", _lost(columns[name], no_dash(group)), dead=True)
            else:
                columns[name] = self.convert.get(name, no_dash)(group)
                if name in self.convert and name in self.wrong:
                    faults.add(f"{name} {self.wrong[name]}", _lost(columns[name], no_dash(group)), dead=False)
        return faults.parsed(as_mask(matched), self.after(columns))


def _lost(column: pa.Array, texts: pa.Array) -> np.ndarray | None:
    if column.null_count == texts.null_count:
        return None
    return as_mask(pc.and_(pc.is_null(column), pc.is_valid(texts)))


@dataclass
class OwnRegex:
    """Converts the groups of a user's pattern to columns."""

    name: str
    settings: Parser
    times: Times

    def __post_init__(self) -> None:
        pattern = self.settings.pattern.replace("(?<", "(?P<") if "(?P<" not in self.settings.pattern else None
        self._pattern = pattern or self.settings.pattern
        try:
            groups = [group.name for group in pc.extract_regex(pa.array([""]), self._pattern).type]
        except pa.ArrowInvalid as error:
            raise BadValue(f"parser.{self.name}: pattern = {self.settings.pattern!r}: {error}") from None
        self._common = {column: group for column, group in sources(self.settings).items() if group in groups}
        declared = own_columns(self.settings)
        for name, column in declared.items():
            if column.field not in groups:
                raise BadValue(f"parser.{self.name}: no group of the pattern is named {column.field}")
            if column.type != "string":
                FROM_TEXTS[column.type](pa.array([], pa.string()))
            self._common.pop(name, None)
        taken = {column.field for column in declared.values()} | set(self._common.values())
        implied = Parser(kind="regex", columns=dict.fromkeys(set(groups) - taken, "string"))
        self._columns = declared | own_columns(implied)
        self.fields: Mapping[str, pa.DataType] = {name: TYPES[column.type] for name, column in self._columns.items()}

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        matched, texts = extract_groups(lines, self._pattern)
        columns: dict[str, Any] = {}
        if not matched.true_count:
            return Parsed(matched, columns)
        settings, faults = self.settings, Faults(self.name, len(lines))
        for name, group in self._common.items():
            texts_of_group = no_dash(texts[group])
            if name == "time":
                columns[name] = self.times.parse(texts_of_group, received)
                dead = settings.time_on_error == "dead_letter"
                faults.add(f"{group} is not a time", _lost(columns[name], texts_of_group), dead)
            else:
                columns[name] = levels(texts_of_group, settings.levels) if name == "level" else texts_of_group
        for name, column in self._columns.items():
            made = from_texts(no_dash(texts[column.field]), column.type)
            columns[name] = made.column
            faults.add(f"{name} is not of its type ({column.type})", made.wrong, column.on_error == "dead_letter")
        return faults.parsed(as_mask(matched), columns)
