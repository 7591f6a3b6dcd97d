"""Processes that take logs in, one for each table ``[inputs.NAME]``; role ``input``.

The supervisor binds the sockets of an input and keeps them as long as its settings have them: senders wait while a
process is started again.  Then it forks the process as any other child: heartbeat, restart with growing delays.  An
input produces as any client does, through the Unix socket in the data directory, so nothing on the data path waits for
it.  An input that cannot begin says why in ``status``, and is tried again; everything else goes on.

Its states are those of any role (:mod:`.roles`).  Its sockets are bound before it starts; while an address is in use
that is tried again after RETRY_MS.  With other settings it retires and starts again, without any it retires.

It takes nothing more once it stops, and ends when all that it has taken is flushed.  What takes longer than an eighth
of ``stop.timeout_ms`` is killed: whoever has no answer sends again, and files are read again.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ...addresses import address_text
from ...config import Config
from ...errors import AddressInUse, ApplianceError, BadValue
from ...input_settings import InputSettings, kind_of, listen_of, open_addresses, parse_address
from ...machine_limits import limit_of
from ...proc_net import holder_of
from ...shared.heartbeats import Heart
from ...wire.sockets import short_path
from ..control import Channel
from ..messages import InputStats
from .actions import Actions
from .children import Children
from .fork import Child
from .listeners import BACKLOG, local_listener, remove_dead_socket
from .roles import Process, Role

logger = logging.getLogger(__name__)

ROLE: Final = "input"
RETRY_MS: Final = 5_000
DATAGRAM_BUFFER_BYTES: Final = 8 << 20
"""Wanted; the kernel gives up to net.core.rmem_max.  Datagrams wait there while the process is busy."""


class InputArguments(NamedTuple):
    """``address``: the native listener that it produces through; ``sockets``: bound, by their text in ``listen``."""

    name: str
    settings: InputSettings
    config: Config
    data_dir: Path
    address: str
    sockets: Mapping[str, socket.socket]
    channel: Channel
    heart: Heart


class Bound(NamedTuple):
    """``address``: with the port that the system has chosen; asked once, for ``status`` outlives the socket."""

    sock: socket.socket
    address: str


RunInput = Callable[[InputArguments], None]
"""What the process of an input runs, until Stop comes or the channel closes.  It imports what it needs by itself."""


class Inputs:
    """All inputs, by name."""

    def __init__(
        self, run_input: RunInput, config: Config, data_dir: Path, children: Children, actions: Actions
    ) -> None:
        self._run_input = run_input
        self._config, self._data_dir = config, data_dir
        self._bound: dict[str, dict[str, Bound]] = {}
        """Of each input, by their text in ``listen``."""
        self._stats: dict[str, InputStats] = {}
        self._faults: dict[str, ApplianceError] = {}
        self._is_started = False
        self.role = Role(ROLE, "start an input", children, actions, self._prepare, stays=True)
        children.close_in_child(self.close, ROLE)

    def start(self) -> None:
        self._is_started = True
        for name in self._config.inputs:
            self.role.start(name)

    def _prepare(self, name: str) -> Process | None:
        settings = self._config.inputs.get(name)
        if settings is None:
            return None
        try:
            self._bind(name, settings)
        except ApplianceError as error:
            if str(self._faults.get(name, "")) != str(error):
                logger.error("inputs.%s cannot begin: %s", name, error)
            self._faults[name] = error
            self.role.start(name, RETRY_MS)
            return None
        self._faults.pop(name, None)

        def run(channel: Channel, heart: Heart) -> int:
            mine = {text: one.sock for text, one in self._bound.pop(name, {}).items()}
            self.close()
            address = local_listener(self._data_dir).address
            self._run_input(InputArguments(name, settings, self._config, self._data_dir, address, mine, channel, heart))
            return 0

        return Process(run, f"input {name}", {ROLE})

    def _bind(self, name: str, settings: InputSettings) -> None:
        """Bind the sockets of ``listen``; close those that are not in it any more.

        Raises:
            AddressInUse, BadValue, OSError: as for other listeners.
        """
        bound = self._bound.setdefault(name, {})
        wanted = listen_of(settings)
        for text in [text for text in bound if text not in wanted]:
            bound.pop(text).sock.close()
        for text in wanted:
            if text not in bound:
                sock = bind_input(name, text)
                bound[text] = Bound(sock, _bound_text(text, sock))

    def _unbind(self, name: str) -> None:
        for one in self._bound.pop(name, {}).values():
            one.sock.close()

    def on_end(self, child: Child) -> None:
        self._stats.pop(child.key, None)
        if child.key not in self._config.inputs:
            self._unbind(child.key)
        self.role.on_end(child)

    def on_stats(self, name: str, stats: InputStats) -> None:
        self._stats[name] = stats

    def reload(self, config: Config) -> None:
        """Stop the inputs that have other settings or none now, and start those that are new."""
        before, self._config = self._config, config
        for name in before.inputs.keys() | config.inputs.keys():
            if before.inputs.get(name) == config.inputs.get(name) and before.ledger == config.ledger:
                continue
            self._faults.pop(name, None)
            self.role.retire(name)
            if name in config.inputs and self._is_started:
                self.role.start(name)
            elif name not in config.inputs and name not in self.role:
                self._unbind(name)

    def stop(self) -> None:
        self._is_started = False
        self.role.stop()

    def close(self) -> None:
        """Close the sockets; ``status`` goes on showing where they were."""
        for bound in self._bound.values():
            for one in bound.values():
                one.sock.close()

    # ---- for status

    @property
    def insecure(self) -> list[str]:
        """The addresses at which anybody on other hosts may write."""
        inputs = self._config.inputs.items()
        return [f"input {name} {text}" for name, one in inputs for text in open_addresses(one, self._config.tls)]

    def rows(self) -> dict[str, dict[str, Any]]:
        """The inputs with their state and numbers."""
        return {
            name: {
                "type": kind_of(settings),
                "topic": settings.topic,
                "state": "failed" if name in self._faults else "running" if name in self.role else "starting",
                "listen": list(listen_of(settings)),
                "addresses": [one.address for one in self._bound.get(name, {}).values()],
                **msgspec.structs.asdict(self._stats.get(name, InputStats())),
                **self._fault(name),
            }
            for name, settings in self._config.inputs.items()
        }

    def _fault(self, name: str) -> dict[str, str]:
        """Why an input cannot begin, and what to do; "" if it can."""
        error = self._faults.get(name)
        return {"todo": ""} if error is None else {"trouble": str(error), "todo": error.remedy}


def bind_input(name: str, text: str) -> socket.socket:
    """Bind an address of an input, such as ``udp://127.0.0.1:5514``.

    Raises:
        AddressInUse: another process has it.
        BadValue: it cannot be used.
        OSError: the machine has no descriptor or no memory left.
    """
    key = f"inputs.{name}.listen"
    address = parse_address(text)
    family = socket.AF_UNIX if address.path else socket.AF_INET6 if ":" in address.host else socket.AF_INET
    kind = socket.SOCK_DGRAM if address.is_datagram else socket.SOCK_STREAM
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if address.path:
            _bind_path(sock, Path(address.path))
        else:
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAM_BUFFER_BYTES)
            sock.bind(socket.getaddrinfo(address.host, address.port, family, kind)[0][4])
        if kind == socket.SOCK_STREAM:
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if limit_of(error):
            raise
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(address.port) if kind == socket.SOCK_STREAM and address.port else None
            by = f" by {holder}" if holder is not None else ""
            todo = f"choose another address in {key}, or end what has it: `ss -lnp 'sport = :{address.port}'` shows it"
            raise AddressInUse(f"{key} = {text}: the address is in use{by}", remedy=todo) from None
        todo = f"choose another address in {key}"
        if error.errno == errno.EACCES and address.port and address.port < 1024:
            todo += f", from 1024 on, or let the service have port {address.port} (CAP_NET_BIND_SERVICE)"
        raise BadValue(f"{key} = {text}: {error.strerror}", remedy=todo) from None
    return sock


def _bind_path(sock: socket.socket, path: Path) -> None:
    """Bind a Unix socket that everybody on this host may write to, in place of one that was left."""
    with short_path(path) as short:
        remove_dead_socket(path, short, sock.type)
        sock.bind(short)
    path.chmod(0o666)


def _bound_text(text: str, sock: socket.socket) -> str:
    """The address with the port that the system has chosen."""
    address = parse_address(text)
    return text if address.path else f"{address.scheme}://{address_text(sock.getsockname())}"
