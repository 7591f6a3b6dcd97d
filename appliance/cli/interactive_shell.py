"""``appliance shell``: an interactive command line with history, and completion from the live appliance.

A line is a command of the tree without the word ``appliance``, split as a shell splits it.  There are no pipes,
variables or jobs.  Ctrl-C ends a command and not the shell; Ctrl-D, ``exit`` and ``quit`` end the shell.  The prompt
shows the exit status of the last command if it is not 0.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from typer._click.shell_completion import ShellComplete
from typer.main import get_command

from ..errors import OthersDirectory
from ..owners import refuse_others_directory
from . import output
from .invocation import run
from .target import ConnectOption, DataOption, address

ENDINGS: Final = ("exit", "quit")
NOT_HERE: Final = {
    "shell": "this is the shell",
    "start": "an appliance needs a process of its own: run `appliance start --data DIR` outside",
}
HISTORY: Final = "appliance/history"


def shell(data: DataOption = None, connect: ConnectOption = None) -> None:
    """Type commands with history and completion: names of topics, groups, members, users and settings.

    Commands are those of `appliance`, without that word.  Tab completes, the arrow up brings back, Ctrl-R searches,
    Ctrl-D leaves.  The history is in $XDG_STATE_HOME/appliance.

    [b]Example[/b]

        appliance shell --data /var/lib/appliance
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("the shell needs a terminal; scripts call the commands one by one")
    listener = address(data, connect)  # fails now, not at the first command
    os.environ.pop("APPLIANCE_DATA" if connect else "APPLIANCE_CONNECT", None)
    if data is not None:
        os.environ["APPLIANCE_DATA"] = str(data)
    elif connect is not None:
        os.environ["APPLIANCE_CONNECT"] = connect
    from .command_tree import tree

    _read_lines(tree(), listener)


def _read_lines(app: typer.Typer, listener: str) -> None:
    from prompt_toolkit import PromptSession

    # Only Tab completes: not every key is worth a request.
    session: Any = PromptSession(history=history(), completer=_completer(app), complete_while_typing=False)
    output.say(f"{listener}: Tab completes, help lists the commands, Ctrl-D leaves")
    status = 0
    while True:
        try:
            words = _split_line(session.prompt(f"appliance{f' [{status}]' if status else ''}> "))
            if words is None:
                status = 2
            elif words and words[0] in ENDINGS:
                return
            elif words:
                status = execute(app, words)
        except KeyboardInterrupt:  # in the prompt, or just before or after it
            continue
        except EOFError:
            return


def _split_line(line: str) -> list[str] | None:
    """The words of a line; None, and a remark, if quotes are open."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        output.remark(f"appliance: {error}")
        return None


def execute(app: typer.Typer, words: list[str]) -> int:
    """Run one line.  Returns its exit status."""
    if words[0] == "appliance" and len(words) > 1:
        words = words[1:]
    if words[0] in NOT_HERE:
        output.remark(f"appliance: {words[0]}: {NOT_HERE[words[0]]}")
        return 2
    if words[0] == "help":
        words = [*words[1:], "--help"]
    try:
        return run(app, words)
    except KeyboardInterrupt:
        return 130


def history() -> Any:
    """The history, in a file for its owner only: lines may have names that others must not read.

    Root with the home directory of another user (``sudo -E``) has one in memory.
    """
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / HISTORY
    try:
        refuse_others_directory(path)
    except OthersDirectory:
        return InMemoryHistory()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(0o600)
    return FileHistory(str(path))


def completions(app: typer.Typer, before: str) -> Iterator[tuple[str, str, int]]:
    """What may stand at the end of the line: the word, its help, and how many characters it replaces.

    These are the same completions as in bash, zsh and fish.
    """
    words, typed = _split(before)
    finder = _Finder(get_command(app), {}, "appliance", "_APPLIANCE_COMPLETE")
    for item in finder.get_completions(words, typed):
        if item.type == "plain":
            yield str(item.value), item.help or "", len(typed)


def _split(before: str) -> tuple[list[str], str]:
    """The whole words before the cursor, and the one that is being typed."""
    try:
        words = shlex.split(before)
    except ValueError:  # a quotation that is still open
        words = before.split()
    if not words or before[-1:].isspace():
        return words, ""
    return words[:-1], words[-1]


class _Finder(ShellComplete):
    """Completion of words that are there already, and not in a shell's variables."""

    name = "appliance"
    source_template = ""

    def source_vars(self) -> dict[str, Any]:
        return {}

    def get_completion_args(self) -> tuple[list[str], str]:
        return [], ""

    def format_completion(self, item: Any) -> str:
        return str(item.value)


def _completer(app: typer.Typer) -> Any:
    from prompt_toolkit.completion import Completion, ThreadedCompleter

    class Live:
        def get_completions(self, document: Any, event: Any) -> Iterator[Any]:
            for value, about, replaced in completions(app, document.text_before_cursor):
                yield Completion(value, start_position=-replaced, display_meta=output.safe(about.partition("\n")[0]))

    live: Any = Live()
    return ThreadedCompleter(live)  # the appliance may take a while to answer


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Looking after it")(shell)
