"""Defines the command ``appliance demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..target import JsonOption


def demo(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", readable=False, help="Text files; the logs in /var/log if none."),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", min=1, help="Ship files that have fewer lines several times over.")
    ] = 300_000,
    pipeline: Annotated[
        bool, typer.Option("--pipeline/--no-pipeline", help="In the end, turn the lines into tables with Spark.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Ship log files through an appliance and account for every line.  Only tables of them stay.

    Starts an appliance with a local ZooKeeper ensemble on free ports and a temporary directory, creates topics and
    ships the files.  Consumes them with a group of two processes, kills one of them (SIGKILL) and replaces it.
    Compares input and output per partition.  Then the Spark pipeline writes the same lines to Parquet tables, which
    stay, and audits them.  Exit status 1 when a line is lost, altered or out of order.

    [b]Examples[/b]

        appliance demo

        appliance demo /var/log/syslog app.log --json
    """
    from .scenario import run

    raise typer.Exit(run(files or [], lines, pipeline, as_json))


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Running one")(demo)
