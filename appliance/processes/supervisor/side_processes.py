"""Side processes: servers beside the data path, for people and monitors.  Each has a role of its own.

A side process listens at one address, ``listen`` of the table that is called as its role; one whose table has no such
key listens nowhere: ``alerts`` runs from the start, or the reload, that names a receiver.  The supervisor binds the
socket before it serves, so an address that is taken fails the start, and a process that is started again finds clients
waiting at the same socket.  Then it forks the process as any other child: heartbeat, restart with growing delays, end
with the supervisor.  Nothing on the data path waits for it or sends to it.

Its states are those of any role (:mod:`.roles`); its socket is there from the start of the appliance to its end.
A process keeps its socket, its channel and its heart; other sockets and locks are closed in it
(:meth:`.children.Children.close_in_child`).  Reload brings a new configuration.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ...addresses import PLAINTEXT, Listener, address_text, parse_addresses
from ...config import Config
from ...security.configuration import is_loopback
from ...shared.heartbeats import Heart
from ..control import Channel
from ..messages import Reload
from .actions import Actions
from .children import Children
from .fork import Child, SideRole
from .listeners import bind
from .roles import Process, Role


class SideArguments(NamedTuple):
    """The arguments of a side process."""

    config: Config
    data_dir: Path
    sock: socket.socket | None
    """None: it listens nowhere."""
    channel: Channel
    heart: Heart
    seen: Callable[[int], int]
    """The value of a heart's cell; "heart" of a process in state.json has the index."""

    @property
    def listening(self) -> socket.socket:
        """The socket of a process that listens."""
        assert self.sock is not None
        return self.sock


ALERTS: Final[SideRole] = "alerts"
Serve = Callable[[SideArguments], None]
"""What a side process runs: serves until Stop comes or the channel closes.  It imports what it needs by itself."""


class SideProcesses:
    """All side processes, by role.  ``listeners``: the addresses of those that are on."""

    def __init__(
        self, roles: Mapping[SideRole, Serve], config: Config, data_dir: Path, children: Children, actions: Actions
    ) -> None:
        """``roles``: what each of them runs; the configuration has a key ROLE.listen, or it is ``alerts``."""
        self._roles = roles
        self._config, self._data_dir, self._children = config, data_dir, children
        self._sockets: dict[SideRole, socket.socket | None] = {}
        """Of those that are on."""
        self.listeners: dict[str, str] = {}
        self._by_name: dict[SideRole, Role[str]] = {
            name: Role(name, f"start the {name}", children, actions, partial(self._prepare, name), stays=True)
            for name in roles
        }

    @property
    def insecure(self) -> list[str]:
        """The addresses that other hosts reach: there is no TLS."""
        bound = [Listener(role, PLAINTEXT, address) for role, address in self.listeners.items()]
        return [f"{listener.protocol} {listener}" for listener in bound if not is_loopback(listener)]

    def prepare(self) -> None:
        """Bind the sockets.

        Raises:
            AddressInUse, BadValue, OSError: as for other listeners.
        """
        self._turn_on()
        for role in self._roles:
            if role == ALERTS:
                continue
            for address in parse_addresses(getattr(self._config, role).listen):
                sock = self._sockets[role] = bind(Listener(role, PLAINTEXT, address_text(address)))
                self.listeners[role] = address_text(sock.getsockname())
                self._children.close_in_child(sock.close, role)

    def _turn_on(self) -> list[SideRole]:
        """Note the roles that listen nowhere and are on; return those that were not."""
        roles_on = [role for role in self._roles if role == ALERTS and self._config.alerts.has_receivers]
        new = [role for role in roles_on if role not in self._sockets]
        self._sockets.update(dict.fromkeys(new))
        return new

    def start(self) -> None:
        for name in self._sockets:
            self._by_name[name].start("")

    def _prepare(self, name: SideRole, _: str) -> Process:
        def run(channel: Channel, heart: Heart) -> int:
            self._roles[name](
                SideArguments(self._config, self._data_dir, self._sockets[name], channel, heart, self._children.seen)
            )
            return 0

        return Process(run, name, {name})

    def on_end(self, name: SideRole, child: Child) -> None:
        self._by_name[name].on_end(child)

    def reload(self, config: Config) -> None:
        self._config = config
        for role in self._by_name.values():
            role.send_all(Reload(config))
        for name in self._turn_on():
            self._by_name[name].start("")

    def stop(self) -> None:
        for role in self._by_name.values():
            role.stop()

    @property
    def stopped(self) -> bool:
        return all(role.all_gone for role in self._by_name.values())

    def close(self) -> None:
        for sock in self._sockets.values():
            if sock is not None:
                sock.close()
