"""Runs the console's HTTP server on a socket that is bound already, until it is told to stop.

Bounds: CONNECTIONS_MAX connections, further ones are closed at once; HEADER_BYTES_MAX of a request's head; a
connection without a request for IDLE_S_MAX is closed, also one that sends its head slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence
from email.utils import formatdate
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..wire.sockets import set_options

CONNECTIONS_MAX: Final = 128
HEADER_BYTES_MAX: Final = 32 * 1024
IDLE_S_MAX: Final = 10.0
STOP_S_MAX: Final = 0.5
"""How long a stop waits for answers: a page that does not read does not delay it."""
ACCEPT_PAUSE_S: Final = 1.0
"""How long the listener is left alone after a connection that could not be accepted."""

logger = logging.getLogger(__name__)


class Connection(H11Protocol):
    """One connection of a browser."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        # Without it the second part of an answer waits 40 ms: asyncio does it for sockets that it has made itself.
        set_options(transport.get_extra_info("socket"), peer[0])
        self._served: Any = None
        self._check_later()

    def data_received(self, data: bytes) -> None:
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().data_received(data)

    def _check_later(self) -> None:
        self.loop.call_later(IDLE_S_MAX, self._check_idle)

    def _check_idle(self) -> None:
        """Close the connection if it has had no request since the last check, and none is being answered."""
        if self.transport.is_closing():
            return
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._served:
            self.transport.abort()
            return
        self._served = self.cycle
        self._check_later()


class HttpServer(uvicorn.Server):
    """Accepts by itself, and leaves signals alone: the supervisor says when this process stops.

    uvicorn's own loop wakes up ten times a second, to look whether it should stop and to set the date.  asyncio's
    servers try 2,048 times in a row to accept a connection for which no descriptor is left, with a log entry for each.
    """

    def __init__(self, settings: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(settings)
        self._stopping = stopping
        self._accepted: set[asyncio.Task[Any]] = set()

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
            logger.warning("a connection to the console is not accepted: %s", error.strerror)
            loop.remove_reader(sock.fileno())
            loop.call_later(ACCEPT_PAUSE_S, self._listen, sock)
            return
        accepted.setblocking(False)
        task = loop.create_task(loop.connect_accepted_socket(self._connection, accepted))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)

    def _connection(self) -> asyncio.Protocol:
        return Connection(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests be answered for STOP_S_MAX, then cut them."""
        for sock in sockets or ():
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=STOP_S_MAX)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_until(stopping: asyncio.Event, app: ASGIApp, sockets: Sequence[Any]) -> None:
    """Serve until the event is set; answers that never end see it, too."""
    settings = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
    )
    await HttpServer(settings, stopping).serve(sockets=list(sockets))
    stopping.set()
