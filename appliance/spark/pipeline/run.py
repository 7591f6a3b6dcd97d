"""Runs a pipeline as one streaming query, from the command line, ``spark-submit``, or a notebook::

    run(load(Path("pipeline.toml")), once=True)

``once`` reads the present data and ends (Spark's AvailableNow, in micro-batches of ``input.trigger_bytes``).  Without
it the pipeline runs until a signal.  It continues where its tables end (``resume``), whatever became of Spark's
checkpoint.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.query import StreamingQuery

from ... import errors
from ...errors import ApplianceError, DiskFull
from ...log_access.ranges import Positions
from .. import parallelism
from ..spark_session import LASTING_JVM, LIGHT_JVM, build_session
from .compaction import Compactor
from .iceberg_table import IcebergKeeper
from .letters import LetterKeeper
from .pipeline_sink import FORMAT, PipelineSink
from .pipeline_source import SOURCE, PipelineSource
from .pipeline_status import Summary, publish, summary
from .settings import Settings
from .startup import Beginning, begin, output_lock
from .state_directory import LINES, READ, Progress, State, progress_of
from .troubles import Troubles
from .view_keeper import ViewKeeper
from .view_states import views_of
from .writable_places import refuse_unwritable

POLL_S: Final = 0.2  # Spark takes fractions, whatever it declares
TELL_S: Final = 1.0
"""How often it looks whether more, or less, is left undone than was told."""
CAUSE_CHARACTERS_MAX: Final = 300
_NO_ROOM: Final = re.compile(r"No space left on device(?:: '([^']+)')?")
_CAUSE: Final = re.compile(r"(Caused by: )?[\w.$]+(Error|Exception|Fault|Interrupt)\b.*: ")
OnProgress = Callable[[Progress], None]


class Result(NamedTuple):
    """The result of this run; ``summary`` covers all runs.

    ``remark``: why offsets were not published, views not refreshed, or dead letters not sent; or "".
    """

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
    begin_with: Callable[[Settings], Beginning] = begin,
    on_progress: OnProgress = lambda _: None,
    session: SparkSession | None = None,
) -> Result:
    """Run a pipeline to its end.  ``session``: the Spark session to use, which stays open.

    Raises:
        BadValue, UnknownKey: invalid settings, or something that ``begin_with`` refuses, or that this user may not
            write.
        AlreadyRunning: the same pipeline runs already.
        ApplianceError: the query failed; its error is in the message.  The pipeline can be run again.
    """
    refuse_unwritable(settings)
    state = State(settings.state_dir)
    with state.lock, output_lock(settings):
        views_of(settings)  # a wrong definition is refused before anything begins
        beginning = begin_with(settings)
        state.begin()
        Troubles(settings).begin()
        own = session is None
        spark = session or build_session(
            f"pipeline {settings.pipeline.name}",
            settings.spark,
            scratch=state.path / "spark",
            jvm=LIGHT_JVM if once else LASTING_JVM,
        )
        try:
            keeper, letters = ViewKeeper(spark, settings, at_end=once), LetterKeeper(settings)
            iceberg = IcebergKeeper(settings, beginning.identity)
            compactor = Compactor(settings.output, at_end=once, waiting=letters.waiting)
            with iceberg, compactor, keeper, letters:  # left in the other order: after the last compaction
                running = _Run(settings, state, on_progress, beginning.committed.batch)
                result = running.follow(start(spark, settings, state, beginning, once))
            running.tell()
            remarks = [running.remark, keeper.remark, letters.remark, iceberg.remark]
            return result._replace(remark="; ".join(filter(None, remarks)))
        finally:
            if own:
                spark.stop()


def start(spark: SparkSession, settings: Settings, state: State, beginning: Beginning, once: bool) -> StreamingQuery:
    options = {"settings": settings.encode(), "beginning": beginning.encode()}
    for data_source in (PipelineSource, PipelineSink):
        spark.dataSource.register(data_source)
    works = spark.readStream.format(SOURCE).options(**options, cores=str(parallelism(spark))).load()
    writer = (
        works.observe(READ, sum_of("records").alias(LINES))
        .writeStream.format(FORMAT)
        .queryName(settings.pipeline.name)
        .options(**options)
        .option("checkpointLocation", str(state.checkpoint))
    )
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.input.trigger_ms} milliseconds")
    return writer.start()


class _Run:
    """Follows a query to its end, or until a signal comes."""

    def __init__(self, settings: Settings, state: State, on_progress: OnProgress, committed: int) -> None:
        """``committed``: the number of the last micro-batch before this run."""
        self._settings = settings
        self._state = state
        self._on_progress = on_progress
        self._seen = -1
        self._committed = committed
        self._batches = self._rows = self._bytes = 0
        self.remark = ""
        """Why offsets are not published, or ""."""
        self._ends: Positions = {}
        self._troubles = Troubles(settings)
        self._told = ""
        self._tell_at_s = 0.0
        self._stop = False

    def follow(self, query: StreamingQuery) -> Result:
        begun = datetime.now(UTC)
        try:
            with self._signals():
                while not self._stop and not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    self._look(query)
        except StreamingQueryException as error:
            raise failure(error, self._state) from None
        finally:
            query.stop()
        self._look(query)
        seconds = (datetime.now(UTC) - begun).total_seconds()
        return Result(self._batches, self._rows, self._bytes, seconds, self.remark, summary(self._settings))

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
        # Each report takes 60 calls of the JVM, and Spark keeps a hundred.
        last = query.lastProgress
        for progress in [] if last is None else [last] if last.batchId <= self._seen + 1 else query.recentProgress:
            fields: dict[str, Any] = json.loads(progress.json)
            if fields["batchId"] > self._seen and fields["sources"][0]["endOffset"]:
                if not fields["numInputRows"] and "addBatch" not in fields["durationMs"]:
                    continue  # there was nothing to do
                self._seen = fields["batchId"]
                self._take(*progress_of(fields))
        if time.monotonic() >= self._tell_at_s:
            self.tell()

    def _take(self, progress: Progress, ends: Positions) -> None:
        self._ends = ends
        if progress.batch != self._committed:  # Spark's first one in every run, also where nothing is new
            self._batches += 1
            self._rows += progress.rows
            self._bytes += progress.bytes
            self._state.add(progress)
            self._on_progress(progress)
        self._publish()

    def tell(self) -> None:
        """Publish what is left undone where that has changed since the offsets were published."""
        if self._troubles.as_note() != self._told:
            self._publish()

    def _publish(self) -> None:
        note = self._troubles.as_note()
        self.remark = publish(self._settings, self._ends)
        self._told = self._told if self.remark else note
        self._tell_at_s = time.monotonic() + TELL_S


def failure(error: StreamingQueryException, state: State) -> ApplianceError:
    """A query's error as one sentence: that of the innermost error of the appliance, else its cause.

    Spark's own report, with its plan and stack traces, goes to a file of the state directory.
    """
    text = str(error)
    state.failure.write_text(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("appliance.errors."):
            kind, _, message = line.removeprefix("appliance.errors.").partition(": ")
            return raised_class(kind)(f"the query failed: {message}")
    for line in reversed(lines):
        if no_room := _NO_ROOM.search(line):
            return DiskFull(
                f"the query failed: there is no room left for {no_room[1] or 'its files'}: make room, run again"
            )
    causes = [line for line in lines if _CAUSE.match(line)]
    said = causes[-1] if causes else lines[0] if lines else "no reason was given"
    return ApplianceError(f"the query failed: {said[:CAUSE_CHARACTERS_MAX]} (the whole report is in {state.failure})")


def raised_class(name: str) -> type[ApplianceError]:
    """The class of errors.py with this name: the exit status depends on it."""
    attribute = getattr(errors, name, ApplianceError)
    return attribute if isinstance(attribute, type) and issubclass(attribute, ApplianceError) else ApplianceError
