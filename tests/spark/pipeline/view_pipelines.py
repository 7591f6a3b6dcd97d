"""What tests of views share: events as a pipeline's own tasks and commits write them, without topics, and views."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from appliance.spark.pipeline.event_versions import EventVersions
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.view_definitions import View
from appliance.spark.pipeline.view_refresh import Refreshed, Refresher
from appliance.spark.pipeline.view_states import state_of, view_of
from appliance.spark.pipeline.view_table import ViewTable

from ...support.pipelines import rows as rows_of_events
from .test_pipeline_sink import micro_batch, records

DAY = datetime(2026, 11, 20, tzinfo=UTC)
HOUR_US = 3_600_000_000
COUNTS = (
    "-- window: 1h\n-- keys: host\nselect start, host, count(*) as n from events where rejected is null group by all"
)
MERGED = (
    "-- window: 1h\n-- keys: host\n-- parts: counted, summed\nwith counted as "
    "(select start, host, count(*) as m from events where rejected is null group by all), "
    "summed as (select start, host, sum(m) as m from counted group by all) select start, host, m as n from summed"
)
"""The same of parts."""


def line(minute: int, host: str = "a", level: str = "info") -> bytes:
    """Of so many minutes after :data:`DAY`."""
    return f"time={(DAY + timedelta(minutes=minute)).isoformat()} host={host} level={level} message=m".encode()


class Pipeline:
    """Events as a pipeline writes them, and its views."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark = spark
        self.base = base
        (base / "views").mkdir()
        self.settings: Settings = parse(
            {
                "pipeline": {"name": "p"},
                "source": [{"topics": ["t"], "parsers": ["logfmt"]}],
                "output": {"path": "out"},
                "views": {"path": "views"},
            },
            base,
        )
        self.out = Path(self.settings.output.path)
        self._batches = 0
        self._offset = 0

    def define(self, name: str, text: str) -> View:
        (self.base / "views" / f"{name}.sql").write_text(text)
        return view_of(self.settings, name)

    def write(self, *lines: bytes) -> None:
        """One micro-batch, with a task for each half of the lines."""
        half = len(lines) // 2
        parts = [lines[:half], lines[half:]] if half else [lines]
        tasks = []
        for part in parts:
            tasks.append([records(part, "t", self._offset, DAY + timedelta(hours=30))])
            self._offset += len(part)
        micro_batch(self.settings, self._batches, tasks)
        self._batches += 1

    def refresh(self, view: View) -> Refreshed:
        return Refresher(self.spark, self.settings).refresh(view)

    def stored(self, view: View) -> list[dict[str, Any]]:
        table = DeltaTable(ViewTable(self.settings.output, view.name).uri).to_pyarrow_table()
        assert [str(start.date()) for start in table.column("start").to_pylist()] == table.column("date").to_pylist()
        return sorted(table.drop_columns(["date"]).to_pylist(), key=repr)

    def state(self, view: View) -> str:
        return state_of(self.settings, view, EventVersions(self.settings.output)).state

    def counted(self) -> list[dict[str, Any]]:
        """What the view :data:`COUNTS` must have, of the rows that events have."""
        found: Counter[tuple[datetime, str]] = Counter()
        for row in rows_of_events(self.settings).to_pylist():
            if row["rejected"] is None:
                found[row["time"].replace(minute=0, second=0), row["host"]] += 1
        rows: list[dict[str, Any]] = [{"start": start, "host": host, "n": n} for (start, host), n in found.items()]
        return sorted(rows, key=repr)
