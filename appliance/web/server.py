"""Serves HTTP on sockets that are bound already, until it is told to stop; a protocol class says how."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import uvicorn

ACCEPT_PAUSE_S: Final = 1.0
"""How long the listener is left alone after a connection that could not be accepted."""
ACCEPT_TOLD_S: Final = 60.0
"""How often that is in the log."""
HANDSHAKES_MAX: Final = 1_000
"""At a time; another one ends the oldest."""

logger = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """Accepts by itself, and leaves signals alone: the supervisor says when this process stops.

    uvicorn's own loop wakes up ten times a second, to look whether it should stop and to set the date.  asyncio's
    servers try 2,048 times in a row to accept a connection for which no descriptor is left, with a log entry for each.
    """

    def __init__(
        self,
        settings: uvicorn.Config,
        stopping: asyncio.Event,
        *,
        name: str,
        stop_s_max: float,
        tls: Mapping[socket.socket, Callable[[], ssl.SSLContext]] | None = None,
        handshake_s_max: float = 10.0,
    ) -> None:
        """
        Args:
            settings: its protocol class makes the connections.
            name: what connections are for, in the log.
            stop_s_max: how long a stop waits for answers.
            tls: the present context of the sockets that have TLS.
        """
        super().__init__(settings)
        self._stopping = stopping
        self._name, self._stop_s_max = name, stop_s_max
        self._tls = tls or {}
        self._handshake_s_max = handshake_s_max
        self._accepted: dict[asyncio.Task[Any], None] = {}
        self._tell_s = -ACCEPT_TOLD_S

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = []
        for sock in sockets or ():
            sock.setblocking(False)
            self._listen(sock)
        self.started = True

    def _listen(self, sock: socket.socket) -> None:
        if not self._stopping.is_set():
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        """Accept one connection; the loop reports the next one."""
        loop = asyncio.get_running_loop()
        try:
            accepted, _ = sock.accept()
        except (BlockingIOError, ConnectionError):  # it has gone
            return
        except OSError as error:
            if loop.time() >= self._tell_s:
                self._tell_s = loop.time() + ACCEPT_TOLD_S
                logger.warning("a connection to %s is not accepted: %s", self._name, error.strerror)
            loop.remove_reader(sock.fileno())
            loop.call_later(ACCEPT_PAUSE_S, self._listen, sock)
            return
        accepted.setblocking(False)
        tls = self._tls.get(sock)
        if tls is not None and len(self._accepted) >= HANDSHAKES_MAX:
            next(iter(self._accepted)).cancel()
        task = loop.create_task(
            loop.connect_accepted_socket(self._connection, accepted)
            if tls is None
            else loop.connect_accepted_socket(
                self._connection, accepted, ssl=tls(), ssl_handshake_timeout=self._handshake_s_max
            )
        )
        self._accepted[task] = None
        task.add_done_callback(self._note_accepted)

    def _note_accepted(self, task: asyncio.Task[Any]) -> None:
        self._accepted.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a handshake that failed, or took too long
            logger.debug("a connection to %s has ended: %s", self._name, error)

    def _connection(self) -> asyncio.Protocol:
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests be answered for ``stop_s_max``, then cut them."""
        for sock in sockets or ():
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=self._stop_s_max)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
