"""Writes the files of tables: splits rows by their partition, names directories, and makes files durable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...durable_files import sync_directory

EVENTS: Final = "events"
Partition = Mapping[str, str | None]
NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class NewFile:
    """A file of events that is not committed yet; ``staged`` and ``final`` are relative to the output's path."""

    staged: str
    final: str
    partition: tuple[tuple[str, str | None], ...]
    rows: int
    bytes: int
    statistics: str = ""
    """Of its columns, as Delta has them; "" for Parquet, whose files have their own."""


@dataclass(frozen=True)
class Part:
    """A file of totals (see ``total_parts``); ``path``: relative to the table.

    ``first``: the lowest ``start`` of its rows, ``last``: the highest ``end``, in microseconds; -1 without rows.
    """

    date: str
    path: str
    rows: int
    first: int
    last: int


@dataclass(frozen=True)
class Change:
    """New content of parts of a table of totals with this schema.

    ``contents``: rows of one date, and the part that they replace, or None for a new part.
    """

    contents: tuple[tuple[Part | None, pa.Table], ...]
    schema: pa.Schema


def split(table: pa.Table, by: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """A table for each combination of values, without these columns."""
    rest = table.drop_columns(list(by))
    codes = np.zeros(len(table), np.int64)
    encoded = [table.column(name).combine_chunks().dictionary_encode(null_encoding="encode") for name in by]
    for each in encoded:
        codes = codes * max(1, len(each.dictionary)) + each.indices.to_numpy()
    order = None if not len(codes) or (codes == codes[0]).all() else np.argsort(codes, kind="stable")
    if order is not None:
        codes, rest = codes[order], rest.take(pa.array(order))
    bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)] if len(codes) else []
    for start, stop in pairwise(bounds):
        row = int(order[start]) if order is not None else start
        yield {name: table.column(name)[row].as_py() for name in by}, rest.slice(start, stop - start)


def write_file(path: Path, table: pa.Table, compression: str) -> None:
    """Write a table to a file, durably.  Replaces an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        pq.write_table(table, file, compression=compression)
        file.flush()
        os.fsync(file.fileno())


def directory(partition: Mapping[str, str | None]) -> str:
    """``topic=web/date=2026-11-20``, in Hive's form."""
    return "/".join(f"{name}={NULL if value is None else quote(value, safe='')}" for name, value in partition.items())


def sync_directories(directories: set[Path]) -> None:
    for each in directories:
        sync_directory(each)
