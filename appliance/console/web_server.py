"""Runs the console's HTTP server on a socket that is bound already, until it is told to stop.

Bounds: CONNECTIONS_MAX connections, CONNECTIONS_OF_ADDRESS_MAX of them from one address that is no proxy;
HEADER_BYTES_MAX of a request's head; a connection without a request for IDLE_S_MAX is closed, also one that sends its
head slowly.  When there is no place, the oldest connection on which nobody who is logged in has asked gives way, first
of those that are idle: who holds places without asking, or without a login, loses them to those who come.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any, ClassVar, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..addresses import MAPPED, IpNetwork, site_of
from ..web.server import HttpServer
from ..wire.sockets import set_options

CONNECTIONS_MAX: Final = 128
CONNECTIONS_OF_ADDRESS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 32 * 1024
IDLE_S_MAX: Final = 10.0
STOP_S_MAX: Final = 0.5
"""How long a stop waits for answers: a page that does not read does not delay it."""
_numbers = itertools.count()


class BrowserConnection(H11Protocol):
    """One connection of a browser.  The application finds it in the state of a request, as ``connection``."""

    proxies: ClassVar[Sequence[IpNetwork]] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]).removeprefix(MAPPED).partition("%")[0]
        self.host = site_of(address)
        self.of_proxy = any(ipaddress.ip_address(address) in network for network in self.proxies)
        """Whether visitors of many addresses come from this one."""
        self.number = next(_numbers)
        self.logged_in = False
        """Whether somebody who is logged in has asked here."""
        self.app_state = {**self.app_state, "connection": self}
        if not self._find_place():
            transport.abort()
            return
        # Without it the second part of an answer waits 40 ms: asyncio does it for sockets that it has made itself.
        set_options(transport.get_extra_info("socket"), peer[0])
        self._served: Any = None
        self._check_later()

    def data_received(self, data: bytes) -> None:
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().data_received(data)

    def _find_place(self) -> bool:
        """Let another connection give way if there is no place; False if none can."""
        open_ones = [
            connection
            for connection in self.connections
            if isinstance(connection, BrowserConnection) and not connection.transport.is_closing()
        ]
        others = [connection for connection in open_ones if connection is not self]
        crowd = [] if self.of_proxy else [connection for connection in others if connection.host == self.host]
        if len(crowd) < CONNECTIONS_OF_ADDRESS_MAX:
            if len(others) < CONNECTIONS_MAX:
                return True
            crowd = others
        guests = [connection for connection in crowd if not connection.logged_in]
        if not guests:
            return False
        min(guests, key=lambda connection: (not connection.idle, connection.number)).transport.abort()
        return True

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _check_later(self) -> None:
        self.loop.call_later(IDLE_S_MAX, self._check_idle)

    def _check_idle(self) -> None:
        """Close the connection if it has had no request since the last check, and none is being answered."""
        if self.transport.is_closing():
            return
        if self.idle and self.cycle is self._served:
            self.transport.abort()
            return
        self._served = self.cycle
        self._check_later()


async def serve_until(
    stopping: asyncio.Event, app: ASGIApp, sockets: Sequence[Any], proxies: Sequence[IpNetwork] = ()
) -> None:
    """Serve until the event is set; answers that never end see it, too."""
    settings = uvicorn.Config(
        app,
        http=type("OwnConnection", (BrowserConnection,), {"proxies": proxies}),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
    )
    server = HttpServer(settings, stopping, name="the console", stop_s_max=STOP_S_MAX)
    await server.serve(sockets=list(sockets))
    stopping.set()
