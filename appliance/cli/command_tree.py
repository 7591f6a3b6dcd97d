"""Makes the tree of all commands, from the modules that have them.

There is one module per group of commands.  Only that of the command that is called is imported, and it imports the
packages of the appliance when the command runs.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Final

import typer

from .. import __version__
from . import output
from .faults import EXIT_STATUSES
from .invocation import Commands

MODULES: Final = {
    "service_commands": ("start", "status"),
    "contexts_commands": ("contexts",),
    "clients_command": ("clients",),
    "health_commands": ("health", "reload", "accept-clock"),
    "data_commands": ("produce", "consume"),
    "messages.tail_command": ("tail",),
    "sql_command": ("sql",),
    "topics_commands": ("topics",),
    "groups_commands": ("groups",),
    "transactions_commands": ("transactions",),
    "offsets_command": ("offsets",),
    "inputs_commands": ("ship", "inputs"),
    "users_commands": ("users",),
    "roles_commands": ("roles",),
    "pipeline_commands": ("pipeline",),
    "diagnosis.doctor_command": ("doctor",),
    "diagnosis.top_command": ("top",),
    "diagnosis.report_command": ("report",),
    "interactive_shell": ("shell",),
    "diagnosis.check_command": ("check",),
    "log_commands": ("log",),
    "acl_commands": ("acl",),
    "quotas_commands": ("quotas",),
    "config_commands": ("config",),
    "backup_command": ("backup",),
    "demo.command": ("demo",),
    "bench_command": ("bench",),
}
"""The commands that each module registers, in the order of the help."""

HELP: Final = """A log broker in one box: push logs in, pull them out in groups.

[b]A first walk[/b]

    appliance start --data /tmp/box &

    appliance topics create web --partitions 2 --data /tmp/box

    appliance produce web /var/log/dpkg.log --data /tmp/box

    appliance consume web --from earliest --timeout 1 --data /tmp/box

APPLIANCE_DATA or APPLIANCE_CONNECT in the environment save --data or --connect, and so does [b]appliance contexts[/b].
All of it at once:
[b]appliance demo[/b]."""


def tree(command: str = "") -> typer.Typer:
    """All commands; only the module of ``command`` if there is such a command, for a process that runs it."""
    app = typer.Typer(
        name="appliance",
        cls=Commands,
        callback=_root,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="[b]Exit statuses[/b]  " + " · ".join(f"[b]{code}[/b] {what}" for code, what in EXIT_STATUSES.items()),
        help=HELP,
    )
    chosen = [name for name, commands in MODULES.items() if command in commands]
    for name in chosen or MODULES:
        importlib.import_module(f".{name}", __package__).register(app)
    return app


def _show_version(show: bool) -> None:
    if show:
        output.say(f"appliance {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass
