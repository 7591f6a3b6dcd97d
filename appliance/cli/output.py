"""Prints for the command line: tables on a terminal, tab-separated lines in a pipe, JSON with ``--json``.

Results go to standard output and everything else (progress, remarks, errors) to standard error, so that a pipe gets
results only.  rich is imported only when something is drawn on a terminal; a pipe, a script and ``appliance start`` do
not need it.

Printed text may come from others: names of groups and clients, keys, values, messages of errors.  So all of it goes
through :func:`safe`: none of it can move the cursor, hide itself, or change the text beside it.  No other module of the
command line prints.  The only exception are messages: ``consume`` and ``tail`` write them unchanged into a pipe or a
file, and ``consume --raw`` also to a terminal (``messages/message_text.py``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from .. import units

OutputRow = Mapping[str, Any]

WIDE_COLUMNS = 80
"""A table that does not fit a terminal narrower than this is printed as blocks; a wider one folds its cells, unless
that would break numbers, or words up to WORD_CHARACTERS."""
WORD_CHARACTERS = 16

MARKS_MAX = 4
"""Most combining marks on one letter; more would reach into the lines above."""


def safe(text: object, *, kept: str = "") -> str:
    """``text`` for a terminal: characters that are not visible, and not in ``kept``, are escaped.

    Escaped are control characters (C0, C1, DEL), format characters (which change the direction of writing or have no
    width), line and paragraph separators, surrogates, unassigned characters, and the marks on one letter beyond
    :data:`MARKS_MAX`.  Bytes are decoded as UTF-8; invalid ones become ``\\xff``.
    """
    shown = text.decode(errors="backslashreplace") if isinstance(text, bytes) else str(text)
    if shown.isprintable() and (shown.isascii() or not any(map(unicodedata.combining, shown))):
        return shown
    pieces: list[str] = []
    marks = 0
    for character in shown:
        marks = marks + 1 if unicodedata.combining(character) else 0
        visible = character.isprintable() or unicodedata.category(character) == "Zs" or character in kept
        pieces.append(character if visible and marks <= MARKS_MAX else _escaped(character))
    return "".join(pieces)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def moment(seconds: float) -> str:
    """A time since 1970 in this host's zone, as ISO 8601."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def say(text: object = "") -> None:
    """Print a line of a result."""
    print(safe(text))


def say_exactly(text: str) -> None:
    """Print whole lines of a result: as they are into a pipe or a file, and as :func:`safe` shows them to a person."""
    shown = safe(text, kept="\n") if sys.stdout.isatty() else text
    sys.stdout.write(shown)


def json_text(value: object, indent: int | None = None) -> str:
    """JSON of ``value``; characters that :func:`safe` would escape become ``\\u`` escapes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if all(line.isprintable() for line in text.split("\n")):
        return text
    # A line break here is one between values: json escapes those inside of texts.
    return "".join(
        character
        if character.isprintable() or character == "\n" or unicodedata.category(character) == "Zs"
        else json.dumps(character)[1:-1]
        for character in text
    )


def print_json(value: object) -> None:
    print(json_text(value, 2 if sys.stdout.isatty() else None))


def print_rows(rows: Sequence[OutputRow], columns: Sequence[str], *, title: str = "", as_json: bool = False) -> None:
    """Print ``columns`` of ``rows``; with ``as_json`` whole rows, as a list.

    In a pipe: one header line and one line per row, tabs between the fields, plain numbers.
    """
    if as_json:
        print_json(list(rows))
    elif sys.stdout.isatty() and not rows:
        say("none")
    elif sys.stdout.isatty():
        _draw(rows, columns, title)
    else:
        print_fields(columns)
        for row in rows:
            print_fields([field(row.get(column)) for column in columns])


def print_settings(described: dict[str, Any], *, title: str = "") -> None:
    """A table of ``settings``, and of where each comes from: ``sources``."""
    rows = [
        {"setting": name, "value": value, "from": described["sources"][name]}
        for name, value in sorted(described["settings"].items())
    ]
    print_rows(rows, ["setting", "value", "from"], title=title)


def print_fields(fields: Sequence[str]) -> None:
    """Print one tab-separated line."""
    print("\t".join(map(safe, fields)))


def field(value: object) -> str:
    """One value as text without tabs and line breaks; "-" for None and for empty lists."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return safe(_flat(" ".join(f"{name}={inner}" for name, inner in value.items()))) or "-"
    if isinstance(value, list | tuple):
        return safe(_flat(" ".join(map(str, value)))) or "-"
    return safe(_flat(str(value)))


