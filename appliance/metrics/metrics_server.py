"""Serves /metrics, /live and /ready by HTTP, in the side process ``metrics``.

Threads: the main thread accepts connections, sends heartbeats and reads the supervisor's messages; each connection has
a thread.  Bounds: CONNECTIONS_MAX connections; TIMEOUT_S for each read and each write; one answer per connection.  When
there is no place for one more, the oldest gives way that has not sent its request yet, or without one it is closed.

The Host header is an IP address, ``localhost``, the name of this host, or one of ``metrics.hosts``: a page of another
site that makes its own name point here (DNS rebinding) reads nothing.  Monitors that send none are no browsers.

Between two requests it wakes up for a beat, for a look at the others' hearts, and for the next round of ``lag_watch``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any, Final, NamedTuple

from ..addresses import host_names, host_of, is_own_host
from ..clock import now_ms
from ..health.findings import wrong
from ..processes.child import set_log_level
from ..processes.messages import TO_SIDE_PROCESS, Stop
from ..processes.supervisor.side_processes import SideArguments
from ..status import STATE_FILE, read_state
from .disk_forecast import SAMPLE_S, DiskForecast
from .exposition import CONTENT_TYPE, Exposition, ReadingCollector, Watched
from .lag_watch import LagWatch
from .looks import Look, Looker, at_directory, seen

CONNECTIONS_MAX: Final = 16
TIMEOUT_S: Final = 10
LOOK_MS: Final = 2_000
"""How often the heartbeats are looked at."""
ACCEPT_PAUSE_S: Final = 1.0
"""How long the listener is left alone after a connection that could not be accepted: it would be reported at once."""

logger = logging.getLogger(__name__)


class HeartWatch:
    """Measures how long ago each process has beaten last (:mod:`appliance.shared.heartbeats`).

    It compares the cells of the processes with what they were, in every turn of its caller's loop.

    ``seen`` returns the value of a cell.  The rows are those of ``processes`` in state.json; ZooKeeper has no heart.
    """

    def __init__(self, seen: Callable[[int], int]) -> None:
        self._seen = seen
        self._changed: dict[tuple[int, int], tuple[int, int]] = {}  # (pid, heart) -> value, when it changed

    def note_beats(self, rows: Iterable[Mapping[str, Any]], now_ms: int) -> None:
        """Note which cells have changed since the last look; forget processes that are gone."""
        changed = {}
        for row in rows:
            if "heart" in row:
                key, value = (row["pid"], row["heart"]), self._seen(row["heart"])
                before = self._changed.get(key)
                changed[key] = before if before is not None and before[0] == value else (value, now_ms)
        self._changed = changed

    def ages_s(self, rows: Iterable[Mapping[str, Any]], now_ms: int) -> dict[str, float]:
        """The longest time since a beat, in seconds, of each role."""
        ages: dict[str, float] = {}
        for row in rows:
            beat = self._changed.get((row["pid"], row.get("heart", -1)))
            if beat is not None:
                ages[row["role"]] = max(ages.get(row["role"], 0.0), (now_ms - beat[1]) / 1000)
        return ages


class Page(NamedTuple):
    """An answer: its status and body."""

    status: int
    content_type: str
    body: bytes


def text(status: int, lines: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", lines.encode())


class Pages:
    """Makes the pages, for any thread."""

    def __init__(self, data_dir: Path, seen: Callable[[int], int]) -> None:
        self.lag_watch = LagWatch(data_dir, "metrics")
        self._data_dir, self._hearts = data_dir, HeartWatch(seen)
        self._looker = Looker(data_dir)
        self._forecast, self._exposition = DiskForecast(), Exposition()
        self._lock = threading.Lock()
        self._looked_ms, self._noted_ms = 0, now_ms() - SAMPLE_S * 1000
        self._processes: Sequence[Mapping[str, Any]] = ()
        self._read_at = (0, 0)
        """Inode and time of the state.json that has them: with 10,000 partitions it takes 5 ms to read."""

    def _take(self) -> Look:
        with self._lock:
            look = self._looker.take_look()
            self._forecast.note(look.at_s, look.readings.room)
        return look

    def look(self) -> None:
        """Look at the heartbeats, and once a minute at the disk."""
        if now_ms() - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms()
        try:
            self._look()
        except OSError as error:  # no descriptor is left, for example: the next look may find one
            logger.warning("heartbeats are not looked at: %s", error)

    def _look(self) -> None:
        """Raises OSError."""
        status = (self._data_dir / STATE_FILE).stat()
        if (status.st_ino, status.st_mtime_ns) != self._read_at:
            self._read_at = status.st_ino, status.st_mtime_ns
            state = read_state(self._data_dir)
            self._processes = state["processes"] if state else ()
        with self._lock:
            self._hearts.note_beats(self._processes, now_ms())
        if now_ms() - self._noted_ms >= SAMPLE_S * 1000:
            self._noted_ms = now_ms()
            self._take()

    def metrics(self) -> Page:
        look, lags = self._take(), self.lag_watch.lags
        readings = look.readings
        age_s = (now_ms() - lags.measured_ms) / 1000 if lags else 0.0
        until_full_s = self._forecast.seconds_until_full(readings.at_s, readings.room)
        with self._lock:
            hearts = self._hearts.ages_s(readings.state["processes"] if readings.state else (), now_ms())
        watched = Watched(lags, age_s, until_full_s, hearts, look.host)
        return Page(200, CONTENT_TYPE, self._exposition.write(ReadingCollector(readings, watched)))

    def live(self) -> Page:
        """Live: the supervisor runs, since this process does."""
        return text(200, "live\n")

    def ready(self) -> Page:
        """Ready: clients are served; what is wrong all the same is in the body."""
        look = self._take()
        findings = wrong(seen(look, at_directory(self._data_dir), look.at_s))
        ready = not any(finding.condition.stops_all for finding in findings)
        return text(
            200 if ready else 503,
            "".join(f"{line}\n" for line in ("ready" * ready, *(finding.text for finding in findings)) if line),
        )


class MetricsServer(ThreadingHTTPServer):
    """Answers GET and HEAD of ``pages``; :meth:`serve` turns at least every LOOK_MS, and calls ``on_turn`` then."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, arguments: SideArguments, pages: Mapping[str, Callable[[], Page]], on_turn: Callable[[], None]
    ) -> None:
        super().__init__(arguments.listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = arguments.listening
        self.pages = pages
        self._arguments, self._on_turn = arguments, on_turn
        config = arguments.config
        self._names = host_names(config.metrics.hosts, config.broker.host, os.uname().nodename)
        self._lock = threading.Lock()
        self._asking: dict[Any, None] = {}
        """Connections that have not sent their request yet, the oldest first."""
        self._answered = 0
        """Connections that are answered now."""
        self._refused = False
        """The last connection could not be accepted: the machine has no descriptor for it."""

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except BlockingIOError:  # it has gone
            raise
        except OSError:
            self._refused = True
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._asking) + self._answered >= CONNECTIONS_MAX
            oldest = next(iter(self._asking), None) if full else None
            if oldest is not None:
                del self._asking[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(SHUT_RDWR)  # its thread ends
            if not full or oldest is not None:
                self._asking[request] = None
        if full and oldest is None:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def begin_answer(self, request: Any) -> bool:
        """Note that the request has come; False when its connection has given way meanwhile."""
        with self._lock:
            if request not in self._asking:
                return False
            del self._asking[request]
            self._answered += 1
            return True

    def end_answer(self) -> None:
        with self._lock:
            self._answered -= 1

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._asking.pop(request, None)
        super().shutdown_request(request)

    def is_own_host(self, header: str | None) -> bool:
        return header is None or is_own_host(host_of(header), self._names)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("connection of %s ended", client_address, exc_info=True)

    def serve(self) -> None:
        """Serve until the supervisor stops this process, or is gone."""
        channel, heart = self._arguments.channel, self._arguments.heart
        wait_s = min(heart.beat_ms, LOOK_MS) / 1000
        with selectors.PollSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            selector.register(self.socket, selectors.EVENT_READ)
            while not channel.closed:
                heart.beat()
                self._on_turn()
                ready = {key.fileobj for key, _ in selector.select(wait_s)}
                for message, _ in channel.receive(TO_SIDE_PROCESS):
                    if isinstance(message, Stop):
                        return
                    set_log_level(message.config.log.level)
                if self.socket in ready:
                    self.handle_request()
                if self._refused:
                    self._refused = False
                    selector.unregister(self.socket)
                    selector.select(ACCEPT_PAUSE_S)
                    selector.register(self.socket, selectors.EVENT_READ)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = TIMEOUT_S
    server_version = "appliance"
    sys_version = ""

    def do_GET(self) -> None:
        if not self.server.begin_answer(self.request):
            return
        try:
            self._answer()
        finally:
            self.server.end_answer()

    def _answer(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if not self.server.is_own_host(self.headers.get("host")):
            answer = text(421, "this name is not one of metrics.hosts: add it, or use the address\n")
        elif page is None:
            answer = text(404, "".join(f"{path}\n" for path in self.server.pages))
        else:
            answer = page()
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
    pages = Pages(arguments.data_dir, arguments.seen)
    pages.lag_watch.start()
    routes = {"/metrics": pages.metrics, "/live": pages.live, "/ready": pages.ready}
    MetricsServer(arguments, routes, pages.look).serve()
