"""The side process ``alerts``: looks at the appliance, judges, and tells what begins and what ends.

It judges as ``doctor`` does, with rates between two looks and groups; :mod:`appliance.health.alerts` decides what is
told.  The state is in ``<data>/alerts.json``, written before anything is sent: after a restart nothing is told again,
but for an event whose receipt could not be noted any more.  A thread delivers, so that a receiver that hangs keeps no
look waiting.

Bounds: each receiver gets its events in order, the next one when it has the one before; a failure is tried again after
``RETRY_S_MIN``, then longer and longer, up to ``RETRY_S_MAX``; an event that is older than ``KEPT_S`` is given up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, assert_never

import msgspec

from .. import __version__
from ..alert_settings import Alerts
from ..client.cluster_client import Cluster
from ..clock import now_ms, wall_s
from ..config import Config
from ..durable_files import replace_data_file
from ..errors import ApplianceError, StorageFault
from ..health import alerts as told
from ..health.alerts import AlertState, Event, Figures
from ..health.digest import take_digest
from ..health.findings import Finding, GroupsSeen, judge
from ..health.undelivered import ALERTS_FILE
from ..processes.child import set_log_level
from ..processes.messages import TO_SIDE_PROCESS, Reload, Stop
from ..processes.supervisor.side_processes import SideArguments
from ..web.webhook import NotDelivered, post
from . import alert_delivery
from .alert_delivery import MAIL, WEBHOOK
from .disk_forecast import DiskForecast
from .looks import GROUPS_MS, Look, Looker, ask_groups, at_directory, seen
from .readings import Readings

GROUPS_EVERY_MS: Final = 60_000
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 300.0
KEPT_S: Final = 24 * 3600.0
logger = logging.getLogger(__name__)

Deliver = Callable[[str, Event], None]
"""Delivers an event to a receiver; raises NotDelivered."""


class Book:
    """The state with its file, for several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.changed = threading.Event()
        """Something waits to be delivered."""
        self._state = _load(path)

    def take_findings(self, findings: list[Finding], figures: Figures, now_s: float, alerts: Alerts) -> None:
        """Take the findings of a look, and what went through until then."""
        with self._lock:
            before = self._state.number
            made = take_digest(self._state, alerts.digest, figures, now_s, receivers(alerts))
            dropped = told.take_findings(self._state, findings, now_s, receivers(alerts), alerts.level)
            if dropped:
                logger.warning("%d alerts are given up: more than %d wait", dropped, told.WAITING_MAX)
            if self._state.number == before and not made:
                return
            self._write()
        self.changed.set()

    def next_for(self, to: str) -> Event | None:
        """The oldest event that a receiver has not got."""
        with self._lock:
            return next((event for event in self._state.waiting if to in event.to), None)

    def delivered(self, event: Event, to: str, *, reached: bool) -> None:
        """A receiver has got an event, or, not ``reached``, it is given up."""
        with self._lock:
            if reached:
                told.reached(self._state, to)
            told.delivered(self._state, event.number, to)
            self._write()

    def failed(self, to: str, why: str, now_s: float) -> None:
        """A receiver cannot be told."""
        with self._lock:
            if told.failed(self._state, to, why, now_s):
                self._write()

    def forget_others(self, receivers: Collection[str]) -> None:
        """Only these are told from now on."""
        with self._lock:
            if told.forget_others(self._state, receivers):
                self._write()

    def _write(self) -> None:
        try:
            replace_data_file(self._path, msgspec.json.encode(self._state))
        except StorageFault as error:  # what is told now may be told again after a restart
            logger.warning("%s", error)


def _figures(readings: Readings) -> Figures:
    """For the digest."""
    totals, started = readings.totals, (readings.state or {}).get("started")
    counts = totals.messages, totals.received_bytes, totals.fetched_bytes
    return Figures(float(started or 0.0), *counts, readings.room.free, readings.room.size)


def receivers(alerts: Alerts) -> list[str]:
    """Who is told."""
    return [name for name, on in ((WEBHOOK, alerts.webhook), (MAIL, alerts.mail_to)) if on]


