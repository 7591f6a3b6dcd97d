"""Compares configurations: what a reload changes while the appliance runs, and what waits for a restart.

A reload takes all keys of RELOADED from the new file.  Other keys stay as they were at the start, and are named as
long as the file says something else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from ...config import Config
from ...config_keys import Scalar
from ..child import set_log_level

logger = logging.getLogger(__name__)

RELOADED: Final = (
    "topics.", "disk.", "offsets.", "tls.", "writer.idle_ms", "native.advertised", "kafka.advertised",
    "stop.timeout_ms", "log.level",
)  # fmt: skip
"""Keys, and beginnings of keys."""


class Reloads:
    """The reloads of a supervisor.  ``last`` is for state.json."""

    def __init__(self, config: Config) -> None:
        self._started_with = self._now = config.flat()
        self.last: dict[str, Any] = {"count": 0, "error": "", "changed": [], "needs_restart": []}

    def fail(self, error: str) -> None:
        """Note a file that cannot be used; nothing changes."""
        self.last = {**self.last, "count": self.last["count"] + 1, "error": error, "changed": []}

    def take(self, config: Config) -> None:
        """Note a new configuration, and log what it changes."""
        wanted = config.flat()
        now = {key: wanted[key] if key.startswith(RELOADED) else self._started_with[key] for key in wanted}
        self.last = {
            "count": self.last["count"] + 1,
            "error": "",
            "changed": _differences(self._now, now),
            "needs_restart": _differences(now, wanted),
        }
        self._now = now
        set_log_level(config.log.level)
        logger.info("configuration reloaded: %s", text_of(self.last["changed"]) or "nothing has changed")
        if waiting := text_of(self.last["needs_restart"]):
            logger.warning("needs a restart: %s", waiting)


def _differences(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> list[list[Scalar]]:
    """[key, value before, value after] of each key that differs."""
    return [[key, before[key], after[key]] for key in before if before[key] != after[key]]


def text_of(rows: list[list[Scalar]]) -> str:
    """Rows of changes on one line; secrets are in files, so every value may be shown."""
    return ", ".join(f"{key}: {before} -> {after}" for key, before, after in rows)
