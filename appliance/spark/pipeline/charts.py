"""Paints the panels of a report with matplotlib.

Times are shown in one time zone.  Every axis of time names its first and last time with year and zone.  A line is drawn
between neighbouring windows only, so a time without data is a gap.  An axis is logarithmic where its values differ by
more than :data:`LOG_RATIO`.  Texts from messages are painted as they are: formulas are off, and characters that do not
print are replaced.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import numpy as np

from .times import EPOCH

LABEL_CHARACTERS_MAX: Final = 40
LOG_RATIO: Final = 1000
PANEL_INCHES: Final = (9.0, 2.8)
DOTS_PER_INCH: Final = 110
CAPTION_CHARACTERS: Final = 150
BLUE: Final = "#4878a8"


class Panel(NamedTuple):
    """``caption``: what the numbers are, over which time, and what was summed.  ``paint`` gets the axes."""

    title: str
    caption: str
    paint: Callable[[Any], None]


class Curve(NamedTuple):
    """Values at times, in microseconds, in order; NaN: none.  ``low``, ``high``: bounds, or None."""

    label: str
    micros: np.ndarray
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def draw(panels: Sequence[Panel]) -> list[bytes]:
    """A picture (PNG) of each panel, without title and caption."""
    pictures = []
    with _pyplot() as pyplot:
        for panel in panels:
            figure, axis = pyplot.subplots(figsize=PANEL_INCHES, layout="constrained")
            axis.spines[["top", "right"]].set_visible(False)
            panel.paint(axis)
            pictures.append(_png(pyplot, figure))
    return pictures


def stack(panels: Sequence[Panel], pictures: Sequence[bytes]) -> bytes:
    """One picture of all, each under its title and caption."""
    from PIL import Image

    strips = []
    with _pyplot() as pyplot:
        for title, caption in [(each.title, each.caption) for each in panels] or [("nothing has been read yet", "")]:
            lines = [title, *textwrap.wrap(caption, CAPTION_CHARACTERS)]
            figure = pyplot.figure(figsize=(PANEL_INCHES[0], 0.18 * len(lines) + 0.25))
            figure.text(0.01, 0.05, "\n".join(lines), fontsize=8, linespacing=1.5)
            strips.append(_png(pyplot, figure))
    between = [each for pair in zip_longest(strips, pictures) for each in pair if each is not None]
    images = [Image.open(io.BytesIO(each)).convert("RGB") for each in between]
    whole = Image.new("RGB", (max(each.width for each in images), sum(each.height for each in images)), "white")
    top = 0
    for each in images:
        whole.paste(each, (0, top))
        top += each.height
    made = io.BytesIO()
    whole.save(made, "PNG")
    return made.getvalue()


def _png(pyplot: Any, figure: Any) -> bytes:
    made = io.BytesIO()
    figure.savefig(made, dpi=DOTS_PER_INCH, format="png")
    pyplot.close(figure)
    return made.getvalue()


@contextmanager
def _pyplot() -> Iterator[Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"text.parse_math": False, "font.size": 9}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks: painted as boxes
        yield pyplot


def label_of(values: Sequence[Any]) -> str:
    """One line of printable text, at most :data:`LABEL_CHARACTERS_MAX` characters."""
    text = ", ".join("none" if value is None else str(value) for value in values) or "all"
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return text if len(text) <= LABEL_CHARACTERS_MAX else text[: LABEL_CHARACTERS_MAX - 1] + "…"


def moment(micros: int, zone: tzinfo) -> datetime:
    return (EPOCH + timedelta(microseconds=int(micros))).astimezone(zone)


def span(first: int, last: int, zone: tzinfo) -> str:
    """``2026-11-20 00:00 to 2026-11-21 00:00 UTC``."""
    begin, end = moment(first, zone), moment(last, zone)
    return f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} {end:%Z}"


def duration(seconds: float) -> str:
    """``90 s``, ``5 min``, ``1 h``, ``2 d``: in the largest unit that gives a whole number."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,g} s"


