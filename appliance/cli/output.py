"""How the command line prints: rich tables on a terminal, tab-separated lines in a pipe, JSON when asked.

Results go to standard output and everything else (progress, remarks, faults) to standard error, so that a
pipe sees results only.  rich is imported only when something is drawn on a terminal: a pipe, a script and
``appliance start`` do not pay for it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def print_rows(rows: Sequence[Row], columns: Sequence[str], *, title: str = "", as_json: bool = False) -> None:
    """``columns`` of ``rows``; with ``as_json`` whole rows, as a list.

    In a pipe: one header line and one line per row, tabs between the fields, numbers as they are.
    """
    if as_json:
        print_json(list(rows))
    elif sys.stdout.isatty() and not rows:
        print("none")
    elif sys.stdout.isatty():
        _draw(rows, columns, title)
    else:
        print("\t".join(columns))
        for row in rows:
            print("\t".join(field(row.get(column)) for column in columns))


def field(value: object) -> str:
    """One value on one line: nothing for None, no tab or line break inside."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{name}={inner}" for name, inner in value.items()) or "-"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "-"
    return str(value).replace("\t", " ").replace("\n", " ")


def _draw(rows: Sequence[Row], columns: Sequence[str], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric and rows else "left")
    for row in rows:
        table.add_row(*(Text(human(column, row.get(column)), style=style(column, row)) for column in columns))
    Console().print(table)


def style(column: str, row: Row) -> str:
    if column != "state":
        return ""
    good = row.get("state") in ("online", "serving", "connected", "stable")
    return "green" if good else "yellow" if row.get("state") in ("stopped", "opening", "empty") else "red"


def human(column: str, value: object) -> str:
    """A field as people read it: grouped digits, sizes with a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return field(value)
    if column in ("bytes", "lag_bytes"):
        return size(int(value))
    if column in ("offset", "end", "start", "messages", "repeats", "lag_messages"):
        return f"{value:,}"
    return str(value)


def size(count: int) -> str:
    """Bytes with a binary unit: ``1.5 GiB``."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def remark(text: str) -> None:
    """Say something that is not a result."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over ``total`` bytes on a terminal, nothing elsewhere; call what is yielded to advance it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
