"""Compares configurations: what a reload changes while the appliance runs, and what waits for a restart.

A reload takes all keys of RELOADED, the settings of patterns and the inputs from the new file.  Other keys stay as they
were at the start, and are named as long as the file says something else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...config import KEYS, Config
from ...config_keys import Scalar, Value
from ...config_keys import text_of as text_of_value
from ...security.masking import MASK
from ..child import set_log_level

logger = logging.getLogger(__name__)

RELOADED: Final = (
    "topics.", "disk.", "scrub.", "offsets.", "tls.", "writer.", "alerts.", "native.advertised", "kafka.advertised",
    "stop.timeout_ms", "log.level", "console.decode", "console.masks", "console.anonymous",
)  # fmt: skip
"""Keys, and beginnings of keys."""

SECRET: Final = {"alerts.webhook"}
"""Keys whose value may be a URL that is a secret by itself; all others name files of secrets."""


class Reloads:
    """The reloads of a supervisor.  ``last`` is for state.json."""

    def __init__(self, config: Config) -> None:
        self._config, self._now = config, config.flat()
        self.last: dict[str, Any] = {"count": 0, "error": "", "changed": [], "needs_restart": []}

    def fail(self, error: str) -> None:
        """Note a file that cannot be used; nothing changes."""
        self.last = {**self.last, "count": self.last["count"] + 1, "error": error, "changed": []}

    def note_config(self, config: Config) -> Config:
        """Note a new configuration, and log what it changes.  Returns the one that is in force from now on.

        That is the one of the start with the keys of RELOADED from the new one.  So a process that is started again
        does not take a key of which the reload has said that it needs a restart.
        """
        in_force = _merged(self._config, config)
        new_values, now = config.flat(), in_force.flat()
        self.last = {
            "count": self.last["count"] + 1,
            "error": "",
            "changed": _differences(self._now, now),
            "needs_restart": _differences(now, new_values),
        }
        self._now = now
        set_log_level(config.log.level)
        logger.info("configuration reloaded: %s", text_of(self.last["changed"]) or "nothing has changed")
        if waiting := text_of(self.last["needs_restart"]):
            logger.warning("needs a restart: %s", waiting)
        return in_force


def _merged(started: Config, reloaded: Config) -> Config:
    tables: dict[str, dict[str, Scalar]] = {}
    for name, key in KEYS.items():
        if name.startswith(RELOADED):
            tables.setdefault(key.table, {})[key.attribute] = reloaded.value(name)
    changed = {table: msgspec.structs.replace(getattr(started, table), **values) for table, values in tables.items()}
    return msgspec.structs.replace(started, topic_patterns=reloaded.topic_patterns, inputs=reloaded.inputs, **changed)


def _differences(before: Mapping[str, Value], after: Mapping[str, Value]) -> list[list[Scalar]]:
    """[key, value before, value after] of each key that differs; "" stands for that of an input or a pattern
    that is not there."""
    shown = [(key, before.get(key, ""), after.get(key, "")) for key in {**before, **after}]
    return [[key, _shown(key, old), _shown(key, new)] for key, old, new in shown if old != new]


def _shown(key: str, value: Value) -> Scalar:
    if key in SECRET and isinstance(value, str) and "://" in value:
        return MASK
    return text_of_value(value) if isinstance(value, tuple) else value


def text_of(rows: list[list[Scalar]]) -> str:
    """Rows of changes on one line, without secrets."""
    return ", ".join(f"{key}: {before} -> {after}" for key, before, after in rows)
