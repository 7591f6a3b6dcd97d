"""What tests of the pipeline share: lines to read, configurations, and a reader of its output that is not Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
from deltalake import DeltaTable

from appliance.records.encode import encode_values
from appliance.spark.pipeline.events import REJECTED, parsed
from appliance.spark.pipeline.settings import Settings, parse

from .topics import Topics

STAMP_MS = 1_795_219_200_000  # 2026-11-21 00:00 UTC


def access(number: int, status: int = 200) -> bytes:
    """An access line like no other; a new minute every 100 lines, 7 clients."""
    minute, second = divmod(number // 100, 60), number % 60
    when = f"20/Nov/2026:{minute[0] % 24:02d}:{minute[1]:02d}:{second:02d} +0000"
    return f'10.0.0.{number % 7} - - [{when}] "GET /{number} HTTP/1.1" {status} 512 "-" "test"'.encode()


def fill(topics: Topics, topic: str, values: Sequence[bytes], partition: int = 0, each: int = 200) -> None:
    """Batches of ``each``, a second of time between them."""
    starts = range(0, len(values), each)
    batches = [encode_values(values[at : at + each], STAMP_MS + at // each * 1000) for at in starts]
    topics.write(topic, batches, partition)


def settings(base: Path, topics: Topics, topic: str, **tables: Any) -> Settings:
    """A pipeline of this topic's access lines; ``tables`` are added to the file, or stand in for its own."""
    given = {
        "pipeline": {"name": topic, "bootstrap": topics.server.native},
        "source": [{"topics": [topic], "parsers": ["access"]}],
        "output": {"path": "out"},
    }
    return parse(given | tables, base)


def events(made: Settings) -> pa.Table:
    """The rows of the lines that a parser took."""
    return parsed(rows(made))


def rejections(made: Settings) -> list[dict[str, Any]]:
    """The rows of the other lines, in the order of their offsets."""
    others = rows(made).filter(pa.compute.field(REJECTED).is_valid())
    return others.sort_by([(name, "ascending") for name in ("topic", "partition", "offset")]).to_pylist()


def rows(made: Settings) -> pa.Table:
    """Of the table, as a reader that is not Spark sees them."""
    return DeltaTable(f"{made.output.path}/events").to_pyarrow_table()


def places(table: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
