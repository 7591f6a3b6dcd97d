"""Chooses what a report shows: panels for volume, dead letters, throughput and lag, each aggregate, and the audit.

Each panel's caption says over which time its numbers are, and what was summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import charts
from .audit_verdicts import Window
from .charts import Curve, Panel, duration, label_of, span
from .events import HOUR_US
from .pipeline_status import heaviest, read_total
from .settings import Aggregate, Settings
from .sketches import percentile_names
from .space_saving import Ranking
from .state_directory import Progress
from .times import EPOCH
from .totals import micros_of
from .watermarks import NEWEST

CURVES_MAX: Final = 8
"""Most curves in one panel: those of the groups with the most lines."""
POINTS_MAX: Final = 1500
"""Most points of a curve: more windows are summed into longer ones, or the last ones are shown."""


def panels(settings: Settings, history: Sequence[Progress], judged: Sequence[Window], zone: tzinfo) -> list[Panel]:
    found = [*_ledger_panels(settings, zone), *_history_panels(history, zone)]
    for each in settings.aggregate:
        table = read_total(settings, each.name)
        if table is not None and len(table):
            panel = _aggregate_panel(settings, each, table, zone)
            found.append(panel._replace(caption=panel.caption + _finality(settings, each, zone)))
    if judged:
        found.append(_audit_panel(settings, judged, zone))
    return found


def title_of(aggregate: Aggregate) -> str:
    of = f" of {aggregate.of}" if aggregate.of else ""
    return f"{aggregate.name}: {aggregate.kind}{of}" + (f" by {', '.join(aggregate.by)}" if aggregate.by else "")


def ranking_caption(aggregate: Aggregate, table: pa.Table, ranking: Ranking, zone: tzinfo) -> str:
    starts = micros_of(table.column("start"))
    windows = len(np.unique(starts))
    return (
        f"lines, summed over {windows:,} windows of {duration(aggregate.window_ms / 1000)}, "
        f"{_span_of(table, zone)}; {bound(ranking)}"
    )


def bound(ranking: Ranking) -> str:
    """The error of a ranking in words."""
    most = max((row["count_error"] for row in ranking.rows), default=0)
    counts = f"counts are at most {most:,} too high" if most else "counts are exact"
    return f"{counts}; no value that is not listed has more than {ranking.omitted_max:,}"


def _span_of(table: pa.Table, zone: tzinfo) -> str:
    return span(micros_of(table.column("start")).min(), micros_of(table.column("end")).max(), zone)


# ---- the pipeline itself


def _ledger_panels(settings: Settings, zone: tzinfo) -> Iterator[Panel]:
    ledger = read_total(settings, "ledger")
    if ledger is None or not len(ledger):
        return
    parsed, told = (pc.not_equal(ledger.column(name), "") for name in ("parser", "reason"))
    kinds = (
        ("Volume: parsed lines by topic", ["topic"], pc.invert(told)),
        ("Dead letters by reason", ["reason"], pc.invert(parsed)),
        ("Columns that are null, by reason", ["reason"], pc.and_(parsed, told)),
    )
    for title, by, chosen in kinds:
        rows = ledger.filter(chosen)
        if len(rows):
            total = pc.sum(rows.column("rows")).as_py()
            found, step_us = _summed_curves(rows, by, "rows", HOUR_US)
            caption = f"{total:,} lines by the time of arrival, {_span_of(rows, zone)}; each bar: {_step(step_us)}"
            yield Panel(title, caption, partial(_paint, charts.stacks, found, "lines", zone, step_us))


def _history_panels(history: Sequence[Progress], zone: tzinfo) -> Iterator[Panel]:
    if not history:
        return
    micros = np.array([_micros(datetime.fromisoformat(each.ended)) for each in history], np.int64)
    order = np.argsort(micros, kind="stable")
    micros, ordered = micros[order], [history[place] for place in order]
    between = np.diff(micros)
    step_us = int(3 * np.median(between)) + 1_000_000 if len(between) else 1_000_000
    when = f"each of the last {len(history):,} micro-batches, {span(micros[0], micros[-1], zone)}"
    rates = Curve("", micros, np.array([each.rows_per_s for each in ordered]))
    yield Panel(
        "Throughput",
        f"lines per second while it worked, {when}; a gap: the pipeline did not run, or had nothing to read",
        partial(_paint, charts.curves, [rates], "lines/s", zone, step_us),
    )
    lags = Curve("", micros, np.array([each.lag_bytes for each in ordered], float))
    yield Panel(
        "Lag",
        f"unread bytes behind {when}",
        partial(_paint, charts.curves, [lags], "bytes", zone, step_us),
    )


def _paint(draw: Callable[..., None], found: Sequence[Curve], unit: str, zone: tzinfo, step_us: int, axis: Any) -> None:
    draw(axis, found, unit, zone, step_us)


def _audit_panel(settings: Settings, judged: Sequence[Window], zone: tzinfo) -> Panel:
    found = []
    for topic in sorted({each.topic for each in judged})[: CURVES_MAX // 2]:
        own = [each for each in judged if each.topic == topic]
        micros = np.array([_micros(each.start) for each in own], np.int64)
        for name in ("counted", "arrived"):
            values = np.array([getattr(each, name) for each in own], float)
            found.append(Curve(label_of([f"{topic}: {'sent' if name == 'counted' else name}"]), micros, values))
    step_us = settings.audit.window_ms * 1000
    first, last = _micros(judged[0].start), _micros(judged[-1].start) + step_us
    caption = f"messages in each window of {_step(step_us)}, {span(first, last, zone)}"
    return Panel("Audit: sent and arrived", caption, partial(_paint, charts.curves, found, "messages", zone, step_us))


def _finality(settings: Settings, aggregate: Aggregate, zone: tzinfo) -> str:
    """Up to when windows are final, and how many lines came too late for theirs; "" without a watermark."""
    newest = read_total(settings, NEWEST) if aggregate.watermark_ms else None
    if newest is None:
        return ""
    (row,) = newest.filter(pc.equal(newest.column("aggregate"), aggregate.name)).to_pylist() or [None]
    if row is None:
        return ""
    until = _micros(row["end"]) - aggregate.watermark_ms * 1000
    return f"; final up to {charts.moment(until, zone):%Y-%m-%d %H:%M:%S %Z}, {row['late']:,} lines came too late"


def _micros(when: datetime) -> int:
    return round((when - EPOCH).total_seconds() * 1_000_000)


# ---- aggregates


def _aggregate_panel(settings: Settings, aggregate: Aggregate, table: pa.Table, zone: tzinfo) -> Panel:
    title, by = title_of(aggregate), list(aggregate.by)
    match aggregate.kind:
        case "top":
            ranking = heaviest(settings, aggregate.name, aggregate.k)
            labels = [label_of([row[name] for name in by]) for row in ranking.rows]
            counts, errors = ([row[name] for row in ranking.rows] for name in ("count", "count_error"))
            caption = ranking_caption(aggregate, table, ranking, zone)
            return Panel(title, caption, lambda axis: charts.bars(axis, labels, counts, errors, "lines"))
        case "sessions":
            seconds = np.asarray(table.column("seconds").to_numpy())
            caption = (
                f"{len(seconds):,} sessions, {_span_of(table, zone)}; {(seconds == 0).sum():,} of a single moment "
                f"are not drawn; a silence of {duration(aggregate.gap_ms / 1000)} ends one"
            )
            return Panel(title, caption, lambda axis: charts.histogram(axis, seconds))
        case "count" | "errors":
            measures = ["count"] if aggregate.kind == "count" else ["errors", "count"]
            found, step_us = _summed_curves(table, by, measures[0], aggregate.window_ms * 1000, measures[1:])
            unit = "lines" if aggregate.kind == "count" else "errors, %"
        case _:
            found, step_us, unit = _sketch_curves(aggregate, table)
    shown = f"the {len(found)} groups with the most lines, " if by and len(found) == CURVES_MAX else ""
    first, last = (choose(int(each.micros[place]) for each in found) for choose, place in ((min, 0), (max, -1)))
    caption = f"{shown}each point: a window of {_step(step_us)}, {span(first, last + step_us, zone)}"
    return Panel(title, caption, partial(_paint, charts.curves, found, unit, zone, step_us))


def _groups(table: pa.Table, by: Sequence[str], measure: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of the groups with the most lines."""
    if not by:
        yield label_of([]), table
        return
    totals = table.group_by(list(by)).aggregate([(measure, "sum")]).sort_by([(f"{measure}_sum", "descending")])
    for group in totals.slice(0, CURVES_MAX).to_pylist():
        rows = table
        for name in by:
            column = rows.column(name)
            rows = rows.filter(pc.is_null(column) if group[name] is None else pc.equal(column, group[name]))
        yield label_of([group[name] for name in by]), rows


