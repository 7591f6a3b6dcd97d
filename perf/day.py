"""Do files, memory and the time of a micro-batch stay flat over a day with a million clients?

    python perf/day.py [--smoke] [--batches N] [--clients N]

The micro-batches of one day, every ten seconds, in fast motion: the work of the pipeline's tasks and of its driver
without Spark between them, on access lines whose times go on by ten seconds for each micro-batch.  Compaction runs
after every 30th, as it does every five minutes.  Each client has three lines.  Prints after every
twelfth of the day: the median and the longest micro-batch, the files in the output, the memory of this process.  At
the end the table is compared with what was sent.
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

from appliance.spark.pipeline.batch_record import BatchRecord
from appliance.spark.pipeline.compaction import DeltaEvents, compact
from appliance.spark.pipeline.event_questions import questions
from appliance.spark.pipeline.pipeline_sink import commit
from appliance.spark.pipeline.resume import TopicLog
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.startup import Beginning, begin_from
from appliance.spark.pipeline.tables import claim
from appliance.spark.pipeline.task_work import Job
from appliance.spark.pipeline.times import MICROS

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
STEP = timedelta(seconds=10)
COMPACT_EVERY = 30


def made(base: Path) -> Settings:
    source = [{"topics": ["web"], "parsers": ["access"]}]
    output = {"path": "out", "partition_by": ["topic", "date"], "sort_by": ["time"]}
    return parse({"pipeline": {"name": "day"}, "source": source, "output": output}, base)


def lines(batch: int, clients: int) -> Iterator[bytes]:
    """Three micro-batches of each client: its own, and the 6th and 12th after it."""
    when = f"{BEGIN + batch * STEP:%d/%b/%Y:%H:%M:%S} +0000"
    for first in (batch, batch - 6, batch - 12):
        for number in range(first * clients, (first + 1) * clients) if first >= 0 else ():
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
    def __init__(self, settings: Settings, beginning: Beginning, batches: int, clients: int) -> None:
        self.settings = settings
        self.beginning = beginning
        self.batches = batches
        self.clients = clients
        self.sent = 0
        self.medians: list[float] = []

    def run(self) -> None:
        seconds: list[float] = []
        for batch in range(self.batches):
            values = list(lines(batch, self.clients))
            begun = time.perf_counter()
            self.commit(batch, values)
            seconds.append(time.perf_counter() - begun)
            self.sent += len(values)
            if batch % COMPACT_EVERY == COMPACT_EVERY - 1:
                compact(DeltaEvents(self.settings.output), self.settings.output, vacuum=batch % 360 == 359)
            if len(seconds) == max(1, self.batches // 12):
                self.report(batch, seconds)
                seconds = []

    def commit(self, batch: int, values: Sequence[bytes]) -> None:
        record = BatchRecord(batch, self.beginning.run)
        work = Job(self.settings, self.beginning, batch, 0).run(iter([records(values, batch, self.sent)]), record)
        commit(self.settings, self.beginning, [work])

    def report(self, batch: int, seconds: Sequence[float]) -> None:
        root = Path(self.settings.output.path)
        self.medians.append(statistics.median(seconds) * 1000)
        row(
            f"{BEGIN + batch * STEP:%H:%M}",
            batch_ms=self.medians[-1],
            longest_ms=max(seconds) * 1000,
            event_files=len(DeltaEvents(self.settings.output).event_files()),
            files=sum(1 for path in root.rglob("*.parquet")),
            memory_mib=memory_mib(),
            clients=(batch + 1) * self.clients,
        )

    def check(self) -> None:
        asked = questions(self.settings)
        assert asked is not None
        (counted,) = asked.rows("select count(*) as lines, count(distinct client) as clients from events")
        assert counted == {"lines": self.sent, "clients": self.batches * self.clients}, counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="ten minutes of the day")
    parser.add_argument("--batches", type=int, default=8640)
    parser.add_argument("--clients", type=int, default=1_000_000)
    options = parser.parse_args()
    batches, clients = (60, 6000) if options.smoke else (options.batches, options.clients)
    headline("day", batches=batches, clients=clients)
    with tempfile.TemporaryDirectory() as directory:
        settings = made(Path(directory))
        beginning = begin_from(
            settings, claim(settings), {topic: TopicLog("", {0: (0, 0)}) for topic in settings.topics}
        )
        day = Day(settings, beginning, batches, max(1, clients // batches))
        day.run()
        day.check()
        row("in all", lines=day.sent, first_ms=day.medians[0], last_ms=day.medians[-1])


if __name__ == "__main__":
    main()
