"""Asks before a command destroys something.

Such a command first finds out what it would do.  With ``--dry-run`` it prints that and ends.  With ``--yes`` it goes
on.  Otherwise :func:`confirm` shows it and asks, on a terminal; without a terminal nobody can answer, and the command
is refused as wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from . import output

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

SHOWN_MAX = 20
"""Most lines above a question.  ``--dry-run`` shows all."""


def confirm(effects: Sequence[str], question: str, *, yes: bool) -> None:
    """Return if the command may go on.

    Args:
        effects: what would be done, a line for each thing that is lost or changed.
        question: what is asked, such as "Delete this topic?".
        yes: the command line has answered already.

    Raises:
        BadParameter: there is no terminal to ask on.
        Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Nobody can be asked here: give --yes, or look with --dry-run")
    for effect in effects[:SHOWN_MAX]:
        output.remark(effect)
    if len(effects) > SHOWN_MAX:
        output.remark(f"... and {len(effects) - SHOWN_MAX} more; --dry-run shows all")
    output.prompt(f"{question} [y/N]: ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def how_many(count: int, thing: str) -> str:
    """``this topic`` or ``these 3 topics``, for a question."""
    return f"this {thing}" if count == 1 else f"these {count} {thing}s"
