"""Makes columns of fields that the configuration does not name: the policy ``unknown = "add"`` of a parser.

Such a column is text, whatever the field's values are, so that lines of any producer fit, at any time; objects are
JSON.  Its name is that of the field in lower case: readers of the tables do not agree on the meaning of case.  A task
writes the columns that it meets, and the commit adds those to the table that it does not have (``delta_store``).  So
each line has them, also the first ones.

Bounds: a task makes no new column once the table has :data:`ADDED_MAX` of them.  A field that cannot be a column is
left out, and the column ``column_errors`` of the line says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .events import ASKED_FOR, COLUMN_ERRORS
from .quality import BETWEEN, UNEXPECTED
from .schema_changes import conform
from .settings import Settings

ADDED_MAX: Final = 200
NO_NAME: Final = "unknown fields: names that are none of columns, or of those that the table has"
TOO_MANY: Final = f"unknown fields: at most {ADDED_MAX} become columns"
RESERVED: Final = {*ASKED_FOR, UNEXPECTED, "start"}
"""Names of columns that settings can bring, and of the one that views have.  A field has none of them, also where the
table has the column from earlier settings: what it says is believed, as ``line`` is by ``reparse``."""
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,99}")


def adds_columns(settings: Settings) -> bool:
    """Whether a parser of the pipeline does so."""
    names = {name for source in settings.source for name in source.parsers}
    return any(parser.unknown == "add" for name, parser in settings.parser.items() if name in names)


class AddedColumns:
    """The columns of a table, with those that are added while rows of it are made."""

    def __init__(self, table: pa.Schema, configured: pa.Schema, most: int = ADDED_MAX) -> None:
        """``table``: its columns now; ``configured``: those of the configuration."""
        self.schema = table
        self.fresh: list[str] = []
        """The names of columns that the table does not have."""
        others = [field for field in table if field.name not in {*configured.names, *RESERVED}]
        self._known = {field.name for field in others if field.type == pa.string()}
        self._taken = {name.lower() for name in (*table.names, *configured.names, *RESERVED)} - self._known
        self._most = max(most, len(self._known))

    def spread(self, rows: pa.Table, fields: pa.Array) -> pa.Table:
        """The rows with a column for each of their unknown fields, and with all columns of :attr:`schema`.

        Args:
            fields: a map from names to texts, or null, for each row.
        """
        offsets = fields.offsets.to_numpy()
        entries = slice(int(offsets[0]), int(offsets[-1]))
        owner = np.repeat(np.arange(len(fields)), np.diff(offsets))
        names = fields.keys[entries].dictionary_encode()
        values, code = fields.items[entries], names.indices.to_numpy()
        columns: dict[str, np.ndarray] = {}
        problems: dict[str, np.ndarray] = {}
        order = np.argsort(code, kind="stable")
        bounds = np.searchsorted(code[order], np.arange(len(names.dictionary) + 1))
        for number, name in enumerate(names.dictionary.to_pylist()):
            at = order[bounds[number] : bounds[number + 1]]
            column, problem = self._column(name)
            if column:
                columns.setdefault(column, np.full(len(rows), -1, np.int64))[owner[at]] = at
            else:
                problems.setdefault(problem, np.zeros(len(rows), bool))[owner[at]] = True
        for column, place in columns.items():
            rows = rows.append_column(column, values.take(pa.array(place, mask=place < 0)))
        return conform(_with_errors(rows, problems), self.schema)

    def _column(self, field: str) -> tuple[str, str]:
        """The column of a field, or why it has none."""
        name = field.lower()
        if name in self._known:
            return name, ""
        if name in self._taken or not _NAME.fullmatch(name):
            return "", NO_NAME
        if len(self._known) >= self._most:
            return "", TOO_MANY
        self._known.add(name)
        self.fresh.append(name)
        self.schema = self.schema.append(pa.field(name, pa.string()))
        return name, ""


def schema_of(names: Iterable[str]) -> pa.Schema:
    """Of columns of unknown fields."""
    return pa.schema([(name, pa.string()) for name in names])


def _with_errors(rows: pa.Table, problems: dict[str, np.ndarray]) -> pa.Table:
    at = rows.schema.get_field_index(COLUMN_ERRORS)
    for problem, lines in problems.items():
        before = rows.column(at)
        both = pc.binary_join_element_wise(before, problem, BETWEEN, null_handling="skip")
        rows = rows.set_column(at, COLUMN_ERRORS, pc.if_else(pa.array(lines), both, before))
    return rows
