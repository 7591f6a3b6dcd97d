"""The real ``systemd-journal-upload``, which Debian has in the package systemd-journal-remote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(os.environ.get("JOURNAL_UPLOAD", "/usr/lib/systemd/systemd-journal-upload"))
"""The variable names one that was unpacked: installed, its package has services that none of this needs."""


def upload_program() -> Path:
    """Skips the test where it is not."""
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip("needs systemd-journal-upload: the package systemd-journal-remote, or JOURNAL_UPLOAD=PROGRAM")
    return PROGRAM


def upload(url: str, directory: Path, state: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Send what a journal has and the state does not say that it was sent; return when it is answered."""
    argv = [str(upload_program()), f"--url={url}", f"--directory={directory}", f"--save-state={state}", "--follow=no"]
    return subprocess.run([*argv, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
