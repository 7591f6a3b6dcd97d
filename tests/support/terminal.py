"""A command in a pseudo-terminal of its own, as a person uses it: what it shows, what is typed, how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from types import TracebackType

from .ready import reap

WAIT_S_MAX = 60.0


class Terminal:
    """``appliance <words>`` in a process of its own, whose three streams are a terminal of this size.

    ``shown`` is all that it has written so far.
    """

    def __init__(
        self, *words: str, columns: int = 120, lines: int = 40, environment: dict[str, str] | None = None
    ) -> None:
        self.shown = ""
        self._status: int | None = None
        self._open = True
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", **(environment or {})})
            for name in ("APPLIANCE_DATA", "APPLIANCE_CONNECT", "NO_COLOR", "COLUMNS"):
                if name not in (environment or {}):
                    os.environ.pop(name, None)
            os.execv(sys.executable, [sys.executable, "-m", "appliance", *words])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.hang_up()

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, text: str) -> str:
        """Everything shown, once ``text`` is in it."""
        deadline = time.monotonic() + WAIT_S_MAX
        while text not in self.shown:
            assert self._read(deadline), f"ended without {text!r}: {self.shown}"
        return self.shown

    def wait(self) -> int:
        """The exit status, once it has ended."""
        deadline = time.monotonic() + WAIT_S_MAX
        while self._read(deadline):
            pass
        self._status = reap(self.pid)
        return self._status

    def hang_up(self) -> None:
        """Close the terminal under the command."""
        if self._open:
            self._open = False
            os.close(self._fd)

    def _read(self, deadline: float) -> bool:
        """Read what there is; False when nobody has the other end any more."""
        left = deadline - time.monotonic()
        ready, _, _ = select.select([self._fd], [], [], max(0.0, left))
        assert ready, f"shows nothing more: {self.shown}"
        try:
            piece = os.read(self._fd, 65536)
        except OSError:
            return False
        self.shown += piece.decode(errors="replace")
        return bool(piece)
