"""Serves /metrics, /live and /ready by HTTP, in the side process ``metrics``.

Threads: the main thread accepts, beats and reads the supervisor's messages; each connection has a thread.  Bounds:
CONNECTIONS_MAX connections, more are closed; TIMEOUT_S for each of their steps; one answer a connection.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

from ..processes.supervisor.side_processes import SideArguments

CONNECTIONS_MAX: Final = 16
TIMEOUT_S: Final = 10
TURN_S: Final = 0.5
"""How long a stop waits at most for the main thread to notice."""

logger = logging.getLogger(__name__)


class Page(NamedTuple):
    """An answer: its status and body."""

    status: int
    content_type: str
    body: bytes


def text(status: int, lines: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", lines.encode())


class MetricsServer(ThreadingHTTPServer):
    """Answers GET and HEAD of ``pages``; :meth:`serve` turns at least every TURN_S."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, arguments: SideArguments, pages: dict[str, Callable[[], Page]]) -> None:
        super().__init__(arguments.sock.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = arguments.sock
        self.pages = pages
        self._arguments = arguments
        self._room = threading.Semaphore(CONNECTIONS_MAX)
        self._stopping = False

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("connection of %s ended", client_address, exc_info=True)

    def serve(self) -> None:
        """Serve until the supervisor stops this process, or is gone."""
        self.timeout = TURN_S
        channel, heart = self._arguments.channel, self._arguments.heart
        while not self._stopping and not channel.closed:
            heart.beat()
            for message, _ in channel.receive():
                self._stopping = self._stopping or message == ["stop"]
            self.handle_request()


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = TIMEOUT_S
    server_version = "appliance"
    sys_version = ""

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        answer = text(404, "".join(f"{path}\n" for path in self.server.pages)) if page is None else page()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        logger.debug(format, *arguments)


def serve(arguments: SideArguments) -> None:
    """Run the side process ``metrics``."""
    MetricsServer(arguments, {"/live": lambda: text(200, "live\n")}).serve()
