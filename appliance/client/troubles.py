"""Keeps and logs the troubles of a client: conditions that stop its work until they end.

A client waits while a broker restarts, a partition is offline or a disk is full.  :class:`Troubles` keeps one
:class:`Trouble` for each subject, so there are at most about as many as brokers and partitions in use.  It logs one
line when a trouble begins, when its kind changes, and when it is over; retries in between are not logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from ..errors import ApplianceError

logger = logging.getLogger(__name__)

Subject = tuple[str, int] | str
"""A topic and partition, or the name of anything else: an address, ``metadata``."""


class Trouble(NamedTuple):
    """One trouble.  ``since_s``: when it began, by the clock of :class:`Troubles`."""

    subject: Subject
    error: ApplianceError
    since_s: float

    @property
    def topic_partition(self) -> tuple[str, int] | None:
        return self.subject if isinstance(self.subject, tuple) else None

    def __str__(self) -> str:
        name, text = name_of(self.subject), str(self.error)
        return text if name in text else f"{name}: {text}"


class Troubles:
    """The troubles of one client.  Any thread may read them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[Subject, Trouble] = {}

    def __contains__(self, subject: Subject) -> bool:
        return subject in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    def current(self) -> list[Trouble]:
        """All present troubles, the oldest first."""
        return sorted(self._open.copy().values(), key=lambda trouble: trouble.since_s)

    def note_trouble(self, subject: Subject, error: ApplianceError) -> None:
        """Note that ``subject`` makes no progress because of ``error``."""
        open_trouble = self._open.get(subject)
        if open_trouble is None or (type(open_trouble.error), open_trouble.error.code) != (type(error), error.code):
            since_s = self._clock() if open_trouble is None else open_trouble.since_s
            trouble = self._open[subject] = Trouble(subject, error, since_s)
            logger.warning("%s; trying again", trouble)

    def note_progress(self, subject: Subject) -> None:
        """Note that ``subject`` makes progress again."""
        trouble = self._open.pop(subject, None)
        if trouble is not None:
            logger.warning("%s: continuing after %.1f s", name_of(subject), self._clock() - trouble.since_s)

    def forget(self, subject: Subject) -> None:
        """Drop the trouble: nothing waits for ``subject`` any more."""
        self._open.pop(subject, None)


def name_of(subject: Subject) -> str:
    return subject if isinstance(subject, str) else f"{subject[0]}-{subject[1]}"
