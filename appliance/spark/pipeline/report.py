"""Draws the pipeline's tables: one PNG, and one HTML page with the same pictures and numbers.

``report_panels`` chooses the panels, ``charts`` paints them.  The page is self-contained, so it can be mailed.  Texts
from messages are shown and never interpreted: they are escaped, and the page forbids scripts and all that is not in it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ...errors import BadValue
from .audit_verdicts import windows
from .charts import Panel, draw, stack
from .pipeline_status import Summary, heaviest, read_total, summary
from .report_panels import bound, panels, title_of
from .settings import Settings
from .state_directory import State

ROWS_MAX: Final = 50
POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #222 }
nav a { margin-right: 1em; white-space: nowrap } figure { margin: 0 0 1em } figcaption { color: #555; font-size: 90% }
table { border-collapse: collapse; margin: 1em 0; max-width: 100% }
th, td { padding: .2em .8em; text-align: left } td { overflow-wrap: anywhere } th, .n { white-space: nowrap }
tr:nth-child(even) { background: #f4f4f4 } .n { text-align: right; font-variant-numeric: tabular-nums }
img { max-width: 100% } .bad { color: #b00020 } .good { color: #1b7f3b }"""
Row = dict[str, Any]


def zone_of(name: str) -> tzinfo:
    """Raises BadValue if there is no such time zone."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise BadValue(f"there is no time zone {name!r}: as in UTC, Europe/Berlin") from None


def write(settings: Settings, directory: Path, now: datetime | None = None, zone: tzinfo = UTC) -> tuple[Path, Path]:
    """Write the page and the picture to ``directory``, with times in this zone.  Returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    now = now or datetime.now(UTC)
    picture = directory / f"{settings.pipeline.name}.png"
    page = directory / f"{settings.pipeline.name}.html"
    judged = windows(read_total(settings, "audit"), now, settings.audit.grace_ms)
    found = panels(settings, State(settings.state_dir).history(), judged, zone)
    pictures = draw(found)
    picture.write_bytes(stack(found, pictures))
    summed = summary(settings, now)
    tables = dict(_tables(settings, summed, [each._asdict() for each in judged], zone))
    page.write_text(_page(settings, summed, list(zip(found, pictures, strict=True)), tables, now.astimezone(zone)))
    return page, picture


def _tables(settings: Settings, found: Summary, judged: Sequence[Row], zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Titles and tables."""
    yield "Parsed", _table([{"parser": name, "lines": count} for name, count in found.parsed.items()], zone)
    yield "Dead letters", _table([{"reason": name, "lines": count} for name, count in found.dead.items()], zone)
    for each in settings.aggregate:
        if each.kind == "top":
            ranking = heaviest(settings, each.name, each.k)
            note = f"<p>summed over all windows; {html.escape(bound(ranking))}</p>" if ranking.rows else ""
            yield title_of(each), note + _table(ranking.rows, zone)
    faulty = [each for each in judged if each["verdict"] != "balanced"]
    yield "Windows that do not balance", _table(faulty, zone)


def _page(
    settings: Settings, found: Summary, shown: Sequence[tuple[Panel, bytes]], tables: dict[str, str], now: datetime
) -> str:
    name = html.escape(settings.pipeline.name)
    tables = {title: table for title, table in tables.items() if table}
    numbers = {title: f"numbers-{index}" for index, title in enumerate(tables)}
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<meta name=viewport content='width=device-width'><title>{name}</title><style>{STYLE}</style></head><body>",
        f"<h1 id=top>{name}</h1><p>{now:%Y-%m-%d %H:%M:%S %Z}; all times in {html.escape(now.tzname() or '')}; "
        f"topics {html.escape(', '.join(settings.topics))}; events in <code>{html.escape(found.events)}</code></p>",
        f"<p>{sum(found.parsed.values()):,} lines parsed, {sum(found.dead.values()):,} dead letters</p>",
    ]
    if found.audit is not None:
        kind = "bad" if found.audit.faulty else "good" if found.audit.audited else "unknown"
        parts.append(f"<p class={kind}>audit: {html.escape(str(found.audit))}</p>")
    links = [(f"panel-{index}", panel.title) for index, (panel, _) in enumerate(shown)]
    links += [(anchor, f"{title} (numbers)") for title, anchor in numbers.items()]
    parts.append(f"<nav>{' '.join(_link(*each) for each in links)}</nav>")
    for index, (panel, picture) in enumerate(shown):
        title = html.escape(panel.title)
        more = [_link("top", "top")]
        more += [_link(numbers[panel.title], "numbers")] if panel.title in numbers else []
        parts.append(
            f'<section id=panel-{index}><h2>{title}</h2><figure><img alt="{title}" src="{_url(picture)}">'
            f"<figcaption>{html.escape(panel.caption)}. {' '.join(more)}</figcaption></figure></section>"
        )
    panel_of = {panel.title: f"panel-{index}" for index, (panel, _) in enumerate(shown)}
    for title, table in tables.items():
        back = _link(panel_of[title], "picture") if title in panel_of else ""
        parts.append(f"<section id={numbers[title]}><h2>{html.escape(title)}</h2>{back}{table}</section>")
    return "\n".join(parts) + "</body></html>\n"


def _url(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def _link(anchor: str, text: str) -> str:
    return f'<a href="#{anchor}">{html.escape(text)}</a>'


def _table(rows: Sequence[Row], zone: tzinfo) -> str:
    if not rows:
        return ""
    kinds = [" class=n" if isinstance(value, int | float) else "" for value in rows[0].values()]
    head = "".join(
        f"<th{kind}>{html.escape(str(name).replace('_', ' '))}</th>" for name, kind in zip(rows[0], kinds, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cells(row.values(), zone))}</tr>" for row in rows[:ROWS_MAX])
    rest = f"<p>and {len(rows) - ROWS_MAX:,} more</p>" if len(rows) > ROWS_MAX else ""
    return f"<table><tr>{head}</tr>{body}</table>{rest}"


def _cells(values: Iterable[Any], zone: tzinfo) -> Iterator[str]:
    for value in values:
        match value:
            case bool() | None | str():
                yield f"<td>{html.escape('none' if value is None else str(value))}</td>"
            case int() | float():
                yield f"<td class=n>{value:,}</td>"
            case datetime():
                yield f"<td>{value.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}</td>"
            case _:
                yield f"<td>{html.escape(str(value))}</td>"
