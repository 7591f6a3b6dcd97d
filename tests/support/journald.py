"""A systemd-journald of its own for tests, in a mount namespace of its own: a real journal in a directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .server import wait_for

PROGRAM = "/usr/lib/systemd/systemd-journald"
CONF = """[Journal]
ReadKMsg=no
Audit=no
RateLimitIntervalSec=0
RuntimeMaxFileSize=512K
"""
SCRIPT = """
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journald.conf.d /run/systemd/journal /run/log/journal &&
cat > /run/systemd/journald.conf.d/test.conf &&
mount --bind "$1" /run/log/journal && mount --bind "$2" /run/systemd/journal && exec "$3"
"""


class Journald:
    """``directory`` has its journal.  See :func:`journald`."""

    def __init__(self, base: Path) -> None:
        self.directory, self._run = base / "journal", base / "run"
        self.directory.mkdir()
        self._run.mkdir()
        self._marks = 0
        self.start()

    def start(self) -> None:
        command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(self.directory), str(self._run), PROGRAM]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        assert self._process.stdin is not None
        self._process.stdin.write(CONF.encode())
        self._process.stdin.close()
        wait_for(lambda: self._process.poll() is not None or self._is_up(), "journald to begin")
        if self._process.poll() is not None:
            pytest.skip("systemd-journald cannot run here")

    def _is_up(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
            sock.connect(self._address)
            return bool(self.files())
        return False

    @property
    def _address(self) -> str:
        return os.path.relpath(self._run / "socket")  # an address has at most 107 bytes

    def files(self) -> list[Path]:
        return sorted(self.directory.glob("*/*.journal"))

    def write(self, messages: Iterable[bytes], **fields: bytes) -> None:
        """Write an entry for each message, which may have line breaks."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(self._address)
            for message in messages:
                pairs = {"MESSAGE": message, "PRIORITY": b"6", "SYSLOG_IDENTIFIER": b"shop"} | fields
                sock.send(
                    b"".join(
                        b"%s\n%s%s\n" % (name.encode(), len(value).to_bytes(8, "little"), value)
                        for name, value in pairs.items()
                    )
                )

    def cursors(self, *matches: str) -> list[str]:
        """Of the entries that the journal has now."""
        argv = ["journalctl", "--quiet", f"--directory={self.directory}", "--output=export", *matches]
        lines = subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout.split(b"\n")
        return [line.decode().partition("=")[2] for line in lines if line.startswith(b"__CURSOR=")]

    def rotate(self) -> None:
        """Archive the files; what comes next is in new ones."""
        self._marks += 1
        self.write([b"what was written before has come"], MARK=b"%d" % self._marks, SYSLOG_IDENTIFIER=b"test")
        wait_for(lambda: self.cursors(f"MARK={self._marks}"), "what was written to be in the journal")
        before = set(self.files())
        self._process.send_signal(signal.SIGUSR2)
        wait_for(lambda: set(self.files()) - before, "new files of the journal")

    def vacuum(self) -> None:
        """Remove all archived files."""
        self.rotate()
        for path in self.files():
            if "@" in path.name:
                path.unlink()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def journald(base: Path) -> Iterator[Journald]:
    """Skips the test where there is no journald, or mounting is not permitted."""
    if not os.access(PROGRAM, os.X_OK) or not shutil.which("journalctl") or os.geteuid():
        pytest.skip("needs root, systemd-journald and journalctl")
    base.mkdir()
    running = Journald(base)
    try:
        yield running
    finally:
        running.stop()
