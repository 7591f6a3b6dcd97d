"""Tells a webhook of windows of a view that meet the condition of an ``[[alert]]``, once for each window.

After each refresh the rows of the newest windows are asked.  Which windows were told is in a file beside the view's
table.  It is written before anything is sent: a process that is killed tells a window again only if it could not note
that it was received.  The file has windows and no rows; those that a message names are asked when it is sent.  A
webhook that cannot be reached is tried again with the next refresh, until the window has ended ``within_ms`` ago; so a
view that is computed anew, or lines that are read again, tell nothing of what is long past.

A message is JSON: ``text`` (one line, which chat systems show), ``pipeline``, ``view``, ``when``, ``start`` and ``end``
of the window, ``rows`` (those that meet the condition, at most :data:`ROWS_MAX`), ``count`` (all of them) and ``id``,
which is the same when a message comes twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from ...errors import ApplianceError, BadValue
from ...web.webhook import NotDelivered, post
from .event_questions import micros
from .output_files import OutputFiles
from .settings import Alert, Settings
from .times import EPOCH, MICROS_MAX
from .view_definitions import View
from .view_table import VIEWS, ViewTable

TOLD: Final = "_alerts.json"
"""In the directory of the view's table."""
ROWS_MAX: Final = 10
WINDOWS_MAX: Final = 100
"""Most windows of an alert that are remembered and told, the newest."""
COUNTED_MAX: Final = 10_000
"""Most rows of a window that are counted."""
log = logging.getLogger(__name__)


class _Told(msgspec.Struct):
    """What is known of an alert: the version of the view's table that was asked last, and windows that have met it.

    Windows are their starts, in microseconds since 1970; ``waiting``: those of which nobody is told yet.
    """

    version: int = -1
    windows: list[int] = []
    waiting: list[int] = []


class Standing(NamedTuple):
    """The windows that have met the condition of an alert lately, the oldest first; of how many nobody is told yet."""

    alert: Alert
    windows: Sequence[datetime]
    waiting: int


class ViewAlerts:
    """Tells of the windows of one view that meet the condition of an alert, and remembers which were told."""

    def __init__(self, settings: Settings, view: View) -> None:
        self._settings, self._view = settings, view
        self._alerts = {_key(alert): alert for alert in settings.alert if alert.view == view.name}
        self._files = OutputFiles(settings.output)
        self._file = f"{VIEWS}/{view.name}/{TOLD}"

    def tell(self, now: datetime) -> int:
        """Tell of windows that were not told before.  Returns how many messages were received.

        Raises:
            ApplianceError: a condition is wrong, or a webhook has not received a message, which waits.
        """
        if not self._alerts:
            return 0
        table = ViewTable(self._settings.output, self._view.name)
        told_by_key = self._load()
        count, faults = 0, list[ApplianceError]()
        for key, alert in self._alerts.items():
            try:
                self._look(table, alert, told_by_key.setdefault(key, _Told()), now)
                self._store(told_by_key)
                for start in [*told_by_key[key].waiting]:
                    count += self._send(table, alert, start)
                    told_by_key[key].waiting.remove(start)
                    self._store(told_by_key)
            except ApplianceError as error:  # other alerts may have another webhook
                faults.append(error)
        if faults:
            raise faults[0]
        return count

    def standing(self) -> Iterator[Standing]:
        """What was told and is not yet forgotten, for people."""
        told_by_key = self._load()
        for key, alert in self._alerts.items():
            told = told_by_key.get(key, _Told())
            windows = [EPOCH + timedelta(microseconds=start) for start in told.windows]
            yield Standing(alert, windows, len(told.waiting))

    def _look(self, table: ViewTable, alert: Alert, told: _Told, now: datetime) -> None:
        """Note windows that meet the condition as waiting, and forget those that are too old."""
        first = int((now - EPOCH).total_seconds() * 1_000_000) - alert.within_ms * 1000 - self._view.window_us
        fresh: list[int] = []
        if told.version != table.version:
            met = table.starts(_where(alert, first, MICROS_MAX), WINDOWS_MAX)
            fresh = sorted(set(met) - set(told.windows))
        told.windows = sorted(start for start in [*told.windows, *fresh] if start >= first)[-WINDOWS_MAX:]
        told.waiting = [start for start in [*told.waiting, *fresh] if start in told.windows]
        told.version = table.version

    def _send(self, table: ViewTable, alert: Alert, start: int) -> bool:
        """Returns whether there was something to tell, still."""
        at = EPOCH + timedelta(microseconds=start)
        rows = table.rows(_where(alert, start, start + 1), COUNTED_MAX)
        if rows:
            try:
                post(alert.webhook, False, self._message(alert, at, rows), "alert.webhook")
            except NotDelivered as error:
                raise ApplianceError(
                    f"view {alert.view}: the window of {at:%Y-%m-%d %H:%M:%S} UTC has {alert.when}, and nobody is "
                    f"told: {error}; it is tried again with the next refresh"
                ) from None
            log.info("view %s: %s in the window of %s", alert.view, alert.when, at.isoformat())
        return bool(rows)

    def _message(self, alert: Alert, start: datetime, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        plain: list[dict[str, Any]] = json.loads(json.dumps(rows[:ROWS_MAX], default=_plain))
        of = ", ".join(f"{name} = {value}" for name, value in plain[0].items() if name != "start")
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        name = self._settings.pipeline.name
        text = f"{name}: {alert.view}: {alert.when} at {start:%Y-%m-%d %H:%M:%S} UTC: {of}{more}"
        return {
            "text": text,
            "id": f"{name}:{_key(alert)}:{start.isoformat()}",
            "pipeline": name,
            "view": alert.view,
            "when": alert.when,
            "start": start.isoformat(),
            "end": (start + timedelta(microseconds=self._view.window_us)).isoformat(),
            "rows": plain,
            "count": len(rows),
        }

    def _load(self) -> dict[str, _Told]:
        stored = self._files.read(self._file)
        return {} if stored is None else msgspec.json.decode(stored, type=dict[str, _Told])

    def _store(self, told_by_key: dict[str, _Told]) -> None:
        kept = {key: told for key, told in told_by_key.items() if key in self._alerts}
        self._files.write(self._file, msgspec.json.encode(kept).decode())


def fault_of(table: ViewTable, alert: Alert) -> str:
    """Why the condition cannot be asked of the view's table, or ""."""
    try:
        table.rows(f"({alert.when}\n)", 1)
    except BadValue as error:
        return str(error)
    return ""


def _key(alert: Alert) -> str:
    """What tells alerts apart: with another condition everything is told anew."""
    return hashlib.blake2b(f"{alert.view}\0{alert.when}".encode(), digest_size=8).hexdigest()


def _where(alert: Alert, first_us: int, end_us: int) -> str:
    """Rows that meet the condition, of windows that begin from the first to before the second time, in SQL."""
    day = f"{EPOCH + timedelta(microseconds=first_us):%Y-%m-%d}"
    at = micros("start")
    # The line break ends a comment.
    return f"({alert.when}\n) and date >= '{day}' and {at} >= {first_us} and {at} < {end_us}"


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