def _flat(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")


def _draw(rows: Sequence[OutputRow], columns: Sequence[str], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    cells = [[human(column, row.get(column)) for column in columns] for row in rows]
    texts_of = [[column.replace("_", " "), *texts] for column, *texts in zip(columns, *cells, strict=True)]
    borders = 3 * len(columns) + 1
    whole, folded = (sum(map(width, texts_of)) + borders for width in (_whole_width, _folded_width))
    if len(columns) > 1 and whole > console.width and (console.width < WIDE_COLUMNS or folded > console.width):
        _draw_as_blocks(rows, columns, title)
        return
    table = Table(title=Text(safe(title)) if title else None, title_justify="left", header_style="bold")
    for column, texts in zip(columns, texts_of, strict=True):
        numeric = bool(rows) and all(isinstance(row.get(column), int | float | None) for row in rows)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(Text(safe(texts[0])), justify=justify, overflow="fold", min_width=_folded_width(texts))
    for row in rows:
        table.add_row(*(Text(human(column, row.get(column)), style=style(column, row)) for column in columns))
    console.print(table)


def _whole_width(texts: Sequence[str]) -> int:
    return max(map(len, texts))


def _folded_width(texts: Sequence[str]) -> int:
    """The least width of a column: breaks are at blanks, and inside of words that are long."""
    return max(min(len(word), WORD_CHARACTERS) for text in texts for word in text.split() or [""])


def _draw_as_blocks(rows: Sequence[OutputRow], columns: Sequence[str], title: str) -> None:
    """Print each row as lines of name and value, where a table would not fit; empty values are left out."""
    width = max(map(len, columns))
    if title:
        say(title)
    for row in rows:
        first, *rest = [(column.replace("_", " "), human(column, row.get(column))) for column in columns]
        say(f"* {first[1]}")
        for name, value in rest:
            if value not in ("", "-"):
                say(f"  {name:{width}} {value}")


def style(column: str, row: OutputRow) -> str:
    if column != "state":
        return ""
    good = row.get("state") in ("online", "serving", "connected", "stable")
    return "green" if good else "yellow" if row.get("state") in ("stopped", "opening", "empty") else "red"


def human(column: str, value: object) -> str:
    """A field for people: grouped digits, sizes with a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return field(value)
    if column in ("bytes", "lag_bytes", "lost_bytes", "bytes_per_s", "bytes_in", "bytes_out", "in_s", "out_s"):
        return units.size(int(value))
    if column == "cpu":
        return f"{value:.0%}"
    if column in ("offset", "end", "start", "messages", "repeats", "lag_messages", "messages_per_s", "change_per_s"):
        return f"{value:,}"
    return str(value)


def clear() -> None:
    """Empty the terminal, for a display that is drawn again."""
    print("\x1b[H\x1b[2J", end="")


def remark(text: str) -> None:
    """Print something that is not a result."""
    print(safe(text, kept="\n"), file=sys.stderr, flush=True)


def prompt(question: str) -> None:
    """Print a question, so that the answer is typed behind it."""
    print(safe(question), end="", file=sys.stderr, flush=True)


class Remarks(logging.Handler):
    """Prints log messages of the client as remarks."""

    def emit(self, record: logging.LogRecord) -> None:
        remark(f"appliance: {record.getMessage()}")


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar over ``total`` bytes on a terminal, nothing elsewhere.  Yields a function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
