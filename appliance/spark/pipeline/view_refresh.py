"""Refreshes views: computes the windows that have changed and replaces their rows (``view_states`` says which).

Spark runs the query; it writes the answer to a directory beside the tables, from where it is streamed into the table.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ...errors import ApplianceError, BadValue, DiskFull
from ..spark_session import LIGHT_JVM, build_session
from .event_versions import EventVersions, RowFile
from .linked_files import link_files
from .pipeline_status import publish_recorded
from .settings import Settings
from .table_files import EVENTS
from .times import MICROS
from .troubles import Troubles
from .view_alerts import ViewAlerts
from .view_definitions import Parts, View
from .view_messages import ViewMessages
from .view_rows import check_rows
from .view_states import ViewState, state_of_table, views_lock, views_of
from .view_table import PARTS, Basis, Ranges, ViewTable, remove_unreadable

STAGING: Final = "_views"
ANSI: Final = "spark.sql.ansi.enabled"
RANGES_MAX: Final = 100
WINDOWS_MAX: Final = 10_000
"""So many minutes, or windows, are told apart; more are taken together to longer pieces of time."""
MINUTE_US: Final = 60_000_000
SPARK: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # else it takes a job to list 33 files
}
SHUFFLED_BYTES: Final = 64 << 20
"""So many bytes of files are put into groups by one task."""
CAUSE_CHARACTERS_MAX: Final = 500
CAUSES_MAX: Final = 20
NO_ROOM: Final = "No space left on device"


class Refreshed(NamedTuple):
    """What a refresh did.

    ``ranges``: the times whose rows were replaced, None for all; ``rows``: those of them; ``remark``: why nobody is
    told of an alert, or "".
    """

    name: str
    state: str
    version: int
    ranges: Ranges | None
    rows: int
    seconds: float
    remark: str


class Refresher:
    """Refreshes views, in a Spark session.  Whoever makes one holds :func:`views_lock`."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark.newSession()
        for key, value in SPARK.items():
            self._spark.conf.set(key, value)
        self._settings = settings
        self._troubles = Troubles(settings)
        self._events: EventVersions | None = None
        self._is_local = str(self._spark.sparkContext.master).startswith("local")
        if self._is_local:
            self._spark.conf.set("spark.sql.adaptive.enabled", "false")
        self._pieces: dict[tuple[int, str | None, int], list[int] | None] = {}
        self._staging = Path(settings.output.path) / STAGING
        shutil.rmtree(self._staging, ignore_errors=True)  # what one that was killed has left

    def refresh(self, view: View) -> Refreshed:
        """Make a view current.

        Raises:
            BadValue: its query is wrong, or there are no events yet.
            ApplianceError: it is current, and its rows cannot be sent to its topic.
        """
        return self._noted(view, since_us=None, whole=False)

    def rebuild(self, view: View, since_us: int | None = None) -> Refreshed:
        """Compute all windows again, or those from a time on; the rows before stay, if it is known what they come from.

        Raises:
            BadValue: as :meth:`refresh`; or the answer has other columns now, and earlier rows are to stay.
        """
        return self._noted(view, since_us, whole=True)

    def _noted(self, view: View, since_us: int | None, whole: bool) -> Refreshed:
        try:
            if whole and since_us is None:
                remove_unreadable(self._settings.output, view.name)
            refreshed = self._refresh(view, since_us, whole)
        except ApplianceError as error:
            self._troubles.note_view(view.name, str(error))
            raise
        self._troubles.note_view(view.name, refreshed.remark)
        return refreshed

    def _refresh(self, view: View, since_us: int | None, whole: bool) -> Refreshed:
        begun = time.monotonic()
        if self._events is None:
            self._events = EventVersions(self._settings.output)
        events = self._events
        events.update()
        table = ViewTable(self._settings.output, view.name)
        state = state_of_table(table, view, events)
        ranges = self._ranges(view, state, events, since_us, whole)
        entry = events.entry(events.latest)
        assert entry is not None, "the log has the latest version"
        basis = Basis(events.latest, entry, view.meaning)
        rows = 0
        if ranges != [] or not table.exists:
            if view.parts is None:
                answer = partial(self._of_events, view, view.sql, events)
            else:
                parts = self._keep_parts(view, view.parts, events, basis, since_us, whole)
                answer = partial(self._of_parts, view.parts, parts)
            rows = self._replace(view, table, answer, ranges, basis, keeps=since_us is not None)
        elif state.state != "current":
            table.replace(pa.RecordBatchReader.from_batches(pa.schema([]), []), [], basis)
        try:
            ViewMessages(self._settings, view).send()  # before tidying, which may remove files of this version
            ViewTable(self._settings.output, view.name).tidy()
        finally:
            remark = self._tell(view)
        return Refreshed(view.name, state.state, events.latest, ranges, rows, time.monotonic() - begun, remark)

    def _tell(self, view: View) -> str:
        """A webhook that is away keeps neither other views from being refreshed nor a person from being forgotten."""
        try:
            ViewAlerts(self._settings, view).tell(datetime.now(UTC))
        except ApplianceError as error:
            return str(error)
        return ""

    def _ranges(
        self, view: View, state: ViewState, events: EventVersions, since_us: int | None, whole: bool
    ) -> Ranges | None:
        """The times whose rows are to be computed; None for all."""
        has_basis = state.state in ("current", "behind") and state.basis is not None
        if whole and since_us is not None:
            since = [(since_us // view.window_us * view.window_us, events.end_us(view.window_us))]
            if state.state in ("new", "unknown") or state.basis is None:
                return None  # earlier rows would count as current, whatever they are
            changed = self._changed(view, events, state.basis.version) if has_basis else []
            return None if changed is None else compressed([*changed, *since])
        if whole or not has_basis or state.basis is None:
            return None
        return self._changed(view, events, state.basis.version)

    def _changed(self, view: View, events: EventVersions, since: int) -> Ranges | None:
        """The windows with rows that have come or gone; None if that is not known."""
        files = events.changed(since)
        if not files:
            return None if files is None else []
        window_us = view.window_us
        unit_us = window_us if window_us % MINUTE_US else MINUTE_US
        while (touched := self._touched(events, since, files, unit_us)) is None:
            unit_us *= 100
        bounds = ((at * unit_us, (at + 1) * unit_us) for at in touched)
        return compressed([(first // window_us * window_us, -(-end // window_us) * window_us) for first, end in bounds])

    def _touched(
        self, events: EventVersions, since: int, files: Sequence[RowFile], unit_us: int
    ) -> Sequence[int] | None:
        """In which pieces of time of this length these files have rows; None: in more than are told apart.

        Views are refreshed one after the other, from the same version to the same one as a rule, and it takes reading
        the times of all rows: so it is remembered.
        """
        key = since, events.entry(events.latest), unit_us
        if key not in self._pieces:
            self._pieces[key] = _pieces([file.path for file in files], unit_us)
        return self._pieces[key]

    def _rows(self, files: Sequence[RowFile], schema: pa.Schema, place: Path) -> DataFrame:
        """The rows of files, with the values of their partitions.  ``place``: that of the links to them.

        Here there are as many tasks behind them as their size asks for.  Spark's own choice of that plans each query
        again after each of its steps, which costs more than the few rows of a refresh.
        """
        if self._is_local:
            size = sum(Path(file.path).stat().st_size for file in files)
            shuffles = min(max(1, size // SHUFFLED_BYTES), self._spark.sparkContext.defaultParallelism)
            self._spark.conf.set("spark.sql.shuffle.partitions", str(shuffles))
        reader = self._spark.read.schema(from_arrow_schema(schema))
        return reader.parquet(link_files(files, place)).selectExpr(*_quoted(schema.names))

    def _of_events(self, view: View, sql: str, events: EventVersions, ranges: Ranges | None, place: Path) -> DataFrame:
        """The answer to a query about the lines of these times."""
        files = [file for file in events.files() if ranges is None or file.overlaps(ranges)]
        return self._of_files(view, sql, events, files, ranges, place)

    def _of_files(
        self,
        view: View,
        sql: str,
        events: EventVersions,
        files: Sequence[RowFile],
        ranges: Ranges | None,
        place: Path,
    ) -> DataFrame:
        rows = _of_times(self._rows(files, events.schema, place / "lines"), ranges)
        with self._unchecked():
            at = "unix_micros(time)"
            start = f"timestamp_micros({at} - pmod({at}, {view.window_us}))"  # div does not round down before 1970
            rows = rows.selectExpr("*", f"{start} as start")
        return self._answer(EVENTS, rows, sql)

    @contextmanager
    def _unchecked(self) -> Iterator[None]:
        """What is built here does not look for overflows, which takes a quarter of a query from every line of it."""
        before = str(self._spark.conf.get(ANSI))
        self._spark.conf.set(ANSI, "false")
        try:
            yield
        finally:
            self._spark.conf.set(ANSI, before)

    def _of_table(self, table: ViewTable, ranges: Ranges | None, place: Path) -> DataFrame:
        """The rows that a table of parts has of these times.

        Arrow picks them: to Spark other bounds are another query, for which Java compiles classes again.
        """
        paths, schema = table.files(ranges), table.schema
        if ranges is not None:
            with table.faults():
                paths = [_picked(paths, schema, ranges, place / "picked.parquet")]
        return self._rows([RowFile(path, (), None, None) for path in paths], schema, place / "parts")

    def _of_parts(self, parts: Parts, table: ViewTable, ranges: Ranges | None, place: Path) -> DataFrame:
        """What the parts of these times are together."""
        return self._answer(parts.merged, self._of_table(table, ranges, place), parts.rest)

    def _answer(self, name: str, rows: DataFrame, sql: str) -> DataFrame:
        """The answer to a query about one table, and no other one."""
        rows.createOrReplaceTempView(name)
        try:
            return self._spark.sql(sql)
        finally:
            self._spark.catalog.dropTempView(name)

    def _keep_parts(
        self, view: View, parts: Parts, events: EventVersions, basis: Basis, since_us: int | None, whole: bool
    ) -> ViewTable:
        """Bring the table of a view's parts to this version: with those of new files, where no rows have gone."""
        name = f"{view.name}/{PARTS}"
        table = ViewTable(self._settings.output, name)
        state = state_of_table(table, view, events)
        ranges = self._ranges(view, state, events, since_us, whole)
        if ranges != []:
            files = events.changed(state.basis.version) if state.basis is not None and state.state == "behind" else None
            come = [] if whole or files is None or any(file.removed for file in files) else files
            answer = partial(self._merged, view, parts, events, table, come)
            self._replace(view, table, answer, ranges, basis, since_us is not None, whole_rows=False)
            ViewTable(self._settings.output, name).tidy()
        return ViewTable(self._settings.output, name)

    def _merged(
        self,
        view: View,
        parts: Parts,
        events: EventVersions,
        table: ViewTable,
        come: Sequence[RowFile],
        ranges: Ranges | None,
        place: Path,
    ) -> DataFrame:
        """The parts of these times: those that are there with those of files that have come; without any, of all lines.

        Raises:
            BadValue: merged parts have other columns, so they cannot be merged again.
        """
        if come and ranges is not None:
            fresh = self._of_files(view, parts.each, events, come, None, place)
            earlier = self._of_table(table, ranges, place)
        else:
            fresh = self._of_events(view, parts.each, events, ranges, place)
            earlier = fresh.limit(0)
        if earlier.dtypes != fresh.dtypes:  # a column of events has another type now
            return self._merged(view, parts, events, table, (), ranges, place / "again")
        merged = self._answer(parts.name, earlier.union(fresh) if come else fresh, parts.merge)
        if merged.dtypes != fresh.dtypes:
            has, had = (", ".join(" ".join(column) for column in rows.dtypes) for rows in (merged, fresh))
            unlike = f"{parts.merged} gives {has}, and {parts.name} {had}"
            raise BadValue(f"view {view.name}: parts: {unlike}: both must give the same columns")
        return merged

    def _replace(
        self,
        view: View,
        table: ViewTable,
        answer: Callable[[Ranges | None, Path], DataFrame],
        ranges: Ranges | None,
        basis: Basis,
        keeps: bool,
        whole_rows: bool = True,
    ) -> int:
        """Compute rows and put them into the table.

        ``keeps``: the rows of other times must stay; ``whole_rows``: they are those of the view, not parts of them.
        """
        with self._staged(view, partial(answer, ranges), whole_rows, ranges) as computed:
            schema = _schema_of(computed.schema)
            if ranges is None or not table.exists or table.fits(schema):
                rows = int(computed.count_rows())
                table.replace(pa.RecordBatchReader.from_batches(schema, _batches(computed, schema)), ranges, basis)
                return rows
        if keeps:
            raise BadValue(
                f"view {view.name}: its query gives other columns now than the rows that are to stay have: "
                "rebuild it without --since, or give the file another name"
            )
        return self._replace(view, table, answer, None, basis, False, whole_rows)

    @contextmanager
    def _staged(
        self, view: View, answer: Callable[[Path], DataFrame], whole_rows: bool, ranges: Ranges | None = None
    ) -> Iterator[Any]:
        """The rows of an answer in files, as a data set of Arrow, with the day of each."""
        place = self._staging / f"{view.name}-{uuid.uuid4().hex}"
        try:
            try:
                rows = answer(place)
                _check_columns(view, rows, view.keys if whole_rows else ())
                dated = rows.selectExpr("date_format(start, 'yyyy-MM-dd') as date", *_quoted(rows.columns))
                dated.write.parquet(str(place / "answer"))
            except PySparkException as error:
                raise BadValue(f"view {view.name}: {_sentence(str(error))}") from None
            except Py4JJavaError as error:  # what Spark has no words of its own for
                raise _failure(view, error) from None
            computed = pa.dataset.dataset(place / "answer", format="parquet", exclude_invalid_files=False)
            if whole_rows:
                check_rows(view, computed, ranges)
            yield computed
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def refresher(settings: Settings, session: SparkSession | None = None) -> Iterator[Refresher]:
    """One that refreshes views while nobody else does.  ``session``: the Spark session to use, which stays open.

    Raises:
        AlreadyRunning: another process refreshes views of this output.
        BadValue, UnknownKey: a definition is wrong.
    """
    troubles = Troubles(settings)
    with views_lock(settings):
        troubles.keep_views({view.name for view in views_of(settings)})
        before = troubles.as_note()
        spark = session or build_session(
            f"views of {settings.pipeline.name}",
            settings.spark,
            scratch=settings.state_dir / "spark-views",
            jvm=LIGHT_JVM,
        )
        try:
            yield Refresher(spark, settings)
        finally:
            if session is None:
                spark.stop()
                if troubles.as_note() != before:
                    publish_recorded(settings)


def compressed(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """The ranges in order and without overlap; the smallest gaps are filled until there are :data:`RANGES_MAX`."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((first, end))
    gaps = sorted(range(1, len(joined)), key=lambda at: joined[at - 1][1] - joined[at][0])  # the largest first
    begins = [0, *sorted(gaps[: RANGES_MAX - 1])] if joined else []
    ends = [*begins[1:], len(joined)] if joined else []
    return [(joined[begin][0], joined[end - 1][1]) for begin, end in zip(begins, ends, strict=True)]


def _within(micros: str, bounds: tuple[int, int]) -> str:
    return f"({micros} >= {bounds[0]} and {micros} < {bounds[1]})"


def _of_times(rows: DataFrame, ranges: Ranges | None) -> DataFrame:
    return rows if ranges is None else rows.where(" or ".join(_within("unix_micros(time)", span) for span in ranges))


def _picked(paths: Sequence[str], schema: pa.Schema, ranges: Ranges, path: Path) -> str:
    """Write the rows of these files whose windows are of these times into one file; returns its path."""
    start = pc.field("start")
    wanted = reduce(
        or_, ((start >= pa.scalar(first, MICROS)) & (start < pa.scalar(end, MICROS)) for first, end in ranges)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema) as writer:
        for batch in pa.dataset.dataset(list(paths), schema, format="parquet").to_batches(filter=wanted):
            if len(batch):
                writer.write_batch(batch)
    return str(path)


def _quoted(names: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def _pieces(paths: Sequence[str], unit_us: int) -> list[int] | None:
    """In which pieces of time of this length these files have rows; None: in more than are told apart."""
    found: set[int] = set()
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["time"]):
                times = batch.column(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
                found.update(np.unique(times // unit_us).tolist())  # Arrow does not round down before 1970
                if len(found) > WINDOWS_MAX:
                    return None
    return sorted(found)


def _check_columns(view: View, answer: DataFrame, keys: Sequence[str]) -> None:
    """Raises BadValue if the answer is no table of a view, or one without these keys."""
    kinds = dict(answer.dtypes)
    lower: set[str] = set()
    for name, _ in answer.dtypes:
        if name.lower() in lower:
            raise BadValue(f"view {view.name}: its query gives two columns {name!r}: give one of them another name")
        lower.add(name.lower())
    if kinds.get("start") != "timestamp":
        raise BadValue(f"view {view.name}: its query must give the column start, as events have it: select start, …")
    if "date" in (name.lower() for name in kinds):
        raise BadValue(f"view {view.name}: date is the day of start, which its table has already: leave it out")
    if lost := [key for key in keys if key not in kinds]:
        raise BadValue(f"view {view.name}: keys: its query gives no column {lost[0]!r}: {', '.join(kinds)}")


def _failure(view: View, error: Py4JJavaError) -> ApplianceError:
    """The innermost cause; a disk that is full, and whatever else a task has met."""
    cause = error.java_exception
    for _ in range(CAUSES_MAX):
        cause = cause.getCause() or cause
    text = str(cause.toString())
    if NO_ROOM in text:
        return DiskFull(f"view {view.name}: there is no room left: {_sentence(text)}: make room; it is tried again")
    return ApplianceError(f"view {view.name}: {_sentence(text)}")


def _sentence(text: str) -> str:
    return " ".join(text.split(";\n")[0].split("\n\tat ")[0].split())[:CAUSE_CHARACTERS_MAX]


def _schema_of(schema: pa.Schema) -> pa.Schema:
    """As a Delta table gives the columns back."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _batches(computed: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in computed.to_batches():
        yield batch.cast(schema)
