"""Side processes: servers beside the data path, for people and monitors.  Each has a role of its own.

A side process listens at one address, ``listen`` of the table that is called as its role; one whose table has no such
key listens nowhere, and runs if the table is ``on``, from a reload that says so on.  The supervisor binds the
socket before it serves, so an address that is taken fails the start, and a process that is started again finds clients
waiting at the same socket.  Then it forks the process as any other child: heartbeat, restart with growing delays, end
with the supervisor.  Nothing on the data path waits for it or sends to it.

::

    state      the supervisor has      the process has     leaves it by
    off        nothing                 -                   a restart of the appliance with another ``listen``
    bound      socket                  -                   fork, after workers and coordinator
    running    socket, Child           socket, channel     its end: bound again, and forked after a delay
    stopping   socket, Child           socket, channel     Stop; the supervisor does not wait for it

A process keeps its socket, its channel and its heart; other sockets and locks are closed in it
(:meth:`.children.Children.close_in_child`).  Reload brings a new configuration.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...addresses import PLAINTEXT, Listener, address_text, parse_addresses
from ...config import Config
from ...security.configuration import is_loopback
from ...shared.heartbeats import Heart
from ..child import become_child
from ..control import Channel
from ..messages import Reload, Stop
from .actions import Actions
from .children import Children
from .fork import Child
from .listeners import bind


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


Serve = Callable[[SideArguments], None]
"""What a side process runs: serves until Stop comes or the channel closes.  It imports what it needs by itself."""


class SideProcesses:
    """All side processes, by role.  ``listeners``: the addresses of those that are on."""

    def __init__(
        self, roles: Mapping[str, Serve], config: Config, data_dir: Path, children: Children, actions: Actions
    ) -> None:
        """``roles``: what each of them runs; the configuration has a key ROLE.listen, or a table that is on or off."""
        self._roles = roles
        self._config, self._data_dir, self._children = config, data_dir, children
        self._pid = os.getpid()
        self._sockets: dict[str, socket.socket | None] = {}
        """Of those that are on."""
        self._running: dict[str, Child] = {}
        self.listeners: dict[str, str] = {}
        self._start = actions.define("start side processes", self._fork)

    def __contains__(self, role: str) -> bool:
        return role in self._roles

    @property
    def insecure(self) -> list[str]:
        """The addresses that other hosts reach: there is no TLS."""
        bound = [Listener(role, PLAINTEXT, address) for role, address in self.listeners.items()]
        return [f"{one.protocol} {one}" for one in bound if not is_loopback(one)]

    def prepare(self) -> None:
        """Bind the sockets.

        Raises:
            AddressInUse, BadValue, OSError: as for other listeners.
        """
        self._turn_on()
        for role in self._roles:
            for address in parse_addresses(getattr(getattr(self._config, role), "listen", "")):
                sock = self._sockets[role] = bind(Listener(role, PLAINTEXT, address_text(address)))
                self.listeners[role] = address_text(sock.getsockname())
                self._children.close_in_child(sock.close, role)

    def _turn_on(self) -> list[str]:
        """Note the roles that listen nowhere and are on; return those that were not."""
        found = [role for role in self._roles if getattr(getattr(self._config, role), "on", False)]
        new = [role for role in found if role not in self._sockets]
        self._sockets.update(dict.fromkeys(new))
        return new

    def start(self) -> None:
        for role in self._sockets:
            self._start.want(role)

    def _fork(self, role: str) -> None:
        if role in self._running:  # a reload has turned it on before all were started
            return
        pid = self._pid

        def target(channel: Channel, heart: Heart) -> int:
            become_child(role, pid)
            self._roles[role](
                SideArguments(self._config, self._data_dir, self._sockets[role], channel, heart, self._children.seen)
            )
            return 0

        self._running[role] = self._children.fork(role, role, target, {role})

    def on_end(self, child: Child) -> None:
        del self._running[child.role]
        self._children.start_again(child, self._start, child.role)

    def reload(self, config: Config) -> None:
        self._config = config
        for child in self._running.values():
            self._children.send(child, Reload(config))
        for role in self._turn_on():
            self._start.want(role)

    def stop(self) -> None:
        for role in self._sockets:
            self._start.drop(role)
        for child in self._running.values():
            child.stopping = True
            self._children.send(child, Stop())

    @property
    def stopped(self) -> bool:
        return not self._running

    def close(self) -> None:
        for sock in self._sockets.values():
            if sock is not None:
                sock.close()
