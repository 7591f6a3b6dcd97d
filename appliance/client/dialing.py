"""Begins connections to appliances: over TCP, or through a Unix socket."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from ..errors import BrokerAway
from ..owners import acting_as_owner
from ..wire.sockets import set_options, short_path


def is_path(address: tuple[str, int]) -> bool:
    """Whether an address is the path of a Unix socket."""
    return address[0].startswith("/")


def _connect_unix(path: Path) -> socket.socket:
    with contextlib.ExitStack() as closed_on_failure:
        sock = closed_on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.setblocking(False)
        try:
            with acting_as_owner(path), short_path(path) as short:
                sock.connect(short)
        except OSError as error:
            raise BrokerAway(f"no connection to the appliance at {path}: {error}") from None
        closed_on_failure.pop_all()
    return sock


def start_connect(address: tuple[str, int]) -> tuple[socket.socket, bool]:
    """A non-blocking socket, and whether it is still connecting."""
    if is_path(address):
        return _connect_unix(Path(address[0])), False
    where = f"{address[0]}:{address[1]}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise BrokerAway(f"the name {address[0]!r} of an appliance cannot be resolved: {error}") from None
    connecting = False
    with contextlib.ExitStack() as closed_on_failure:
        sock = closed_on_failure.enter_context(socket.socket(family, kind, protocol))
        try:
            sock.setblocking(False)
            try:
                sock.connect(target)
            except BlockingIOError:
                connecting = True
            set_options(sock, str(target[0]))
        except OSError as error:
            raise BrokerAway(f"no connection to the appliance at {where}: {error}") from None
        closed_on_failure.pop_all()
    return sock, connecting
