"""What systemd and its services tell each other: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

LISTEN_FDS_START: Final = 3


class Notifier:
    """Speaks to the service manager; silent when there is none.

    The socket is made once: who has run out of descriptors can still say that it lives.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        watchdog_us = int(environment.get("WATCHDOG_USEC", "0") or 0)
        if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            watchdog_us = 0
        self.watchdog_ms = watchdog_us // 2000
        """Say ``watchdog`` this often (half of what the unit allows); 0: nobody listens."""

    def tell(self, *lines: str) -> None:
        """Send assignments such as READY=1, STATUS=text, STOPPING=1, RELOADING=1, WATCHDOG=1."""
        if self._socket is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            self._socket.sendto("\n".join(lines).encode(), address)
        except OSError:
            pass  # a service manager that does not listen is no reason not to serve

    def close(self) -> None:
        """In a forked child: it is the supervisor that speaks."""
        if self._socket is not None:
            self._socket.close()


def inherited_listeners(environment: Mapping[str, str]) -> dict[str, list[socket.socket]]:
    """Sockets that systemd has bound for us, by their FileDescriptorName."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return {}
    count = int(environment.get("LISTEN_FDS", "0"))
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    listeners: dict[str, list[socket.socket]] = {}
    for index in range(count):
        sock = socket.socket(fileno=LISTEN_FDS_START + index)
        sock.set_inheritable(False)
        name = names[index] if index < len(names) else "native"
        listeners.setdefault(name, []).append(sock)
    return listeners
