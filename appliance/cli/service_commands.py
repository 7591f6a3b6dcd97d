"""``appliance start`` and ``appliance status``: runs an appliance, shows the state of one.

``start`` imports only the supervisor and the configuration, so that it serves soon.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import KEYS, Config, load
from ..errors import BadValue
from . import output
from .target import Connect, Data, Json, cluster, data_dir

if TYPE_CHECKING:
    from ..processes.supervisor.side_processes import SideArguments


CONSOLE_PACKAGES = ("starlette", "uvicorn")


def _complete_key(incomplete: str) -> list[str]:
    return [f"{name}=" for name in KEYS if name.startswith(incomplete)]


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE.toml", readable=False, help="Configuration; `appliance config show` prints one."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=_complete_key,
        help="One key, over what the file says, such as native.listen=127.0.0.1:0; repeatable.",
    ),
]


def start(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", readable=False, help="Where logs are kept; made if need be.")
    ],
    config: ConfigFile = None,
    settings: Overrides = None,
) -> None:
    """Run an appliance in the foreground until SIGTERM or Ctrl-C.

    Prints one line to standard output when it serves, and its log to standard error.  SIGHUP reads the
    configuration again.

    [b]Examples[/b]

        appliance start --data /var/lib/appliance

        appliance start --data /tmp/box --set zookeeper.nodes=1 --set kafka.listen=127.0.0.1:9192

        appliance start --data box --set native.listen=127.0.0.1:0 --set kafka.listen=127.0.0.1:0
    """
    from . import event_log

    def read() -> Config:
        chosen = load(config, settings or [])
        event_log.configure(chosen.log)
        return chosen

    chosen = read()
    if chosen.console.listen and any(importlib.util.find_spec(name) is None for name in CONSOLE_PACKAGES):
        raise BadValue(
            f"console.listen = {chosen.console.listen}: its packages are missing: pip install 'appliance[console]'"
        )
    from ..processes import supervisor  # after the configuration, so that a wrong one fails at once

    raise typer.Exit(supervisor.run(chosen, data, read, SIDE_ROLES))


def _serve_metrics(arguments: SideArguments) -> None:
    from ..metrics import metrics_server

    metrics_server.serve(arguments)


def _serve_console(arguments: SideArguments) -> None:
    from ..console import console_process

    console_process.serve(arguments)


SIDE_ROLES: Mapping[str, Callable[[SideArguments], None]] = {"console": _serve_console, "metrics": _serve_metrics}
"""The processes beside the data path, each with its key ROLE.listen.  They import what they need after the fork."""


def status(data: Data = None, connect: Connect = None, as_json: Json = False) -> None:
    """Show listeners, processes and partitions, of a running appliance or of a data directory.

    [b]Examples[/b]

        appliance status --data /var/lib/appliance

        appliance status --connect logs.example.net:9091 --json
    """
    directory = None if connect else data_dir(data)
    if data is not None and connect is not None:
        raise typer.BadParameter("--data and --connect: give one of them")
    if directory is not None:
        from ..status import collect

        seen = collect(directory)
    else:
        with cluster(None, connect) as asked:
            seen = asked.admin("status", {})
    if as_json:
        output.print_json(seen)
    else:
        _print_status(seen)


def _print_status(seen: dict[str, Any]) -> None:
    zookeeper = seen["zookeeper"]
    head = [("state", seen["state"]), ("data", seen["data"]), *seen["listeners"].items()]
    if seen["insecure"]:
        head.append(("INSECURE", f"open to other hosts without TLS and authentication: {', '.join(seen['insecure'])}"))
    head.append(("zookeeper", " ".join(filter(None, (zookeeper["state"], zookeeper["connect"])))))
    for name, value in head:
        if sys.stdout.isatty():
            output.say(f"{name:>10}  {value}")
        else:
            output.print_fields([f"{name}:", str(value)])
    if seen["processes"]:
        output.say()
        columns = ["role", "topic", "partition", "pid", "started", "restarts"]
        rows = [{**row, "started": _moment(row["started"])} for row in seen["processes"]]
        output.print_rows(rows, columns, title="Processes")
    if seen["refused"]:
        output.say()
        rows = [{**row, "since": _moment(row["since"])} for row in seen["refused"]]
        output.print_rows(rows, ["action", "waiting", "since", "attempts", "reason"], title="Refused by the machine")
    if seen["limits"]:
        output.say()
        rows = [{**row, "since": row["since"] and _moment(row["since"])} for row in seen["limits"]]
        columns = ["limit", "process", "value", "in_use", "since", "advice"]
        output.print_rows(rows, columns, title="Limits reached")
    if seen["refusals"]:
        output.say()
        rows = [{"reason": reason, "count": count} for reason, count in seen["refusals"].items()]
        output.print_rows(rows, ["reason", "count"], title="Refused to clients")
    if seen["removals"]:
        output.say()
        output.print_rows(seen["removals"], ["topic", "partitions", "whole"], title="Being deleted")
    if seen["partitions"]:
        output.say()
        columns = ["topic", "partition", "start", "end", "bytes", "messages", "state"]
        if any("reason" in row for row in seen["partitions"]):
            columns.append("reason")
        output.print_rows(seen["partitions"], columns, title="Partitions")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Running one")(start)
    app.command(rich_help_panel="Running one")(status)
