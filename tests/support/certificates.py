"""Certificates for tests, by the script that users have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "systemd/make-certificates"


def make_certificates(directory: Path, *arguments: str, days: int = 365) -> subprocess.CompletedProcess[str]:
    """``make-certificates WHAT DIR ...``: for example ``make_certificates(directory, "client", "web-1")``.

    Args:
        days: how long the certificate is valid; with -1 it has expired already.
    """
    what, *rest = arguments
    command = [str(SCRIPT), what, str(directory), *rest]
    environment = os.environ | {"DAYS": str(days)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
