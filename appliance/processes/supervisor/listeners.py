"""Binds the listeners for clients, or takes those that systemd has bound."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from ...addresses import PLAINTEXT, Listener, address_text, listeners_text, parse_addresses, parse_listeners
from ...config import Config
from ...errors import AddressInUse, BadValue
from ...machine_limits import limit_of
from .systemd import inherited_listeners

BACKLOG: Final = 1024


def listen(config: Config) -> list[tuple[Listener, socket.socket]]:
    """Bind the listeners; sockets that systemd passes under a protocol's name replace its ``listen``.

    Raises:
        AddressInUse: another process listens there.
        BadValue: an address, or a socket that systemd passes, cannot be used; names the key.
        OSError: the machine has no descriptor or no memory left.
    """
    inherited = inherited_listeners(os.environ, ("native", "kafka"))
    listeners: list[tuple[Listener, socket.socket]] = []
    for protocol, text in (("native", config.native.listen), ("kafka", config.kafka.listen)):
        if protocol in inherited:
            found = [(Listener(protocol, PLAINTEXT, ""), sock) for sock in inherited[protocol]]
        else:
            found = [(listener, _bind(listener)) for listener in parse_listeners(protocol, text)]
        listeners += [(one._replace(address=address_text(sock.getsockname())), sock) for one, sock in found]
    return listeners


def texts(listeners: list[tuple[Listener, socket.socket]]) -> dict[str, str]:
    """The listeners of each protocol as text."""
    protocols = dict.fromkeys(listener.protocol for listener, _ in listeners)
    return {name: listeners_text(one for one, _ in listeners if one.protocol == name) for name in protocols}


def _bind(listener: Listener) -> socket.socket:
    ((host, port),) = parse_addresses(listener.address)
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
            f"{listener.protocol}.listen = {listener}: {error.strerror};"
            " choose another address, or port 0 for any free one"
        ) from None
    return sock
