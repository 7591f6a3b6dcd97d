"""One connection of a sender of an input by HTTP: the bounds that uvicorn's own protocol does not have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from email.utils import formatdate
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..addresses import host_of_peer
from ..wire.sockets import set_options
from .bodies import CROWDED, RETRY_AFTER_S

HEAD_BYTES_MAX: Final = 64 * 1024
HEAD_MS_MAX: Final = 10_000
PIPELINE_MAX: Final = 16
"""Requests of a connection without an answer."""
UNREAD_S: Final = 30.0
"""How long a sender may leave an answer unread."""
_silent = logging.getLogger(f"{__name__}.silent")
_silent.setLevel(logging.ERROR)  # what is no HTTP is counted, and not worth a line each time


LOBBY_MAX: Final = 50
"""Connections beyond ``connections_max`` that are kept to be told so when their requests come."""
_CROWDED: Final = (
    f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: {len(CROWDED) + 1}\r\n"
    f"retry-after: {RETRY_AFTER_S[503]}\r\nconnection: close\r\n\r\n{CROWDED}\n"
).encode()


class SenderPlaces:
    """The connections by the address of their sender, in the order in which they came."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._count = 0
        self._by_host: dict[str, dict[SenderConnection, None]] = {}

    def enter(self, connection: SenderConnection) -> bool:
        """Let another connection give way if there is no place.  False if none can, and the lobby is full."""
        self._by_host.setdefault(connection.host, {})[connection] = None
        self._count += 1
        if self.is_crowded:
            for crowd in sorted(self._by_host.values(), key=len, reverse=True):
                for other in crowd:
                    if other is not connection and not other.is_answering:
                        self.leave(other)
                        other.give_way()
                        return True
        if self._count <= self._connections_max + LOBBY_MAX:
            return True
        self.leave(connection)
        return False

    @property
    def is_crowded(self) -> bool:
        """Whether there are more than may be served."""
        return self._count > self._connections_max

    def leave(self, connection: SenderConnection) -> None:
        crowd = self._by_host.get(connection.host, {})
        if connection in crowd:
            del crowd[connection]
            self._count -= 1
            if not crowd:
                del self._by_host[connection.host]


class SenderConnection(HttpToolsProtocol):
    """The application finds it in the state of a request, as ``connection``."""

    places: ClassVar[SenderPlaces]
    on_fault: ClassVar[Callable[[str], None]]
    on_crowded: ClassVar[Callable[[str], None]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.logger = _silent
        peer = transport.get_extra_info("peername")
        self.host = host_of_peer(peer)
        self.is_answering = False
        """Whether a request has come whole, and its messages are on their way."""
        self.is_in_lobby = False
        """Whether it came when all places were taken."""
        self._head_since: float | None = self.loop.time()
        self._unread_since: float | None = None
        self._quiet_bytes = 0  # since the last piece of a body, or end of a head
        self.app_state = {**self.app_state, "connection": self}
        if peer is None:
            transport.abort()
            return
        if not self.places.enter(self):
            self.give_way()
            return
        self.is_in_lobby = self.places.is_crowded
        set_options(transport.get_extra_info("socket"), peer[0])

    def give_way(self) -> None:
        """Close it, and tell its sender why if that waits for an answer, or has never asked for one."""
        type(self).on_crowded(self.host)
        cycle = self.cycle
        is_between = self._head_since is None and (cycle is None or cycle.response_complete)
        is_in_answer = cycle is not None and cycle.response_started and not cycle.response_complete
        if not (is_between or is_in_answer or self.transport.get_write_buffer_size()):
            self.transport.write(_CROWDED)
        self.transport.abort()  # close() would wait for a sender that does not read

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.leave(self)
        super().connection_lost(exc)

    # ---- what comes

    def data_received(self, data: bytes) -> None:
        self.server_state.default_headers = _DATE.headers(self.loop.time())
        self._quiet_bytes += len(data)
        if self._head_since is None and (self.cycle is None or self.cycle.response_complete):
            self._head_since = self.loop.time()
        super().data_received(data)
        if self._quiet_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():  # a head, or trailers, without end
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINE_MAX:
            raise ValueError("too many requests without an answer")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._quiet_bytes, self._head_since = 0, None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._quiet_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        type(self).on_fault(self.host)
        super().send_400_response(msg)

    # ---- from time to time

    def check(self, now: float) -> None:
        """Close the connection if its sender takes too long to send a head, or to read an answer."""
        if self._head_since is not None and now - self._head_since > HEAD_MS_MAX / 1000:
            self.transport.abort()
        elif not self.transport.get_write_buffer_size():
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since > UNREAD_S:
            self.transport.abort()


class _Date:
    """The header Date, made once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._headers: list[tuple[bytes, bytes]] = []

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        if int(now) != self._second:
            self._second = int(now)
            self._headers = [(b"date", formatdate(usegmt=True).encode())]
        return self._headers


_DATE: Final = _Date()
