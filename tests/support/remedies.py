"""What remedies name: the commands in their backticks, whether these exist, and how to carry them out."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

from typer.main import get_command

from appliance.cli import command_tree

from .command_line import Said, run

ASKS = ("trim", "delete", "reset", "abort-hanging")
"""Commands that ask before they destroy something."""


def commands_in(text: str) -> list[list[str]]:
    """The words of the commands of this program in a text, without its name."""
    quoted = re.findall(r"(?<!`)`(appliance [^`]*)`(?!`)", text)
    return [shlex.split(command)[1:] for command in quoted]


@cache
def _root() -> Any:
    return get_command(command_tree.tree())


def fault_of(words: list[str]) -> str:
    """Why a command does not exist with these options and arguments; "" if it does."""
    command: Any = _root()
    rest = list(words)
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"no command {rest[:1]} in appliance {' '.join(words)}"
        command = command.commands[rest.pop(0)]
    try:
        command.make_context(command.name, rest, resilient_parsing=False)
    except Exception as error:  # whatever the parser has against it
        return f"appliance {' '.join(words)}: {error}"
    return ""


def carry_out(words: list[str]) -> Said:
    """Run a command of a remedy, which has to work."""
    said = run(*words, *(["--yes"] if set(ASKS) & set(words) else []))
    assert said.status in (0, 74, 75), f"appliance {' '.join(words)}: {said}"
    return said
