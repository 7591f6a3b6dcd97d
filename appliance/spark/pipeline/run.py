"""Runs a pipeline as one streaming query, from the command line, ``spark-submit``, or a notebook::

    run(load(Path("pipeline.toml")), once=True)

``once`` reads the present data and ends (Spark's AvailableNow, in micro-batches of ``input.trigger_bytes``).  Without
it the pipeline runs until a signal.  After it was killed it continues where it stopped.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ...client.admin import Admin
from ...errors import ApplianceError, UnknownPartition
from ..spark_session import build_session
from .compaction import Compactor
from .events import Transform
from .pipeline_sink import COLUMNS, FORMAT, PipelineSink
from .pipeline_status import Summary, publish, summary
from .settings import Settings
from .state_directory import Progress, State, progress_of
from .tables import claim, open_store

POLL_S: Final = 0.2  # Spark takes fractions, whatever it declares
OnProgress = Callable[[Progress], None]


class Result(NamedTuple):
    """The result of this run; ``summary`` covers all runs.  ``remark``: why offsets were not published, or ""."""

    batches: int
    rows: int
    bytes: int
    seconds: float
    remark: str
    summary: Summary

    def as_json(self) -> dict[str, Any]:
        ran = {"batches": self.batches, "rows": self.rows, "bytes": self.bytes, "seconds": round(self.seconds, 3)}
        return ran | {"remark": self.remark} | self.summary.as_json()


def run(
    settings: Settings,
    *,
    once: bool = False,
    on_progress: OnProgress = lambda _: None,
    session: SparkSession | None = None,
) -> Result:
    """Run a pipeline to its end.  ``session``: the Spark session to use, which stays open.

    Raises:
        BadValue, UnknownKey: invalid settings, or the output of another pipeline.
        AlreadyRunning: the same pipeline runs already.
        ApplianceError: the query failed; its error is in the message.  The pipeline can be run again.
    """
    schema = Transform(settings).schema
    state = State(settings.state_dir)
    state.lock()
    try:
        identity = state.identity()
        claim(settings, identity)
        open_store(settings, identity, schema).prepare()
        ensure_topics(settings)
        own = session is None
        spark = session or build_session(
            f"pipeline {settings.pipeline.name}", settings.spark, scratch=state.path / "spark"
        )
        try:
            with Compactor(settings.output, at_end=once):
                return _Run(settings, state, on_progress).follow(start(spark, settings, state, identity, once))
        finally:
            if own:
                spark.stop()
    finally:
        state.unlock()


def ensure_topics(settings: Settings) -> None:
    """Create missing topics, if the appliance creates topics automatically."""
    wanted = [*settings.topics, settings.dead_letters.topic, *(each.topic for each in settings.aggregate)]
    with Admin(settings.pipeline.bootstrap, client_name="pipeline") as admin:
        there = {topic["name"] for topic in admin.topics()}
        for name in dict.fromkeys(filter(None, wanted)):
            if name not in there:
                try:
                    admin.ensure_topic(name)
                except UnknownPartition as error:
                    raise UnknownPartition(f"there is no topic {name!r}: `appliance topics create {name}`") from error


def start(spark: SparkSession, settings: Settings, state: State, identity: str, once: bool) -> StreamingQuery:
    spark.dataSource.register(PipelineSink)
    given = settings.input
    lines = (
        spark.readStream.format("appliance")
        .option("bootstrap.servers", settings.pipeline.bootstrap)
        .option("subscribe", ",".join(settings.topics))
        .option("startingOffsets", given.starting)
        .option("maxBytesPerTrigger", str(given.trigger_bytes))
        .option("splitPartitions", str(not any(source.multiline for source in settings.source)).lower())
        .option("failOnDataLoss", str(given.fail_on_data_loss).lower())
        .option("corruptBatch", given.corrupt_batch)
        .option("retryTimeoutMs", str(given.retry_ms))
        .load()
        .select(*COLUMNS)
    )
    writer = (
        lines.writeStream.format(FORMAT)
        .queryName(settings.pipeline.name)
        .option("settings", settings.encode())
        .option("pipeline", identity)
        .option("checkpointLocation", str(state.checkpoint))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{given.trigger_ms} milliseconds").start()


class _Run:
    """Follows a query to its end, or until a signal comes."""

    def __init__(self, settings: Settings, state: State, on_progress: OnProgress) -> None:
        self._settings = settings
        self._state = state
        self._on_progress = on_progress
        self._seen = -1
        self._batches = self._rows = self._bytes = 0
        self._remark = ""
        self._stop = False

    def follow(self, query: StreamingQuery) -> Result:
        begun = datetime.now(UTC)
        try:
            with self._signals():
                while not self._stop and not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    self._look(query)
        except StreamingQueryException as error:
            raise failure(error) from None
        finally:
            query.stop()
        self._look(query)
        self._publish()
        seconds = (datetime.now(UTC) - begun).total_seconds()
        return Result(self._batches, self._rows, self._bytes, seconds, self._remark, summary(self._settings))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end the query in order.  Does nothing outside of the main thread."""

        def record(*_: object) -> None:
            self._stop = True

        try:
            previous = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread
            yield
            return
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _look(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            found: dict[str, Any] = json.loads(progress.json)
            if found["batchId"] > self._seen and found["sources"][0]["endOffset"]:
                if not found["numInputRows"] and "addBatch" not in found["durationMs"]:
                    continue  # there was nothing to do
                self._seen = found["batchId"]
                self._take(progress_of(found))

    def _take(self, progress: Progress) -> None:
        self._batches += 1
        self._rows += progress.rows
        self._bytes += progress.bytes
        self._state.add(progress)
        self._on_progress(progress)
        self._publish()

    def _publish(self) -> None:
        if (committed := self._state.committed()) is not None:
            self._remark = publish(self._settings, committed.positions)


def failure(error: StreamingQueryException) -> ApplianceError:
    """A query's error with the message of the innermost error of the appliance, else with its first lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("appliance.errors.")]
    if named:
        kind, _, message = named[-1].removeprefix("appliance.errors.").partition(": ")
        return ApplianceError(f"the query failed: {kind}: {message}")
    return ApplianceError("the query failed:\n" + "\n".join(lines[:30]))
