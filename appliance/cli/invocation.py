"""Runs one command line and returns its exit status; :mod:`.faults` has the table of exit statuses.

Usage errors are the library's; with ``--json`` they become objects, as all other errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer
import typer.core
import typer.exceptions

from ..errors import ApplianceError
from . import output
from .ending import Ended, on_closed_pipe
from .faults import Fault, report, show

USAGE_ERROR: Final = "UsageError"
ANSWERED_NO: Final = 1


@contextlib.contextmanager
def _shown_safely() -> Iterator[None]:
    """Escapes the messages of usage errors: they quote arguments, which may hold control characters."""
    try:
        yield
    except typer.exceptions.TyperException as error:
        if hasattr(error, "message"):
            error.message = output.safe(error.message)
        raise


class Commands(typer.core.TyperGroup):
    """The root of the commands: shows arguments safely, and notices when nobody reads the results any more."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        with _shown_safely():
            return super().make_context(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        with _shown_safely(), on_closed_pipe():
            return super().invoke(ctx)


def run(app: typer.Typer, words: Sequence[str]) -> int:
    """Run a command line and print its errors.  Returns the exit status."""
    options = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in options
    try:
        return int(app(list(words), prog_name="appliance", standalone_mode=not as_json) or 0)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Ended as ended:
        return ended.status
    except typer.exceptions.TyperException as error:
        fault = Fault(USAGE_ERROR, error.format_message(), "add --help for examples", error.exit_code)
        return show(fault, as_json=True)
    except typer.Abort:
        return show(Fault("Abort", "the answer was no", "", ANSWERED_NO), as_json=True)
    except (ApplianceError, OSError) as error:
        return report(error, as_json=as_json)
