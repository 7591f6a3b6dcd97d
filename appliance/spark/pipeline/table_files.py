"""Describes the files of tables, and splits rows by their partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

EVENTS: Final = "events"
Partition = Mapping[str, str | None]


@dataclass(frozen=True)
class NewFile:
    """A file of events that is not committed yet; ``path``: relative to the output's."""

    path: str
    partition: tuple[tuple[str, str | None], ...]
    rows: int
    bytes: int
    statistics: str
    """Of its columns, as Delta has them."""


def split(table: pa.Table, by: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """A table for each combination of values, without these columns."""
    rest = table.drop_columns(list(by))
    codes = np.zeros(len(table), np.int64)
    encoded = [table.column(name).combine_chunks().dictionary_encode(null_encoding="encode") for name in by]
    for column in encoded:
        codes = codes * max(1, len(column.dictionary)) + column.indices.to_numpy()
    order = None if not len(codes) or (codes == codes[0]).all() else np.argsort(codes, kind="stable")
    if order is not None:
        codes, rest = codes[order], rest.take(pa.array(order))
    bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)] if len(codes) else []
    for start, stop in pairwise(bounds):
        row = int(order[start]) if order is not None else start
        yield {name: table.column(name)[row].as_py() for name in by}, rest.slice(start, stop - start)


def file_of(path: str) -> str:
    """The file that an entry of Delta's log names, relative to the table: entries are quoted, as URLs.

    New entries are given this name, too: delta-rs quotes it.
    """
    return unquote(path)
