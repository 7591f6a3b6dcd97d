"""``appliance check``: whether this host can run an appliance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import output
from ..service_commands import ConfigOption, OverridesOption
from ..target import JsonOption

CONFIGURATION = 78


def check(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", readable=False, help="Where the logs will be; need not exist yet.")
    ] = Path("/var/lib/appliance"),
    config: ConfigOption = None,
    settings: OverridesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a host before an appliance is installed: kernel, memory, limits, disk, Java, clock, ports.

    Measures how long fdatasync takes, with a file of 4 KiB beside the data.  Exit status 78 when a start would fail.

    [b]Examples[/b]

        appliance check

        appliance check --data /srv/logs --config /etc/appliance/appliance.toml --json
    """
    from ...config import load
    from .machine_checks import WRONG, run_checks

    rows = run_checks(load(config, settings or []), data)
    output.print_rows([row._asdict() for row in rows], ["check", "state", "found", "advice"], as_json=as_json)
    if any(row.state == WRONG for row in rows):
        raise typer.Exit(CONFIGURATION)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Running one")(check)