def _load(path: Path) -> AlertState:
    """The state of before; an empty one when it is damaged, or of another release."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=AlertState)
    except FileNotFoundError:
        return AlertState()
    except (OSError, ValueError) as error:
        logger.warning("%s: %s: alerts begin anew", path, error)
        return AlertState()
    return state if state.version == AlertState().version else AlertState()


class AlertDelivery:
    """Delivers what waits in a book, to each receiver by itself."""

    def __init__(self, book: Book, deliver: Deliver, clock_s: Callable[[], float] = wall_s) -> None:
        self._book, self._deliver, self._clock_s = book, deliver, clock_s
        self._retry_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}

    def run_once(self, to: list[str], monotonic_s: float) -> float | None:
        """Deliver all that is due; return in how many seconds more is due, None: nothing waits."""
        waits: list[float] = []
        for receiver in to:
            while (event := self._book.next_for(receiver)) is not None:
                left_s = self._due_s.get(receiver, 0.0) - monotonic_s
                if left_s > 0:
                    waits.append(left_s)
                    break
                if not self._try(event, receiver):
                    self._due_s[receiver] = monotonic_s + self._retry_s[receiver]
        return min(waits, default=None)

    def _try(self, event: Event, receiver: str) -> bool:
        try:
            self._deliver(receiver, event)
        except NotDelivered as error:
            if self._clock_s() - event.at < KEPT_S:
                if receiver not in self._retry_s:
                    logger.warning(
                        "alert %s %s: %s: %s; it is tried again", event.condition, event.event, receiver, error
                    )
                self._book.failed(receiver, str(error), self._clock_s())
                self._retry_s[receiver] = min(2 * self._retry_s.get(receiver, RETRY_S_MIN / 2), RETRY_S_MAX)
                return False
            logger.error("alert %s %s is given up for %s: %s", event.condition, event.event, receiver, error)
            self._book.failed(receiver, str(error), self._clock_s())
            self._book.delivered(event, receiver, reached=False)
            self._due_s.pop(receiver, None)
            return True
        if self._retry_s.pop(receiver, None) is not None:
            logger.info("alerts reach %s again", receiver)
        self._due_s.pop(receiver, None)
        self._book.delivered(event, receiver, reached=True)
        return True


class Alerting:
    """The process: looks, and a thread that delivers."""

    def __init__(self, arguments: SideArguments) -> None:
        self._channel, self._heart, self._data_dir = arguments.channel, arguments.heart, arguments.data_dir
        self._config = arguments.config
        self._looker, self._forecast = Looker(arguments.data_dir), DiskForecast()
        self._book = Book(arguments.data_dir / ALERTS_FILE)
        self._before: Look | None = None
        self._groups: GroupsSeen | None = None
        self._groups_ms = now_ms() - GROUPS_EVERY_MS
        self._appliance = {"host": os.uname().nodename, "data": str(arguments.data_dir), "version": __version__}

    def serve(self) -> None:
        """Serve until the supervisor stops this process, or is gone."""
        threading.Thread(target=self._deliver_all, name="alerts", daemon=True).start()
        look_ms = now_ms()
        with selectors.PollSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            while not self._channel.closed:
                self._heart.beat()
                if now_ms() >= look_ms:
                    look_ms = now_ms() + self._config.alerts.look_ms
                    self._look()
                selector.select(min(self._heart.beat_ms, max(1, look_ms - now_ms())) / 1000)
                for message, _ in self._channel.receive(TO_SIDE_PROCESS):
                    match message:
                        case Reload(config):
                            set_log_level(config.log.level)
                            self._config = config
                            self._book.changed.set()
                        case Stop():
                            return
                        case _:
                            assert_never(message)

    def _look(self) -> None:
        try:
            now = self._looker.take_look()
            self._forecast.note(now.at_s, now.readings.room)
            if now_ms() - self._groups_ms >= GROUPS_EVERY_MS:
                self._groups_ms, self._groups = now_ms(), self._ask_groups(now)
            full_s = self._forecast.seconds_until_full(now.at_s, now.readings.room)
            situation = seen(now, at_directory(self._data_dir), wall_s(), self._before, self._groups, full_s)
            self._before = now
            self._book.take_findings(judge(situation), _figures(now.readings), wall_s(), self._config.alerts)
        except (ApplianceError, OSError) as error:  # no descriptor is left, for example: the next look may find one
            logger.warning("the appliance is not looked at: %s", error)

    def _ask_groups(self, now: Look) -> GroupsSeen:
        if not now.state["listeners"].get("local"):
            return GroupsSeen()
        with contextlib.closing(Cluster(str(now.state["listeners"]["local"]), client_name="alerts")) as cluster:
            return ask_groups(cluster.admin, now.state, GROUPS_MS)

    def _deliver_all(self) -> None:
        delivery = AlertDelivery(self._book, self._deliver)
        while True:
            self._book.changed.clear()
            told_to = receivers(self._config.alerts)
            self._book.forget_others(told_to)
            wait_s = delivery.run_once(told_to, now_ms() / 1000)
            self._book.changed.wait(wait_s)

    def _deliver(self, receiver: str, event: Event) -> None:
        config: Config = self._config
        appliance: Mapping[str, str] = self._appliance
        if receiver == MAIL:
            alert_delivery.send_mail(config.alerts, event, appliance)
        else:
            body = alert_delivery.message_of(event, appliance)
            post(config.alerts.webhook, config.security.allow_insecure, body)


def serve(arguments: SideArguments) -> None:
    """Run the side process ``alerts``."""
    Alerting(arguments).serve()
