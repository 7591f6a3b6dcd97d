"""The command line: parse, call, print.  ``appliance --help`` is its manual."""

from __future__ import annotations

import logging
import os
import sys

from . import output, starting


def main() -> None:
    """Entry point of ``.venv/bin/appliance``."""
    logging.basicConfig(level=logging.WARNING, handlers=[output.Remarks()])
    command, *words = sys.argv[1:] or [""]
    if command == "start" and (options := starting.plain_options(words)) is not None:
        if status := starting.run(options):
            sys.exit(status)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # nothing is left to end in order, and whoever restarts would wait for the interpreter's own end
    from .command_tree import tree
    from .invocation import run

    sys.exit(run(tree(command), sys.argv[1:]))
