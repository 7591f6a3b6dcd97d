"""``appliance doctor``: what is wrong now, why, and what to do."""

from __future__ import annotations

import threading
from typing import Annotated, Final

import typer

from .. import output
from ..target import Connect, Data, Json, data_dir

BETWEEN_S: Final = 0.5
PAGE: Final = "systemd/README.md"


def doctor(
    data: Data = None,
    connect: Connect = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only what is wrong, no warnings.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with an appliance now, why, what to do, and where it is explained.

    Looks twice, half a second apart.  Exit status: 74 when a log is damaged, 75 when something else is wrong, 0 when
    there are warnings at most.

    [b]Examples[/b]

        appliance doctor --data /var/lib/appliance

        appliance doctor --quiet --json | jq -r '.[].what'
    """
    if data is not None and connect is not None:
        raise typer.BadParameter("--data and --connect: give one of them")
    from .findings import WRONG, judge
    from .samples import take

    directory = None if connect else data_dir(data)
    before = take(directory, connect, with_groups=False)
    threading.Event().wait(BETWEEN_S)
    found = judge(before, take(directory, connect))
    if quiet:
        found = [finding for finding in found if finding.level == WRONG]
    if as_json:
        output.print_json([{**finding._asdict(), "page": f"{PAGE}#{finding.page}"} for finding in found])
    else:
        for finding in found:
            output.say(f"{finding.level}: {finding.what}")
            for name, text in (("why", finding.why), ("do", finding.do), ("page", f"{PAGE}#{finding.page}")):
                if text:
                    output.say(f"  {name:4} {text}")
        if not found:
            output.say("nothing is wrong")
    worst = [finding.status for finding in found if finding.level == WRONG]
    if worst:
        raise typer.Exit(min(worst))


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Looking after it")(doctor)
