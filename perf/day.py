"""Do files, memory and the time of a micro-batch stay flat over a day with a million sessions?

    python perf/day.py [--smoke] [--format delta] [--batches N] [--sessions N]

The micro-batches of one day, every ten seconds, in fast motion: the work of the pipeline's tasks and of its driver
without Spark between them, on access lines whose times go on by ten seconds for each micro-batch.  Compaction runs
after every 30th, as it does every five minutes.  Each client has one session of three lines.  Prints after every
twelfth of the day: the median and the longest micro-batch, the files in the output, the memory of this process.  At
the end all tables are compared with what was sent.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from _bench import headline, row

from appliance.spark.pipeline.batch_record import BatchRecord, store_plan
from appliance.spark.pipeline.compaction import compact, compactable
from appliance.spark.pipeline.output_files import OutputFiles
from appliance.spark.pipeline.pipeline_sink import Committer
from appliance.spark.pipeline.resume import TopicLog
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import Beginning, begin_from
from appliance.spark.pipeline.tables import claim, open_store
from appliance.spark.pipeline.task_work import Job
from appliance.spark.pipeline.times import MICROS

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
STEP = timedelta(seconds=10)
COMPACT_EVERY = 30
LINES_OF_A_SESSION = 3
AGGREGATES = [
    {"name": "rate", "kind": "count", "by": ["status"], "window_ms": "1m"},
    {"name": "talkers", "kind": "top", "by": ["client"], "window_ms": "1h", "keep": 1000},
    {"name": "visits", "kind": "sessions", "by": ["client"], "gap_ms": "10m"},
    {"name": "visitors", "kind": "distinct", "of": "client", "window_ms": "1h"},
    {"name": "sizes", "kind": "percentiles", "of": "bytes", "window_ms": "5m"},
]


def made(base: Path, kind: str) -> Settings:
    source = [{"topics": ["web"], "parsers": ["access"]}]
    output = {"path": "out", "format": kind, "partition_by": ["topic", "date"], "sort_by": ["time"]}
    return parse({"pipeline": {"name": "day"}, "source": source, "output": output, "aggregate": AGGREGATES}, base)


def lines(batch: int, sessions: int) -> Iterator[bytes]:
    """Three micro-batches of each client: its own, and the 6th and 12th after it."""
    when = f"{BEGIN + batch * STEP:%d/%b/%Y:%H:%M:%S} +0000"
    for first in (batch, batch - 6, batch - 12):
        for number in range(first * sessions, (first + 1) * sessions) if first >= 0 else ():
            client = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            yield f'{client} - - [{when}] "GET /{number % 50} HTTP/1.1" 200 {number % 9973} "-" "day"'.encode()


def records(values: Sequence[bytes], batch: int, offset: int) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["web"] * count, pa.string()),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(offset, offset + count), pa.int64()),
        "timestamp": pa.array([BEGIN + batch * STEP] * count, MICROS),
    }
    return pa.record_batch(columns)


def memory_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Day:
    def __init__(self, settings: Settings, beginning: Beginning, batches: int, sessions: int) -> None:
        self.settings = settings
        self.beginning = beginning
        self.batches = batches
        self.sessions = sessions
        self.sent = 0
        self.medians: list[float] = []

    def run(self) -> None:
        seconds: list[float] = []
        for batch in range(self.batches):
            values = list(lines(batch, self.sessions))
            begun = time.perf_counter()
            self.commit(batch, values)
            seconds.append(time.perf_counter() - begun)
            self.sent += len(values)
            if batch % COMPACT_EVERY == COMPACT_EVERY - 1:
                compact(compactable(self.settings.output), self.settings.output, vacuum=batch % 360 == 359)
            if len(seconds) == max(1, self.batches // 12):
                self.report(batch, seconds)
                seconds = []

    def commit(self, batch: int, values: Sequence[bytes]) -> None:
        store_plan(OutputFiles(self.settings.output), BatchRecord(batch, self.beginning.run))
        work = Job(self.settings, self.beginning, batch, 0).run(iter([records(values, batch, self.sent)]))
        Committer(self.settings, self.beginning).commit([work], batch)

    def report(self, batch: int, seconds: Sequence[float]) -> None:
        root = Path(self.settings.output.path)
        self.medians.append(statistics.median(seconds) * 1000)
        row(
            f"{BEGIN + batch * STEP:%H:%M}",
            batch_ms=self.medians[-1],
            longest_ms=max(seconds) * 1000,
            event_files=len(compactable(self.settings.output).event_files()),
            files=sum(1 for path in root.rglob("*.parquet")),
            memory_mib=memory_mib(),
            sessions=(batch + 1) * self.sessions,
        )

    def check(self) -> None:
        store = open_store(self.settings)
        counts = {each["name"]: store.read(str(each["name"])) for each in AGGREGATES}
        for name in ("rate", "visits", "visitors", "sizes"):
            table = counts[name]
            assert table is not None and sum(table.column("count").to_pylist()) == self.sent, name
        visits = counts["visits"]
        assert visits is not None and len(visits) == self.batches * self.sessions, "each client has one session"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="ten minutes of the day")
    parser.add_argument("--format", choices=["parquet", "delta"], default="parquet")
    parser.add_argument("--batches", type=int, default=8640)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    given = parser.parse_args()
    batches, sessions = (60, 6000) if given.smoke else (given.batches, given.sessions)
    headline("day", batches=batches, sessions=sessions, format=given.format)
    with tempfile.TemporaryDirectory() as directory:
        settings = made(Path(directory), given.format)
        beginning = begin_from(
            settings, claim(settings), {topic: TopicLog("", {0: (0, 0)}) for topic in settings.topics}
        )
        day = Day(settings, beginning, batches, max(1, sessions // batches))
        day.run()
        day.check()
        row("in all", lines=day.sent, first_ms=day.medians[0], last_ms=day.medians[-1])


if __name__ == "__main__":
    main()
