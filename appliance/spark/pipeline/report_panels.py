"""Chooses what the page of a pipeline shows: what is asked daily, at a glance.

Each panel is a question in SQL to the latest version of ``events``, which the page shows, too.  Its time goes from the
first to the last line, but leaves out those few that are far from the others: one line with a wrong year does not make
an hour a dot.  How many are left out is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from .audit_verdicts import Window
from .columns import COMMON, ERRORS
from .event_questions import Questions, micros, step_of, text
from .events import CALENDAR, COLUMN_ERRORS, PROVENANCE
from .line_counts import PLAIN_REASON
from .quality import UNEXPECTED
from .settings import Settings
from .state_directory import Progress
from .svg_charts import Series, Span, curves, duration, label_of, moment, number, ranking, stacks, step_for
from .times import EPOCH

STEPS_MAX: Final = 120
SERIES_MAX: Final = 7
"""Most series of a panel: those with the most lines; the others are one more."""
RANKED: Final = 10
NUMBERS_MAX: Final = 4
"""So many columns of numbers have a panel of percentiles: those with the most values."""
GAP_S: Final = 1800
"""Silence of this length ends a session."""
OWNERS: Final = ("client", "user", "host")
"""Columns whose values have sessions: the first that has any."""
FAR: Final = 1.0
"""Lines are far from the others if they are further away than the middle 90 % of all are long."""
PERCENTILES: Final = (0.5, 0.9, 0.99)
Bounds = tuple[int | None, int | None]
"""The times from which and before which lines are shown, in microseconds since 1970; None: as the lines are."""


class Panel(NamedTuple):
    """``chart``: HTML.  ``rows``: a table of numbers.  ``sql``: the question; "" where it is none to events."""

    title: str
    caption: str
    chart: str
    rows: Sequence[Mapping[str, Any]] = ()
    sql: str = ""


class Asked:
    """Asks about the lines of a span of time."""

    def __init__(
        self, asked: Questions, settings: Settings, bounds: tuple[int | None, int | None], zone: tzinfo
    ) -> None:
        self.questions = asked
        self.zone = zone
        self._lines = f"topic <> {text(settings.audit.topic)}" if settings.audit.topic else "true"
        self.span, self.outside = self._chosen(bounds)

    def _chosen(self, bounds: Bounds) -> tuple[Span | None, int]:
        at = micros("time")
        (row,) = self.questions.rows(
            f"select approx_percentile_cont({at}, 0.05) as low, approx_percentile_cont({at}, 0.95) as high "
            f"from events where {self._lines}"
        )
        if row["low"] is None:
            return None, 0
        far = FAR * max(row["high"] - row["low"], 60_000_000)
        near = f"{at} between {int(row['low'] - far)} and {int(row['high'] + far)}"
        (row,) = self.questions.rows(f"select min({at}) as first, max({at}) as last from events where {near}")
        own = row["first"], row["last"] + 1
        first, end = (bound if bound is not None else other for bound, other in zip(bounds, own, strict=True))
        end = max(end, first + 1)
        step_us = step_for(end - first, STEPS_MAX)
        span = Span(first // step_us * step_us, -(-end // step_us) * step_us, step_us)
        (count,) = self.questions.rows(f"select count(*) as n from events where {self._lines} and not ({within(span)})")
        return span, count["n"]

    @property
    def whole(self) -> Span:
        assert self.span is not None, "there are lines"
        return self.span

    @property
    def where(self) -> str:
        return f"{self._lines} and {within(self.whole)}"

    @property
    def step(self) -> str:
        """The beginning of the step of time that a line is in, in SQL."""
        return step_of(micros("time"), self.whole.step_us)

    @property
    def said(self) -> str:
        """The span in words."""
        first, end = (
            f"{moment(time_us, self.zone):%Y-%m-%d %H:%M:%S}" for time_us in (self.whole.first_us, self.whole.end_us)
        )
        return f"{first} to {end} {moment(self.whole.end_us, self.zone):%Z}"

    @property
    def steps(self) -> str:
        return duration(self.whole.step_us / 1e6)


def within(span: Span) -> str:
    """Whether a line is of this time, in SQL."""
    first, end = (f"{moment(time_us, UTC):%Y-%m-%dT%H:%M:%S.%fZ}" for time_us in (span.first_us, span.end_us))
    return f"time >= '{first}' and time < '{end}'"


def panels(asked: Asked) -> Iterator[Panel]:
    """Those that events have lines for."""
    if asked.span is None:
        return
    for make in (_volume, _errors, _rejected, _unexpected, _nulls, _heaviest, _percentiles, _sessions, _freshness):
        yield from make(asked)


def _volume(asked: Asked) -> Iterator[Panel]:
    lines = asked.questions.lines
    sql = (
        f"select {asked.step} as at, topic, sum({lines}) as lines, sum({lines}) filter (where rejected is not null) "
        f"as rejected\nfrom events\nwhere {asked.where}\ngroup by 1, 2\norder by 1"
    )
    rows = asked.questions.rows(sql)
    total, rejected = (sum(row[name] or 0 for row in rows) for name in ("lines", "rejected"))
    caption = f"{total:,} lines, {rejected:,} of them rejected, {asked.said}; each bar: {asked.steps}"
    yield Panel("Volume", caption, stacks(_grouped(rows, "topic", "lines"), asked.whole, asked.zone, "lines"), sql=sql)


def _errors(asked: Asked) -> Iterator[Panel]:
    levels = ", ".join(map(text, ERRORS.to_pylist()))
    sql = (
        f"select {asked.step} as at, count(*) as lines, count(*) filter (where level in ({levels})) as errors\n"
        f"from events\nwhere {asked.where} and rejected is null\ngroup by 1\norder by 1"
    )
    rows = asked.questions.rows(sql)
    lines, errors = (sum(row[name] for row in rows) for name in ("lines", "errors"))
    if lines:
        share = Series("", [row["at"] for row in rows], [100 * row["errors"] / row["lines"] for row in rows])
        caption = f"{errors:,} of {lines:,} parsed lines have an error level ({100 * errors / lines:.3g} %)"
        yield Panel("Errors", caption, curves([share], asked.whole, asked.zone, "% of lines"), sql=sql)


def _rejected(asked: Asked) -> Iterator[Panel]:
    sql = (
        f"select {PLAIN_REASON} as reason, sum({asked.questions.lines}) as lines\n"
        f"from events\nwhere {asked.where} and rejected is not null\n"
        "group by 1\norder by 2 desc, 1"
    )
    yield from _by_reason(asked, "Rejected lines", "lines that no parser took, or no rule let pass, by reason", sql)


def _nulls(asked: Asked) -> Iterator[Panel]:
    yield from _of_texts(
        asked, COLUMN_ERRORS, "Fields that are null", "parsed lines with fields that did not fit their columns"
    )


def _unexpected(asked: Asked) -> Iterator[Panel]:
    yield from _of_texts(asked, UNEXPECTED, "Not as expected", "parsed lines that a rule warns of, by rule")


def _of_texts(asked: Asked, column: str, title: str, what: str) -> Iterator[Panel]:
    if column not in asked.questions.columns:
        return
    sql = (
        f"select {column} as reason, count(*) as lines\nfrom events\n"
        f"where {asked.where} and {column} is not null\ngroup by 1\norder by 2 desc, 1"
    )
    yield from _by_reason(asked, title, what, sql)


def _by_reason(asked: Asked, title: str, what: str, sql: str) -> Iterator[Panel]:
    if rows := asked.questions.rows(sql):
        yield Panel(title, f"{sum(row['lines'] for row in rows):,} {what}", _ranked(rows, "reason"), rows, sql)


def _heaviest(asked: Asked) -> Iterator[Panel]:
    for name in ("service", "host", "client"):
        if name not in asked.questions.columns:
            continue
        sql = (
            f"select {name}, count(*) as lines\nfrom events\nwhere {asked.where} and {name} is not null\n"
            f"group by 1\norder by 2 desc, 1\nlimit {RANKED}"
        )
        if rows := asked.questions.rows(sql):
            yield Panel(f"Heaviest: {name}", f"those with the most lines, {asked.said}", _ranked(rows, name), rows, sql)


def _percentiles(asked: Asked) -> Iterator[Panel]:
    own = {*PROVENANCE, *CALENDAR, *COMMON, "lines"}
    kinds = asked.questions.columns.items()
    names = [name for name, kind in kinds if name not in own and kind in (pa.int64(), pa.float64(), pa.int32())]
    if not names:
        return
    counts = ", ".join(f'count("{name}") as "{name}"' for name in names)
    (counted,) = asked.questions.rows(f"select {counts} from events where {asked.where}")
    for name in sorted((name for name in names if counted[name]), key=lambda name: -counted[name])[:NUMBERS_MAX]:
        yield _of_column(asked, f'"{name}"', f"Percentiles of {name}", f"of {counted[name]:,} values of {name}", name)


def _freshness(asked: Asked) -> Iterator[Panel]:
    late = f"({micros('received')} - {micros('time')}) / 1e6"
    yield _of_column(asked, late, "Freshness", "how long after its own time a line arrived in the log", "seconds")


def _of_column(asked: Asked, value: str, title: str, about: str, unit: str) -> Panel:
    chosen = ", ".join(
        f"approx_percentile_cont({value}, {percentile}) as p{percentile * 100:g}" for percentile in PERCENTILES
    )
    sql = (
        f"select {asked.step} as at, {chosen}\nfrom events\n"
        f"where {asked.where} and rejected is null and {value} is not null\ngroup by 1\norder by 1"
    )
    rows = asked.questions.rows(sql)
    names = [f"p{percentile * 100:g}" for percentile in PERCENTILES]
    series = [Series(name, [row["at"] for row in rows], [max(0.0, float(row[name])) for row in rows]) for name in names]
    caption = f"{about}; each point: {asked.steps}, estimated (t-digest)"
    return Panel(title, caption, curves(series, asked.whole, asked.zone, unit), sql=sql)


def _sessions(asked: Asked) -> Iterator[Panel]:
    for owner in OWNERS:
        if asked.questions.columns.get(owner) != pa.string():
            continue
        at, gap = micros("time"), GAP_S * 1_000_000
        sql = (
            f"select {step_of('begun', asked.whole.step_us)} as at, count(*) as sessions, "
            f"approx_percentile_cont(lasted, 0.5) / 1e6 as median_s\nfrom (\n"
            f"    select min(at) as begun, max(at) - min(at) as lasted\n    from (\n"
            f"        select {owner}, at, sum(fresh) over (partition by {owner} order by at) as number\n"
            f"        from (\n"
            f"            select {owner}, {at} as at, case when {at} - lag({at}) over "
            f"(partition by {owner} order by {at}) <= {gap} then 0 else 1 end as fresh\n"
            f"            from events\n            where {asked.where} and {owner} is not null\n        )\n    )\n"
            f"    group by {owner}, number\n)\ngroup by 1\norder by 1"
        )
        if rows := asked.questions.rows(sql):
            sessions = sum(row["sessions"] for row in rows)
            caption = f"{sessions:,} sessions of {owner}, by their beginning; a silence of {duration(GAP_S)} ends one"
            series = Series("", [row["at"] for row in rows], [row["sessions"] for row in rows])
            yield Panel("Sessions", caption, stacks([series], asked.whole, asked.zone, "sessions"), sql=sql)
            return


def _ranked(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    return ranking([(label_of([row[name]]), row["lines"]) for row in rows[:RANKED]])


def _grouped(rows: Sequence[Mapping[str, Any]], by: str, measure: str) -> list[Series]:
    """A series for each of the largest groups, and one for all others."""
    totals: dict[Any, float] = {}
    for row in rows:
        totals[row[by]] = totals.get(row[by], 0) + row[measure]
    largest = sorted(totals, key=lambda group: (-totals[group], str(group)))[:SERIES_MAX]
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        label = label_of([row[by]]) if row[by] in largest else "others"
        of = values.setdefault(label, {})
        of[row["at"]] = of.get(row["at"], 0) + row[measure]
    order = [label for label in (*(label_of([group]) for group in largest), "others") if label in values]
    return [
        Series(label, sorted(values[label]), [values[label][at] for at in sorted(values[label])]) for label in order
    ]


# ---- what is not asked of events


def history_panels(history: Sequence[Progress], zone: tzinfo) -> Iterator[Panel]:
    """Throughput and lag, of the last micro-batches."""
    if not history:
        return
    ordered = sorted(history, key=lambda progress: progress.ended)
    at = [micros_of(datetime.fromisoformat(progress.ended)) for progress in ordered]
    between = np.diff(at)
    step_us = int(3 * np.median(between)) + 1_000_000 if len(between) else 1_000_000
    span = Span(at[0], at[-1] + 1_000_000, step_us)
    said = f"each of the last {len(ordered):,} micro-batches; a gap: it did not run, or had nothing to read"
    for title, unit, of in (("Throughput", "lines/s", rate_of), ("Lag", "bytes that were not read", lag_of)):
        series = Series("", at, [of(progress) for progress in ordered])
        yield Panel(title, f"{unit}, {said}; now {number(of(ordered[-1]))}", curves([series], span, zone, unit))


def rate_of(progress: Progress) -> float:
    return progress.rows_per_s


def lag_of(progress: Progress) -> float:
    return float(progress.lag_bytes)


def audit_panel(judged: Sequence[Window], window_ms: int, zone: tzinfo) -> Panel:
    """Of windows in order of time."""
    series = []
    for topic in sorted({window.topic for window in judged})[: SERIES_MAX // 2]:
        own = [window for window in judged if window.topic == topic]
        at = [micros_of(window.start) for window in own]
        series.append(Series(label_of([f"{topic}: sent"]), at, [window.counted for window in own]))
        series.append(Series(label_of([f"{topic}: arrived"]), at, [window.arrived for window in own]))
    step_us = window_ms * 1000
    span = Span(micros_of(judged[0].start), micros_of(judged[-1].start) + step_us, step_us)
    faulty = [window._asdict() for window in judged if window.verdict != "balanced"]
    caption = f"messages in each window of {duration(window_ms / 1000)}; below: those that do not balance"
    return Panel("Audit: sent and arrived", caption, curves(series, span, zone, "messages"), faulty)


def micros_of(when: datetime) -> int:
    return round((when - EPOCH).total_seconds() * 1_000_000)


def view_panel(name: str, about: str, sql: str, rows: Sequence[Mapping[str, Any]], zone: tzinfo) -> Panel:
    """The newest rows of a view, in order of time: its first number, by its first column of texts."""
    first = rows[0] if rows else {}
    measure = next((key for key, value in first.items() if isinstance(value, int | float)), None)
    by = next((key for key, value in first.items() if isinstance(value, str) and key != "date"), None)
    chart = ""
    if measure is not None:
        starts = sorted({micros_of(row["start"]) for row in rows})
        points = [
            {"at": micros_of(row["start"]), "by": row[by] if by else "", "value": row[measure] or 0} for row in rows
        ]
        step_us = min(np.diff(starts).tolist(), default=1_000_000)
        span = Span(starts[0], starts[-1] + step_us, step_us)
        chart = curves(_grouped(points, "by", "value"), span, zone, measure)
    shown = f"{measure} by {by}" if by else f"{measure}"
    return Panel(f"View {name}", f"{about} ({shown})" if measure else about, chart, rows[::-1][:RANKED], sql)
