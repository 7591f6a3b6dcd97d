"""Binds the listeners for clients, or takes those that systemd has bound."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ...addresses import (
    PLAINTEXT,
    SECURITY,
    UNIX,
    Listener,
    address_text,
    listeners_text,
    parse_addresses,
    parse_listeners,
    unix_path,
)
from ...config import Config
from ...errors import AddressInUse, BadValue
from ...machine_limits import limit_of
from ...proc_net import holder_of
from ...security.configuration import faults_of, is_insecure, is_loopback
from ...wire.sockets import LOCAL_SOCKET, short_path

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
LOCAL: Final = "local"
"""The name in ``status`` of the Unix socket in the data directory."""
PROTOCOLS: Final = ("native", "kafka")
PASSED: Final = {protocol: Listener(protocol, PLAINTEXT, "") for protocol in PROTOCOLS} | {
    f"{protocol}.{security}": Listener(protocol, security, "") for protocol in PROTOCOLS for security in SECURITY
}
"""What sockets are that systemd passes, by their names."""

BoundListeners = list[tuple[Listener, socket.socket]]


def listen(config: Config, data_dir: Path, passed: Mapping[str, Sequence[socket.socket]]) -> BoundListeners:
    """Bind all listeners, and a Unix socket in the data directory; sockets that systemd passes replace ``listen``.

    ``passed``: those, by their names.

    Raises:
        AddressInUse: another process listens there.
        BadValue: an address cannot be used; names the key.
        OSError: the machine has no descriptor or no memory left.
    """
    bound: BoundListeners = []
    for protocol, text in (("native", config.native.listen), ("kafka", config.kafka.listen)):
        here = [(PASSED[name], sock) for name, sockets in passed.items() if name in PASSED for sock in sockets]
        kept = [(_with_port(address, sock), sock) for address, sock in here if address.protocol == protocol]
        if kept and (used := listeners_text(address for address, _ in kept)) != text:
            logger.warning("%s.listen = %s is not used: systemd passes %s", protocol, text, used)
        new = [] if kept else [(address, bind(address)) for address in parse_listeners(protocol, text)]
        bound += kept + [(_with_port(address, sock), sock) for address, sock in new]
    for fault in faults_of([address for address, _ in bound], [], config.tls, config.security):
        raise BadValue(fault)
    for warned in insecure(bound, config):
        logger.warning("INSECURE: %s: whoever reaches this address may do everything (security.allow_insecure)", warned)
    return bound + _bind_local(data_dir)


def texts(bound: BoundListeners, data_dir: Path) -> dict[str, str]:
    """The listeners of each protocol as text; LOCAL for the one in the data directory."""
    local = local_listener(data_dir)
    names = [(LOCAL if address == local else address.protocol, address) for address, _ in bound]
    return {name: listeners_text(address for other, address in names if other == name) for name, _ in names}


def insecure(bound: BoundListeners, config: Config) -> list[str]:
    """The listeners that other hosts reach without TLS and authentication."""
    return [f"{address.protocol} {address}" for address, _ in bound if is_insecure(address, config.tls)]


def without_rules(bound: BoundListeners, config: Config) -> list[str]:
    """The listeners that other hosts reach with a login or a certificate, which allows everything."""
    if config.security.authorizer:
        return []
    reached = [address for address, _ in bound if not is_loopback(address) and not is_insecure(address, config.tls)]
    return [f"{address.protocol} {address}" for address in reached]


def remove_sockets(bound: BoundListeners) -> None:
    """Remove the files of Unix sockets at the end."""
    for address, _ in bound:
        if address.unix:
            with contextlib.suppress(OSError):
                Path(unix_path(address.address)[0]).unlink()


def _with_port(listener: Listener, sock: socket.socket) -> Listener:
    """The listener with the port that the system has chosen."""
    return listener if listener.unix else listener._replace(address=address_text(sock.getsockname()))


def bind(listener: Listener) -> socket.socket:
    """Bind one listener.

    Raises:
        AddressInUse, BadValue, OSError: see :func:`listen`.
    """
    try:
        return _bind_unix(listener) if listener.unix else _bind_tcp(*parse_addresses(listener.address)[0])
    except OSError as error:
        if limit_of(error):
            raise
        if error.errno == errno.EADDRINUSE:
            raise _address_error(listener) from None
        advice = "choose another path" if listener.unix else "choose another address, or port 0 for any free one"
        raise BadValue(f"{listener.protocol}.listen = {listener}: {error.strerror}; {advice}") from None


def _address_error(listener: Listener) -> AddressInUse:
    """The error about an address that is taken: by whom, and what helps."""
    key = f"{listener.protocol}.listen"
    if listener.unix:
        return AddressInUse(f"{key} = {listener}: another process listens there; choose another path")
    port = parse_addresses(listener.address)[0][1]
    holder = holder_of(port)
    if holder is None:
        todo = f"`ss -ltnp 'sport = :{port}'` as root shows by whom; end it, or choose another address in {key}"
        return AddressInUse(f"{key} = {listener}: the address is in use", remedy=todo)
    todo = f"end it (`kill {holder.pid}`), or choose another address in {key}, or port 0 for any free one"
    return AddressInUse(f"{key} = {listener}: the address is in use by {holder}", remedy=todo)


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address[4])
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def local_listener(data_dir: Path) -> Listener:
    """The one in the data directory."""
    return Listener("native", PLAINTEXT, f"{UNIX}{data_dir.absolute() / LOCAL_SOCKET}")


def _bind_local(data_dir: Path) -> BoundListeners:
    """The Unix socket for commands on this host; none where the file system has no sockets."""
    listener = local_listener(data_dir)
    try:
        return [(listener, _bind_unix(listener))]
    except (OSError, ValueError) as error:
        logger.warning("%s: %s: commands have to use native.listen", listener, error)
        return []


def _bind_unix(listener: Listener) -> socket.socket:
    """Bind a Unix socket, in place of one that nobody listens at; nobody can connect before its mode is right."""
    name, mode = unix_path(listener.address)
    path = Path(name)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    umask = os.umask(0o177)
    try:
        with short_path(path) as short:
            remove_dead_socket(path, short, socket.SOCK_STREAM)
            sock.bind(short)
        path.chmod(mode)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(umask)
    return sock


def remove_dead_socket(path: Path, short: str, kind: int) -> None:
    """Remove the socket of a process that was killed; ``short``: a name of it that the kernel takes.

    Raises:
        OSError: another process listens there, or the file is no socket.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "a file that is no socket has this name")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.settimeout(1)
        try:
            probe.connect(short)
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
