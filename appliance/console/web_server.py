"""Runs the console's HTTP server on a socket that is bound already, until it is told to stop.

Bounds: CONNECTIONS_MAX connections, further ones are closed at once; HEADER_BYTES_MAX of a request's head; a
connection without a request for IDLE_S_MAX is closed, also one that sends its head slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..wire.sockets import set_options

CONNECTIONS_MAX: Final = 128
HEADER_BYTES_MAX: Final = 32 * 1024
IDLE_S_MAX: Final = 10.0
STOP_S_MAX: Final = 2


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
    """Leaves signals alone: the supervisor says when this process stops."""

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
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        timeout_graceful_shutdown=STOP_S_MAX,
    )
    server = HttpServer(settings)
    serving = asyncio.create_task(server.serve(sockets=list(sockets)))
    ending = asyncio.create_task(stopping.wait())
    await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    stopping.set()
    server.should_exit = True
    await serving
