"""Who cannot be told of alerts: noted by the side process that tells (``metrics/alerting.py``), read by who judges."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

ALERTS_FILE: Final = "alerts.json"
"""The state of alerts, in the data directory.  A backup leaves it out: its alerts were those of another time."""


class Undelivered(msgspec.Struct, frozen=True):
    """A receiver that fails.  ``since``: its first failure in sequence, since 1970; ``why``: the last one."""

    since: float
    why: str


class _File(msgspec.Struct):
    failing: dict[str, Undelivered] = {}


def read_undelivered(data_dir: Path) -> dict[str, Undelivered]:
    """By receiver; none where nobody is told of anything, or the file cannot be read."""
    try:
        return msgspec.json.decode((data_dir / ALERTS_FILE).read_bytes(), type=_File).failing
    except (OSError, ValueError):
        return {}
