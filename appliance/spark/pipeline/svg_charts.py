"""Draws charts as SVG, which a page has in itself: curves and stacked bars over time, and rankings.

Axes fit what is drawn.  Times are in the zone of the reader, and ticks are at whole seconds, hours, days, months or
years of it.  A legend is a list of its own below the chart, so it has room for every label.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final, NamedTuple

from .times import EPOCH

WIDTH: Final = 860
HEIGHT: Final = 200
LEFT: Final = 70
BOTTOM: Final = 24
TOP: Final = 8
TICKS_MAX: Final = 8
LABEL_CHARACTERS_MAX: Final = 60
COLOURS: Final = ("#2563a8", "#c2571a", "#2f8f5b", "#8a4fa3", "#b08a1e", "#4c9aa8", "#a33f5a", "#777777")
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(count * MINUTE_S for count in (1, 2, 5, 10, 15, 30)),
    *(count * HOUR_S for count in (1, 2, 3, 6, 12)),
    *(count * DAY_S for count in (1, 2, 7, 14, 28, 91, 182, 365, 1826, 3652)),
)
"""Of ticks, and of the lengths of time that are taken together."""
MONTHS: Final = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200)


class Series(NamedTuple):
    """``micros``: since 1970, ascending; a value for each."""

    label: str
    micros: Sequence[int]
    values: Sequence[float]


class Span(NamedTuple):
    """From the first to before the second time, in microseconds since 1970; ``step_us``: what is taken together."""

    first_us: int
    end_us: int
    step_us: int

    @property
    def aligned_us(self) -> int:
        return self.first_us // self.step_us * self.step_us


def step_for(length_us: int, steps_max: int) -> int:
    """The shortest step, in microseconds, of which at most so many cover a length of time."""
    fitting = (step_s for step_s in STEPS_S if math.ceil(length_us / (step_s * 1_000_000)) <= steps_max)
    return next(fitting, math.ceil(length_us / steps_max / 1_000_000)) * 1_000_000


def moment(micros: int, zone: tzinfo) -> datetime:
    return (EPOCH + timedelta(microseconds=micros)).astimezone(zone)


def duration(seconds: float) -> str:
    """As people say it: 90 s, 5 min, 1 h, 2 d."""
    for unit, length in (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def label_of(values: Sequence[object]) -> str:
    text = ", ".join("none" if value is None else str(value) for value in values)
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return shown if len(shown) <= LABEL_CHARACTERS_MAX else f"{shown[: LABEL_CHARACTERS_MAX - 1]}…"


def number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.4g}"


# ---- charts


def curves(series: Sequence[Series], span: Span, zone: tzinfo, unit: str) -> str:
    """A line for each series, broken where it has no value for more than two steps; single values are dots."""
    top = _top(value for curve in series for value in curve.values)
    parts = []
    for colour, curve in zip(_colours(), series, strict=False):
        for run in _runs(curve, 2 * span.step_us):
            points = [f"{_x(at, span):.1f},{_y(value, top):.1f}" for at, value in run]
            if len(points) == 1:
                x, _, y = points[0].partition(",")
                parts.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>')
            else:
                parts.append(
                    f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(points)}"/>'
                )
    return _framed(parts, span, top, zone, unit) + _legend([curve.label for curve in series])


def stacks(series: Sequence[Series], span: Span, zone: tzinfo, unit: str) -> str:
    """A bar for each step, with a piece for each series."""
    heights: dict[int, float] = {}
    for stack in series:
        for at, value in zip(stack.micros, stack.values, strict=True):
            heights[at] = heights.get(at, 0.0) + value
    top = _top(heights.values())
    wide = max(1.0, _x(span.aligned_us + span.step_us, span) - _x(span.aligned_us, span) - 1)
    parts, below = [], dict.fromkeys(heights, 0.0)
    for colour, stack in zip(_colours(), series, strict=False):
        for at, value in zip(stack.micros, stack.values, strict=True):
            high, low = _y(below[at] + value, top), _y(below[at], top)
            below[at] += value
            x = max(_x(at, span), LEFT)
            parts.append(
                f'<rect x="{x:.1f}" y="{high:.1f}" width="{wide:.1f}" height="{low - high:.1f}" fill="{colour}"/>'
            )
    return _framed(parts, span, top, zone, unit) + _legend([stack.label for stack in series])


def ranking(rows: Sequence[tuple[str, float]]) -> str:
    """A bar for each label, in HTML, with its number."""
    most = max((value for _, value in rows), default=0) or 1
    return "".join(
        f'<div class=rank><span>{html.escape(label)}</span><b style="width:{40 * value / most:.2f}%"></b>'
        f"<i>{number(value)}</i></div>"
        for label, value in rows
    )


def _framed(parts: Sequence[str], span: Span, top: float, zone: tzinfo, unit: str) -> str:
    right, floor = WIDTH - 8, HEIGHT - BOTTOM
    frame = []
    for value in _ticks(top):
        y = _y(value, top)
        frame.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        frame.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for at, label in time_ticks(span, zone):
        x = _x(at, span)
        frame.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}" class="tick"/>')
        frame.append(f'<text x="{min(x, right - 20):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>')
    frame.append(f'<line x1="{LEFT}" x2="{right}" y1="{floor}" y2="{floor}" class="tick"/>')
    name = html.escape(unit)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}"><title>{name}</title>'
        f"{''.join(frame)}{''.join(parts)}</svg>"
    )


def _legend(labels: Sequence[str]) -> str:
    shown = [
        f'<li><b style="background:{colour}"></b>{html.escape(label)}</li>'
        for colour, label in zip(_colours(), labels, strict=False)
        if label
    ]
    return f"<ul class=legend>{''.join(shown)}</ul>" if shown else ""


def _colours() -> Iterator[str]:
    while True:
        yield from COLOURS


def _runs(series: Series, gap_us: int) -> Iterator[list[tuple[int, float]]]:
    points = list(zip(series.micros, series.values, strict=True))
    begin = 0
    for place, (earlier, other) in enumerate(pairwise(points), 1):
        if other[0] - earlier[0] > gap_us:
            yield points[begin:place]
            begin = place
    if points:
        yield points[begin:]


def _x(micros: int, span: Span) -> float:
    return LEFT + (micros - span.first_us) / max(1, span.end_us - span.first_us) * (WIDTH - 8 - LEFT)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)


def _top(values: Iterable[float]) -> float:
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    return most if most > 0 else 1.0


def _ticks(top: float) -> list[float]:
    """At most five round numbers from 0 on."""
    raw = top / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [number * step for number in range(int(top / step) + 1)]


def time_ticks(span: Span, zone: tzinfo) -> list[tuple[int, str]]:
    """At most :data:`TICKS_MAX` times within a span, with their labels."""
    length_s = (span.end_us - span.first_us) / 1_000_000
    step_s = next((step for step in STEPS_S if step < 28 * DAY_S and length_s / step <= TICKS_MAX - 1), None)
    first, end = moment(span.first_us, zone), moment(span.end_us, zone)
    if step_s is None:
        return [(_micros(month), f"{month:%Y-%m}") for month in _months(first, end, length_s)]
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    whole = math.ceil((first - midnight).total_seconds() / step_s)
    form = "%H:%M:%S" if step_s < MINUTE_S else "%H:%M" if step_s < DAY_S else "%m-%d"
    ticks = []
    while (at := midnight + timedelta(seconds=whole * step_s)) <= end:
        shown = "%m-%d" if form == "%H:%M" and at.hour == at.minute == 0 else form
        ticks.append((_micros(at), f"{at:{shown}}"))
        whole += 1
    return ticks


def _months(first: datetime, end: datetime, length_s: float) -> Iterator[datetime]:
    step = next((months for months in MONTHS if length_s / (months * 30.4 * DAY_S) <= TICKS_MAX - 1), MONTHS[-1])
    at = first.year * 12 // step * step
    while at // 12 <= end.year:
        when = first.replace(year=max(1, at // 12), month=at % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0)
        if first <= when <= end:
            yield when
        at += step


def _micros(when: datetime) -> int:
    return (when - EPOCH) // timedelta(microseconds=1)
