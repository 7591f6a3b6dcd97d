"""Notes signals for the supervisor's loop."""

from __future__ import annotations

import signal
import socket


class Signals:
    """Notes signals: the handlers only record them and wake the loop, through a socket."""

    def __init__(self) -> None:
        self._noted: set[int] = set()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def handle(self, *numbers: int) -> None:
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda number, _: self._noted.add(number))

    def __contains__(self, number: int) -> bool:
        return number in self._noted

    def discard(self, number: int) -> None:
        self._noted.discard(number)

    def fileno(self) -> int:
        return self._reader.fileno()

    def drain(self) -> None:
        self._reader.recv(4096)

    def close(self) -> None:
        """In a forked child."""
        self._reader.close()
        self._writer.close()
