"""``appliance top``: rates, lag, disk and processes, live."""

from __future__ import annotations

import contextlib
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from ... import units
from .. import ending, output
from ..subject import CommandSubject
from ..target import ConnectOption, DataOption, JsonOption

ROWS_MAX: Final = 8
"""Rows of each table on a terminal."""


def top(
    interval: Annotated[float, typer.Option("--interval", min=0.1, metavar="S", help="Seconds between looks.")] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="End after N; else 1 without a terminal.")
    ] = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is busy, live: topics by rate, groups by lag, the disk and when it is full, processes by CPU.

    q or Ctrl-C ends it.  Into a pipe it prints tables, and with --json one object per look.  What only the kernel knows
    (disk, CPU) is shown for an appliance of this host, named by --data.

    [b]Examples[/b]

        appliance top --data /var/lib/appliance

        appliance top --json --count 60 --interval 1 | jq .bytes_per_s
    """
    from .activity import Sample, activity

    subject = CommandSubject(data, connect)

    def take() -> Sample:
        look = subject.look()
        return Sample(look, subject.groups(look).rows)

    live = sys.stdout.isatty() and not as_json
    looks_left = count or (None if live else 1)
    ended = threading.Event()
    with ending.end_in_order(), _typed("q", ended) if live else contextlib.nullcontext():
        before = take()
        while looks_left is None or looks_left > 0:
            if ended.wait(interval):
                return
            now = take()
            seen = activity(before, now)
            before, looks_left = now, None if looks_left is None else looks_left - 1
            if as_json:
                output.say(output.json_text(seen))
            else:
                if live:
                    output.clear()
                _print(seen)
            sys.stdout.flush()


def _print(seen: dict[str, Any]) -> None:
    full = seen["disk_full_s"]
    head = {
        "state": seen["state"],
        "zookeeper": seen["zookeeper"],
        "messages/s": f"{seen['messages_per_s']:,}",
        "bytes/s": units.size(seen["bytes_per_s"]),
        "connections": f"{seen['connections']:,}",
        "disk free": "-" if seen["disk_free"] is None else units.size(seen["disk_free"]),
        "disk full in": "-" if full is None else units.duration(full),
    }
    output.say("  ".join(f"{name} {value}" for name, value in head.items()))
    tables = (
        ("Topics", seen["topics"], ["topic", "messages_per_s", "bytes_per_s", "bytes", "not_online"]),
        ("Groups", seen["groups"], ["group", "lag_messages", "lag_seconds", "change_per_s", "members"]),
        ("Processes", seen["processes"], ["role", "topic", "partition", "pid", "cpu", "restarts"]),
    )
    for title, rows, columns in tables:
        if rows:
            output.say()
            shown = rows[:ROWS_MAX] if sys.stdout.isatty() else rows
            output.print_rows(shown, columns, title=f"{title} ({len(rows)})")


@contextlib.contextmanager
def _typed(key: str, event: threading.Event) -> Iterator[None]:
    """Sets the event when somebody types the key.  The terminal gets its settings back."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def read() -> None:
        while typed := sys.stdin.read(1):
            if typed == key:
                event.set()
                return

    threading.Thread(target=read, name="keys", daemon=True).start()
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Looking after it")(top)
