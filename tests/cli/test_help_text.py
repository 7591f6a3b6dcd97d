"""Every help flows, in 80 columns and in 120; and its examples can be copied."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

import pytest
from typer import rich_utils
from typer.main import get_command

from appliance.cli.command_tree import tree
from appliance.cli.help_text import EXAMPLE, EXAMPLE_COLUMNS, shaped

from ..support.command_line import run
from .test_cli import COMMANDS


def test_lines_of_a_paragraph_are_one_and_examples_stay() -> None:
    text = """Do this.

    One sentence, whose
    lines end anywhere.  Another.

    [b]Examples[/b]

        appliance do --this

        appliance do --with a
    """
    assert shaped(text).split("\n\n") == [
        "Do this.",
        "One sentence, whose lines end anywhere. Another.",
        "[b]Examples[/b]",
        "    appliance do --this",
        "    appliance do --with a",
    ]


def test_a_long_example_goes_on_behind_a_backslash_and_not_inside_of_quotes() -> None:
    quoted = '"select a, b, c, count(*) from app where level = 1 group by level"'
    line = f"    appliance sql {quoted} --data /var/lib/appliance --json --output file.csv"
    lines = shaped(f"Ask.\n\nSo:\n\n{line}").split("\n\n")[2].split("\n")
    assert lines[0] == "    appliance sql \\" and quoted in lines[1] and lines[1].endswith(" \\")
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(line)


@pytest.mark.parametrize("width", [80, 120])
def test_no_help_breaks_a_line_before_the_terminal_would(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that ends early, though the next word had room, would be a line break of the source."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", width)
    broken = []
    for words in ([], *(words for words, _ in COMMANDS)):
        lines = run(*words, "--help").out.split("╭")[0].splitlines()
        for line, after in pairwise(lines):
            example = line.startswith(f" {EXAMPLE}") or after.startswith(f" {EXAMPLE}")
            if line.strip() and after.strip() and not example:
                word = re.split(r"\s+", after.strip())[0]
                if len(line.rstrip()) + 1 + len(word) < width - 1:
                    broken.append((words, line, after))
    assert not broken


def test_examples_fit_a_terminal_of_80_columns() -> None:
    commands = [get_command(tree())]
    for command in commands:
        commands.extend(getattr(command, "commands", {}).values())
        for line in (command.help or "").split("\n"):
            assert not line.startswith(EXAMPLE) or len(line) <= EXAMPLE_COLUMNS or "'" in line or '"' in line, line
