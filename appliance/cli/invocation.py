"""Runs one command line and returns its exit status; :mod:`.faults` has the table of exit statuses.

On a terminal, usage errors are drawn by the library.  Elsewhere they are lines that nothing wraps or cuts, and with
``--json`` objects, as all other errors.

Arguments are bytes to the system.  Those that are names, numbers and times must be UTF-8, else they are a usage error;
options that take any bytes have :func:`any_bytes` as their callback, and paths are the system's own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer
import typer.core
import typer.exceptions

from ..errors import ApplianceError
from ..table_faults import told_of
from . import contexts, output
from .ending import CommandEnded, end_on_closed_pipe
from .faults import Fault, named_in, report, show
from .help_text import shaped
from .spelling import respelled

USAGE_ERROR: Final = "UsageError"
USAGE_STATUS: Final = 2
ANSWERED_NO: Final = 1
SECONDS_MAX: Final = 1_000_000_000
"""Largest number with a fraction: all of them are seconds, and the system waits no longer than this."""


@contextlib.contextmanager
def _shown_safely() -> Iterator[None]:
    """Escapes the messages of usage errors: they quote arguments, which may hold control characters."""
    try:
        yield
    except typer.exceptions.TyperException as error:
        if hasattr(error, "message"):
            error.message = output.safe(error.message)
        raise


def any_bytes(value: Any) -> Any:
    """The callback of an option whose value need not be UTF-8: ``os.fsencode`` of it gives the bytes."""
    return value


def _usual(ctx: Any, param: Any, value: Any) -> Any:
    """The value of an argument or option, if everything that gets it can work with it."""
    for single in value if isinstance(value, list | tuple) else [value]:
        wrong = ""
        if isinstance(single, str) and any("\udc80" <= character <= "\udcff" for character in single):
            wrong = f"{output.safe(os.fsencode(single))} is not UTF-8"
        elif isinstance(single, float) and not abs(single) <= SECONDS_MAX:  # nan, too
            wrong = f"{single} is not a number up to {SECONDS_MAX}"
        elif isinstance(single, int) and not -(2**63) <= single < 2**63:
            wrong = "more than a number of 64 bits"
        if wrong:
            raise typer.BadParameter(wrong, ctx=ctx, param=param)
    return value


def _commands(group: Any) -> Iterator[Any]:
    """The group itself, and all that is below it."""
    yield group
    for command in group.commands.values():
        yield from _commands(command) if hasattr(command, "commands") else (command,)


class Commands(typer.core.TyperGroup):
    """The root of the commands: shows arguments safely, and notices when nobody reads the results any more."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for command in _commands(self):
            command.help = command.help and shaped(command.help)
            for param in () if hasattr(command, "commands") else command.params:
                if param.callback is None:
                    param.callback = _usual

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _shown_safely():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _shown_safely(), end_on_closed_pipe():
            return super().invoke(ctx)


def run(app: typer.Typer, words: Sequence[str]) -> int:
    """Run a command line and print its errors.  Returns the exit status."""
    options = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in options
    drawn = not as_json and sys.stderr.isatty()
    try:
        explains = {"--help", "-h", "--version"} & set(options)
        if words and words[0] != "contexts" and not explains and not named_in(words):
            chosen = contexts.variables()
            if chosen:
                for name in ("APPLIANCE_DATA", "APPLIANCE_CONNECT"):
                    os.environ.pop(name, None)
            os.environ.update(chosen)
        with told_of():
            return int(app(list(words), prog_name="appliance", standalone_mode=drawn) or 0)
    except SystemExit as ended:
        if drawn and ended.code == USAGE_STATUS and (advice := _right_spelling(app, words)):
            output.remark(f"  {advice}")
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except CommandEnded as ended:
        return ended.status
    except typer.exceptions.TyperException as error:
        message = error.format_message()
        if not message.strip():  # of a group without a command: its help has been printed
            return error.exit_code
        context = getattr(error, "ctx", None)
        command = "appliance" if context is None else context.command_path
        advice = _right_spelling(app, words) or f"`{command} --help` has examples"
        return show(Fault(USAGE_ERROR, message, advice, error.exit_code), as_json=as_json)
    except typer.Abort:
        return show(Fault("Abort", "the answer was no", "", ANSWERED_NO), as_json=as_json)
    except (ApplianceError, OSError) as error:
        return report(error, at=named_in(words), as_json=as_json)


def _right_spelling(app: typer.Typer, words: Sequence[str]) -> str:
    right = respelled(typer.main.get_command(app), words)
    return f"write `{right}`" if right else ""
