"""Refreshes the views of a running pipeline, each at its own cadence, in a thread of its own.

A view that cannot be refreshed does no harm to the pipeline or to other views: what is wrong is logged once, and told
at the end of the run.  The definitions are read again each time, so a corrected file needs no restart.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from pyspark.sql import SparkSession

from ...errors import AlreadyRunning
from .repeating import Repeating
from .settings import Settings
from .troubles import DEFINITIONS, Troubles
from .view_definitions import View
from .view_refresh import Refresher, refresher
from .view_states import views_of

WAIT_S: Final = 1.0
"""How often it looks whether a view is due."""
DIRECTORY: Final = "views.path"
log = logging.getLogger(__name__)


class ViewKeeper:
    """Keeps views from when it is entered until it is left, and with ``at_end`` refreshes all of them then."""

    def __init__(self, spark: SparkSession, settings: Settings, *, at_end: bool = False) -> None:
        self._spark = spark
        self._settings = settings
        self._troubles = Troubles(settings)
        self._at_end = at_end
        self._due_s: dict[str, float] = {}
        self._looks = Repeating("views", lambda: self.look(time.monotonic()), WAIT_S)
        self.faults: dict[str, str] = {}
        """What is wrong, by the name of the view."""

    def __enter__(self) -> ViewKeeper:
        if self._settings.views.path and not self._at_end:
            self._looks.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the refresh that is under way."""
        self._looks.stop()
        if self._settings.views.path and self._at_end and kind is None:
            self.look(float("inf"))

    @property
    def remark(self) -> str:
        return "; ".join(self.faults.values())

    def look(self, now_s: float) -> None:
        """Refresh the views that are due at this time."""
        try:
            views = views_of(self._settings)
            self.faults.pop(DIRECTORY, None)
            self._troubles.keep_views({view.name for view in views})
            due = [view for view in views if self._due_s.get(view.name, now_s) <= now_s]
            if due:
                begun_s = time.monotonic()
                with refresher(self._settings, self._spark) as refreshing:
                    for view in due:
                        self._due_s[view.name] = begun_s + view.cadence_ms / 1000
                        self._refresh(refreshing, view)
                        self._due_s[view.name] = begun_s + self._interval_s(view, time.monotonic() - begun_s)
        except AlreadyRunning:
            return  # a rebuild of all: look again
        except Exception as error:  # whatever it is, the thread goes on, and a run has its result
            self._fault(DIRECTORY, _text(error))
            self._troubles.note(DEFINITIONS, _text(error))

    def _interval_s(self, view: View, took_s: float) -> float:
        """From one begin to the next one, so that a row is in the view when it is as old as the cadence says.

        ``took_s``: until the view was refreshed, with those before it.
        """
        cadence_s = view.cadence_ms / 1000
        return max(cadence_s / 2, cadence_s - took_s - 2 * WAIT_S)

    def _refresh(self, refreshing: Refresher, view: View) -> None:
        try:
            refreshed = refreshing.refresh(view)
        except Exception as error:  # of this view only
            self._fault(view.name, _text(error))
            self._troubles.note_view(view.name, _text(error))
            return
        if refreshed.remark:
            self._fault(view.name, refreshed.remark)
        else:
            self.faults.pop(view.name, None)
        if refreshed.state != "current":
            log.info(
                "view %s: %d rows, events version %d, %.1f s",
                view.name,
                refreshed.rows,
                refreshed.version,
                refreshed.seconds,
            )

    def _fault(self, name: str, text: str) -> None:
        if self.faults.get(name) != text:
            self.faults[name] = text
            log.warning("%s", text)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
