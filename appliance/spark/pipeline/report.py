"""Writes the page of a pipeline: one HTML file with what is asked daily, each panel with its question.

``report_panels`` asks and ``svg_charts`` draws.  The page is self-contained, so it can be mailed.  Texts from messages
are shown and never interpreted: they are escaped, and the page forbids scripts and all that is not in it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ...errors import BadValue
from .audit_counts import windows_of
from .audit_verdicts import verdict, windows
from .event_questions import Questions, questions
from .report_panels import RANKED, Asked, Bounds, Panel, audit_panel, history_panels, panels, view_panel
from .settings import Settings
from .state_directory import State
from .svg_charts import duration, number
from .view_states import views_of
from .view_table import ViewTable

VIEW_ROWS_MAX: Final = 1000
"""So many of the newest rows of a view are drawn."""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #222 }
h2 { font-size: 105%; margin: 1.6em 0 0 } nav a { margin-right: 1em; white-space: nowrap }
.caption { color: #555; margin: 0 } .now { display: flex; flex-wrap: wrap; gap: .6em }
.now div { border: 1px solid #ddd; border-radius: 6px; padding: .3em .9em }
.now b { display: block; font-size: 130%; font-variant-numeric: tabular-nums }
svg { width: 100%; font-size: 11px } svg text { fill: #555 } .grid { stroke: #e6e6e6 } .tick { stroke: #999 }
.curve { fill: none; stroke-width: 1.5 }
.legend { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap; gap: .2em 1.2em; font-size: 90% }
.legend b { display: inline-block; width: .8em; height: .8em; margin-right: .4em }
.rank { display: flex; align-items: center; gap: .6em } .rank span { width: 40%; overflow-wrap: anywhere }
.rank b { background: #2563a8; height: .8em; min-width: 1px } .rank i { font-style: normal }
table { border-collapse: collapse; margin: .5em 0; font-size: 90% } th, td { padding: .1em .7em; text-align: left }
td { overflow-wrap: anywhere } tr:nth-child(even) { background: #f4f4f4 } .n { text-align: right; white-space: nowrap }
pre { background: #f4f4f4; padding: .6em; overflow-x: auto; font-size: 85% } summary { color: #555; font-size: 85% }
.bad { color: #b00020 } .good { color: #1b7f3b } .unknown { color: #777 }"""


def zone_of(name: str) -> tzinfo:
    """Raises BadValue if there is no such time zone."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise BadValue(f"there is no time zone {name!r}: as in UTC, Europe/Berlin") from None


def write(
    settings: Settings,
    directory: Path,
    now: datetime | None = None,
    zone: tzinfo = UTC,
    bounds: Bounds = (None, None),
) -> Path:
    """Write the page to ``directory``, with times in this zone.  Returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{settings.pipeline.name}.html"
    path.write_text("\n".join(_page(settings, now or datetime.now(UTC), zone, bounds)))
    return path


def _page(settings: Settings, now: datetime, zone: tzinfo, bounds: Bounds) -> Iterator[str]:
    name, history = html.escape(settings.pipeline.name), State(settings.state_dir).history()
    asked = questions(settings)
    shown_panels: list[Panel] = []
    about = "there is no table of events yet"
    tiles: list[tuple[str, str, str]] = []
    if asked is not None:
        chosen = Asked(asked, settings, bounds, zone)
        shown_panels += panels(chosen)
        if chosen.span is None:
            about = "no lines yet"
        else:
            outside = f"; {chosen.outside:,} lines are outside of this time" if chosen.outside else ""
            about = f"lines of {chosen.said}{outside}; version {asked.version} of events"
            tiles += _tiles(asked, now)
    shown_panels += history_panels(history, zone)
    counted = windows_of(settings, asked)
    judged = windows(counted, now, settings.audit.grace_ms)
    if settings.audit.topic:
        said = verdict(judged)
        kind = "bad" if said.faulty else "good" if said.audited else "unknown"
        tiles.append(("audit", str(said), kind))
        shown_panels += [audit_panel(judged, settings.audit.window_ms, zone)] if judged else []
    shown_panels += _views(settings, zone)
    yield (
        '<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{name}</title>'
        f"<style>{STYLE}</style></head><body><h1>{name}</h1>"
    )
    topics = html.escape(", ".join(settings.topics))
    yield f"<p>{now.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}; topics {topics}; {about}</p>"
    shown = (f'<div class="{kind}">{title}<b>{html.escape(value)}</b></div>' for title, value, kind in tiles)
    yield f"<div class=now>{''.join(shown)}</div>"
    links = (f'<a href="#p{place}">{html.escape(panel.title)}</a>' for place, panel in enumerate(shown_panels))
    yield f"<nav>{' '.join(links)}</nav>"
    for place, panel in enumerate(shown_panels):
        yield from _section(f"p{place}", panel, zone)
    yield "</body></html>\n"


def _tiles(asked: Questions, now: datetime) -> Iterator[tuple[str, str, str]]:
    """What is said at the top: title, value, class."""
    (row,) = asked.rows(
        f"select sum({asked.lines}) as lines, sum({asked.lines}) filter (where rejected is not null) as rejected, "
        "max(received) as newest from events"
    )
    yield "lines in the table", number(row["lines"]), ""
    yield "rejected", number(row["rejected"] or 0), "bad" if row["rejected"] else ""
    age_s = max(0, int((now - row["newest"]).total_seconds()))
    yield "the newest line came", f"{duration(age_s)} ago", ""


def _views(settings: Settings, zone: tzinfo) -> Iterator[Panel]:
    for view in views_of(settings):
        table = ViewTable(settings.output, view.name)
        if not table.exists:
            yield Panel(f"View {view.name}", f"{view.about} It has no table yet.", "", (), view.sql)
            continue
        rows = table.newest(VIEW_ROWS_MAX)
        basis = table.basis()
        about = f"{view.about} As of version {basis.version} of events." if basis is not None else view.about
        yield view_panel(view.name, about, view.sql, rows, zone)


def _section(anchor: str, panel: Panel, zone: tzinfo) -> Iterator[str]:
    yield f"<section id={anchor}><h2>{html.escape(panel.title)}</h2><p class=caption>{html.escape(panel.caption)}</p>"
    yield panel.chart
    if panel.rows and "class=rank" not in panel.chart:
        yield _table(panel.rows, zone)
    if panel.sql:
        yield f"<details><summary>its SQL</summary><pre>{html.escape(panel.sql)}</pre></details>"
    yield "</section>"


def _table(rows: Sequence[Mapping[str, Any]], zone: tzinfo) -> str:
    head = "".join(f"<th>{html.escape(str(column).replace('_', ' '))}</th>" for column in rows[0])
    body = "".join(f"<tr>{''.join(_cell(value, zone) for value in row.values())}</tr>" for row in rows[:RANKED])
    more = f"<p>and {len(rows) - RANKED:,} more</p>" if len(rows) > RANKED else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _cell(value: Any, zone: tzinfo) -> str:
    match value:
        case bool() | None | str():
            return f"<td>{html.escape('none' if value is None else str(value))}</td>"
        case int() | float():
            return f"<td class=n>{value:,}</td>"
        case datetime():
            return f"<td>{value.astimezone(zone):%Y-%m-%d %H:%M:%S}</td>"
    return f"<td>{html.escape(str(value))}</td>"
