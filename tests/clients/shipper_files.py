"""The set-ups of log shippers in ``shippers/``: one file each, which has the lines of all kinds of security.

A line that begins with ``#scram `` or ``#mtls `` is for a listener with TLS where clients log in or show a certificate:
without that word it is part of the set-up.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

Security = Literal["plain", "scram", "mtls"]
DIRECTORY: Final = Path(__file__).parent / "shippers"
STATE_DIRS: Final = ("/var/spool/rsyslog", "/var/lib/syslog-ng", "/var/lib/fluent-bit", "/var/lib/vector")


def set_up(name: str, security: Security) -> str:
    """A file as somebody has it who has taken the words away, without the lines for other kinds of security."""
    text = re.sub(rf"^#{security} ", "", (DIRECTORY / name).read_text(), flags=re.MULTILINE)
    return re.sub(r"^#(scram|mtls) .*\n", "", text, flags=re.MULTILINE)


def on_page(name: str, security: Security) -> str:
    """A set-up as a page for other hosts shows it: without comments, with that page's address and topic."""
    text = re.sub(r"^#.*\n", "", set_up(name, security), flags=re.MULTILINE).lstrip("\n")
    return text.replace("HOST:9092", "logs.example.net:9093").replace("app-logs", "web")
