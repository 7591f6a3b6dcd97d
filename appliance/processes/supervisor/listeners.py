"""Binds the listeners for clients, or takes those that systemd has bound."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from ...addresses import address_text, parse_addresses
from ...config import Config
from ...errors import AddressInUse, BadValue
from ...machine_limits import limit_of
from .systemd import inherited_listeners

BACKLOG: Final = 1024


def listen(config: Config) -> list[tuple[str, socket.socket]]:
    """(protocol, socket) pairs; sockets that systemd passes under a protocol's name replace its ``listen``.

    Raises:
        AddressInUse: another process listens there.
        BadValue: an address, or a socket that systemd passes, cannot be used; names the key.
        OSError: the machine has no descriptor or no memory left.
    """
    inherited = inherited_listeners(os.environ, ("native", "kafka"))
    listeners: list[tuple[str, socket.socket]] = []
    for protocol, addresses in (("native", config.native.listen), ("kafka", config.kafka.listen)):
        sockets = inherited.get(protocol) or [_bind(protocol, *address) for address in parse_addresses(addresses)]
        listeners += [(protocol, sock) for sock in sockets]
    return listeners


def first_addresses(listeners: list[tuple[str, socket.socket]]) -> dict[str, str]:
    """The first address of each protocol, as "host:port"."""
    return {protocol: address_text(sock.getsockname()) for protocol, sock in reversed(listeners)}


def _bind(protocol: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address[4])
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        if limit_of(error):
            raise
        kind = AddressInUse if error.errno == errno.EADDRINUSE else BadValue
        raise kind(
            f"{protocol}.listen = {host}:{port}: {error.strerror}; choose another address, or port 0 for any free one"
        ) from None
    return sock
