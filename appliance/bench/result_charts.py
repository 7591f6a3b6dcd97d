"""Draws a result as SVG and PNG: bars of medians with the range of rounds, one panel per workload.

The scale is logarithmic where sides differ by orders of magnitude.  Needs matplotlib, which the extra ``bench``
has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import extras
from .compiling import Missing
from .measures import BenchMeasure, BenchResult
from .quantities import QUANTITIES, Quantity

PANEL_COLUMNS, BAR_INCHES, PANEL_INCHES = 2, 0.28, 6.0
OURS, OTHERS = "#1b6e9c", "#b8b8b8"


def draw(result: BenchResult, directory: Path) -> list[Path]:
    """Write ``<question>.svg`` and ``.png``; nothing if there is nothing to draw.

    Raises:
        Missing: there is no matplotlib.
    """
    try:
        import matplotlib
    except ImportError:
        raise Missing(f"matplotlib: {extras.install('bench')}") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.hashsalt": result.question, "font.size": 8, "axes.titlesize": 9}
    panels = _panels(result)
    if not panels:
        return []
    height = max(len(bars) for *_, bars in panels) * BAR_INCHES + 0.9
    lines = -(-len(panels) // PANEL_COLUMNS)
    figure, axes = pyplot.subplots(
        lines, PANEL_COLUMNS, figsize=(PANEL_COLUMNS * PANEL_INCHES, lines * height), squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, quantity, bars) in zip(axes.flat, panels, strict=False):
        _bars(axis, title, quantity, bars)
    figure.suptitle(result.title, fontsize=11)
    figure.tight_layout()
    paths = [directory / f"{result.question}.{kind}" for kind in ("svg", "png")]
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else {})
    pyplot.close(figure)
    return paths


def _panels(result: BenchResult) -> list[tuple[str, Quantity, list[BenchMeasure]]]:
    """One panel for each workload and quantity that is drawn."""
    panels = []
    for workload in result.workloads:
        for what, quantity in QUANTITIES.items():
            bars = [measure for measure in result.measures if (measure.workload, measure.what) == (workload, what)]
            if bars and quantity.drawn:
                panels.append((f"{workload}: {quantity.heading}", quantity, bars))
    return panels


def _bars(axis: Any, title: str, quantity: Quantity, bars: list[BenchMeasure]) -> None:
    names, medians = [bar.side for bar in bars], [bar.median for bar in bars]
    low = [bar.median - min(bar.values) for bar in bars]
    high = [max(bar.values) - bar.median for bar in bars]
    colors = [OURS if name.startswith(("appliance", "acks", "consumer")) else OTHERS for name in names]
    axis.barh(names, medians, xerr=(low, high), color=colors, error_kw={"elinewidth": 0.8, "ecolor": "#444444"})
    axis.invert_yaxis()
    axis.set_title(title, loc="left")
    if max(medians) > 20 * min(medians) > 0:
        axis.set_xscale("log")
    axis.margins(x=0.18)
    for position, bar in enumerate(bars):
        axis.annotate(f" {quantity.text(bar.median)}", (max(bar.values), position), va="center", fontsize=7)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
