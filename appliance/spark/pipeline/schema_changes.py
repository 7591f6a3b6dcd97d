"""Decides how the columns of a table follow a changed configuration.  Pure::

    ================================  ==============================================================
    configuration against the table   decision
    ================================  ==============================================================
    a new column                      added; null in the rows before
    a column less                     kept; null in the rows from now on
    a wider type                      *widened*, when accepted: all files of the table are rewritten
    a narrower type                   kept wide: values are converted, if the types differ by width only
    another type                      refused: no value of one is a value of the other
    ================================  ==============================================================

A type is wider if it is further to the right: int32, int64, double, string.  Conversion never loses a value: an int64
without an exact double ends it with an error, and nothing has changed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

WIDTH: Final = {pa.int32(): 0, pa.int64(): 1, pa.float64(): 2, pa.string(): 3}


class ColumnChange(NamedTuple):
    """A column whose type differs."""

    name: str
    stored: pa.DataType
    configured: pa.DataType

    def __str__(self) -> str:
        return f"column {self.name!r} is {self.stored} in the table and {self.configured} in the configuration"


class SchemaChange(NamedTuple):
    """``schema``: the columns of the table afterwards."""

    schema: pa.Schema
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    widened: tuple[ColumnChange, ...]
    refused: tuple[ColumnChange, ...]


def compare(stored: pa.Schema, configured: pa.Schema) -> SchemaChange:
    """What becomes of each column that is stored, and which ones are added."""
    widened: list[ColumnChange] = []
    refused: list[ColumnChange] = []
    fields = []
    for field in stored:
        kind = field.type
        if field.name in configured.names and configured.field(field.name).type != kind:
            change = ColumnChange(field.name, kind, configured.field(field.name).type)
            if _wider(change.configured, kind):
                widened.append(change)
                kind = change.configured
            elif not _wider(kind, change.configured):
                refused.append(change)
        fields.append(pa.field(field.name, kind))
    added = tuple(name for name in configured.names if name not in stored.names)
    fields += [pa.field(name, configured.field(name).type) for name in added]
    dropped = tuple(name for name in stored.names if name not in configured.names)
    return SchemaChange(pa.schema(fields), added, dropped, tuple(widened), tuple(refused))


def _wider(kind: pa.DataType, other: pa.DataType) -> bool:
    return kind in WIDTH and other in WIDTH and WIDTH[kind] > WIDTH[other]


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns; null where they have none.

    Raises:
        pa.ArrowInvalid: a value cannot be converted without loss.
    """
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
