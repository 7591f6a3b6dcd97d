"""The protocol between systemd and its services: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from ...errors import BadValue

LISTEN_FDS_START: Final = 3


class Notifier:
    """Sends to the service manager; does nothing when there is none.

    The socket is opened once, so that a process without free descriptors can still send WATCHDOG=1.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        self._line = ""
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        watchdog_us = int(environment.get("WATCHDOG_USEC", "0") or 0)
        if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            watchdog_us = 0
        self.watchdog_ms = watchdog_us // 2000
        """The interval of WATCHDOG=1 (half of WatchdogSec); 0: the unit has no watchdog."""

    def send(self, *lines: str) -> None:
        """Send assignments such as READY=1, STATUS=text, STOPPING=1, RELOADING=1, WATCHDOG=1."""
        if self._socket is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            self._socket.sendto("\n".join(lines).encode(), address)
        except OSError:
            pass  # serve all the same, without a service manager that listens

    def show(self, line: str) -> None:
        """Send the status line, if it is another one."""
        if line != self._line:
            self._line = line
            self.send(f"STATUS={line}")

    def close(self) -> None:
        """In a forked child: only the supervisor sends."""
        if self._socket is not None:
            self._socket.close()


def inherited_listeners(
    environment: Mapping[str, str], allowed_names: Sequence[str], datagrams: Sequence[str] = ()
) -> dict[str, list[socket.socket]]:
    """Sockets that systemd has bound for us, by their FileDescriptorName, which is one of the ``allowed_names`` or of
    the ``datagrams``.

    That is a protocol, or a protocol with what secures it (``kafka``, ``kafka.SASL_SSL``), or a name whose sockets may
    be for datagrams, too.

    They are made non-blocking: several workers accept from one socket, and all but one of them find nothing there.

    Raises:
        BadValue: a name is none of ours, or a descriptor is no socket that listens on an IP address.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return {}
    count_text, names_text = environment.get("LISTEN_FDS", "0"), environment.get("LISTEN_FDNAMES", "")
    if not count_text.isdecimal():
        raise BadValue(f"LISTEN_FDS = {count_text!r}: must be a number")
    names = names_text.split(":") if names_text else []
    if len(names) < int(count_text):
        raise BadValue(
            f"LISTEN_FDNAMES = {names_text!r}: must name all {count_text} sockets:"
            f" set FileDescriptorName= to one of {', '.join((*allowed_names, *datagrams))} in each .socket unit"
        )
    listeners: dict[str, list[socket.socket]] = {}
    for fd, name in enumerate(names[: int(count_text)], LISTEN_FDS_START):
        if name not in allowed_names and name not in datagrams:
            raise BadValue(f"FileDescriptorName={name}: must be one of {', '.join((*allowed_names, *datagrams))}")
        listeners.setdefault(name, []).append(_adopt(fd, name, may_be_datagrams=name in datagrams))
    return listeners


def _adopt(fd: int, name: str, *, may_be_datagrams: bool) -> socket.socket:
    try:
        sock = socket.socket(fileno=fd)
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise BadValue(f"descriptor {fd}, passed as {name}: {error.strerror}") from None
    is_right = bool(listens) if sock.type == socket.SOCK_STREAM else may_be_datagrams and sock.type == socket.SOCK_DGRAM
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or not is_right:
        sock.detach()
        kinds = "a UDP socket (ListenDatagram=) or " if may_be_datagrams else ""
        raise BadValue(
            f"descriptor {fd}, passed as {name}: must be {kinds}a TCP socket that listens (ListenStream=, Accept=no)"
        )
    sock.setblocking(False)
    sock.set_inheritable(False)
    return sock
