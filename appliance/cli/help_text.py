"""Shapes the help of commands, whose lines are broken in the source where these end, for terminals of any width.

The lines of a paragraph become one, which the terminal breaks.  An example that is too long for a narrow terminal goes
on in the next line behind a backslash, so that it can be copied as it stands.
"""

from __future__ import annotations

import inspect
import re
from typing import Final

EXAMPLE: Final = "    "
EXAMPLE_COLUMNS: Final = 76
"""A help of 80 columns has two at either side."""
_WORDS: Final = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")


def shaped(text: str) -> str:
    """The help of a command.  Paragraphs are apart by an empty line, examples begin with four blanks."""
    return "\n\n".join(map(_shaped_paragraph, inspect.cleandoc(text).split("\n\n")))


def _shaped_paragraph(paragraph: str) -> str:
    lines = paragraph.split("\n")
    if not lines[0].startswith(EXAMPLE):
        return re.sub(r"\s+", " ", " ".join(lines))
    return "\n".join(_shaped_example(line) for line in lines)


def _shaped_example(line: str) -> str:
    if len(line) <= EXAMPLE_COLUMNS:
        return line
    lines, indent = [""], EXAMPLE
    for word in _WORDS.findall(line):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > EXAMPLE_COLUMNS:
            lines[-1] += " \\"
            lines.append("")
            indent = 2 * EXAMPLE
        lines[-1] += f"{' ' if lines[-1] else indent}{word}"
    return "\n".join(lines)
