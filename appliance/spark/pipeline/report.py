"""Draws the pipeline's tables: one PNG, and one HTML page with the picture and the numbers in it.

There is a panel for each aggregate (counts and error rates over time, heaviest values, lengths of sessions), and one
for the audit.  The page is self-contained, so it can be mailed.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .audit_verdicts import Window, windows
from .pipeline_status import heaviest, read_total, summary
from .settings import Aggregate, Settings

LINES_MAX: Final = 8
"""Most curves in one panel: those of the largest groups."""
LABEL_CHARACTERS_MAX: Final = 40
ROWS_MAX: Final = 50
PANEL_INCHES: Final = (9.0, 3.0)
STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .2em .8em; text-align: left }
tr:nth-child(even) { background: #f4f4f4 } td.n { text-align: right; font-variant-numeric: tabular-nums }
img { max-width: 100% } .bad { color: #b00020 } .good { color: #1b7f3b }"""

Panel = tuple[str, Callable[[Any], None]]


def write(settings: Settings, directory: Path, now: datetime | None = None) -> tuple[Path, Path]:
    """Write the page and the picture to ``directory``.  Returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    now = now or datetime.now(UTC)
    picture = directory / f"{settings.pipeline.name}.png"
    page = directory / f"{settings.pipeline.name}.html"
    judged = windows(read_total(settings, "audit"), now, settings.audit.grace_ms)
    draw(_panels(settings, judged), picture)
    page.write_text(_page(settings, judged, picture.read_bytes(), now))
    return page, picture


# ---- the picture


def draw(panels: Sequence[Panel], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    width, height = PANEL_INCHES
    count = max(1, len(panels))
    figure, axes = pyplot.subplots(count, 1, figsize=(width, height * count), squeeze=False, layout="constrained")
    for axis, (title, paint) in zip(axes[:, 0], panels, strict=False):
        axis.set_title(title, loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        paint(axis)
    if not panels:
        axes[0, 0].text(0.5, 0.5, "nothing has been read yet", ha="center")
        axes[0, 0].set_axis_off()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panels(settings: Settings, judged: Sequence[Window]) -> list[Panel]:
    panels: list[Panel] = []
    for each in settings.aggregate:
        table = read_total(settings, each.name)
        if table is not None and len(table):
            panels.append((_title(each), _painter(settings, each, table)))
    if judged:
        panels.append(("audit: sent and arrived", lambda axis: _audit(axis, judged)))
    return panels


def _title(aggregate: Aggregate) -> str:
    by = f" by {', '.join(aggregate.by)}" if aggregate.by else ""
    return f"{aggregate.name}: {aggregate.kind}{by}"


def _painter(settings: Settings, aggregate: Aggregate, table: pa.Table) -> Callable[[Any], None]:
    if aggregate.kind == "top":
        rows = heaviest(settings, aggregate.name, aggregate.k).rows
        return lambda axis: _bars(axis, aggregate, rows)
    if aggregate.kind == "sessions":
        return lambda axis: _lengths(axis, table)
    return lambda axis: _curves(axis, aggregate, table)


def _label(row: dict[str, Any], by: Iterable[str]) -> str:
    text = ", ".join("none" if row[name] is None else str(row[name]) for name in by) or "all"
    return text if len(text) <= LABEL_CHARACTERS_MAX else text[: LABEL_CHARACTERS_MAX - 1] + "…"


def _curves(axis: Any, aggregate: Aggregate, table: pa.Table) -> None:
    """Draw a curve for each of the largest groups; error rates in percent."""
    by = list(aggregate.by)
    totals = table.group_by(by).aggregate([("count", "sum")]) if by else None
    groups: list[dict[str, Any]] = [{}]
    if totals is not None:
        groups = totals.sort_by([("count_sum", "descending")]).slice(0, LINES_MAX).to_pylist()
    for group in groups:
        rows = table
        for name in by:
            column = rows.column(name)
            rows = rows.filter(pc.is_null(column) if group[name] is None else pc.equal(column, group[name]))
        rows = rows.sort_by("start")
        heights = rows.column("count")
        if aggregate.kind == "errors":
            heights = pc.multiply(rows.column("error_rate"), 100)
        axis.plot(_naive(rows.column("start")), heights.to_pylist(), marker=".", lw=1, label=_label(group, by))
    axis.set_ylabel("errors, %" if aggregate.kind == "errors" else "lines")
    if by:
        axis.legend(fontsize=7, frameon=False, ncols=2)


def _naive(times: pa.ChunkedArray) -> list[datetime]:
    return [each.replace(tzinfo=None) for each in times.to_pylist()]


def _bars(axis: Any, aggregate: Aggregate, rows: list[dict[str, Any]]) -> None:
    rows = rows[::-1]
    axis.barh([_label(row, aggregate.by) for row in rows], [row["count"] for row in rows], color="#4878a8")
    axis.set_xlabel("lines")
    axis.tick_params(axis="y", labelsize=8)


def _lengths(axis: Any, table: pa.Table) -> None:
    axis.hist(pc.divide(table.column("seconds"), 60).to_pylist(), bins=30, color="#4878a8")
    axis.set_xlabel("minutes")
    axis.set_ylabel("sessions")


def _audit(axis: Any, judged: Sequence[Window]) -> None:
    topics = sorted({each.topic for each in judged})
    for topic in topics:
        own = [each for each in judged if each.topic == topic]
        times = [each.start.replace(tzinfo=None) for each in own]
        axis.plot(times, [each.counted for each in own], lw=4, alpha=0.3, label=f"{topic}: sent")
        axis.plot(times, [each.arrived for each in own], marker=".", lw=1, label=f"{topic}: arrived")
    axis.set_ylabel("messages")
    axis.legend(fontsize=7, frameon=False, ncols=2)


# ---- the page


def _page(settings: Settings, judged: Sequence[Window], picture: bytes, now: datetime) -> str:
    found = summary(settings, now)
    encoded = base64.b64encode(picture).decode()
    name = html.escape(settings.pipeline.name)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title><style>{STYLE}</style>",
        f"<h1>{name}</h1><p>{now:%Y-%m-%d %H:%M:%S} UTC, topics {html.escape(', '.join(settings.topics))}; "
        f"events in <code>{html.escape(found.events)}</code></p>",
        f"<p>{sum(found.parsed.values()):,} lines parsed, {sum(found.dead.values()):,} dead letters</p>",
    ]
    if found.audit is not None:
        kind = "bad" if found.audit.faulty else "good"
        parts.append(f"<p class={kind}>audit: {html.escape(str(found.audit))}</p>")
    parts.append(f'<img alt="aggregates" src="data:image/png;base64,{encoded}">')
    lines = [{"parser": name, "lines": count} for name, count in found.parsed.items()]
    parts.append(_table("Parsed", lines))
    parts.append(_table("Dead letters", [{"reason": name, "lines": count} for name, count in found.dead.items()]))
    for each in settings.aggregate:
        if each.kind == "top":
            parts.append(_table(_title(each), heaviest(settings, each.name, each.k).rows))
    faulty = [each for each in judged if each.verdict != "balanced"]
    parts.append(_table("Windows that do not balance", [each._asdict() for each in faulty]))
    return "\n".join(part for part in parts if part) + "</html>\n"


def _table(title: str, rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in rows[:ROWS_MAX])
    rest = f"<p>and {len(rows) - ROWS_MAX:,} more</p>" if len(rows) > ROWS_MAX else ""
    return f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{body}</table>{rest}"


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"<td class=n>{value:,}</td>"
    return f"<td>{html.escape('none' if value is None else str(value))}</td>"
