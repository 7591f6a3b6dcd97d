"""Accepts connections from the listeners, and refuses those for which there is no room.

Bounds: ``network.connections_max`` connections, or fewer where the system grants fewer descriptors.  A worker that has
to refuse a connection leaves its TCP listeners to other workers for ACCEPT_PAUSE_MS.

RESERVED more are for administrators alone: root, and the user of the service, who come through a Unix socket.  Whatever
others do, the command line gets in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ...addresses import Listener, address_text
from ...machine_limits import CONNECTIONS_MAX, DESCRIPTORS, limit_of
from ...security.local_users import is_administrator
from ...wire.sockets import set_options
from .turn import Turn

PEER_CREDENTIALS: Final = struct.Struct("iII")
"""pid, uid, gid: see unix(7)."""
SPARE_DESCRIPTORS: Final = 64
"""Descriptors that connections leave free: for channels to restarted processes, and for segments in use."""
RESERVED: Final = 16
"""Connections of a worker, and their descriptors, for administrators."""
ACCEPT_PAUSE_MS: Final = 100
LACKING_MS: Final = 5_000
"""How long a worker reports a limit of the machine after it had to refuse a connection for it."""
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class LimitReached(NamedTuple):
    """A limit: its name (:mod:`appliance.machine_limits`), its value, and how much is in use; None: not known."""

    limit: str
    value: int | None
    in_use: int | None


class Accepted(NamedTuple):
    """A new connection, its listener at the address that the client connected to, and the client's address.

    The address of a client of a Unix socket is "unix:" and its process id; ``uid`` is its user, -1 of all others.
    """

    sock: socket.socket
    listener: Listener
    peer: str
    uid: int = -1

    @property
    def host(self) -> str:
        """The client's address without its port; "" of a Unix socket."""
        return "" if self.listener.unix else self.peer.rpartition(":")[0]

    @property
    def administrator(self) -> bool:
        return self.uid >= 0 and is_administrator(self.uid)


class Accepting:
    """The listeners, which all workers share, and a spare descriptor to refuse connections with."""

    def __init__(
        self, listeners: Sequence[tuple[Listener, socket.socket]], connections_max: int, epoll: select.epoll, turn: Turn
    ) -> None:
        self._turn, self._epoll = turn, epoll
        self._connections_max = connections_max
        self.by_fd = {sock.fileno(): (listener, sock) for listener, sock in listeners}
        self.refused = 0
        self.resume_ms = 0
        """When the listeners are watched again; 0: they are watched now."""
        self._lacking, self._lacking_until_ms = "", 0
        """The limit of the machine that a connection was refused for, and how long that counts."""
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._watch(True)

    def accept(self, fd: int, connections: int, descriptors: int) -> Accepted | None:
        """Accept a connection from the listener ``fd``; None: it was refused, or is gone.

        Args:
            connections: how many this worker has.
            descriptors: how many it keeps for other things.
        """
        listener, listening = self.by_fd[fd]
        try:
            sock, peer = listening.accept()
        except OSError as error:
            if error.errno in SHORTAGES:
                self._refuse_for_lack(listening, error)
            return None
        try:
            accepted = self._identify(sock, listener, peer)
        except OSError:  # gone already
            sock.close()
            return None
        reserved = RESERVED if accepted.administrator else 0
        if self._reached_by(connections, descriptors, reserved) is not None:
            self.refused += 1
            self._turn.complain("connection of %s refused: network.connections_max reached", accepted.peer)
            sock.close()
            self._pause()
            return None
        return accepted

    @staticmethod
    def _identify(sock: socket.socket, listener: Listener, peer: tuple[Any, ...]) -> Accepted:
        """Raises OSError: it is gone already."""
        sock.setblocking(False)
        if listener.unix:
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
            pid, uid, _ = PEER_CREDENTIALS.unpack(credentials)
            return Accepted(sock, listener, f"unix:{pid}", uid)
        set_options(sock, peer[0])
        return Accepted(sock, listener._replace(address=address_text(sock.getsockname())), address_text(peer))

    def limits(self, connections: int, descriptors: int) -> list[LimitReached]:
        """The limits that keep clients away now; arguments as :meth:`accept`."""
        reached = self._reached_by(connections, descriptors)
        if reached is not None:
            return [reached]
        if self._lacking and self._turn.now_ms < self._lacking_until_ms:
            return [LimitReached(self._lacking, None, None)]
        return []

    def _reached_by(self, connections: int, descriptors: int, reserved: int = 0) -> LimitReached | None:
        """The limit that so many connections have reached, None when there is room for one more.

        ``reserved``: places for it beside those for all.
        """
        granted, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = descriptors + SPARE_DESCRIPTORS + RESERVED
        if connections < max(1, min(self._connections_max, granted - kept)) + reserved:
            return None
        if granted - kept < self._connections_max:
            return LimitReached(DESCRIPTORS, granted, min(granted, kept + connections))
        return LimitReached(CONNECTIONS_MAX, self._connections_max, connections)

    def _refuse_for_lack(self, listening: socket.socket, error: OSError) -> None:
        """Close a connection with the spare descriptor, so that its client knows at once."""
        spare, self._spare = self._spare, -1
        with contextlib.suppress(OSError):
            if spare >= 0:
                os.close(spare)
                listening.accept()[0].close()
                self.refused += 1
        with contextlib.suppress(OSError):  # then the next shortage closes none
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._lacking, self._lacking_until_ms = limit_of(error), self._turn.now_ms + LACKING_MS
        self._turn.complain("connections are refused: %s: raise LimitNOFILE, or lower connections", str(error))
        self._pause()

    def _pause(self) -> None:
        """Leave the listeners to other workers: this one would only refuse."""
        if not self.resume_ms and self.by_fd:
            self.resume_ms = self._turn.now_ms + ACCEPT_PAUSE_MS
            self._watch(False, unix=False)

    def resume(self) -> None:
        """Watch the listeners again once the pause is over."""
        if self._turn.now_ms >= self.resume_ms:
            self.resume_ms = 0
            self._watch(True, unix=False)

    def _watch(self, watch: bool, unix: bool = True) -> None:
        """``unix``: also the Unix sockets."""
        for fd, (listener, _) in self.by_fd.items():
            if listener.unix and not unix:
                continue
            if watch:
                self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            else:
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Close the listeners: the worker stops."""
        if self.resume_ms:
            self._watch(True, unix=False)
        self._watch(False)
        for _, sock in self.by_fd.values():
            sock.close()
        self.by_fd.clear()
        self.resume_ms = 0