def with_gaps(curve: Curve, step_us: int) -> Curve:
    """The curve with a NaN wherever neighbours are further apart than ``step_us``, so that no line is drawn there."""
    holes = np.flatnonzero(np.diff(curve.micros) > step_us) + 1

    def filled(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else np.insert(values.astype(float), holes, np.nan)

    micros = np.insert(curve.micros, holes, curve.micros[holes - 1] + step_us)
    values = np.insert(curve.values.astype(float), holes, np.nan)
    return Curve(curve.label, micros, values, filled(curve.low), filled(curve.high))


def curves(axis: Any, found: Sequence[Curve], unit: str, zone: tzinfo, step_us: int) -> None:
    """Lines over time, with gaps and bounds."""
    lines = []
    for curve in (with_gaps(each, step_us) for each in found):
        days = _days(curve.micros)
        alone = np.isfinite(curve.values) & ~_has_neighbour(curve.values)
        (line,) = axis.plot(days, curve.values, lw=1.2)
        axis.plot(days[alone], curve.values[alone], ".", ms=4, color=line.get_color())
        if curve.low is not None and curve.high is not None:
            axis.fill_between(days, curve.low, curve.high, alpha=0.2, color=line.get_color(), lw=0)
        lines.append(line)
    _scale(axis, np.concatenate([each.values for each in found]), unit)
    _time_axis(axis, found, zone)
    _legend(axis, lines, [each.label for each in found])


def stacks(axis: Any, found: Sequence[Curve], unit: str, zone: tzinfo, step_us: int) -> None:
    """Bars over time, one above the other; where one is tiny beside another, each is a line of its own."""
    every = np.concatenate([each.values for each in found])
    if len(found) > 1 and every.max() > LOG_RATIO * max(1, every[every > 0].min(initial=np.inf)):
        curves(axis, found, unit, zone, step_us)
        return
    places = np.unique(np.concatenate([each.micros for each in found]))
    base = np.zeros(len(places))
    bars = []
    for each in found:
        index = np.searchsorted(places, each.micros)
        heights = np.zeros(len(places))
        heights[index] = each.values
        width = step_us / 86_400e6
        bars.append(axis.bar(_days(places), heights, width * 0.95, bottom=base, align="edge"))
        base += heights
    _scale(axis, base, unit)
    _time_axis(axis, found, zone)
    _legend(axis, bars, [each.label for each in found])


def bars(axis: Any, labels: Sequence[str], counts: Sequence[int], errors: Sequence[int], unit: str) -> None:
    """Horizontal bars in the given order from the top; a whisker goes from count - error to count."""
    places = np.arange(len(labels))[::-1]
    heights = np.array(counts, float)
    axis.barh(places, heights, color=BLUE)
    uncertain = np.array(errors, float)
    if uncertain.any():
        axis.errorbar(heights, places, xerr=[uncertain, np.zeros(len(heights))], fmt="none", ecolor="black", capsize=2)
    axis.set_yticks(places, labels, fontsize=8)
    positive = heights[heights > 0]
    if len(positive) and positive.max() > LOG_RATIO * positive.min():
        axis.set_xscale("log")
        unit += ", logarithmic"
    axis.set_xlabel(unit)
    _thousands(axis.xaxis)


def histogram(axis: Any, seconds: np.ndarray) -> None:
    """How many sessions are how long; those of a single moment are not drawn, since a logarithm has no place for 0."""
    seconds = seconds[seconds > 0]
    if not len(seconds):
        axis.text(0.5, 0.5, "every session is a single moment", ha="center", transform=axis.transAxes)
        axis.set_axis_off()
        return
    unit, size = next(((u, s) for u, s in (("h", 3600), ("min", 60)) if np.median(seconds) >= s), ("s", 1))
    lengths = seconds / size
    name = f"length, {unit}"
    if lengths.max() > 30 * lengths.min():
        axis.set_xscale("log")
        name += ", logarithmic"
        edges = np.geomspace(lengths.min(), lengths.max() * 1.0001, 31)
    else:
        edges = np.linspace(0, lengths.max() * 1.0001, 31)
    counts, _, _ = axis.hist(lengths, bins=edges, color=BLUE)
    axis.set_xlabel(name)
    _thousands(axis.xaxis)
    _scale(axis, counts, "sessions")


def _has_neighbour(values: np.ndarray) -> np.ndarray:
    """Whether the value before or behind is there too, so that a line shows this one."""
    there = np.isfinite(values)
    return np.asarray(np.append(False, there[:-1]) | np.append(there[1:], False))


def _days(micros: np.ndarray) -> np.ndarray:
    """Days since 1970, matplotlib's own unit."""
    return micros / 86_400e6


def _scale(axis: Any, values: np.ndarray, unit: str) -> None:
    """From 0, or logarithmic where the data asks for it."""
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    if len(positive) and positive.max() > LOG_RATIO * np.percentile(positive, 5):
        unit += "\nlogarithmic"
        if len(positive) == len(values):
            axis.set_yscale("log")
        else:
            axis.set_yscale("symlog", linthresh=float(positive.min()))
            axis.set_ylim(bottom=0)
    else:
        axis.set_ylim(0, 1.08 * float(values.max(initial=0)) or 1)
    axis.set_ylabel(unit)
    _thousands(axis.yaxis)


def _thousands(side: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _time_axis(axis: Any, found: Sequence[Curve], zone: tzinfo) -> None:
    from matplotlib import dates

    axis.xaxis_date(zone)
    maker: Any = dates.AutoDateLocator
    locator = maker(tz=zone)
    formatter: Any = dates.ConciseDateFormatter
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(formatter(locator, tz=zone, show_offset=False))
    every = np.concatenate([each.micros for each in found])
    axis.set_xlabel(span(int(every.min()), int(every.max()), zone))


def _legend(axis: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Matplotlib leaves out labels that begin with an underscore, so a space goes before it."""
    if len(labels) > 1 or labels[0] not in ("", "all"):
        named = [f" {label}" if label.startswith("_") else label for label in labels]
        axis.legend(
            handles, named, fontsize=7, frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0
        )
