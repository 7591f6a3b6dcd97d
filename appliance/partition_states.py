"""The states of a partition that is stored here: its log has one, its table publishes it, and ``status`` names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

OPENING, ONLINE, OFFLINE, DISK_FULL = range(4)
STATE_NAMES: Final = ("opening", "online", "offline", "disk full")
ELSEWHERE: Final = "elsewhere"
"""Shown of a partition that another broker stores."""
DAMAGED: Final = "damaged"
"""Shown instead of the state while some offsets of the partition are not served."""


def damage_rows(ranges: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The damaged ranges of a partition as objects: see ``status.py``."""
    return [dict(zip(("start", "stop", "file", "position", "reason"), damaged, strict=True)) for damaged in ranges]


def damage_text(ranges: Sequence[Sequence[Any]]) -> str:
    """What is known of the damaged ranges of a partition, of which one exists: start, stop, file, position, reason."""
    (start, stop, file, position, reason), more = ranges[0], len(ranges) - 1
    text = f"{file}:{position}: {reason}: the offsets {start} to {stop} are not served"
    return f"{text}, and {more} more" if more else text
