"""What tests of parsers share: parse lines, look at one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from appliance.spark.pipeline.columns import Parsed
from appliance.spark.pipeline.parsers import build
from appliance.spark.pipeline.settings import Parser, Source

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SOURCE = Source(topics=("t",), parsers=("plain",))


def parse(name: str, *lines: str | None, own: Parser | None = None) -> Parsed:
    return build(name, SOURCE, {} if own is None else {name: own}).parse(pa.array(lines, pa.string()), NOW)


def only(name: str, line: str, own: Parser | None = None) -> dict[str, Any]:
    """What is known of one line."""
    found = parse(name, line, own=own)
    assert found.matched.to_pylist() == [True], found.reasons
    values = {column: array[0].as_py() for column, array in found.columns.items()}
    return {column: value for column, value in values.items() if value is not None}


def nulled(found: Parsed) -> dict[str, list[int]]:
    """Which lines have a column that is null because its field does not fit, by reason."""
    return {reason: wrong.nonzero()[0].tolist() for reason, wrong in found.nulled.items() if wrong.any()}
