"""``python -m appliance`` is the command line, for where ``.venv/bin`` is not on the path."""

from .cli import main

main()
