"""Converts the statistics in a Parquet file's footer to those of an entry in Delta's log (its protocol, "Per-file
Statistics"), by which readers leave out files.

Readers take these for bounds, so a text is cut to :data:`TEXT_CHARACTERS_MAX` characters, and a highest one that was
cut is followed by the last character of Unicode.  The first :data:`COLUMNS_MAX` columns have bounds, as Delta's own
writer does it.  Columns of bytes, lists and structures, and floats with NaN, have none.
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from typing import Any, Final

import pyarrow.parquet as pq

COLUMNS_MAX: Final = 32
TEXT_CHARACTERS_MAX: Final = 32
LAST_CHARACTER: Final = "\U0010ffff"


def file_statistics(footer: pq.FileMetaData) -> str:
    """As JSON: the number of rows, and lowest and highest value and number of nulls by column."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(min(COLUMNS_MAX, footer.num_columns)):
        groups = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        name = footer.schema.column(index).path
        statistics = [group.statistics for group in groups]
        if "." in name or any(chunk is None or not chunk.has_null_count for chunk in statistics):
            continue
        nulls[name] = sum(chunk.null_count for chunk in statistics)
        bounded = [chunk for chunk in statistics if chunk.num_values]
        if bounded and all(chunk.has_min_max for chunk in bounded):
            bounds = _bounds([(chunk.min, chunk.max) for chunk in bounded])
            if bounds is not None:
                lowest[name], highest[name] = bounds
    rows = {"numRecords": footer.num_rows}
    return json.dumps(rows | {"minValues": lowest, "maxValues": highest, "nullCount": nulls}, ensure_ascii=False)


def _bounds(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    low, high = min(low for low, _ in pairs), max(high for _, high in pairs)
    match low:
        case bool() | bytes():
            return None
        case str():
            return low[:TEXT_CHARACTERS_MAX], high if len(high) <= TEXT_CHARACTERS_MAX else (
                high[:TEXT_CHARACTERS_MAX] + LAST_CHARACTER
            )
        case datetime():
            return tuple(f"{bound:%Y-%m-%dT%H:%M:%S.%f}Z" for bound in (low, high))  # type: ignore[return-value]
        case date():
            return low.isoformat(), high.isoformat()
        case float():
            return (low, high) if math.isfinite(low) and math.isfinite(high) else None
    return low, high
