"""The side process ``console``: creates the application, and serves it until Stop comes or the supervisor is gone.

The loop beats, reads the supervisor's messages, and sends it what was refused to visitors, for ``status``.  A reload
changes how messages are shown, and who sees something without a login; users and access rules are read as they change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ..addresses import PLAINTEXT, Listener, address_text, host_names, parse_networks
from ..clock import now_ms, wall_ms, wall_s
from ..config import Config
from ..metrics.lag_watch import Lags, LagWatch
from ..processes.child import set_log_level
from ..processes.messages import TO_SIDE_PROCESS, RefusalsReport, Reload, Stop
from ..processes.supervisor.side_processes import SideArguments
from ..security import security_file
from ..security.audit_log import Audit
from ..security.configuration import is_loopback
from ..security.field_masks import FieldMasks
from .application import ConsoleHandlers
from .console_sessions import SESSION_S_DEFAULT, Attempts, Sessions
from .guards import RequestGuard
from .history import Recorder
from .observer import Observer, Poller
from .value_decoding import MessageViews
from .visitors import Visitors
from .web_server import serve_until

REFUSALS_S: Final = 1
"""How long refusals are counted before the supervisor gets their numbers."""


def serve(arguments: SideArguments) -> None:
    """Run the process."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # else any client could fill the log
    # Not asyncio.run(), which waits for threads: a search, or a poll that the coordinator does not answer any more,
    # would delay a stop.  They end with the process.
    asyncio.new_event_loop().run_until_complete(_serve(arguments))


async def _serve(arguments: SideArguments) -> None:
    config, data_dir, _, channel, heart, _ = arguments
    sock = arguments.listening
    loop = asyncio.get_running_loop()

    def refused() -> None:  # also in threads
        loop.call_soon_threadsafe(loop.call_later, REFUSALS_S, send_refusals)

    audit = Audit(now_ms, refused)
    lag_watch = LagWatch(data_dir, "appliance-console", config.console.chart_ms / 1000)
    address = address_text(sock.getsockname())
    console = make_console(config, data_dir, address, audit, lambda: lag_watch.lags)
    guarded: Any = RequestGuard(console.application(), host_names(config.console.hosts, config.broker.host))
    proxies = parse_networks(config.console.proxies)
    app: Any = ProxyHeadersMiddleware(guarded, [str(network) for network in proxies])

    def read() -> None:
        messages = [message for message, _ in channel.receive(TO_SIDE_PROCESS)]
        for message in messages:
            if isinstance(message, Reload):
                set_log_level(message.config.log.level)
                console.reload(message.config, login_first=_is_login_first(message.config, address))
        if Stop() in messages or channel.closed:
            console.stopping.set()
            loop.remove_reader(channel.fileno())

    def send_refusals() -> None:
        channel.send(RefusalsReport(audit.take_counts()))

    loop.add_reader(channel.fileno(), read)
    lag_watch.start()
    beating = asyncio.create_task(heart.beat_in_loop())
    try:
        await serve_until(console.stopping, app, [sock], proxies)
    finally:
        beating.cancel()


def _has_logins(config: Config) -> bool:
    """Whether some clients have to say who they are, or visitors come from other hosts."""
    certificates = config.tls.client_auth == "required"
    listeners = any(listener.sasl or (listener.tls and certificates) for listener in config.listeners)
    return listeners or bool(config.console.hosts or config.console.proxies)


def _is_login_first(config: Config, address: str) -> bool:
    """Whether a page at this address shows nothing before a login."""
    if not is_loopback(Listener("console", PLAINTEXT, address)):
        return True
    return _has_logins(config) and not config.console.anonymous


def make_console(
    config: Config, data_dir: Path, address: str, audit: Audit, lags: Callable[[], Lags | None]
) -> ConsoleHandlers:
    """The handlers of a console that is served at an address.  ``lags``: the last result of a watch of the lag."""
    clock = time.monotonic
    listener = Listener("console", PLAINTEXT, address)
    sessions = Sessions(clock, config.security.sessions_ms_max / 1000 or SESSION_S_DEFAULT)
    visitors = Visitors(
        *(listener, config.security, data_dir / security_file.FILE_NAME),
        *(sessions, Attempts(clock), audit),
        login_first=_is_login_first(config, address),
        anonymous=config.console.anonymous,
        wall_ms=wall_ms,
    )
    recorder = Recorder(config.console.chart_ms / 1000, clock, wall_s, lags)
    observer = Observer(Poller(data_dir, config.broker.id, clock, wall_s), recorder, time.thread_time)
    cookie = f"appliance_console_{address.rpartition(':')[2]}"
    views = MessageViews(config.console.decode, FieldMasks(config.console.masks))
    return ConsoleHandlers(data_dir, observer, visitors, clock, cookie, config.ledger.topic, views, recorder)