def _summed_curves(
    table: pa.Table, by: Sequence[str], measure: str, window_us: int, over: Sequence[str] = ()
) -> tuple[list[Curve], int]:
    """Curves of a measure, or of its percentage of another one; and the length of the windows, perhaps of several."""
    starts = micros_of(table.column("start"))
    windows = (int(starts.max()) - int(starts.min())) // window_us + 1
    step_us = window_us * -(-windows // POINTS_MAX)
    found = []
    for label, rows in _groups(table, by, over[0] if over else measure):
        places, index = np.unique(micros_of(rows.column("start")) // step_us * step_us, return_inverse=True)
        sums = [np.bincount(index, micros_of(rows.column(name))) for name in (measure, *over)]
        found.append(Curve(label, places, sums[0] / sums[1] * 100 if over else sums[0]))
    return found, step_us


def _sketch_curves(aggregate: Aggregate, table: pa.Table) -> tuple[list[Curve], int, str]:
    """Distinct counts by group; the percentiles of all lines, or the highest one by group."""
    window_us = aggregate.window_ms * 1000
    names = ["distinct"] if aggregate.kind == "distinct" else percentile_names(aggregate.percentiles)
    if aggregate.by:
        names = names[-1:]
    found = []
    for label, rows in _groups(table, aggregate.by, "count"):
        rows = rows.sort_by("start")
        rows = rows.slice(max(0, len(rows) - POINTS_MAX))
        for name in names:
            values, low, high = (
                np.asarray(rows.column(f"{name}{end}").cast(pa.float64()).to_numpy()) for end in ("", "_low", "_high")
            )
            shown = label if aggregate.by else name
            found.append(Curve(shown, micros_of(rows.column("start")), values, low, high))
    unit = (
        "values" if aggregate.kind == "distinct" else f"{aggregate.of}, {names[0] if aggregate.by else 'percentiles'}"
    )
    return found, window_us, unit


def _step(step_us: int) -> str:
    return duration(step_us / 1e6)
