"""Keeps ephemeral nodes in place, in the present session and in every later one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ..errors import ApplianceError
from .operations import hold_ephemeral
from .tasks import OPERATION_TIMEOUT_MS, Task, Tasks

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""Interval of the attempts to create a node that somebody else holds."""


class _Kept:
    def __init__(self, path: str, value: bytes, ours: Callable[[bytes], bool]) -> None:
        self.path, self.value, self.ours = path, value, ours
        self.task: Task | None = None
        self.held = False
        self.complained = False
        self.retry_ms: int | None = None


class KeptNodes:
    """Creates the nodes.  While somebody else holds one, it logs one line and tries again every RETRY_MS."""

    def __init__(self, tasks: Tasks, clock_ms: Callable[[], int]) -> None:
        self._tasks = tasks
        self._clock_ms = clock_ms
        self._kept: dict[str, _Kept] = {}
        self._session_id = 0  # 0: there is none yet

    def keep(self, path: str, value: bytes, ours: Callable[[bytes], bool]) -> None:
        """Keep a node at ``path``.  A later call changes its value.  ``ours``: see ``Session.keep``."""
        kept = self._kept.get(path)
        if kept is None:
            kept = self._kept[path] = _Kept(path, value, ours)
        kept.value, kept.ours = value, ours
        self._establish(kept)

    def unkeep(self, path: str) -> None:
        kept = self._kept.pop(path, None)
        if kept is not None and kept.task is not None:
            kept.task.cancel()

    def holds(self, path: str) -> bool:
        """Whether the node is in place in the current session, as far as is known."""
        kept = self._kept.get(path)
        return kept is not None and kept.held

    def on_session(self, session_id: int) -> None:
        """Create all nodes again, in a new session."""
        self._session_id = session_id
        for kept in self._kept.values():
            kept.held = False
            self._establish(kept)

    def deadlines(self) -> list[int]:
        return [kept.retry_ms for kept in self._kept.values() if kept.retry_ms is not None]

    def retry_due(self, now_ms: int) -> None:
        for kept in list(self._kept.values()):
            if kept.retry_ms is not None and now_ms >= kept.retry_ms:
                self._establish(kept)

    def _establish(self, kept: _Kept) -> None:
        kept.retry_ms = None
        if self._session_id == 0:
            return  # on_session will
        if kept.task is not None:
            kept.task.cancel()

        def done(result: bool | ApplianceError) -> None:
            kept.task = None
            kept.held = result is True
            if not kept.held:
                kept.retry_ms = self._clock_ms() + RETRY_MS
                if result is False and not kept.complained:
                    log.info("%s is registered by somebody else; trying until it is gone", kept.path)
                kept.complained = result is False

        operation = hold_ephemeral(kept.path, kept.value, self._session_id, kept.ours)
        deadline_ms = self._clock_ms() + OPERATION_TIMEOUT_MS
        kept.task = self._tasks.begin(operation, done, deadline_ms, self._session_id)
