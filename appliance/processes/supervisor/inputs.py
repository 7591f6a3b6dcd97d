"""Processes that take logs in, one for each table ``[inputs.NAME]``, or some for UDP; role ``input``.

The first process of an input has its name, the others ``NAME.2``, ``NAME.3``...: their *members*.  Each has a socket of
its own for every address of UDP, among which the kernel divides the senders, and positions of its own; all else is the
first one's.  What they count is added up.

The supervisor binds the sockets of an input and keeps them as long as its settings have them: senders wait while a
process is started again.  Then it forks the process as any other child: heartbeat, restart with growing delays.  An
input produces as any client does, through the Unix socket in the data directory, so nothing on the data path waits for
it.  An input that cannot begin says why in ``status``, and is tried again; everything else goes on.

Its states are those of any role (:mod:`.roles`).  Its sockets are bound before it starts; while an address is in use
that is tried again after RETRY_MS.  An address at which systemd has bound a socket for inputs gets that one.  With
other settings it retires and starts again, without any it retires.

It takes nothing more once it stops, and ends when all that it has taken is flushed.  What takes longer than an eighth
of ``stop.timeout_ms`` is killed: whoever has no answer sends again, and files are read again.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from ...addresses import address_text
from ...config import Config
from ...errors import AddressInUse, ApplianceError, BadValue
from ...input_settings import (
    InputSettings,
    kind_of,
    listen_of,
    open_addresses,
    parse_address,
    processes_of,
    shared_addresses,
)
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
FURTHER: Final = "#"
"""Before the number of a further socket at an address of UDP, in the keys of sockets."""
PASSED_NAME: Final = "inputs"
"""FileDescriptorName of sockets that systemd passes for addresses of inputs."""
RIGHTS: Final = "`appliance inputs rights --apply` has systemd bind one for each process"
RETRY_MS: Final = 5_000
DATAGRAM_BUFFER_BYTES: Final = 8 << 20
"""Wanted; the kernel gives up to net.core.rmem_max, or all of it to who may administrate the network.  Datagrams wait
there while the process is busy."""
SO_RCVBUFFORCE: Final = 33


class InputArguments(NamedTuple):
    """``address``: the native listener that it produces through; ``sockets``: bound, by their text in ``listen``;
    further ones at an address have FURTHER and a number behind it.

    ``member``: its key among all processes of inputs.
    """

    member: str
    name: str
    settings: InputSettings
    config: Config
    data_dir: Path
    address: str
    sockets: Mapping[str, socket.socket]
    channel: Channel
    heart: Heart


class BoundInput(NamedTuple):
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
        self._bound: dict[str, dict[str, BoundInput]] = {}
        """Of each member, as :class:`InputArguments` has them."""
        self._passed: list[socket.socket] = []
        self._stats: dict[str, InputStats] = {}
        self._faults: dict[str, ApplianceError] = {}
        self._is_started = False
        self.role = Role(ROLE, "start an input", children, actions, self._prepare, stays=True)
        children.close_in_child(self.close, ROLE)

    def adopt(self, passed: list[socket.socket]) -> None:
        """Take the sockets that systemd passes; they stay open while no input listens there."""
        self._passed = passed
        texts = [text for settings in self._config.inputs.values() for text in listen_of(settings)]
        for sock in passed:
            if not any(_is_at(sock, text) for text in texts):
                logger.warning("systemd passes %s, which is in listen of no input", address_text(sock.getsockname()))

    def start(self) -> None:
        self._is_started = True
        for name, settings in self._config.inputs.items():
            self._start_members(name, settings)

    def _start_members(self, name: str, settings: InputSettings, delay_ms: int = 0) -> None:
        for member in members(name, settings):
            self.role.start(member, delay_ms)

    def _prepare(self, member: str) -> Process | None:
        name = input_of(member)
        settings = self._config.inputs.get(name)
        if settings is None or member not in members(name, settings):
            return None
        try:
            self._bind(name, settings)
        except ApplianceError as error:
            if str(self._faults.get(name, "")) != str(error):
                logger.error("inputs.%s cannot begin: %s", name, error)
            self._faults[name] = error
            self.role.start(member, RETRY_MS)
            return None
        self._faults.pop(name, None)

        def run(channel: Channel, heart: Heart) -> int:
            mine = {text: bound.sock for text, bound in self._bound.pop(member, {}).items()}
            self.close()
            address = local_listener(self._data_dir).address
            arguments = (member, name, settings, self._config, self._data_dir, address, mine, channel, heart)
            self._run_input(InputArguments(*arguments))
            return 0

        return Process(run, f"input {member}", {ROLE})

    def _bind(self, name: str, settings: InputSettings) -> None:
        """Bind the sockets of ``listen``; close those that are not in it any more.

        Raises:
            AddressInUse, BadValue, OSError: as for other listeners.
        """
        addresses, shared = listen_of(settings), shared_addresses(settings)
        first, *others = members(name, settings)
        bound = self._bound.setdefault(first, {})
        for member in (first, *others):
            configured = (*addresses, *self._further(name, settings)) if member == first else shared
            for text in [text for text in self._bound.get(member, {}) if text not in configured]:
                self._bound[member].pop(text).sock.close()
        for text in addresses:
            if text not in bound:
                sock = self._take_passed(text, 0) or bind_input(name, text)
                bound[text] = BoundInput(sock, _bound_text(text, sock))
        for number, member in enumerate(others, 1):
            of_member = self._bound.setdefault(member, {})
            for text in shared:
                if text not in of_member:
                    sock = self._take_passed(text, number) or _bind_beside(name, text, bound[text].sock)
                    of_member[text] = BoundInput(sock, bound[text].address)
        for key, (text, number) in self._further(name, settings).items():
            if key not in bound and (further := self._take_passed(text, number)) is not None:
                bound[key] = BoundInput(further, bound[text].address)
                logger.warning("inputs.%s: systemd passes a socket at %s that no process has: %s", name, text, RIGHTS)

    def _further(self, name: str, settings: InputSettings) -> dict[str, tuple[str, int]]:
        """The sockets that systemd passes beyond one for each process: their address and number, by key.

        The first process reads them: systemd keeps them open, so the kernel goes on giving senders to them.
        """
        count = len(members(name, settings))
        return {
            f"{text}{FURTHER}{number + 1}": (text, number)
            for text in shared_addresses(settings)
            for number in range(count, sum(_is_at(sock, text) for sock in self._passed))
        }

    def _take_passed(self, text: str, number: int) -> socket.socket | None:
        """The socket that systemd passes for an address; of several the one of this number."""
        there = [sock for sock in self._passed if _is_at(sock, text)]
        return there[number].dup() if number < len(there) else None

    def _unbind(self, member: str) -> None:
        for listener in self._bound.pop(member, {}).values():
            listener.sock.close()

    def on_end(self, child: Child) -> None:
        self._stats.pop(child.key, None)
        if not self._is_wanted(child.key):
            self._unbind(child.key)
        self.role.on_end(child)

    def _is_wanted(self, member: str) -> bool:
        settings = self._config.inputs.get(input_of(member))
        return settings is not None and member in members(input_of(member), settings)

    def on_stats(self, member: str, stats: InputStats) -> None:
        self._stats[member] = stats

    def reload(self, config: Config) -> None:
        """Stop the inputs that have other settings or none now, and start those that are new."""
        before, self._config = self._config, config
        for name in before.inputs.keys() | config.inputs.keys():
            if before.inputs.get(name) == config.inputs.get(name) and before.ledger == config.ledger:
                continue
            self._faults.pop(name, None)
            for member in members(name, before.inputs[name]) if name in before.inputs else ():
                self.role.retire(member)
                if not self._is_wanted(member) and member not in self.role:
                    self._unbind(member)
            if name in config.inputs and self._is_started:
                self._start_members(name, config.inputs[name])

    def stop(self) -> None:
        self._is_started = False
        self.role.stop()

    def close(self) -> None:
        """Close the sockets; ``status`` goes on showing where they were."""
        for bound in self._bound.values():
            for listener in bound.values():
                listener.sock.close()
        for sock in self._passed:
            sock.close()

    # ---- for status

    @property
    def insecure(self) -> list[str]:
        """The addresses at which anybody on other hosts may write."""
        inputs = self._config.inputs.items()
        return [
            f"input {name} {text}" for name, settings in inputs for text in open_addresses(settings, self._config.tls)
        ]

    def rows(self) -> dict[str, dict[str, Any]]:
        """The inputs with their state and numbers."""
        return {
            name: {
                "type": kind_of(settings),
                "topic": settings.topic,
                "state": self._state(name, settings),
                "listen": list(listen_of(settings)),
                "addresses": [bound.address for key, bound in self._bound.get(name, {}).items() if text_of(key) == key],
                "further": len(self._further(name, settings)),
                **msgspec.structs.asdict(_added(self._stats.get(member) for member in members(name, settings))),
                **self._fault(name),
            }
            for name, settings in self._config.inputs.items()
        }

    def _state(self, name: str, settings: InputSettings) -> str:
        if name in self._faults:
            return "failed"
        return "running" if all(member in self.role for member in members(name, settings)) else "starting"

    def _fault(self, name: str) -> dict[str, str]:
        """Why an input cannot begin, and what to do; "" if it can."""
        error = self._faults.get(name)
        return {"todo": ""} if error is None else {"trouble": str(error), "todo": error.remedy}


def members(name: str, settings: InputSettings) -> list[str]:
    """The keys of the processes of an input, that of the first one first."""
    return [name, *(f"{name}.{number}" for number in range(2, processes_of(settings) + 1))]


def input_of(member: str) -> str:
    """The name of the input that a process belongs to."""
    return member.partition(".")[0]


def _added(stats: Iterable[InputStats | None]) -> InputStats:
    """What some processes have counted; what one of them waits for."""
    total = InputStats()
    for added in stats:
        if added is not None:
            total = InputStats(
                *(a + b if isinstance(a, int) else a or b for a, b in zip(astuple(total), astuple(added), strict=True))
            )
    return total


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
                _enlarge_buffer(sock)
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
            todo += ", from 1024 on, or let systemd bind it: `appliance inputs rights --apply`"
        raise BadValue(f"{key} = {text}: {error.strerror}", remedy=todo) from None
    return sock


def text_of(key: str) -> str:
    """The address in ``listen`` of a key of sockets; a path may have any letter."""
    return key if key.startswith("unix:") else key.partition(FURTHER)[0]


def _bind_beside(name: str, text: str, first: socket.socket) -> socket.socket:
    """Bind another UDP socket at the address of one: the kernel gives each sender's port to one of them.

    The first one was bound alone, so an address that another process has was seen.

    Raises:
        AddressInUse: the first one is another user's, as that of systemd is.
        OSError: the machine has no descriptor or no memory left.
    """
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock = socket.socket(first.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        _enlarge_buffer(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(first.getsockname())
    except OSError as error:
        sock.close()
        if limit_of(error):
            raise
        raise AddressInUse(
            f"inputs.{name}.processes: {text}: no further socket: {error.strerror}", remedy=RIGHTS
        ) from None
    return sock


def _enlarge_buffer(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, DATAGRAM_BUFFER_BYTES)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAM_BUFFER_BYTES)


def _bind_path(sock: socket.socket, path: Path) -> None:
    """Bind a Unix socket that everybody on this host may write to, in place of one that was left."""
    with short_path(path) as short:
        remove_dead_socket(path, short, sock.type)
        sock.bind(short)
    path.chmod(0o666)


def _is_at(sock: socket.socket, text: str) -> bool:
    """Whether a socket is bound at an address of ``listen``."""
    address = parse_address(text)
    if address.path:
        return False
    kind = socket.SOCK_DGRAM if address.is_datagram else socket.SOCK_STREAM
    return sock.type == kind and sock.getsockname()[:2] == (address.host, address.port)


def _bound_text(text: str, sock: socket.socket) -> str:
    """The address with the port that the system has chosen."""
    address = parse_address(text)
    return text if address.path else f"{address.scheme}://{address_text(sock.getsockname())}"
