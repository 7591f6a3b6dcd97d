"""The command line: parse, call, print.  ``appliance --help`` is its manual.

There is one module per group of commands; this one puts them together.  Commands import the packages of the appliance
when they run, so that ``appliance start`` and shell completion load only what they use.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from .. import __version__
from . import (
    acl_commands,
    backup_command,
    bench_command,
    config_commands,
    data_commands,
    groups_commands,
    health_commands,
    interactive_shell,
    log_commands,
    output,
    pipeline_commands,
    service_commands,
    topics_commands,
    users_commands,
)
from .demo import command as demo_command
from .diagnosis import check_command, doctor_command, top_command
from .faults import EXIT_STATUSES
from .invocation import Commands, run
from .messages import tail_command

app = typer.Typer(
    name="appliance",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="[b]Exit statuses[/b]  " + " · ".join(f"[b]{code}[/b] {what}" for code, what in EXIT_STATUSES.items()),
    help="""A log broker in one box: push logs in, pull them out in groups.

    [b]A first walk[/b]

        appliance start --data /tmp/box &

        appliance topics create web --partitions 2 --data /tmp/box

        appliance produce web /var/log/dpkg.log --data /tmp/box

        appliance consume web --from earliest --timeout 1 --data /tmp/box

    APPLIANCE_DATA or APPLIANCE_CONNECT in the environment save --data or --connect.  All of it at once:
    [b]appliance demo[/b].""",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        output.say(f"appliance {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


service_commands.register(app)
health_commands.register(app)
data_commands.register(app)
tail_command.register(app)
app.add_typer(topics_commands.app, name="topics", rich_help_panel="Topics and groups")
app.add_typer(groups_commands.app, name="groups", rich_help_panel="Topics and groups")
app.add_typer(users_commands.app, name="users", rich_help_panel="Who may do what")
app.add_typer(pipeline_commands.app, name="pipeline", rich_help_panel="Topics and groups")
for command in (doctor_command, top_command, interactive_shell, check_command):
    command.register(app)
app.add_typer(log_commands.app, name="log", rich_help_panel="Looking after it")
app.add_typer(acl_commands.app, name="acl", rich_help_panel="Looking after it")
app.add_typer(config_commands.app, name="config", rich_help_panel="Looking after it")
backup_command.register(app)
demo_command.register(app)
bench_command.register(app)


def main() -> None:
    """Entry point of ``.venv/bin/appliance``."""
    logging.basicConfig(level=logging.WARNING, handlers=[output.Remarks()])
    sys.exit(run(app, sys.argv[1:]))
